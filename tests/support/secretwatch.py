"""The search for secrets: in files, and in the command lines of all processes while a test runs."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path


class Secrets:
    """Strings that must not be seen, and a watch over the command lines of all processes meanwhile."""

    PAUSE_S = 0.05

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.seen: list[str] = []
        self.samples = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def add(self, *words: str) -> None:
        self.words |= {w for w in words if w}

    def __enter__(self) -> Secrets:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(self.PAUSE_S):
            self.samples += 1
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if any(word in line for word in list(self.words)):
                        self.seen.append(line)

    def files(self, folder: Path, *allowed: Path) -> list[Path]:
        """The files below a folder that hold one of the words, but for those that are allowed to."""
        needles = [word.encode() for word in self.words]
        found = []
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and path not in allowed:
                data = path.read_bytes()
                found += [path for needle in needles if needle in data]
        return found
