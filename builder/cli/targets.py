"""``builder targets``."""

from __future__ import annotations

import click

from builder.cli.context import Context, common_options, pass_context, target_argument


@click.group(invoke_without_command=True)
@common_options
@click.pass_context
def targets(ctx: click.Context) -> None:
    """List the targets, or print the resolved recipe of one (targets show NAME)."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(targets_list)


@targets.command("list")
@common_options
@pass_context
def targets_list(context: Context) -> None:
    """List the targets of the project; those of systems that are switched off come last."""
    from rich.markup import escape
    from rich.table import Table

    from builder.site.status import off_note

    table = Table("target", "GPU", "locked", "description", box=None)
    rows = []
    for r in sorted(context.project.recipes(), key=lambda recipe: bool(off_note(recipe.site))):
        locked = r.lock_path.exists()
        text = escape(off_note(r.site) or r.description)
        table.add_row(r.name, r.gpu.vendor, "yes" if locked else "no", text)
        rows.append(
            {
                "name": r.name,
                "groups": r.group,
                "gpu": r.gpu.model_dump(),
                "base": r.base,
                "locked": locked,
                "status": r.site.status,
                "description": r.description,
            }
        )
    context.output.table(table)
    context.output.result(rows)


@targets.command("show")
@target_argument
@common_options
@pass_context
def targets_show(context: Context, target: str | None) -> None:
    """Print the resolved recipe of TARGET as YAML (or JSON)."""
    import yaml

    recipe = context.one_recipe(target)
    data = recipe.model_dump(mode="json", exclude={"source", "root"})
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    if context.output.as_json:
        context.output.result(data)
    else:
        click.echo(f"# {recipe.source}\n{text}", nl=False)
