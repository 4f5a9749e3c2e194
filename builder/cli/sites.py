"""``builder init-site``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from builder.cli.context import Context, common_options, pass_context

if TYPE_CHECKING:
    from builder.config.recipe import GpuVendor
    from builder.config.site import RuntimeKind


@click.command()
@click.argument("name")
@click.option(
    "--runtime",
    type=click.Choice(["apptainer", "singularity", "podman-hpc", "podman", "docker"]),
    default="apptainer",
    show_default=True,
    help="The site's container runtime.",
)
@click.option(
    "--gpu",
    type=click.Choice(["nvidia", "amd", "none"]),
    default="nvidia",
    show_default=True,
    help="Vendor of the site's GPUs.",
)
@common_options
@pass_context
def init_site(context: Context, name: str, runtime: RuntimeKind, gpu: GpuVendor) -> None:
    """Write a commented recipe for a new site to recipes/NAME.yaml."""
    from builder.site.newsite import new_site

    written = new_site(context.project.root, name, runtime, gpu)
    context.output.result({"target": name, "files": written}, "\n".join(str(path) for path in written))
    context.output.note(
        f"edit the recipe, then check it: builder targets show {name}; builder job {name} -- python train.py"
    )
