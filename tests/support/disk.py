"""Small file systems, to fill them; disks that flip bits, and disks that lose power."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.parts import need, part_missing

_EXT4_SIZE = 32 << 20
#: ``_IOR('X', 125, __u32)``, the flag that first writes everything, and the one that keeps the journal from
#: being written (fs/ext4/ext4.h).
_EXT4_IOC_SHUTDOWN = 0x8004587D
_EXT4_GOING_FLAGS_DEFAULT = 0
_EXT4_GOING_FLAGS_NOLOGFLUSH = 2


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of a size (``1m``) in ``folder``, which must not exist. Needs root."""
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", folder], capture_output=True
    ).returncode:
        part_missing("only root can mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def flip(path: Path) -> None:
    """Flips a bit in the middle of a file, as a disk or a bad memory does: the file looks unchanged."""
    before = path.stat()
    with path.open("r+b") as f:
        f.seek(before.st_size // 2)
        (byte,) = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


class PowerDisk:
    """A real ext4 in a file, on a loop device, whose power can be cut. Needs root.

    Attributes:
        path: where it is mounted.
        has_power: False between :meth:`cut_power` and :meth:`restart`.
    """

    def __init__(self, folder: Path, options: str) -> None:
        self.path = folder / "mounted"
        self._file = folder / "ext4.img"
        self._options = f"loop,{options}" if options else "loop"
        self.has_power = True
        self.path.mkdir(parents=True)
        mkfs, *_ = need("mkfs.ext4", "mount", "umount")
        with self._file.open("wb") as f:
            f.truncate(_EXT4_SIZE)
        subprocess.run([mkfs, "-q", self._file], check=True)
        done = self._mount()
        if done.returncode:
            part_missing(f"no loop device can be mounted here: {done.stderr.strip()}")

    def _mount(self) -> subprocess.CompletedProcess[str]:
        mount = ["mount", "-t", "ext4", "-o", self._options, self._file, self.path]
        return subprocess.run(mount, capture_output=True, text=True)

    def commit_names(self) -> None:
        """Lets the journal commit, as it does every 5 s: new names are on the disk, unwritten data is not."""
        with (self.path / "of somebody else").open("wb") as f:
            f.write(os.urandom(8))
            f.flush()
            os.fsync(f.fileno())

    def cut_power(self) -> None:
        """Nothing more reaches the disk: every later access fails until :meth:`restart`.

        The error is EIO; EROFS for some accesses that another thread began before.
        """
        self._shut_down(_EXT4_GOING_FLAGS_NOLOGFLUSH)

    def _shut_down(self, flag: int) -> None:
        self.has_power = False
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _EXT4_IOC_SHUTDOWN, struct.pack("I", flag))
        except OSError as e:
            part_missing(f"ext4 cannot be shut down here: {e.strerror}")
        finally:
            os.close(fd)

    def restart(self) -> None:
        """The disk as it is after the power came back and the journal was replayed.

        It is a copy, because another mount namespace on this machine may still hold the one that was shut
        down. Such a namespace must not write while it is copied, so a disk with power is shut down in order.
        """
        if self.has_power:
            self._shut_down(_EXT4_GOING_FLAGS_DEFAULT)
        self.has_power = True
        subprocess.run(["umount", self.path], check=True)
        copy = self._file.with_suffix(".copy")
        subprocess.run(["cp", "--sparse=always", self._file, copy], check=True)
        copy.replace(self._file)
        done = self._mount()
        assert done.returncode == 0, done.stderr


@contextmanager
def power_disk(folder: Path, options: str = "") -> Iterator[PowerDisk]:
    """A :class:`PowerDisk` with mount options of ext4."""
    if os.geteuid():
        part_missing("only root can mount a loop device")
    disk = PowerDisk(folder, options)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk.path], check=True)
