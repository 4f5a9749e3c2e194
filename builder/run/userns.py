"""The user-namespace runner: unpacked layers and user namespaces. No engine, no root, no set-up; jail.py is what happens inside."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.errors import RunnerError
from builder.model import Image, SifImage
from builder.run.base import (
    ImageConfig,
    Mount,
    Network,
    Runner,
    RunOptions,
    check_mounts,
    gpu_devices,
)
from builder.run.process import Completed, execute
from builder.run.rootfs import cached_rootfs
from builder.store.files import space_errors
from builder.store.folders import CacheFolders

_JAIL = Path(__file__).with_name("jail.py")
#: Libraries of NVIDIA's driver, which belong to the host's kernel module and which no image may bring.
_DRIVER = re.compile(
    r"lib(cuda|nvidia-ml|nvidia-ptxjitcompiler|nvidia-nvvm|nvidia-gpucomp|cudadebugger)\.so[.\d]*"
)
_DRIVER_FOLDER = "/run/builder-driver"
_RESTRICTED = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


class UsernsRunner(Runner):
    """Runs images without any engine, as root or as an ordinary user; inside, that user is root. The image's user is not used."""

    name = "userns"

    def available(self) -> str | None:
        with tempfile.TemporaryDirectory(
            prefix="builder-"
        ) as image:  # not in the cache: asking must not make one
            try:
                self._jail(Path(image), Path(image), [], {}, timeout_s=20)
            except RunnerError as e:
                hint = (
                    "; the sysctl kernel.apparmor_restrict_unprivileged_userns forbids it"
                    if _restricted()
                    else ""
                )
                return f"{e.message.partition(': ')[2]}{hint}"
        return None

    def _run(self, image: Image | SifImage, command: Sequence[str], options: RunOptions) -> Completed:
        config = ImageConfig.of(image)
        words = config.arguments(command, options.entrypoint)
        check_mounts(options.mounts)
        folder = cached_rootfs(image, self._settings, self._store, self._reporter)
        inside = {"HOME": "/root", **config.env, **options.env}
        devices = gpu_devices(options.gpu)
        driver = driver_libraries() if options.gpu == "nvidia" and devices else []
        if driver:
            inside["LD_LIBRARY_PATH"] = ":".join(
                filter(None, [inside.get("LD_LIBRARY_PATH"), _DRIVER_FOLDER])
            )
        work = (
            CacheFolders(self._settings.cache).rootfs / ".jail"
        )  # a mount point that every jail has for itself
        with space_errors(work.parent):
            work.mkdir(exist_ok=True)
        return self._jail(
            folder,
            work,
            words,
            inside,
            mounts=[*driver, *options.mounts],
            devices=devices,
            network=options.network,
            workdir=options.workdir or config.workdir,
            timeout_s=options.timeout_s,
            capture=options.capture,
        )

    def _jail(
        self,
        image: Path,
        work: Path,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        mounts: Sequence[Mount] = (),
        devices: Sequence[Path] = (),
        network: Network = "none",
        workdir: str = "/",
        timeout_s: float | None = None,
        capture: bool = True,
    ) -> Completed:
        plan: dict[str, Any] = {
            "image": str(image),
            "work": str(work),
            "command": list(command),
            "env": dict(env),
            "home": env.get("HOME", "/root"),
            "mounts": [
                {"source": str(m.source.absolute()), "target": m.target, "readonly": m.readonly}
                for m in mounts
            ],
            "devices": [d.name for d in devices],
            "network": network,
            "workdir": workdir,
        }
        # By open files: the variables may be secret, and must not be read off a command line.
        with (
            os.fdopen(os.memfd_create("plan"), "w+b") as told,
            os.fdopen(os.memfd_create("status"), "r+b") as status,
        ):
            told.write(json.dumps(plan).encode())
            told.seek(0)
            jail: list[str | Path] = [
                sys.executable,
                "-I",
                "-S",
                _JAIL,
                str(told.fileno()),
                str(status.fileno()),
            ]
            done = execute(
                jail, env={}, timeout_s=timeout_s, capture=capture, pass_fds=(told.fileno(), status.fileno())
            )
            status.seek(0)
            refused = status.read().decode(errors="replace")
        if refused:
            raise RunnerError(
                f"the user-namespace runner could not start: {refused}",
                "use another --runner, or see docs/smoke.md",
            )
        return done


def _restricted() -> bool:
    try:
        return _RESTRICTED.read_text().strip() == "1"
    except OSError:
        return False


def driver_libraries() -> list[Mount]:
    """The host's NVIDIA driver libraries, as the loader knows them, for a folder of the image."""
    ldconfig = shutil.which("ldconfig") or shutil.which("ldconfig", path="/usr/sbin:/sbin")
    if not ldconfig:
        return []
    done = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False)
    return [
        Mount(path, f"{_DRIVER_FOLDER}/{name}")
        for name, path in sorted(parse_ldconfig(done.stdout).items())
        if path.exists()
    ]


def parse_ldconfig(text: str) -> dict[str, Path]:
    """The driver's libraries in ``ldconfig -p``'s output, 64 bit ones, first come first served."""
    found: dict[str, Path] = {}
    for line in text.splitlines():
        name, _, path = line.strip().partition(" => ")
        name, _, kind = name.partition(" ")
        if _DRIVER.fullmatch(name) and path and "64" in kind:
            found.setdefault(name, Path(path))
    return found
