"""What is left out when a folder of the project is copied into an image, and what looks like a secret.

Three things are always left out: what tools write into a project (:data:`TOOLS`), what builder itself writes
(:data:`OWN`), and folders that a tool has marked as its own (:data:`MARKS`). The project's ``.builderignore``
adds patterns in gitignore's syntax. A folder that ``source`` itself names is copied, whatever its name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pathspec import GitIgnoreSpec

from builder.config.recipe import Recipe
from builder.errors import ConfigError
from builder.layers.entry import Entry, Range

#: The file of patterns, in the project folder. It is not copied itself.
IGNORE_FILE = ".builderignore"
#: Names that are left out in every folder.
TOOLS = frozenset({"__pycache__", ".git", ".venv", ".cache", ".builder", ".DS_Store", IGNORE_FILE})
#: What builder writes into the project: an image would contain its predecessor, and the editor's schema of
#: recipes changes with builder's version.
OWN = frozenset({"dist", "reports", "recipes/.schema.json"})
#: Files and folders inside an OCI image layout, builder's cache, a virtual environment, or another cache.
MARKS = ("oci-layout", "blobs/sha256", "pyvenv.cfg", "CACHEDIR.TAG")
#: Files that usually hold passwords, tokens or private keys, as gitignore patterns.
_SECRETS = """
.env
.env.*
!.env.example
!.env.sample
!.env.template
.netrc
_netrc
.pypirc
.git-credentials
.dockercfg
.htpasswd
.pgpass
.docker/config.json
.aws/credentials
id_rsa
id_dsa
id_ecdsa
id_ed25519
*.p12
*.pfx
*.jks
*.kdbx
credentials
credentials.json
application_default_credentials.json
registry.profile
secrets.yml
secrets.yaml
secrets.json
secrets.toml
"""
#: Files that hold certificates or private keys; only the content tells.
_KEYS = (".pem", ".key")
_PRIVATE_KEY = b"PRIVATE KEY-----"
#: Bytes of such a file that are read.
_KEY_BYTES = 1 << 16
#: A list of patterns has at most this many bytes.
_MAX_PATTERNS = 1 << 20
#: Secrets that a warning names.
_SHOWN = 5


class Ignore:
    """What is left out of the folders of one project.

    Args:
        root: the project folder.

    Raises:
        ConfigError: ``.builderignore`` cannot be read, or a line is not a pattern.
    """

    def __init__(self, root: Path) -> None:
        self._root = _plain(root)
        self.file = self._root / IGNORE_FILE
        self._lines = _read_lines(self.file)
        self._spec = _spec(self.file, self._lines)

    def leaves_out(self, path: Path, *, is_folder: bool) -> bool:
        """Whether a file or folder that was found in a copied folder is left out."""
        if path.name in TOOLS or path in {self._root / name for name in OWN}:
            return True
        if is_folder and any((path / mark).exists() for mark in MARKS):
            return True
        return bool(self._check(path, is_folder)[0])

    def rule_for(self, path: Path, *, is_folder: bool) -> str:
        """The line of ``.builderignore`` that leaves a path out (``FILE:LINE: PATTERN``); empty: none."""
        included, index = self._check(path, is_folder)
        if not included or index is None:
            return ""
        return f"{self.file}:{index + 1}: {self._lines[index]}"

    def allows(self, path: Path) -> bool:
        """Whether a line ``!PATTERN`` says that a path is wanted in the image."""
        return self._check(path, False)[0] is False

    def _check(self, path: Path, is_folder: bool) -> tuple[bool | None, int | None]:
        """Whether the patterns leave a path out (None: none fits it), and the index of the deciding line."""
        if path == self._root or not path.is_relative_to(self._root):
            return None, None
        text = path.relative_to(self._root).as_posix() + ("/" if is_folder else "")
        found = self._spec.check_file(text)
        return found.include, found.index


def _plain(path: Path) -> Path:
    """The absolute path without ``..``; symlinks are not followed."""
    return Path(os.path.normpath(path.absolute()))


def _read_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_PATTERNS + 1)
        if len(data) > _MAX_PATTERNS:
            raise ConfigError(f"{path}: more than {_MAX_PATTERNS} bytes", "write one pattern a line")
        return data.decode().splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text", "write one pattern a line, as in .gitignore") from None
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}", "check its permissions") from None


def _spec(path: Path, lines: Sequence[str]) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:
        bad = next(number for number, line in enumerate(lines, 1) if not _is_pattern(line))
        raise ConfigError(
            f"{path}:{bad}: {lines[bad - 1]!r} is not a pattern", "write it as in .gitignore: /data/ or *.csv"
        ) from None


def _is_pattern(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


# secrets ----------------------------------------------------------------------------------------------------


def secret_warning(recipe: Recipe, entries: Sequence[Entry]) -> str:
    """The warning about copied files that look like secrets; empty if there are none.

    A line ``!NAME`` in ``.builderignore`` declares that a file is no secret.

    Args:
        recipe: the target.
        entries: what is copied, see :func:`builder.image.recipe_files.recipe_entries`.
    """
    ignore, root = Ignore(recipe.root), _plain(recipe.root)
    paths = [_plain(entry.content.source) for entry in entries if isinstance(entry.content, Range)]
    found = [path for path in dict.fromkeys(paths) if _is_secret(path) and not ignore.allows(path)]
    if not found:
        return ""
    names = [path.relative_to(root).as_posix() for path in found[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    verb = "looks like a secret and is" if len(found) == 1 else "look like secrets and are"
    lines = ", ".join(f"/{name}" for name in names)
    word = "line" if len(names) == 1 else "lines"
    return (
        f"{recipe.source}: files: {', '.join(names)}{more} {verb} copied into the image. To leave "
        f"{'it' if len(found) == 1 else 'them'} out, write the {word} {lines} into {ignore.file}; "
        f"to confirm that it is no secret, !/{names[0]}"
    )


@cache
def _secrets() -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(_SECRETS.split())


def _is_secret(path: Path) -> bool:
    if path.suffix in _KEYS:
        with path.open("rb") as file:
            return _PRIVATE_KEY in file.read(_KEY_BYTES)
    return _secrets().match_file(path.as_posix().lstrip("/"))
