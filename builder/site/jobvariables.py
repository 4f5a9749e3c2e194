"""Values of a job in its command: ``{job.data}``, ``{env.SLURM_TMPDIR}``.

Words of a command line reach the program unchanged, ``$`` too. These placeholders are the exception: the
job's script fills them in, once for each process, without a shell that could read the value as code. Only
``{job.NAME}`` and ``{env.NAME}`` are placeholders, all other braces stay as they are; ``{{job.`` and
``{{env.`` are ``{job.`` and ``{env.`` themselves.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from builder.config.site import Launcher
from builder.errors import UsageError
from builder.site.arguments import split_words
from builder.site.request import JobRequest
from builder.site.shell import ShellText, join

_PLACEHOLDER = re.compile(r"\{\{(?=(?:job|env)\.)|\{(job|env)\.([A-Za-z_]\w*)\}", re.ASCII)
#: What the placeholders of ``job`` are in the job's shell.
_JOB = {
    "id": "$BUILDER_JOB_ID",
    "data": "$BUILDER_DATA",
    "checkpoints": "$BUILDER_CHECKPOINT_DIR",
    "resume": "$BUILDER_RESUME",
    "rank": "$SLURM_PROCID",
    "local_rank": "$SLURM_LOCALID",
    "world_size": "$SLURM_NTASKS",
    "node": "$SLURM_NODEID",
}
_RANKS = ("rank", "local_rank", "world_size", "node")
#: The options that give a job these values.
_NEEDED = {
    "data": "--data FILE.tar",
    "checkpoints": "--checkpoint FOLDER",
    "resume": "--checkpoint FOLDER",
}


class JobVariables:
    """Fills in the placeholders of one job.

    Args:
        request: whether the job has data and checkpoints.
        launcher: the ranks of torchrun's processes start after the command line is made.
        slurm: whether the job is for Slurm.
        checkpoints: whether the job has checkpoints.
    """

    def __init__(self, request: JobRequest, launcher: Launcher, *, slurm: bool, checkpoints: bool) -> None:
        self._request = request
        self._launcher = launcher
        self._slurm = slurm
        self._checkpoints = checkpoints

    def words(self, words: Sequence[str]) -> tuple[str, ...]:
        """Returns words with the placeholders as variables of the job's shell.

        Raises:
            UsageError: a placeholder does not exist, or this job has no such value.
        """
        return tuple(self.word(word) for word in words)

    def word(self, word: str) -> str:
        """As :meth:`words`, for one word."""
        parts, at = [], 0
        for found in _PLACEHOLDER.finditer(word):
            parts += [_same(word, word[at : found.start()]), self._value(found)]
            at = found.end()
        return join(*parts, _same(word, word[at:])) if parts else word

    def resume_words(self) -> tuple[str, ...]:
        """Returns the words that follow the command if there is a checkpoint (``--resume-args``).

        Raises:
            UsageError: the job has no checkpoints, or a placeholder does not exist.
        """
        words = split_words("--resume-args", self._request.resume_args)
        if not words:
            return ()
        if not self._checkpoints:
            raise UsageError("--resume-args needs checkpoints", "add --checkpoint FOLDER, or --chain N")
        return self.words(words)

    def _value(self, found: re.Match[str]) -> str:
        kind, name = found[1], found[2]
        if kind is None:
            return "{"
        if kind == "env":
            return ShellText(f"${{{name}}}")
        if name not in _JOB:
            near = difflib.get_close_matches(name, _JOB, n=1)
            known = ", ".join(f"{{job.{one}}}" for one in _JOB)
            raise UsageError(
                f"{found[0]} is not a value of a job", f"did you mean {{job.{near[0]}}}?" if near else known
            )
        self._check(found[0], name)
        return ShellText(_JOB[name])

    def _check(self, text: str, name: str) -> None:
        missing = not self._request.data if name == "data" else not self._checkpoints
        if name in _NEEDED and missing:
            raise UsageError(f"{text}: the job has no such value", f"add {_NEEDED[name]}")
        if name in _RANKS and (self._launcher == "torchrun" or not self._slurm):
            raise UsageError(
                f"{text}: the processes get their ranks after their command line is made",
                "the program finds them in RANK, LOCAL_RANK and WORLD_SIZE",
            )


def _same(word: str, part: str) -> str:
    """A part of a word, of the word's kind."""
    return ShellText(part) if isinstance(word, ShellText) else part
