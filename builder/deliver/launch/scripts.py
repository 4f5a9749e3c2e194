"""Scripts that a command names: a wrong name is reported before a job waits for hours."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from shlex import join

from builder.core.errors import UsageError
from builder.lock.config.merge import choices, near_hint

#: An interpreter, its options, some with a value, and a script with a relative path, which does not
#: follow ``-m`` or ``-c``.
_COMMAND = re.compile(
    r"(?:\S*/)?(?:python[\d.]*|bash|sh|torchrun)"
    r"(?: -(?!\w*[cm] )\S*| (?:-[WX]|--[\w-]+) [^\s-]\S*)*?"
    r" ([^\s/~$-][^\s$]*\.(?:py|sh))(?: .*)?",
    re.DOTALL,
)
_INTERPRETERS = {".py": "python", ".sh": "bash"}


def check_script(command: Sequence[str], *folders: Path) -> None:
    """Check the script of a command that starts in one of these folders.

    Raises:
        UsageError: the first folder has no such script, and the hint names those that it has; or
            the command is a script that is no program.
    """
    name = command[0] if command else ""
    interpreter, script = _INTERPRETERS.get(Path(name).suffix), folders[0] / name
    if interpreter and script.is_file() and not ("/" in name and os.access(script, os.X_OK)):
        hint = f"write {join([interpreter, *command])}"
        raise UsageError(f"{name} is a script, not a program", hint)
    found = _COMMAND.fullmatch(" ".join(command))
    if found is None or any((folder / found[1]).exists() for folder in folders):
        return
    hint = _scripts_like(found[1], folders[0])
    raise UsageError(f"{folders[0]} has no {found[1]}", hint)


def _scripts_like(name: str, folder: Path) -> str:
    """Return the hint with the scripts of a folder in place of one that it does not have."""
    end = Path(name).suffix
    files = [*folder.glob(f"*{end}"), *folder.glob(f"*/*{end}")]
    names = sorted(str(path.relative_to(folder)) for path in files)
    return near_hint(name, names, 0.7) or (choices(name, names) if names else "")
