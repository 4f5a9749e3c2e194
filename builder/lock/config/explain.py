"""Turns pydantic's errors into messages in YAML's words, with the line to write as the hint."""

from __future__ import annotations

import difflib
import json
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError

from builder.core.datafiles import table
from builder.core.errors import ConfigError

from .fields import Model
from .yamlfile import YamlFile, type_name

#: Fields of the models that are not keys of a file.
_NOT_KEYS = ("source", "root")
_USE_KNOWN = "use one of the known keys, or remove the line"
_Keys = tuple[Any, ...]
_Model = type[Model]
_M = TypeVar("_M", bound=Model)
_NUMBERS = ("int_parsing", "int_type", "int_from_float", "float_parsing", "float_type")
_PLAIN = re.compile(r"[A-Za-z0-9_./+][A-Za-z0-9_./+-]*")


def validated(model: type[_M], data: Mapping[str, Any], yamls: Sequence[YamlFile]) -> _M:
    """Return the model of merged files.

    Args:
        model: the model.
        data: what the files have in all.
        yamls: the files; the first ones win.

    Raises:
        ConfigError: pydantic's errors as one, which names file, line and key of each.
    """
    try:
        return model.model_validate(data)
    except ValidationError as e:
        errors = sorted(e.errors(), key=lambda item: item["type"] != "extra_forbidden")
    lines, hints = [], []
    for item in errors:
        # pydantic's mark for keys of a mapping
        keys = tuple(key for key in item["loc"] if key != "[key]")
        dotted = ".".join(str(key) for key in keys)
        if item["type"] == "missing" and f"write {keys[-1]}:" in hints:
            continue  # it is there, with an error in its name
        problem, hint = _explain(item, keys, yamls, model)
        lines.append(f"{_line_of(keys, yamls)}: {dotted}: {problem}")
        hints.append(hint)
    raise ConfigError("\n".join(lines), "; ".join(dict.fromkeys(filter(None, hints))))


def first_problem(error: ValidationError) -> tuple[tuple[int | str, ...], str]:
    """Return the keys of pydantic's first error, and a sentence that begins with them."""
    first = error.errors(include_url=False)[0]
    problem = str(first["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return first["loc"], f"{'.'.join(map(str, first['loc']))}: {problem}"


def _explain(item: Any, keys: _Keys, yamls: Sequence[YamlFile], model: _Model) -> tuple[str, str]:
    """Describe one of pydantic's errors and return the problem and the hint."""
    value, is_key = item.get("input"), item["loc"][-1:] == ("[key]",)
    written = _written(keys, value, yamls)
    match item["type"]:
        case "extra_forbidden":
            return _unknown_key(keys, model)
        case "literal_error":
            return _not_one_of(item, keys, is_key=is_key)
        case "string_type" if not is_key:
            return f"must be text, and is {type_name(value)}", _as_text(keys, value, written)
        case kind if kind in (texts := table(__file__, "problems.yaml")):
            known = ", ".join(_known_keys(keys, model))
            values = {
                "name": _name(keys),
                "type": type_name(value),
                "words": ", ".join(map(_scalar, written.split())) or "VALUE",
                "keys": f"; keys: {known}" if known else "",
            }
            return texts[kind]["problem"].format(**values), texts[kind]["hint"].format(**values)
        case other:
            message = "Input should be a number" if other in _NUMBERS else str(item["msg"])
            return _wrong_value(message, keys, value, written)


def _wrong_value(problem: str, keys: _Keys, value: object, written: str) -> tuple[str, str]:
    """Return pydantic's message in YAML's words, and a hint that names the key."""
    if problem.startswith("Input should be "):
        given = "" if isinstance(value, list | dict) else f", and is {written}"
        problem = problem.replace("Input should be", "must be") + given
    names = ".".join(key for key in keys if isinstance(key, str))
    where = f"{names}:" if names else "the recipe"
    return problem.removeprefix("Value error, "), f"correct {where}"


def _unknown_key(keys: _Keys, model: _Model) -> tuple[str, str]:
    name, known = str(keys[-1]), _known_keys(keys[:-1], model)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"unknown key; did you mean {near[0]}?", f"write {near[0]}:"
    foreign = table(__file__, "foreign_keys.yaml")
    if len(keys) == 1 and name.lower() in foreign:
        return "unknown key", f"write {foreign[name.lower()]}"
    return f"unknown key; known keys: {', '.join(known)}", _USE_KNOWN


def _not_one_of(item: Any, keys: _Keys, *, is_key: bool) -> tuple[str, str]:
    """Describe a value, or a key of a mapping, that is not in a list."""
    expected = str((item.get("ctx") or {}).get("expected", ""))
    if is_key:
        return f"unknown key; known keys: {expected}", _USE_KNOWN
    allowed = [text or '""' for text in re.findall(r"'([^']*)'", expected)]
    value = str(item.get("input"))
    near = difflib.get_close_matches(value.lower(), allowed, n=1)
    choice = near[0] if near else " or ".join(allowed)
    more = table(__file__, "foreign_keys.yaml").get(f"{_name(keys)}:", "")
    return f"{value!r} is not one of {', '.join(allowed)}", f"write {_name(keys)}: {choice}{more}"


# what to write ----------------------------------------------------------------------------------------------


def _written(keys: _Keys, value: object, yamls: Sequence[YamlFile]) -> str:
    """Return a scalar as it is in the file: YAML reads ``yes`` as true, and 2.30 as 2.3."""
    written = ChainMap(*(yaml.texts for yaml in yamls))
    return written.get(keys, "" if value is None else str(value))


def _scalar(text: str) -> str:
    """Return a word as YAML text, with quotation marks where it needs them."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _name(keys: _Keys) -> str:
    """Return the last key that is not a position in a list."""
    return next((str(key) for key in reversed(keys) if isinstance(key, str)), "")


def _as_text(keys: _Keys, value: object, written: str) -> str:
    name = _name(keys)
    if value is None:
        return f"write a value after {name}:, or remove the line"
    if isinstance(value, Mapping | list):
        return f"write one text: {name}: VALUE"
    quoted = json.dumps(written, ensure_ascii=False)
    return f"put it into quotes: {name}: {f'[{quoted}]' if isinstance(keys[-1], int) else quoted}"


# files and models -------------------------------------------------------------------------------------------


def _line_of(keys: _Keys, yamls: Sequence[YamlFile]) -> str:
    """Return ``file:line`` of a key: in the recipe, or in a recipe that it extends."""
    for length in range(len(keys), 0, -1):
        for yaml in yamls:
            if keys[:length] in yaml.lines:
                return yaml.where(*keys[:length])
    return yamls[0].where()


def _type_at(path: _Keys, kind: Any) -> Any:
    """Return the type of the value at ``path`` of a model; None if there is none."""
    for key in path:
        fields = getattr(kind, "model_fields", None)
        if fields is not None and key in fields:
            kind = _bare_type(fields[key].annotation)
        elif get_origin(kind) in (dict, tuple):
            values = [argument for argument in get_args(kind) if argument is not ...]
            kind = _bare_type(values[-1])
        else:
            return None
    return kind


def _known_keys(path: _Keys, model: _Model) -> list[str]:
    """Return the keys that the model at ``path`` accepts."""
    fields = getattr(_type_at(path, model), "model_fields", {})
    return [key for key in fields if path or key not in _NOT_KEYS]


def _bare_type(annotation: Any) -> Any:
    """Remove ``Annotated`` and ``| None`` from a type."""
    if get_origin(annotation) is Annotated:
        return _bare_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        types = [argument for argument in get_args(annotation) if argument is not type(None)]
        return _bare_type(types[0])
    return annotation
