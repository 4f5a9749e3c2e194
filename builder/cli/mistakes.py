"""Wrong command lines: what click reports, with the line to type as the hint."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import click

from builder.cli.context import complete_target

#: Options of the group that are flags, which may stand after the command too.
_FLAGS = ("-q", "--quiet", "-v", "-vv", "--verbose", "--offline")


def flags_first(args: Sequence[str], commands: Sequence[str]) -> list[str]:
    """Move flags of the group to the front (``builder build x -q``).

    What follows ``--`` belongs to a command that runs in a container. So do the words of ``run``
    and ``job``.
    """
    words = list(args)
    end = words.index("--") if "--" in words else len(words)
    start = next((i for i, word in enumerate(words[:end]) if word in commands), end)
    if start == end or words[start] in ("run", "job"):
        return words
    moved = [word for word in words[start:end] if word in _FLAGS]
    return moved + words[:start] + [w for w in words[start:end] if w not in _FLAGS] + words[end:]


def wants_json(args: Sequence[str]) -> bool:
    """Check a command line, which may be wrong, for ``--json``."""
    words = list(args)
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def explained(error: click.ClickException) -> tuple[str, str]:
    """Return the message and the hint for an error of click."""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return message, "builder COMMAND --help lists the options and arguments"
    path = _path(context)
    general = f"{path} --help lists the options and arguments"
    unknown = re.match(r"No such command ['\"](.*?)['\"]", error.message)
    if unknown and isinstance(context.command, click.Group):
        return f"No such command {unknown[1]!r}", _command_hint(unknown[1], context)
    if isinstance(error, click.NoSuchOption):
        name = error.option_name
        return f"No such option: {name}", _option_hint(name, context) or general
    return message, _value_hint(error) or general


def _value_hint(error: click.ClickException) -> str:
    """Return the hint for a value that is missing or wrong; empty: there is no special one."""
    if not isinstance(error, click.BadParameter) or error.param is None:
        return ""
    if isinstance(error, click.MissingParameter):
        is_target = error.param.name == "target"
        return "name a target: builder targets lists them" if is_target else ""
    wrong = re.search(r"'(.*?)' is not one of", error.message)
    choices = getattr(error.param.type, "choices", ())
    near = difflib.get_close_matches(wrong[1].lower(), choices, n=1) if wrong else []
    return f"did you mean {near[0]}?" if near else ""


def _path(context: click.Context) -> str:
    """Return ``builder cache prune``: click's own path may begin with ``python -m builder``."""
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    return " ".join(["builder", *names])


def _command_hint(name: str, context: click.Context) -> str:
    group = context.command
    known = group.list_commands(context) if isinstance(group, click.Group) else []
    near = difflib.get_close_matches(name.lower(), known, n=2, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(f'{_path(context)} {n}' for n in near)}?"
    if context.parent is None and name in complete_target(context, click.Argument(["target"]), ""):
        return f"{name} is a target: write builder build {name}, or another command: builder --help"
    return f"commands: {', '.join(known)}"


def _option_hint(name: str, context: click.Context) -> str:
    """Return the hint for an option that the command does not have; empty if nothing is close."""
    command = context.command
    if command.name in ("run", "job"):
        return f"put -- before the command: builder {command.name} [TARGET] -- COMMAND {name}"
    root = context.find_root()
    if root is not context and any(name in param.opts for param in root.command.params):
        return f"write it before the command: builder {name} ... {context.info_name} ..."
    params = [*command.params, *root.command.params]
    options = [option for param in params for option in param.opts if option.startswith("--")]
    near = difflib.get_close_matches(name, dict.fromkeys(options), n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else ""
