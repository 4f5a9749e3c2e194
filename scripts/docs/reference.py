"""The reference pages, made from the code while the site is built: nothing of them is in the repository."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from builder.cli import cli
from builder.core.errors import BuilderError, exit_codes
from builder.lock.config.recipe import Recipe

#: Fields of a recipe that are not keys of its file.
_NOT_KEYS = ("source", "root")
_MADE = "*This page is made from the code.*"


def pages(root: Path) -> dict[str, str]:
    """All reference pages by their path in the site.

    Args:
        root: the repository.
    """
    made = {
        "commands": commands(),
        "errors": errors(),
        "keys": keys(root / "docs/schemas/recipe.schema.json"),
        "report": report(root / "builder/deliver/smoke/report.schema.json"),
    }
    # On a phone extra.css shows the cells of a row below each other.
    return {
        f"reference/{name}.md": f'<div class="rows" markdown>\n\n{text}\n</div>\n'
        for name, text in made.items()
    }


# commands ---------------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its arguments and options, from click."""
    parts = [
        "# All commands and options",
        f"{_MADE} [The command line](../cli.md) is the page to read first.",
        "## builder",
        _options(cli, click.Context(cli, info_name="builder")),
    ]
    for context in _contexts(click.Context(cli, info_name="builder")):
        command = context.command
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        parts += [
            f"## {context.command_path}",
            f"`{usage}`",
            _help(command),
            _options(command, context),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """A context for each command below a group, in the order of the help."""
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        child = click.Context(command, info_name=name, parent=context)
        yield child
        if isinstance(command, click.Group):
            yield from _contexts(child)


def _help(command: click.Command) -> str:
    """A command's help: paragraphs, and blocks that must not be wrapped (``\\b``) as code."""
    parts = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b") or paragraph.startswith("    "):
            lines = paragraph.removeprefix("\b").strip("\n").splitlines()
            parts.append("```text\n" + "\n".join(line.strip() for line in lines) + "\n```")
        else:
            parts.append(_text(" ".join(paragraph.split())))
    return "\n\n".join(parts)


def _options(command: click.Command, context: click.Context) -> str:
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            rows.append(f"| `{_cell(record[0])}` | {_cell(_text(record[1]))} |")
    return "\n".join(["| option | effect |", "|---|---|", *rows]) if rows else ""


# errors -----------------------------------------------------------------------------------------------------


def errors() -> str:
    """Exit codes, and the exception of each."""
    kinds: dict[int, list[str]] = {}
    for kind in _kinds(BuilderError):
        kinds.setdefault(kind.exit_code, []).append(f"`{kind.__name__}`: {_first_sentence(kind)}")
    rows = [
        f"| {code} | {_cell(meaning)} | {_cell('<br>'.join(kinds.get(code, [])))} |"
        for code, meaning in exit_codes().items()
    ]
    table = "\n".join(["| code | meaning | exception in Python |", "|---|---|---|", *rows])
    about = "Each error has a message, and a hint if builder knows what helps: [The command line](../cli.md)."
    return f"# Exit codes and errors\n\n{_MADE}\n\n{about}\n\n{table}\n"


def _kinds(kind: type[BuilderError]) -> Iterator[type[BuilderError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == kind.__module__:
            yield from _kinds(child)


def _first_sentence(kind: type) -> str:
    return _text(" ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split()))


# keys of recipes --------------------------------------------------------------------------------------------


def keys(schema: Path) -> str:
    """Every key of a recipe, from the models that read recipes.

    Args:
        schema: the JSON schema of recipes, for editors; the page links it if it exists.
    """
    about = "[Recipes](../recipes.md) explains them with examples."
    if schema.is_file():
        about += f" Editors check a recipe with [{schema.name}](../schemas/{schema.name})."
    parts = ["# All keys of a recipe", _MADE, about]
    waiting: list[tuple[str, type[BaseModel]]] = [("", Recipe)]
    while waiting:
        path, model = waiting.pop(0)
        rows, below = _rows(path, model)
        title = f"`{path}`" if path else "A recipe"
        head = ["| key | type | default | meaning |", "|---|---|---|---|"]
        parts += [f"## {title}", "\n".join([*head, *rows])]
        waiting = [*below, *waiting]
    return "\n\n".join(parts) + "\n"


def _rows(path: str, model: type[BaseModel]) -> tuple[list[str], list[tuple[str, type[BaseModel]]]]:
    """The rows of a model's table, and the models of its fields with their paths."""
    rows, below = [], []
    meanings = field_docs(model)
    for name, field in model.model_fields.items():
        if model is Recipe and name in _NOT_KEYS:
            continue
        inner = [kind for kind in _types(field.annotation) if _is_model(kind)]
        place = f"{path}.{name}" if path else name
        below += [(place, kind) for kind in inner]
        default = (
            "required"
            if field.is_required() and name != "name"
            else _default(field.get_default(call_default_factory=True))
        )
        meaning = (
            field.description or meanings.get(name) or (inner and _first_sentence(inner[0])) or ""
        )
        rows.append(
            f"| `{name}` | {_cell(_type(field.annotation))} | {_cell(default)} | {_cell(_text(meaning))} |"
        )
    return rows, below


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings below the fields of a model, its parents' too."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not issubclass(kind, BaseModel) or kind is BaseModel:
            continue
        body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if is_field and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _types(annotation: Any) -> Iterator[Any]:
    """A type and all types in it."""
    yield annotation
    for argument in get_args(annotation):
        yield from _types(argument)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _type(annotation: Any) -> str:
    """A type in words."""
    name = str(getattr(annotation, "__origin__", annotation))
    arguments = [argument for argument in get_args(annotation) if argument is not ...]
    if "Annotated" in str(type(annotation)):
        return _type(arguments[0])
    if "Literal" in name:
        return ", ".join(f"`{value}`" for value in arguments)
    if "Union" in name or "UnionType" in str(type(annotation)):
        return " or ".join(_type(kind) for kind in arguments if kind is not type(None))
    if "tuple" in name and arguments:
        return f"list of {_type(arguments[0])}"
    if "dict" in name:
        return f"mapping to {_type(arguments[1])}" if arguments else "mapping"
    if _is_model(annotation):
        return "mapping"
    words = {"str": "text", "int": "number", "float": "number", "bool": "true or false"}
    return words.get(getattr(annotation, "__name__", ""), name)


def _default(value: Any) -> str:
    if (
        value is None
        or value is PydanticUndefined
        or value in ("", (), {})
        or isinstance(value, BaseModel)
    ):
        return ""
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{json.dumps(value) if isinstance(value, bool) else value}`"


# the report -------------------------------------------------------------------------------------------------


def report(schema: Path) -> str:
    """The fields of a smoke report, from its JSON schema."""
    content = json.loads(schema.read_text())
    path = f"builder/deliver/smoke/{schema.name}"
    about = f"[The smoke test](../smoke.md) explains them. The JSON schema is `{path}`."
    parts = ["# Fields of a smoke report", _MADE, about]
    top = {key: value for key, value in content["properties"].items() if "properties" in value}
    for name, node in [("", content), *top.items(), *content.get("$defs", {}).items()]:
        rows = [
            f"| `{key}` | {_cell(_schema_type(value))} | {_cell(_text(value.get('description', '')))} |"
            for key, value in node.get("properties", {}).items()
        ]
        if rows:
            title = f"`{name}`" if name else "The report"
            parts += [
                f"## {title}",
                "\n".join(["| field | type | meaning |", "|---|---|---|", *rows]),
            ]
    return "\n\n".join(parts) + "\n"


def _schema_type(node: dict[str, Any]) -> str:
    if "$ref" in node:
        return f"`{node['$ref'].rpartition('/')[2]}`"
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    kinds = node.get("type", "")
    name = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    for key in ("anyOf", "oneOf"):
        name = name or " or ".join(_schema_type(choice) for choice in node.get(key, []))
    items = node.get("items")
    return f"{name} of {_schema_type(items)}" if isinstance(items, dict) and items else name


def _text(text: str) -> str:
    """reStructuredText of a docstring as Markdown."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text)
    text = re.sub(r"; None: ", "; not set: ", text)
    text = re.sub(r"\bNone: ", "Not set: ", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text).replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("&lt;br>", "<br>")
