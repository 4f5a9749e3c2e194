"""Whether the sources of an environment answer now, and what the Debian channel lacks of it."""

from __future__ import annotations

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from builder.channel.contents import LIBRARIES, PYTHON, WHEELS
from builder.config.recipe import Recipe
from builder.lock.channels import probe_channels
from builder.lock.indexes import probe_indexes
from builder.lock.inputs import virtual_packages
from builder.lock.request import SolveRequest
from builder.lock.spec import Environment, Spec
from builder.redact import redact
from builder.settings import Settings

#: The glibc of the Debian channel's programs.
_GLIBC = (2, 36)
#: Packages of the Debian channel.
_NAMES = {"python", "tk", "ca-certificates", "tzdata", *LIBRARIES, *WHEELS}


def silent_channels(recipe: Recipe, environment: Environment, settings: Settings) -> str:
    """Why no channel of an environment answers; empty if one does.

    Raises:
        ConfigError: the name of a channel is not valid.
    """
    answering, silent = probe_channels(SolveRequest(recipe, environment, settings))
    if answering:
        return ""
    return "; ".join(f"channel {channel.name} does not answer ({why})" for channel, why in silent)


def silent_indexes(recipe: Recipe, environment: Environment, settings: Settings) -> str:
    """Which package indexes of an environment do not answer, and why; empty if all do.

    Raises:
        ConfigError: a variable in a URL is not set.
    """
    urls = [url for url in (environment.index_url, *environment.extra_index_urls) if url]
    problems = probe_indexes(SolveRequest(recipe, environment, settings), urls)
    return "; ".join(f"package index {redact(url)} does not answer ({why})" for url, why in problems.items())


def fits_debian_channel(recipe: Recipe) -> bool:
    """Whether programs of the Debian channel run on a recipe's base."""
    if recipe.platform != "linux-64":
        return False
    numbers = virtual_packages(recipe)["__glibc"].split(".")
    return tuple(int(number) for number in numbers if number.isdigit()) >= _GLIBC


def not_in_debian_channel(environment: Environment) -> list[Spec]:
    """The conda specs of an environment that the Debian channel cannot satisfy."""
    return [
        spec
        for spec in environment.conda
        if spec.name not in _NAMES or (spec.name == "python" and not _allows_debian_python(spec.text))
    ]


def _allows_debian_python(text: str) -> bool:
    """Whether a conda spec of python allows the version of the Debian channel; True if it is not clear."""
    version = text.partition("python")[2].strip().split(" ")[0]
    if version.startswith("=") and not version.startswith("=="):
        version = f"=={version[1:].rstrip('.*')}.*"
    elif version[:1].isdigit():
        version = f"=={version}"
    try:
        allowed = SpecifierSet(version)
    except InvalidSpecifier:
        return True
    return any(f"{PYTHON}{end}" in allowed for end in ("", ".2", ".99"))
