"""A project without recipes: the options of a command instead of a file (``--env FILE``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from builder.config.inside import check_inside, is_inside
from builder.config.recipe import Recipe
from builder.config.sites import load_site
from builder.lock.file import read_lock
from builder.settings import Settings
from builder.start.base import this_platform, usual_base
from builder.start.draft import Draft, added_files, only_script, python_path, target_name
from builder.start.found import LOCKS, Candidate, candidate
from builder.start.probe import fits_debian_channel

#: Names of environment files that are not a name for the target: it has that of the folder.
_GENERAL_NAMES = ("environment", "env", "conda-lock", "pixi", "pylock", "uv", "pyproject", "requirements")


@dataclass(frozen=True)
class Wishes:
    """The options that describe a target. builder finds the values of empty ones."""

    env: Path | None = None
    """The file that names the packages: an environment file, or a lock."""
    site: str = ""
    base: str = ""
    add: tuple[str, ...] = ()
    """``SOURCE[:TARGET]`` of each file or folder for the image."""
    name: str = ""


def quick_recipe(wishes: Wishes, start: Path, settings: Settings) -> tuple[Path, Recipe, str]:
    """The project folder and the recipe of a command with ``--env``, and a note about the base (or "").

    The project folder is ``start`` if the environment file is below it, else the file's folder.

    Raises:
        UsageError: a file does not exist, or is of a kind that builder does not read.
        ConfigError: the site does not exist, or a value is wrong.
    """
    root, draft = quick_draft(wishes, start)
    draft, note = with_base(draft, root, settings)
    recipe = draft.recipe(root)
    if fits_debian_channel(recipe) and not draft.site:
        # No recipe file exists in which a user could allow the fallbacks; a warning names the one in use.
        recipe = replace(draft, conda_fallback=True, pip_fallback=True).recipe(root)
    return root, recipe, note


def quick_draft(wishes: Wishes, start: Path) -> tuple[Path, Draft]:
    """The project folder, and the draft without its base.

    Raises:
        UsageError: see :func:`quick_recipe`.
        LockError: the lock file is damaged.
    """
    env = Path(wishes.env or "environment.yml").absolute()
    found = candidate(env, "--env")
    start = start.absolute()
    root = start if env.is_relative_to(start) else env.parent
    check_inside(env, (root,), "--env")
    stem = env.name.partition(".")[0]
    name = wishes.name or target_name(root.resolve().name if stem in _GENERAL_NAMES else stem)
    files = added_files(wishes.add, root)
    relative = str(env.relative_to(root))
    draft = Draft(
        name,
        environment=named_environment(found, root),
        lock=relative if found.kind in LOCKS else "",
        site=wishes.site,
        base=wishes.base,
        files=files,
        script=only_script(files),
        python_path=python_path(dict(files)),
    )
    return root, draft


def named_environment(found: Candidate, root: Path) -> str:
    """The environment file of a recipe whose packages a file names, relative to the project folder.

    Empty if that file is a lock, and the environment file that it was made from is unknown.

    Raises:
        LockError: the file is not a lock.
    """
    if found.kind == "conda-lock":
        return _locked_environment(found.path, root)
    return "" if found.kind in LOCKS else found.path.relative_to(root).as_posix()


def _locked_environment(lock: Path, root: Path) -> str:
    """The environment file that a lock of conda-lock was made from; empty if it does not exist."""
    for source in read_lock(lock).sources:
        path = lock.parent / source
        if path.is_file() and is_inside(path, root):
            return path.resolve().relative_to(root.resolve()).as_posix()
    return ""


def with_base(draft: Draft, root: Path, settings: Settings) -> tuple[Draft, str]:
    """The draft with a base and a platform, and why it is this base (or "").

    A base that the user names comes first, then the site's, the one of an existing lock, and the one that is
    usual for this machine.

    Raises:
        ConfigError: the site does not exist.
        LockError: the existing lock is damaged.
    """
    if draft.site:
        site, _ = load_site(draft.site, root)
        if draft.base or site.get("base"):
            return draft, ""
    else:
        draft = replace(draft, platform=this_platform())
    if draft.base:
        return draft, ""
    lock = replace(draft, base="-").recipe(root).lock_path
    known = read_lock(lock).base if lock.is_file() else None
    if known is not None:
        return replace(draft, base=known.reference), ""
    base, why = usual_base(settings)
    return replace(draft, base=base), f"{why}: the base is {base}" if why else ""
