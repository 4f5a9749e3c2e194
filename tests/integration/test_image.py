"""Images and real tools: Debian bases, registries, skopeo, podman, Docker, unpacked root file systems."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.bases.image import BaseImage
from builder.bases.resolve import open_base, resolve_base
from builder.config.recipe import Compression, Recipe
from builder.errors import ImageError, RegistryError
from builder.image.archive import docker_load, write_docker_archive, write_oci_archive
from builder.image.config import make_image
from builder.image.files import system_entries, whiteout_entries
from builder.layers.compress import write_layer
from builder.layers.entry import Entry, Inline, LinkContext
from builder.model import Image, Lock, LockedBase
from builder.oci.layout import read_layout, write_layout
from builder.settings import Settings
from builder.store.blobs import Store
from builder.trees.rootfs import unpack
from tests.support import parts
from tests.support.image_kit import EPOCH, image, layer, member, recipe, settings

CONTEXT = LinkContext("/opt/conda", "3.11", "lib/python3.11/site-packages")
REPORT = (
    'echo "$CONDA_PREFIX $FROM $ACTIVATED $(cat /opt/conda/marker) $(id -u)"; '
    "command -v tool; ls -a /opt/conda"
)


@dataclass
class Debian:
    """A ``debian:bookworm`` base in a store, built once for all tests."""

    settings: Settings
    store: Store
    locked: LockedBase
    base: BaseImage


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Debian:
    parts.need_root()
    parts.need("mmdebstrap")
    given = settings(tmp_path_factory.mktemp("debian"))
    store = Store(given.cache)
    locked = resolve_base("debian:bookworm", "amd64", given, store)
    return Debian(given, store, locked, open_base(locked, "amd64", given, store))


def whole_image(debian: Debian, target: Recipe, top_compression: Compression = "zstd") -> Image:
    """Base, a conda in the base, the layer that hides it, an environment, and builder's own files."""
    store = debian.store
    below = layer(
        store,
        member("opt/conda/bin/conda", b"old", mode=0o755),
        member("opt/conda/old", b"old"),
        title="a conda of the base",
    )
    base = BaseImage(
        debian.base.reference, debian.base.digest, debian.base.config, (*debian.base.layers, below)
    )
    script = "opt/conda/etc/conda/activate.d/a.sh"

    def file(path: str, data: bytes, mode: int = 0o644) -> Entry:
        return Entry(path, "file", mode, len(data), content=Inline(data))

    bottom = write_layer(
        store, whiteout_entries("/opt/conda"), compression="gzip", mtime=EPOCH, title="prefix"
    )
    entries = [
        file("opt/conda/marker", b"new"),
        file("opt/conda/bin/tool", b"#!/bin/sh\necho tool\n", 0o755),
        file(script, b"x=(activated)\nexport ACTIVATED=${x[0]}\n"),
    ]
    environment = write_layer(store, entries, compression="gzip", mtime=EPOCH, title="environment")
    top = write_layer(
        store,
        system_entries(target, b"lock", CONTEXT, [f"/{script}"]),
        compression=top_compression,
        mtime=EPOCH,
        title="builder",
    )
    lock = Lock((), ("linux-64",), digest="sha256:" + "1" * 64)
    return make_image(
        base, [bottom, environment, top], recipe=target, lock=lock, env={}, annotations={}, epoch=EPOCH
    )


@pytest.fixture(scope="session")
def whole(debian: Debian) -> Image:
    return whole_image(debian, recipe(env={"FROM": "recipe"}, cmd=["sh", "-c", REPORT]))


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
def test_debian_base_content(debian: Debian, tmp_path: Path) -> None:
    """A Debian base has what images need, and no file whose content varies."""
    (only,) = debian.base.layers
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
    assert all(m.mtime <= debian.settings.epoch for m in members.values())
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
    assert debian.base.config["config"] == {
        "Cmd": ["bash"],
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    }


@pytest.mark.network
@pytest.mark.root
def test_debian_base_as_ordinary_user(debian: Debian, ordinary_user: parts.OrdinaryUser) -> None:
    """An ordinary user builds the same Debian base as root."""
    code = (
        "from builder.bases.resolve import resolve_base\n"
        "from builder.settings import Settings\n"
        "from builder.store.blobs import Store\n"
        "import os; os.umask(0o077)\n"
        "s = Settings.from_environment()\n"
        "print(resolve_base('debian:bookworm', 'amd64', s, Store(s.cache)).digest)\n"
    )
    done = ordinary_user.run([sys.executable, "-c", code], {"PYTHONPATH": str(parts.CLONE)}, timeout=300)
    assert done.stdout.strip() == debian.locked.digest


@pytest.mark.network
@pytest.mark.root
def test_debian_base_is_cached(debian: Debian) -> None:
    """A Debian base is found in the cache. A digest that the mirror no longer has is an error."""
    offline = settings(debian.settings.cache.parent, offline=True)
    assert resolve_base("debian:bookworm", "amd64", offline, debian.store) == debian.locked
    assert (
        resolve_base("debian:bookworm", "amd64", debian.settings, debian.store) == debian.locked
    )  # asks the mirror
    assert not list(debian.settings.tmpdir.glob("*"))
    wrong = LockedBase("debian:bookworm", "sha256:" + "0" * 64)
    with pytest.raises(ImageError, match="pins debian:bookworm as sha256:000.* have changed"):
        open_base(wrong, "amd64", debian.settings, debian.store)


# registries ---------------------------------------------------------------------------------------------


def skopeo(*args: str | Path, env: dict[str, str] | None = None) -> str:
    (path,) = parts.need("skopeo")
    command = [path, "--insecure-policy", *map(str, args)]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout


@pytest.mark.registry
def test_layout_to_registry_and_back(registry: parts.Registry, tmp_path: Path) -> None:
    """A layout that skopeo copies to a registry can be used as a base, with and without its layers."""
    given, store = settings(tmp_path), Store(tmp_path / "cache")
    made = image(store, layer(store, member("a", b"1" * 10000)))
    write_layout(made, tmp_path / "dist", "tiny", store)
    assert json.loads(skopeo("inspect", f"oci:{tmp_path}/dist:tiny"))["Digest"] == made.digest
    skopeo(
        "copy",
        "--dest-tls-verify=false",
        f"oci:{tmp_path}/dist:tiny",
        f"docker://{registry.host}/image-test/tiny:1",
    )

    reference = f"docker://{registry.host}/image-test/tiny:1"
    fresh = Store(tmp_path / "fresh")
    locked = resolve_base(reference, "amd64", given, fresh)
    assert locked == LockedBase(reference, made.digest)
    lean = open_base(locked, "amd64", given, fresh, download=False)
    assert [x.path for x in lean.layers] == [None, None] and {x.origin for x in lean.layers} == {
        f"{registry.host}/image-test/tiny"
    }
    assert [x.descriptor for x in lean.layers] == [
        x.descriptor for x in made.layers
    ] and lean.config == json.loads(made.config)
    full = open_base(locked, "amd64", given, fresh)
    assert [x.path.read_bytes() for x in full.layers if x.path] == [
        x.path.read_bytes() for x in made.layers if x.path
    ]

    skopeo("copy", "--src-tls-verify=false", reference, f"oci:{tmp_path}/back:1")
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
        skopeo("copy", "--dest-tls-verify=false", f"oci:{tmp_path}/dist:x", reference)
        locks.append(resolve_base(reference, "amd64", given, Store(tmp_path / "fresh")))
    assert [x.digest for x in locks] == [x.digest for x in images]
    fresh = Store(tmp_path / "another")
    assert open_base(locks[0], "amd64", given, fresh).digest == images[0].digest
    own.stop()
    assert open_base(locks[0], "amd64", given, fresh).digest == images[0].digest
    with pytest.raises(RegistryError):
        resolve_base(reference, "amd64", given, fresh)


@pytest.mark.registry
def test_image_index(registry: parts.Registry, tmp_path: Path) -> None:
    """Of an image index the image for the architecture is used."""
    from builder.registry.client import RegistryClient

    given, store = settings(tmp_path), Store(tmp_path / "cache")
    made = image(store)
    write_layout(made, tmp_path / "dist", "x", store)
    skopeo(
        "copy",
        "--dest-tls-verify=false",
        f"oci:{tmp_path}/dist:x",
        f"docker://{registry.host}/image-test/index:amd64",
    )
    entry = {**made.manifest_descriptor.to_json(), "platform": {"os": "linux", "architecture": "amd64"}}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    with RegistryClient(registry.host) as client:
        client.put_manifest("image-test/index", "multi", json.dumps(index).encode(), str(index["mediaType"]))
    reference = f"docker://{registry.host}/image-test/index:multi"
    assert resolve_base(reference, "amd64", given, store).digest == made.digest
    with pytest.raises(ImageError, match="no image for linux/arm64") as caught:
        resolve_base(reference, "arm64", given, store)
    assert "it has: amd64" in caught.value.hint


@pytest.mark.registry
def test_docker_media_types(registry: parts.Registry, tmp_path: Path) -> None:
    """A base with Docker's media types has the same layers under OCI's."""
    given, store = settings(tmp_path), Store(tmp_path / "cache")
    made = image(store, layer(store, member("a", b"1")))
    write_layout(made, tmp_path / "dist", "x", store)
    reference = f"docker://{registry.host}/image-test/v2s2:x"
    skopeo("copy", "--format", "v2s2", "--dest-tls-verify=false", f"oci:{tmp_path}/dist:x", reference)
    base = open_base(resolve_base(reference, "amd64", given, store), "amd64", given, store)
    assert {x.descriptor.media_type for x in base.layers} == {
        "application/vnd.docker.image.rootfs.diff.tar.gzip"
    }
    built = make_image(
        base, [], recipe=recipe(), lock=Lock((), ("linux-64",)), env={}, annotations={}, epoch=EPOCH
    )
    assert [d["digest"] for d in json.loads(built.manifest)["layers"]] == [
        x.descriptor.digest for x in made.layers
    ]
    write_layout(built, tmp_path / "built", "x", store)
    assert json.loads(skopeo("inspect", f"oci:{tmp_path}/built:x"))["Digest"] == built.digest


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


@pytest.mark.docker
@pytest.mark.network
def test_docker_save_is_a_base(docker_engine: parts.DockerEngine, whole: Image, tmp_path: Path) -> None:
    """What docker save writes can be used as a base."""
    docker_load(whole, "image-test/saved:1", docker_engine.host)
    docker_engine.docker("save", "--output", tmp_path / "saved.tar", "image-test/saved:1")
    given, store = settings(tmp_path), Store(tmp_path / "cache")
    reference = f"docker-archive:{tmp_path}/saved.tar"
    base = open_base(resolve_base(reference, "amd64", given, store), "amd64", given, store)
    assert [x.diff_id for x in base.layers] == [x.diff_id for x in whole.layers]


@pytest.mark.docker
def test_docker_refuses(docker_engine: parts.DockerEngine, tmp_path: Path) -> None:
    """An image that the engine refuses is an error."""
    store = Store(tmp_path / "cache")
    with pytest.raises(ImageError, match="Docker engine"):
        docker_load(image(store), "NOT A NAME", docker_engine.client)


@pytest.mark.podman
@pytest.mark.network
def test_podman(podman: parts.Podman, whole: Image, debian: Debian, tmp_path: Path) -> None:
    # podman parses a layout's path as an image name, which must not contain a folder that begins with a dot
    """podman runs the image from a layout and from archives."""
    plain = podman.folder / "whole"
    write_layout(whole, plain / "dist", "whole", debian.store)
    write_oci_archive(whole, tmp_path / "oci.tar", "whole")
    write_docker_archive(whole, tmp_path / "docker.tar", "localhost/whole:1")
    for source in (
        f"oci:{plain}/dist:whole",
        f"oci-archive:{tmp_path}/oci.tar",
        f"docker-archive:{tmp_path}/docker.tar",
    ):
        identity = podman.run("pull", source).stdout.split()[-1]
        assert identity == whole.config_descriptor.digest.removeprefix("sha256:")
        assert right(podman.run("run", "--rm", "--network=none", identity).stdout)
        podman.run("rmi", "--force", identity)


@pytest.mark.network
def test_umoci(debian: Debian, tmp_path: Path) -> None:
    """umoci unpacks the same files as builder."""
    (umoci,) = parts.need("umoci")
    whole = whole_image(debian, recipe(), "gzip")  # umoci does not support zstd
    write_layout(whole, tmp_path / "dist", "whole", debian.store)
    subprocess.run(
        [umoci, "unpack", "--rootless", "--image", f"{tmp_path}/dist:whole", str(tmp_path / "bundle")],
        check=True,
        capture_output=True,
    )
    unpack(whole, tmp_path / "ours", debian.store)

    def tree(root: Path) -> dict[str, tuple[object, ...]]:
        found: dict[str, tuple[object, ...]] = {}
        for path in root.rglob("*"):
            info, name = path.lstat(), str(path.relative_to(root))
            if path.is_symlink():
                found[name] = ("link", os.readlink(path))
            elif path.is_dir():
                found[name] = ("dir",)
            else:
                found[name] = (
                    info.st_size,
                    info.st_mode & 0o111,
                    int(info.st_mtime),
                    hash(path.read_bytes()),
                )
        return found

    theirs = tree(tmp_path / "bundle/rootfs")
    ours = tree(tmp_path / "ours")
    assert len(ours) > 2000
    assert {k: v for k, v in ours.items() if theirs.get(k) != v} == {} and set(ours) == set(theirs)


@pytest.mark.network
@pytest.mark.root
def test_ordinary_user_without_engine(
    whole: Image, debian: Debian, ordinary_user: parts.OrdinaryUser, tmp_path: Path
) -> None:
    """An ordinary user unpacks the image and runs it in a user namespace."""
    dist = ordinary_user.home.parent / "image-test"
    write_layout(whole, dist, "whole", debian.store)
    root = ordinary_user.home / "rootfs"
    try:
        code = (
            "from pathlib import Path\n"
            "from builder.oci.layout import read_layout\n"
            "from builder.trees.rootfs import unpack\n"
            "from builder.store.blobs import Store\n"
            f"image = read_layout(Path({str(dist)!r}), 'whole')\n"
            f"unpack(image, Path({str(root)!r}), Store(Path({str(ordinary_user.home / 'cache')!r})))\n"
        )
        ordinary_user.run([sys.executable, "-c", code], {"PYTHONPATH": str(parts.CLONE)}, readable=[dist])
        command = [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "--pid",
            "--fork",
            f"--root={root}",
            "/opt/builder/entrypoint",
        ]
        done = ordinary_user.run(command, {"FROM": "recipe", "PATH": "/usr/bin:/bin"})
        assert right(done.stdout), done.stdout
        ordinary_user.run(
            [
                sys.executable,
                "-c",
                "from pathlib import Path; from builder.trees.rootfs import remove_tree; "
                f"remove_tree(Path({str(root)!r}))",
            ],
            {"PYTHONPATH": str(parts.CLONE)},
        )
        assert not root.exists()
    finally:
        shutil.rmtree(dist, ignore_errors=True)


@pytest.mark.apptainer
@pytest.mark.network
def test_apptainer(apptainer: parts.Apptainer, whole: Image, debian: Debian, tmp_path: Path) -> None:
    """Apptainer runs the image from a layout."""
    write_layout(whole, tmp_path / "dist", "whole", debian.store)
    apptainer.run("build", "--sandbox", tmp_path / "sandbox", f"oci:{tmp_path}/dist")
    assert right(apptainer.run("run", "--cleanenv", tmp_path / "sandbox").stdout)
    out = apptainer.run(
        "exec",
        "--cleanenv",
        tmp_path / "sandbox",
        "sh",
        "-c",
        "command -v tool; echo $CONDA_PREFIX $PYTHONNOUSERSITE",
    ).stdout
    assert out == "/opt/conda/bin/tool\n/opt/conda 1\n"
