"""The command line."""

from __future__ import annotations

import argparse
import json
from functools import partial

from .frameworks import NAMES

_GPUS = ("auto", "nvidia", "amd", "none")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line. Exits with code 2 if they are not valid."""
    description = "Test whether this image uses this machine at full speed."
    parser = argparse.ArgumentParser(prog="smoke.py", description=description)
    _add_tests(parser)
    _add_ranks_and_limits(parser)
    options = parser.parse_args(arguments)
    if options.command:  # while it runs, the rank reports no progress
        options.stall = max(options.stall, options.command_timeout + 30)
    return options


def _add_tests(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    flag = partial(add, action="store_true")
    names = partial(add, type=_names, default="", metavar="A,B")
    add("--framework", choices=NAMES, default="torch", help="what computes (default: torch)")
    names("--imports", help="import these modules: sklearn,PIL")
    names("--packages", help="import the modules of these installed packages: scikit-learn,pillow")
    add("--command", type=_words, default="[]", metavar="JSON", help="it must exit with 0")
    add("--command-timeout", type=float, default=120, metavar="S", help="its limit (120)")
    flag("--device-only", help="leave out what is measured once for the host: imports, --command")
    add("--expect", choices=_GPUS, default="auto", help="the GPUs that the image is built for")
    names("--architectures", help="GPU architectures that torch must have code for: sm_80,sm_90")
    add("--python-path", default="", metavar="PATHS", help="the PYTHONPATH that the recipe sets")
    add("--devices", type=int, metavar="N", help="number of GPUs that this node must have")


def _add_ranks_and_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    flag = partial(add, action="store_true")
    seconds = partial(add, type=float, metavar="S")
    flag("--all-gpus", help="one process per GPU")
    add("--ranks", type=int, metavar="N", help="N processes, whatever the job says")
    seconds("--budget", help="seconds for the measurements (60 on CPUs, 150 on GPUs)")
    seconds("--timeout", default=420, help="end everything S seconds after the imports (420)")
    seconds("--start-stall", default=900, help="a process that imports for S seconds hangs (900)")
    seconds("--stall", default=150, help="a process without progress for S seconds hangs (150)")
    add("--json", metavar="FILE|-", help="write the report there; with - the table goes to stderr")
    flag("--progress", help="name each probe and measurement on stderr when it begins")


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _words(text: str) -> list[str]:
    """Return a program and its arguments, as a list in JSON."""
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise argparse.ArgumentTypeError("must be a list of texts in JSON")
    return words
