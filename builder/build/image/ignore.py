"""Keeps files that look like secrets out of images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pathspec import GitIgnoreSpec

from builder.core.datafiles import read_beside
from builder.core.text import listed
from builder.formats.trees.ignore import IGNORE_FILE, Ignore, plain_path
from builder.lock.config.recipe import Recipe

#: Files that hold certificates or private keys; only the content tells.
_KEYS = (".pem", ".key")
_PRIVATE_KEY = b"PRIVATE KEY-----"
#: Bytes of such a file that are read.
_KEY_BYTES = 1 << 16
#: Secrets that the note names.
_SHOWN = 5


class FilesIgnore(Ignore):
    """Also omits files that look like secrets from ``files:``.

    A line ``!NAME`` in ``.builderignore`` declares that a file is no secret.

    Args:
        root: the project folder.
        secrets: receives the files that are left out because they look like secrets.
    """

    def __init__(self, root: Path, secrets: list[Path]) -> None:
        super().__init__(root)
        self._secrets = secrets

    def leaves_out(self, path: Path, *, is_folder: bool) -> bool:
        if super().leaves_out(path, is_folder=is_folder):
            return True
        if is_folder or not self.is_secret(path):
            return False
        self._secrets.append(path)
        return True

    def is_secret(self, path: Path) -> bool:
        """Return whether a file looks like a secret that ``.builderignore`` does not allow."""
        return path.is_file() and _is_secret(path) and not self.allows(path)


def secret_note(recipe: Recipe, secrets: Sequence[Path]) -> str:
    """Return the note about files that were left out because they look like secrets.

    Args:
        recipe: the target.
        secrets: the files, see :func:`builder.build.image.recipe_files.recipe_entries`; at least
        one.
    """
    root = plain_path(recipe.root)
    names = [path.relative_to(root).as_posix() for path in dict.fromkeys(secrets)]
    shown = listed(names, _SHOWN)
    looks = "looks like a secret and is" if len(names) == 1 else "look like secrets and are"
    return (
        f"files: {shown} {looks} left out of the image; to copy a file that is none, write a line such as "
        f"!/{names[0]} into {root / IGNORE_FILE}"
    )


@cache
def _secrets() -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(read_beside(__file__, "secrets.txt").splitlines())


def _is_secret(path: Path) -> bool:
    if path.suffix in _KEYS:
        with path.open("rb") as file:
            return _PRIVATE_KEY in file.read(_KEY_BYTES)
    return _secrets().match_file(path.as_posix().lstrip("/"))
