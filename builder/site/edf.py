"""Environment definition files (EDF) of CSCS's Container Engine, for ``srun --environment``.

The Container Engine fills in ``${NAME}`` in every value, from the variables of srun's host, and
reads ``$$`` as a dollar sign: https://docs.cscs.ch/software/container-engine/edf (2025-09-24).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from builder.config.fields import VARIABLE
from builder.site.arguments import BindMount
from builder.site.shell import ShellText, join

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def edf_lines(
    image: str,
    mounts: Sequence[BindMount],
    workdir: str,
    env: Mapping[str, str],
    annotations: Mapping[str, str],
) -> tuple[str, ...]:
    """Return the lines of a file. Texts can be :class:`~builder.site.shell.ShellText`.

    Args:
        image: a path or reference, as enroot reads it.
        mounts: files and folders of the host.
        workdir: the folder to start in; empty: the image's.
        env: variables in the container; an empty value removes a variable.
        annotations: by dotted names.
    """
    lines = [f"image = {toml(image)}"]
    if workdir:
        lines.append(f"workdir = {toml(workdir)}")
    lines += ["entrypoint = false", "writable = true"]
    if mounts:
        lines.append("mounts = [")
        for bind in mounts:
            readonly = ":ro" if bind.mode == "ro" else ""
            lines.append(f"    {toml(join(bind.source, ':', bind.target, readonly))},")
        lines.append("]")
    if env:
        lines += ["", "[env]", *(f"{_key(name)} = {toml(value)}" for name, value in env.items())]
    if annotations:
        lines += ["", "[annotations]"]
        lines += [f"{_key(name)} = {toml(value)}" for name, value in annotations.items()]
    return tuple(lines)


def toml(text: str) -> str:
    """Return a text as a TOML string, with variables as the Container Engine reads them."""
    if not isinstance(text, ShellText):
        return _string(text.replace("$", "$$"))

    def variable(found: re.Match[str]) -> str:
        return "$$" if found["dollar"] else f"${{{found['name'] or found['braced']}}}"

    return _string(VARIABLE.sub(variable, text))


def _key(name: str) -> str:
    """Return a dotted key."""
    parts = name.split(".")
    return ".".join(part if _BARE_KEY.fullmatch(part) else _string(part) for part in parts)


def _string(text: str) -> str:
    # A JSON string is a basic string of TOML, except that TOML escapes DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
