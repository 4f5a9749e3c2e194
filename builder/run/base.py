"""What all runners share: the interface, an image's config as a command line, GPU devices, processes that end when they must."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from builder.config.recipe import GpuVendor
from builder.errors import RunnerError
from builder.model import Image, SifImage
from builder.oci.layout import write_layout
from builder.progress import QUIET, Reporter
from builder.run.process import Completed
from builder.settings import Settings
from builder.sif.read import read_sif
from builder.store.blobs import Store
from builder.store.files import remove_tree
from builder.store.folders import CacheFolders

#: Of /dev/shm where the engine gives little by default; counted only when it is written to.
SHM_SIZE = "1g"
_OCI_NAME = "image"

Network = Literal["none", "host"]


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host in the image. ``target`` is an absolute path there."""

    source: Path
    target: str
    readonly: bool = True


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What :meth:`Runner.run` was given beside image and command, as it describes it."""

    env: Mapping[str, str]
    mounts: Sequence[Mount]
    workdir: str | None
    entrypoint: Sequence[str] | None
    gpu: GpuVendor
    network: Network
    timeout_s: float | None
    capture: bool


class Runner(ABC):
    """One way of running an image."""

    name: ClassVar[str]

    def __init__(self, settings: Settings, store: Store, reporter: Reporter = QUIET) -> None:
        self._settings = settings
        self._store = store
        self._reporter = reporter

    @abstractmethod
    def available(self) -> str | None:
        """None when it works on this host for this user, else the reason; takes seconds at most."""

    def run(
        self,
        image: Image | SifImage,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[Mount] = (),
        workdir: str | None = None,
        entrypoint: Sequence[str] | None = None,
        gpu: GpuVendor = "none",
        network: Network = "none",
        timeout_s: float | None = None,
        capture: bool = True,
    ) -> Completed:
        """Runs a command in a throw-away container of the image; nothing of the container is left afterwards.

        Args:
            image: the image; all its layers are on this machine. It is loaded or unpacked when the runner does not have it yet.
                A SIF is run as it is by apptainer, unpacked by userns, and refused by docker and podman.
            command: appended to the entry point; empty: the image's own command.
            env: variables beside the image's; these win.
            mounts: of the host, beside what the runner itself brings.
            workdir: instead of the image's.
            entrypoint: instead of the image's.
            gpu: gives the container this vendor's GPUs, as far as the host has any.
            network: none, or the host's.
            timeout_s: seconds after which the command is ended; the time for loading the image does not count.
            capture: False lets the command write to this process's own output.

        Raises:
            RunnerError: the container or the command could not be started, or the runner does not take SIFs.
            ImageError: the image cannot be unpacked or loaded.
        """
        return self._run(
            image,
            command,
            RunOptions(env or {}, mounts, workdir, entrypoint, gpu, network, timeout_s, capture),
        )

    @abstractmethod
    def _run(self, image: Image | SifImage, command: Sequence[str], options: RunOptions) -> Completed:
        """What :meth:`run` says."""


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """An image's config (image-spec, config.md) as far as running needs it."""

    env: dict[str, str]
    entrypoint: list[str]
    command: list[str]
    workdir: str

    @classmethod
    def of(cls, image: Image | SifImage) -> ImageConfig:
        whole = read_sif(image.path).config() if isinstance(image, SifImage) else json.loads(image.config)
        config: dict[str, Any] = whole.get("config") or {}
        env = dict(item.partition("=")[::2] for item in config.get("Env") or [])
        return cls(
            env,
            list(config.get("Entrypoint") or []),
            list(config.get("Cmd") or []),
            config.get("WorkingDir") or "/",
        )

    def arguments(self, command: Sequence[str], entrypoint: Sequence[str] | None) -> list[str]:
        """The whole command line, as docker makes it: another entry point drops the image's own command.

        Raises:
            RunnerError: there is nothing to run.
        """
        own = [] if entrypoint is not None else self.command
        words = [*(self.entrypoint if entrypoint is None else entrypoint), *(command or own)]
        if not words:
            raise RunnerError("the image has neither entry point nor command", "say what to run")
        return words


def refuse_sif(image: Image | SifImage, runner: str) -> Image:
    """The image, when it is an OCI image.

    Raises:
        RunnerError: it is a SIF.
    """
    if isinstance(image, SifImage):
        raise RunnerError(
            f"{runner} does not run SIFs, and {image.path} is one",
            "use --runner apptainer or --runner userns, or turn it into an OCI image: builder convert",
        )
    return image


def check_mounts(mounts: Sequence[Mount], unfit: str = "") -> None:
    """Refuses mounts that do not exist, or whose paths hold a character that the runner's command line cannot carry.

    Raises:
        RunnerError: with the path.
    """
    for m in mounts:
        if not m.source.exists():
            raise RunnerError(
                f"{m.source} does not exist and cannot be mounted at {m.target}", "correct the path"
            )
        if not m.target.startswith("/") or ".." in m.target.split("/") or m.target.rstrip("/") == "":
            raise RunnerError(
                f"{m.target!r} is not an absolute path inside the image", "write it from the root: /data"
            )
        if bad := set(unfit) & set(f"{m.source}{m.target}"):
            raise RunnerError(
                f"{m.source} cannot be mounted at {m.target}: {''.join(sorted(bad))!r} in the path",
                "rename it",
            )


# GPUs -----------------------------------------------------------------------------------------------------------------

_DEVICES = {
    "nvidia": re.compile(r"nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-caps)|dxg"),
    "amd": re.compile(r"kfd|dri|dxg"),
    "none": re.compile(r"(?!)"),
}


def gpu_devices(vendor: GpuVendor, folder: Path = Path("/dev")) -> list[Path]:
    """The device files and folders of a vendor's GPUs on this host; empty when it has none.

    AMD's are complete with ``kfd`` only: ``dri`` alone is any graphics card.
    """
    found = sorted(p for p in folder.iterdir() if _DEVICES[vendor].fullmatch(p.name))
    names = {p.name for p in found}
    return [] if vendor == "amd" and not names & {"kfd", "dxg"} else found


# processes ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def image_layout(image: Image, settings: Settings, store: Store) -> Iterator[str]:
    """The image alone in a temporary OCI layout (hard links to the cache: no space, no time); gives ``oci:DIR:TAG``.

    Raises:
        ImageError: a layer is not on this machine.
    """
    folder = CacheFolders(settings.cache).tmp / f"layout-{os.getpid()}-{secrets.token_hex(6)}"
    # podman 4.3 makes an image name of the path, which takes neither capitals nor names like .cache: it gets a plain link
    plain = Path("/tmp") / f"builder-{secrets.token_hex(8)}"  # noqa: S108  nobody else can guess it or write in it
    try:
        write_layout(image, folder, _OCI_NAME, store)
        plain.mkdir(mode=0o700)
        (plain / "layout").symlink_to(folder)
        yield f"oci:{plain}/layout:{_OCI_NAME}"
    finally:
        for path in (plain, folder):
            if path.exists():
                remove_tree(path)
