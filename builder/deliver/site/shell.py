"""Words of command lines. Some contain variables that a shell fills in later."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping

from builder.core.errors import RunnerError
from builder.lock.config.fields import VARIABLE, shell_text

#: What makes another name of ``$NAME`` before it.
_NAME_GOES_ON = re.compile(r"\w", re.ASCII)


class ShellText(str):
    """A word with variables ``$NAME`` or ``${NAME}``; ``$$`` is a dollar. Other ``str`` have none."""

    __slots__ = ()


class Verbatim(str):
    """A word that stands in scripts as it is, such as an array of bash."""

    __slots__ = ()


def from_user(text: str) -> str:
    """Return a path (or a bind) of the command line: a :class:`ShellText` if it is a valid one.

    What exists under this very name is no shell text: jobs pass such paths to ``builder run``.
    """
    if "$" not in text or os.path.lexists(text.partition(":")[0]):
        return text
    try:
        return ShellText(shell_text(text))
    except ValueError:
        return text


def join(*parts: str) -> str:
    """Join parts into one word: a :class:`ShellText` if any part is one."""
    if not any(isinstance(part, ShellText) for part in parts):
        return "".join(parts)
    escaped = []
    for part in filter(None, parts):
        escaped.append(part if isinstance(part, ShellText) else part.replace("$", "$$"))
    joined = escaped.pop() if escaped else ""
    for part in reversed(escaped):  # $NAME and x are not $NAMEx
        joined = (_with_braces(part) if _NAME_GOES_ON.match(joined) else part) + joined
    return ShellText(joined)


def comma_separated(words: Iterable[str]) -> str:
    """Join words with commas into one."""
    parts = [part for word in words for part in (",", word)]
    return join(*parts[1:])


def _with_braces(text: str) -> str:
    """Return a shell text with braces around the variable at its end, if there is one."""
    last = max(VARIABLE.finditer(text), key=lambda found: found.end(), default=None)
    if last is None or last["name"] is None or last.end() != len(text):
        return text
    return f"{text[: last.start()]}${{{last['name']}}}"


def with_account(text: str, account: str) -> ShellText:
    """Return a shell text with ``{account}`` filled in; empty: ``$SLURM_JOB_ACCOUNT``."""
    return ShellText(text.replace("{account}", account.replace("$", "$$") or "$SLURM_JOB_ACCOUNT"))


def map_literal(text: str, change: Callable[[str], str]) -> str:
    """Apply ``change`` to the parts of a word that are not variables."""
    if not isinstance(text, ShellText):
        return change(text)

    def changed(literal: str) -> str:
        return change(literal.replace("$$", "$")).replace("$", "$$")

    out, at = [], 0
    for found in VARIABLE.finditer(text):
        if found["dollar"]:
            continue
        out += [changed(text[at : found.start()]), found[0]]
        at = found.end()
    return ShellText("".join([*out, changed(text[at:])]))


def quote(word: str) -> str:
    """Return a word for bash: variables are filled in without word splitting."""
    if isinstance(word, Verbatim):
        return word
    if not isinstance(word, ShellText):
        return _quote_literal(word)
    if all(found["dollar"] for found in VARIABLE.finditer(word)):
        return _quote_literal(word.replace("$$", "$"))
    special = re.compile(VARIABLE.pattern + r'|["\\`]', re.ASCII)
    return '"' + special.sub(_escape_in_double_quotes, word) + '"'


def _quote_literal(word: str) -> str:
    if not set("$`") & set(word):
        return shlex.quote(word)
    # Double quotes: shellcheck warns about $ in single quotes (SC2016). But an interactive shell
    # expands "!" in double quotes, so exclamation marks get single quotes.
    quoted = []
    for part in re.split("(!+)", word):
        if part.startswith("!"):
            quoted.append(f"'{part}'")
        elif part:
            quoted.append('"' + re.sub(r'["\\$`]', r"\\\g<0>", part) + '"')
    return "".join(quoted)


def _escape_in_double_quotes(found: re.Match[str]) -> str:
    if found["dollar"]:
        return r"\$"
    is_variable = found.lastgroup is not None
    return found[0] if is_variable else "\\" + found[0]


def command_line(words: Iterable[str]) -> str:
    """Return words as one line of shell."""
    return " ".join(quote(word) for word in words)


def expand(word: str, environ: Mapping[str, str]) -> str:
    """Return a word with its variables replaced by their values.

    Raises:
        RunnerError: a variable is not set.
    """
    if not isinstance(word, ShellText):
        return word

    def value(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        name = found["name"] or found["braced"]
        if name not in environ:
            raise RunnerError(
                f"${name} is not set, but the recipe uses it in {word!r}",
                "run this in a job of the site (see builder job TARGET --interactive), "
                "or set the variable",
            )
        return environ[name]

    return VARIABLE.sub(value, word)
