"""``builder sites``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from builder.core.errors import ConfigError
from builder.core.text import Table

from .context import Context, common_options, complete_site, with_context
from .options import choice

if TYPE_CHECKING:
    from builder.lock.config.site import GpuVendor, RuntimeKind, SiteFile


@click.group(invoke_without_command=True)
@common_options
@click.pass_context
def sites(ctx: click.Context) -> None:
    """List the known sites and when they were checked, print the file of one, or write a new one.

    A recipe starts from a site with site: NAME. A project's own sites/NAME.yaml wins over the file
    of this package.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.obj)


def _list(context: Context) -> None:
    """Print the known sites."""

    from builder.lock.config.sites import all_site_files, origin, read_site, site_files

    root = context.root
    files = all_site_files(root)
    table = Table(("site", "runtime", "GPU", "checked"))
    rows = []
    for name, path in site_files(root).items():
        try:
            site = read_site(name, files)
        except ConfigError as e:
            context.output.warn(f"{e.message} ({e.hint})")
            continue
        where, keys = origin(path), site.model_dump(mode="json")
        runtime = keys["site"]["runtime"]["kind"]
        checked = (site.site.checked or "") + (f" ({where})" if where != "package" else "")
        table.rows.append((name, runtime, _gpus(site), checked))
        rows.append(
            {
                "name": name,
                "title": site.site.title,
                "runtime": runtime,
                "gpu": keys["gpu"],
                "gpus_per_node": site.site.node.gpus,
                "checked": site.site.checked,
                "from": where,
                "path": str(path),
            }
        )
    context.output.table(table)
    context.output.result(rows)


def _gpus(site: SiteFile) -> str:
    if site.gpu.vendor == "none":
        return "none"
    return f"{site.site.node.gpus}x {' '.join([site.gpu.vendor, *site.gpu.architectures])}"


@sites.command("show")
@click.argument("name", shell_complete=complete_site)
@with_context
def sites_show(context: Context, name: str) -> None:
    """Print the file of site NAME, with its comments; --json prints the site with what it extends.

    The path is on stderr, so that stdout can become a file: builder sites show NAME > sites/NAME.yaml
    """
    from builder.lock.config.sites import all_site_files, origin, read_site, unknown_site
    from builder.lock.config.yamlfile import load_yaml, read_text

    root = context.root
    files = all_site_files(root)
    if name not in files:
        raise unknown_site(name, root)
    path = files[name]
    if context.output.as_json:
        keys = read_site(name, files).model_dump(mode="json")
        context.output.result({"name": name, "from": origin(path), "path": str(path), **keys})
        return
    parent = load_yaml(path).data.get("extends")
    extends = f", which extends {parent} (builder sites show {parent})" if parent else ""
    context.output.note(f"{path}{extends}")
    click.echo(read_text(path), nl=False)


@sites.command("new")
@click.argument("name")
@choice(
    "--runtime",
    of=["apptainer", "singularity", "podman-hpc", "podman", "docker", "edf", "pyxis"],
    default="apptainer",
)
@choice("--gpu", of=["nvidia", "amd", "none"], default="nvidia")
@with_context
def sites_new(context: Context, name: str, runtime: RuntimeKind, gpu: GpuVendor) -> None:
    """Write a commented site file, sites/NAME.yaml."""
    from builder.deliver.site.newsite import new_site

    root = context.root or context.start.absolute()
    path = new_site(root, name, runtime, gpu)
    context.output.result({"site": name, "file": str(path)}, str(path))
    context.output.note(
        f"edit {path.relative_to(root)}, then check it: builder sites show {name} --json; "
        f"builder init --site {name} makes a target"
    )
