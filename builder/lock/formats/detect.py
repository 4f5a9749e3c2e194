"""Recognises the format of a foreign lock file."""

from __future__ import annotations

from pathlib import Path

from builder.lock.formats.foreign import Format


def foreign_format(path: Path, text: str) -> Format | None:
    """The format of a lock file of another tool, from its name and content; None if it is none of them."""
    raise NotImplementedError


def foreign_python(path: Path) -> str | None:
    """The Pythons that a foreign lock is for, as a specifier (``>=3.11``, or empty: any).

    None if the lock contains its Python (formats with conda packages).

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`.
    """
    raise NotImplementedError
