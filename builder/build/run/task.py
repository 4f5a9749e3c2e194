"""Runs a program in a container of an image, with a shared folder, limits and a log.

Builds of wheels and the compiler of modules are such tasks; build steps share the log.
"""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from builder.core.model import Image, SifImage
from builder.core.progress import Reporter
from builder.core.redact import redact
from builder.core.settings import Settings
from builder.core.store.folders import CacheFolders
from builder.core.text import visible

from .base import Runner, RunOptions
from .identity import container_root
from .process import Completed, tail

log = logging.getLogger(__name__)


class TaskLog(AbstractContextManager["TaskLog"]):
    """The output of a task, without credentials: reported line by line, and in a file of the logs.

    Args:
        settings: the cache.
        task: the name in progress messages and in the log of builder.
        reporter: receives the lines.
        kind: ends the name of the file: ``step``, ``wheel``.
    """

    def __init__(self, settings: Settings, task: str, reporter: Reporter, kind: str) -> None:
        folder = CacheFolders(settings.cache).logs
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self.path = folder / f"{now}-{os.getpid()}-{kind}.log"
        self.lines: list[str] = []
        self._task = task
        self._reporter = reporter
        self._file = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, line: str) -> None:
        """Record a line. It can be called from any thread."""
        text = visible(redact(line))
        self.lines.append(text)
        print(text, file=self._file, flush=True)
        log.info("%s: %s", self._task, text)
        if text.strip():
            self._reporter.doing(self._task, text)

    def tail(self, count: int) -> str:
        """Return the last lines, indented, for an error message."""
        return tail(self.lines, count)


def run_in_folder(
    runner: Runner, image: Image | SifImage, command: Sequence[str], options: RunOptions
) -> Completed:
    """Run a program in a temporary container and in the folder that ``options`` mount first.

    The folder then belongs to the container's root, and the program may have left anything in it:
    read its files with ``read_foreign``.

    Args:
        runner: runs the image.
        image: has the program.
        command: the program and its arguments; the image's entry point is not used.
        options: variables, files and folders, network, time limit. The first folder, which the
            program can write, must be under ``settings.tmpdir``.

    Raises:
        RunnerError, ImageError: The container cannot be started.
    """
    folder = options.mounts[0]
    container_root(keep_root=False).give(folder.source)
    return runner.run(image, command, replace(options, workdir=folder.target, entrypoint=()))
