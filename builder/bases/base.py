"""Base images: what lies below an environment. Their layers pass through byte for byte.

``docker://[host/]repository[:tag][@digest]``, ``oci:DIR[:TAG]``, ``oci-archive:FILE[:TAG]``, ``docker-archive:FILE[:TAG]``,
``debian:SUITE`` and ``sif:FILE``.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.bases.debian import debian_base
from builder.bases.pack import pack_tar
from builder.errors import ConfigError, ImageError
from builder.model import (
    OCI_CONFIG,
    OCI_LAYER_GZIP,
    OCI_LAYER_ZSTD,
    OCI_MANIFEST,
    Descriptor,
    Layer,
    LockedBase,
    SifImage,
    canonical_json,
)
from builder.net.mirrors import mirrored_base
from builder.oci.layout import read_layout
from builder.oci.manifest import (
    INDEXES,
    choose,
    choose_platform,
    image_layers,
    parse_config,
    parse_json,
    parse_manifest,
    with_path,
)
from builder.oci.reference import Reference
from builder.progress import QUIET, Reporter
from builder.registry.client import RegistryClient
from builder.settings import Settings
from builder.store.blobs import BlobWriter, Store
from builder.store.files import CHUNK, write_atomic
from builder.trees.rootfs import inflate

KINDS = ("docker", "oci", "oci-archive", "docker-archive", "debian", "sif")
_CURE = "write it as docker://host/repository:tag, oci:DIR[:TAG], oci-archive:FILE, docker-archive:FILE, debian:SUITE or sif:FILE"


@dataclass(frozen=True, slots=True)
class BaseImage:
    """A base as it is opened: ``config`` is the parsed image config, ``digest`` that of the platform's manifest.

    A SIF has no layers: ``sif`` is the file, ``digest`` that of its bytes, and ``config`` says what it says of itself.
    """

    reference: str
    digest: str
    config: dict[str, Any]
    layers: tuple[Layer, ...]
    sif: SifImage | None = None


def resolve_base(
    reference: str,
    architecture: str,
    settings: Settings,
    store: Store,
    *,
    packages: Sequence[str] = (),
    root: Path | None = None,
    reporter: Reporter = QUIET,
) -> LockedBase:
    """What a base reference holds now, for the lock to pin.

    Args:
        reference: the recipe's ``base``.
        architecture: as the OCI names it: ``amd64``, ``arm64``.
        packages: Debian packages to add to a ``debian:`` base.
        root: the folder that relative paths are relative to; the current one by default.

    Raises:
        ConfigError: not a reference.
        ImageError: no such image, not for this architecture, or damaged.
        RegistryError: its registry does not give it.
    """
    kind, rest = split(reference)
    if packages and kind != "debian":
        raise ConfigError(
            f"base_packages are for debian: bases; {reference} is not one",
            "remove base_packages, or take a debian: base",
        )
    if kind == "debian":
        return LockedBase(
            reference,
            debian_base(reference, architecture, settings, store, packages=packages, reporter=reporter),
        )
    actual = mirrored_base(settings, reference)
    kind, rest = split(actual)
    if kind == "docker":
        return LockedBase(reference, _resolve_docker(actual, architecture, settings, store, reporter))
    return LockedBase(reference, _open_local(kind, rest, actual, architecture, settings, store, root).digest)


def open_base(
    locked: LockedBase,
    architecture: str,
    settings: Settings,
    store: Store,
    *,
    packages: Sequence[str] = (),
    download: bool = True,
    root: Path | None = None,
    reporter: Reporter = QUIET,
) -> BaseImage:
    """The base that a lock pins, ready to be built on; from its mirror, if BUILDER_MIRRORS names one.

    Args:
        locked: reference and digest. A registry gives what the digest says, whatever the tag names now.
        architecture: as the OCI names it.
        packages: Debian packages of a ``debian:`` base.
        download: False leaves a registry base's layers where they are: their ``path`` is None and ``origin`` says where.
        root: the folder that relative paths are relative to; the current one by default.

    Raises:
        ConfigError, ImageError, RegistryError: as :func:`resolve_base`; ImageError also when a local image is not the locked one.
    """
    actual = mirrored_base(settings, locked.reference)
    kind, rest = split(actual)
    if kind == "debian":
        digest = debian_base(
            locked.reference,
            architecture,
            settings,
            store,
            packages=packages,
            pinned=locked.digest,
            reporter=reporter,
        )
        base = _from_store(locked.reference, digest, store)
    elif kind == "docker":
        base = _open_docker(locked, actual, settings, store, download, reporter)
    else:
        base = replace(
            _open_local(kind, rest, actual, architecture, settings, store, root), reference=locked.reference
        )
        if base.digest != locked.digest:
            raise ImageError(
                f"the lock pins the base {locked.reference} as {locked.digest}, but "
                f"{'it' if actual == locked.reference else actual} holds {base.digest}",
                "bring the locked image back, or pin this one: builder lock --update-base",
            )
    have = base.config.get("architecture")
    if have != architecture or base.config.get("os", "linux") != "linux":
        raise ImageError(
            f"the base {locked.reference} is for {base.config.get('os', 'linux')}/{have}, the recipe for linux/{architecture}",
            "take another base, or correct the recipe's platform",
        )
    return base


def conda_prefixes(base: BaseImage) -> list[str]:
    """Where a base may have a conda already, as its environment variables tell; the paths are not looked at."""
    from builder.oci.config import config_environment as base_environment

    env = base_environment(base.config)
    found = [
        env[name]
        for name in ("CONDA_DIR", "CONDA_PREFIX", "MAMBA_ROOT_PREFIX", "CONDA_ROOT")
        if env.get(name, "").startswith("/")
    ]
    for entry in env.get("PATH", "").split(":"):
        prefix = re.sub(r"/(s?bin|condabin)/?$", "", entry)
        if prefix != entry and re.search(r"(conda|mamba|miniforge)[^/]*$", prefix):
            found.append(prefix)
    return list(dict.fromkeys(p.rstrip("/") for p in found if p != "/"))


def split(reference: str) -> tuple[str, str]:
    """Kind and the rest of a base reference.

    Raises:
        ConfigError: not one of :data:`KINDS`.
    """
    kind, sep, rest = reference.partition(":")
    if kind == "docker" and rest.startswith("//"):
        rest = rest[2:]
    elif kind == "docker":
        sep = ""
    if not sep or not rest or kind not in KINDS:
        raise ConfigError(f"base {reference!r} is not a reference to an image", _CURE)
    return kind, rest


# registries -----------------------------------------------------------------------------------------------------------


def _resolve_docker(
    reference: str, architecture: str, settings: Settings, store: Store, reporter: Reporter
) -> str:
    parsed = Reference.parse(reference)
    with RegistryClient(parsed.host, settings=settings, reporter=reporter) as client:
        data, media_type, digest = client.get_manifest(parsed.repository, parsed.ref)
        if media_type in INDEXES:
            index = parse_json(data, f"the image index of {reference}")
            wanted = choose_platform(index, architecture, reference)
            data, media_type, digest = client.get_manifest(parsed.repository, wanted.digest)
    parse_manifest(data, Descriptor(media_type, digest, len(data)), reference)
    store.add(data)
    return digest


def _open_docker(
    locked: LockedBase, actual: str, settings: Settings, store: Store, download: bool, reporter: Reporter
) -> BaseImage:
    """Fetches what the store lacks from where it ``actual``-ly lies; a base that was fetched before needs no registry."""
    parsed = Reference.parse(actual)
    repository = parsed.repository
    with ExitStack() as stack:

        def client() -> RegistryClient:
            return stack.enter_context(RegistryClient(parsed.host, settings=settings, reporter=reporter))

        if (path := store.get(locked.digest)) is not None:
            data = path.read_bytes()
        else:
            data, _, _ = client().get_manifest(repository, locked.digest)
            store.add(data)
        manifest = parse_manifest(data, Descriptor(OCI_MANIFEST, locked.digest, len(data)), locked.reference)
        described = Descriptor.from_json(manifest["config"])
        path = store.get(described.digest, described.size) or client().get_blob_to(
            repository, described, store
        )
        config = parse_config(path.read_bytes(), locked.reference)
        layers = image_layers(manifest, config, locked.reference)
        paths = {x.descriptor.digest: store.get(x.descriptor.digest, x.descriptor.size) for x in layers}
        missing = {x.descriptor.digest: x.descriptor for x in layers if paths[x.descriptor.digest] is None}
        if missing and download:
            task, fetcher = f"base {locked.reference}", client()
            reporter.start(task, sum(d.size for d in missing.values()))
            with ThreadPoolExecutor(4) as pool:
                fetched = pool.map(
                    lambda d: fetcher.get_blob_to(repository, d, store, lambda n: reporter.advance(task, n)),
                    missing.values(),
                )
                paths |= dict(zip(missing, fetched, strict=True))
            reporter.finish(task)
        layers = tuple(replace(x, path=paths[x.descriptor.digest], origin=parsed.name) for x in layers)
    return BaseImage(locked.reference, locked.digest, config, layers)


# local images ---------------------------------------------------------------------------------------------------------


def _open_local(
    kind: str,
    rest: str,
    reference: str,
    architecture: str,
    settings: Settings,
    store: Store,
    root: Path | None,
) -> BaseImage:
    if kind == "sif":
        return _from_sif(reference, (root or Path()) / Path(rest).expanduser(), architecture, store)
    path, tag = path_and_tag(rest, root or Path())
    if not path.exists():
        raise ImageError(
            f"base {reference}: {path} does not exist",
            "correct the path; it is relative to the project folder",
        )
    if kind == "oci":
        return _from_layout(reference, path, tag, architecture, store)
    if not path.is_file():
        raise ImageError(f"base {reference}: {path} is not a file", f"for a folder write oci:{rest}")
    with _opened(path) as tar:
        if kind == "oci-archive":
            return _from_oci_archive(reference, path, tag, tar, architecture, store)
        return _from_docker_archive(reference, path, tag, tar, settings, store)


def _from_sif(reference: str, path: Path, architecture: str, store: Store) -> BaseImage:
    from builder.sif.image import open_sif, read_sif

    if not path.exists():
        raise ImageError(
            f"base {reference}: {path} does not exist",
            "correct the path; it is relative to the project folder",
        )
    sif = open_sif(path, store, architecture)
    config = {**read_sif(path).config(), "architecture": architecture, "os": "linux"}
    config |= {"rootfs": {"type": "layers", "diff_ids": []}, "history": []}
    return BaseImage(reference, sif.digest, config, (), sif)


def path_and_tag(rest: str, root: Path) -> tuple[Path, str | None]:
    """``PATH[:TAG]`` or ``PATH[@sha256:...]``; a path that exists as it is written is one."""
    whole = root / Path(rest).expanduser()
    if whole.exists():
        return whole, None
    path, sep, tag = rest.partition("@") if "@sha256:" in rest else rest.partition(":")
    return (root / Path(path).expanduser(), tag) if sep and tag else (whole, None)


def _from_layout(reference: str, folder: Path, tag: str | None, architecture: str, store: Store) -> BaseImage:
    image = read_layout(folder, tag, architecture)
    for layer in image.layers:
        assert layer.path is not None
        if not store.verify(layer.path, layer.descriptor.digest):
            raise ImageError(
                f"base {reference}: {layer.path} is not what its name says",
                "the layout is damaged: write it again",
            )
    return BaseImage(reference, image.digest, parse_config(image.config, reference), image.layers)


def _from_store(reference: str, digest: str, store: Store) -> BaseImage:
    path = store.get(digest)
    manifest = path.read_bytes() if path else b""
    data = parse_manifest(manifest, Descriptor(OCI_MANIFEST, digest, len(manifest)), reference)
    config_path = store.get(data["config"]["digest"])
    config = parse_config(config_path.read_bytes() if config_path else b"", reference)
    layers = image_layers(data, config, reference)
    return BaseImage(
        reference, digest, config, tuple(with_path(x, store.path(x.descriptor.digest)) for x in layers)
    )


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    hint = "write it again: skopeo copy, docker save or builder build"
    try:
        with tarfile.open(path) as tar:
            yield tar
    except tarfile.TarError as e:
        raise ImageError(f"{path} is not a whole archive: {e}", hint) from None
    except (EOFError, OSError) as e:
        if isinstance(e, OSError) and e.filename is None and e.errno:
            raise
        raise ImageError(f"{path} cannot be read: {e}", hint) from None


def _member(tar: tarfile.TarFile, name: str, path: Path) -> tarfile.TarInfo:
    for spelling in (name, f"./{name}"):
        try:
            return tar.getmember(spelling)
        except KeyError:
            continue
    raise ImageError(f"{path} has no {name}", "it is another kind of archive, or damaged: write it again")


def _chunks(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> Iterator[bytes]:
    try:
        stream = tar.extractfile(member)
    except KeyError:
        stream = None
    if stream is None:
        raise ImageError(f"{path}: {member.name} is not a file", "the archive is damaged: write it again")
    while data := stream.read(CHUNK):
        yield data


def _small(tar: tarfile.TarFile, name: str, path: Path) -> bytes:
    return b"".join(_chunks(tar, _member(tar, name, path), path))


def _from_oci_archive(
    reference: str, path: Path, tag: str | None, tar: tarfile.TarFile, architecture: str, store: Store
) -> BaseImage:
    def blob(descriptor: Descriptor) -> None:
        if store.get(descriptor.digest, descriptor.size) is not None:
            return
        with store.writer() as out:
            for data in _chunks(
                tar, _member(tar, f"blobs/{descriptor.digest.replace(':', '/')}", path), path
            ):
                out.write(data)
            _commit(out, descriptor.digest, path)

    def content(descriptor: Descriptor) -> bytes:
        blob(descriptor)
        return store.path(descriptor.digest).read_bytes()

    index = parse_json(_small(tar, "index.json", path), f"index.json of {path}")
    wanted = choose(index.get("manifests") or [], tag, str(path))
    while wanted.media_type in INDEXES:
        wanted = choose_platform(
            parse_json(content(wanted), f"{wanted.digest} of {path}"), architecture, str(path)
        )
    data = parse_manifest(content(wanted), wanted, str(path))
    for descriptor in map(Descriptor.from_json, (data["config"], *data["layers"])):
        blob(descriptor)
    return _from_store(reference, wanted.digest, store)


def _commit(out: BlobWriter, digest: str, path: Path) -> None:
    actual, _ = out.commit()
    if actual != digest:
        raise ImageError(f"{path}: blob {digest} is damaged (it is {actual})", "write the archive again")


def _from_docker_archive(
    reference: str, path: Path, tag: str | None, tar: tarfile.TarFile, settings: Settings, store: Store
) -> BaseImage:
    """Makes an OCI manifest for an archive of ``docker save``; uncompressed layers are compressed, always to the same bytes."""
    listing = parse_json(
        b'{"images":' + _small(tar, "manifest.json", path) + b"}", f"manifest.json of {path}"
    )["images"]
    images = [
        i
        for i in listing
        if tag is None or any(t == tag or t.endswith(f":{tag}") for t in i.get("RepoTags") or ())
    ]
    if len(images) != 1:
        known = ", ".join(t for i in listing for t in i.get("RepoTags") or ()) or "none"
        raise ImageError(
            f"{path} holds {len(images)} images{f' named {tag!r}' if tag else ''}, not one",
            f"name one by its tag: {known}",
        )
    raw_config = _small(tar, images[0]["Config"], path)
    config = parse_config(raw_config, str(path))
    diff_ids = config["rootfs"]["diff_ids"]
    if len(diff_ids) != len(images[0]["Layers"]):
        raise ImageError(
            f"{path}: {len(images[0]['Layers'])} layers but {len(diff_ids)} diff_ids",
            "the archive is damaged: write it again",
        )
    layers = [
        _docker_layer(tar, name, diff_id, path, settings, store)
        for name, diff_id in zip(images[0]["Layers"], diff_ids, strict=True)
    ]
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": Descriptor(OCI_CONFIG, store.add(raw_config), len(raw_config)).to_json(),
            "layers": [layer.descriptor.to_json() for layer in layers],
        }
    )
    return _from_store(reference, store.add(manifest), store)


def _docker_layer(
    tar: tarfile.TarFile, name: str, diff_id: str, path: Path, settings: Settings, store: Store
) -> Layer:
    remembered = store.folders.bases / f"layer-{diff_id.replace(':', '-')}.json"
    if remembered.exists():
        known = Descriptor.from_json(parse_json(remembered.read_bytes(), str(remembered)))
        if (blob := store.get(known.digest, known.size)) is not None:
            return Layer(known, diff_id, blob)
    chunks = _chunks(tar, _member(tar, name, path), path)
    first = next(chunks, b"")
    if first[:2] == b"\x1f\x8b" or first[:4] == b"\x28\xb5\x2f\xfd":
        with store.writer() as out:
            out.write(first)
            for data in chunks:
                out.write(data)
            blob_digest, size = out.commit()
        whole = hashlib.sha256()
        for data in inflate(store.path(blob_digest)):
            whole.update(data)
        kind = OCI_LAYER_GZIP if first[:2] == b"\x1f\x8b" else OCI_LAYER_ZSTD
        layer = Layer(
            Descriptor(kind, blob_digest, size), f"sha256:{whole.hexdigest()}", store.path(blob_digest)
        )
    else:
        layer = pack_tar(_chain(first, chunks), store, settings.jobs)
    if layer.diff_id != diff_id:
        store.drop(layer.descriptor.digest)
        raise ImageError(
            f"{path}: layer {name} is {layer.diff_id}, its config says {diff_id}",
            "the archive is damaged: write it again",
        )
    write_atomic(remembered, canonical_json(layer.descriptor.to_json()))
    return layer


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
