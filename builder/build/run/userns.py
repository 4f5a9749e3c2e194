"""The user-namespace runner, which needs no container engine, no root and no set-up.

This module prepares the run; jail.py does what happens inside the namespaces.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from builder.core.errors import RunnerError
from builder.core.model import Image, SifImage
from builder.core.progress import Reporter
from builder.formats.qemu import cannot_run, emulation
from builder.lock.config.site import GpuVendor

from .base import DEFAULT_OPTIONS, ImageConfig, Mount, Network, Runner, RunOptions
from .confine import seccomp_library
from .failures import hint_for
from .gpu import device_groups, gpu_devices, nvidia_libraries
from .identity import Identity, container_root
from .process import Completed
from .rootfs import cached_rootfs

#: Imports jail.py without the packages of the environment, which are many.
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from builder.build.run.jail import main; main()"
_FOLDER = Path(__file__).parents[3]
#: Where the host's driver libraries are in the container.
_DRIVER_FOLDER = "/run/builder-driver"
_NOT_STARTED = "the user-namespace runner could not start"


@dataclass(frozen=True)
class _Plan:
    """What jail.py reads, as JSON."""

    image: str
    """The unpacked root file system."""
    uid: int
    """Of the host's user who is root in the container."""
    gid: int
    groups: Sequence[int] = ()
    """Further groups on the host, if ``uid`` is not this user."""
    command: Sequence[str] = ()
    """Empty: only set up the namespaces, to see if that works."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The complete environment of the command; without HOME, that is ``/root``."""
    mounts: Sequence[tuple[str, str, bool]] = ()
    """Path on the host, path in the container, and whether it is read-only."""
    devices: Sequence[str] = ()
    """Names in the host's /dev, in addition to the usual ones (null, zero, ...)."""
    network: Network = "none"
    workdir: str = "/"
    changes: str = ""
    """A folder with the folders ``upper`` and ``work``: what the command changes is in ``upper``
    after it, and it can do what root does, see :class:`builder.build.run.confine.Filter`.
    Empty: changes are lost."""
    interpreter: str = ""
    """What runs the image's programs, if they are for another processor; empty: this processor."""


class UsernsRunner(Runner):
    """Runs images as root or as an ordinary user, who is root inside; the image's own is ignored.

    confine.py takes from the container what it could use against the host. In addition, builder's
    root is not the container's (a stranger is, see identity.py), unless the options say so.
    """

    name = "userns"

    def available(self) -> str | None:
        # not in the cache, because a check must not create one
        with tempfile.TemporaryDirectory(prefix="builder-") as folder:
            root = container_root(keep_root=False)
            try:
                root.give(Path(folder))
                _start(_Plan(folder, root.uid, root.gid), RunOptions(timeout_s=20))
            except RunnerError as e:
                return e.message.removeprefix(f"{_NOT_STARTED}: ")
        return None

    def run(
        self, image: Image | SifImage, command: Sequence[str], options: RunOptions = DEFAULT_OPTIONS
    ) -> Completed:
        config = ImageConfig.of(image)
        words = config.arguments(command, options.entrypoint)
        for mount in options.mounts:
            mount.check()
        interpreter = _interpreter(config.architecture, self._work.reporter)
        root = container_root(keep_root=options.keep_root)
        folder = cached_rootfs(image, self._work, owner=root)
        without = "the image's system calls are not filtered"
        if options.changes is not None:
            without = "chown, setuid and mknod fail in steps"
            _make_overlay(options.changes, root)
        if seccomp_library() is None:
            self._work.reporter.warn(f"libseccomp is not installed: {without}")

        env = {"HOME": "/root", **config.env, **options.env}
        devices = gpu_devices(options.gpu)
        driver = _mount_driver(env, options.gpu) if devices else []
        mounts = (*driver, *options.mounts)
        plan = _Plan(
            str(folder),
            root.uid,
            root.gid,
            device_groups(devices),
            command=words,
            env=env,
            mounts=[(str(m.source.absolute()), m.target, m.readonly) for m in mounts],
            devices=[device.name for device in devices],
            network=options.network,
            workdir=options.workdir or config.workdir,
            changes=str(options.changes or ""),
            interpreter=interpreter,
        )
        return _start(plan, options)


def _make_overlay(folder: Path, root: Identity) -> None:
    """Make the folders of an overlay, for the root of a container."""
    for part in (folder / "upper", folder / "work"):
        part.mkdir()
        part.chmod(0o755)
        root.give(part)


def _mount_driver(env: dict[str, str], gpu: GpuVendor) -> list[Mount]:
    """Return mounts of NVIDIA's driver libraries, and add their folder to LD_LIBRARY_PATH."""
    libraries = nvidia_libraries() if gpu == "nvidia" else {}
    if libraries:
        folders = [env.get("LD_LIBRARY_PATH"), _DRIVER_FOLDER]
        env["LD_LIBRARY_PATH"] = ":".join(path for path in folders if path)
    return [Mount(path, f"{_DRIVER_FOLDER}/{name}") for name, path in libraries.items()]


def _interpreter(architecture: str, reporter: Reporter) -> str:
    """Return the registration of the qemu for a processor; empty if this host's own runs it.

    Raises:
        RunnerError: This host cannot run them.
    """
    found = emulation(architecture)
    if found is None:
        return ""
    reporter.note(f"{cannot_run(architecture)}: qemu runs its programs, slowly")
    return found.registration


def _start(plan: _Plan, options: RunOptions) -> Completed:
    """Run jail.py with the time limit and the outputs of the options.

    The plan is passed through an open file and not on the command line, because variables may be
    secret.

    Raises:
        RunnerError: The command could not be started; the message contains the reason.
    """
    with (
        os.fdopen(os.memfd_create("plan"), "w+b") as plan_file,
        os.fdopen(os.memfd_create("status"), "r+b") as status_file,
    ):
        plan_file.write(json.dumps(asdict(plan)).encode())
        plan_file.seek(0)
        descriptors = (plan_file.fileno(), status_file.fileno())
        python = (sys.executable, "-I", "-S", "-c", _START, _FOLDER)
        done = options.execute([*python, *map(str, descriptors)], {}, descriptors)
        status_file.seek(0)
        problem = status_file.read().decode(errors="replace")
    if problem:
        hint = hint_for("userns", problem) or "see builder doctor"
        raise RunnerError(f"{_NOT_STARTED}: {problem}", hint)
    return done
