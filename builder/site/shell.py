"""Words of command lines, some of which hold variables that a shell fills in later."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping

from builder.config.site import VARIABLE, shell_text
from builder.errors import RunnerError


class ShellText(str):
    """A word with variables in it, ``$NAME`` or ``${NAME}``; ``$$`` is a dollar sign. Any other ``str`` means what it says."""

    __slots__ = ()


def from_user(text: str) -> str:
    """A path that a person gave: variables of the job where it reads as a shell text, else what it says."""
    try:
        return ShellText(shell_text(text)) if "$" in text else text
    except ValueError:
        return text


def join(*parts: str) -> str:
    """One word of several; a shell text when one of them is."""
    if not any(isinstance(p, ShellText) for p in parts):
        return "".join(parts)
    return ShellText("".join(p if isinstance(p, ShellText) else p.replace("$", "$$") for p in parts))


def map_literal(text: str, change: Callable[[str], str]) -> str:
    """Changes what is not a variable in a word."""
    if not isinstance(text, ShellText):
        return change(text)
    out, at = [], 0
    for found in VARIABLE.finditer(text):
        if found["dollar"]:
            continue
        out += [change(text[at : found.start()].replace("$$", "$")).replace("$", "$$"), found[0]]
        at = found.end()
    return ShellText("".join([*out, change(text[at:].replace("$$", "$")).replace("$", "$$")]))


def quote(word: str) -> str:
    """A word as bash reads it: variables are filled in and not split, all else is literal."""
    if not isinstance(word, ShellText):
        if not set("$`") & set(word):
            return shlex.quote(word)
        # Double quotes, as a person would: shellcheck asks whether $ in single ones was meant. An interactive shell reads "!".
        parts = (re.sub(r'["\\$`]', r"\\\g<0>", part) for part in re.split("(!+)", word))
        return "".join(f"'{p}'" if p.startswith("!") else f'"{p}"' for p in parts if p)
    if not any(found["dollar"] is None for found in VARIABLE.finditer(word)):
        return quote(word.replace("$$", "$"))

    def inside(found: re.Match[str]) -> str:
        return {"$": r"\$"}.get(found["dollar"] or "", found[0]) if found.lastgroup else "\\" + found[0]

    return '"' + re.sub(VARIABLE.pattern + r'|["\\`]', inside, word) + '"'


def command_line(words: Iterable[str]) -> str:
    """Words as one line of shell."""
    return " ".join(quote(w) for w in words)


def expand(word: str, environ: Mapping[str, str]) -> str:
    """A word with its variables filled in.

    Raises:
        RunnerError: one of them is not set.
    """
    if not isinstance(word, ShellText):
        return word

    def value(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        name = found["name"] or found["braced"]
        if name not in environ:
            raise RunnerError(
                f"${name} is not set, which {word!r} of the recipe needs",
                "run this inside a job of the site (builder job TARGET --interactive says how), or set it",
            )
        return environ[name]

    return VARIABLE.sub(value, word)
