"""Renders jobs as bash scripts with the templates in this folder; one function quotes all words."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from builder.core.datafiles import table
from builder.core.version import __version__

from .job import BatchJob
from .shell import command_line, join, quote
from .slurm import inherited
from .srun import toml, toml_key

if TYPE_CHECKING:
    from jinja2 import Environment

_WIDTH = 110


def render(job: BatchJob) -> str:
    """Return the script of a job: bash, ending with a newline.

    It has the day on which it is written, or that of SOURCE_DATE_EPOCH.
    """
    template = templates().get_template("slurm.sh.j2" if job.recipe.site.slurm else "local.sh.j2")
    now = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    day = time.strftime("%Y-%m-%d", time.gmtime(now))
    return template.render(job=job, start=job.start, version=__version__, day=day)


@cache
def templates() -> Environment:
    """Return the environment of the templates, with their filters."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("builder.deliver.site"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  scripts, not HTML: every value passes a quoting filter
    )
    environment.globals["checkpoints"] = ",".join(table(__file__, "checkpoints.yaml"))
    environment.globals["join"] = join
    filters = {"q": quote, "line": command_line, "block": block, "directive": _directive}
    filters |= {"toml": toml, "key": toml_key, "inherited": inherited}
    environment.filters |= filters
    return environment


def block(words: Sequence[str], indent: int = 4) -> str:
    """Break a command line into lines of 110 columns; an option and its value stay on one line.

    Args:
        words: the command line.
        indent: number of spaces before each line except the first.
    """
    lines = [""]
    for part in _options_with_values(words):
        is_too_long = len(lines[-1]) + len(part) + indent + 3 > _WIDTH
        if lines[-1] and is_too_long:
            lines.append(part)
        else:
            lines[-1] += (" " if lines[-1] else "") + part
    return (" \\\n" + " " * indent).join(lines)


def _options_with_values(words: Sequence[str]) -> list[str]:
    """Quote words, and join ``--option`` and the value that follows it."""
    parts: list[str] = []
    for word in words:
        text = quote(word)
        previous = parts[-1] if parts else ""
        takes_value = previous.startswith("-") and " " not in previous and "=" not in previous
        if takes_value and not word.startswith("-"):
            parts[-1] += f" {text}"
        else:
            parts.append(text)
    return parts


def _directive(option: str) -> str:
    """Return an option for an ``#SBATCH`` line, which sbatch splits at blanks outside of quotes."""
    return shlex.quote(option) if re.search(r"[\s#'\"\\]", option) else option
