"""Words become one call, and its result becomes words.

Each command is a module of its name here (``run`` is ``run_command``): it turns flags into one
options object, makes one call, and prints the result. Modules of several commands: ``options`` (the
short forms of options), ``context``, ``output`` (results, messages, errors), ``live`` (progress),
``display`` (progress in a terminal), ``terminal`` (tables, colours), ``logs``. ``start/`` drafts
the recipe of ``builder init``.

A command's module is imported when the command runs, and its stages with it, so ``builder --help``
imports none. This house decides nothing that a script would want too: that is in
:mod:`builder.deliver`.

- Why rich draws progress, but no tables: its import takes longer than a build with nothing changed
  may, so it is imported in a terminal when a task runs. Its tables fold, crop or shorten a word that
  is wider than its column, and paths and digests are there to be copied.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from builder.core.datafiles import read_beside
from builder.core.errors import BUG, INTERRUPTED, BuilderError, SpaceError, UsageError
from builder.core.interrupts import take_interrupt
from builder.core.redact import redact
from builder.core.settings import Settings
from builder.core.store.files import DISK_FULL
from builder.core.store.running import mark_running
from builder.core.version import __version__

from .context import Context
from .leave import leave
from .logs import log_path, start_logging
from .options import COUNT, FILE, flag, option, read_rows
from .output import Output


def _commands() -> dict[str, tuple[str, str]]:
    """Return the module of ``builder.cli`` that defines each command, and the command's summary.

    They are in a file, so that ``--help`` imports no command.
    """
    rows = (line.split(maxsplit=2) for line in read_beside(__file__, "commands.txt").splitlines())
    return {name: (module, summary) for name, module, summary in rows}


#: Module and summary of each command, in the order of ``--help``.
COMMANDS = _commands()
_EPILOG = "Global options: builder help options. Exit codes: builder help exit-codes."
_FOLDER = click.Path(file_okay=False, path_type=Path)
#: Options of the group that are flags, which may stand after the command too.
_FLAGS = ("-q", "--quiet", "-v", "-vv", "--verbose", "--offline")
#: Commands that continue where Ctrl-C ended them.
_CONTINUED = ("lock", "build", "smoke", "publish", "pull")
HELP_NAMES = {"help_option_names": ["-h", "--help"]}
#: The hint of an error of the system.
_CHECK_PATH = (
    "check the path, its permissions and the disk; for another cache: BUILDER_CACHE=FOLDER"
)

log = logging.getLogger(__name__)


class LazyGroup(click.Group):
    """Imports a command when it is used; ``--help`` lists :data:`COMMANDS` in their order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands alone: ``builder help options`` has the options."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move flags of the group before the command (``builder build x -q``).

        What follows ``--`` belongs to a command that runs in a container. So do the words of
        ``run`` and ``job``.
        """
        end = _end_of_options(args)
        start = next((i for i, word in enumerate(args[:end]) if word in COMMANDS), end)
        if start < end and args[start] not in ("run", "job"):
            moved = sorted(args[start:end], key=lambda word: word not in _FLAGS)
            args = [*args[:start], *moved, *args[end:]]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"builder.cli.{COMMANDS[cmd_name][0]}")
        found: click.Command = getattr(module, cmd_name)
        return found


@click.group(cls=LazyGroup, context_settings=HELP_NAMES, epilog=_EPILOG)
@click.version_option(__version__, "-V", "--version", prog_name="builder")
@option("--project", type=_FOLDER)
@option("--cache", type=_FOLDER)
@option("--tmpdir", type=_FOLDER)
@option("--jobs", type=COUNT)
@flag("--offline")
@flag("-q", "--quiet")
@option("-v", "--verbose", count=True)
@option("--log-file", type=FILE)
@click.pass_context
def cli(
    ctx: click.Context,
    project: Path | None,
    cache: Path | None,
    tmpdir: Path | None,
    jobs: int | None,
    offline: bool,
    quiet: bool,
    verbose: int,
    log_file: Path | None,
) -> None:
    """Build container images from conda environments and verify their speed."""
    settings = Settings.from_environment(cache=cache, tmpdir=tmpdir)
    settings = replace(settings, jobs=jobs or settings.jobs, offline=offline or settings.offline)
    output = Output(quiet=quiet)
    start_logging(settings.cache, log_file, verbose, output.log_line)
    with suppress(BuilderError):  # a cache that is refused: what uses it says why
        ctx.call_on_close(mark_running(settings.cache))
    ctx.call_on_close(output.close)  # before an error is printed
    ctx.obj = Context(output, settings, project or Path())


cli.commands.update(dict.fromkeys(COMMANDS, cli))  # for click's guess at a wrong word


def _end_of_options(words: Sequence[str]) -> int:
    return words.index("--") if "--" in words else len(words)


def run(
    command: click.Command, args: Sequence[str] | None = None, prog_name: str = "builder"
) -> int:
    """Run a click command and turn every exception into a message; return the exit code."""
    words = sys.argv[1:] if args is None else list(args)
    output = Output(as_json="--json" in words[: _end_of_options(words)])
    try:
        value = command.main(args=words, standalone_mode=False, prog_name=prog_name)
        sys.stdout.flush()  # here a full disk is an error; leave() ignores it
        return value if isinstance(value, int) else 0
    except click.exceptions.NoArgsIsHelpError as e:
        e.show()
        return e.exit_code
    except click.ClickException as e:
        hint = _habits(e, words[: _end_of_options(words)])
        return output.failure(e.format_message().rstrip("."), hint, e.exit_code)
    except BrokenPipeError:
        return 141
    except (click.Abort, KeyboardInterrupt):
        return interrupted(output, words)
    except Exception as e:
        # Python before 3.12 turns one in __set_name__ (of a class that is imported) into a RuntimeError.
        if isinstance(e.__cause__, KeyboardInterrupt) or take_interrupt():
            return interrupted(output, words)
        return failed(e, output)


def _habits(error: click.ClickException, words: Sequence[str]) -> str:
    """Return the hint of click's error: what builder has in place of other tools' options.

    Such a hint replaces click's guess, which is by letters.
    """
    context = getattr(error, "ctx", None)
    if context is None:
        return "builder COMMAND --help lists the options and arguments"
    texts = _habit_texts(context, words)
    if not texts:
        return f"{context.command_path} --help lists the options and arguments"
    vars(error)["possibilities"] = None
    if len(texts) == 1 or not context.parent:  # words after an unknown command are its own
        return next(iter(texts))
    return "\n        ".join(f"{part}: {text}" for text, part in texts.items())


def _habit_texts(context: click.Context, words: Sequence[str]) -> dict[str, str]:
    """Return the texts of habits.txt about words of a command line, each with its first word."""
    rows, name = read_rows("habits.txt"), context.command.name or ""
    texts: dict[str, str] = {}
    for part in (part for word in words for part in word.split("=")):
        if text := rows.get((name, part)) or (context.parent and rows.get(("*", part))):
            texts.setdefault(text.replace("{}", context.command_path).replace("`", ""), part)
    return texts


def interrupted(output: Output, words: Sequence[str]) -> int:
    """Report Ctrl-C; return the exit code."""
    continued = next((name for name in words if name in COMMANDS), "publish") in _CONTINUED
    then = "; finished work is in the cache: run the command again to continue"
    return output.failure(f"interrupted{then if continued else ''}", "", INTERRUPTED)


def failed(error: Exception, output: Output) -> int:
    """Report an exception that ends the command; return the exit code."""
    log.debug("the command failed", exc_info=error)
    if isinstance(error, BuilderError):
        message, hint, code = error.message, error.hint, error.exit_code
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        message = f"{where}{error.strerror or error}"
        hint = _CHECK_PATH if where else "builder doctor names a folder that is full or read-only"
        is_full = error.errno in DISK_FULL
        code = SpaceError.exit_code if is_full else BuilderError.exit_code
    else:
        what = " ".join(str(error).split())[:300]
        message = f"a bug in builder: {type(error).__name__}: {redact(what)}"
        hint = "please report it; --log-file FILE writes a log"
        if log_path():
            hint = "please report it with the log"
        code = BUG
    return output.failure(message, hint, code, None if code == UsageError.exit_code else log_path())


def main() -> None:
    """Run the console script."""
    leave(run(cli))
