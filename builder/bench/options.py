"""The command line."""

from __future__ import annotations

import argparse
import json

from .frameworks import NAMES


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of a command line, by default this process's. Exits with code 2 if they are not valid."""
    parser = argparse.ArgumentParser(
        prog="smoke.py", description="Test whether this image uses this machine at full speed."
    )
    _add_tests(parser)
    _add_expectations(parser)
    _add_ranks(parser)
    _add_limits(parser)
    _add_output(parser)
    options = parser.parse_args(arguments)
    if options.command:  # while it runs, the rank reports no progress
        options.stall = max(options.stall, options.command_timeout + 30)
    return options


def _add_tests(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--framework",
        choices=NAMES,
        default="torch",
        help="what computes: torch, tensorflow or jax (default: %(default)s)",
    )
    parser.add_argument(
        "--imports", type=_names, default="", metavar="A,B", help="import these modules: sklearn,PIL"
    )
    parser.add_argument(
        "--packages",
        type=_names,
        default="",
        metavar="A,B",
        help="import the modules of these installed packages: scikit-learn,pillow",
    )
    parser.add_argument(
        "--command",
        type=_words,
        default="[]",
        metavar="JSON",
        help='run this program, and expect exit code 0: \'["python", "-m", "mytest"]\'',
    )
    parser.add_argument(
        "--command-timeout",
        type=float,
        default=120,
        metavar="S",
        help="end the program after S seconds (default: %(default)s)",
    )
    parser.add_argument(
        "--device-only",
        action="store_true",
        help="leave out what is measured once for the host: starts, imports, files, --command",
    )


def _add_expectations(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--expect",
        choices=("auto", "nvidia", "amd", "none"),
        default="auto",
        help="the GPUs that the image is built for (default: those that torch finds)",
    )
    parser.add_argument(
        "--architectures",
        type=_names,
        default="",
        metavar="A,B",
        help="GPU architectures that torch must have code for: sm_80,sm_90 or gfx90a",
    )
    parser.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="number of GPUs that this node must have (default: at least one)",
    )


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all-gpus",
        action="store_true",
        help="start one process per GPU; under srun or torchrun, every task starts one per GPU that it sees",
    )
    parser.add_argument(
        "--ranks",
        type=_number_of_ranks,
        metavar="N",
        help="start N processes, and ignore srun and torchrun; on CPUs they communicate by gloo",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--budget",
        type=float,
        metavar="S",
        help="seconds for the measurements (default: 60 on CPUs, 90 on GPUs)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=420,
        metavar="S",
        help="end everything after S seconds (default: %(default)s)",
    )
    parser.add_argument(
        "--stall",
        type=float,
        default=150,
        metavar="S",
        help="a process without progress for S seconds counts as hung (default: %(default)s)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scratch",
        metavar="FOLDER",
        help="write checkpoints there (default: the folder for temporary files)",
    )
    parser.add_argument(
        "--json",
        metavar="FILE|-",
        help="write the report there; with - the table goes to standard error",
    )
    parser.add_argument(
        "--progress",
        action="store_true",
        help="name each probe and measurement on standard error when it begins",
    )


def _number_of_ranks(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1024:
        raise argparse.ArgumentTypeError("must be from 1 to 1024")
    return value


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _words(text: str) -> list[str]:
    """A program and its arguments, as a list in JSON."""
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise argparse.ArgumentTypeError("must be a list of texts in JSON")
    return words
