"""Where the image of a target is on its site."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builder.core.errors import RunnerError, UsageError
from builder.formats.oci.reference import local_name
from builder.lock.config.recipe import Recipe

from .shell import expand, join, with_account


def image_reference(recipe: Recipe, account: str = "") -> str:
    """Return the image of a target for the site's runtime: a file in its folder, or a reference.

    Args:
        recipe: the target.
        account: replaces ``{account}`` in ``site.images``; empty: the variable
            ``SLURM_JOB_ACCOUNT``.

    Returns:
        The path of a SIF or squashfs as :class:`~builder.deliver.site.shell.ShellText`, or a
        reference with the first tag that is not dated.

    Raises:
        UsageError: the recipe names no repository.
    """
    suffix = recipe.site.runtime.image_suffix
    if suffix:
        folder = with_account(recipe.site.images, account)
        separator = "/" if folder and not folder.endswith("/") else ""
        return join(folder, f"{separator}{recipe.name}{suffix}")

    tag = next((tag for tag in recipe.registry.tags if "%" not in tag), "latest")
    return f"{image_repository(recipe)}:{tag}"


def image_repository(recipe: Recipe) -> str:
    """Return ``HOST/REPOSITORY`` or ``REPOSITORY`` of a target, as its site's runtime pulls it.

    Raises:
        UsageError: the recipe names none.
    """
    if not recipe.registry.repository:
        name = recipe.name
        here = f": builder build {name} --load docker makes {local_name(name)} on this machine"
        raise UsageError(
            f"{recipe.source}: registry.repository is not set, so the image of {name} is unknown",
            f"set it, or pass --image REFERENCE{here if recipe.site.runtime.kind == 'docker' else ''}",
        )
    return "/".join(filter(None, (recipe.registry.host, recipe.registry.repository)))


def site_sif(recipe: Recipe, account: str, environ: Mapping[str, str]) -> Path | None:
    """Return the SIF or squashfs that jobs of the site run, if this machine belongs to the site.

    That is so if the site's folder of images exists here, or can be created because its parent
    exists.

    Args:
        recipe: the target.
        account: replaces ``{account}`` in ``site.images``.
        environ: values of the variables in ``site.images``.

    Returns:
        The file's path; None on any other machine.
    """
    if not recipe.site.runtime.image_suffix or not recipe.site.images:
        return None
    try:
        path = Path(expand(image_reference(recipe, account), environ))
    except RunnerError:  # a variable of the site is not set
        return None
    folder = path.parent
    below_root = len(folder.parts) <= 2  # "/images": a variable in the path is empty
    can_be_created = folder.parent.is_dir() and not below_root
    if path.is_absolute() and (folder.is_dir() or can_be_created):
        return path
    return None


def check_sif(reference: str, environ: Mapping[str, str]) -> None:
    """Check that a SIF (or a sandbox folder) exists.

    Raises:
        RunnerError: it does not exist, or a variable in its path is not set.
    """
    path = Path(expand(reference, environ))
    if not path.exists():
        hint = f"download it with builder pull TARGET --output {path}, or pass --image FILE"
        raise RunnerError(f"{path}: no such image", hint)
