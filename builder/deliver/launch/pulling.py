"""Pulls the image of a target to where runs and jobs look for it, or any image by its name."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from builder.build.image.convert import SQUASHFS_SUFFIXES, convert_image
from builder.core.errors import UsageError
from builder.core.workspace import Workspace
from builder.deliver.project import Project
from builder.deliver.publishing.destination import destination_text, open_destination
from builder.deliver.publishing.engines import EngineName, pull_into
from builder.deliver.publishing.pull import AnyImage, Pulled, open_reference, pull, pull_reference
from builder.deliver.pulled import record_pull
from builder.deliver.site.runtimes.table import runtime_of
from builder.lock.config.recipe import Recipe


@dataclass(frozen=True)
class PullRequest:
    """An image to pull."""

    tag: str = "latest"
    """A tag or digest."""
    origin: str | None = None
    """Where it was published; None: the recipe's registry."""
    if_changed: bool = False
    """Skip the download if the local copy already has the registry's digest."""
    output: Path | None = None
    """The file or folder; None: that of the site on one of its machines, else ``dist/``."""
    account: str = ""
    """Replaces ``{account}`` in ``site.images``."""
    load: EngineName | None = None
    """The engine that pulls it into its own storage, not into a file or folder."""


def pull_target(project: Project, recipe: Recipe, request: PullRequest) -> Pulled:
    """Pull the published image of a target: a file, into ``dist/`` or into an engine's storage.

    Raises:
        UsageError: the recipe names no registry, or the target has another format.
        RegistryError, ImageError, RunnerError: see :func:`builder.deliver.publishing.pull.pull` and
            :func:`builder.deliver.publishing.engines.pull_into`.
    """
    work = project.work
    where = destination_text(recipe, request.origin, "--from")
    tag, if_changed, layout = request.tag, request.if_changed, project.layout
    with closing(open_destination(where, work, option="--from")) as published:
        if to := request.load:
            done, made = pull_into(to, recipe, published, tag, work, if_changed=if_changed)
            record_pull(layout, recipe.name, made)
            return done
        squashfs = _squashfs(recipe, request)
        path = layout if squashfs else _output(recipe, request, layout)
        done = pull(recipe, published, tag, path, work, if_changed=if_changed)
    if squashfs:
        convert_image(f"oci:{layout}:{recipe.name}", str(squashfs), work)
        return replace(done, place=str(squashfs))
    return done


def pull_named(
    reference: str, work: Workspace, load: EngineName | None = None, root: Path | None = None
) -> Pulled:
    """Pull an image by its name: into the cache, or into an engine's storage.

    Args:
        reference: the name.
        work: the cache.
        load: the engine; None: the cache.
        root: the project whose policy must accept the image; None: no policy.
    """
    if load is None:
        return pull_reference(reference, work, root)[0]
    with open_reference(reference, work) as (published, tag):
        wanted = AnyImage(reference, root=root)
        return pull_into(load, wanted, published, tag, work)[0]


def _output(recipe: Recipe, request: PullRequest, layout: Path) -> Path:
    """Return the file for a SIF, or the folder of the OCI layout."""
    output, name = request.output, f"{recipe.name}.sif"
    if recipe.format != "sif":
        return output or layout
    if output is None:
        return runtime_of(recipe).site_file(request.account, os.environ) or layout / name
    return output / name if output.is_dir() else output


def _squashfs(recipe: Recipe, request: PullRequest) -> Path | None:
    """Return the file for a plain squashfs of the OCI image; None: none is wanted.

    Raises:
        UsageError: the target is a SIF.
    """
    output = request.output
    if output is None and recipe.site.runtime.family == "plugin":
        return runtime_of(recipe).site_file(request.account, os.environ)
    if output is None or output.suffix not in SQUASHFS_SUFFIXES:
        return None
    if recipe.format == "sif":
        hint = "name a FILE.sif, or build the target with format: oci"
        raise UsageError(f"--output {output}: {recipe.name} is a SIF", hint)
    return output
