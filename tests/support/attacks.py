"""What a hostile image may try against the host; a program for the inside of a container.

    python3 attacks.py SECRET

SECRET is a file of the host. The program prints a JSON object: for each attempt why it failed, or WORKED.
It changes nothing when it works: values are written as they were read, and files are only opened.
It uses the standard library only, and runs on Python 3.8 and newer.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import pty
import stat
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x20000
MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096
#: For x86_64 and aarch64.
NUMBERS = {
    "add_key": (248, 217),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "fsopen": (430, 430),
    "clone3": (435, 435),
}


class Failed(Exception):
    """An attempt failed; the text is the reason."""


def check(result: int) -> None:
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def syscall(name: str, *arguments: object) -> None:
    number = NUMBERS[name][platform.machine() == "aarch64"]
    check(LIBC.syscall(number, *arguments))


def mount(source: bytes, target: bytes, kind: bytes, flags: int = 0) -> None:
    check(LIBC.mount(source, target, kind, ctypes.c_ulong(flags), None))


def rewrite(path: str) -> None:
    """Writes a file's own text into it."""
    with open(path, "rb") as f:
        text = f.read()
    with open(path, "wb", buffering=0) as f:
        f.write(text)


def read_some(path: str) -> None:
    with open(path, "rb", buffering=0) as f:
        if not f.read(64):
            raise Failed("empty")


def open_to_write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def make_device() -> None:
    os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))


def change_device(path: str) -> None:
    os.chmod(path, stat.S_IMODE(os.stat(path).st_mode))


def clone_namespace() -> None:
    """clone(2) of a new user namespace; the child ends at once."""
    sigchld = 17
    if platform.machine() == "aarch64":
        pid = LIBC.syscall(220, CLONE_NEWUSER | sigchld, 0, 0, 0, 0)
    else:
        pid = LIBC.syscall(56, CLONE_NEWUSER | sigchld, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    check(pid)
    os.waitpid(pid, 0)


def insert_key() -> None:
    """Puts a character into the input of the controlling terminal, as if the user had typed it."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            fcntl.ioctl(0, termios.TIOCSTI, b"x")
        except OSError as e:
            os._exit(e.errno or 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    if code:
        raise OSError(code, os.strerror(code))


def reach(secret: str) -> None:
    """Looks for a file of the host through the links of all processes."""
    for number in filter(str.isdigit, os.listdir("/proc")):
        links = ["root", "cwd"]
        try:
            links += [f"fd/{fd}" for fd in os.listdir(f"/proc/{number}/fd")]
        except OSError:
            pass
        for link in links:
            for up in ("", "/..", "/../../../../../.."):
                if os.path.exists(f"/proc/{number}/{link}{up}{secret}"):
                    return
    raise Failed("not found")


def files(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        if folder == "/proc":
            folders[:] = [f for f in folders if not f.isdigit() and f not in ("self", "thread-self", "net")]
        paths = [os.path.join(folder, name) for name in names]
        yield from (p for p in paths if stat.S_ISREG(os.lstat(p).st_mode))  # /dev/null hides some files


def find_writable(root: str) -> None:
    """Opens all files of the kernel for writing, except those of processes."""
    found = []
    for path in files(root):
        try:
            open_to_write(path)
        except OSError:
            continue
        found.append(path)
    if not found:
        raise Failed("none")
    raise AssertionError(" ".join(found[:50]))


ATTEMPTS: dict[str, Callable[[], None]] = {
    **{f"write {path}": lambda path=path: rewrite(path) for path in (  # type: ignore[misc]
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/fs/suid_dumpable",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    )},
    **{f"open {path} to write": lambda path=path: open_to_write(path) for path in (  # type: ignore[misc]
        "/proc/sysrq-trigger",
        "/proc/sys/vm/drop_caches",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/cgroup/memory/release_agent",
        "/dev/kmsg",
        "/dev/mem",
        "/dev/vda",
        "/dev/loop-control",
        "/proc/1/mem",
    )},
    **{f"read {path}": lambda path=path: read_some(path) for path in (  # type: ignore[misc]
        "/proc/kcore",
        "/proc/keys",
        "/proc/timer_list",
        "/proc/interrupts",
        "/sys/firmware/acpi/tables/FACP",
        "/sys/devices/virtual/powercap/intel-rapl/enabled",
    )},
    "writable files in /proc": lambda: find_writable("/proc"),
    "writable files in /sys": lambda: find_writable("/sys"),
    "a file of the host": lambda: reach(sys.argv[1]),
    "mknod": make_device,
    "chmod /dev/null": lambda: change_device("/dev/null"),
    "mount tmpfs": lambda: mount(b"none", b"/tmp", b"tmpfs"),
    "mount proc": lambda: mount(b"none", b"/tmp", b"proc"),
    "remount /proc/sys": lambda: mount(b"none", b"/proc/sys", b"", MS_REMOUNT | MS_BIND),
    "remount /sys": lambda: mount(b"none", b"/sys", b"", MS_REMOUNT | MS_BIND),
    "umount /proc/kcore": lambda: check(LIBC.umount2(b"/proc/kcore", 2)),
    "umount /proc/sys": lambda: check(LIBC.umount2(b"/proc/sys", 2)),
    "unshare": lambda: check(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS)),
    "clone": clone_namespace,
    "clone3": lambda: syscall("clone3", None, 0),
    "setns": lambda: check(LIBC.setns(os.open("/proc/self/ns/mnt", os.O_RDONLY), 0)),
    "fsopen": lambda: syscall("fsopen", b"tmpfs", 0),
    "add_key": lambda: syscall("add_key", b"user", b"x", b"x", 1, -3),
    "keyctl": lambda: syscall("keyctl", 0, -3, 0),
    "bpf": lambda: syscall("bpf", 0, struct.pack("IIII", 2, 4, 4, 1), 16),
    "perf_event_open": lambda: syscall(
        "perf_event_open", struct.pack("IIQ", 1, 112, 0) + bytes(96), 0, -1, -1, 0
    ),
    "userfaultfd": lambda: syscall("userfaultfd", 1),
    "io_uring": lambda: syscall("io_uring_setup", 1, bytes(120)),
    "open_by_handle_at": lambda: syscall("open_by_handle_at", -100, struct.pack("II", 8, 1) + bytes(8), 0),
    "TIOCSTI": insert_key,
}  # fmt: skip


def attempt(work: Callable[[], None]) -> str:
    try:
        work()
    except OSError as e:
        return errno.errorcode.get(e.errno or 0, str(e))
    except Failed as e:
        return str(e)
    except AssertionError as e:
        return f"WORKED: {e}"
    return "WORKED"


def in_child(work: Callable[[], None]) -> str:
    """The outcome of an attempt in a process of its own, because some change the process."""
    result, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(answer, attempt(work).encode())
        os._exit(0)
    os.close(answer)
    with open(result, "rb") as f:
        text = f.read().decode()
    os.waitpid(pid, 0)
    return text or "the process was ended"


def spoil(path: str) -> None:
    """Changes all that can be changed of a file of the image, which other images share on the host."""
    changes: list[Callable[[], object]] = [
        lambda: os.utime(path, (1, 1)),
        lambda: os.chmod(path, 0o777),
        lambda: os.chown(path, 1, 1),
        lambda: os.setxattr(path, "user.spoiled", b"x"),
        lambda: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
        lambda: os.link(path, f"{path}.link"),
    ]
    for change in changes:
        with suppress(OSError):
            change()


def main() -> None:
    spoil("/etc/shared")
    found = {name: in_child(work) for name, work in ATTEMPTS.items()}
    with open("/proc/self/status") as f:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
    keys = ("Uid", "CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    with open("/proc/self/uid_map") as f:
        ids = f.read().split()
    print(json.dumps({"attempts": found, "status": {k: status.get(k, "") for k in keys}, "uid_map": ids}))


if __name__ == "__main__":
    main()
