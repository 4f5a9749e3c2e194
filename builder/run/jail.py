"""Runs one command in an unpacked image, in Linux namespaces. Uses only the standard library.

userns.py starts it as a separate process, because unshare(2) with a user namespace requires a process with
one thread:

    python -I -S jail.py PLAN STATUS

PLAN and STATUS are numbers of open files: the plan as JSON (userns.py: ``_Plan``), and where to write why the
command could not start. An empty status file means that the command ran, and the exit code is the command's.

    UsernsRunner           in the host's namespaces, as an ordinary user or root
       | starts jail.py
    outside()              unshare: new user, mount, process, IPC, host name (and network) namespaces;
       | forks, waits      this user is root inside
    inside()               process 1 of the new process namespace
       | 1 open_host()       open all files of the host that are needed later
       | 2 new_root()        tmpfs at WORK; overlay of the image (below) and the tmpfs (above) at WORK/root
       | 3 enter_root()      mount /proc, pivot_root: from here on, paths are those of the image
       | 4 fill_root()       /sys, /dev, /tmp, HOME, /etc/hosts, and the mounts of the plan
       | 5 leave_host()      unmount the host's root, close its files; then host name and loopback
       | forks, waits, reaps orphans
    start()                gives up privileges, changes to the working directory, becomes the command

The order of steps 1 and 4 matters: bind mounts are made from files opened before pivot_root, under paths
resolved after it. So a symlink in the image cannot lead to a file of the host.

Where the kernel refuses the overlay to this user (before Linux 5.11), the image's tree is mounted itself,
read-only, with an empty tmpfs on each folder for temporary files.

Exit codes pass up unchanged: the command's, or 128 + n after signal n. SIGTERM and SIGHUP pass down. Each
process dies with its parent, so nothing is left when builder is killed.
"""

# Few imports: this starts for every command. So no pathlib, hence:
# ruff: noqa: PTH102, PTH103, PTH108, PTH110, PTH112, PTH120, PTH123, PTH211, S108, S606

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
from typing import Any, NamedTuple, NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)

# <linux/sched.h>, unshare(2)
_NEWNS, _NEWUTS, _NEWIPC = 0x20000, 0x4000000, 0x8000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
# <linux/mount.h>, mount(2)
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
#: A remount must repeat the flags that the kernel has locked. Maps the flags of statvfs(2) to those of
#: mount(2).
_LOCKED_FLAGS = {
    os.ST_NOSUID: _NOSUID,
    os.ST_NODEV: _NODEV,
    os.ST_NOEXEC: _NOEXEC,
    os.ST_NOATIME: 1024,
    os.ST_NODIRATIME: 2048,
    4096: 1 << 21,  # relatime
}
# numbers of system calls
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203}
_MOUNT_SETATTR = 442
# <linux/prctl.h>
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
# <linux/sockios.h>, netdevice(7)
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_HOSTNAME = "builder"


class Refused(Exception):
    """The kernel refuses a step, or a file is missing; the text is for the user."""


class HostFiles(NamedTuple):
    """Files of the host that were opened before the root file system changed."""

    mounts: list[tuple[int, str, bool]]
    """Descriptor, target and readonly of each mount."""
    devices: list[tuple[int, str]]
    """Descriptor and path of each device."""
    sys: int
    root: int
    network_files: dict[str, str]
    """Texts of /etc/hosts and /etc/resolv.conf in the container, by path."""


def main() -> NoReturn:
    plan_file, status = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(status, False)
    with open(plan_file, encoding="utf-8") as f:
        plan = json.load(f)
    exit_with(status, lambda: outside(plan, status))


def exit_with(status: int, work: Callable[[], int]) -> NoReturn:
    """Ends this process with the exit code of ``work``, or writes into the status file why it failed."""
    try:
        os._exit(work())
    except Refused as e:
        text = str(e)
    except OSError as e:
        text = f"{e.filename}: {e.strerror}" if e.filename else str(e.strerror)
    os.write(status, text.encode(errors="replace"))
    os._exit(1)


# the three processes ----------------------------------------------------------------------------------------


def outside(plan: dict[str, Any], status: int) -> int:
    """The process that builder started: creates the namespaces and starts process 1 in them."""
    die_with_parent()
    uid, gid = os.getuid(), os.getgid()
    flags = _NEWUSER | _NEWNS | _NEWPID | _NEWIPC | _NEWUTS
    if plan["network"] == "none":
        flags |= _NEWNET
    must("new namespaces", _LIBC.unshare(flags))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        write(f"/proc/self/{name}", text)

    pid = os.fork()
    if pid == 0:
        die_with_parent()
        exit_with(status, lambda: inside(plan, status))
    return supervise(pid)


def inside(plan: dict[str, Any], status: int) -> int:
    """Process 1: sets up the root file system and starts the command; returns its exit code."""
    os.umask(0o022)
    must("private mounts", mount("none", "/", None, _REC | _PRIVATE))
    host = open_host(plan)
    writable = new_root(plan["image"], plan["work"])
    enter_root()
    fill_root(plan, host, writable)
    leave_host(host)

    socket.sethostname(_HOSTNAME)
    if plan["network"] == "none":
        start_loopback()
    if not plan["command"]:
        return 0
    pid = os.fork()
    if pid == 0:
        exit_with(status, lambda: start(plan))
    return supervise(pid)


def start(plan: dict[str, Any]) -> NoReturn:
    """Becomes the command."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    with suppress(OSError):
        os.makedirs(plan["workdir"], exist_ok=True)
    os.chdir(plan["workdir"])
    try:
        os.execvpe(plan["command"][0], plan["command"], plan["env"])
    except OSError as e:
        raise Refused(f"cannot run {plan['command'][0]} in the image: {e.strerror}") from None


def supervise(pid: int) -> int:
    """Waits for a child and reaps orphans; returns the child's exit code, or 128 + n after signal n."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: os.kill(pid, n))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the command directly
    while True:
        done, code = os.waitpid(-1, 0)
        if done != pid:
            continue
        return 128 + os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)


# the root file system ---------------------------------------------------------------------------------------


def open_host(plan: dict[str, Any]) -> HostFiles:
    """Step 1: opens all files of the host that are needed after pivot_root."""
    paths = [f"/dev/{name}" for name in (*_DEVICES, *plan["devices"])]
    if plan["network"] == "host":
        network_files = {path: read(path) for path in ("/etc/resolv.conf", "/etc/hosts")}
    else:
        network_files = {"/etc/hosts": f"127.0.0.1 localhost {_HOSTNAME}\n::1 localhost\n"}
    return HostFiles(
        mounts=[(open_path(m["source"]), m["target"], m["readonly"]) for m in plan["mounts"]],
        devices=[(open_path(path), path) for path in paths if os.path.exists(path)],
        sys=open_path("/sys"),
        root=os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
        network_files=network_files,
    )


def new_root(image: str, work: str) -> bool:
    """Step 2: mounts the image's tree at ``work/root`` and changes to it.

    Returns whether it is writable; changes are lost when the namespaces end.
    """
    tree = open_path(image)
    must("a temporary file system", mount("tmpfs", work, "tmpfs", _NOSUID | _NODEV, "mode=755"))
    os.chdir(work)
    for name in ("upper", "work", "root"):
        os.mkdir(name, 0o755)
    layers = f"lowerdir=/proc/self/fd/{tree},upperdir=upper,workdir=work"
    # userxattr: Linux 5.11 and later, required in a user namespace; older kernels do not know it
    writable = any(mount("overlay", "root", "overlay", 0, layers + more) == 0 for more in (",userxattr", ""))
    if not writable:
        must("the image", mount(f"/proc/self/fd/{tree}", "root", None, _BIND | _REC))

    os.chdir("root")
    for name in ("proc", "sys", "dev"):
        make_mount_point(name)
    if not writable and not make_readonly("."):
        raise Refused("the image's tree cannot be mounted read-only")
    os.close(tree)
    return writable


def make_mount_point(name: str) -> None:
    """Creates a folder unless it exists. Refuses symlinks, which may lead to the host."""
    try:
        is_folder = stat.S_ISDIR(os.lstat(name).st_mode)
    except FileNotFoundError:
        os.mkdir(name, 0o755)
        return
    if not is_folder:
        raise Refused(f"/{name} is not a folder in the image")


def enter_root() -> None:
    """Step 3: mounts /proc and makes the current folder the root. The host's root is then mounted over it."""
    if mount("proc", "proc", "proc", _NOSUID | _NODEV | _NOEXEC) != 0:
        # In a container that hides parts of its /proc the kernel refuses a new one. The existing one then
        # shows the process numbers of the host.
        must("/proc", mount("/proc", "proc", None, _BIND | _REC))
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise Refused(f"the number of the system call pivot_root is not known on {platform.machine()}")
    must("the new root", _LIBC.syscall(number, b".", b"."))


def fill_root(plan: dict[str, Any], host: HostFiles, writable: bool) -> None:
    """Step 4: the folders and files that a container has in addition to those of the image."""
    if mount(f"/proc/self/fd/{host.sys}", "/sys", None, _BIND | _REC) == 0:
        make_readonly("/sys")
    fill_dev(host.devices)

    for path, mode in (("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", 0o755), (plan["home"], 0o700)):
        if writable:
            os.makedirs(path, mode=mode, exist_ok=True)
        elif os.path.isdir(path):
            must(path, mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV, f"mode={mode:o}"))

    if writable:
        for path, text in host.network_files.items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with suppress(FileNotFoundError):
                os.unlink(path)
            write(path, text, os.O_CREAT)

    for source, target, readonly in host.mounts:
        bind(source, target, readonly)


def leave_host(host: HostFiles) -> None:
    """Step 5: unmounts the host's root and closes all files of the host."""
    os.fchdir(host.root)  # it has the same path as the new root, and is mounted above it
    must("leaving the host's files", _LIBC.umount2(b".", _MNT_DETACH))
    os.chdir("/")
    mounts, devices = [item[0] for item in host.mounts], [item[0] for item in host.devices]
    for fd in (host.root, host.sys, *mounts, *devices):
        os.close(fd)


def fill_dev(devices: list[tuple[int, str]]) -> None:
    """Creates a /dev with the given devices of the host and no others."""
    must("/dev", mount("tmpfs", "/dev", "tmpfs", _NOSUID, "mode=755"))
    for fd, path in devices:
        bind(fd, path, False)

    os.mkdir("/dev/shm")
    must("/dev/shm", mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NOEXEC | _NODEV, "mode=1777"))
    os.mkdir("/dev/pts")
    options = "newinstance,ptmxmode=0666,mode=0620"
    must("/dev/pts", mount("devpts", "/dev/pts", "devpts", _NOSUID | _NOEXEC, options))

    links = {
        "ptmx": "pts/ptmx",
        "fd": "/proc/self/fd",
        "stdin": "fd/0",
        "stdout": "fd/1",
        "stderr": "fd/2",
    }
    for name, target in links.items():
        os.symlink(target, f"/dev/{name}")


def bind(fd: int, target: str, readonly: bool) -> None:
    """Mounts an open file or folder of the host at a path of the new root, and creates the path if needed."""
    if not os.path.exists(target):
        try:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                os.makedirs(target)
            else:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except OSError as e:
            raise Refused(f"cannot create the mount point {target} in the image: {e.strerror}") from None
    must(f"mounting at {target}", mount(f"/proc/self/fd/{fd}", target, None, _BIND | _REC))
    if readonly and not make_readonly(target):
        raise Refused(f"{target} cannot be mounted read-only")


def make_readonly(path: str) -> bool:
    """Makes a mount and those below it read-only; returns whether that worked.

    mount_setattr is in Linux 5.12 and later; before, the mounts below stay writable.
    """
    attributes = struct.pack("=QQQQ", _RDONLY, 0, 0, 0)
    at_fdcwd, at_recursive = -100, 0x8000
    encoded = os.fsencode(path)
    if _LIBC.syscall(_MOUNT_SETATTR, at_fdcwd, encoded, at_recursive, attributes, len(attributes)) == 0:
        return True
    present = os.statvfs(path).f_flag
    flags = sum(number for seen, number in _LOCKED_FLAGS.items() if present & seen)
    return mount(None, path, None, _REMOUNT | _BIND | _RDONLY | flags) == 0


# the system -------------------------------------------------------------------------------------------------


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> int:
    """mount(2); returns 0 if it worked."""
    encoded = [None if s is None else os.fsencode(s) for s in (source, target, kind)]
    return int(_LIBC.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options) or None))


def must(what: str, result: int) -> None:
    """Raises Refused with the kernel's reason unless a C function returned 0."""
    if result != 0:
        raise Refused(f"{what}: {os.strerror(ctypes.get_errno())}")


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def open_path(path: str) -> int:
    """Opens a file or folder only as a source of mounts."""
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def read(path: str) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as f:
            return f.read()
    except OSError:
        return ""


def write(path: str, text: str, flags: int = 0) -> None:
    """Writes a text with one write(2), as files below /proc require."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    try:
        os.write(fd, os.fsencode(text))
    finally:
        os.close(fd)


def start_loopback() -> None:
    """Starts the network interface ``lo``, through which PyTorch's processes communicate."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh", b"lo", 0)
        answer = fcntl.ioctl(s, _SIOCGIFFLAGS, request + bytes(22))
        flags = struct.unpack_from("h", answer, 16)[0]
        fcntl.ioctl(s, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP) + bytes(22))


if __name__ == "__main__":
    main()
