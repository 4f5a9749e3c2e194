"""What to write when no set of packages satisfies an environment: from a solver's reason to lines
to type.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.core.datafiles import read_beside, table
from builder.core.errors import BuilderError
from builder.core.markers import ARCHITECTURES
from builder.core.redact import redact

from .basepython import python_hint
from .channels import ONLY, SolverChannel, gateway, places
from .config.recipe import Recipe
from .indexes import Indexes
from .inputs import virtual_packages
from .names import known_names
from .request import SolveRequest
from .wheels import glibc_minor

_TORCH = ("torch", "torchvision", "torchaudio", "triton", "pytorch-triton")


@cache
def said(what: str) -> re.Pattern[str]:
    """Return the expression for words of rattler or uv, by their name in solver_words.yaml."""
    return re.compile(table(__file__, "solver_words.yaml")[what], re.MULTILINE)


def conda_hint(reason: str, request: SolveRequest, channels: Sequence[SolverChannel]) -> str:
    """Return the hint for an environment of which rattler found no solution.

    Args:
        reason: rattler's message.
        request: the environment and the target.
        channels: those that were searched.
    """
    hints = _virtual_package_hints(reason, request)
    missing = [(name, spec) for name, spec in _missing(reason) if not name.startswith("__")]
    if missing:
        hints += _missing_hints(missing, request, channels)
    if "the package has no timestamp" in reason:
        hints.append("its index has no date: leave exclude_newer out, or index the channel again")
    elif request.newest is not None:
        hidden = f"what its index dates (indexed_timestamp) after {request.newest:%Y-%m-%d}"
        hints.append(f"exclude_newer hides {hidden}: use a later date")
    other = "relax a spec in the environment file, or add a channel with the missing package"
    return "; ".join(dict.fromkeys(hints)) or other


def _missing_hints(
    missing: Sequence[tuple[str, str]], request: SolveRequest, channels: Sequence[SolverChannel]
) -> Iterator[str]:
    where = ", ".join(channel.name for channel in channels)
    names, pythons = _index(request, channels)
    for name, wanted in missing:
        if name == "python" and pythons:
            minors = ", ".join(dict.fromkeys(version.rpartition(".")[0] for version in pythons))
            yield f"{where} has Python {minors}: {python_hint(request, pythons)}"
        else:
            yield _missing_hint(name, wanted, where, names)


def line_of_missing(reason: str, request: SolveRequest) -> str:
    """Return ``FILE:LINE`` of the spec that no channel has; the file unless it is one spec."""
    missing = {name.lower() for name, _ in _missing(reason)}
    places = [spec.where for spec in request.environment.conda if spec.name in missing]
    return places[0] if len(places) == 1 else str(request.environment.path)


def _missing(reason: str) -> list[tuple[str, str]]:
    """Return names and versions of the packages that no channel has."""
    found = [(m[1] or m[3], m[2] or m[4] or "*") for m in said("no_candidate").finditer(reason)]
    return list(dict.fromkeys(found))


def _index(request: SolveRequest, channels: Sequence[SolverChannel]) -> tuple[set[str], list[str]]:
    """Return the packages of the channels, and their versions of Python; none if unreadable."""
    reader, where = gateway(request.settings), places(request, channels)
    try:
        names = asyncio.run(reader.names(*where, **ONLY))
        groups = asyncio.run(reader.query(*where, ["python"], recursive=False, **ONLY))
    except Exception:  # rattler's errors share no base class; a hint must not raise another error
        return set(), []
    versions = {record.version for group in groups for record in group}
    return {name.normalized for name in names}, list(map(str, sorted(versions, reverse=True)))


def _missing_hint(name: str, wanted: str, where: str, names: set[str]) -> str:
    """Return the hint for a package, or a version of it, that no channel has."""
    if name in names:
        if exact := re.fullmatch(r"==\s*(\d[\w.]*)", wanted):
            line = f"'- {name}={exact[1]}'"
            return f"'==' means exactly this version: write {line} for all that begin with it"
        return f"{where} has {name} in other versions only: write '- {name}' for the newest"
    alias = known_names("meant_on_conda").get(name.lower(), "")
    near = [alias] if alias in names else difflib.get_close_matches(name.lower(), names)
    if near:
        return f"is the name {name} right? {where} has {' and '.join(near)}"
    return (
        f"is the name {name} right? {where} has no such package: add the channel that has it, or move it "
        f"below the item '- pip:' if it is a package of PyPI: '- {name}'"
    )


def _virtual_package_hints(reason: str, request: SolveRequest) -> list[str]:
    """Return the line to write for each virtual package that the solver's reason names."""
    source = request.recipe.source
    declared = virtual_packages(request.recipe)
    hints = []
    for name, version in dict(sorted(said("virtual_package").findall(reason))).items():
        line = f'virtual_packages: {{{name}: "{version or "12.4"}"}}'
        has = f"{name} is not declared"
        if name in declared:
            has = f"the target has {name} {declared[name]}"
        hints.append(f"{has}: if the target machine has it, add to {source}: {line}")
    return hints


# pip ----------------------------------------------------------------------------------------------


def pip_hint(
    text: str, provided: Mapping[str, str], indexes: Indexes, request: SolveRequest, python: str
) -> str:
    """Return the hint for a pip section of which uv found no solution.

    Args:
        text: uv's message.
        provided: names and versions of the packages that conda provides.
        indexes: those that were searched.
        request: the environment and the target.
        python: the version of the target's Python.
    """
    recipe = request.recipe
    hints = [
        f"package index {url} does not answer: name a copy: export BUILDER_MIRRORS='{url}=URL-OR-FOLDER'"
        for url in map(redact, indexes.unreachable)
    ]
    if not hints:
        hints = [*_name_hints(text, recipe), *_version_hints(text, indexes)]
        hints += [*_glibc_hints(text, recipe), *_other_versions(text, indexes, request, python)]
    hints += [
        f"conda provides {name} {version}, and pip must not install it a second time: "
        f"remove the requirement, or '- {name}' below dependencies:"
        for name, version in provided.items()
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)
    ]
    for pattern, hint in table(__file__, "hints.yaml"):
        hints += [found.expand(hint) for found in re.finditer(pattern, text)]
    return "; ".join(dict.fromkeys(hints)) or "relax a requirement of the pip section"


def _name_hints(text: str, recipe: Recipe) -> Iterator[str]:
    """Yield hints for names that no index has, or that stand for another package."""
    missing, meant = said("not_found").findall(text), known_names("meant_on_pypi")
    for name in dict.fromkeys([*missing, *said("unusable").findall(text)]):
        if name in meant:
            yield f"is the name {name} right? did you mean {meant[name]}?"
        elif folder := _folder_of(name, recipe.root):
            yield (
                f"the project has a folder of this name: printf '%s\\n' ./{folder} . >> requirements.txt && "
                f"rm {recipe.source} && builder init --from requirements.txt"
            )
        elif name in missing:
            yield _missing_name(name)


def _missing_name(name: str) -> str:
    """Return the hint for a name that no index has: a typing error, a package of conda, or another one."""
    names = read_beside(__file__, "common_names.txt").split()
    near = [one for one in difflib.get_close_matches(name, names, n=1, cutoff=0.85) if one != name]
    if re.fullmatch("|".join(read_beside(__file__, "conda_names.txt").split()), name):
        where = "below dependencies: of an environment.yml"
        return f"{name} is a package of conda: write it {where}, or remove it where wheels bring it"
    meant = f"did you mean {near[0]}? If not," if near else "correct it, or"
    return f"is the name {name} right? {meant} name its index: --extra-index-url URL"


def _folder_of(name: str, root: Path) -> str:
    """Return the package below a project with a name, but for case and hyphens; empty if none."""
    files = [*root.glob("*/setup.py"), *root.glob("*/*/setup.py")]
    folders = (file.parent.relative_to(root) for file in sorted(files))
    plain = name.replace("-", "").lower()
    return next((str(f) for f in folders if re.sub(r"[-_.]", "", f.name).lower() == plain), "")


def _other_versions(
    text: str, indexes: Indexes, request: SolveRequest, python: str
) -> Iterator[str]:
    """Yield the newest versions of packages that no index has in the version that is named."""
    from .sdists import find_wheels  # httpx2 is slow to import

    for name in dict.fromkeys(said("no_version").findall(text)):
        with suppress(BuilderError):
            found = find_wheels(canonicalize_name(name), request, indexes)(request.recipe, python)
            newest_first = sorted(found, key=lambda v: (not v.is_prerelease, v), reverse=True)
            if newest := ", ".join(map(str, newest_first[:4])):
                yield f"the newest versions of {name} for this Python are {newest}"


def _version_hints(text: str, indexes: Indexes) -> Iterator[str]:
    """Yield hints for builds of a separate index, unless that index is named already."""
    for name, tag in dict.fromkeys(said("no_local_version").findall(text)):
        url = f"https://download.pytorch.org/whl/{tag}" if name.lower() in _TORCH else "URL"
        if url not in indexes.urls:
            yield f"name the index that has +{tag} above {name} in the pip section: - --extra-index-url {url}"


def _glibc_hints(text: str, recipe: Recipe) -> Iterator[str]:
    """Yield hints for packages whose wheels are all for a newer glibc than the target's."""
    own, machine = glibc_minor(recipe), ARCHITECTURES[recipe.platform]
    for name, version, platforms in said("platforms").findall(text):
        minors = [int(minor) for minor in re.findall(rf"`manylinux_2_(\d+)_{machine}`", platforms)]
        if own < (needed := min(minors, default=0)):
            line = f'{recipe.source}: virtual_packages: {{__glibc: "2.{needed}"}}'
            has = f"{name} {version} has wheels for glibc 2.{needed} and newer, and the target has 2.{own}"
            yield f"{has}: name a newer base; or, if the base has it, add to {line}"
