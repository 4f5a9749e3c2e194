"""``builder init``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .context import Context, complete_site, with_context
from .options import FILE, flag, option, repeated, text_option

if TYPE_CHECKING:
    from .start.found import Candidate
    from .start.new import InitOptions, Written

#: The answer of a user whose images run on no site.
_NO_SITE = "none"


@click.command()
@option("--from", "source", type=FILE)
@repeated("--with", "groups", metavar="NAME")
@flag("-y", "--yes")
@text_option("--base", "BASE")
@text_option("--name", "NAME")
@text_option("--site", "NAME", shell_complete=complete_site)
@with_context
def init(context: Context, source: Path | None, yes: bool, **values: Any) -> None:
    """Write a recipe for the project in this folder, from the files that are there.

    In a project that has targets, --site NAME adds one for that machine. It reads the first of
    these that is there: conda-lock.yml, environment.yml, pixi.lock, pixi.toml, pylock.toml,
    uv.lock, pyproject.toml, requirements.txt, conda.yaml, env.yml, setup.py. It overwrites nothing.

    \b
        builder init
        builder init --site perlmutter --from requirements.txt
    """
    from builder.lock.config.recipe import recipe_files

    from .start.new import InitOptions, named_by_site, new_project

    root = context.start.absolute()
    existing = recipe_files(root)
    options = named_by_site(root, existing, InitOptions(**values))
    if existing and options.name in ("", *existing):  # the user names no other target
        _list_existing(context, existing)
        return
    found = _choose(context, root, source)
    if sys.stdin.isatty() and not yes and not context.output.as_json:
        options = _asked(context, root, options)
    written = new_project(root, found, options, context.settings)
    _report(context, root, written)


def _list_existing(context: Context, existing: Mapping[str, Path]) -> None:
    """Print the targets of the folder; nothing is written."""
    lines = [f"target {name} exists: {path}" for name, path in existing.items()]
    context.output.result({"targets": existing, "files": []}, "\n".join(lines))
    context.output.note("nothing was written; for another target: builder init --name NAME")


def _choose(context: Context, root: Path, named: Path | None) -> Candidate:
    """Return the file that names the packages, and report which of several it is.

    Raises:
        UsageError: there is none.
    """
    from .start.found import candidate, candidates, no_packages

    if named is not None:
        return candidate(named)
    found = candidates(root)
    if not found:
        raise no_packages(f"no file in {root} names packages", root)
    if len(found) > 1:
        others = ", ".join(other.path.name for other in found[1:])
        name = found[0].path.name
        context.output.note(f"the packages are those of {name} (--from takes {others} instead)")
    return found[0]


def _asked(context: Context, root: Path, options: InitOptions) -> InitOptions:
    """Ask for the name and the site that no option names."""
    from builder.lock.config.sites import site_files

    from .start.draft import target_name

    name, site = options.name, options.site
    if not name:
        name = click.prompt("name of the image", default=target_name(root.resolve().name), err=True)
    if not site:
        sites = list(site_files(root))
        context.output.note(f"sites: {', '.join(sites)}")
        asked = "site that runs the image (none: a machine like this one)"
        choice = click.Choice([_NO_SITE, *sites])
        site = click.prompt(asked, default=_NO_SITE, type=choice, show_choices=False, err=True)
    return replace(options, name=target_name(name), site="" if site == _NO_SITE else site)


def _report(context: Context, root: Path, written: Written) -> None:
    """Print what was written, and the commands to go on with."""
    from .start.new import next_commands

    for note in written.notes:
        context.output.note(note)
    for warning in written.warnings:
        context.output.warn(warning)
    files = [str(path.relative_to(root)) for path in written.files]
    commands = next_commands(root, context.start, written.draft)
    after = "next, when the warnings above are done:" if written.warnings else "next:"
    lines = [f"wrote {', '.join(files)}", "", after, *(f"  {command}" for command in commands)]
    value = {"target": written.draft.name, "files": files, "next": commands}
    context.output.result(value, "\n".join(lines))
