"""``builder init-site``."""

from __future__ import annotations

import click

from builder.cli.context import Context, common_options, pass_context


@click.command()
@click.argument("name")
@click.option(
    "--runtime",
    type=click.Choice(["apptainer", "singularity", "podman-hpc", "podman", "docker"]),
    default="apptainer",
    show_default=True,
    help="What runs images there.",
)
@click.option(
    "--gpu",
    type=click.Choice(["nvidia", "amd", "none"]),
    default="nvidia",
    show_default=True,
    help="Whose GPUs.",
)
@common_options
@pass_context
def init_site(context: Context, name: str, runtime: str, gpu: str) -> None:
    """Write a commented recipe for a new site into recipes/NAME.yaml, to be filled in."""
    from builder.site.newsite import new_site

    written = new_site(context.project.root, name, runtime, gpu)  # type: ignore[arg-type]  # click has checked them
    context.output.result({"target": name, "files": written}, "\n".join(str(p) for p in written))
    context.output.note(
        f"fill it in, then see what it makes: builder targets show {name}; builder job {name} -- python train.py"
    )
