"""A stand-in for podman-hpc: podman, with the differences of podman-hpc 1.1.4 that builder depends on.

``pull`` also migrates the image into a storage that all nodes see, and ends with 0 if that fails. Only
``run`` and ``images`` look into that storage. An image that was migrated before gets no further name there.
"""

from __future__ import annotations

from pathlib import Path

#: The real program makes a squashfs file of the image; here podman pulls it a second time.
SCRIPT = """\
#!/bin/sh
squash={squash}
store="--root $squash --runroot $XDG_RUNTIME_DIR/hpc"
case $1 in
run | images) exec podman --storage-opt additionalimagestore=$squash "$@" ;;
pull) ;;
*) exec podman "$@" ;;
esac
podman "$@" || exit
for image; do :; done
id=$(podman image inspect --format '{{{{.Id}}}}' "$image")
podman $store image exists "$id" || [ -n "$MIGRATION_FAILS" ] || podman $store "$@" >/dev/null
exit 0
"""


def podman_hpc(folder: Path) -> Path:
    """Writes the stand-in; returns the folder for ``PATH``. ``MIGRATION_FAILS=1`` makes the migration fail.

    Args:
        folder: for the program, and for the storage that all nodes see.
    """
    program = folder / "bin/podman-hpc"
    program.parent.mkdir(parents=True)
    (folder / "squash").mkdir()
    program.write_text(SCRIPT.format(squash=folder / "squash"))
    program.chmod(0o755)
    return program.parent
