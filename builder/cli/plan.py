"""``builder plan``."""

from __future__ import annotations

from pathlib import Path

import click

from builder.cli.context import Context, common_options, pass_context, target_argument
from builder.text import human_bytes


@click.command()
@target_argument
@click.option(
    "--lock", "lock_file", type=click.Path(dir_okay=False, path_type=Path), help="Plan this lock file."
)
@common_options
@pass_context
def plan(context: Context, target: str, lock_file: Path | None) -> None:
    """Show which layers a target's lock becomes, without fetching or building."""
    from rich.table import Table

    from builder.engines.layered import MAX_LAYERS, OVERHEAD
    from builder.engines.prepare import ordered_packages
    from builder.fetch.sizes import head_sizes
    from builder.layers.plan import likely_parts, plan_lock
    from builder.lock import find_links, read_lock

    project = context.project
    recipe = project.recipe(target)
    lock = read_lock(lock_file) if lock_file else project.ensure_lock(recipe)[0]
    packages = ordered_packages(recipe, lock)
    sizes = head_sizes(packages, context.settings, project.store, find_links=find_links(recipe))
    plans = plan_lock(
        packages, sizes, recipe.layers, budget=MAX_LAYERS - OVERHEAD - 1, parts=likely_parts(sizes)
    )
    table = Table("layer", "packages", "archives", box=None)
    rows = []
    for p in plans:
        known = [n for x in p.packages if (n := sizes.get(x.key)) is not None]
        total, unknown = sum(known) // p.parts, len(p.packages) - len(known)
        size = " + ".join([human_bytes(total)] * bool(known) + [f"{unknown} unknown"] * bool(unknown))
        table.add_row(p.title, str(len(p.packages)), size)
        rows.append(
            {
                "title": p.title,
                "packages": [x.name for x in p.packages],
                "archive_bytes": total,
                "unknown": unknown,
                "estimated": p.parts > 1,
            }
        )
    context.output.table(table)
    unknown = sum(sizes.get(p.key) is None for p in packages)
    if unknown:
        context.output.warn(
            f"{unknown} archives are not here and their servers do not say how large they are: they are counted as small; "
            "in the build large ones have layers of their own"
        )
    if any(p.parts > 1 for p in plans):
        context.output.note(
            "packages in parts (1/2) are estimated: only the build knows what they hold unpacked"
        )
    context.output.result(
        {"target": recipe.name, "packages": len(packages), "layers": rows, "unknown_sizes": unknown},
        f"{len(packages)} packages in {len(rows)} layers",
    )
