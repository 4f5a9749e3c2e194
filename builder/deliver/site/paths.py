"""Paths of all jobs."""

from __future__ import annotations

import posixpath

from builder.core.errors import UsageError
from builder.core.settings import expand_home
from builder.lock.config.recipe import Recipe
from builder.lock.config.site import Site

from .shell import ShellText, from_user, join

#: The folder of the data if the recipe names none.
_LOCAL = "/tmp/$USER-builder"  # noqa: S108  a folder of the job's user on the node


def start_folder(site: Site) -> ShellText:
    """Return the folder that a job starts in."""
    return ShellText("$SLURM_SUBMIT_DIR" if site.slurm else "$PWD")


def command_folder(recipe: Recipe) -> str | None:
    """Return the folder of the project, relative to it, in which the image's own command starts.

    It is the folder that ``files`` copies to ``workdir``, so that names in the command mean the
    same files. None: ``workdir`` has no copy of a folder of the project, and the command starts
    there.
    """
    workdir = posixpath.normpath(recipe.workdir)
    if workdir == "/":
        return "."
    for item in recipe.files:
        source, target = item.source, item.target
        if target.endswith("/") and (recipe.root / source).is_file():
            target += posixpath.basename(source)
        folder = posixpath.normpath(posixpath.join(source, posixpath.relpath(workdir, target)))
        is_copy = posixpath.relpath(source, folder) == posixpath.relpath(target, workdir)
        if is_copy and not folder.startswith("..") and (recipe.root / folder).is_dir():
            return folder
    return None


def host_path(text: str, base: str) -> str:
    """Return a path on the site.

    Args:
        text: a path of the command line, which may contain variables of the job; empty: no path.
        base: the folder of relative paths.
    """
    if not text:
        return ""
    word = from_user(f"$HOME{text[1:]}" if text.startswith("~/") else text)
    return word if word.startswith(("/", "$")) else join(base, "/", word)


def data_path(text: str, base: str) -> str:
    """Return the path of the data's tar on the site; empty if there is no data.

    Raises:
        UsageError: it is a folder on this machine.
    """
    path = expand_home(text)
    if text and path.is_dir():
        message = f"--data {text}: is a folder, not a tar"
        raise UsageError(message, f"pack it: tar -cf {path.name or 'data'}.tar -C {text} .")
    return host_path(text, base)


def unpacked_folder(site: Site) -> str:
    """Return the folder for the unpacked data, on the node's own storage: one for each job."""
    # Slurm's sites have the job's number in the folder itself.
    name = "data" if site.slurm and site.local else "data-$BUILDER_JOB_ID"
    return ShellText(f"{site.local or _LOCAL}/{name}")


def is_address(checkpoint: str) -> bool:
    """Return whether checkpoints go to an address such as ``s3://bucket`` instead of a folder."""
    return "://" in checkpoint
