"""``registry.profile``: the shell file in which sites store a robot account.

It holds ``export REGISTRY_USER=... REGISTRY_PASSWORD=...`` and is read, never run. Words are split as a shell
does it (quotes, backslashes, comments, several assignments on a line), except that ``$`` is an ordinary
character: the names of Harbor's robot accounts contain one (``robot$project+name``). shlex cannot do this:
it does not report whether ``$(...)`` was quoted, and it reads ``PASSWORD=b#c`` as ``b`` and a comment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from builder.errors import RegistryError
from builder.registry.credentials import Credentials, environment_credentials
from builder.settings import expand_home

VARIABLE = "BUILDER_REGISTRY_PROFILE"
_NAMES = ("REGISTRY_USER", "REGISTRY_PASSWORD")
#: May be in a profile: the only registry that its credentials are sent to.
_HOST = "REGISTRY_HOST"
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_KEYWORDS = re.compile(r"export|declare|typeset|readonly|-[a-z]+")
#: In bytes; a larger file is not a profile.
_MAX_SIZE = 1 << 16
_EXPECTED = "it should contain: export REGISTRY_USER=... REGISTRY_PASSWORD=..."

Warn = Callable[[str], None]


def _ignore(message: str) -> None: ...


def named_credentials(
    profile: Path | None = None, environ: Mapping[str, str] | None = None, warn: Warn = _ignore
) -> Credentials | None:
    """The credentials for the registry that is published to or pulled from; None when there are none.

    In this order: ``profile``; the variables REGISTRY_USER and REGISTRY_PASSWORD; the file that
    BUILDER_REGISTRY_PROFILE names. A ``registry.profile`` in the current folder is not read: it need not
    name its registry. REGISTRY_HOST, in the environment or in the file, does: see
    :attr:`~builder.registry.credentials.Credentials.host`.

    Args:
        profile: the file of ``--profile``.
        environ: default: this process's environment.
        warn: receives warnings.

    Raises:
        RegistryError: the file cannot be read or lacks one of the two, or one of the variables is not set.
    """
    env = os.environ if environ is None else environ
    if profile is None:
        found = environment_credentials(env)
        if found is not None:
            return found
        if not env.get(VARIABLE):
            return None
        profile = Path(env[VARIABLE])
    found = read_profile(expand_home(profile), warn)
    return found if found.host else replace(found, host=env.get(_HOST, ""))


def read_profile(path: Path, warn: Warn = _ignore) -> Credentials:
    """The user and password of a profile, and its REGISTRY_HOST.

    Args:
        path: the file.
        warn: receives a warning when other users can read the file.

    Raises:
        RegistryError: it cannot be read, lacks one of the two, or computes it. The message quotes nothing of
            the file.
    """
    text, mode = _read(path)
    values: dict[str, str] = {}
    for name, word in _assignments(text, path):
        if name not in (*_NAMES, _HOST):
            continue
        if word.computed:
            raise RegistryError(
                f"{path}:{word.line}: {name} is computed by a command or from another variable, "
                "and builder does not run profiles",
                "write the value itself, in single quotes; or run the file in your shell, "
                "which sets the variables",
            )
        values[name] = word.text
    missing = [name for name in _NAMES if not values.get(name)]
    if missing:
        raise RegistryError(f"{path} does not set {' and '.join(missing)}", _EXPECTED)
    if mode & 0o077:
        warn(f"{path} contains a password and other users can read it: chmod 600 {path}")
    return Credentials(
        values["REGISTRY_USER"],
        values["REGISTRY_PASSWORD"],
        source=str(path),
        host=values.get(_HOST, ""),
    )


def _read(path: Path) -> tuple[str, int]:
    """The file's text and mode."""
    try:
        with path.open("rb") as f:
            mode = os.fstat(f.fileno()).st_mode
            data = f.read(_MAX_SIZE + 1)
    except OSError as e:
        raise RegistryError(
            f"cannot read the registry profile {path}: {e.strerror}",
            f"correct --profile or {VARIABLE}, or let this user read it",
        ) from None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or len(data) > _MAX_SIZE:
        raise RegistryError(f"{path} is not a shell file", _EXPECTED)
    return text, mode


# a shell's words --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Word:
    """One word of a command: for ``export A='b c'`` the words are ``export`` and ``A=b c``."""

    text: str
    computed: bool
    """Whether a shell would replace a part of it: ``$(...)``, ``${...}``, or a command in backquotes."""
    line: int
    """The line of its first character."""


def _assignments(text: str, path: Path) -> Iterator[tuple[str, _Word]]:
    """Names and values of all assignments."""
    for command in _Lexer(text, path).commands():
        for word in command:
            match = _ASSIGNMENT.fullmatch(word.text)
            if match:
                yield match[1], _Word(match[2], word.computed, word.line)
            elif not _KEYWORDS.fullmatch(word.text):
                break  # another command: the rest are its arguments


class _Lexer:
    """Splits a shell text into commands and words.

    The invariant: ``_at`` is the next character, ``_quote`` the quote that is open before it (empty outside
    of quotes), and ``_word`` the characters of the word so far, or None between words. Example, with the
    position marked by ``^``::

        export A='b c' # note      word "A=b ", quote "'"
                    ^
    """

    def __init__(self, text: str, path: Path) -> None:
        self._text = text.replace("\r\n", "\n")
        self._path = path
        self._at = 0
        self._line = 1
        self._quote = ""
        self._word: list[str] | None = None
        self._computed = False
        self._start = 1
        """The line on which the word begins."""

    def commands(self) -> Iterator[list[_Word]]:
        """The simple commands, as words; a newline, ``;``, ``&`` or ``|`` outside of quotes ends one."""
        words: list[_Word] = []
        while self._at < len(self._text):
            c = self._next()
            if self._quote or c not in " \t\n;&|":
                self._take(c)
                continue
            words += self._end_word()
            if c not in " \t" and words:
                yield words
                words = []
        if self._quote:
            raise RegistryError(
                f"{self._path}:{self._start}: a quote is not closed",
                "close it; write a password that contains a quote in quotes of the other kind",
            )
        words += self._end_word()
        if words:
            yield words

    def _next(self) -> str:
        c = self._text[self._at]
        self._at += 1
        if c == "\n":
            self._line += 1
        return c

    def _take(self, c: str) -> None:
        """A character that is part of a word, begins a comment, or opens or closes a quote."""
        following = self._text[self._at : self._at + 1]
        quoted_literally = self._quote == "'"
        if c == "\\" and following == "\n" and not quoted_literally:
            self._next()  # the line continues
            return
        if c == "#" and self._word is None and not self._quote:
            end = self._text.find("\n", self._at)
            self._at = end if end >= 0 else len(self._text)
            return
        if self._word is None:
            self._word, self._start = [], self._line
        if not quoted_literally and (c == "`" or (c == "$" and following in ("(", "{"))):
            self._computed = True
        if c == self._quote:
            self._quote = ""
        elif not self._quote and c in "'\"":
            self._quote = c
        elif c == "\\" and self._escapes(following):
            self._word.append(self._next())
        else:
            self._word.append(c)

    def _escapes(self, following: str) -> bool:
        """Whether a backslash before this character is not an ordinary character."""
        if not following or self._quote == "'":
            return False
        return not self._quote or following in '$`"\\'

    def _end_word(self) -> list[_Word]:
        """The word that ends here; empty between words."""
        if self._word is None:
            return []
        word = _Word("".join(self._word), self._computed, self._start)
        self._word, self._computed = None, False
        return [word]
