"""``registry.profile``: the shell file in which sites keep a robot account, ``export REGISTRY_USER=... REGISTRY_PASSWORD=...``.

It is read, never run. Words are taken as a shell takes them (quotes, backslashes, comments, several assignments on a line),
except that ``$`` stands for itself: robot accounts have one in their names (``robot$project+name``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from builder.errors import RegistryError
from builder.registry.auth import Credentials, environment_credentials

VARIABLE = "BUILDER_REGISTRY_PROFILE"
_NAMES = ("REGISTRY_USER", "REGISTRY_PASSWORD")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_KEYWORDS = re.compile(r"export|declare|typeset|readonly|-[a-z]+")
#: A larger file is something else.
_LARGEST = 1 << 16


def named_credentials(
    profile: Path | None = None,
    environ: Mapping[str, str] | None = None,
    warn: Callable[[str], None] = lambda message: None,
) -> Credentials | None:
    """The credentials that the user gave for the registry he names: those of ``profile``, else of the variables REGISTRY_USER and
    REGISTRY_PASSWORD, else of the file that BUILDER_REGISTRY_PROFILE names; None when there are none.

    A ``registry.profile`` that merely lies somewhere is not looked for: it does not say which registry it is for.

    Raises:
        RegistryError: the file cannot be read or lacks one of the two, or one of the variables is not set.
    """
    env = os.environ if environ is None else environ
    if profile is None and (found := environment_credentials(env)) is not None:
        return found
    if profile is None and env.get(VARIABLE):
        profile = Path(env[VARIABLE])
    return None if profile is None else read_profile(profile.expanduser(), warn)


def read_profile(path: Path, warn: Callable[[str], None] = lambda message: None) -> Credentials:
    """The user and password of a profile.

    Args:
        path: the file.
        warn: is told when others can read it.

    Raises:
        RegistryError: it cannot be read, lacks one of the two, or computes it. The message quotes nothing of the file.
    """
    try:
        with path.open("rb") as f:
            mode = os.fstat(f.fileno()).st_mode
            text = f.read(_LARGEST + 1).decode()
    except OSError as e:
        raise RegistryError(
            f"cannot read the registry profile {path}: {e.strerror}",
            f"correct --profile or {VARIABLE}, or let this user read it",
        ) from None
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or len(text) > _LARGEST:
        raise RegistryError(
            f"{path} is not a shell file", "it should hold: export REGISTRY_USER=... REGISTRY_PASSWORD=..."
        )
    values: dict[str, str] = {}
    for name, value, line in _assignments(text, path):
        if name in _NAMES:
            if value is None:
                raise RegistryError(
                    f"{path}:{line}: {name} is computed by a command or from another variable, and builder runs no profile",
                    "write the value itself, in single quotes; or run the file in your shell, which sets the variables",
                )
            values[name] = value
    if missing := [name for name in _NAMES if not values.get(name)]:
        raise RegistryError(
            f"{path} does not set {' and '.join(missing)}",
            "it should hold: export REGISTRY_USER=... REGISTRY_PASSWORD=...",
        )
    if mode & 0o077:
        warn(f"{path} holds a password and can be read by others: chmod 600 {path}")
    return Credentials(values["REGISTRY_USER"], values["REGISTRY_PASSWORD"], source=str(path))


def _assignments(text: str, path: Path) -> Iterator[tuple[str, str | None, int]]:
    """Names, values and lines of the assignments; the value is None where only a shell could tell it."""
    for words in _commands(text, path):
        for word, computed, line in words:
            if match := _ASSIGNMENT.fullmatch(word):
                yield match[1], None if computed else match[2], line
            elif not _KEYWORDS.fullmatch(word):
                break  # the arguments of some other command


def _commands(text: str, path: Path) -> Iterator[list[tuple[str, bool, int]]]:
    """The simple commands of a shell text, as words, whether something in the word would be computed, and its line."""
    text = text.replace("\r\n", "\n")
    words: list[tuple[str, bool, int]] = []
    word: list[str] | None = None
    computed = False
    line = start = 1
    quote = ""
    i = 0
    while i < len(text):
        c = text[i]
        following = text[i + 1 : i + 2]
        i += 1
        if c == "\n":
            line += 1
        if quote != "'" and (c == "`" or (c == "$" and following in ("(", "{"))):
            computed = True
        if c == "\\" and following == "\n" and quote != "'":
            i += 1  # the line goes on
            line += 1
            continue
        if not quote and c in " \t\n;&|":
            if word is not None:
                words.append(("".join(word), computed, start))
                word, computed = None, False
            if c not in " \t" and words:
                yield words
                words = []
            continue
        if not quote and c == "#" and word is None:
            i = text.find("\n", i)
            if i < 0:
                break
            continue
        if word is None:
            word, start = [], line
        if c == quote:
            quote = ""
        elif not quote and c in "'\"":
            quote = c
        elif c == "\\" and quote != "'" and following and (not quote or following in '$`"\\'):
            i += 1
            word.append(following)
        else:
            word.append(c)
    if quote:
        raise RegistryError(
            f"{path}:{start}: a quote is not closed",
            "close it; a password with a quote in it goes in the other kind",
        )
    if word is not None:
        words.append(("".join(word), computed, start))
    if words:
        yield words
