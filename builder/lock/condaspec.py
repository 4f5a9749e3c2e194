"""One conda spec of an environment file.

conda ignores two parts of a spec: a namespace (``bioconda:bcftools``, with one colon) and pip's
extras (``uvicorn[standard]``). Whoever writes them means something else, so they are errors here.
"""

from __future__ import annotations

import re
from typing import Any

from builder.core.datafiles import read_beside
from builder.core.errors import ConfigError
from builder.core.redact import redact

from .spec import Spec

_FORM = "write NAME, NAME>=VERSION,<VERSION or NAME=VERSION=BUILD"
#: A channel (a name or a URL), the package, and what follows.
_SPEC = re.compile(read_beside(__file__, "conda_spec.txt"), re.VERBOSE | re.ASCII)
#: The same for a spec: the channel, its subdir (``conda-forge/linux-64::NAME``), and the rest.
_PARTS = re.compile(r"(?:(.+?)(?:/(noarch|(?:linux|osx|win)-\w+))?::)?(.*)", re.DOTALL)
#: The channel in rattler's canonical form of a spec.
_CHANNEL = re.compile(r',?(?<=[\[,])channel="([^"]*)"')
#: What conda reads in that form, and rattler 0.28's solver does not: a file, a build string with a
#: dot, and what follows a version glob (``*.0``) or a second version (``>=1 <2``), which it takes for
#: a build string.
_UNREAD = re.compile(r'(?:fn|url)="[^"]*"|build="(?!\^.*\$"|\w+"|(?=[^"]*\*)[\w*+][\w.*+]*")[^"]*"')
_NAMESPACE = re.compile(r"([\w.-]+):([\w.-].*)")
_EXTRAS = re.compile(r"[\w.:/-]*\s*\[[^\[\]=]*\]")
#: How texts begin that are for pip.
_OF_PIP = ("-r", "-e", "--", "git+", "./", "https://", "http://")
#: Texts that begin like a spec and are none.
_NO_SPEC = re.compile(r"(pip|conda|mamba) install |pip - |[\d.]+$|[^\[]*=[<>]|[^\[]*[<>=!] +=")


def conda_spec_name(text: str) -> str:
    """Return the name of a spec's package, in lower case; empty for a text that is not a spec."""
    match = _SPEC.fullmatch(text)
    return match["name"].lower() if match and not _NO_SPEC.match(text) else ""


def conda_spec_hint(text: str) -> str:
    """Return the form to write in place of a text that is not a conda spec."""
    if re.search(r"\.(conda|tar\.bz2)(#|$)", text):
        return "write a package with its channel: https://HOST/CHANNEL/SUBDIR::NAME=VERSION=BUILD"
    if _EXTRAS.match(text) or text.startswith(_OF_PIP):
        return f"this is for pip: write it below the item '- pip:', as '- {redact(text)}'"
    if text.startswith("pip - "):
        return "write '- pip:' with a colon, and its packages indented below it"
    if namespace := _NAMESPACE.fullmatch(text):
        return f"for the channel write '{namespace[1]}::{redact(namespace[2])}'"
    return _FORM


def parsed_spec(spec: Spec) -> tuple[str, Any]:
    """Return the channel of a spec, a name or a URL or empty, and the rest as rattler's MatchSpec.

    Raises:
        ConfigError: it is not a spec, or the solver would not read all of it as conda does.
    """
    from rattler import MatchSpec

    channel, subdir, rest = _PARTS.findall(spec.text)[0]
    try:
        text = MatchSpec(f"*/{subdir}::{rest}" if subdir else rest).to_canonical_string()
        named = [name for name in (*_CHANNEL.findall(text), channel) if name not in ("*", "")]
        found = MatchSpec(_CHANNEL.sub("", text).replace("[,", "["))
        if unread := _UNREAD.search(text):
            raise ValueError(f"the solver does not read {unread[0]}")
    except Exception as e:  # rattler's errors share no base class
        reason = str(e).partition("\n")[0]  # below it, rattler repeats the same text as the cause
        problem = f"{spec.where}: {redact(spec.text)!r} is not a conda spec: {reason}"
        raise ConfigError(problem, _FORM) from None
    return next(iter(named), ""), found
