"""Short forms of click's options, whose help texts are in ``options.txt``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import click

from builder.core.datafiles import read_beside
from builder.core.errors import UsageError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
#: The type of a file's name.
FILE = click.Path(dir_okay=False, path_type=Path)
#: The type of a number from 1.
COUNT = click.IntRange(min=1)


def read_rows(name: str) -> dict[tuple[str, str], str]:
    """Return the texts of a file of this folder, by function of a command and word.

    Each line has the functions of the commands that have the text, or * for all others, the words
    (options), and the text.
    """
    found: dict[tuple[str, str], str] = {}
    for line in read_beside(__file__, name).splitlines():
        commands, words, text = line.split(maxsplit=2)
        found |= dict.fromkeys(product(commands.split(","), words.split(",")), text)
    return found


_TEXTS = read_rows("options.txt")


def decorated(*options: Decorator) -> Decorator:
    """Return a decorator that adds options to a command, in their order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(options):
            command = one(command)
        return command

    return add


def option(*names: str, **more: Any) -> Decorator:
    """Return an option with its help text, which is that of the command or of all."""
    long = next(name for name in names if name.startswith("--"))

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        text = _TEXTS.get((command.__name__, long)) or _TEXTS["*", long]
        return click.option(*names, help=text, **more)(command)

    return add


def flag(*names: str) -> Decorator:
    """Return an option without a value."""
    return option(*names, is_flag=True)


def text_option(name: str, metavar: str, **more: Any) -> Decorator:
    """Return an option whose value is a text, empty without the option."""
    return option(name, metavar=metavar, default="", **more)


def repeated(*names: str, **more: Any) -> Decorator:
    """Return an option that can be given several times; the value is a tuple."""
    return option(*names, multiple=True, **more)


def choice(*names: str, of: Iterable[str], default: str | None = None) -> Decorator:
    """Return an option that takes one of some values; the help shows its default."""
    values, has_default = click.Choice(list(of)), default is not None
    return option(*names, type=values, default=default, show_default=has_default)


def require_folder(option: str, path: Path) -> None:
    """Raise UsageError if the folder of a file that an option names does not exist."""
    if not path.parent.is_dir():
        message = f"{option} {path}: the folder {path.parent} does not exist"
        raise UsageError(message, "create it, or name another file")


#: Adds ``--tag``, of commands that move tags.
tag_option = option("--tag", "month", metavar="YY.MM")
#: Adds ``--reuse``, see :mod:`builder.deliver.publishing.reuse`.
reuse_option = text_option("--reuse", "REFERENCE")
#: Adds ``--source`` and ``--revision``; :func:`take_origin` takes their values.
origin_options = decorated(
    option("--source", envvar="BUILDER_SOURCE"), option("--revision", envvar="BUILDER_REVISION")
)


def take_origin(values: dict[str, Any]) -> dict[str, str]:
    """Take the values of :data:`origin_options` out of those of a command.

    Returns:
        The annotations for the sources of an image: part of the digest, never guessed.
    """
    pairs = {name: values.pop(name) for name in ("source", "revision")}
    return {f"org.opencontainers.image.{name}": value for name, value in pairs.items() if value}


#: Adds ``--image``, ``--bind``, ``--env`` and ``--env-file``, of ``run`` and ``job``.
container_options = decorated(
    option("--image", default=""),
    repeated("--bind", "binds", metavar="SOURCE[:TARGET[:ro]]"),
    repeated("--env", metavar="NAME[=VALUE]"),
    text_option("--env-file", "FILE"),
)
