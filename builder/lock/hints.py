"""What to write when no set of packages satisfies an environment: from a solver's reason to lines to type."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from builder.lock.channels import SolverChannel, gateway
from builder.lock.inputs import virtual_packages
from builder.lock.request import SolveRequest
from builder.lock.spec import Spec

#: In rattler's reason: name and version of a package that no channel has in this version.
_NO_CANDIDATE = re.compile(
    r"^No candidates were found for (\S+)(?: (.*?))?\.?$"
    r"|─ (\S+)(?: (.*?))?, for which no candidates were found",
    re.MULTILINE,
)
_VIRTUAL = re.compile(r"(?<![\w.-])(__\w+)(?: *(?:>=|==?|~=)? *([\d.]+))?")
#: In uv's message: a package that an index does not have, or not in this version.
_NOT_FOUND = re.compile(
    r"[Bb]ecause ([\w.-]+) was not found in the (?:package registry|provided package locations)"
)
_NO_VERSION = re.compile(r"there is no version of ([\w.-]+)(?:\[[^\]]*\])?==([\w.]+)(?:\+(\w+))?")
_UNUSABLE = re.compile(r"([A-Za-z][\w.-]*)(?:==\S+)? ha(?:ve|s) no usable wheels")
_NO_WHEEL = re.compile(
    r"no (usable )?wheels|no wheels with|building from source is disabled|source distribution"
)
_REPOSITORY = re.compile(r"`(\S+ @ git\+\S+?)`")
_TORCH = ("torch", "torchvision", "torchaudio", "triton", "pytorch-triton")
#: What people write (names of modules, and of the other index) -> names on conda-forge.
_CONDA_NAMES = {
    "torch": "pytorch",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "cv2": "opencv",
    "opencv-python": "opencv",
    "pil": "pillow",
    "yaml": "pyyaml",
}
#: The same with names on PyPI.
_PIP_NAMES = {
    "pytorch": "torch",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "cv2": "opencv-python-headless",
    "pil": "pillow",
    "yaml": "pyyaml",
    "tensorflow-gpu": "tensorflow",
}
#: How many versions a hint lists.
_VERSIONS = 3


def conda_hint(reason: str, request: SolveRequest, channels: Sequence[SolverChannel]) -> str:
    """What to write when rattler found no solution.

    Args:
        reason: rattler's message.
        request: the environment and the target.
        channels: those that were searched.
    """
    hints = _virtual_package_hints(reason, request)
    missing = [(name, spec) for name, spec in _missing(reason) if not name.startswith("__")]
    if missing:
        index = _Index.read(request, channels, [name for name, _ in missing])
        hints += [_missing_hint(name, wanted, request, channels, index) for name, wanted in missing]
    if request.newest is not None:
        date = request.newest.strftime("%Y-%m-%d")
        hints.append(f"exclude_newer hides packages published after {date}: use a later date")
    return "; ".join(dict.fromkeys(hints)) or (
        "relax a spec in the environment file, or add a channel with the missing package"
    )


def line_of_missing(reason: str, request: SolveRequest) -> str:
    """``FILE:LINE`` of the spec that no channel has; the file alone if that is not one spec."""
    places = [spec.where for name, _ in _missing(reason) if (spec := _spec(name, request.environment.conda))]
    return places[0] if len(places) == 1 else str(request.environment.path)


def _missing(reason: str) -> list[tuple[str, str]]:
    """Names and versions of the packages that no channel has."""
    found = [(m[1] or m[3], m[2] or m[4] or "*") for m in _NO_CANDIDATE.finditer(reason)]
    return list(dict.fromkeys(found))


def _spec(name: str, specs: Sequence[Spec]) -> Spec | None:
    return next((spec for spec in specs if spec.name == name.lower()), None)


@dataclass(frozen=True, slots=True)
class _Index:
    """What the channels have."""

    names: frozenset[str]
    versions: Mapping[str, Sequence[str]]
    """Of the packages that are missing: their versions, the newest first."""

    @classmethod
    def read(cls, request: SolveRequest, channels: Sequence[SolverChannel], missing: Sequence[str]) -> _Index:
        """Reads the index; it is empty where the channels cannot be read now."""
        try:
            return asyncio.run(cls._read(request, channels, missing))
        except Exception:  # rattler's errors share no base class; a hint must not raise another error
            return cls(frozenset(), {})

    @classmethod
    async def _read(
        cls, request: SolveRequest, channels: Sequence[SolverChannel], missing: Sequence[str]
    ) -> _Index:
        from rattler import Channel

        reader = gateway(request.settings)
        sources = [Channel(channel.actual) for channel in channels]
        platforms = [request.recipe.platform, "noarch"]
        names = {name.normalized for name in await reader.names(sources, platforms)}
        wanted = [name for name in missing if name in names]
        versions: dict[str, list[str]] = {}
        for group in await reader.query(sources, platforms, wanted, recursive=False) if wanted else []:
            for record in sorted(group, key=lambda record: record.version, reverse=True):
                found = versions.setdefault(record.name.normalized, [])
                if str(record.version) not in found:
                    found.append(str(record.version))
        return cls(frozenset(names), versions)


def _missing_hint(
    name: str, wanted: str, request: SolveRequest, channels: Sequence[SolverChannel], index: _Index
) -> str:
    """What to write instead of a package, or a version of it, that no channel has."""
    spec = _spec(name, request.environment.conda)
    versions = index.versions.get(name, ())
    where = ", ".join(channel.name for channel in channels)
    if versions:
        exact = re.fullmatch(r"==\s*(\d[\w.]*)", wanted)
        if exact and any(version.startswith(f"{exact[1]}.") for version in versions):
            return f"'==' means exactly this version: write '- {name}={exact[1]}'"
        newest = ", ".join(versions[:_VERSIONS])
        return f"{where} has {name} {newest}: write '- {name}={_short(versions[0])}'"
    alias = _CONDA_NAMES.get(name.lower(), "")
    near = [alias] if alias in index.names else difflib.get_close_matches(name.lower(), index.names)
    if near:
        return f"is the name {name} right? {where} has {' and '.join(near)}"
    pip = f", or move it below the item '- pip:' if it is a package of PyPI: '- {name}'" if spec else ""
    return f"is the name {name} right? {where} has no such package: add the channel that has it{pip}"


def _short(version: str) -> str:
    """The first two numbers of a version, which people usually pin."""
    return ".".join(version.split(".")[:2])


def _virtual_package_hints(reason: str, request: SolveRequest) -> list[str]:
    """The line to write for each virtual package that the solver's reason names."""
    source = "the recipe" if request.recipe.source == Path() else request.recipe.source
    declared = virtual_packages(request.recipe)
    needed: dict[str, str] = {}
    for name, version in _VIRTUAL.findall(reason):
        needed[name] = needed.get(name) or version
    hints = []
    for name, version in needed.items():
        example = version or ("12.4" if name == "__cuda" else "VERSION")
        line = f'virtual_packages: {{{name}: "{example}"}}'
        has = f"the target has {name} {declared[name]}" if name in declared else f"{name} is not declared"
        hints.append(f"{has}: if the target machine has it, add to {source}: {line}")
    return hints


# pip --------------------------------------------------------------------------------------------------------


def pip_hint(text: str, specs: Sequence[Spec], provided: Mapping[str, str]) -> str:
    """What to write when uv found no solution.

    Args:
        text: uv's message.
        specs: the requirements of the environment.
        provided: names and versions of the packages that conda provides.
    """
    hints = [*_name_hints(text), *_version_hints(text, specs)]
    hints += [
        f"only the environment can name a git repository: add '- {named}' below '- pip:'"
        for named in _REPOSITORY.findall(text)
    ]
    hints += [
        f"conda provides {name} {version}, and pip must not install it a second time: "
        f"remove the requirement, or '- {name}' below dependencies:"
        for name, version in provided.items()
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)
    ]
    if _NO_WHEEL.search(text):
        hints.append(
            "no index has a source distribution for this Python either: use another version, or name a "
            "source: NAME @ git+https://..."
        )
    if "exclude-newer" in text:
        hints.append(
            "exclude-newer hides newer files, and files without an upload date in the index: use a later date"
        )
    return "; ".join(dict.fromkeys(hints)) or "relax a requirement of the pip section"


def _name_hints(text: str) -> Iterator[str]:
    """For names that an index does not have, and for those that stand for another package."""
    missing = _NOT_FOUND.findall(text)
    for name in dict.fromkeys([*missing, *_UNUSABLE.findall(text)]):
        if name in _PIP_NAMES:
            yield f"is the name {name} right? did you mean {_PIP_NAMES[name]}?"
        elif name in missing:
            yield f"is the name {name} right? correct it, or name its index: --extra-index-url URL"


def _version_hints(text: str, specs: Sequence[Spec]) -> Iterator[str]:
    for name, version, local in dict.fromkeys(_NO_VERSION.findall(text)):
        if local and name.lower() in _TORCH:
            yield (
                f"versions with +{local} are in PyTorch's own index: write above it in the pip section: "
                f"- --extra-index-url https://download.pytorch.org/whl/{local}"
            )
        elif local:
            yield f"write {name}=={version}, or name the index that has +{local}: --extra-index-url URL"
        elif name in {spec.name for spec in specs if _pins(spec)}:
            yield f"write another version of {name}: {name}>=VERSION takes a newer one too"


def _pins(spec: Spec) -> bool:
    """Whether a requirement of pip allows one version only."""
    try:
        return "==" in str(Requirement(spec.text).specifier)
    except InvalidRequirement:
        return False
