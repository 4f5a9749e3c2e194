"""The command line: ``builder``. Thin; a command's module is imported when it runs, and its stages with it."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from builder.cli.context import Context
from builder.cli.output import Output
from builder.errors import BuilderError, SpaceError
from builder.settings import Settings
from builder.version import __version__

EXIT_CODES = """Exit codes: 0 done; 1 failed; 2 wrong command line; 3 wrong recipe or environment; 4 lock missing or stale;
5 unsatisfiable; 6 package not to be had; 7 package cannot be laid out; 8 image; 9 registry; 10 no runner;
11 smoke test not passed; 12 tag exists; 13 no space; 14 smoke test could not be carried out; 130 interrupted."""

#: Where each command is defined: ``builder.cli.<module>``, under its own name with ``_`` for ``-``.
MODULES = {
    "targets": "targets",
    "lock": "lock",
    "plan": "plan",
    "build": "build",
    "smoke": "smoke",
    "report": "report",
    "publish": "publish",
    "pull": "pull",
    "run": "run_command",  # a module named run would hide the function run() below
    "job": "job",
    "init-site": "sites",
    "convert": "convert",
    "diff": "convert",
    "channel": "around",
    "doctor": "around",
    "cache": "around",
    "completion": "around",
}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for; ``--help`` lists them in the order of :data:`MODULES`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return None
        found: click.Command = getattr(
            importlib.import_module(f"builder.cli.{MODULES[cmd_name]}"), cmd_name.replace("-", "_")
        )
        return found


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="builder")
@click.option(
    "--project",
    type=click.Path(file_okay=False, path_type=Path),
    help="The project folder (holds recipes/). Default: this one or the nearest above.",
)
@click.option(
    "--cache", type=click.Path(file_okay=False, path_type=Path), help="The cache folder (BUILDER_CACHE)."
)
@click.option(
    "--tmpdir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for temporary files (BUILDER_TMPDIR).",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes and threads to use (BUILDER_JOBS).")
@click.option(
    "--offline", is_flag=True, help="Use only what the cache and local folders hold (BUILDER_OFFLINE)."
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout, everything else on stderr."
)
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
        output.error(e.message, e.hint)
        return e.exit_code
    except BrokenPipeError:
        return 141
    except OSError as e:
        where = f"{e.filename}: " if e.filename else ""
        output.error(f"{where}{e.strerror or e}", "check the path, its permissions and the disk")
        return SpaceError.exit_code if e.errno in (errno.ENOSPC, errno.EDQUOT) else BuilderError.exit_code


def main() -> None:
    """The console script."""
    code = run(cli, prog_name="builder")
    try:
        sys.stdout.flush()
    except OSError:  # said already, or nobody reads any more; Python would say it again in its own way
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
