"""What a terminal shows of a program's output: progress lines that were erased are gone, colours stay."""

from __future__ import annotations

import re

#: A control sequence with its numbers, another escape sequence (a title, a link), or a character.
_TOKEN = re.compile(r"\x1b\[([\d;:?]*)([@-~])|\x1b\].*?(?:\x07|\x1b\\)|\x1b.|(.)", re.DOTALL)
_RESET = "\x1b[0m"


class Screen:
    """A terminal that never scrolls: text, colours, and what moves the cursor and erases.

    A cell is a character after the sequences that give it its colours.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self._style = ""
        self._continued: set[int] = set()
        """Rows that continue the one above, because the text was too long for it."""

    def feed(self, text: str) -> None:
        """Shows what a program has written."""
        for token in _TOKEN.finditer(text):
            numbers, name, character = token.groups()
            if name == "m":
                self._style = "" if numbers in ("", "0") else self._style + token[0]
            elif name:
                self._control(name, int(numbers) if numbers.isdigit() else 0)
            elif character == "\r":
                self._column = 0
            elif character == "\n":
                self._move(self._row + 1)
            elif character and character >= " ":
                self._write(character)

    def lines(self) -> list[str]:
        """Returns the lines as they were written, with their colours; none at the end is empty."""
        found: list[str] = []
        for number, row in enumerate(self._rows):
            above = found.pop() if number in self._continued else ""
            found.append(above + "".join(row).rstrip())
        while found and not found[-1]:
            found.pop()
        return found

    def _write(self, character: str) -> None:
        if self._column == self._columns:
            self._move(self._row + 1)
            self._column = 0
            self._continued.add(self._row)
        row = self._rows[self._row]
        row += [" "] * (self._column + 1 - len(row))
        row[self._column] = f"{self._style}{character}{_RESET}" if self._style else character
        self._column += 1

    def _move(self, row: int) -> None:
        self._row = max(0, row)
        self._rows += [[] for _ in range(self._row + 1 - len(self._rows))]

    def _control(self, name: str, number: int) -> None:
        """Moves the cursor (A, B, C, D, G) or erases the line (K) or the screen (J)."""
        row, count = self._rows[self._row], number or 1
        if name in "AB":
            self._move(self._row + (count if name == "B" else -count))
        elif name in "CDG":
            column = count - 1 if name == "G" else self._column + (count if name == "C" else -count)
            self._column = min(max(0, column), self._columns)
        elif name == "K" and number == 1:
            row[: self._column + 1] = [" "] * len(row[: self._column + 1])
        elif name in "KJ":
            del row[0 if number == 2 else self._column :]
            if name == "J":
                del self._rows[self._row + 1 :]
