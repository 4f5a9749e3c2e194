"""Writes a new project: its recipe, an environment file where there is none, and lines of ``.gitignore``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.config.inside import check_inside
from builder.config.recipe import load_recipe, recipe_files
from builder.errors import UsageError
from builder.lock.environment import read_environment
from builder.lock.formats import foreign_python
from builder.lock.manifests import CHANNEL
from builder.lock.spec import Environment
from builder.model import MAIN
from builder.settings import Settings
from builder.start.draft import Draft, added_files, only_script, python_path, target_name
from builder.start.environment import choose_python, environment_text, minimal_environment
from builder.start.found import LOCKS, Candidate, installs_project, own_code, read_candidate
from builder.start.probe import (
    fits_debian_channel,
    not_in_debian_channel,
    silent_channels,
    silent_indexes,
)
from builder.start.quick import Wishes, named_environment, with_base
from builder.start.requirements import Requirements
from builder.start.text import recipe_text
from builder.store.files import write_atomic
from builder.text import one_line

#: What git must not store: images, reports, and a file that often has passwords. Locks are stored.
_IGNORED = ("dist/", "reports/", ".env")
#: Characters of ``.python-version`` that are read.
_PYTHON_VERSION_CHARS = 100


@dataclass
class Written:
    """What :func:`new_project` did."""

    draft: Draft
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def new_project(
    root: Path, found: Candidate | None, wishes: Wishes, settings: Settings, groups: Sequence[str] = ()
) -> Written:
    """Writes ``recipes/NAME.yaml`` and what it needs. Overwrites nothing.

    Args:
        root: the project folder.
        found: the file that names the packages; None: an environment file of one package is written.
        wishes: name, site, base and files.
        settings: for the requests that find out what answers.
        groups: extras and dependency groups of a ``pyproject.toml`` to add.

    Raises:
        UsageError: the recipe exists, or a file lies outside of the project folder.
        ConfigError: a file is not valid, or the site does not exist.
    """
    name = wishes.name or target_name(root.resolve().name)
    _check_link(found, root)
    if (path := recipe_files(root).get(name)) is not None:
        raise UsageError(f"{path} exists already", "for another target: builder init --name NAME")
    if wishes.add:
        files = added_files(wishes.add, root)
    else:
        files = own_code(root, installed=found is not None and installs_project(found, root))
    draft = Draft(
        name,
        environment="",
        site=wishes.site,
        base=wishes.base,
        files=files,
        script=only_script(files),
        python_path=python_path(dict(files)),
    )
    draft, note = with_base(_with_environment(draft, root, found, groups), root, settings)
    written = Written(draft, notes=[note] if note else [])
    _add_environment(written, root, found, settings, groups)
    recipe = root / "recipes" / f"{name}.yaml"
    write_atomic(recipe, recipe_text(written.draft).encode())
    load_recipe(name, root)
    written.files.insert(0, recipe)
    _add_to_gitignore(written, root)
    return written


def _check_link(found: Candidate | None, root: Path) -> None:
    """Raises ConfigError for a file of the project that is a symlink to one outside of it."""
    if found is not None and found.path.absolute().is_relative_to(root.absolute()):
        check_inside(found.path, (root,), "a symlink")


def _with_environment(draft: Draft, root: Path, found: Candidate | None, groups: Sequence[str]) -> Draft:
    """The draft with the lock or environment file that there is, or the one that will be written."""
    if found is None or found.kind not in ("environment", *LOCKS):
        free = (file for file in ("environment.yml", f"{draft.name}.yml") if not (root / file).exists())
        file = next(free, "")
        if not file:
            raise UsageError(f"{root / draft.name}.yml exists already", "name the target: --name NAME")
        return replace(draft, environment=file)
    path = found.path.resolve()
    check_inside(path, (root,), "--from")
    found = Candidate(root.resolve() / path.relative_to(root.resolve()), found.kind)
    relative = path.relative_to(root.resolve()).as_posix()
    draft = replace(draft, environment=named_environment(found, root.resolve()))
    if found.kind not in LOCKS:
        return draft
    return replace(draft, lock=relative, groups=(MAIN, *groups) if groups else ())


def _add_environment(
    written: Written, root: Path, found: Candidate | None, settings: Settings, groups: Sequence[str]
) -> None:
    """Writes the environment file where there is none, and sets the fallbacks of the draft."""
    path = root / written.draft.environment
    recipe = written.draft.recipe(root)
    if recipe.uses_lock_unchanged:
        written.notes.append(f"{written.draft.lock} is used as it is: builder lock is not needed")
        return
    if recipe.imported_lock is not None:
        written.notes.append(f"the packages are those of {written.draft.lock}, with its versions")
        if foreign_python(recipe.imported_lock) is not None:
            environment = Environment(recipe.imported_lock, "", (CHANNEL,), (), ())
            _allow_fallbacks(written, root, environment, settings)
        return
    if path.exists():
        environment = read_environment(path, recipe.platform, root)
        if not environment.channels:
            environment = replace(environment, channels=(CHANNEL,))
            written.draft = replace(written.draft, channels=(CHANNEL,))
            written.notes.append(f"{path.name} names no channels: the recipe names {CHANNEL}")
        _allow_fallbacks(written, root, environment, settings)
        return
    wanted = Requirements(path) if found is None else read_candidate(found, groups, root)
    channels = tuple(wanted.channels or ["conda-forge"])
    urls = tuple(option.split()[-1] for option in wanted.options if "index-url" in option)
    _allow_fallbacks(written, root, Environment(path, "", channels, (), (), None, urls, ()), settings)
    pinned = root / ".python-version"
    python = choose_python(
        wanted.python,
        pinned.read_text(errors="replace")[:_PYTHON_VERSION_CHARS] if pinned.is_file() else "",
        debian=written.draft.conda_fallback,
    )
    text = minimal_environment(python) if found is None else environment_text(wanted, python, root)
    write_atomic(path, text.encode())
    written.files.append(path)
    written.notes += wanted.notes
    written.warnings += [
        f"{wanted.origin.name}: left out: {one_line(item)}: {why}" for item, why in wanted.left_out
    ]
    if written.draft.conda_fallback:
        _warn_about_debian(written, root, path, recipe.platform)


def _allow_fallbacks(written: Written, root: Path, environment: Environment, settings: Settings) -> None:
    """Probes channels and indexes; those that do not answer now may be replaced."""
    recipe = written.draft.recipe(root)
    if written.draft.site or not fits_debian_channel(recipe):
        return
    if environment.channels and (why := silent_channels(recipe, environment, settings)):
        written.draft = replace(written.draft, conda_fallback=True)
        written.notes.append(f"{why}: the recipe allows the Debian channel instead (python 3.11)")
        if environment.conda:
            _warn_about_debian(written, root, environment.path, recipe.platform)
    if why := silent_indexes(recipe, environment, settings):
        written.draft = replace(written.draft, pip_fallback=True)
        written.notes.append(f"{why}: the recipe allows pip's own configuration instead")


def _warn_about_debian(written: Written, root: Path, path: Path, platform: str) -> None:
    """Reports the conda packages that the Debian channel lacks. Nothing is moved to the pip section."""
    missing = not_in_debian_channel(read_environment(path, platform, root))
    if missing:
        names = ", ".join(spec.text for spec in missing)
        written.warnings.append(
            f"{missing[0].where}: the Debian channel has no {names}: builder lock needs a channel that "
            "answers, or these packages below pip:, and python=3.11"
        )


def _add_to_gitignore(written: Written, root: Path) -> None:
    """Adds what is missing to ``.gitignore``. The file behind a link may hold a secret: it is not read."""
    path = root / ".gitignore"
    if path.is_symlink():
        written.notes.append(f".gitignore is a symlink, so add {', '.join(_IGNORED)} yourself")
        return
    text = path.read_text(errors="surrogateescape") if path.exists() else ""
    known = {line.strip().strip("/") for line in text.splitlines()}
    missing = [line for line in _IGNORED if line.strip("/") not in known]
    if not missing:
        return
    separator = "" if not text or text.endswith("\n") else "\n"
    write_atomic(path, (text + separator + "\n".join(missing) + "\n").encode(errors="surrogateescape"))
    written.files.append(path)
