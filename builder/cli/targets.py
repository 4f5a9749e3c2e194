"""``builder targets``."""

from __future__ import annotations

import click

from builder.core.text import Table

from .context import Context, target_argument, with_context


@click.command()
@target_argument
@with_context
def targets(context: Context, target: str | None) -> None:
    """List the targets, or print the resolved recipe of TARGET as YAML (or JSON)."""
    if target is None:
        _list(context)
    else:
        _show(context, target)


def _list(context: Context) -> None:
    table = Table(("target", "GPU", "locked", "description"))
    rows = []
    for r in context.project.recipes():
        locked = r.lock_path.exists()
        table.rows.append((r.name, r.gpu.vendor, "yes" if locked else "no", r.description))
        keys = r.model_dump(include={"name", "gpu", "base", "description"})
        rows.append({**keys, "groups": r.group, "locked": locked})
    context.output.table(table)
    context.output.result(rows)


def _show(context: Context, target: str) -> None:
    import yaml

    recipe = context.project.one_recipe(target)
    data = recipe.model_dump(mode="json", exclude={"source", "root"})
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    if context.output.as_json:
        context.output.result(data)
    else:
        click.echo(f"# {recipe.source}\n{text}", nl=False)
