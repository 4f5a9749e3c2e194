"""One conda spec of an environment file, read as conda reads it.

conda ignores two parts of a spec: a namespace (``bioconda:bcftools``, with one colon) and pip's extras
(``uvicorn[standard]``). py-rattler refuses the second. So a spec is rewritten here, with a note of what was
ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from builder.redact import redact

#: A channel (a name, ``NAME/SUBDIR`` or a URL) or a namespace, the package, and what follows.
_SPEC = re.compile(
    r"(?:(?P<channel>[a-z]+://\S+?|[^\s:=<>!~\[\]]+?):(?P<inner>[\w.-]*):|(?P<namespace>[\w.-]+):)?"
    r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)"
    r"(?P<rest>\s*(?:$|[\s=<>!~\[;].*))",
    re.ASCII,
)
_EXTRAS = re.compile(r"\s*(\[[^\[\]=]*\])")
_SUBDIR = re.compile(r"(?:linux|osx|win|emscripten|wasi|zos|freebsd)-[a-z0-9]+$|noarch$")
#: Texts that begin like a spec and are none.
_NO_SPEC = re.compile(r"(pip|conda|mamba) install |pip - |[\d.]+$|[^\[]*=[<>]|[^\[]*[<>=!] +=")


@dataclass(frozen=True, slots=True)
class CondaSpec:
    """A spec that py-rattler accepts, if its version is valid."""

    text: str
    name: str
    """In lower case."""
    notes: tuple[str, ...]
    """What conda ignores."""


def read_conda_spec(text: str) -> CondaSpec | None:
    """Reads a spec; returns None if it is not one."""
    text = " ".join(text.split())
    match = _SPEC.fullmatch(text)
    if match is None:
        return None
    name, rest, notes = match["name"], match["rest"], []
    channel = f"{match['channel']}::" if match["channel"] else ""
    if namespace := match["inner"] or match["namespace"]:
        notes.append(
            f"conda ignores {namespace!r} in {redact(text)!r}: "
            f"for the channel write '{namespace}::{name}{redact(rest)}'"
        )
    if extras := _EXTRAS.match(rest):
        rest = rest[extras.end() :]
        notes.append(
            f"conda ignores {extras[1]} in {redact(text)!r}: add the packages that it stands for, "
            f"or move '{name}{extras[1]}' below the item '- pip:'"
        )
    text = f"{channel}{name}{rest}"
    return None if _NO_SPEC.match(text) else CondaSpec(text, name.lower(), tuple(notes))


@dataclass(frozen=True, slots=True)
class SpecChannel:
    """The channel part of a spec."""

    text: str
    """As written: a name or a URL, without the subdir."""
    subdir: str
    """``linux-64`` in ``conda-forge/linux-64::numpy``; may be empty."""
    rest: str
    """The spec without its channel."""


def split_channel(text: str) -> SpecChannel | None:
    """The channel of a spec (:attr:`CondaSpec.text`); None if it names none."""
    channel, colons, rest = text.rpartition("::")
    if not colons:
        return None
    start, _, last = channel.rstrip("/").rpartition("/")
    if start and _SUBDIR.match(last):
        return SpecChannel(start, last, rest)
    return SpecChannel(channel, "", rest)


def conda_spec_hint(text: str) -> str:
    """What to write instead of a text that is not a conda spec."""
    if text.startswith(("-r", "-e", "--", "git+", "./", "https://", "http://")):
        return f"this is for pip: write it below the item '- pip:', as '- {redact(text)}'"
    if text.startswith("pip - "):
        return "write '- pip:' with a colon, and its packages indented below it"
    return "write NAME, NAME>=VERSION or NAME=VERSION=BUILD"
