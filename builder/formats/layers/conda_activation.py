"""What activating a conda environment does.

Variables of ``etc/conda/env_vars.d/*.json`` become environment variables in the image's config. The
entry point sources the scripts ``etc/conda/activate.d/*.sh``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from builder.core.model import LockedPackage

from .bounds import MAX_METADATA
from .content import read_whole
from .entry import Entry
from .packages import Packages
from .zips import check_size, fault

_SCRIPTS = "etc/conda/activate.d/*.sh"
_ENV_VARS = "etc/conda/env_vars.d/*.json"
_UNSET = "***unset***"  # conda's marker for a variable that an environment removes
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Activation:
    """What activating the environment does."""

    env: Mapping[str, str]
    """Variables for the image's config."""
    scripts: tuple[str, ...]
    """Image paths (with a leading slash) of the scripts, in the order to source them."""


def activation_environment(packages: Packages) -> Activation:
    """Return the effect of the packages' activation files, in conda's order: by file name.

    If two packages contain the same file, the later one wins.

    Raises:
        LayerError: a package is damaged, or a JSON file does not map names to values.
    """
    root = packages.context.prefix.strip("/") + "/"
    variables: dict[str, dict[str, str]] = {}
    scripts: set[str] = set()
    for package in packages.locked:
        if package.manager != "conda":
            continue
        paths = frozenset(entry.path for entry in packages.indexes[package.key].entries)
        scripts |= {f"/{path}" for path in paths if fnmatchcase(path.removeprefix(root), _SCRIPTS)}
        wanted = {path for path in paths if fnmatchcase(path.removeprefix(root), _ENV_VARS)}
        if wanted:
            for entry in packages.entries(package, paths - wanted):
                variables[entry.path] = _variables(package, entry)
    env: dict[str, str] = {}
    for _, found in sorted(variables.items()):
        env |= found
    return Activation(dict(sorted(env.items())), tuple(sorted(scripts)))


def _variables(package: LockedPackage, entry: Entry) -> dict[str, str]:
    """Return the variables of a JSON file in ``env_vars.d``."""
    check_size(package, entry.path, entry.size, MAX_METADATA)
    env = {}
    try:
        for name, value in json.loads(read_whole(entry)).items():
            is_name = re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)
            if not is_name or not isinstance(value, str | int | float):
                raise ValueError(f"{name!r} is not a variable with a value")
            text = str(value)
            if "\0" in text or _SURROGATE.search(text):
                raise ValueError(f"the value of {name} is not text")
            if text != _UNSET:
                env[name] = text
    except (ValueError, AttributeError, RecursionError) as e:
        raise fault(package, f"{entry.path}: {e}") from None
    return env
