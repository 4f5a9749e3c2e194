"""The host's user who is root in a container."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import RunnerError

#: A user and group without any rights on the host, who is a container's root where builder runs as
#: root. The number is outside the ranges of users, of /etc/subuid (up to 600100000), of sssd (up to
#: 2000200000) and of systemd (containers up to 1879048191, foreign images from 2147352576).
STRANGER = 2_100_000_000
_ID_MAPS = (Path("/proc/self/uid_map"), Path("/proc/self/gid_map"))


@dataclass(frozen=True, slots=True)
class Identity:
    """A user and a group of the host."""

    uid: int
    gid: int

    @property
    def is_own(self) -> bool:
        """Whether this is the user who runs builder."""
        return self.uid == os.getuid()

    def give(self, tree: Path) -> None:
        """Change the owner of a folder and all that is in it, if this is another user.

        Raises:
            RunnerError: Root is not allowed to on this file system.
        """
        if self.is_own:
            return
        try:
            os.chown(tree, self.uid, self.gid)
            for _, folders, files, descriptor in os.fwalk(tree):
                for name in (*folders, *files):
                    os.chown(name, self.uid, self.gid, dir_fd=descriptor, follow_symlinks=False)
        except OSError as e:
            raise RunnerError(
                f"root cannot give files in {tree.parent} to the user {self.uid}: {e.strerror}",
                "keep the cache and temporary files on a local file system, "
                "or run builder as another user",
            ) from None


def container_root(*, keep_root: bool) -> Identity:
    """Return the host's user who is root in a container: this user; for root a user without rights.

    Args:
        keep_root: Root stays root.
    """
    own = Identity(os.getuid(), os.getgid())
    if os.geteuid() != 0 or keep_root:
        return own
    # The root of a user namespace (a rootless container) has no rights on the host, and few ids.
    known = all(_contains(path.read_text(), STRANGER) for path in _ID_MAPS)
    return Identity(STRANGER, STRANGER) if known else own


def _contains(id_map: str, number: int) -> bool:
    """Return whether an id of this namespace is in its map (user_namespaces(7))."""
    ranges = [tuple(map(int, line.split())) for line in id_map.splitlines()]
    return any(first <= number < first + count for first, _, count in ranges)
