"""Chooses for each package the wheel that fits the target best."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from packaging.tags import Tag, compatible_tags, cpython_tags, create_compatible_tags_selector
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.core.errors import ConfigError, SolveError
from builder.core.markers import ARCHITECTURES
from builder.core.model import FIND_LINKS, LockedPackage

from .config.recipe import Recipe
from .inputs import virtual_packages
from .request import SolveRequest
from .urls import filename_of, named_url

#: A wheel of a ``pylock.toml`` or ``uv.lock``.
WheelFile = Mapping[str, Any]
#: The hint for a file with another hash than its requirement.
PUBLISHED_AGAIN = "check where the file comes from; if it was published again, update the hashes"
#: Minor versions of glibc 2 with an older name of their manylinux platform.
_LEGACY_MANYLINUX = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


class WheelChooser:
    """Turns the packages of a ``pylock.toml`` into packages of the lock, for one target."""

    def __init__(self, request: SolveRequest, python: str, sources: Sequence[str]) -> None:
        self._recipe = request.recipe
        self._settings = request.settings
        self._tags = target_tags(request.recipe, python)
        self._sources = sources
        named = (*request.environment.constraints, *request.environment.pip)
        self._hashes = {spec.name: spec for spec in named if spec.hashes}

    def locked(self, package: WheelFile) -> LockedPackage:
        """Return the package with its best wheel: the one whose tag the target's Python prefers.

        Raises:
            SolveError: no wheel fits the target, or the index has no SHA-256 for the best one.
        """
        wheel = self._best(package)
        filename = _filename(wheel)
        sha256 = (wheel.get("hashes") or {}).get("sha256")
        if not sha256:
            hint = "use another index, or a find-links folder"
            raise SolveError(f"{filename}: its index has no sha256 for it", hint)
        version = package.get("version") or str(parse_wheel_filename(filename)[1])
        url = self._public_url(wheel, filename)
        return LockedPackage(package["name"], version, "pip", self._recipe.platform, url, sha256)

    def _best(self, package: WheelFile) -> WheelFile:
        wheels = [*(package.get("wheels") or ()), *filter(None, [package.get("archive")])]
        best = best_wheel(self._with_named_hash(package["name"], wheels), self._tags)
        if best is None:
            name = f"{package['name']} {package.get('version', '')}"
            raise SolveError(
                f"{name}: no wheel for {self._recipe.platform}",
                "use another version, or build its wheel: add the package to pip: {build: ...} in the recipe",
            )
        return best

    def _with_named_hash(self, name: str, wheels: list[WheelFile]) -> list[WheelFile]:
        """Return the wheels with a hash of the requirement (``--hash``); all if it names none."""
        spec = self._hashes.get(name)
        if spec is None:
            return wheels
        named = {tuple(value.split(":")) for value in spec.hashes}
        found = [wheel for wheel in wheels if named & (wheel.get("hashes") or {}).items()]
        if wheels and not found:
            problem = f"{spec.where}: no wheel of {name} has a hash that the requirement names"
            raise SolveError(problem, PUBLISHED_AGAIN)
        return found

    def _public_url(self, wheel: WheelFile, filename: str) -> str:
        """Return the URL for the lock: public, without credentials; for a local file a name."""
        url = named_url(wheel.get("url", ""), self._settings, self._sources)
        is_on_web = url.startswith(("http://", "https://"))
        return url if is_on_web else FIND_LINKS + quote(filename, safe="+!")


def target_tags(recipe: Recipe, python: str) -> list[Tag]:
    """Return the tags of wheels that the target's Python installs, the best first.

    A free-threaded one, ``3.13.1t``, has an ABI of its own.
    """
    major, minor = (int(number) for number in re.findall(r"\d+", python)[:2])
    platforms = list(_manylinux(glibc_minor(recipe), ARCHITECTURES[recipe.platform]))
    interpreter = f"cp{major}{minor}"
    abi = f"{interpreter}t" if python.endswith("t") else interpreter
    return [
        *cpython_tags((major, minor), abis=[abi], platforms=platforms),
        *compatible_tags((major, minor), interpreter=interpreter, platforms=platforms),
    ]


def best_wheel(wheels: Sequence[WheelFile], tags: Sequence[Tag]) -> WheelFile | None:
    """Return the wheel that the target prefers; None if none fits."""
    select = create_compatible_tags_selector(tags)
    return next(select((wheel, tags_of(_filename(wheel))) for wheel in wheels), None)


def tags_of(filename: str) -> frozenset[Tag]:
    """Return the tags of a wheel; none if that is not the name of one."""
    try:
        return parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return frozenset()


def _manylinux(glibc: int, machine: str) -> Iterator[str]:
    """Yield the platforms of wheels for a glibc 2.x, the newest first."""
    for minor in range(glibc, 4, -1):
        yield f"manylinux_2_{minor}_{machine}"
        if minor in _LEGACY_MANYLINUX:
            yield f"{_LEGACY_MANYLINUX[minor]}_{machine}"
    yield f"linux_{machine}"


def glibc_minor(recipe: Recipe) -> int:
    """Return the x of the target's glibc 2.x.

    Raises:
        ConfigError: ``__glibc`` in the recipe is not a version of glibc 2.
    """
    text = virtual_packages(recipe)["__glibc"]
    match = re.match(r"2\.(\d+)", text)
    if match is None:
        problem = f"virtual_packages.__glibc: {text!r} is not a version of glibc 2"
        raise ConfigError(f"{recipe.source}: {problem}", 'write it as "2.31"')
    return int(match[1])


def _filename(wheel: WheelFile) -> str:
    keys = ("name", "url", "path", "filename")
    return filename_of(next((str(wheel[key]) for key in keys if wheel.get(key)), ""))
