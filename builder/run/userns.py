"""The user-namespace runner, which needs no container engine, no root and no set-up.

This module prepares the run; jail.py does what happens inside the namespaces.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from builder.errors import RunnerError
from builder.model import Image, SifImage
from builder.progress import QUIET, Reporter
from builder.qemu import cannot_run, emulation
from builder.run.base import DEFAULT_OPTIONS, ImageConfig, Mount, Network, Runner, RunOptions
from builder.run.confine import seccomp_library
from builder.run.failures import hint_for
from builder.run.gpu import device_groups, gpu_devices, nvidia_libraries
from builder.run.identity import container_root
from builder.run.process import Completed, execute
from builder.run.rootfs import cached_rootfs

#: Imports jail.py without the packages of the environment, which are many.
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from builder.run.jail import main; main()"
)
_FOLDER = Path(__file__).parents[2]
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
    after it, and it can do what root does, see :class:`builder.run.confine.Filter`.
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
        interpreter = interpreter_of(config.architecture, self._work.reporter)
        root = container_root(keep_root=options.keep_root)
        folder = cached_rootfs(image, self._work, owner=root)
        if seccomp_library() is None:
            message = "libseccomp is not installed: the image's system calls are not filtered"
            self._work.reporter.warn(message)

        env = {"HOME": "/root", **config.env, **options.env}
        devices = gpu_devices(options.gpu)
        libraries = nvidia_libraries() if options.gpu == "nvidia" and devices else {}
        driver = [Mount(path, f"{_DRIVER_FOLDER}/{name}") for name, path in libraries.items()]
        if driver:
            folders = [env.get("LD_LIBRARY_PATH"), _DRIVER_FOLDER]
            env["LD_LIBRARY_PATH"] = ":".join(path for path in folders if path)

        plan = _Plan(
            str(folder),
            root.uid,
            root.gid,
            device_groups(devices),
            command=words,
            env=env,
            mounts=_mount_plans((*driver, *options.mounts)),
            devices=[device.name for device in devices],
            network=options.network,
            workdir=options.workdir or config.workdir,
            interpreter=interpreter,
        )
        return _start(plan, options)


def run_recorded(
    rootfs: Path, changes: Path, command: Sequence[str], options: RunOptions, interpreter: str = ""
) -> Completed:
    """Run a command in an unpacked image, and record its changes in ``changes/upper``.

    Its root can do what a package's script does as root, see
    :data:`builder.run.confine.EMULATED_CALLS`.

    Args:
        rootfs: The unpacked image, whose files belong to :func:`container_root`. It stays as it is.
        changes: An empty folder on a local file system.
        command: The program and its arguments.
        options: ``env`` is the complete environment.
        interpreter: See :func:`interpreter_of`.

    Returns:
        The result. ``changes/upper`` is the upper folder of an overlay: whiteouts are character
        devices 0/0, and the attribute ``user.overlay.opaque`` marks opaque folders.

    Raises:
        RunnerError: The command could not be started.
    """
    root = container_root(keep_root=options.keep_root)
    for name in ("upper", "work"):
        (changes / name).mkdir()
        (changes / name).chmod(0o755)
        root.give(changes / name)
    plan = _Plan(
        str(rootfs),
        root.uid,
        root.gid,
        command=command,
        env=options.env,
        mounts=_mount_plans(options.mounts),
        network=options.network,
        workdir=options.workdir or "/",
        changes=str(changes),
        interpreter=interpreter,
    )
    return _start(plan, options)


def interpreter_of(architecture: str, reporter: Reporter = QUIET) -> str:
    """Return the registration of the qemu for a processor; empty if this host's own runs it.

    Raises:
        RunnerError: This host cannot run them.
    """
    found = emulation(architecture)
    if found is None:
        return ""
    reporter.note(f"{cannot_run(architecture)}: qemu runs its programs, slowly")
    return found.registration


def _mount_plans(mounts: Iterable[Mount]) -> list[tuple[str, str, bool]]:
    return [(str(mount.source.absolute()), mount.target, mount.readonly) for mount in mounts]


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
        done = execute(
            [sys.executable, "-I", "-S", "-c", _START, _FOLDER, *map(str, descriptors)],
            env={},
            timeout_s=options.timeout_s,
            capture=options.capture,
            on_line=options.on_line,
            pass_fds=descriptors,
        )
        status_file.seek(0)
        problem = status_file.read().decode(errors="replace")
    if problem:
        hint = hint_for("userns", problem) or "use another --runner"
        raise RunnerError(f"{_NOT_STARTED}: {problem}", hint)
    return done
