"""Images and real tools: Debian bases, registries, skopeo, podman, Docker, unpacked root file systems."""

from __future__ import annotations

import json
import sys
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builder.build.bases.image import BaseImage, WantedBase
from builder.build.bases.resolve import open_base, resolve_base
from builder.build.image.archive import docker_load, write_docker_archive
from builder.build.image.config import make_image
from builder.build.image.files import system_entries, whiteout_entries
from builder.core.errors import RegistryError
from builder.core.model import Compression, Image, Lock, LockedBase
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.entry import Entry, Inline
from builder.formats.oci.layout import read_layout, write_layout
from builder.lock.config.recipe import Recipe
from tests.integration.conftest import keep_base
from tests.support import parts
from tests.support.image_kit import EPOCH, image, layer, member, recipe, settings

REPORT = (
    'echo "$CONDA_PREFIX $FROM $ACTIVATED $(cat /opt/conda/marker) $(id -u)"; '
    "command -v tool; ls -a /opt/conda"
)


@dataclass
class Debian:
    """A ``debian:bookworm`` base in a store."""

    settings: Settings
    store: Store
    locked: LockedBase
    base: BaseImage


def debian_in(cache: Path) -> Debian:
    """The base of a cache, which is made if it is not there."""
    given = replace(settings(cache.parent), cache=cache, tmpdir=cache / "tmp")
    store = Store(cache)
    locked = resolve_base("debian:bookworm", WantedBase("amd64"), Workspace(given, store))
    return Debian(given, store, locked, open_base(locked, WantedBase("amd64"), Workspace(given, store)))


@pytest.fixture(scope="module")
def shared(base_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Debian:
    """The base that all tests share, in a cache of its own."""
    return debian_in(keep_base(base_cache, tmp_path_factory.mktemp("shared") / "cache"))


def whole_image(shared: Debian, target: Recipe, top_compression: Compression = "zstd") -> Image:
    """Base, a conda in the base, the layer that hides it, an environment, and builder's own files."""
    store = shared.store
    below = layer(
        store,
        member("opt/conda/bin/conda", b"old", mode=0o755),
        member("opt/conda/old", b"old"),
        title="a conda of the base",
    )
    base = BaseImage(
        shared.base.reference, shared.base.digest, shared.base.config, (*shared.base.layers, below)
    )
    script = "opt/conda/etc/conda/activate.d/a.sh"

    def file(path: str, data: bytes, mode: int = 0o644) -> Entry:
        return Entry(path, "file", mode, len(data), content=Inline(data))

    own = Settings(store.root, store.root, 1, epoch=EPOCH)
    bottom = make_layer(whiteout_entries("/opt/conda"), "prefix", Workspace(own, store))
    entries = [
        file("opt/conda/marker", b"new"),
        file("opt/conda/bin/tool", b"#!/bin/sh\necho tool\n", 0o755),
        file(script, b"x=(activated)\nexport ACTIVATED=${x[0]}\n"),
    ]
    environment = make_layer(entries, "environment", Workspace(own, store))
    files = system_entries(target, b"lock", [f"/{script}"])
    top = make_layer(files, "builder", Workspace(own, store), compression=top_compression)
    lock = Lock((), ("linux-64",), digest="sha256:" + "1" * 64)
    return make_image(
        base, [bottom, environment, top], recipe=target, lock=lock, env={}, annotations={}, epoch=EPOCH
    )


@pytest.fixture(scope="module")
def whole(shared: Debian) -> Image:
    return whole_image(shared, recipe(env={"FROM": "recipe"}, cmd=["sh", "-c", REPORT]))


def right(text: str, uid: int = 0) -> bool:
    """Whether REPORT printed what it prints in the image."""
    return text.split() == [
        "/opt/conda",
        "recipe",
        "activated",
        "new",
        str(uid),
        "/opt/conda/bin/tool",
        ".",
        "..",
        "bin",
        "etc",
        "marker",
    ]


# Debian bases -------------------------------------------------------------------------------------------


@pytest.mark.network
@pytest.mark.root
def test_debian_base_content(shared: Debian) -> None:
    """A Debian base has what images need, and no file whose content varies."""
    (only,) = shared.base.layers
    assert only.path is not None
    with tarfile.open(only.path) as tar:
        members = {m.name: m for m in tar}
        texts = {n: tar.extractfile(n).read() for n in ("etc/hosts", "etc/hostname", "etc/resolv.conf")}  # type: ignore[union-attr]
    assert {
        "usr/bin/bash",
        "bin",
        "usr/bin/apt-get",
        "etc/ssl/certs/ca-certificates.crt",
        "usr/share/doc/bash/copyright",
        "tmp",
        "dev",
    } <= set(members)
    assert members["tmp"].mode == 0o1777 and members["bin"].linkname == "usr/bin"
    assert all(m.isreg() or m.isdir() or m.issym() or m.islnk() for m in members.values())
    assert all(m.mtime <= shared.settings.epoch for m in members.values())
    assert texts == {
        "etc/hosts": b"127.0.0.1\tlocalhost\n::1\tlocalhost\n",
        "etc/hostname": b"",
        "etc/resolv.conf": b"",
    }
    files = {n for n, m in members.items() if not m.isdir()}
    for folder in (
        "dev/",
        "var/log/",
        "var/cache/apt/",
        "var/cache/ldconfig/",
        "var/lib/apt/lists/",
        "etc/apt/sources.list",
        "usr/share/man/",
        "tmp/",
        "run/",
    ):
        assert not [n for n in files if n.startswith(folder)], folder
    assert not [
        n for n in files if n.endswith(("-old", ".old")) or (n.startswith("etc/") and n.endswith("-"))
    ]
    assert only.descriptor.size < 60e6
    assert shared.base.config["config"] == {
        "Cmd": ["bash"],
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    }


@pytest.mark.heavy
@pytest.mark.network
@pytest.mark.root
def test_debian_base_as_ordinary_user(
    shared: Debian, ordinary_user: parts.OrdinaryUser, tmp_path: Path
) -> None:
    """An ordinary user builds the same Debian base as root."""
    code = (
        "from builder.build.bases.image import WantedBase\n"
        "from builder.build.bases.resolve import resolve_base\n"
        "from builder.core.settings import Settings\n"
        "from builder.core.workspace import Workspace\n"
        "import os; os.umask(0o077)\n"
        "s = Settings.from_environment()\n"
        "print(resolve_base('debian:bookworm', WantedBase('amd64'), Workspace.of(s)).digest)\n"
    )
    done = ordinary_user.run([sys.executable, "-c", code], {"PYTHONPATH": str(parts.CLONE)}, timeout=300)
    if done.stdout.strip() != shared.locked.digest:  # the mirror has newer packages
        assert done.stdout.strip() == debian_in(tmp_path / "cache").locked.digest


# registries ---------------------------------------------------------------------------------------------


@pytest.mark.registry
def test_layout_to_registry_and_back(registry: parts.Registry, tmp_path: Path) -> None:
    """A layout that skopeo copies to a registry can be used as a base, with and without its layers."""
    given, store = settings(tmp_path), Store(tmp_path / "cache")
    made = image(store, layer(store, member("a", b"1" * 10000)))
    write_layout(made, tmp_path / "dist", "tiny", store)
    assert json.loads(parts.skopeo(tmp_path, "inspect", f"oci:{tmp_path}/dist:tiny"))["Digest"] == made.digest
    parts.skopeo(
        tmp_path,
        "copy",
        "--dest-tls-verify=false",
        f"oci:{tmp_path}/dist:tiny",
        f"docker://{registry.host}/image-test/tiny:1",
    )

    reference = f"docker://{registry.host}/image-test/tiny:1"
    fresh = Store(tmp_path / "fresh")
    locked = resolve_base(reference, WantedBase("amd64"), Workspace(given, fresh))
    assert locked == LockedBase(reference, made.digest)
    lean = open_base(locked, WantedBase("amd64"), Workspace(given, fresh), download=False)
    assert [x.path for x in lean.layers] == [None, None] and {x.origin for x in lean.layers} == {
        f"{registry.host}/image-test/tiny"
    }
    assert [x.descriptor for x in lean.layers] == [
        x.descriptor for x in made.layers
    ] and lean.config == json.loads(made.config)
    full = open_base(locked, WantedBase("amd64"), Workspace(given, fresh))
    assert [x.path.read_bytes() for x in full.layers if x.path] == [
        x.path.read_bytes() for x in made.layers if x.path
    ]

    parts.skopeo(tmp_path, "copy", "--src-tls-verify=false", reference, f"oci:{tmp_path}/back:1")
    assert read_layout(tmp_path / "back").digest == made.digest


@pytest.mark.registry
def test_moved_tag(make_registry: parts.RegistryFactory, tmp_path: Path) -> None:
    """A lock pins the digest, whatever its tag points to; a cached base needs no registry."""
    own = make_registry()
    given, store = settings(tmp_path), Store(tmp_path / "cache")
    images = [image(store, layer(store, member("a", data))) for data in (b"1", b"2")]
    reference = f"docker://{own.host}/moving:latest"
    locks = []
    for made in images:
        write_layout(made, tmp_path / "dist", "x", store)
        parts.skopeo(tmp_path, "copy", "--dest-tls-verify=false", f"oci:{tmp_path}/dist:x", reference)
        locks.append(
            resolve_base(reference, WantedBase("amd64"), Workspace(given, Store(tmp_path / "fresh")))
        )
    assert [x.digest for x in locks] == [x.digest for x in images]
    fresh = Store(tmp_path / "another")
    assert open_base(locks[0], WantedBase("amd64"), Workspace(given, fresh)).digest == images[0].digest
    own.stop()
    assert open_base(locks[0], WantedBase("amd64"), Workspace(given, fresh)).digest == images[0].digest
    with pytest.raises(RegistryError):
        resolve_base(reference, WantedBase("amd64"), Workspace(given, fresh))


# running ------------------------------------------------------------------------------------------------


@pytest.mark.docker
@pytest.mark.network
def test_docker_loads_and_runs(docker_engine: parts.DockerEngine, whole: Image, tmp_path: Path) -> None:
    """A Docker engine loads the image, as a stream and as an archive, and runs it."""
    client = docker_engine.client
    identity = docker_load(whole, "image-test/streamed:1", client)
    assert identity == whole.config_descriptor.digest  # the engine stored the config as it is
    for user, uid in (("0", 0), ("1234:1234", 1234)):
        out = client.containers.run(
            "image-test/streamed:1", network_mode="none", remove=True, user=user
        ).decode()
        assert right(out, uid), out
    out = client.containers.run(
        "image-test/streamed:1",
        ["sh", "-c", "echo $FROM $0", "arg"],
        network_mode="none",
        remove=True,
        environment={"FROM": "-e"},
    )
    assert out == b"-e arg\n"
    write_docker_archive(whole, tmp_path / "a.tar", "image-test/archived:1")
    docker_engine.docker("load", "--input", tmp_path / "a.tar")
    assert client.images.get("image-test/archived:1").id == identity
    labels = client.images.get("image-test/archived:1").labels
    assert labels["org.builder.lock"] == "sha256:" + "1" * 64


@pytest.mark.podman
@pytest.mark.network
def test_podman(podman: parts.Podman, whole: Image, shared: Debian, tmp_path: Path) -> None:
    # podman parses a layout's path as an image name, which must not contain a folder that begins with a dot
    """podman runs the image from a layout and from an archive."""
    plain = podman.folder / "whole"
    write_layout(whole, plain / "dist", "whole", shared.store)
    write_docker_archive(whole, tmp_path / "docker.tar", "localhost/whole:1")
    for source in (f"oci:{plain}/dist:whole", f"docker-archive:{tmp_path}/docker.tar"):
        identity = podman.run("pull", source).stdout.split()[-1]
        assert identity == whole.config_descriptor.digest.removeprefix("sha256:")
        assert right(podman.run("run", "--rm", "--network=none", identity).stdout)
        podman.run("rmi", "--force", identity)
