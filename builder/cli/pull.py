"""``builder pull``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .context import Context, target_argument, with_context
from .options import choice, flag, option
from .slurmoptions import ACCOUNT_VARIABLES

if TYPE_CHECKING:
    from builder.deliver.publishing.engines import EngineName


@click.command()
@target_argument
@flag("--if-changed")
@option("--tag", default="latest", show_default=True)
@option("--from", "origin", metavar="PLACE")
@option("--output", type=click.Path(path_type=Path))
@option("--account", default="", envvar=ACCOUNT_VARIABLES)
@choice("--load", of=["podman", "podman-hpc"])
@with_context
def pull(context: Context, target: str | None, load: EngineName | None, **values: Any) -> None:
    """Download the published image of TARGET.

    A SIF or squashfs goes to where jobs look for it, an OCI image into dist/, or with --load into
    an engine's storage. `builder run TARGET` and jobs then run it, until the next `builder build
    TARGET`. Of a SIF target without a site, `builder run` runs its own build.

    In place of TARGET an image can be named, without a project: it goes into the cache.

    \b
        builder pull ghcr.io/me/mine:latest
        builder run ghcr.io/me/mine:latest -- python train.py
    """
    from builder.deliver.launch.pulling import PullRequest, pull_named, pull_target
    from builder.deliver.publishing.pull import is_reference
    from builder.lock.config.policy import POLICY_FILE, has_policy

    if target and is_reference(target):
        done, name = pull_named(target, context.work, load, context.root), None
        more = done.place if load else f"run it: builder run {target} -- COMMAND"
        text = f"{done.reference} is here: {done.digest}\n  {more}"
    else:
        recipe = context.project.one_recipe(target)
        request = PullRequest(load=load, **values)
        done, name = pull_target(context.project, recipe, request), recipe.name
        state = "now" if done.changed else "already"
        joined = ", SIF " if recipe.format == "sif" else "@"  # not the digest of the manifest
        text = f"{name} is {state} {done.reference}{joined}{done.digest}\n  {done.place}"
    if context.root is not None and has_policy(context.root):
        text += f"\n  verified: {POLICY_FILE}"
    context.output.result({**asdict(done), "target": name}, text)
