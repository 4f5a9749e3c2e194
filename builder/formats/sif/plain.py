"""A plain squashfs of an image's root file system, as enroot and CSCS's Container Engine take it.

A squashfs has no place for the image's config, so enroot keeps it in four files below ``/etc``.
Here they have the form that ``enroot import`` gives them (enroot 4.1.2: doc/image-format.md,
``docker::configure`` in src/docker.sh); all files belong to root.
"""

from __future__ import annotations

import logging
import posixpath
import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from builder.core.datafiles import script
from builder.core.model import Compression, Image
from builder.core.progress import Reporter
from builder.core.store.durable import durable_file
from builder.core.store.files import require_space, sha256_file, space_errors
from builder.core.text import one_line
from builder.core.workspace import Workspace
from builder.formats.oci.manifest import parse_config, require_layers
from builder.formats.trees.member import Kind, Member

from .partitions import Files, PartitionMaker, prepare_place
from .singularity import Metadata, text_file

log = logging.getLogger(__name__)

#: A path in fstab is one word; what another one names stays a folder of the image.
_VOLUME = re.compile(r"/[^\s\\$]+")
_MOUNT = "${{ENROOT_ROOTFS}}{0} {0} none x-create=dir,bind,rw,nosuid,nodev\n"


def write_plain(
    image: Image, path: Path, work: Workspace, *, compression: Compression = "gzip"
) -> tuple[str, int]:
    """Write an image as a plain squashfs. Returns its digest and size.

    The same image, compression and epoch produce the same bytes.

    Args:
        image: the image; its layers are on this machine.
        path: the file. It is written under another name and renamed when it is complete.
        compression: every squashfs reader knows gzip.

    Raises:
        ImageError: a layer is damaged or not on this machine, or the path is a folder.
        SpaceError: the disk is full.
    """
    require_layers(image, f"write {path}")
    config = parse_config(image.config, image.digest)
    inner = config.get("config") or {}
    _warn(inner, work.reporter)
    maker = PartitionMaker(image, Metadata(config, image.digest), None, compression, work)
    log.info("writing %s: a squashfs of %d layers", path, len(image.layers))
    epoch = work.settings.epoch
    folders = _folders(inner, epoch)
    texts = config_files(inner, image.digest)
    files = [text_file(path, text, 0o644, epoch) for path, text in texts.items()]
    with space_errors(path.parent):
        prepare_place(path, "squashfs")
        size = sum(layer.descriptor.size for layer in image.layers)
        require_space(path.parent, size, f"writing {path}")
        with durable_file(path) as temporary:
            with temporary.open("w+b") as out:
                maker.write_plain(out, folders, files)
            digest, size = sha256_file(temporary), temporary.stat().st_size
            temporary.chmod(0o644)
    return digest, size


def config_files(config: Mapping[str, Any], digest: str) -> dict[str, str]:
    """Return the texts that stand for an image's config, by path.

    Args:
        config: the inner part of the image's config.
        digest: of the image, for a comment.
    """
    volumes = filter(_VOLUME.fullmatch, sorted(config.get("Volumes") or {}))
    env = [f"{entry}\n" for entry in config.get("Env") or () if "\n" not in entry]
    return {
        "etc/rc": _script(config, digest),
        "etc/rc.local": script(__file__, "enroot_rc_local.sh"),
        "etc/fstab": "".join(map(_MOUNT.format, volumes)),
        "etc/environment": "".join(env),
    }


def _script(config: Mapping[str, Any], digest: str) -> str:
    entrypoint, command = list(config.get("Entrypoint") or ()), list(config.get("Cmd") or ())
    labels = (config.get("Labels") or {}).items()
    return script(
        __file__,
        "enroot_rc.sh",
        digest=digest,
        labels="".join(f"# {one_line(key)} {one_line(value)}\n" for key, value in labels),
        workdir=shlex.quote(_workdir(config)),
        start=shlex.join(entrypoint) + ' "$@"' if entrypoint else '"$@"',
        command=shlex.join([*entrypoint, *command] or ["/bin/sh"]),
    )


def _folders(config: Mapping[str, Any], time: int) -> Files:
    """Return the folder of the files and the working folder, for images that do not have them."""
    workdir = PurePosixPath(_workdir(config)).relative_to("/")
    names = {"etc", *(str(path) for path in (workdir, *workdir.parents))} - {"."}
    return [(Member(name, Kind.DIRECTORY, 0o755, mtime=time), b"") for name in sorted(names)]


def _workdir(config: Mapping[str, Any]) -> str:
    """Return the working folder as an absolute path without ``..``."""
    return posixpath.normpath("/" + (config.get("WorkingDir") or "").lstrip("/"))


def _warn(config: Mapping[str, Any], reporter: Reporter) -> None:
    """Report variables that enroot reads otherwise than an OCI runtime."""
    pairs = [entry.partition("=") for entry in config.get("Env") or ()]
    odd = [name for name, _, value in pairs if "\n" in value or "${" in value]
    if odd:
        reporter.warn(
            f"{', '.join(odd)}: enroot has no line breaks in variables, and fills in ${{NAME}} from the host"
        )
