"""``docker-archive:`` bases: images in tar files, which may be compressed."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

from builder.core.errors import ImageError, RegistryError
from builder.core.model import OCI_LAYER_GZIP, OCI_LAYER_ZSTD, Descriptor, Layer
from builder.core.store.blobs import Store
from builder.core.store.files import space_errors
from builder.core.tarheaders import (
    BLOCK,
    FILE,
    HARDLINK,
    SYMLINK,
    TarError,
    TarHeader,
    read_headers,
)
from builder.core.workspace import Workspace
from builder.formats.layers.cache import cached_layer
from builder.formats.oci.documents import check_size, some
from builder.formats.oci.image import assemble
from builder.formats.oci.manifest import parse_config, parse_docker_listing
from builder.formats.oci.reference import Reference
from builder.formats.trees.bounds import MAX_CONTENT
from builder.formats.trees.inflate import GZIP_MAGIC, ZSTD_START, inflate, tar_digest
from builder.formats.trees.member import DO_NOT_USE
from builder.formats.trees.reader import TarReader

from .image import BaseImage, stored_base
from .pack import pack_tar

#: Members of an archive: layers, folders and links. Images have at most some hundred layers.
MAX_MEMBERS = 100_000
#: Links that are followed from a member to its file.
_MAX_LINKS = 8
#: Programs that decompress what builder does not, by the first bytes.
_PROGRAMS = {b"\xfd7zXZ": "xz", b"BZh": "bzip2"}
_WRITE_AGAIN = "the archive is damaged: write it again"


def open_docker_archive(reference: str, path: Path, tag: str | None, work: Workspace) -> BaseImage:
    """Return an image of ``docker save``. Its layers and an OCI manifest go into the store.

    Uncompressed layers are compressed, always to the same bytes.

    Args:
        reference: for messages.
        path: the archive.
        tag: ``TAG`` or ``NAME[:TAG]``; None for the only image.

    Raises:
        ImageError: there is no such image, or the archive is damaged.
    """
    with open_archive(path, work.store) as archive:
        chosen = choose_docker_image(archive, tag)
        raw_config = archive.read(chosen["Config"])
        diff_ids = parse_config(raw_config, str(path))["rootfs"]["diff_ids"]
        names = chosen["Layers"]
        if len(diff_ids) != len(names):
            problem = f"{path}: {len(names)} layers but {len(diff_ids)} diff_ids"
            raise ImageError(problem, _WRITE_AGAIN)
        layers = [
            _docker_layer(archive, name, diff_id, work)
            for name, diff_id in zip(names, diff_ids, strict=True)
        ]
    image = assemble(layers, raw_config)
    work.store.add(image.config)
    return stored_base(reference, work.store.add(image.manifest), work.store)


# the tar file -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RegistryArchive:
    """A tar file that holds an image."""

    path: Path
    file: IO[bytes]
    """The uncompressed tar."""
    members: Mapping[str, tuple[TarHeader, int]]
    """By path: the member, and where its content begins."""

    def read(self, name: str) -> bytes:
        """Return the content of a JSON document.

        Raises:
            ImageError: it is not in the archive, or too large.
        """
        check_size(self._find(name)[0].size, f"{self.path}: {name}")
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file, in chunks. Raises as :meth:`read`."""
        header, offset = self._find(name)
        check_size(header.size, f"{self.path}: {name}", MAX_CONTENT)  # a sparse file has any size
        self.file.seek(offset)
        yield from map(bytes, TarReader(self.file, MAX_CONTENT).content(header))

    def _find(self, name: str) -> tuple[TarHeader, int]:
        """Return the member of a name. ``docker save`` writes a layer once, and symlinks to it."""
        path = name = posixpath.normpath(name)
        for _ in range(_MAX_LINKS):
            if path not in self.members:
                break
            header, offset = self.members[path]
            if header.flag == FILE:
                return header, offset
            if header.flag not in (HARDLINK, SYMLINK):
                break
            folder = posixpath.dirname(path) if header.flag == SYMLINK else ""
            path = posixpath.normpath(posixpath.join(folder, header.target))
        if name in self.members:
            raise ImageError(f"{self.path}: {name} is not a file", _WRITE_AGAIN)
        hint = "if it is the tar of an OCI layout: tar -xf FILE -C DIR, and name oci:DIR"
        raise ImageError(f"{self.path} has no {name}", hint)


@contextmanager
def open_archive(path: Path, store: Store) -> Iterator[_RegistryArchive]:
    """Open a tar that holds an image; its members can be read in any order.

    Raises:
        ImageError: it cannot be read, or is no complete tar.
    """
    hint = "write it again: skopeo copy, docker save or builder build --to"
    try:
        with _uncompressed(path, store) as file:
            yield _RegistryArchive(path, file, _members(path, file))
    except TarError as e:
        raise ImageError(f"{path} is not a complete archive: {e}", hint) from None
    except OSError as e:
        if e.filename is None and e.errno:  # such as a full disk while the store is written
            raise
        raise ImageError(f"{path} cannot be read: {e}", hint) from None


def _uncompressed(path: Path, store: Store) -> IO[bytes]:
    """Return the tar; a compressed one is in a file without a name, where any layer is found at once."""
    with path.open("rb") as f:
        magic = f.read(6)
    for start, program in _PROGRAMS.items():
        if magic.startswith(start):
            raise ImageError(f"{path} is compressed with {program}", f"run {program} -d {path}")
    if not magic.startswith(GZIP_MAGIC) and not ZSTD_START.match(magic):
        return path.open("rb")
    temporary = store.temporary()
    with space_errors(temporary.parent):
        file = temporary.open("x+b")
        temporary.unlink()
        file.writelines(inflate(path))
        file.seek(0)
    return file


def _members(path: Path, file: IO[bytes]) -> dict[str, tuple[TarHeader, int]]:
    members: dict[str, tuple[TarHeader, int]] = {}
    for header in read_headers(file.read):
        offset = file.tell()
        members[posixpath.normpath(header.path)] = header, offset
        if len(members) > MAX_MEMBERS:
            raise ImageError(f"{path} has more than {MAX_MEMBERS} members", DO_NOT_USE)
        file.seek(offset + header.stored + -header.stored % BLOCK)
    return members


# docker archives --------------------------------------------------------------------------------------------


def choose_docker_image(archive: _RegistryArchive, tag: str | None) -> dict[str, Any]:
    """Return the entry of ``manifest.json`` that has a tag, or the only one.

    Raises:
        ImageError: there is no such image, or the archive is damaged.
    """
    listing = parse_docker_listing(archive.read("manifest.json"), str(archive.path))
    images = [image for image in listing if _has_tag(image, tag)]
    if len(images) == 1:
        return images[0]
    tags = [name for image in listing for name in image.get("RepoTags") or ()]
    named = f" named {tag!r}" if tag else ""
    hint = f"name one by its tag: {some(tags)}"
    raise ImageError(f"{archive.path} holds {len(images)} images{named}, not one", hint)


def _has_tag(image: dict[str, Any], tag: str | None) -> bool:
    names = image.get("RepoTags") or ()
    if tag is None or any(name.endswith(f":{tag}") for name in names):
        return True
    return _completed(tag) in map(_completed, names)


def _completed(name: str) -> str:
    """Return a name as Docker completes it: ``x`` is ``docker.io/library/x:latest``."""
    try:
        parsed = Reference.parse(name)
    except RegistryError:
        return name
    return f"{parsed.name}:{parsed.tag or 'latest'}"


def _docker_layer(archive: _RegistryArchive, name: str, diff_id: str, work: Workspace) -> Layer:
    """Return a layer of the archive, in the store. A record maps its diff_id to the blob."""
    file = f"docker-layer-{diff_id.replace(':', '-')}.json"
    make = partial(_new_layer, archive, name, diff_id, work)
    return cached_layer(work.store.folders.bases / file, work.store, make)


def _new_layer(archive: _RegistryArchive, name: str, diff_id: str, work: Workspace) -> Layer:
    chunks = archive.chunks(name)
    first = next(chunks, b"")
    whole = chain([first], chunks)
    if first.startswith(GZIP_MAGIC):
        layer = _store_compressed(whole, OCI_LAYER_GZIP, work.store)
    elif ZSTD_START.match(first):
        layer = _store_compressed(whole, OCI_LAYER_ZSTD, work.store)
    else:
        layer = pack_tar(whole, work.store, work.settings.jobs)
    if layer.diff_id != diff_id:
        work.store.drop(layer.descriptor.digest)
        problem = f"{archive.path}: layer {name} is {layer.diff_id}, its config lists {diff_id}"
        raise ImageError(problem, _WRITE_AGAIN)
    return layer


def _store_compressed(chunks: Iterator[bytes], media_type: str, store: Store) -> Layer:
    """Return a layer that is compressed already, stored unchanged."""
    digest, size = store.add_pieces(chunks)
    path = store.path(digest)
    return Layer(Descriptor(media_type, digest, size), tar_digest(path), path)
