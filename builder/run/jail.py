"""Runs one command in an unpacked image, in namespaces of its own. Standard library only, and nothing of builder.

userns.py starts it as a process of its own, since namespaces want a process with one thread:

    python -I -S jail.py PLAN STATUS

PLAN and STATUS are numbers of open files: what to do, as JSON, and where to write why the command could not begin.

The root file system is the image's tree below a throw-away overlay; where the kernel refuses one to this user, the tree itself,
read-only, with fresh folders for temporary files. Mounts are made after the process has moved into the new root, from files that
were opened before, so that no symlink of the image leads to the host. Process 1 reaps, passes signals on and ends with the
command's exit code (128 + n for signal n); when builder dies, all of it dies.
"""

# ruff: noqa: PTH102, PTH103, PTH108, PTH110, PTH112, PTH120, PTH123, PTH211, S108, S606
# Few imports: this starts for every command.

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
#: Flags of a mount that a remount must repeat where they are locked: as statvfs(2) and as mount(2) number them.
_LOCKED = {
    os.ST_NOSUID: _NOSUID,
    os.ST_NODEV: _NODEV,
    os.ST_NOEXEC: _NOEXEC,
    os.ST_NOATIME: 1024,
    os.ST_NODIRATIME: 2048,
    4096: 1 << 21,
}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203}
_MOUNT_SETATTR = 442
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_HOSTNAME = "builder"


class Refused(Exception):
    """The kernel does not allow it, or something is not there; the text is for people."""


def main() -> NoReturn:
    plan_file, status = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(status, False)
    with open(plan_file, encoding="utf-8") as f:
        plan = json.load(f)
    ending(status, lambda: outside(plan, status))


def ending(status: int, work: Callable[[], int]) -> NoReturn:
    """Ends this process with what ``work`` gives, or says why not."""
    try:
        os._exit(work())
    except Refused as e:
        text = str(e)
    except OSError as e:
        text = f"{e.filename}: {e.strerror}" if e.filename else str(e.strerror)
    os.write(status, text.encode(errors="replace"))
    os._exit(1)


def outside(plan: dict[str, Any], status: int) -> int:
    """In the process that builder started: makes the namespaces, starts process 1 and waits for it."""
    die_with_parent()
    uid, gid = os.getuid(), os.getgid()
    flags = _NEWUSER | _NEWNS | _NEWPID | _NEWIPC | _NEWUTS | (_NEWNET if plan["network"] == "none" else 0)
    must("new namespaces", _LIBC.unshare(flags))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        write(f"/proc/self/{name}", text)
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        ending(status, lambda: inside(plan, status))
    return supervise(pid)


def inside(plan: dict[str, Any], status: int) -> int:
    """Process 1 of the namespaces: makes the root file system, moves there and starts the command."""
    os.umask(0o022)
    must("mounts of our own", mount("none", "/", None, _REC | _PRIVATE))
    wanted = [(opened(m["source"]), m["target"], m["readonly"]) for m in plan["mounts"]]
    nodes = [
        (opened(f"/dev/{name}"), f"/dev/{name}")
        for name in (*_NODES, *plan["devices"])
        if os.path.exists(f"/dev/{name}")
    ]
    system, old_root = opened("/sys"), os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if plan["network"] == "host":
        names = {path: read(path) for path in ("/etc/resolv.conf", "/etc/hosts")}
    else:
        names = {"/etc/hosts": f"127.0.0.1 localhost {_HOSTNAME}\n::1 localhost\n"}
    writable = new_root(plan["image"], plan["work"])
    if mount("proc", "proc", "proc", _NOSUID | _NODEV | _NOEXEC) != 0:
        # Inside a container that hides parts of its /proc a new one is refused: ours has to do, with other process numbers.
        must("/proc", mount("/proc", "proc", None, _BIND | _REC))
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise Refused(f"not known on {platform.machine()}")
    must("the new root", _LIBC.syscall(number, b".", b"."))

    if mount(f"/proc/self/fd/{system}", "/sys", None, _BIND | _REC) == 0:
        read_only("/sys")
    fill_dev(nodes)
    for place, mode in (("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", 0o755), (plan["home"], 0o700)):
        if writable:
            os.makedirs(place, mode=mode, exist_ok=True)
        elif os.path.isdir(place):
            must(place, mount("tmpfs", place, "tmpfs", _NOSUID | _NODEV, f"mode={mode:o}"))
    for path, text in names.items() if writable else ():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with suppress(FileNotFoundError):
            os.unlink(path)
        write(path, text, os.O_CREAT)
    for source, target, readonly in wanted:
        bind(source, target, readonly)
    os.fchdir(old_root)  # it lies above the new root, which is below the same name
    must("leaving the host's files", _LIBC.umount2(b".", 2))
    os.chdir("/")
    for fd in (old_root, system, *(item[0] for item in wanted), *(item[0] for item in nodes)):
        os.close(fd)
    socket.sethostname(_HOSTNAME)
    if plan["network"] == "none":
        loopback_up()
    if not plan["command"]:
        return 0
    pid = os.fork()
    if pid == 0:
        ending(status, lambda: start(plan))
    return supervise(pid)


def start(plan: dict[str, Any]) -> NoReturn:
    """Becomes the command."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    _LIBC.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    with suppress(OSError):
        os.makedirs(plan["workdir"], exist_ok=True)
    os.chdir(plan["workdir"])
    try:
        os.execvpe(plan["command"][0], plan["command"], plan["env"])
    except OSError as e:
        raise Refused(f"cannot run {plan['command'][0]} in the image: {e.strerror}") from None


def supervise(pid: int) -> int:
    """Waits for a child, and reaps whatever else was left to this process; gives the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: os.kill(pid, n))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal gives it to the command itself
    while True:
        done, code = os.waitpid(-1, 0)
        if done == pid:
            return 128 + os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)


# the root file system -------------------------------------------------------------------------------------------------


def new_root(image: str, work: str) -> bool:
    """Mounts the image's tree at ``work/root`` and goes there; gives whether it can be written to, for as long as this lasts."""
    tree = opened(image)
    must("a temporary file system", mount("tmpfs", work, "tmpfs", _NOSUID | _NODEV, "mode=755"))
    os.chdir(work)
    for name in ("upper", "work", "root"):
        os.mkdir(name, 0o755)
    layers = f"lowerdir=/proc/self/fd/{tree},upperdir=upper,workdir=work"
    writable = any(mount("overlay", "root", "overlay", 0, layers + more) == 0 for more in (",userxattr", ""))
    if not writable:
        must("the image", mount(f"/proc/self/fd/{tree}", "root", None, _BIND | _REC))
    os.chdir("root")
    for name in ("proc", "sys", "dev"):
        try:
            is_folder = stat.S_ISDIR(os.lstat(name).st_mode)
        except FileNotFoundError:
            os.mkdir(name, 0o755)
            continue
        if not is_folder:
            raise Refused(f"/{name} is not a folder in the image")
    if not writable and not read_only("."):
        raise Refused("the image's tree cannot be protected")
    os.close(tree)
    return writable


def fill_dev(nodes: list[tuple[int, str]]) -> None:
    """A /dev with the usual devices and the GPU's, and nothing else of the host's."""
    must("/dev", mount("tmpfs", "/dev", "tmpfs", _NOSUID, "mode=755"))
    for fd, path in nodes:
        bind(fd, path, False)
    for name, options in (("shm", "mode=1777"), ("pts", "newinstance,ptmxmode=0666,mode=0620")):
        os.mkdir(f"/dev/{name}")
        kind = "tmpfs" if name == "shm" else "devpts"
        must(
            f"/dev/{name}",
            mount(kind, f"/dev/{name}", kind, _NOSUID | _NOEXEC | (_NODEV if name == "shm" else 0), options),
        )
    for name, target in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ):
        os.symlink(target, f"/dev/{name}")


def bind(fd: int, target: str, readonly: bool) -> None:
    """Mounts an open file or folder of the host at a path of the new root, made if it is not there."""
    if not os.path.exists(target):
        try:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                os.makedirs(target)
            else:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except OSError as e:
            raise Refused(
                f"cannot make {target} in the image to mount something there: {e.strerror}"
            ) from None
    must(f"mounting at {target}", mount(f"/proc/self/fd/{fd}", target, None, _BIND | _REC))
    if readonly and not read_only(target):
        raise Refused(f"{target} cannot be mounted read-only")


def read_only(path: str) -> bool:
    """Forbids writing to a mount and those below it (before Linux 5.12: not those below it); gives whether that worked."""
    attributes = struct.pack("=QQQQ", _RDONLY, 0, 0, 0)
    at_fdcwd, at_recursive = -100, 0x8000
    if (
        _LIBC.syscall(_MOUNT_SETATTR, at_fdcwd, os.fsencode(path), at_recursive, attributes, len(attributes))
        == 0
    ):
        return True
    has = os.statvfs(path).f_flag
    flags = sum(number for seen, number in _LOCKED.items() if has & seen)
    return mount(None, path, None, _REMOUNT | _BIND | _RDONLY | flags) == 0


# the system -----------------------------------------------------------------------------------------------------------


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> int:
    """mount(2); 0 when it worked."""
    encoded = [None if s is None else os.fsencode(s) for s in (source, target, kind)]
    return int(_LIBC.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options) or None))


def must(what: str, result: int) -> None:
    """Raises Refused with the kernel's reason unless a call of the C library gave 0."""
    if result != 0:
        raise Refused(f"{what}: {os.strerror(ctypes.get_errno())}")


def die_with_parent() -> None:
    _LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def opened(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as f:
            return f.read()
    except OSError:
        return ""


def write(path: str, text: str, flags: int = 0) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    try:
        os.write(fd, os.fsencode(text))
    finally:
        os.close(fd)


def loopback_up() -> None:
    """Torch's workers talk to each other by it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack_from("h", fcntl.ioctl(s, 0x8913, request + bytes(22)), 16)[0]  # SIOCGIFFLAGS
        fcntl.ioctl(s, 0x8914, struct.pack("16sh", b"lo", flags | 1) + bytes(22))  # SIOCSIFFLAGS, IFF_UP


if __name__ == "__main__":
    main()
