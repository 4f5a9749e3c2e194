"""Builds the wheels of a target from their sources, in an image with the target's packages.

A wheel is built once: a record in the cache names it by its source, its build requirements, the
packages and the base of the image, and the settings of the build.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from builder.build.bases.resolve import resolve_base
from builder.build.engines.base import BuildRequest
from builder.build.engines.layered import Layered
from builder.build.fetch.packages import fetch_for
from builder.build.run.select import find_runner
from builder.build.sources import SourceTree, open_source
from builder.build.sources.scm import describe, write_archival
from builder.build.steps.recipe import check_processor
from builder.core.errors import FetchError, WheelError
from builder.core.markers import unfulfilled
from builder.core.model import Fetched, Lock, LockedBase, LockedPackage, LockedSource
from builder.core.redact import redact
from builder.core.store.files import pieces
from builder.core.store.records import Record
from builder.core.workspace import Workspace
from builder.formats.layers.cache import cache_key
from builder.formats.qemu import emulation
from builder.lock.config.recipe import Recipe
from builder.lock.config.steps import WheelBuild
from builder.lock.inputs import Inputs
from builder.lock.request import BuiltWheel, SolveRequest
from builder.lock.solve import Cutoffs
from builder.lock.sourcerecords import locked_url
from builder.lock.sourcesolve import wheel_package
from builder.lock.spec import SourceSpec, spec_of
from builder.lock.uv import uv_program

from .backend import project_name, read_backend, read_scm
from .requirements import fetch_uv, resolve_requirements
from .run import NeedsMore, WheelJob, built, check_wheel

log = logging.getLogger(__name__)

#: Part of the cache keys. Increase it when the same inputs result in another wheel.
FORMAT = 2
#: How often a backend may ask for further requirements.
_ROUNDS = 3


@dataclass
class ImageWheelBuilder:
    """The :class:`builder.lock.request.WheelBuilder` of a target."""

    inputs: Inputs
    work: Workspace
    base: LockedBase | None = None
    """The base that the lock pins; None: the one that the recipe names now."""
    exclude_newer: str | None = None
    """As in :class:`builder.lock.request.LockRequest`."""
    locked: Sequence[LockedPackage] = ()
    """Those of the lock that is replaced: a wheel of the same build is taken from the project's
    folder.
    """
    reports: bool = True
    """Whether the user reads which wheels are built."""

    @property
    def recipe(self) -> Recipe:
        """The target's."""
        return self.inputs.recipe

    def name_of(self, source: SourceSpec) -> str | None:
        """See :class:`builder.lock.request.WheelBuilder`."""
        if source.kind != "local":
            return None
        return project_name(self.recipe.root / source.url / source.subdirectory)

    def build(self, source: SourceSpec, packages: Sequence[LockedPackage]) -> BuiltWheel:
        """See :class:`builder.lock.request.WheelBuilder`."""
        self._check_architecture(source)
        with open_source(source, self.recipe.root, self.work) as tree:
            name = source.name or project_name(tree.path)
            tree = self._with_description(source, name, tree)
            wheel = self._wheel(source, name, tree, packages)
            # its settings are known only now
            if name is None and wheel.name in self.recipe.pip.build:
                wheel = self._wheel(source, wheel.name, tree, packages)
            return wheel

    def rebuild(self, package: LockedPackage, lock: Lock) -> None:
        """Build the wheel of a package of a lock again, and store it.

        Raises:
            WheelError: the build failed, or another wheel than the locked one came out.
            FetchError: its source is not available.
        """
        wheel = self._again(package, lock)
        if wheel.sha256 != package.sha256:
            raise WheelError(
                f"{package.filename} was built again from its locked source, and is another file now "
                f"(sha256:{wheel.sha256[:12]}..., locked sha256:{(package.sha256 or '')[:12]}...)",
                "copy the folder wheels/ from the machine that locked, or lock again: "
                f"builder lock {self.recipe.name}",
            )

    def current(self, package: LockedPackage, lock: Lock) -> LockedPackage:
        """Return a package of the project as its files are now; the same one if its wheel is.

        Raises:
            WheelError: the build failed.
            FetchError: a build requirement is not available.
        """
        wheel = self._again(package, lock)
        if wheel.sha256 == package.sha256:
            return package
        made = wheel_package(wheel, package.platform)
        return replace(made, dependencies=package.dependencies, category=package.category)

    def _again(self, package: LockedPackage, lock: Lock) -> BuiltWheel:
        """Build the source of a package again, if possible with the packages that its build had."""
        packages = [p for p in lock.for_platform(self.recipe.platform) if p.source is None]
        pinned = package.source
        assert pinned is not None
        spec = self._requirement(package.name, pinned)
        self._check_architecture(spec)
        with open_source(spec, self.recipe.root, self.work, pinned=pinned) as tree:
            locked = replace(tree.locked, requires=pinned.requires)
            return self._wheel(spec, package.name, replace(tree, locked=locked), packages)

    def _requirement(self, name: str, locked: LockedSource) -> SourceSpec:
        """Return the source to open: the user's own line has the variables."""
        spec = spec_of(name, locked)
        for own in self.inputs.environment.sources:
            same = own.kind == spec.kind and own.subdirectory == spec.subdirectory
            if same and locked_url(own.url) == spec.url:
                return replace(own, name=name, revision=spec.revision, sha256=spec.sha256)
        return spec

    def _with_description(
        self, source: SourceSpec, name: str | None, tree: SourceTree
    ) -> SourceTree:
        """Return an opened source with ``git describe``'s text, if its version is made from it.

        A version that the user sets for the build needs none.
        """
        env = self.recipe.pip.build.get(name or "", WheelBuild()).env
        scm = read_scm(tree.path)
        if scm is None or any("PRETEND_VERSION" in variable for variable in env):
            return tree
        spec = replace(source, name=name)
        text = describe(spec, tree, scm, self.recipe.root, self.work)
        return replace(tree, locked=replace(tree.locked, describe=text))

    # one wheel

    def _wheel(
        self,
        spec: SourceSpec,
        name: str | None,
        tree: SourceTree,
        packages: Sequence[LockedPackage],
    ) -> BuiltWheel:
        """Return the wheel of an opened source: from the lock, the cache, or a new build."""
        write_archival(tree)
        title = name or redact(spec.text)
        options = self.recipe.pip.build.get(name or "", WheelBuild())
        backend = read_backend(tree.path, title)
        requires = [*(() if options.no_isolation else backend.requires), *options.needs]
        seen = packages if options.no_isolation else [p for p in packages if p.manager == "conda"]
        environment = self._environment(seen, name)
        keys: list[str] = []
        job = WheelJob(title, name or "NAME", spec, self.recipe, tree, backend, requires, options)
        for _ in range(_ROUNDS):
            wheels = self._build_packages(job, seen)
            locked = replace(tree.locked, requires=_exact(wheels))
            keys.append(self._key(environment, wheels, options))
            known = self._known(locked, keys[-1], spec.name)
            if known is not None:
                log.info("%s: its wheel is %s, built before", title, known.filename)
                return known
            fetched = fetch_for(self.inputs, wheels, self.work)
            job = replace(job, wheels=fetched, uv=self._uv(seen))
            try:
                return self._built(job, environment, locked, keys)
            except NeedsMore as e:
                requires += e.requirements  # the job has this list
        raise WheelError(
            f"{title}: its build backend asks for other requirements each time: {', '.join(requires)}",
            f"list them: pip: {{build: {{{title}: {{needs: [NAME]}}}}}}",
        )

    def _build_packages(self, job: WheelJob, seen: Sequence[LockedPackage]) -> list[LockedPackage]:
        """Return the build requirements as wheels: those of the lock, while they fulfil them.

        Args:
            job: the build; its source has the packages of an earlier build.
            seen: the packages of the image that the build sees.
        """
        requires, pins = job.requires, job.tree.locked.requires
        isolated = not job.settings.no_isolation
        python = next((p.python_version for p in seen if p.name == "python"), "")
        versions = {"python": python, **dict(pin.split("==") for pin in pins)}

        def record(exact: Sequence[str]) -> Record[list[LockedPackage]]:
            key = cache_key([self.recipe.platform, python, isolated, *exact])
            path = self.work.store.folders.wheels / f"requires-{key}.json"
            return Record(path, list[LockedPackage])

        is_pinned = bool(pins) and not unfulfilled(requires, versions, self.recipe.platform)
        known = record(pins).read() if is_pinned else None
        if known is None:
            asked = pins if is_pinned else requires
            known = resolve_requirements(asked, job.name, seen, self._request, isolated=isolated)
            record(_exact(known)).write(known)
        return known

    def _built(
        self, job: WheelJob, environment: BuildRequest, locked: LockedSource, keys: Sequence[str]
    ) -> BuiltWheel:
        """Build, check and store a wheel."""
        image = Layered().build(environment).artifact
        runner = find_runner(self.work, image=image)
        version = next(p.python_version for p in environment.lock.packages if p.name == "python")
        with built(job, image, runner, self.work) as folder:
            wheel = check_wheel(folder, job.name, job.source.name, self.recipe, version)
            record = self._stored(wheel)
        report = self.work.reporter.note if self.reports else log.info
        report(f"{wheel.package.filename}: built from {_described(locked)}")
        for key in keys:
            self._record(locked, key).write(record)
        return self._from_record(record, replace(locked, build=keys[0]))

    def _environment(self, packages: Sequence[LockedPackage], name: str | None) -> BuildRequest:
        """Return the image for a build: the target's base with OS packages, and locked packages.

        Files, steps and variables of the recipe are not in it, so changing them builds no wheel
        again.
        """
        recipe = self.recipe
        plain = recipe.model_copy(
            update={
                # a name of its own: the unpacked image of the target stays in the cache
                "name": f"{recipe.name}.wheels",
                "files": (),
                "env": {},
                "labels": {},
                "annotations": {},
                "entrypoint": (),
                "workdir": "/",
                "format": "sif" if recipe.base.startswith("sif:") else "oci",
                "steps": (),
            }
        )
        lock = Lock(tuple(packages), (recipe.platform,), base=self._base)
        fetch = partial(fetch_for, self.inputs, work=self.work)
        return BuildRequest(plain, lock, self.work, fetch, wheel_of=name or "")

    def _uv(self, packages: Sequence[LockedPackage]) -> Path:
        """Return uv for the processor of the image."""
        if emulation(self.recipe.architecture) is None:
            return Path(uv_program())
        return fetch_uv(packages, self._request, self.work)

    # the cache

    def _key(
        self, environment: BuildRequest, wheels: Sequence[LockedPackage], options: WheelBuild
    ) -> str:
        """Return the hash of all inputs of a wheel but its source."""
        recipe, lock = environment.recipe, environment.lock
        return cache_key(
            {
                "format": FORMAT,
                "packages": sorted(p.key for p in lock.packages),
                "prefix": recipe.conda.prefix,
                "base": [self._base.digest, lock.base and lock.base.digest, *recipe.base_packages],
                "requirements": sorted(wheel.key for wheel in wheels),
                "settings": options.model_dump(mode="json"),
                "epoch": self.work.settings.epoch,
            }
        )

    def _record(self, locked: LockedSource, key: str) -> Record[dict[str, str]]:
        source = [locked.sha256, locked.commit, locked.tree, locked.subdirectory]
        digest = cache_key([*source, *filter(None, [locked.describe]), key])
        return Record(self.work.store.folders.wheels / f"{digest}.json", dict[str, str])

    def _known(self, locked: LockedSource, key: str, name: str | None) -> BuiltWheel | None:
        """Return the wheel of a build with the same inputs, if it has the name that is asked for.

        That one is built again, so that its check reports both names.
        """
        pinned = replace(locked, build=key)
        record = self._record(locked, key).read()
        if record is not None:
            if name not in (None, record["name"]):
                return None
            if self.work.store.get(f"sha256:{record['sha256']}") is not None:
                return self._from_record(record, pinned)
        candidates = [p for p in self.locked if name in (None, p.name)]
        same = next((p for p in candidates if _is_of_build(p, pinned)), None)
        if same is None:
            return None
        try:
            [fetched] = fetch_for(self.inputs, [same], self.work.quiet())
        except FetchError:
            return None
        return self._from_record(self._stored(fetched), pinned)

    def _from_record(self, record: dict[str, str], locked: LockedSource) -> BuiltWheel:
        return BuiltWheel(
            path=self.work.store.path(f"sha256:{record['sha256']}"), locked=locked, **record
        )

    def _stored(self, wheel: Fetched) -> dict[str, str]:
        """Copy a wheel into the store and return its record."""
        package = wheel.package
        with wheel.path.open("rb") as f:
            sha256 = self.work.store.add_pieces(pieces(f))[0].removeprefix("sha256:")
        values = {"filename": package.filename, "name": package.name, "version": package.version}
        return {**values, "sha256": sha256}

    # what all builds of a target share

    @cached_property
    def _base(self) -> LockedBase:
        return self.base or resolve_base(self.recipe.base, self.recipe, self.work)

    @cached_property
    def _request(self) -> SolveRequest:
        recipe, environment = self.recipe, self.inputs.environment
        newest = Cutoffs.of(self.inputs, self.exclude_newer).pip
        return SolveRequest(
            recipe, environment, self.work.settings, newest=newest, reporter=self.work.reporter
        )

    def _check_architecture(self, source: SourceSpec) -> None:
        """Raise RunnerError if programs of the image cannot run here, not even with qemu."""
        where = f"{source.where}: {source.shown}: its wheel cannot be built"
        check_processor(self.recipe, where, "; its lock and its folder wheels/ work here too")


def _exact(packages: Sequence[LockedPackage]) -> tuple[str, ...]:
    """Return packages as ``NAME==VERSION``."""
    return tuple(sorted(f"{package.name}=={package.version}" for package in packages))


def _is_of_build(package: LockedPackage, pinned: LockedSource) -> bool:
    """Return whether a locked wheel is that of a build. Old locks do not have what it required."""
    source = package.source
    is_same = source is not None and replace(source, requires=pinned.requires) == pinned
    return is_same and bool(package.sha256)


def _described(locked: LockedSource) -> str:
    """Return a source for a message."""
    at = f" at {locked.commit[:12]}" if locked.commit else ""
    return f"{redact(locked.url)}{at}"
