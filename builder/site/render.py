"""Jobs written as bash scripts, by the templates in this folder. Every word goes through one quoting function."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from builder.site.plan import Job, RayJob
from builder.site.shell import ShellText, command_line, quote

if TYPE_CHECKING:
    from jinja2 import Environment

_WIDTH = 110


def render(job: Job | RayJob) -> str:
    """The script of a job: bash, ending with a line end."""
    template = "ray.sh.j2" if isinstance(job, RayJob) else "slurm.sh.j2" if job.slurm else "local.sh.j2"
    return templates().get_template(template).render(job=job)


@cache
def templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("builder.site"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  scripts, not pages: every value passes a quoting filter
    )
    made.filters |= {"q": quote, "line": command_line, "block": block, "yaml": _yaml, "json": _json}
    return made


def block(words: Sequence[str], indent: int = 4) -> str:
    """A command line over several lines of at most 110 columns where that can be, an option and its value together."""
    pieces: list[str] = []
    for word in words:
        text = quote(word)
        if (
            pieces
            and not word.startswith("-")
            and pieces[-1].startswith("-")
            and " " not in pieces[-1]
            and "=" not in pieces[-1]
        ):
            pieces[-1] += f" {text}"
        else:
            pieces.append(text)
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece) + indent + 3 > _WIDTH:
            lines.append(piece)
        else:
            lines[-1] += (" " if lines[-1] else "") + piece
    return (" \\\n" + " " * indent).join(lines)


def _yaml(word: str) -> str:
    """A word in a compose file: JSON's strings are YAML's, and ``$$`` is a dollar sign there too."""
    return json.dumps(word if isinstance(word, ShellText) else word.replace("$", "$$"), ensure_ascii=False)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
