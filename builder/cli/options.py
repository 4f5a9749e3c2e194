"""Short forms of click's options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from builder.core.errors import UsageError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
#: The type of a file's name.
FILE = click.Path(dir_okay=False, path_type=Path)
#: The type of a number from 1.
COUNT = click.IntRange(min=1)


def decorated(*options: Decorator) -> Decorator:
    """Return a decorator that adds options to a command, in their order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def flag(*names: str, help: str) -> Decorator:
    """Return an option without a value."""
    return click.option(*names, is_flag=True, help=help)


def text_option(name: str, metavar: str, help: str, **more: Any) -> Decorator:
    """Return an option whose value is a text, empty without the option."""
    return click.option(name, metavar=metavar, default="", help=help, **more)


def repeated(*names: str, help: str, **more: Any) -> Decorator:
    """Return an option that can be given several times; the value is a tuple."""
    return click.option(*names, multiple=True, help=help, **more)


def choice(*names: str, of: Iterable[str], help: str, default: str | None = None) -> Decorator:
    """Return an option that takes one of some values; the help shows its default."""
    values, has_default = click.Choice(list(of)), default is not None
    return click.option(*names, type=values, default=default, show_default=has_default, help=help)


def require_folder(option: str, path: Path) -> None:
    """Raise UsageError if the folder of a file that an option names does not exist."""
    if not path.parent.is_dir():
        message = f"{option} {path}: the folder {path.parent} does not exist"
        raise UsageError(message, "create it, or name another file")


def _annotation(name: str) -> Decorator:
    variable, key = f"BUILDER_{name.upper()}", f"org.opencontainers.image.{name}"
    return click.option(f"--{name}", envvar=variable, help=f"Annotation {key}.")


#: Adds ``--tag``, of commands that move tags.
tag_option = click.option(
    "--tag", "month", metavar="YY.MM", help="Tag to use instead of the recipe's dated tags."
)
#: Adds ``--reuse``, see :mod:`builder.deliver.publishing.reuse`.
reuse_option = click.option(
    "--reuse",
    default="",
    metavar="REFERENCE",
    help="Take layers that the cache lacks from this published image, whose publisher you trust.",
)

#: Adds ``--source`` and ``--revision``, see :func:`origin_annotations`.
origin_options = decorated(_annotation("source"), _annotation("revision"))


def origin_annotations(source: str | None, revision: str | None) -> dict[str, str]:
    """Return the annotations for the sources of an image: part of the digest, never guessed."""
    pairs = {"source": source, "revision": revision}
    return {f"org.opencontainers.image.{name}": value for name, value in pairs.items() if value}


#: Adds ``--image``, ``--bind``, ``--env`` and ``--env-file``, of ``run`` and ``job``.
container_options = decorated(
    click.option("--image", default="", help="Use another image: a reference, or a SIF."),
    repeated(
        "--bind",
        "binds",
        metavar="SOURCE[:TARGET[:ro]]",
        help="Mount a file or folder of the machine that runs the command.",
    ),
    repeated(
        "--env",
        metavar="NAME[=VALUE]",
        help="Set a variable; NAME alone passes the value of this shell.",
    ),
    text_option(
        "--env-file",
        "FILE",
        help="A file with NAME=VALUE lines, on the machine that runs the command.",
    ),
)
