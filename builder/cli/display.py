"""A task in a terminal, drawn by rich. It is imported when there is something to draw."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

#: Columns of the bar.
_WIDTH = 60


class _Stderr(Console):
    """Stderr, where the cursor stays visible: a builder that is killed cannot show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class Display(Live):
    """The last lines of the terminal.

    It is started once: a second start of rich 15.0 erases lines that were printed in between.
    """

    def __init__(self) -> None:
        console = _Stderr(stderr=True, force_terminal=True, force_interactive=True)
        super().__init__(console=console, auto_refresh=False, transient=True)
        self._redirect_stdout = self._redirect_stderr = False

    def draw(self, name: str, status: str, done: int, total: int | None) -> None:
        """Show a task: a text, and with a total a bar below it."""
        bar = ProgressBar(total, done, _WIDTH, style="bright_black", complete_style="green")
        text = Text.assemble((name, "bold"), status)
        self.update(Group(text, bar) if total else text, refresh=True)
