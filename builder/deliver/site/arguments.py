"""Values of ``--env`` and ``--bind``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import UsageError
from builder.core.store.reading import Reader

from .shell import ShellText, from_user, join

#: The name of an environment variable.
VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class BindMount:
    """A file or folder of the host in a container; paths can be :class:`ShellText`."""

    source: str
    target: str
    mode: str = ""
    """``ro``, ``rw``, or empty for the runtime's default."""

    @property
    def word(self) -> str:
        """``SOURCE:TARGET`` or ``SOURCE:TARGET:MODE``."""
        return join(self.source, ":", self.target, f":{self.mode}" if self.mode else "")

    @property
    def short_word(self) -> str:
        """``SOURCE`` if the target is the same and no mode is set, else :attr:`word`."""
        return self.source if self.source == self.target and not self.mode else self.word


def read_bind(text: str) -> BindMount:
    """Read ``SOURCE[:TARGET[:MODE]]``.

    Raises:
        UsageError: the text has another form.
    """
    word = ShellText if isinstance(text, ShellText) else str
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or "," in text:
        hint = "write SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro, and each bind as another --bind"
        raise UsageError(f"--bind {text}: not a valid bind mount", hint)
    if target and not target.startswith(("/", "$")):
        message = f"--bind {text}: the target {target!r} is not an absolute path in the container"
        raise UsageError(message, f"write --bind {source}:/{target.removeprefix('./')}")
    if mode not in ("", "ro", "rw"):
        message = f"--bind {text}: {mode!r} is neither ro nor rw"
        raise UsageError(message, f"write --bind {source}:{target}:ro")
    return BindMount(word(source), word(target or source), mode)


def parse_bind(text: str, start: str | None = None) -> str:
    """Return a bind of the command line with an absolute source.

    Args:
        text: ``SOURCE[:TARGET[:MODE]]``; variables are allowed.
        start: the folder of relative sources, may contain variables; None: the current folder.

    Raises:
        UsageError: the text has another form.
    """
    bind = read_bind(from_user(text))
    if bind.source.startswith(("/", "$")):
        return bind.word
    source = join(from_user(start or str(Path.cwd())), "/", bind.source)
    target = source if bind.target == bind.source else bind.target
    return BindMount(source, target, bind.mode).word


def read_env_file(path: Path) -> dict[str, str]:
    """Read a file with ``NAME=VALUE`` lines as docker does.

    Quotes are part of a value, ``#`` is a comment.

    Raises:
        UsageError: it cannot be read, or a line has another form; the message does not show the
            line, which may be a secret.
    """
    reader = Reader(UsageError, "pass --env-file a file with NAME=VALUE lines", 1 << 20, pipes=True)
    text = reader.text(path, reader.hint)
    variables = {}
    for number, line in enumerate(re.split("\r?\n", text), 1):  # docker takes no other
        name, separator, value = line.lstrip(" \t").partition("=")
        if not name + separator or name.startswith("#"):
            continue
        if not separator or not VARIABLE_NAME.fullmatch(name):
            raise UsageError(f"--env-file {path}:{number}: not NAME=VALUE", "correct the line")
        variables[name] = value
    return variables


def parse_env(items: Sequence[str]) -> dict[str, str | None]:
    """Read ``NAME=VALUE`` and ``NAME``.

    Returns:
        Names and values. None means the value that the variable has on the host.

    Raises:
        UsageError: a name is not valid.
    """
    variables: dict[str, str | None] = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not VARIABLE_NAME.fullmatch(name):
            message = f"--env {name}: not a valid variable name"
            raise UsageError(message, "write NAME=VALUE, or NAME to pass the value of the host")
        variables[name] = value if separator else None
    return variables
