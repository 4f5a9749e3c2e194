"""Refuses keys of other tools' files that builder would drop; ``keys.yaml`` has one rule per key.

| rule | meaning |
|---|---|
| ``read`` | builder reads the key |
| ``uv`` | uv reads it: the value is copied into the settings of uv (:func:`settings_of_uv`) |
| ``build`` | it concerns wheels that are built: an error if the recipe has no settings for one |
| ``build packages`` | the same, for those of the packages that it lists |
| ``same`` | it cannot change what is locked |
| ``refuse`` | an error; text after a colon is the hint |
| a list | these values are read, others are refused |
| a table | the rules of a table, or of the tables in a list |

``"*"`` is the rule of all names that have none. A key without a rule is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.utils import canonicalize_name

from builder.core.datafiles import table
from builder.core.errors import ConfigError
from builder.lock.tomlfile import TomlFile

Rules = Mapping[str, Any]


def rules_of(tool: str) -> Rules:
    """Return the rules of a tool's keys: ``hint``, and ``keys``."""
    return dict(table(__file__, "keys.yaml")[tool])


def check_keys(file: TomlFile, data: Mapping[str, Any], tool: str, *at: str) -> None:
    """Refuse the keys of a table that builder would drop.

    Args:
        file: the file, for the message.
        data: the table, or one below it.
        tool: whose table it is.
        at: the keys that lead from the tool's table to this one.

    Raises:
        ConfigError: a key is not known, or has a value that changes what is locked in a way that
            builder does not follow. The message names file, line and key.
    """
    rules = rules_of(tool)
    keys = rules["keys"]
    for key in at:
        keys = keys.get(key, keys.get("*", {}))
    _check(file, data, keys, ".".join((rules["table"], *at)).strip("."), rules["hint"])


def _check(file: TomlFile, data: Mapping[str, Any], rules: Rules, at: str, hint: str) -> None:
    for key, value in data.items():
        rule = rules.get(key, rules.get("*", "refuse"))
        name = f"{at}.{key}".strip(".")
        if isinstance(rule, dict):
            for entry in value if isinstance(value, list) else [value]:
                if isinstance(entry, dict):
                    _check(file, entry, rule, name, hint)
        elif str(rule).startswith("refuse") or (isinstance(rule, list) and value not in rule):
            raise refused(file, name, str(rule).partition(": ")[2] or hint)


def refused(file: TomlFile, key: str, hint: str) -> ConfigError:
    """Return the error for a key that builder does not follow."""
    where = file.where(key.rpartition(".")[2])
    return ConfigError(f"{where}: {key}: builder does not support this key", hint)


def settings_of_uv(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in ``[tool.uv]`` that uv itself reads, and those of builds."""
    keys = rules_of("uv")["keys"]
    return {key: v for key, v in data.items() if str(keys.get(key)).startswith(("uv", "build"))}


def build_settings(settings: Mapping[str, Any], name: str) -> list[str]:
    """Return the keys among uv's settings that change how a package is built."""
    keys = rules_of("uv")["keys"]
    of_all = [key for key, value in settings.items() if keys.get(key) == "build" and value]
    of_some = [key for key in settings if keys.get(key) == "build packages"]
    return of_all + [
        key for key in of_some if name in [str(canonicalize_name(one)) for one in settings[key]]
    ]
