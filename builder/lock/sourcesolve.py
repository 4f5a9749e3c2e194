"""Solves environments with packages that have no wheel: wheels are built, then uv solves with
wheels only.

A requirement that names a source is built first, and becomes ``NAME @ file:///.../WHEEL``. A
package of an index that has source distributions only is not known to uv, which is never allowed to
build. So each of its source distributions becomes a *stub*, a wheel with name and version only, and
uv chooses among them::

    round 1   uv: "warmup-scheduler has no usable wheels"
              links/warmup_scheduler-0.3-py3-none-any.whl        stubs of 0.3, 0.2, ...
    round 2   uv chooses the stub of 0.3: it is built in the image
              links/warmup_scheduler-0.3-py3-none-any.whl        the real wheel replaces the stub
    round 3   uv solves with the requirements of the real wheel; no stub is left: done

The invariant: each round adds the stubs of a package or replaces at least one stub by a wheel, so
the loop ends. If a real wheel's requirements do not fit, uv takes the stub of an older version,
which is built too. If they have no wheels themselves, they become stubs first.
"""

from __future__ import annotations

import logging
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.core.errors import BuilderError, ConfigError, SolveError, WheelError
from builder.core.markers import applies, unfulfilled, with_extras
from builder.core.model import WHEELS, Fetched, LockedPackage
from builder.core.redact import redact
from builder.core.settings import Settings
from builder.formats.layers.licences import wheel_metadata
from builder.formats.layers.wheel_archive import WheelArchive

from .config.steps import WheelBuild
from .hints import said
from .indexes import Indexes
from .manifests.reader import build_settings
from .names import conda_mapping, pypi_name
from .request import BuiltWheel, SolveRequest, WheelBuilder
from .sdists import find_sdists, find_wheels
from .sourcespec import SpecContext, read_named
from .spec import SourceSpec
from .urls import filename_of
from .uv import NoWheels
from .wheels import PUBLISHED_AGAIN, glibc_minor

log = logging.getLogger(__name__)

#: How often uv solves. Each package without a wheel takes two rounds.
MAX_ROUNDS = 50

#: The folder of a package's source while its wheel is built. poetry writes the paths of other
#: folders there into the wheel's requirements.
_SOURCE = "file:///build/source"
#: The packages of uv's solution, as its pylock.toml has them.
Solved = list[dict[str, Any]]
#: Runs uv with further requirements and constraints, and with the solver's links and overrides.
#: Raises NoWheels for packages that have no wheel, else SolveError.
Solve = Callable[[Sequence[str], Sequence[str]], Solved]


@dataclass
class SourceSolver:
    """One solve of an environment with source packages."""

    request: SolveRequest
    conda: Sequence[LockedPackage]
    indexes: Indexes
    folder: Path
    """An empty folder."""
    builder: WheelBuilder | None
    """None: nothing is built, and what would have to be is an error."""
    wheels: dict[str, BuiltWheel] = field(default_factory=dict)
    """Those that were built, by name: one for each package."""
    links: Path = field(init=False)
    """A find-links folder for uv, with stubs and with the wheels that replaced stubs."""
    overrides: list[str] = field(default_factory=list)
    """Requirements with the URL of a built wheel, for packages that others require by another
    URL.
    """
    _direct: dict[str, str] = field(default_factory=dict)
    """Requirements with the URL of a built wheel, by name."""
    _sdists: dict[str, dict[Version, SourceSpec]] = field(default_factory=dict)
    """What the indexes have, by the name of the package; empty for one without source
    distributions.
    """
    _stubs: set[tuple[str, Version]] = field(default_factory=set)
    """Those in ``links`` that no wheel has replaced yet."""
    _images: dict[str, tuple[SourceSpec, Sequence[LockedPackage]]] = field(default_factory=dict)
    """Of builds that see the packages of the image: the source, and these packages."""
    _deferred: list[SourceSpec] = field(default_factory=list)
    """Sources of the environment whose builds see the packages of the image: they wait for a
    solution.
    """

    def __post_init__(self) -> None:
        self.links = self.folder / "links"
        self.links.mkdir(parents=True)

    def solve(self, solve: Solve, locked: Callable[[Solved], list[LockedPackage]]) -> Solved:
        """Return the packages of uv's solution, after all wheels are built.

        Args:
            solve: runs uv.
            locked: turns its packages into those of a lock.

        Raises:
            SolveError: there is no solution.
            WheelError: a wheel cannot be built.
            ConfigError: the recipe has settings for a build that does not take place.
        """
        self._build_direct()
        for _ in range(MAX_ROUNDS):
            try:
                solved = self._solved(solve)
            except NoWheels as e:
                if not self._add_stubs(e.names):
                    raise
                continue
            if self._needs_stubs(solved, solve):
                continue
            if not self._build_chosen(solved, locked) and not self._build_again(locked(solved)):
                if self.builder is not None:
                    self._check_settings()
                return solved
        raise SolveError(
            f"{self.request.environment.path}: no solution with source packages after {MAX_ROUNDS} rounds",
            "pin the versions of the source packages: NAME==VERSION",
        )

    def _solved(self, solve: Solve, *constraints: str) -> Solved:
        while True:
            try:
                return solve(list(self._direct.values()), constraints)
            except SolveError as e:
                named = said("other_url").search(e.message)
                line = (
                    self._named_line(canonicalize_name(named[1] or ""), named[2]) if named else None
                )
                if line is None or line in self.overrides:
                    raise
                self.overrides.append(line)

    def _named_line(self, name: str, url: str | None) -> str | None:
        """Return the line with the built wheel of a package that another one names by a URL.

        A repository or a folder that the project's own package names is built now. None: others
        cannot name one.

        Args:
            name: the package; empty if only its URL is known.
            url: that of a folder, as the wheel has it.
        """
        if name in self._direct:
            return self._direct[name]
        root = self.request.recipe.root
        for wheel in [one for one in self.wheels.values() if one.locked.kind == "local"]:
            for text in wheel_requirements(fetched_wheel(wheel, "")):
                requirement = Requirement(text)
                if requirement.url is None or (
                    requirement.url != url and canonicalize_name(requirement.name) != name
                ):
                    continue
                folder = (root / wheel.locked.url).absolute().as_uri()
                requirement.url = requirement.url.replace(_SOURCE, folder, 1)
                context = SpecContext(str(self.request.environment.path), root, root)
                spec = read_named(requirement, text, context)
                if isinstance(spec, SourceSpec):
                    # without FILE:LINE, so that the URL gets no values of variables
                    self._add_direct(replace(spec, where=""), self.conda)
                    return self._direct.get(canonicalize_name(requirement.name))
        return None

    def _needs_stubs(self, solved: Solved, solve: Solve) -> bool:
        """Add stubs that uv did not ask for, and return whether there are new ones.

        A package that is built although it has wheels gets stubs of all its versions. If a built
        wheel needs another package that has no wheel, uv takes the stub of an older version
        instead, which needs nothing. So uv has to solve with the built version.
        """
        to_build = filter(self._has_to_be_built, solved)
        chosen = [canonicalize_name(package["name"]) for package in to_build]
        if self._add_stubs([name for name in chosen if name not in self._sdists]):
            return True
        for name in chosen:
            if name not in self.wheels:
                continue
            try:
                self._solved(solve, f"{name}=={self.wheels[name].version}")
            except NoWheels as e:
                if self._add_stubs(e.names):
                    return True
            except SolveError:
                continue
        return False

    def package(self, name: str) -> LockedPackage | None:
        """Return a built package as the lock has it; None if it was not built."""
        wheel = self.wheels.get(canonicalize_name(name))
        return None if wheel is None else wheel_package(wheel, self.request.recipe.platform)

    # requirements that name a source

    def _build_direct(self) -> None:
        for spec in self.request.environment.sources:
            if not applies(spec.marker, self.request.recipe.platform, self._python):
                continue
            if self._settings(self._name_of(spec)).no_isolation:
                self._deferred.append(spec)
            else:
                self._add_direct(spec, self.conda)

    def _add_direct(self, spec: SourceSpec, packages: Sequence[LockedPackage]) -> None:
        """Build a source; one that was built before gets further extras."""
        before = dict(self.wheels)
        wheel = self._built(spec, packages)
        extras = set(spec.extras)
        if earlier := self._direct.get(wheel.name):
            if before[wheel.name].locked != wheel.locked:
                problem = f"{spec.where}: {wheel.name} is named twice, by two sources"
                raise ConfigError(problem, "remove one of the lines")
            extras |= Requirement(earlier).extras
        url = self._place(wheel, self.folder / "direct")
        self._direct[wheel.name] = f"{with_extras(wheel.name, extras)} @ {url}"

    @property
    def _python(self) -> str:
        """The version of the environment's Python."""
        return next(package.python_version for package in self.conda if package.name == "python")

    # packages of an index

    def _add_stubs(self, names: Sequence[str]) -> bool:
        """Add the stubs of packages without a wheel, and return whether there are new ones."""
        never = self.request.environment.only_binary
        if self.builder is None or ":all:" in never:
            return False
        before = len(self._stubs)
        for name in set(names).difference(never):
            log.info("%s is built from one of its source distributions", name)
            for version in self._known_sdists(name):
                write_stub(self.links, name, str(version))
                self._stubs.add((name, version))
        return len(self._stubs) > before

    def _known_sdists(self, name: str) -> Mapping[Version, SourceSpec]:
        """Return the source distributions of a package, by version."""
        if name not in self._sdists:
            self._sdists[name] = find_sdists(name, self.request, self._python, self.indexes)
        return self._sdists[name]

    def _build_chosen(
        self, solved: Solved, locked: Callable[[Solved], list[LockedPackage]]
    ) -> bool:
        """Build the packages of a solution, isolated ones first; return whether there were any."""
        chosen = list(filter(self._has_to_be_built, solved))
        isolated = [found for found in chosen if not self._settings(found["name"]).no_isolation]
        for package in isolated:
            self._build_sdist(package, self.conda)
        if isolated:
            return True
        missing = {canonicalize_name(package["name"]) for package in chosen}
        others = [found for found in solved if canonicalize_name(found["name"]) not in missing]
        image = [*self.conda, *locked(others)]
        for package in chosen:
            self._build_sdist(package, image)
        deferred, self._deferred = self._deferred, []
        for spec in deferred:
            self._add_direct(spec, image)
        return bool(chosen or deferred)

    def _build_again(self, solved: Sequence[LockedPackage]) -> bool:
        """Repeat builds that saw packages of which the solution has other versions now.

        Returns whether there is a new wheel. Packages that came later, such as those that the wheel
        itself needs, do not matter.
        """
        now = {package.name: package for package in solved}
        changed = False
        for name, (spec, image) in list(self._images.items()):
            then = [package for package in image if package.manager == "pip"]
            if all(now.get(package.name) == package for package in then):
                continue
            again = [now[package.name] for package in then if package.name in now]
            old = self.wheels[name].sha256
            wheel = self._built(spec, [*self.conda, *again])
            self._put(wheel, Version(wheel.version))
            changed = changed or wheel.sha256 != old
        return changed

    def _has_to_be_built(self, package: Mapping[str, Any]) -> bool:
        name, version = canonicalize_name(package["name"]), Version(package.get("version") or "0")
        if (name, version) in self._stubs:
            return True
        if name in self._direct or not self._is_forced(name):
            return False
        return name not in self.wheels or Version(self.wheels[name].version) != version

    def _is_forced(self, name: str) -> bool:
        """Return whether a package is built even if it has a wheel."""
        if self.builder is None:  # a build requirement is never built
            return False
        named = self.request.environment.no_binary
        return name in self.request.recipe.pip.build or name in named or ":all:" in named

    def _build_sdist(self, package: Mapping[str, Any], packages: Sequence[LockedPackage]) -> None:
        name, version = canonicalize_name(package["name"]), Version(package["version"])
        sdist = self._known_sdists(name).get(version)
        if sdist is None:
            raise SolveError(
                f"{name} {version} has no source distribution on the indexes",
                f"name a version that has one, or remove {name} from pip: build of the recipe "
                "and from no-binary",
            )
        self._check_hash(sdist)
        try:
            wheel = self._built(sdist, packages)
        except BuilderError as e:
            newer = self._newer_wheel(name, version)
            own = "" if newer and "for an older Python" in e.hint else e.hint
            e.hint = "; ".join(filter(None, (newer, own)))
            raise
        if Version(wheel.version) != version:
            filename = filename_of(sdist.url)
            problem = f"the source distribution {filename} builds version {wheel.version}"
            raise WheelError(problem, f"exclude it: {name}!={version}")
        self._put(wheel, version)

    def _newer_wheel(self, name: str, version: Version) -> str:
        """Return the hint for a version with wheels for a newer glibc or older Pythons only, or nothing."""
        python, recipe = self._python, self.request.recipe
        versions = find_wheels(name, self.request, self.indexes)
        found = versions(recipe, python)
        newest = recipe.model_copy(update={"virtual_packages": {"__glibc": "2.99"}})
        if version in versions(newest, python) - found:
            own = f"the target's 2.{glibc_minor(recipe)}"
            return f"{name} {version} has a wheel for a newer glibc than {own}: name a newer base"
        newer = [f"{name}>={v}" for v in sorted(found) if v > version and not v.is_prerelease][:1]
        if version in found:
            return ""
        minors = () if recipe.uses_base_python else range(8, int(python.split(".")[1]))
        older = (f"3.{minor}" for minor in reversed(minors))
        has_wheel = (v for v in older if version in versions(recipe, v))
        ways = newer + [f"python={v} (or {v} into .python-version)" for v in [*has_wheel][:1]]
        problem = f"{name} {version} has no wheel for Python {python}: write "
        return problem + " or ".join(ways) if ways else ""

    def _check_hash(self, sdist: SourceSpec) -> None:
        """Raise SolveError if the requirement names hashes (``--hash``), and not the source's."""
        pinned = (s for s in self.request.environment.pip if s.name == sdist.name and s.hashes)
        spec = next(pinned, None)
        if spec is not None and f"sha256:{sdist.sha256}" not in spec.hashes:
            found = f"sha256:{sdist.sha256}" if sdist.sha256 else "no sha256 on its index"
            problem = f"{filename_of(sdist.url)} has {found}, and the requirement names others"
            raise SolveError(f"{spec.where}: {problem}", PUBLISHED_AGAIN)

    def _put(self, wheel: BuiltWheel, version: Version) -> None:
        """Put a wheel where uv finds it, in place of its stub."""
        name = wheel.name
        if name in self._direct:
            self._place(wheel, self.folder / "direct")
        else:
            if (name, version) in self._stubs:
                self._stubs.discard((name, version))
                write_stub(self.links, name, str(version)).unlink()
            self._place(wheel, self.links)

    # all builds

    def _built(self, spec: SourceSpec, packages: Sequence[LockedPackage]) -> BuiltWheel:
        if self.builder is None:
            problem = f"{spec.where}: {redact(spec.text)} has to be built from its source"
            raise SolveError(problem, "lock with builder lock, which builds wheels")
        self._refuse_settings(spec)
        wheel = self.builder.build(spec, packages)
        self.wheels[wheel.name] = wheel
        if self._settings(wheel.name).no_isolation:
            self._images[wheel.name] = (spec, packages)
        return wheel

    def _name_of(self, spec: SourceSpec) -> str:
        """Return the name of a source's package; empty if only its build tells it."""
        return spec.name or (self.builder.name_of(spec) if self.builder else None) or ""

    def _refuse_settings(self, spec: SourceSpec) -> None:
        """Raise ConfigError if settings of uv concern a build, and the recipe has none for it."""
        environment, recipe = self.request.environment, self.request.recipe
        name = self._name_of(spec)
        keys = build_settings(environment.uv, name)
        if keys and name not in recipe.pip.build:
            raise ConfigError(
                f"{environment.path}: {keys[0]} is for builds by uv, and builder builds {name}",
                f"write settings into {recipe.source}: pip: {{build: {{{name}: {{...}}}}}}",
            )

    def _place(self, wheel: BuiltWheel, folder: Path) -> str:
        """Put a wheel into a folder, under its own name, and return the URL of the file."""
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / wheel.filename
        shutil.copyfile(wheel.path, target)
        return target.as_uri()

    def _settings(self, name: str) -> WheelBuild:
        return self.request.recipe.pip.build.get(canonicalize_name(name), WheelBuild())

    def _check_settings(self) -> None:
        recipe = self.request.recipe
        unknown = ", ".join(sorted(set(recipe.pip.build) - set(self.wheels)))
        if unknown:
            raise ConfigError(
                f"{recipe.source}: pip.build: {unknown}: no package of this name is installed by pip",
                f"packages that were built: {', '.join(sorted(self.wheels)) or 'none'}",
            )


def wheel_requirements(wheel: Fetched) -> list[str]:
    """Return the requirements in the metadata of a wheel.

    Raises:
        LayerError: the wheel is damaged or hostile.
    """
    with WheelArchive(wheel) as archive:
        return list(map(str, wheel_metadata(archive).get_all("Requires-Dist", ())))


def missing_requirements(
    wheel: Fetched, packages: Sequence[LockedPackage], platform: str, settings: Settings
) -> list[str]:
    """Return the requirements of a wheel that locked packages do not fulfil.

    Raises:
        LayerError: see :func:`wheel_requirements`.
    """
    names = conda_mapping(settings)
    versions = {pypi_name(p.name, names): p.version for p in packages if p.manager == "conda"}
    versions |= {canonicalize_name(p.name): p.version for p in packages if p.manager == "pip"}
    return unfulfilled(wheel_requirements(wheel), versions, platform)


def wheel_package(wheel: BuiltWheel, platform: str) -> LockedPackage:
    """Return a wheel that was built, as a package of a lock."""
    url = WHEELS + quote(wheel.filename, safe="+!")
    name, version, sha256 = wheel.name, wheel.version, wheel.sha256
    return LockedPackage(name, version, "pip", platform, url, sha256, source=wheel.locked)


def fetched_wheel(wheel: BuiltWheel, platform: str) -> Fetched:
    """Return a wheel that was built, as a package on this machine."""
    return Fetched(wheel_package(wheel, platform), wheel.path, wheel.path.stat().st_size)


def write_stub(folder: Path, name: str, version: str) -> Path:
    """Write a wheel with metadata only and without dependencies, and return its path."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    tags = "Wheel-Version: 1.0\nGenerator: builder\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
        wheel.writestr(f"{stem}.dist-info/WHEEL", tags)
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return path
