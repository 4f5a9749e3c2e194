"""``builder ci``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.ci.workflow import FILES, MONTHLY, Service
from builder.cli.context import Context, common_options, complete_target, pass_context
from builder.config.inside import own_path
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.ci.workflow import SmokePlace
    from builder.config.recipe import Recipe


@click.group()
def ci() -> None:
    """Write the workflow that updates locks every month, and builds, tests and publishes images."""


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments and options that both services have."""
    options = (
        click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target),
        click.option("--group", "groups", multiple=True, help="All targets of a recipe group."),
        click.option(
            "--registry",
            metavar="HOST[/PROJECT]",
            help="Where to publish. Default: the recipes' hosts, else the registry of GitHub or GitLab.",
        ),
        click.option(
            "--runner",
            metavar="LABEL,...",
            help="Labels of your runner that tests and publishes: self-hosted,gpu. Default: a hosted one.",
        ),
        click.option(
            "--smoke",
            type=click.Choice(["runner", "slurm"]),
            default="runner",
            show_default=True,
            help="Test on the runner, or in a Slurm job that the runner submits.",
        ),
        click.option("--account", help="Account that pays for the jobs (with --smoke slurm)."),
        click.option(
            "--schedule", default=MONTHLY, show_default=True, help="When locks are updated (cron, UTC)."
        ),
        click.option(
            "--install",
            metavar="SPEC",
            help="What pip installs to get builder: git+https://HOST/OWNER/builder@TAG, a URL, or a file in "
            "the repository. Default: where this builder came from.",
        ),
        click.option("--setup", metavar="COMMAND", help="The command that puts builder into .venv instead."),
        click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="The file to write."),
        click.option("--stdout", "to_stdout", is_flag=True, help="Print the workflow, write no file."),
        click.option("--force", is_flag=True, help="Replace a file that differs."),
        common_options,
        pass_context,
    )
    for option in reversed(options):
        command = option(command)
    return command


@ci.command()
@_options
def github(context: Context, /, **values: Any) -> None:
    """Write .github/workflows/images.yml."""
    _write(context, "github", **values)


@ci.command()
@_options
def gitlab(context: Context, /, **values: Any) -> None:
    """Write .gitlab-ci.yml."""
    _write(context, "gitlab", **values)


def _write(
    context: Context,
    service: Service,
    *,
    names: tuple[str, ...],
    groups: tuple[str, ...],
    registry: str | None,
    runner: str | None,
    smoke: SmokePlace,
    account: str | None,
    schedule: str,
    install: str | None,
    setup: str | None,
    output: Path | None,
    to_stdout: bool,
    force: bool,
) -> None:
    from rich.markup import escape

    from builder.ci.install import setup_command
    from builder.ci.workflow import Options, Workflow, render
    from builder.store.files import write_output

    project = context.project
    recipes = project.recipes(names, groups)
    given = {
        "--group": groups,
        "--registry": registry,
        "--runner": runner,
        "--smoke": smoke if smoke != "runner" else None,
        "--account": account,
        "--schedule": schedule if schedule != MONTHLY else None,
        "--install": install,
        "--setup": setup,
    }
    options = Options(
        service,
        _command(service, names, given),
        setup_command(install, setup),
        registry=registry or "",
        runner=tuple(runner.split(",")) if runner else (),
        smoke=smoke,
        account=account or "",
        schedule=schedule,
    )
    text = render(Workflow.of(recipes, options))
    path = output or own_path(project.root, FILES[service])
    answer = {"service": service, "targets": [r.name for r in recipes], "text": text, "file": None}
    if to_stdout:
        context.output.result(answer, escape(text.rstrip("\n")))
        return
    if path.exists() and path.read_bytes() != text.encode() and not force:
        raise UsageError(
            f"{path} exists and differs",
            "compare it with --stdout; replace it with --force; or pass --output",
        )
    write_output(path, text.encode())
    context.output.result({**answer, "file": str(path)}, escape(str(path)))
    _advise(context, service, recipes)


def _command(service: str, names: Sequence[str], given: dict[str, Any]) -> str:
    """The command line that writes the same file again."""
    words = ["builder", "ci", service, *names]
    for option, value in given.items():
        for text in value if isinstance(value, tuple) else (value,):
            words += [option, text] if text else []
    return shlex.join(words)


def _advise(context: Context, service: Service, recipes: Sequence[Recipe]) -> None:
    """Reports what the workflow needs that its file cannot contain."""
    root = context.project.root
    top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
    if top != root:
        context.output.warn(
            f"the project is a folder of the repository {top}: {FILES[service]} counts there only, and its "
            f"commands have to run in {root.relative_to(top)}"
        )
    fixed = [r.name for r in recipes if not r.lock and r.conda.exclude_newer not in (None, "month")]
    if fixed:
        context.output.warn(
            f"conda.exclude_newer of {', '.join(fixed)} is a fixed date: the monthly update finds the same "
            "packages again; write 'exclude_newer: month' into the recipe"
        )
    context.output.note("commit the file, and read its first lines: they say what to set up once")
