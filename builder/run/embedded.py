"""The embedded runner: unpacked layers and a user-namespace chroot (util-linux). No engine, no root, no set-up.

The image's tree is below a throw-away overlay where the kernel lets an ordinary user have one (5.11 and newer), else bound
read-only with a fresh /tmp. GPU devices come with /dev; NVIDIA's driver libraries are bound from the host.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.config.recipe import GpuVendor
from builder.errors import RunnerError
from builder.model import Image
from builder.run.base import Completed, ImageCommand, Mount, execute, first_line
from builder.run.rootfs import cached_rootfs
from builder.settings import Settings
from builder.store import Store

_DRIVER = re.compile(r"lib(cuda|nvidia-ml|nvidia-ptxjitcompiler|nvidia-nvvm|cudadebugger)\.so[.\d]*$")
_DRIVER_FOLDER = "/run/nvidia/lib"
_NO_START = 200

_SCRIPT = """
set -u
fail() {{ echo "builder: $1" >&2; exit {no_start}; }}
{mount} -t tmpfs -o mode=755 tmpfs {work} || fail "no tmpfs"
{mkdir} {work}/upper {work}/work {work}/root
if ! {mount} -t overlay overlay -o lowerdir={image},upperdir={work}/upper,workdir={work}/work {work}/root 2>/dev/null; then
    {mount} --bind {image} {work}/root || fail "cannot bind the image"
    {mount} -o remount,bind,ro {work}/root || fail "cannot make the image read-only"
fi
cd {work}/root || fail "no root"
{mount} -t proc proc proc || fail "cannot mount /proc"
{mount} --rbind /dev dev || fail "cannot bind /dev"
{mount} --rbind /sys sys 2>/dev/null || true
{mount} -t tmpfs -o mode=1777 tmpfs tmp || fail "cannot mount /tmp"
{mount} -t tmpfs -o mode=755 tmpfs run || fail "cannot mount /run"
{mounts}
exec {chroot} . {inside}
"""


class EmbeddedRunner:
    """Runs images without any engine."""

    name = "embedded"

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store

    def available(self) -> str | None:
        for tool in ("unshare", "mount", "chroot"):
            if not _which(tool):
                return f"no {tool} (util-linux, coreutils)"
        done = execute([*_unshare(), "true"], timeout_s=10)
        return None if done.returncode == 0 else f"no user namespaces for this user: {first_line(done.stderr)}"

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
        config = ImageCommand.of(image)
        folder = cached_rootfs(image, self._settings, self._store)
        environ = {"HOME": "/tmp", **config.env, **(env or {})}  # noqa: S108  the image's own, a fresh tmpfs
        driver = _driver_libraries() if gpu == "nvidia" else []
        if driver:
            environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [environ.get("LD_LIBRARY_PATH"), _DRIVER_FOLDER]))
        inside = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', config.workdir, *config.entrypoint, *command]
        self._settings.tmpdir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._settings.tmpdir, prefix="run-") as work:
            script = _SCRIPT.format(
                no_start=_NO_START,
                mount=shlex.quote(str(_which("mount"))),
                mkdir=f"{shlex.quote(str(_which('mkdir')))} -p",
                chroot=shlex.quote(str(_which("chroot"))),
                work=shlex.quote(work),
                image=shlex.quote(str(folder)),
                mounts="\n".join(_mount_line(m) for m in [*driver, *mounts]),
                inside=shlex.join(inside),
            )
            done = execute([*_unshare(), "/bin/sh", "-c", script], env=environ, timeout_s=timeout_s)
        if done.returncode == _NO_START and "builder: " in done.stderr:
            raise RunnerError(f"the embedded runner could not start the image: {done.stderr.strip().splitlines()[-1]}", "use another --runner")
        return done


def _which(tool: str) -> str | None:
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin:/bin")


def _unshare() -> list[str]:
    return [str(_which("unshare")), "--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "--"]


def _mount_line(m: Mount) -> str:
    target = shlex.quote(m.target.lstrip("/"))
    make = f"mkdir -p {target}" if m.source.is_dir() else f'mkdir -p "$(dirname {target})" && : > {target}'
    lines = [f"PATH=/usr/bin:/bin; {{ [ -e {target} ] || {{ {make}; }}; }} || fail 'cannot make {m.target}'"]
    lines.append(f"mount --bind {shlex.quote(str(m.source))} {target} || fail 'cannot bind {m.target}'")
    if m.readonly:
        lines.append(f"mount -o remount,bind,ro {target} || true")
    return f"( {'; '.join(lines)} ) || exit {_NO_START}"


def _driver_libraries() -> list[Mount]:
    """The host's NVIDIA driver libraries, which no image may bring."""
    ldconfig = _which("ldconfig")
    if not ldconfig:
        return []
    done = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False)
    found: dict[str, Path] = {}
    for line in done.stdout.splitlines():
        name, _, path = line.strip().partition(" => ")
        name = name.split(" ")[0]
        if _DRIVER.match(name) and path and os.path.exists(path):
            found.setdefault(name, Path(path))
    return [Mount(path, f"{_DRIVER_FOLDER}/{name}") for name, path in sorted(found.items())]
