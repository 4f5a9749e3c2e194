"""Writes a new project: its recipe, and lines of ``.gitignore``."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builder.build.wheels.backend import project_name
from builder.core.errors import UsageError
from builder.core.model import MAIN
from builder.core.settings import Settings
from builder.core.store.files import write_atomic
from builder.deliver.site.lockchecks import INFINIBAND_PACKAGES, is_plain_base
from builder.deliver.site.shell import command_line
from builder.formats.trees.inside import check_inside, is_inside
from builder.lock.channels import probe_channels, terms_note
from builder.lock.config.recipe import load_recipe, recipe_files
from builder.lock.config.sites import load_site
from builder.lock.file import read_lock
from builder.lock.formats import foreign_python
from builder.lock.indexes import probe_indexes
from builder.lock.inputs import Inputs
from builder.lock.manifests.reader import CHANNEL
from builder.lock.request import SolveRequest
from builder.lock.spec import Environment

from ..schemas import schema_text
from .base import DEBIAN_BASE, can_make_debian, this_platform, usual_base
from .draft import Draft, target_name
from .found import Candidate, asks_for, compilers, installs_project, own_code
from .text import recipe_text

log = logging.getLogger(__name__)

#: Not for git: images, reports, and a file that often has passwords. Locks are stored.
_IGNORED = ("dist/", "reports/", ".env")


@dataclass(frozen=True)
class InitOptions:
    """The options of a new target. builder finds the values of empty ones."""

    site: str = ""
    base: str = ""
    name: str = ""
    groups: tuple[str, ...] = ()
    """Extras and dependency groups of a ``pyproject.toml`` or a lock to add."""


@dataclass
class Written:
    """The result of :func:`new_project`."""

    draft: Draft
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def named_by_site(root: Path, existing: Collection[str], options: InitOptions) -> InitOptions:
    """Return the options with the site's name for a second target that nobody names."""
    if not existing or options.name or not options.site or options.site in existing:
        return options
    if any(load_recipe(name, root).site.name == options.site for name in existing):
        return options
    return replace(options, name=options.site)


def new_project(root: Path, found: Candidate, options: InitOptions, settings: Settings) -> Written:
    """Write ``recipes/NAME.yaml`` and ``.gitignore`` of a new target. Overwrites nothing.

    The first line of the recipe leads editors to ``recipes/.schema.json``, which is written again:
    its keys are those of this version.

    Args:
        root: the project folder.
        found: the file that names the packages.
        options: name, site, base and groups.
        settings: for requests to channels, indexes and registries.

    Raises:
        UsageError: the recipe exists, a file lies outside of the project folder, or it names no
            packages.
        ConfigError: a file is not valid, or the site does not exist.
    """
    name, groups = options.name or target_name(root.resolve().name), options.groups
    if (path := recipe_files(root).get(name)) is not None:
        raise UsageError(f"{path} exists already", "for another target: builder init --name NAME")
    if groups and not (found.lock or found.path.name in ("pyproject.toml", "setup.py")):
        problem = "--with takes groups of a pyproject.toml or a lock"
        raise UsageError(problem, "add: --from pyproject.toml")
    check_inside(found.path.absolute(), (root,), "--from")
    log.info("target %s: the packages are those of %s", name, found.path)
    chosen = (MAIN, *groups) if groups else ()
    asked = asks_for(found, root, chosen)
    installed = installs_project(found, asked)
    keys: dict[str, Any] = {"site": options.site, "base": options.base, "groups": chosen}
    keys |= {"files": dict(own_code(root, installed=installed)), **_named_files(found, root)}
    if asked:
        keys |= {"env": asked.variables, "virtual_packages": asked.virtual_packages}
    written = Written(Draft(name, keys))
    _choose_base(written, root, settings)
    _adapt(written, root, settings)
    if installed:
        _add_compilers(keys, root)
    recipe = root / "recipes" / f"{name}.yaml"
    write_atomic(recipe, recipe_text(written.draft).encode())
    load_recipe(name, root)
    schema = recipe.with_name(".schema.json")
    write_atomic(schema, schema_text("recipe").encode())
    written.files += [recipe, schema]
    _add_to_gitignore(written, root)
    return written


def _add_compilers(keys: dict[str, Any], root: Path) -> None:
    """Add the OS packages that the project's own code needs to be built."""
    if (own := project_name(root)) and (needed := compilers(root)):
        needed += ["python3-dev"] * (keys.get("python") == "base")
        keys["pip"] = keys.get("pip", {}) | {"build": {own: {"base_packages": needed}}}


def _named_files(found: Candidate, root: Path) -> dict[str, str]:
    """Return the recipe's ``environment`` and ``lock``."""
    relative = found.path.resolve().relative_to(root.resolve()).as_posix()
    if found.lock is None:
        return {"environment": relative}
    made_from = _locked_environment(found.path, root) if found.lock == "conda-lock" else ""
    return {"environment": made_from, "lock": relative}


def _locked_environment(lock: Path, root: Path) -> str:
    """Return the environment file that a lock was made from; empty if it does not exist."""
    for source in read_lock(lock).sources:
        path = lock.parent / source
        if path.is_file() and is_inside(path, root):
            return path.resolve().relative_to(root.resolve()).as_posix()
    return ""


def _choose_base(written: Written, root: Path, settings: Settings) -> None:
    """Set the base and the platform of the draft.

    A base that the user names comes first, then the site's, then the usual one of this machine.

    Raises:
        ConfigError: the site does not exist.
    """
    keys = written.draft.keys
    if keys["site"] and (load_site(keys["site"], root)[0].get("base") or keys["base"]):
        return
    if not keys["site"]:
        keys["platform"] = this_platform()
    if keys["base"]:
        return
    keys["base"], why = usual_base(settings)
    log.info("no site and no --base: the base is %s", keys["base"])
    if why:
        written.notes.append(f"{why}: the base is {keys['base']}")


def _adapt(written: Written, root: Path, settings: Settings) -> None:
    """Set the keys of the draft that its packages need: channels, and a fallback of indexes."""
    keys, recipe = written.draft.keys, written.draft.recipe(root)
    if recipe.uses_lock_unchanged:
        written.notes.append(f"{keys['lock']} is used as it is: builder lock is not needed")
        return
    environment = Inputs.read(recipe).environment
    if recipe.site.fabric.infiniband and _is_pip_only(environment) and is_plain_base(recipe):
        keys["base_packages"] = INFINIBAND_PACKAGES
        written.notes.append("NCCL needs libibverbs for InfiniBand: the recipe adds it to the base")
    if recipe.imported_lock is not None:
        written.notes.append(f"the packages are those of {keys['lock']}, with its versions")
        if foreign_python(recipe.imported_lock) is None:
            return
        environment = replace(environment, channels=(CHANNEL,))
    if not environment.channels:
        environment = replace(environment, channels=(CHANNEL,))
        keys["conda"] = {"channels": [CHANNEL]}
        name = environment.path.name
        written.notes.append(f"{name} names no channels: the recipe names {CHANNEL}")
    if note := terms_note(environment.channels):
        written.notes.append(note)
    if not keys["site"]:
        _probe(written, SolveRequest(recipe, environment, settings))


def _probe(written: Written, request: SolveRequest) -> None:
    """Adapt the draft to channels and indexes that do not answer."""
    environment = request.environment
    answering, unreachable = probe_channels(request)
    if unreachable and not answering:
        _without_channels(written, environment, "; ".join(unreachable))
    urls = [url for url in (environment.index_url, *environment.extra_index_urls) if url]
    if found := probe_indexes(request, urls):
        written.draft.keys["pip"] = {"fallback": "pip"}
        note = "the recipe allows pip's own configuration instead"
        written.notes.append(f"{'; '.join(found.values())}: {note}")


def _is_pip_only(environment: Environment) -> bool:
    """Return whether all packages but Python itself are pip's."""
    return all(spec.name in ("python", "pip") for spec in environment.conda)


def _without_channels(written: Written, environment: Environment, why: str) -> None:
    """Take Python from a base of Debian packages, where all other packages are pip's."""
    keys = written.draft.keys
    is_free = keys["base"] == DEBIAN_BASE or not keys["base"].startswith("debian:")
    if _is_pip_only(environment) and is_free and can_make_debian():
        keys |= {"base": DEBIAN_BASE, "conda": {}, "python": "base", "base_packages": ("python3",)}
        written.notes.append(f"{why}: Python is that of the base {DEBIAN_BASE}")
    else:
        copy = "export BUILDER_MIRRORS='FROM=TO' (docs/offline.md)"
        written.warnings.append(f"{why}: builder lock needs it, or a copy: {copy}")


def _add_to_gitignore(written: Written, root: Path) -> None:
    """Add missing lines to ``.gitignore``.

    The file behind a link may hold a secret: it is not read.
    """
    path = root / ".gitignore"
    if path.is_symlink():
        written.notes.append(f".gitignore is a symlink, so add {', '.join(_IGNORED)} yourself")
        return
    text = path.read_text(errors="surrogateescape") if path.is_file() else ""
    known = {line.strip().strip("/") for line in text.splitlines()}
    missing = [line for line in _IGNORED if line.strip("/") not in known]
    if not missing:
        return
    separator = "" if not text or text.endswith("\n") else "\n"
    text += separator + "".join(f"{line}\n" for line in missing)
    write_atomic(path, text.encode(errors="surrogateescape"))
    written.files.append(path)


def next_commands(root: Path, start: Path, draft: Draft) -> list[str]:
    """Return the command lines that users type next; with a scheduler they submit a job.

    A site whose jobs run a file gets it by a pull.

    Args:
        root: the project folder.
        start: the same, as the user named it.
        draft: of the target.
    """
    site = load_recipe(draft.name, root).site
    elsewhere = ["--project", str(start)] if start.absolute() != Path.cwd() else []
    name = [draft.name] if len(recipe_files(root)) > 1 else []
    commands = [["build", *name], ["run", *name], ["publish", *name, "--to", "HOST/REPOSITORY"]]
    if site.slurm is not None:
        account = ["--account", "ACCOUNT"] if site.slurm.account == "required" else []
        words = ["python", draft.script or "train.py"]
        of_folder = ["--account", "ACCOUNT"] if "{account}" in site.images else []
        pull = ["pull", *name, *of_folder, "--from", "HOST/REPOSITORY"]
        commands = [
            *(commands[0], commands[2]),
            *([pull] if site.runtime.family in ("sif", "plugin") else []),
            ["job", *name, *account, "--submit", "--", *words],
        ]
    return [command_line(["builder", *elsewhere, *command]) for command in commands]
