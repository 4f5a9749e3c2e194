"""Runs one command in an unpacked image, in Linux namespaces, with the standard library alone.

userns.py starts it as a separate process, because unshare(2) with a user namespace requires a
process with one thread:

    python -I -S -c START FOLDER PLAN STATUS

START imports this module from FOLDER. PLAN and STATUS are numbers of open files: the plan as JSON
(userns.py: ``_Plan``), and a file for the reason why the command could not start. An empty status
file means that the command ran, and the exit code is the command's.

    UsernsRunner           in the host's namespaces, as an ordinary user or root
       | starts jail.py
    outside()              unshare: new user, mount, process, IPC, host name (and network) namespaces;
       |                   the ids of the plan are root inside
       | forks, waits
    inside()               process 1 of the new process namespace
       | 1 open_host()       open all files of the host that are needed later
       | 2 new_root()        tmpfs; overlay of the image (below) and the tmpfs or the plan's folder (above)
       | 3 enter_root()      pivot_root: from here on, absolute paths are those of the image
       | 4 fill_root()       /sys, /dev, /tmp, HOME, /etc/hosts, and the mounts of the plan
       | 5 leave_host()      mount /proc, unmount the host's root, close its files
       | 6 confine.py        hide files of the kernel; give up privileges
       | forks, waits, reaps orphans
    start()                changes to the working directory, becomes the command

The order of steps 1 and 4 matters: bind mounts are made from files opened before pivot_root, under
paths resolved after it. So a symlink in the image cannot lead to a file of the host. Nor can a link
into /proc/self/fd, because during step 4 the container has no /proc (the current folder is the
host's), nor one to the host's root, because its path has a random name. Python modules are imported
before step 2, so none comes from the image.

Where builder runs as root, the plan's ids are those of no user of the host: root in the container
maps to nobody on the host. Files are opened (step 1) before this process takes that id, because
folders above the cache may be closed to others.

Where the kernel refuses the overlay to this user (before Linux 5.11), the image's tree is mounted
itself, read-only, with an empty tmpfs on each folder for temporary files.

Exit codes pass up unchanged: the command's, or 128 + n after signal n. Signals go to the process
group, and pass down to a command that has left it. Each process dies with its parent, so nothing is
left when builder is killed.
"""

# Few imports: this starts for every command. So no pathlib, hence:
# ruff: noqa: PTH102, PTH103, PTH106, PTH108, PTH110, PTH112, PTH118, PTH120, PTH123, PTH211
# ruff: noqa: S108, S606

from __future__ import annotations

import fcntl
import json
import os
import platform
import signal
import socket
import stat
import struct
import sys
import warnings  # noqa: F401  os.execvpe imports it, and must not find the image's
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from .confine import (
    BIND,
    LIBC,
    NODEV,
    NOEXEC,
    NOSUID,
    PRIVATE,
    REC,
    Filter,
    Refused,
    bind_file,
    drop_privileges,
    make_readonly,
    mount,
    must,
    open_path,
    prctl,
    protect_files,
    seccomp_library,
)

# <linux/sched.h>, unshare(2)
_NEWNS, _NEWUTS, _NEWIPC = 0x20000, 0x4000000, 0x8000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_MNT_DETACH = 2
# numbers of system calls
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203}
# <linux/prctl.h>
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
# <linux/sockios.h>, netdevice(7)
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

#: 50 % of the machine's memory, the default of tmpfs(5).
_SHM_SIZE = "50%"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_HOSTNAME = "builder"
#: What a step needs, in the message of the error where the kernel refuses it.
OVERLAY_ON_DISK = "an overlay on disk"


class HostFiles(NamedTuple):
    """Files of the host that were opened before the root file system changed."""

    image: int
    """The unpacked root file system."""
    changes: tuple[int, int] | None
    """Folders on disk for what the command changes, and for the overlay's own work; None: in
    memory, and lost."""
    mounts: list[tuple[int, str, bool]]
    """Descriptor, target and readonly of each mount."""
    devices: list[tuple[int, str]]
    """Descriptor and path of each device."""
    sys: int
    proc: int
    network_files: dict[str, str]
    """Texts of /etc/hosts and /etc/resolv.conf in the container, by path."""


def main() -> NoReturn:
    plan_file, status = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(status, False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback
    with open(plan_file, encoding="utf-8") as f:
        plan = json.load(f)
    exit_with(status, lambda: outside(plan, status))


def exit_with(status: int, work: Callable[[], int]) -> NoReturn:
    """End this process with the exit code of ``work``, or with a reason in the status file."""
    try:
        os._exit(work())
    except Refused as e:
        text = str(e)
    except OSError as e:
        text = f"{e.filename}: {e.strerror}" if e.filename else str(e.strerror)
    os.write(status, text.encode(errors="replace"))
    os._exit(1)


# the three processes ------------------------------------------------------------------------------


def outside(plan: dict[str, Any], status: int) -> int:
    """Create the namespaces and start process 1 in them: the process that builder started."""
    die_with_parent()
    if plan["uid"] != os.getuid():
        os.setgroups(plan["groups"])
        for number in range(3):
            if stat.S_ISFIFO(os.fstat(number).st_mode):  # the command may open /dev/stdout
                os.fchown(number, plan["uid"], plan["gid"])
    flags = _NEWUSER | _NEWNS | _NEWPID | _NEWIPC | _NEWUTS
    if plan["network"] == "none":
        flags |= _NEWNET
    enter_namespaces(flags, plan["uid"], plan["gid"])

    pid = os.fork()
    if pid == 0:
        die_with_parent()
        exit_with(status, lambda: inside(plan, status))
    return supervise(pid)


def enter_namespaces(flags: int, uid: int, gid: int) -> None:
    """Enter new namespaces, in which these ids of the host are root's.

    A process that stays outside writes the ids: inside, only a process's own ids can be written.
    """
    target = os.getpid()
    entered, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(report)
        if os.read(entered, 1):
            os._exit(write_ids(target, uid, gid))
        os._exit(0)
    os.close(entered)
    must("new namespaces", LIBC.unshare(flags))
    os.write(report, b"1")
    os.close(report)
    _, code = os.waitpid(pid, 0)
    if code:
        why = os.strerror(os.WEXITSTATUS(code))
        raise Refused(f"root cannot be the user {uid} of the host: {why}")


def write_ids(pid: int, uid: int, gid: int) -> int:
    """Map root in the namespace of a process; return 0 or the error number."""
    try:
        write(f"/proc/{pid}/setgroups", "deny")
        write(f"/proc/{pid}/uid_map", f"0 {uid} 1")
        write(f"/proc/{pid}/gid_map", f"0 {gid} 1")
    except OSError as e:
        return e.errno or 1
    return 0


def inside(plan: dict[str, Any], status: int) -> int:
    """Set up the root file system and start the command: process 1. Return its exit code."""
    os.umask(0o022)
    must("private mounts", mount("none", "/", None, REC | PRIVATE))
    host = open_host(plan)
    library = seccomp_library()
    calls = None if library is None else Filter(library, emulate_root=bool(plan["changes"]))
    sys.path.clear()  # from here on, a module would be one of the image

    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    die_with_parent()  # a change of ids cancels it
    # never closed: the registration ends with the last reference to the file system
    _interpreter = register_interpreter(plan["interpreter"])
    writable = new_root(host.image, host.changes)
    old_root = enter_root()
    os.fchdir(host.proc)
    fill_root(plan, host, writable)
    leave_host(host, old_root)
    socket.sethostname(_HOSTNAME)
    if plan["network"] == "none":
        start_loopback()
    protect_files()
    drop_privileges(calls)

    if not plan["command"]:
        return 0
    prctl(_PR_SET_DUMPABLE, 0)  # the command cannot reach this process's memory and files
    pid = os.fork()
    if pid == 0:
        exit_with(status, lambda: start(plan))
    return supervise(pid)


def start(plan: dict[str, Any]) -> NoReturn:
    """Become the command."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        os.makedirs(plan["workdir"], exist_ok=True)
    os.chdir(plan["workdir"])
    try:
        os.execvpe(plan["command"][0], plan["command"], plan["env"])
    except OSError as e:
        raise Refused(f"cannot run {plan['command'][0]} in the image: {e.strerror}") from None


def supervise(pid: int) -> int:
    """Wait for a child, reap orphans; return the child's exit code, or 128 + n after signal n."""

    def pass_down(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            if os.getpgid(pid) != os.getpgrp():  # else it has it already: builder's go to all
                os.kill(pid, number)

    for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2"):
        signal.signal(signal.Signals[f"SIG{name}"], pass_down)
    while True:
        done, code = os.waitpid(-1, 0)
        if done != pid:
            continue
        return 128 + os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)


# the root file system -----------------------------------------------------------------------------


def open_host(plan: dict[str, Any]) -> HostFiles:
    """Open all files of the host that are needed after pivot_root: step 1."""
    paths = [f"/dev/{name}" for name in (*_DEVICES, *plan["devices"])]
    if plan["network"] == "host":
        network_files = {path: read(path) for path in ("/etc/resolv.conf", "/etc/hosts")}
    else:
        network_files = {"/etc/hosts": f"127.0.0.1 localhost {_HOSTNAME}\n::1 localhost\n"}
    changes = plan["changes"]
    return HostFiles(
        image=open_path(plan["image"]),
        changes=(open_path(f"{changes}/upper"), open_path(f"{changes}/work")) if changes else None,
        mounts=[(open_path(source), *target) for source, *target in plan["mounts"]],
        devices=[(open_path(path), path) for path in paths if os.path.exists(path)],
        sys=open_path("/sys"),
        proc=open_path("/proc"),
        network_files=network_files,
    )


def register_interpreter(line: str) -> int | None:
    """Make the kernel run programs of another processor with qemu, in this namespace only.

    Args:
        line: the registration, see builder/formats/qemu.py; empty: none is necessary.

    Returns:
        An open file that holds the file system of the registration, which no path leads to.
    """
    if not line:
        return None
    must("binfmt_misc", mount("binfmt_misc", "/tmp", "binfmt_misc", NOSUID | NODEV | NOEXEC))
    kept = os.open("/tmp", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    write("/tmp/register", line)
    must("binfmt_misc", LIBC.umount2(b"/tmp", _MNT_DETACH))
    return kept


def new_root(tree: int, changes: tuple[int, int] | None = None) -> bool:
    """Mount the image's tree and change to it: step 2. Return whether it is writable.

    Changes are lost when the namespaces end, unless there are folders for them.
    """
    # Any folder will do as a mount point: the host's root is about to be left.
    must("a temporary file system", mount("tmpfs", "/tmp", "tmpfs", NOSUID | NODEV, "mode=755"))
    os.chdir("/tmp")
    for name in ("upper", "work", "root"):
        os.mkdir(name, 0o755)
    upper, work = "upper", "work"
    if changes is not None:
        upper, work = (f"/proc/self/fd/{fd}" for fd in changes)
    layers = f"lowerdir=/proc/self/fd/{tree},upperdir={upper},workdir={work}"
    # userxattr: Linux 5.11 and later, required in a user namespace; older kernels do not know it
    result = mount("overlay", "root", "overlay", 0, f"{layers},userxattr")
    if changes is not None:
        must(OVERLAY_ON_DISK, result)
    writable = result == 0 or mount("overlay", "root", "overlay", 0, layers) == 0
    if not writable:
        must("the image", mount(f"/proc/self/fd/{tree}", "root", None, BIND | REC))

    os.chdir("root")
    for name in ("proc", "sys", "dev"):
        make_mount_point(name)
    if not writable:
        os.chdir("/proc")
        make_readonly("/tmp/root")
        os.chdir("/tmp/root")
    os.close(tree)
    return writable


def make_mount_point(name: str) -> None:
    """Create a folder unless it exists. Refuses symlinks, which may lead to the host."""
    try:
        is_folder = stat.S_ISDIR(os.lstat(name).st_mode)
    except FileNotFoundError:
        os.mkdir(name, 0o755)
        return
    if not is_folder:
        raise Refused(f"/{name} is not a folder in the image")


def enter_root() -> str:
    """Make the current folder the root, with an empty /dev: step 3. Return the host's root in it.

    No link of the image can lead there, because the image does not know the name. (A host's root at
    / would be reached by the link "usr/..".)
    """
    must("/dev", mount("tmpfs", "dev", "tmpfs", NOSUID, "mode=755"))
    old = f"dev/{os.urandom(16).hex()}"
    os.mkdir(old)
    machine = platform.machine()
    number = _PIVOT_ROOT.get(machine)
    if number is None:
        raise Refused(f"the number of the system call pivot_root is not known on {machine}")
    must("the new root", LIBC.syscall(number, b".", os.fsencode(old)))
    return f"/{old}"


def fill_root(plan: dict[str, Any], host: HostFiles, writable: bool) -> None:
    """Make the folders and files of a container that are not in the image: step 4.

    The current folder is the host's /proc.
    """
    bind_file(host.sys, "/sys", readonly=True)
    fill_dev(host.devices)

    home = os.path.join("/", plan["env"].get("HOME", "/root"))  # relative, it would be the host's
    for path, mode in (("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", 0o755), (home, 0o700)):
        if writable:
            os.makedirs(path, mode=mode, exist_ok=True)
        elif os.path.isdir(path):
            must(path, mount("tmpfs", path, "tmpfs", NOSUID | NODEV, f"mode={mode:o}"))

    if writable:
        for path, text in host.network_files.items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with suppress(FileNotFoundError):
                os.unlink(path)
            write(path, text, os.O_CREAT)

    for source, target, readonly in host.mounts:
        bind(source, target, readonly=readonly)


def leave_host(host: HostFiles, old_root: str) -> None:
    """Mount /proc, unmount the host's root, and close all files of the host: step 5."""
    if mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC) != 0:
        # In a container that hides parts of its /proc the kernel refuses a new one. The existing
        # one then shows the process numbers of the host.
        bind_file(host.proc, "/proc", readonly=False)
    os.chdir("/")
    must("leaving the host's files", LIBC.umount2(os.fsencode(old_root), _MNT_DETACH))
    os.rmdir(old_root)
    mounts, devices = [item[0] for item in host.mounts], [item[0] for item in host.devices]
    for fd in (host.proc, host.sys, *(host.changes or ()), *mounts, *devices):
        os.close(fd)


def fill_dev(devices: list[tuple[int, str]]) -> None:
    """Fill /dev with the given devices of the host and no others."""
    for fd, path in devices:  # they can still be written, but not their owner, mode and folder
        bind(fd, path, readonly=True)

    os.mkdir("/dev/shm")
    flags = NOSUID | NOEXEC | NODEV
    must("/dev/shm", mount("tmpfs", "/dev/shm", "tmpfs", flags, f"mode=1777,size={_SHM_SIZE}"))
    os.mkdir("/dev/pts")
    options = "newinstance,ptmxmode=0666,mode=0620"
    must("/dev/pts", mount("devpts", "/dev/pts", "devpts", NOSUID | NOEXEC, options))

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"fd/{number}", f"/dev/{name}")
    os.symlink("/proc/self/fd", "/dev/fd")
    os.symlink("pts/ptmx", "/dev/ptmx")


def bind(fd: int, target: str, *, readonly: bool) -> None:
    """Mount an open file or folder of the host at a path of the new root; make a missing path."""
    if not os.path.exists(target):
        try:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                os.makedirs(target)
            else:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except OSError as e:
            why = f"cannot create the mount point {target} in the image: {e.strerror}"
            raise Refused(why) from None
    bind_file(fd, target, readonly=readonly)


# the system ---------------------------------------------------------------------------------------


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def read(path: str) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as f:
            return f.read()
    except OSError:
        return ""


def write(path: str, text: str, flags: int = 0) -> None:
    """Write a text with one write(2), as files below /proc require."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    try:
        os.write(fd, os.fsencode(text))
    finally:
        os.close(fd)


def start_loopback() -> None:
    """Start the network interface ``lo``, through which PyTorch's processes communicate."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh", b"lo", 0)
        answer = fcntl.ioctl(s, _SIOCGIFFLAGS, request + bytes(22))
        flags = struct.unpack_from("h", answer, 16)[0]
        fcntl.ioctl(s, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP) + bytes(22))
