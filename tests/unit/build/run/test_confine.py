"""What a container may not do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from builder.build.run import confine
from tests.support.programs import run_program

#: Not in every libseccomp, or not on every architecture.
_MAY_BE_UNKNOWN = {"open_tree_attr", "quotactl_fd"}

#: Loads the filter, then prints the error number of each attempt.
_PROGRAM = """
import ctypes, errno, fcntl, json, os, subprocess, sys, termios, threading
from builder.build.run import confine
from builder.build.run.confine import LIBC, prctl
calls = confine.Filter(confine.seccomp_library())
prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
calls.load()
found = {}
def attempt(name, function, *arguments):
    ctypes.set_errno(0)
    found[name] = ctypes.get_errno() if function(*arguments) == -1 else 0
attempt("unshare", LIBC.unshare, 0x10000000)
attempt("unshare of files", LIBC.unshare, 0x400)
attempt("setns", LIBC.setns, 0, 0)
attempt("mount", LIBC.mount, b"none", b"/tmp", b"tmpfs", 0, None)
attempt("clone3", LIBC.syscall, 435, None, 0)
for request in (0x5412, 0x541C, 0x1_0000_5412, 0x5401):
    attempt(f"ioctl {request:x}", LIBC.ioctl, 0, ctypes.c_ulong(request), ctypes.create_string_buffer(64))
# what torch, MPI and CUDA do
library = confine.seccomp_library()
for name in ("get_mempolicy", "mbind", "move_pages", "process_vm_readv", "pidfd_open", "pidfd_getfd",
             "ptrace", "memfd_create", "sched_setaffinity", "kcmp", "membarrier"):
    number = library.seccomp_syscall_resolve_name(name.encode())
    attempt(name, LIBC.syscall, number, *[ctypes.c_long(-1)] * 6)
thread = threading.Thread(target=lambda: None)
thread.start(); thread.join()
subprocess.run(["true"], check=True)
if os.fork() == 0: os._exit(0)
print(json.dumps(found))
"""


@pytest.fixture(autouse=True)
def library() -> None:
    if confine.seccomp_library() is None:
        pytest.skip("libseccomp is not installed")


def test_names_of_calls() -> None:
    """A misspelt name would silently refuse nothing."""
    library = confine.seccomp_library()
    assert library is not None
    numbers = {name: library.seccomp_syscall_resolve_name(name.encode()) for name in confine.REFUSED_CALLS}
    assert {name for name, number in numbers.items() if number == -1} <= _MAY_BE_UNKNOWN
    assert len(numbers) == len(confine.REFUSED_CALLS)


def test_filter() -> None:
    """New namespaces, mounts and input of the terminal are refused; what torch and MPI need is not."""
    env = {"PYTHONPATH": str(Path(confine.__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    found = json.loads(run_program([sys.executable, "-c", _PROGRAM], env, stdin="").stdout)
    eperm, enosys, enotty = 1, 38, 25
    for name in ("unshare", "setns", "mount", "ioctl 5412", "ioctl 541c", "ioctl 100005412"):
        assert found.pop(name) == eperm, name
    assert found.pop("clone3") == enosys
    assert found.pop("ioctl 5401") == enotty, "other requests reach the device"
    assert found.pop("unshare of files") == eperm, "docker refuses unshare altogether"
    assert not {name for name, error in found.items() if error in (eperm, enosys)} - {"ptrace"}, found


_EMULATED = """
import ctypes, errno, json, os, sys
from builder.build.run import confine
from builder.build.run.confine import prctl
calls = confine.Filter(confine.seccomp_library(), emulate_root=True)
prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
calls.load()
folder = sys.argv[1]
path = folder + "/file"
open(path, "w").close()
os.chown(path, 12345, 12345)
os.chown(path, 12345, 12345, follow_symlinks=False)
os.setgroups([12345])
os.setresgid(12345, 12345, 12345)
os.setuid(12345)
os.mknod(folder + "/device", 0o020666, os.makedev(1, 3))
os.mkfifo(folder + "/pipe")
try:
    os.setxattr(path, "user.x", b"x")
except OSError as error:
    assert error.errno == errno.ENOTSUP
print(json.dumps([os.stat(path).st_uid == os.getuid() != 12345, sorted(os.listdir(folder))]))
"""


def test_emulated_root(tmp_path: Path) -> None:
    """For steps: calls of a package's script succeed and do nothing; pipes and all else are real."""
    command = [sys.executable, "-c", _EMULATED, str(tmp_path)]
    done = run_program(command, os.environ, cwd=Path(__file__).parents[4])
    assert json.loads(done.stdout) == [True, ["file", "pipe"]]
