"""The command line: ``builder``. Thin; imports a command's stages only when it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import __version__
from builder.cli.output import Output, human_bytes
from builder.errors import BuilderError, UsageError
from builder.settings import Settings

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.engines.layered import BuildResult
    from builder.workflow import Project

EXIT_CODES = """Exit codes: 0 done; 1 failed; 2 wrong command line; 3 wrong recipe or environment; 4 lock missing or stale;
5 unsatisfiable; 6 package not to be had; 7 package cannot be laid out; 8 image; 9 registry; 10 no runner;
11 smoke test not passed; 12 tag exists; 13 no space; 130 interrupted."""


@dataclass
class Context:
    """What every command gets."""

    output: Output
    settings: Settings
    start: Path

    @cached_property
    def project(self) -> Project:
        from builder.workflow import Project

        return Project.find(self.start, self.settings, self.output)

    def one_recipe(self, target: str) -> Recipe:
        return self.project.recipe(target)


pass_context = click.make_pass_decorator(Context)


def complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of target names."""
    from builder.config.recipe import recipe_files
    from builder.workflow import Project

    try:
        root = Project.find(Path(ctx.find_root().params.get("project") or "."), Settings.from_environment()).root
    except BuilderError:
        return []
    return [name for name in recipe_files(root) if name.startswith(incomplete)]


target_argument = click.argument("target", shell_complete=complete_target)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--json`` after the command's name too, where people type it."""
    return click.option(
        "--json", "as_json", is_flag=True, help="One JSON document on stdout.", expose_value=False, callback=_set_json
    )(command)


def _set_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and isinstance(ctx.obj, Context):
        ctx.obj.output.as_json = True


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="builder")
@click.option(
    "--project",
    type=click.Path(file_okay=False, path_type=Path),
    help="The project folder (holds recipes/). Default: this one or the nearest above.",
)
@click.option("--cache", type=click.Path(file_okay=False, path_type=Path), help="The cache folder (BUILDER_CACHE).")
@click.option("--tmpdir", type=click.Path(file_okay=False, path_type=Path), help="Folder for temporary files (BUILDER_TMPDIR).")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes and threads to use (BUILDER_JOBS).")
@click.option("--offline", is_flag=True, help="Use only what the cache and local folders hold (BUILDER_OFFLINE).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, everything else on stderr.")
@click.option("-q", "--quiet", is_flag=True, help="Warnings and errors only.")
@click.pass_context
def cli(
    ctx: click.Context,
    project: Path | None,
    cache: Path | None,
    tmpdir: Path | None,
    jobs: int | None,
    offline: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Conda environments to container images that are known to run fast on the GPU they are meant for."""
    settings = Settings.from_environment(cache=cache, tmpdir=tmpdir)
    settings = replace(settings, jobs=jobs or settings.jobs, offline=offline or settings.offline)
    ctx.obj = Context(Output(as_json=as_json, quiet=quiet), settings, project or Path())


# targets --------------------------------------------------------------------------------------------------------------


@cli.group(invoke_without_command=True)
@click.pass_context
def targets(ctx: click.Context) -> None:
    """List the targets; 'targets show NAME' prints a resolved recipe."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(targets_list)


@targets.command("list")
@common_options
@pass_context
def targets_list(context: Context) -> None:
    """List the targets of the project."""
    from rich.table import Table

    recipes = context.project.recipes()
    table = Table("target", "groups", "GPU", "base", "locked", "description", box=None)
    rows = []
    for r in recipes:
        locked = r.lock_path.exists()
        gpu = " ".join([r.gpu.vendor, *r.gpu.architectures])
        table.add_row(r.name, " ".join(r.group), gpu, r.base, "yes" if locked else "no", r.description)
        rows.append(
            {
                "name": r.name,
                "groups": r.group,
                "gpu": r.gpu.model_dump(),
                "base": r.base,
                "locked": locked,
                "description": r.description,
            }
        )
    context.output.table(table)
    context.output.result(rows)


@targets.command("show")
@target_argument
@common_options
@pass_context
def targets_show(context: Context, target: str) -> None:
    """Print the resolved recipe of TARGET as YAML (or JSON)."""
    import yaml

    recipe = context.one_recipe(target)
    data = recipe.model_dump(mode="json", exclude={"source", "root"})
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    if context.output.as_json:
        context.output.result(data)
    else:
        click.echo(f"# {recipe.source}\n{text}", nl=False)


# lock -----------------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@click.option("--check", is_flag=True, help="Only say whether the locks are those of their sources; exit 4 if not.")
@click.option("--update", multiple=True, metavar="NAME", help="Move this package, and what it must, and nothing else.")
@click.option("--update-base", is_flag=True, help="Pin what the base reference holds now; packages stay.")
@click.option("--exclude-newer", metavar="DATE", help="Solve as of a date (YYYY-MM-DD), instead of the recipe's.")
@common_options
@pass_context
def lock(
    context: Context, names: tuple[str, ...], check: bool, update: tuple[str, ...], update_base: bool, exclude_newer: str | None
) -> None:
    """Solve environments and write conda-lock v1 lock files (all targets by default)."""
    project = context.project
    recipes = [r for r in project.recipes(names) if names or not r.lock]
    results = []
    stale_any = False
    for recipe in recipes:
        if check:
            reasons = project.stale(recipe)
            stale_any |= bool(reasons)
            results.append({"target": recipe.name, "lock": recipe.lock_path, "fresh": not reasons, "reasons": reasons})
            context.output.result(
                None, f"{recipe.name}: {'[red]stale[/red]: ' + '; '.join(reasons) if reasons else '[green]fresh[/green]'}"
            ) if not context.output.as_json else None
            continue
        made = project.lock(recipe, update=update, update_base=update_base, exclude_newer=exclude_newer)
        count = {m: sum(p.manager == m for p in made.packages) for m in ("conda", "pip")}
        results.append(
            {
                "target": recipe.name,
                "lock": recipe.lock_path,
                "digest": made.digest,
                "packages": count,
                "base": made.base.digest if made.base else None,
            }
        )
        if not context.output.as_json:
            context.output.result(
                None, f"{recipe.name}: {count['conda']} conda and {count['pip']} pip packages -> {recipe.lock_path}"
            )
    if context.output.as_json:
        context.output.result(results)
    if stale_any:
        context_exit(4)


def context_exit(code: int) -> None:
    """Ends the command with an exit code and nothing more to say."""
    click.get_current_context().exit(code)


# build ----------------------------------------------------------------------------------------------------------------


def describe_build(result: BuildResult) -> dict[str, Any]:
    """A build for ``--json``."""
    image = result.image
    return {
        "target": result.recipe.name,
        "digest": image.digest,
        "base": {"reference": result.base.reference, "digest": result.base.digest},
        "lock": result.lock.digest,
        "size": image.size,
        "layers": [
            {
                "digest": x.descriptor.digest,
                "diff_id": x.diff_id,
                "size": x.descriptor.size,
                "unpacked": x.unpacked,
                "title": x.title,
                "packages": x.packages,
            }
            for x in image.layers
        ],
        "conflicts": [{"path": c.path, "winner": c.winner, "losers": c.losers} for c in result.conflicts],
        "notes": result.notes,
        "seconds": result.timings,
    }


def tell_build(context: Context, result: BuildResult) -> None:
    """What a person should know of a build besides where it is."""
    for note in result.notes:
        context.output.note(note)
    if result.conflicts:
        shown = ", ".join(f"{c.path} ({c.winner})" for c in result.conflicts[:5])
        more = f" and {len(result.conflicts) - 5} more" if len(result.conflicts) > 5 else ""
        context.output.warn(f"{len(result.conflicts)} files come from several packages; the later one wins: {shown}{more}")


@cli.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@click.option("-t", "--target", "more", multiple=True, shell_complete=complete_target, help="A target, like the argument.")
@click.option(
    "--lock", "lock_file", type=click.Path(dir_okay=False, path_type=Path), help="Build this lock file (conda-lock 1 to 4)."
)
@click.option(
    "--layout", type=click.Path(file_okay=False, path_type=Path), help="The OCI layout to write. Default: dist/ of the project."
)
@click.option("--oci-archive", type=click.Path(dir_okay=False, path_type=Path), help="Also write an OCI archive.")
@click.option("--docker-archive", type=click.Path(dir_okay=False, path_type=Path), help="Also write an archive for docker load.")
@click.option("--load", is_flag=True, help="Also load the image into the Docker engine.")
@click.option("--source", envvar="BUILDER_SOURCE", help="Annotation org.opencontainers.image.source.")
@click.option("--revision", envvar="BUILDER_REVISION", help="Annotation org.opencontainers.image.revision.")
@common_options
@pass_context
def build(
    context: Context,
    names: tuple[str, ...],
    more: tuple[str, ...],
    lock_file: Path | None,
    layout: Path | None,
    oci_archive: Path | None,
    docker_archive: Path | None,
    load: bool,
    source: str | None,
    revision: str | None,
) -> None:
    """Build the images of targets from their locks (locking first where there is no lock)."""
    chosen = [*names, *more]
    if not chosen:
        raise UsageError("no target given", f"known targets: {', '.join(r.name for r in context.project.recipes())}")
    if len(chosen) > 1 and (lock_file or oci_archive or docker_archive):
        raise UsageError("--lock, --oci-archive and --docker-archive go with one target", "build the targets one by one")
    project = context.project
    results = []
    for recipe in project.recipes(chosen):
        result = project.build(recipe, lock_file=lock_file, annotations=origin_annotations(source, revision))
        folder = project.keep(result, layout)
        tell_build(context, result)
        told = describe_build(result) | {"layout": str(folder), "tag": recipe.name}
        reference = f"builder/{recipe.name}:latest"
        if oci_archive:
            from builder.image.archive import write_oci_archive

            write_oci_archive(result.image, oci_archive, recipe.name)
        if docker_archive:
            from builder.image.archive import write_docker_archive

            write_docker_archive(result.image, docker_archive, reference)
        if load:
            from builder.image.archive import docker_load

            told["docker_id"] = docker_load(result.image, reference)
            context.output.note(f"loaded into docker as {reference}")
        results.append(told)
        if not context.output.as_json:
            seconds = sum(result.timings.values())
            context.output.result(
                None,
                f"[bold]{recipe.name}[/bold] {result.image.digest}\n"
                f"  {len(result.image.layers)} layers, {human_bytes(result.image.size)}, {seconds:.1f} s\n"
                f"  oci:{folder}:{recipe.name}",
            )
    if context.output.as_json:
        context.output.result(results[0] if len(results) == 1 else results)


def origin_annotations(source: str | None, revision: str | None) -> dict[str, str]:
    """The annotations that say which sources an image was made from; given, never guessed: they are part of the digest."""
    pairs = {"org.opencontainers.image.source": source, "org.opencontainers.image.revision": revision}
    return {k: v for k, v in pairs.items() if v}


@cli.command()
@target_argument
@click.option("--lock", "lock_file", type=click.Path(dir_okay=False, path_type=Path), help="Plan this lock file.")
@common_options
@pass_context
def plan(context: Context, target: str, lock_file: Path | None) -> None:
    """Show which layers a target's lock becomes, without fetching or building."""
    from rich.table import Table

    from builder.engines.layered import MAX_LAYERS, OVERHEAD, ordered_packages
    from builder.fetch import head_sizes
    from builder.layers.plan import plan_lock
    from builder.lock import read_lock

    project = context.project
    recipe = project.recipe(target)
    lock = read_lock(lock_file) if lock_file else project.ensure_lock(recipe)[0]
    packages = ordered_packages(recipe, lock)
    sizes = head_sizes(packages, context.settings, project.store, find_links=recipe.pip.find_links)
    plans = plan_lock(packages, sizes, recipe.layers, budget=MAX_LAYERS - OVERHEAD - 1)
    table = Table("layer", "packages", "archives", box=None)
    rows = []
    for p in plans:
        known = [sizes.get(x.key) for x in p.packages]
        total = sum(k for k in known if k is not None)
        unknown = sum(k is None for k in known)
        size = human_bytes(total) if not unknown else f"{human_bytes(total)} + {unknown} unknown"
        table.add_row(p.title, str(len(p.packages)), size)
        rows.append({"title": p.title, "packages": [x.name for x in p.packages], "archive_bytes": total, "unknown": unknown})
    context.output.table(table)
    context.output.result(
        {"target": recipe.name, "packages": len(packages), "layers": rows}, f"{len(packages)} packages in {len(rows)} layers"
    )


# smoke ----------------------------------------------------------------------------------------------------------------


@cli.command()
@target_argument
@click.option("--runner", type=click.Choice(["docker", "podman", "apptainer", "embedded"]), help="Default: the first that works.")
@click.option("--timeout", "timeout_s", default=300.0, show_default=True, help="Seconds after which the test counts as hung.")
@common_options
@pass_context
def smoke(context: Context, target: str, runner: str | None, timeout_s: float) -> None:
    """Build TARGET if needed and run the smoke benchmark inside its image on this host."""
    from builder.publish import SmokeRecord
    from builder.smoke.table import render

    project = context.project
    result = project.build(project.recipe(target))
    project.keep(result)
    report = project.smoke(result, runner=runner, timeout_s=timeout_s)
    context.output.table(render(report))
    context.output.result(
        {
            "target": target,
            "digest": report.image_digest,
            "runner": report.runner,
            "verdict": report.verdict,
            "seconds": report.duration_s,
            "report": report.report,
        }
    )
    if report.verdict in ("pass", "warn"):
        SmokeRecord(context.settings.cache).keep(report.image_digest, report.verdict, report.runner)
    else:
        context_exit(11)


# publish --------------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("names", nargs=-1, metavar="TARGET...", shell_complete=complete_target)
@click.option("--group", "groups", multiple=True, help="All targets of a recipe group.")
@click.option("--to", help="HOST/REPOSITORY, or oci:DIR: the embedded registry.")
@click.option("--registry", help="HOST[/PROJECT] instead of the recipe's host.")
@click.option("--tag", "month", metavar="YY.MM", help="Takes the place of the recipe's dated tags.")
@click.option("--no-tags", is_flag=True, help="Send everything but the tags, untested: to be tested and tagged on the target.")
@click.option("--force", is_flag=True, help="Let a dated tag move to another digest.")
@click.option(
    "--smoke",
    "policy",
    type=click.Choice(["auto", "always"]),
    default="auto",
    show_default=True,
    help="auto: an image that passed on this machine is not tested again.",
)
@click.option("--runner", type=click.Choice(["docker", "podman", "apptainer", "embedded"]), help="What runs the smoke test.")
@click.option(
    "--mount-from", multiple=True, metavar="REPOSITORY", help="A repository of the same registry that may hold some blobs."
)
@click.option("--dry-run", is_flag=True, help="Build and say what would be published.")
@click.option("--source", envvar="BUILDER_SOURCE", help="Annotation org.opencontainers.image.source.")
@click.option("--revision", envvar="BUILDER_REVISION", help="Annotation org.opencontainers.image.revision.")
@common_options
@pass_context
def publish(
    context: Context,
    names: tuple[str, ...],
    groups: tuple[str, ...],
    to: str | None,
    registry: str | None,
    month: str | None,
    no_tags: bool,
    force: bool,
    policy: str,
    runner: str | None,
    mount_from: tuple[str, ...],
    dry_run: bool,
    source: str | None,
    revision: str | None,
) -> None:
    """Build, smoke-test, push, and move the tags of targets. No tag moves unless the smoke test has passed."""
    if not names and not groups:
        raise UsageError("no target and no --group given", "builder targets lists them")
    recipes = context.project.recipes(names, groups)
    results = [
        publish_one(
            context, recipe, to=to, registry=registry, month=month, move_tags=not no_tags, force=force, policy=policy,
            runner=runner,
            mount_from=mount_from, dry_run=dry_run, annotations=origin_annotations(source, revision),
        )
        for recipe in recipes
    ]  # fmt: skip
    if context.output.as_json:
        context.output.result(results[0] if len(results) == 1 else results)


_PUSHED = ("blobs_sent", "bytes_sent", "blobs_mounted", "blobs_present", "seconds")


def publish_one(
    context: Context,
    recipe: Recipe,
    *,
    to: str | None = None,
    registry: str | None = None,
    month: str | None = None,
    move_tags: bool = True,
    force: bool = False,
    policy: str = "auto",
    runner: str | None = None,
    mount_from: Sequence[str] = (),
    dry_run: bool = False,
    annotations: dict[str, str] | None = None,
    agreed: Callable[[str], bool] = lambda question: True,
) -> dict[str, Any]:
    """Builds and publishes one target and tells about it; gives what ``--json`` shows.

    ``agreed`` is asked before anything is sent; without its yes the build stays here.
    """
    from builder.publish import TagPlan, destination_text
    from builder.publish import publish as publish_image

    project = context.project
    where = destination_text(recipe, to, registry)
    tags = TagPlan.of(recipe, month)
    result = project.build(recipe, annotations=annotations)
    tell_build(context, result)
    if not agreed(f"Smoke-test {recipe.name} and publish it to {where} as {', '.join(tags.tags)}?"):
        context.output.note(f"{recipe.name} is built, not published: oci:{project.keep(result)}:{recipe.name}")
        return {"target": recipe.name, "digest": result.image.digest, "published": False}
    done = publish_image(
        project, result, to=where, tags=tags, policy="always" if policy == "always" else "auto", runner=runner, force=force,
        dry_run=dry_run, move_tags=move_tags, mount_from=mount_from,
    )  # fmt: skip
    if not context.output.as_json:
        lines = [f"[bold]{recipe.name}[/bold] {'would be' if dry_run else 'is'} {done.reference}@{done.digest}"]
        if done.tags:
            lines.append(f"  tags: {', '.join(done.tags)}; smoke test: {done.smoke}")
        if done.push:
            p = done.push
            lines.append(
                f"  sent {p.blobs_sent} blobs, {human_bytes(p.bytes_sent)}; "
                f"{p.blobs_mounted} mounted, {p.blobs_present} there already; {p.seconds:.1f} s"
            )
        context.output.result(None, "\n".join(lines))
    push = done.push
    return {
        "target": recipe.name, "reference": done.reference, "digest": done.digest, "tags": done.tags, "smoke": done.smoke,
        "dry_run": dry_run, "push": {k: getattr(push, k) for k in _PUSHED} if push else None,
        "build_seconds": result.timings,
    }  # fmt: skip


# around it ------------------------------------------------------------------------------------------------------------


@cli.group()
def channel() -> None:
    """Conda channels for places where none can be reached."""


@channel.command("debian")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@common_options
@pass_context
def channel_debian(context: Context, folder: Path) -> None:
    """Make the embedded channel: a small real conda channel out of Debian's python3.11 packages, in FOLDER."""
    from builder.channel.debian import make_debian_channel

    made = make_debian_channel(folder.absolute(), context.settings, context.output)
    packages = sorted(p.name for p in made.glob("*/*.conda"))
    context.output.result({"channel": str(made), "packages": packages}, f"{len(packages)} packages in file://{made}")


@cli.command()
@common_options
@pass_context
def doctor(context: Context) -> None:
    """Say what this host can lock, build, run and push: tools, GPU, disk, registries."""
    from rich.table import Table

    from builder.doctor import examine

    findings = examine(context.settings)
    marks = {"ok": "[green]ok[/green]", "missing": "[yellow]missing[/yellow]", "bad": "[red]bad[/red]"}
    table = Table("", "what", "found", "cure", box=None)
    for f in findings:
        table.add_row(marks[f.status], f.what, f.found, f.cure)
    context.output.table(table)
    context.output.result([f.to_json() for f in findings])
    if any(f.status == "bad" for f in findings):
        context_exit(1)


@cli.group()
def cache() -> None:
    """The cache of packages, layers and unpacked images."""


@cache.command("info")
@common_options
@pass_context
def cache_info(context: Context) -> None:
    """Say what the cache holds."""
    from rich.table import Table

    from builder.cache import usage

    parts = usage(context.settings.cache)
    table = Table("part", "files", "size", box=None)
    for part in parts:
        table.add_row(part.name, str(part.files), human_bytes(part.size))
    context.output.table(table)
    total = sum(p.size for p in parts)
    context.output.result(
        {
            "cache": str(context.settings.cache),
            "bytes": total,
            "parts": {p.name: {"files": p.files, "bytes": p.size} for p in parts},
        },
        f"{human_bytes(total)} in {context.settings.cache}",
    )


@cache.command("prune")
@click.option(
    "--older-than", "days", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Days since the last use."
)
@click.option("--all", "everything", is_flag=True, help="Everything.")
@common_options
@pass_context
def cache_prune(context: Context, days: float, everything: bool) -> None:
    """Remove what was not used for a while, and what killed builds left."""
    from builder.cache import prune

    freed = prune(context.settings.cache, None if everything else days)
    context.output.result({"freed": freed}, f"freed {human_bytes(freed)}")


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a SHELL: eval "$(builder completion bash)"."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"no completion for {shell}", "use bash, zsh or fish")
    click.echo(kind(cli, {}, "builder", "_BUILDER_COMPLETE").source())


def run(command: click.Command, args: Sequence[str] | None = None, **extra: Any) -> int:
    """Runs a click command with builder's errors and exit codes; gives the exit code."""
    output = Output()
    try:
        value = command.main(args=None if args is None else list(args), standalone_mode=False, **extra)
        return value if isinstance(value, int) else 0
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.ClickException as e:
        e.show()
        return e.exit_code
    except (click.Abort, KeyboardInterrupt):
        output.error("interrupted; what was finished stays in the cache, nothing half-made is kept")
        return 130
    except BuilderError as e:
        output.error(e.message, e.cure)
        return e.exit_code
    except BrokenPipeError:
        return 141


def main() -> None:
    """The console script."""
    sys.exit(run(cli, prog_name="builder"))
