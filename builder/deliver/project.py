"""A project and its stages up to the smoke test; the command line and the Python API call it.

    recipe + environment -> lock -> build -> dist/ -> smoke test

Publishing comes after, in :mod:`builder.deliver.publishing`.

Functions import what only they need: a build with nothing changed imports no solver, no builder of
wheels and no smoke test (docs/performance.md).
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.build.bases.resolve import check_base
from builder.build.engines.base import BuildRequest, BuildResult
from builder.build.engines.dispatch import find_engine, run_engine
from builder.build.fetch.packages import fetch_for
from builder.build.image.files import lock_in_image
from builder.build.image.recipe_files import recipe_entries
from builder.build.wheels.locked import build_missing_wheels
from builder.build.wheels.own import changed_wheels, own_packages, update_wheels
from builder.core.errors import BuilderError, ConfigError, LockError, UsageError
from builder.core.model import Fetched, Image, Lock, LockedPackage, SifImage
from builder.core.progress import QUIET, Reporter, working
from builder.core.settings import Settings, nearest_project, project_root
from builder.core.stages import BuildOptions, LockOptions
from builder.core.workspace import Workspace
from builder.formats.oci.digest import sha256
from builder.formats.oci.layout import (
    list_tags,
    prune_layout,
    read_layout,
    write_if_changed,
    write_layout,
)
from builder.formats.trees.inside import own_path
from builder.lock.basepython import check_base_python
from builder.lock.config.recipe import Recipe, load_recipe, recipe_files
from builder.lock.file import earlier_lock, read_lock
from builder.lock.groups import chosen_groups
from builder.lock.inputs import Inputs, stale_reasons

from .pulled import forget_pull, recorded_pull

if TYPE_CHECKING:
    from .smoke.options import SlurmOptions, SmokeOptions
    from .smoke.run import SmokeReport
    from .smoke.suggested import SmokePlan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredImage:
    """An image in ``dist/``."""

    image: Image
    pulled_from: str
    """Where ``builder pull`` took it from; empty: it was built here."""


@dataclass(frozen=True)
class Project:
    """A folder with ``recipes/`` and ``environments/``, and settings and cache to work on it.

    Attributes:
        root: the folder with ``recipes/``.
        work: settings, cache, and the reporter of progress.
        changed_code: what happens to a lock when the project's own code has changed: ``update``
            gives it the new wheels, ``refuse`` makes it stale, ``ignore`` uses it as it is.
        build_work: the workspace of builds, which may reuse a published image; None: ``work``.
    """

    root: Path
    work: Workspace
    changed_code: Literal["update", "refuse", "ignore"] = "update"
    build_work: Workspace | None = None

    @classmethod
    def find(
        cls, start: Path = Path(), settings: Settings | None = None, reporter: Reporter = QUIET
    ) -> Project:
        """Return the project of a folder: of it, or of the nearest parent with ``recipes/``.

        Args:
            start: the folder; by default the current one.
            settings: cache, threads and network; None: those of the environment.
            reporter: receives progress, notes and warnings; by default nobody does.

        Raises:
            ConfigError: the folder does not exist, or neither it nor a parent of this user is a project.
            UsageError: a variable of the environment has an invalid value.
        """
        if root := project_root(start):
            return cls(root, Workspace.of(settings or Settings.from_environment(), reporter))
        if foreign := nearest_project(start):
            raise ConfigError(
                f"{foreign} is another user's project, and a parent of {start.absolute()}",
                f"if you trust its recipes: builder --project {shlex.quote(str(foreign))} ...; "
                "builder init writes one for this folder",
            )
        raise ConfigError(
            f"no recipes/ folder in {start.absolute()} or a parent folder",
            "builder init writes a recipe for this folder; for another project pass --project DIR",
        )

    @property
    def layout(self) -> Path:
        """The folder of built images: an OCI layout with one tag per target."""
        return own_path(self.root, "dist", "or build with --to oci:DIR")

    def prune_layout(self) -> int:
        """Remove blobs of :attr:`layout` that no tag needs, and return the bytes freed."""
        return prune_layout(self.layout) if (self.layout / "index.json").exists() else 0

    def recipe(self, name: str) -> Recipe:
        """Return the resolved recipe of a target.

        Raises:
            ConfigError: an unknown target, or its recipe is not valid.
        """
        return load_recipe(name, self.root)

    @property
    def targets(self) -> list[str]:
        """The names of the targets."""
        return list(recipe_files(self.root))

    def one_recipe(self, name: str | None) -> Recipe:
        """Return the recipe of a target; None takes the only target of the project.

        Raises:
            ConfigError: an unknown target, or its recipe is not valid.
            UsageError: None, and the project has no target or several.
        """
        if name is not None:
            return self.recipe(name)
        targets = self.targets
        if len(targets) == 1:
            return self.recipe(targets[0])
        if targets:
            hint = f"targets: {', '.join(targets)}"
            raise UsageError("no target given, and the project has several", hint)
        raise UsageError(f"no target in {self.root / 'recipes'}", "write one: builder init")

    def recipes(self, names: Sequence[str] = (), groups: Sequence[str] = ()) -> list[Recipe]:
        """Return the recipes of these targets and groups, each once; by default all.

        Raises:
            ConfigError: an unknown target, or a group that no recipe declares.
        """
        if not groups:
            return list(map(self.recipe, dict.fromkeys(names or self.targets)))
        every, chosen = self.recipes(), list(map(self.recipe, names))
        known = {group for recipe in every for group in recipe.group}
        for group in groups:
            if group not in known:
                hint = f"groups: {', '.join(sorted(known)) or 'none'}"
                hint += f"; a recipe joins with 'group: [{group}]'"
                raise ConfigError(f"no recipe declares the group {group!r}", hint)
            chosen += [recipe for recipe in every if group in recipe.group]
        return list({recipe.name: recipe for recipe in chosen}.values())

    def lock(
        self,
        recipe: Recipe,
        options: LockOptions = LockOptions(),
        path: Path | None = None,
    ) -> Lock:
        """Solve the environment, or import the lock of another tool, and write the lock file.

        Args:
            recipe: the target.
            options: what the lock takes from an earlier one, and the solver.
            path: the file to write; None: the target's lock file.

        Raises:
            LockError: the recipe names a lock of conda-lock, or there is no lock to update.
            SolveError: no set of packages satisfies the environment.
            FetchError, RegistryError: base, channel or index do not answer.
        """
        return self._lock(Inputs.read(recipe), path or recipe.lock_path, options)

    def _lock(self, inputs: Inputs, path: Path, options: LockOptions = LockOptions()) -> Lock:
        from .locking import lock

        self.check(inputs.recipe)
        return lock(inputs, self.work, options, path)

    def check(self, recipe: Recipe) -> list[Path]:
        """Check what a recipe names, before anything is downloaded or made.

        Returns:
            The files that are left out of ``files:`` because they look like secrets.

        Raises:
            ConfigError: ``base``, ``base_packages`` or ``files`` is wrong.
        """
        check_base(recipe)
        check_base_python(recipe)
        secrets: list[Path] = []
        recipe_entries(recipe, secrets)
        return secrets

    def stale(self, recipe: Recipe) -> list[str]:
        """Return the reasons why a target's lock file is stale; empty when it is up to date."""
        path = recipe.lock_path
        if not path.exists():
            return [f"{path} does not exist"]
        inputs, lock = Inputs.read(recipe), read_lock(path)
        return stale_reasons(inputs, lock) or self._code_reasons(inputs, lock)

    def _code_reasons(self, inputs: Inputs, lock: Lock) -> list[str]:
        """Return the packages of the project whose wheels are others by now."""
        try:
            changed = [old for old, _ in changed_wheels(inputs, lock, self.work)]
        except BuilderError as e:
            return [f"your code has changed, and its wheel cannot be compared: {e.message}"]
        folders = {p.name: inputs.recipe.root / p.source.url for p in changed if p.source}
        return [f"{name}: the files of {folder} changed" for name, folder in folders.items()]

    def _fresh_lock(self, inputs: Inputs) -> Lock:
        """Return the target's lock; lock first when there is no lock file.

        Raises:
            LockError: it is stale; the message holds the reasons.
            WheelError, RunnerError, FetchError: a wheel cannot be built.
        """
        recipe = inputs.recipe
        path = recipe.lock_path
        if not path.exists():
            if recipe.uses_lock_unchanged:
                hint = "correct the path, or remove 'lock:' to lock here"
                raise LockError(f"{recipe.source}: lock: {path} does not exist", hint)
            self.work.reporter.note(f"no lock for {recipe.name} yet, locking now")
            return self._lock(inputs, path)
        lock = read_lock(path)
        if recipe.uses_lock_unchanged:
            from builder.lock.indexes import warn_of_kind  # seldom needed

            warn_of_kind(recipe, lock.packages, self.work.reporter)
        reasons, command = stale_reasons(inputs, lock), "lock"
        if not reasons and self.changed_code == "refuse":
            reasons, command = self._code_reasons(inputs, lock), "build"
        if reasons:
            hint = f"builder {command} {recipe.name}"
            raise LockError(f"{path} is stale: {'; '.join(reasons)}", hint)
        if self.changed_code == "update":
            lock = update_wheels(inputs, lock, path, self.work)
        log.info("%s: the lock %s is up to date", recipe.name, path)
        return lock

    def lock_of_own_code(self, recipe: Recipe) -> Lock | None:
        """Return the lock as it is, if it has packages of the project."""
        lock = earlier_lock(recipe.lock_path)
        return lock if lock is not None and own_packages(recipe, lock) else None

    def build(self, recipe: Recipe, options: BuildOptions = BuildOptions()) -> BuildResult:
        """Build a target from its lock. :meth:`place` puts the result into ``dist/``."""
        request = self.request(Inputs.read(recipe), options)
        result = run_engine(find_engine(options.engine or recipe.engine), request)
        text = lock_in_image(request.lock.text)
        return replace(result, image_lock=sha256(text), lock_text=text, requested=request.requested)

    def request(self, inputs: Inputs, options: BuildOptions = BuildOptions()) -> BuildRequest:
        """Return the request for an engine, from the target's lock or another lock file.

        Warns of files that are left out because they look like secrets.
        """
        recipe = inputs.recipe
        secrets = self.check(recipe)
        lock, work = self.packages_of(inputs, options.lock_file), self.build_work or self.work
        if secrets:
            from builder.build.image.ignore import secret_note

            self.work.reporter.warn(secret_note(recipe, secrets))

        def fetch(packages: Sequence[LockedPackage]) -> list[Fetched]:
            build_missing_wheels(inputs, lock, self.work, packages)
            return fetch_for(inputs, packages, work)

        return BuildRequest(recipe, lock, work, fetch, inputs.environment.requested, options)

    def packages_of(self, inputs: Inputs, lock_file: Path | None = None) -> Lock:
        """Return the lock with the packages of the recipe's groups.

        Args:
            inputs: of the target.
            lock_file: a lock file to use instead of the target's own, also one of another tool:
                what builder makes from it is then in ``dist/``.

        Raises:
            LockError: the lock is stale (the message holds the reasons), or has no such group.
            WheelError, RunnerError, FetchError: a wheel cannot be built.
        """
        lock = self._given_lock(inputs, lock_file) if lock_file else self._fresh_lock(inputs)
        return chosen_groups(inputs.recipe, lock)

    def _given_lock(self, inputs: Inputs, lock_file: Path) -> Lock:
        recipe = inputs.recipe.model_copy(update={"lock": str(lock_file.absolute())})
        if recipe.imported_lock is None:
            return read_lock(lock_file)
        path = self.layout / f"{recipe.name}.lock.yml"
        imported = Inputs.read(recipe)  # with a lock, the environment has other groups
        lock = earlier_lock(path)
        if lock is None or stale_reasons(imported, lock):
            lock = self._lock(imported, path)
        return lock

    def place(
        self, result: BuildResult, layout: Path | None = None, tag: str | None = None
    ) -> Path:
        """Put a build into ``dist/``, and return the folder of the OCI layout or the SIF's path.

        An OCI image goes into the layout under the target's name, a SIF next to it as
        ``TARGET.sif``, and the Dockerfile, definition file or environment file of another engine.
        """
        folder = layout or self.layout
        name = tag or result.recipe.name
        forget_pull(folder, name)
        if result.definition is not None:
            suffix, text = result.definition
            write_if_changed(folder / f"{name}.{suffix}", text.encode())
        is_new = True
        if isinstance(result.artifact, SifImage):
            folder = folder / f"{name}.sif"
            with working(self.work.reporter, f"writing {folder}"):
                self.work.store.place(result.artifact.path, folder, result.artifact.digest)
        else:
            with working(self.work.reporter, f"writing {name} into {folder}"):
                is_new = write_layout(result.artifact, folder, name, self.work.store)
        if is_new:
            from .history import record_image  # a build with nothing changed needs none

            record_image(self.root, result)
        return folder

    def stored(self, recipe: Recipe) -> StoredImage | None:
        """Return the target's image in ``dist/``, pulled or built last; None if there is none.

        Raises:
            ImageError: ``dist/`` or the record of a pull is damaged.
        """
        has_layout = (self.layout / "index.json").exists()
        digest = list_tags(self.layout).get(recipe.name) if has_layout else None
        if digest is None:
            return None
        pull = recorded_pull(self.layout, recipe.name)
        pulled_from = pull.reference if pull and pull.image == digest else ""
        return StoredImage(read_layout(self.layout, digest, recipe.architecture), pulled_from)

    @property
    def reports(self) -> Path:
        """The folder of smoke reports: a folder of JSON files for each target."""
        return own_path(self.root, "reports")

    def smoke_plan(self, result: BuildResult) -> SmokePlan:
        """Return the plan of a build's smoke test: the recipe's ``smoke``, or from the lock."""
        from .smoke.suggested import plan_smoke

        recipe = result.recipe
        packages = result.lock.for_platform(recipe.platform)
        return plan_smoke(recipe.smoke, packages, result.requested)

    def smoke(
        self,
        result: BuildResult,
        options: SmokeOptions | None = None,
        job: SlurmOptions | None = None,
    ) -> SmokeReport:
        """Run the smoke test inside the image (or SIF), and store its report.

        Args:
            result: the build.
            options: how the benchmark runs; ``plan`` is set here.
            job: the Slurm job that runs it, see :func:`builder.deliver.smoke.slurm.complete_job`;
            None:
                this host.
        """
        from .smoke.options import DEFAULTS
        from .smoke.run import smoke
        from .smoke.slurm import smoke_on_slurm

        options = replace(options or DEFAULTS, plan=self.smoke_plan(result))
        if job is not None:
            return smoke_on_slurm(
                result,
                (self.reports / result.recipe.name).absolute(),
                slurm=job,
                options=options,
                reporter=self.work.reporter,
            )
        return smoke(
            result.artifact,
            result.recipe,
            self.work,
            options=options,
            lock=result.lock,
            folder=self.reports,
        )
