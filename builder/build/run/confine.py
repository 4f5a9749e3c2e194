"""Takes from a container what it could use against the host. Uses only the standard library.

The user namespace alone does not protect a host whose root runs the container: files below /proc
and /sys are checked against the owner's id, not against capabilities. So, as in docker and podman:

- below /proc, only the files of processes can be written, and files with the host's secrets are
hidden;
- the capabilities are docker's, and no program can gain others (setuid bits have no effect);
- system calls that only serve to attack the kernel, or to undo the above, are refused.
"""

# Few imports: this starts for every command. So no pathlib, hence:
# ruff: noqa: PTH110, PTH112, PTH118, PTH120, PTH123, PTH208

from __future__ import annotations

import ctypes
import errno
import os
import struct

LIBC = ctypes.CDLL(None, use_errno=True)


def _listed(name: str) -> tuple[str, ...]:
    """Return the words of a file beside this module; lines that begin with ``#`` are comments."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="ascii") as file:
        lines = [line for line in file if not line.startswith("#")]
    return tuple("".join(lines).split())


# <linux/mount.h>, mount(2)
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
#: A remount must repeat the flags that the kernel has locked. All but the last have the same number in
#: statvfs(2).
_LOCKED_FLAGS = NOSUID | NODEV | NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
_ST_RELATIME, _RELATIME = 4096, 1 << 21
#: The number of the system call on all architectures.
_MOUNT_SETATTR = 442
#: Escaped characters in /proc/self/mountinfo (proc(5)); the backslash is the last.
_ESCAPED = {rb"\040": b" ", rb"\011": b"\t", rb"\012": b"\n", rb"\134": b"\\"}

#: Hidden from the container: docker's list (moby, oci/defaults.go), which is longer than the
#: runtime-spec's.
MASKED = _listed("masked_paths.txt")
#: Entries of /proc that belong to processes and not to the host, besides those whose name is a
#: number.
_OF_PROCESSES = ("self", "thread-self", "mounts", "net")

# <linux/capability.h>: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap,
# net_bind_service, net_raw, sys_chroot, mknod, audit_write, setfcap
CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
_CAPABILITY_VERSION_3 = 0x20080522
# <linux/prctl.h>
_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

# <seccomp.h>
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_MASKED_EQUAL = 7
_ATTRIBUTE_SPECULATION, _ATTRIBUTE_OPTIMIZE = 7, 8
_UNKNOWN_CALL = -1
#: Refused with EPERM: what docker's default profile refuses too and a well-behaved program does not
#: need.
REFUSED_CALLS = _listed("refused_calls.txt")
#: Return 0 without doing anything where a build step's root is emulated, as Charliecloud's
#: ``--force=seccomp`` does: in a user namespace with one id these calls cannot succeed, and all
#: files of a layer belong to root anyway.
EMULATED_CALLS = _listed("emulated_calls.txt")
#: Layers have no extended attributes. A package's script that gets this error sets the setuid bit
#: instead.
_ATTRIBUTE_CALLS = ("fsetxattr", "lsetxattr", "setxattr")
#: mknod(2): which argument is the mode.
_DEVICE_CALLS = {"mknod": 1, "mknodat": 2}
_KIND_MASK, _KINDS_OF_DEVICES = 0o170000, (0o020000, 0o060000)
#: Flags of clone(2) for new namespaces: cgroup, UTS, IPC, user, PID, network, mount.
_NEW_NAMESPACES = (0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x20000)
#: Requests of ioctl(2) that type into the user's terminal: TIOCSTI, TIOCLINUX.
_TERMINAL_REQUESTS = (0x5412, 0x541C)


# files --------------------------------------------------------------------------------------------


def protect_files() -> None:
    """Hide files of the kernel, and make the others in /proc read-only; /sys is read-only."""
    os.chdir("/proc")
    null = open_path("/dev/null")
    for path in MASKED:
        if os.path.isdir(path):
            must(f"hiding {path}", mount("tmpfs", path, "tmpfs", RDONLY, "size=0k,mode=555"))
        elif os.path.exists(path):
            bind_file(null, path, readonly=True)
    os.close(null)

    for name in os.listdir("/proc"):
        path = f"/proc/{name}"
        if name.isdigit() or name in _OF_PROCESSES or path in MASKED:
            continue
        fd = open_path(path)
        bind_file(fd, path, readonly=True)
        os.close(fd)
    os.chdir("/")


# privileges ---------------------------------------------------------------------------------------


def drop_privileges(calls: Filter | None) -> None:
    """Reduce this process and its children to docker's capabilities and the allowed calls."""
    must("no_new_privs", prctl(_PR_SET_NO_NEW_PRIVS, 1))
    number = 0
    while prctl(_PR_CAPBSET_READ, number) >= 0:
        if number not in CAPABILITIES:
            must(f"dropping the capability {number}", prctl(_PR_CAPBSET_DROP, number))
        number += 1
    must("the ambient capabilities", prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL))

    kept = sum(1 << number for number in CAPABILITIES)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    effective, permitted, inheritable = kept, kept, 0
    sets = struct.pack("=IIIIII", effective, permitted, inheritable, 0, 0, 0)
    must("the capabilities", LIBC.capset(header, sets))
    if calls is not None:
        calls.load()


class Filter:
    """A filter of system calls for the native architecture; it kills programs of others (32 bit).

    Args:
        library: libseccomp.
        emulate_root: :data:`EMULATED_CALLS` and the creation of devices do nothing and report
            success.
    """

    def __init__(self, library: ctypes.CDLL, *, emulate_root: bool = False) -> None:
        self._library = library
        library.seccomp_init.restype = ctypes.c_void_p
        context = library.seccomp_init(ctypes.c_uint32(_ALLOW))
        if not context:
            raise Refused("libseccomp has no filter")
        self._context = ctypes.c_void_p(context)
        # Without it, kernels before 5.16 slow down all code, which would change the figures of a
        # smoke test.
        library.seccomp_attr_set(self._context, _ATTRIBUTE_SPECULATION, ctypes.c_uint32(1))
        binary_tree = ctypes.c_uint32(2)
        library.seccomp_attr_set(self._context, _ATTRIBUTE_OPTIMIZE, binary_tree)
        for name in REFUSED_CALLS:
            self._refuse(name, errno.EPERM)
        # Its flags are in memory, which a filter cannot read. C libraries call clone instead.
        self._refuse("clone3", errno.ENOSYS)
        flags = 1 if os.uname().machine == "s390x" else 0
        for flag in _NEW_NAMESPACES:
            self._refuse("clone", errno.EPERM, flags, flag, flag)
        for request in _TERMINAL_REQUESTS:  # the kernel ignores the upper half
            self._refuse("ioctl", errno.EPERM, 1, 0xFFFFFFFF, request)
        if emulate_root:
            self._emulate_root()

    def _emulate_root(self) -> None:
        for name in EMULATED_CALLS:
            self._refuse(name, 0)
        for name in _ATTRIBUTE_CALLS:
            self._refuse(name, errno.ENOTSUP)
        for name, argument in _DEVICE_CALLS.items():
            for kind in _KINDS_OF_DEVICES:
                self._refuse(name, 0, argument, _KIND_MASK, kind)

    def _refuse(
        self, name: str, error: int, argument: int = -1, mask: int = 0, value: int = 0
    ) -> None:
        """Refuse a system call, or calls whose ``argument`` has ``value`` under ``mask``.

        It fails with ``error``; 0: it does nothing and returns 0.
        """
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number == _UNKNOWN_CALL:
            return  # newer than the library, or not on this architecture
        comparisons = (_Comparison * 1)(_Comparison(argument, _MASKED_EQUAL, mask, value))
        count = 0 if argument < 0 else 1
        action = ctypes.c_uint32(_ERRNO | error)
        add = self._library.seccomp_rule_add_array
        result = add(self._context, action, number, count, comparisons)
        if result not in (0, -errno.EDOM):
            raise Refused(f"libseccomp cannot filter {name}: {os.strerror(-result)}")

    def load(self) -> None:
        """Apply the filter to this process and its children."""
        result = self._library.seccomp_load(self._context)
        if result != 0:
            raise Refused(f"the filter of system calls: {os.strerror(-result)}")


class _Comparison(ctypes.Structure):
    """struct scmp_arg_cmp"""

    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


def seccomp_library() -> ctypes.CDLL | None:
    """Return the host's libseccomp; None if it is not installed."""
    try:
        return ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return None


# Calls of the kernel that Python lacks. Those that need /proc use the current folder: they work while
# the container has no /proc, and its image may have links into /proc/self/fd, which would lead to
# open files of the host.


class Refused(Exception):
    """The kernel refuses a step, or a file is missing; the text is for the user."""


def must(what: str, result: int) -> None:
    """Raise Refused with the kernel's reason unless a C function returned 0."""
    if result != 0:
        raise Refused(f"{what}: {os.strerror(ctypes.get_errno())}")


def prctl(option: int, *arguments: int) -> int:
    """Call prctl(2)."""
    padded = [*arguments, 0, 0, 0, 0][:4]
    return int(LIBC.prctl(option, *map(ctypes.c_ulong, padded)))


def open_path(path: str) -> int:
    """Open a file or folder only as a source of mounts."""
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> int:
    """Call mount(2); return 0 if it worked."""
    encoded = [None if s is None else os.fsencode(s) for s in (source, target, kind)]
    return int(LIBC.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options) or None))


def bind_file(fd: int, target: str, *, readonly: bool) -> None:
    """Mount an open file or folder, with what is mounted below it, at an existing absolute path.

    The current folder must be a /proc.
    """
    must(f"mounting at {target}", mount(f"self/fd/{fd}", target, None, BIND | REC))
    if readonly:
        make_readonly(target)


def make_readonly(path: str) -> None:
    """Make a mount and those below it read-only.

    mount_setattr is in Linux 5.12 and later; before, each mount is remounted. The current folder
    must be a /proc.
    """
    attributes = struct.pack("=QQQQ", RDONLY, 0, 0, 0)
    at_fdcwd, at_recursive = -100, 0x8000
    encoded = os.fsencode(path)
    arguments = (at_fdcwd, encoded, at_recursive, attributes, len(attributes))
    if LIBC.syscall(_MOUNT_SETATTR, *arguments) == 0:
        return
    for point in mounts_below(path):
        present = os.statvfs(point).f_flag
        flags = present & _LOCKED_FLAGS | (_RELATIME if present & _ST_RELATIME else 0)
        result = mount(None, point, None, REMOUNT | BIND | RDONLY | flags)
        must(f"{point} cannot be mounted read-only", result)


def mounts_below(path: str) -> list[str]:
    """Return the paths of a mount and all mounts below it. The current folder must be a /proc."""
    fd = open_path(path)
    with open(f"self/fdinfo/{fd}", "rb") as f:
        top = next(line.split()[1] for line in f if line.startswith(b"mnt_id:"))
    os.close(fd)
    found, paths = {top}, [path]
    with open("self/mountinfo", "rb") as f:
        for line in f:
            number, parent, _, _, point = line.split()[:5]
            if parent in found:
                found.add(number)
                for escaped, character in _ESCAPED.items():
                    point = point.replace(escaped, character)
                paths.append(os.fsdecode(point))
    return paths
