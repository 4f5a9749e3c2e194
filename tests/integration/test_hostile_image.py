"""A hostile image tries to change the host, under each runner, as root and as an ordinary user."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from builder.build.run import userns
from builder.build.run.base import Mount, Runner, RunOptions
from builder.build.run.identity import STRANGER
from builder.core.errors import RunnerError
from builder.core.model import OCI_LAYER_GZIP, Descriptor, Image, Layer
from builder.core.settings import Settings
from builder.core.workspace import Workspace
from builder.formats.oci.digest import sha256
from tests.integration.conftest import working_runner
from tests.support import attacks, parts
from tests.support.images import make_test_image

#: Values of the host that the attempts may change.
_VALUES = ("kernel/core_pattern", "kernel/hostname", "fs/suid_dumpable", "vm/overcommit_memory")
#: The content of a file of the image.
SHARED = b"shared with other images"
ENVIRONMENT = {"PYTHONHOME": "/python", "LD_LIBRARY_PATH": "/python/lib"}


def python_of_host() -> list[Mount]:
    """Mounts that let a container run the Python of these tests, and the program of the attempts."""
    folders = [Path(name) for name in ("/usr", "/bin", "/lib", "/lib64")]
    system = [Mount(folder.resolve(), str(folder)) for folder in folders if folder.is_dir()]
    program = Mount(Path(attacks.__file__).parent, "/attacks")
    return [*system, Mount(Path(sys.base_prefix), "/python"), program]


def hostile_image(folder: Path, links: Mapping[str, str] | None = None) -> Image:
    """An image of the folders that a runtime needs as mount points; ``links`` takes the place of some."""
    names = ["dev", "etc", "proc", "root", "sys", "tmp", "var/tmp"]
    names += [mount.target.lstrip("/") for mount in python_of_host()]
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name in sorted({str(parent) for n in names for parent in (Path(n), *Path(n).parents)} - {"."}):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            if links and name.split("/")[0] in links:
                if "/" in name:
                    continue
                member.type, member.linkname = tarfile.SYMTYPE, links[name]
            tar.addfile(member)
        if not links:
            member = tarfile.TarInfo("etc/shared")
            member.size = len(SHARED)
            tar.addfile(member, io.BytesIO(SHARED))
    path = folder / "layer.tar.gz"
    path.write_bytes(gzip.compress(raw.getvalue()))
    descriptor = Descriptor.of(OCI_LAYER_GZIP, path.read_bytes())
    return make_test_image([Layer(descriptor, sha256(raw.getvalue()), path, title="hostile")])


def command(secret: Path) -> list[str]:
    return ["/python/bin/python3", "-B", "/attacks/attacks.py", str(secret)]


def runner_in(folder: Path, name: str = "userns") -> Runner:
    """A runner with its cache in a folder."""
    return working_runner(name, Workspace.of(Settings.from_environment(cache=folder / "cache")))


def attack(name: str, folder: Path, *, keep_root: bool = False) -> dict[str, Any]:
    """Lets an image of one file try everything; returns the program's report."""
    runner = runner_in(folder, name)
    (secret := folder / "secret").write_text("the host's")
    before = values()
    options = RunOptions(ENVIRONMENT, python_of_host(), entrypoint=[], timeout_s=200, keep_root=keep_root)
    done = runner.run(hostile_image(folder), command(secret), options)
    assert done.returncode == 0, done.stderr
    assert values() == before
    (file,) = (folder / "cache/rootfs").glob("*/etc/shared")
    info = file.stat()
    assert (info.st_mode & 0o777, info.st_mtime, info.st_nlink) == (0o644, 0, 2), "a link to the layer's"
    assert file.read_bytes() == SHARED and os.listxattr(file) == []
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def values() -> dict[str, str]:
    return {name: Path("/proc/sys", name).read_text() for name in _VALUES}


def worked(report: dict[str, Any]) -> dict[str, str]:
    return {name: reason for name, reason in report["attempts"].items() if reason.startswith("WORKED")}


def check(report: dict[str, Any]) -> None:
    """Nothing worked, and the command has neither privileges nor the means to get them."""
    assert worked(report) == {}
    status = report["status"]
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    assert status["CapEff"] == status["CapPrm"] == status["CapBnd"] == "00000000a80425fb"  # as in docker
    assert int(status["CapAmb"], 16) == 0


@pytest.mark.parametrize("keep_root", [False, True])
def test_userns(keep_root: bool, tmp_path: Path) -> None:
    report = attack("userns", tmp_path, keep_root=keep_root)
    check(report)
    inside, outside, count = map(int, report["uid_map"])
    assert (inside, count) == (0, 1)
    assert outside == (STRANGER if os.geteuid() == 0 and not keep_root else os.geteuid())


OTHER_KERNELS = {
    "before 5.12": "confine._MOUNT_SETATTR = 9999",
    "before 5.11": "refused = 'overlay'",
    "in a container": "refused = 'proc'",
}


@pytest.mark.parametrize("keep_root", [False, True])
@pytest.mark.parametrize("kernel", OTHER_KERNELS)
def test_other_kernels(kernel: str, keep_root: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where the kernel lacks recursive read-only mounts, or refuses an overlay or a new /proc."""
    start = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from builder.build.run import confine, jail\n"
        f"mount, refused = jail.mount, None; {OTHER_KERNELS[kernel]}\n"
        "jail.mount = lambda *args: -1 if args[2] and args[2] == refused else mount(*args)\n"
        "jail.main()\n"
    )
    monkeypatch.setattr("builder.build.run.userns._START", start)
    check(attack("userns", tmp_path, keep_root=keep_root))


@pytest.mark.root
def test_userns_as_ordinary_user(ordinary_user: parts.OrdinaryUser) -> None:
    code = (
        "import json, pathlib\n"
        "from tests.integration.test_hostile_image import attack\n"
        "print(json.dumps(attack('userns', pathlib.Path.cwd())))\n"
    )
    folder = ordinary_user.home
    done = ordinary_user.run([sys.executable, "-c", code], {"PYTHONPATH": str(parts.CLONE)}, cwd=folder)
    check(json.loads(done.stdout))


@pytest.mark.apptainer
@pytest.mark.root
def test_apptainer_as_root(
    apptainer: parts.Apptainer, tmp_path: Path, use_runner: Callable[[str], None]
) -> None:
    """Root's container has no more rights than an ordinary user; apptainer itself filters no system calls."""
    parts.need_root()
    use_runner("apptainer")
    report = attack("apptainer", tmp_path)
    dangerous = ("write", "open", "mount", "remount", "umount", "mknod", "chmod", "a file of")
    assert [name for name in worked(report) if name.startswith(dangerous)] == []
    assert report["status"]["Uid"].split() == [str(STRANGER)] * 4
    assert int(report["status"]["CapBnd"], 16) == 0


HONEST = """
import json, multiprocessing, multiprocessing.shared_memory, os, pty, subprocess, sys
found = {}
def attempt(name, work):
    try: work()
    except OSError as e: found[name] = e.errno
    else: found[name] = 0
folder, device = sys.argv[1:]
attempt("device", lambda: os.close(os.open(device, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)))
attempt("folder", lambda: os.mkdir(folder + "/new"))
attempt("null", lambda: open("/dev/null", "w").write("x"))
attempt("stdout", lambda: open("/dev/stdout", "w").close())
attempt("terminal", pty.openpty)
attempt("home", lambda: open(os.path.expanduser("~/file"), "w").close())
attempt("tmp", lambda: open("/tmp/file", "w").close())
def fill(name):
    shared = multiprocessing.shared_memory.SharedMemory(name)
    shared.buf[0] = 7
    shared.close()
shared = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
# forkserver, the default since Python 3.14, would import this text
process = multiprocessing.get_context("fork").Process(target=fill, args=(shared.name,))
process.start(); process.join()
found["shared memory"] = shared.buf[0]
shared.close(); shared.unlink()
print(json.dumps(found))
"""


@pytest.mark.parametrize("keep_root", [False, True])
def test_what_programs_need(keep_root: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are open for writing, but their folders are not; memory is shared between processes."""
    device = Path("/dev/net/tun")
    if not device.exists():
        pytest.skip(f"there is no {device}, which stands for a GPU in a folder such as /dev/dri")
    as_stranger = os.geteuid() == 0 and not keep_root
    usable = device.stat().st_mode & 0o006 == 0o006 if as_stranger else os.access(device, os.R_OK | os.W_OK)
    monkeypatch.setattr(userns, "gpu_devices", lambda vendor: [device.parent])
    runner = runner_in(tmp_path)
    options = RunOptions(ENVIRONMENT, python_of_host(), entrypoint=[], gpu="amd", keep_root=keep_root)
    words = ["/python/bin/python3", "-c", HONEST, str(device.parent), str(device)]
    done = runner.run(hostile_image(tmp_path), words, options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("device") == (0 if usable else errno.EACCES)
    assert found.pop("folder") == errno.EROFS and found.pop("shared memory") == 7
    assert set(found.values()) == {0}, found


def test_links_to_host(tmp_path: Path) -> None:
    """No link of an image leads to the host: not by "..", and not by a file that the runner has open."""
    runner = runner_in(tmp_path)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as target:  # a new /tmp hides the host's
        hosts = Path(target, "hosts")
        hosts.write_text("the host's")
        ways = [
            "usr/..",
            "..",
            "self/cwd/..",
            "self/fd/9/..",
            "/..",
            "/dev/..",
            "/proc/..",
            "/sys/..",
            "/proc/1/root",
            "/proc/self/cwd/..",
        ]
        ways += [f"/proc/self/fd/{number}" for number in range(3, 25)]
        for way in ways:
            image = hostile_image(tmp_path, {"etc": f"{way}{target}"})
            env = {**ENVIRONMENT, "HOME": f"{way}{target}/home"}
            options = RunOptions(env, python_of_host(), entrypoint=[], keep_root=True)
            with suppress(RunnerError):  # the link leads nowhere
                runner.run(image, ["/python/bin/python3", "-c", "pass"], options)
            assert hosts.read_text() == "the host's" and os.listdir(target) == ["hosts"], way
