"""What all runners share: the interface, an image's config as a command line, and processes that end when they must."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from builder.config.recipe import GpuVendor
from builder.model import Image
from builder.settings import Settings
from builder.store import Store

#: A command that was ended because it took too long.
TIMED_OUT = 124


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host in the image."""

    source: Path
    target: str
    readonly: bool = True


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command in an image ended. ``returncode`` 124 with ``timed_out``; output as text."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False


class Runner(Protocol):
    """One way of running an image."""

    name: str

    def available(self) -> str | None:
        """None when it works on this host, else the reason; cheap."""

    def run(
        self,
        image: Image,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[Mount] = (),
        gpu: GpuVendor = "none",
        timeout_s: float | None = None,
    ) -> Completed:
        """Runs a command in a throw-away container of the image, through its entry point, without a network.

        Raises:
            RunnerError: the container could not be started.
        """


@dataclass(frozen=True, slots=True)
class ImageCommand:
    """An image's config as far as running needs it."""

    env: dict[str, str]
    entrypoint: list[str]
    workdir: str

    @classmethod
    def of(cls, image: Image) -> ImageCommand:
        config = json.loads(image.config).get("config") or {}
        env = dict(item.partition("=")[::2] for item in config.get("Env") or [])
        return cls(env, list(config.get("Entrypoint") or []), config.get("WorkingDir") or "/")


@contextlib.contextmanager
def image_layout(image: Image, settings: Settings, store: Store) -> Iterator[Path]:
    """The image alone in an OCI layout of the cache (hard links: no space, no time)."""
    from builder.image.layout import write_layout

    folder = settings.cache / "layouts" / image.digest.partition(":")[2][:24]
    write_layout(image, folder, "image", store)
    yield folder


def execute(command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float | None = None) -> Completed:
    """Runs a command in a process group of its own; on time-out or Ctrl-C the whole group is ended."""
    process = subprocess.Popen(
        list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        env=None if env is None else dict(env), start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=timeout_s)
        return Completed(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        _end(process)
        out, err = process.communicate()
        return Completed(TIMED_OUT, out or "", err or "", timed_out=True)
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
