"""What activating a conda environment does, as far as this can be determined without running its scripts.

``etc/conda/env_vars.d/*.json`` and plain ``export NAME=VALUE`` lines of ``etc/conda/activate.d/*.sh`` become
environment variables in the image's config. The entry point sources the scripts that do more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.layers.conda_archive import damage, fault, package_files
from builder.layers.conda_info import PathInfo, read_info
from builder.layers.conda_prefix import replaced
from builder.layers.entry import LinkContext
from builder.model import Fetched

_ACTIVATE = "etc/conda/activate.d/"
_ENV_VARS = "etc/conda/env_vars.d/"
_UNSET = "***unset***"  # conda's marker for a variable that an environment removes
_SURROGATE = re.compile("[\ud800-\udfff]")

#: Paths with the package that contains the file, and the file's text.
_Texts = Mapping[str, tuple[Fetched, str]]


@dataclass(frozen=True, slots=True)
class Activation:
    """What activating the environment does."""

    env: Mapping[str, str]
    """Variables that are always set to the same value, for the image's config."""
    scripts: tuple[str, ...]
    """Image paths (with a leading slash) of the scripts that do more, in the order to source them."""


def is_activation(path: str) -> bool:
    """Returns whether conda reads this path (relative to the prefix) when it activates the environment."""
    is_script = path.startswith(_ACTIVATE) and path.endswith(".sh")
    return is_script or (path.startswith(_ENV_VARS) and path.endswith(".json"))


def activation_environment(fetched: Sequence[Fetched], context: LinkContext) -> Activation:
    """Returns the effect of the packages' activation files.

    The order is conda's: by file name, scripts after variables.

    In a script, only plain ``export NAME=VALUE`` lines before any other command are evaluated, with
    ``$CONDA_PREFIX`` replaced. A script with any other line is listed, for the entry point to source.

    Args:
        fetched: conda packages in link order. If two contain the same file, the later one wins.
        context: the environment's prefix.

    Raises:
        LayerError: a package is damaged, or a JSON file does not map names to values.
    """
    texts = _texts(fetched, context.prefix)
    env: dict[str, str] = {}
    for path in sorted(p for p in texts if p.startswith(_ENV_VARS)):
        env |= _variables(path, *texts[path])

    dynamic: list[str] = []
    for path in sorted(p for p in texts if p.startswith(_ACTIVATE)):
        exports, plain = _static_exports(texts[path][1], context.prefix)
        # A plain script must be sourced too if an earlier sourced script may set the same variables.
        if not plain or _mentions(texts, dynamic, exports):
            dynamic.append(path)
        env |= exports
    return Activation(dict(sorted(env.items())), tuple(f"{context.prefix}/{p}" for p in dynamic))


def _texts(fetched: Sequence[Fetched], prefix: str) -> dict[str, tuple[Fetched, str]]:
    """Returns the activation files as they are installed."""
    found: dict[str, tuple[Fetched, str]] = {}
    for f in fetched:
        infos = {p.path: p for p in read_info(f).paths if is_activation(p.path)}
        for path, data in package_files(f, infos.keys()).items():
            with damage(f):
                found[path] = f, _text(data, infos[path], prefix)
    return found


def _text(data: bytes, info: PathInfo, prefix: str) -> str:
    if info.placeholder:
        data = b"".join(replaced([data], info.placeholder, prefix, binary=info.binary))
    return data.replace(b"\0", b"").decode(errors="replace")  # shells ignore NULs, and no variable has one


def _variables(path: str, fetched: Fetched, text: str) -> dict[str, str]:
    """Returns the variables of a JSON file in ``env_vars.d``."""
    env = {}
    with damage(fetched):
        for name, value in json.loads(text).items():
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or not isinstance(value, str | int | float):
                raise fault(fetched, f"{path}: {name!r} is not a variable with a value")
            text = str(value)
            if "\0" in text or _SURROGATE.search(text):
                raise fault(fetched, f"{path}: the value of {name} is not text")
            if text != _UNSET:
                env[name] = text
    return env


def _mentions(texts: _Texts, paths: Sequence[str], names: Mapping[str, str]) -> bool:
    """Returns whether one of the scripts has one of the names in it."""
    return any(re.search(rf"\b{name}\b", texts[path][1]) for path in paths for name in names)


# reading shell scripts without running them -----------------------------------------------------------------

_BARE = r"""(?:[^\s"'`\\;&|<>()*?\[\]{}~#]|\$\{CONDA_PREFIX\})*"""
_EXPORT = re.compile(rf"""export\s+([A-Za-z_]\w*)=(?:"([^"`\\]*)"|'([^']*)'|({_BARE}))\s*;?\s*(?:#.*)?""")
#: An export of a value that only a shell knows.
_OTHER_EXPORT = re.compile(r"""export\s+([A-Za-z_]\w*)=(?:"[^"`\\]*"|[^\s"'`\\;&|<>()#]*)\s*;?""")
_PREFIX_VARIABLE = re.compile(r"\$CONDA_PREFIX\b|\$\{CONDA_PREFIX\}")


def _static_exports(text: str, prefix: str) -> tuple[dict[str, str], bool]:
    """Return the variables that a script always sets to the same value, and whether it does nothing else.

    Nothing is taken from the first line on that is not an export, and no variable that the rest mentions.
    """
    exports: dict[str, str] = {}
    plain = True
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _EXPORT.fullmatch(line)
        value = _value(match, prefix) if match else None
        if match and value is not None:
            exports[match[1]] = value
            continue
        plain = False
        other = _OTHER_EXPORT.fullmatch(line)
        if other is None:
            rest = text[text.index(raw) :]
            return {n: v for n, v in exports.items() if not re.search(rf"\b{n}\b", rest)}, False
        exports.pop(other[1], None)
    return exports, plain


def _value(match: re.Match[str], prefix: str) -> str | None:
    """Returns the value of an export, or None if it depends on more than the prefix."""
    _, double, single, bare = match.groups()
    if single is not None:
        return str(single)
    text = bare if double is None else double
    value = _PREFIX_VARIABLE.sub(lambda m: prefix, text)
    return None if "$" in value else value
