"""SIFs through a real registry, to and from a real Apptainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.errors import ImageError, RegistryError
from builder.model import SifImage
from builder.progress import NullReporter
from builder.publishing.places import LayoutPlace
from builder.registry.client import RegistryClient
from builder.registry.credentials import Credentials
from builder.registry.oras import SIF_CONFIG, SIF_LAYER, TITLE, pull_sif, sif_artifact, sif_layer
from builder.store.blobs import Store
from builder.store.files import sha256_file
from tests.support import parts
from tests.support.images import push_tagged
from tests.support.sif import make_sif


@pytest.fixture(scope="module")
def sif(tmp_path_factory: pytest.TempPathFactory) -> SifImage:
    return make_sif(tmp_path_factory.mktemp("sif") / "ours.sif", size=3 << 20)


def pull(client: RegistryClient, repository: str, ref: str, output: Path, store: Store) -> bool:
    described = client.head_manifest(repository, ref)
    assert described is not None
    layer = sif_layer(client.get_manifest(repository, described.digest)[0], described, repository)
    assert layer is not None
    return pull_sif(client, repository, layer, output, store)


def test_apptainer_pulls(
    sif: SifImage, registry: parts.Registry, apptainer: parts.Apptainer, tmp_path: Path
) -> None:
    """Apptainer pulls what builder pushes."""
    with RegistryClient(registry.host) as client:
        report = push_tagged(sif_artifact(sif, "ours.sif"), client, "oras/ours", ["26.11", "latest"])
    assert report.blobs_sent == 2 and report.bytes_sent == sif.size + 2
    apptainer.run("pull", "--no-https", tmp_path / "got.sif", f"oras://{registry.host}/oras/ours:26.11")
    assert sha256_file(tmp_path / "got.sif") == sif.digest
    assert "Squashfs" in apptainer.run("sif", "list", tmp_path / "got.sif").stdout


def test_apptainer_pushes(
    sif: SifImage, registry: parts.Registry, apptainer: parts.Apptainer, tmp_path: Path
) -> None:
    """Builder pulls what Apptainer pushes, and makes the same artifact."""
    apptainer.run("push", "--no-https", sif.path, f"oras://{registry.host}/oras/theirs:v1")
    store = Store(tmp_path / "cache")
    with RegistryClient(registry.host) as client:
        data, _, _ = client.get_manifest("oras/theirs", "v1")
        assert pull(client, "oras/theirs", "v1", tmp_path / "sub/got.sif", store) is True
        assert pull(client, "oras/theirs", "v1", tmp_path / "sub/got.sif", store) is False, (
            "it is here already"
        )
    assert sha256_file(tmp_path / "sub/got.sif") == sif.digest
    assert os.access(tmp_path / "sub/got.sif", os.X_OK) and [
        p.name for p in (tmp_path / "sub").iterdir()
    ] == ["got.sif"]
    theirs, ours = json.loads(data), json.loads(sif_artifact(sif, "ours.sif").manifest)
    for manifest in (theirs, ours):
        manifest.pop("annotations", None)  # the time in the SIF, of theirs
        manifest["config"].pop("data", None)  # the config once more, in base64, which the image-spec allows
    assert theirs == ours, "the same artifact but for that"


def test_media_types(sif: SifImage) -> None:
    """The artifact has the media types that Apptainer and SingularityCE expect."""
    manifest = json.loads(sif_artifact(sif, "t.sif", {"org.opencontainers.image.source": "here"}).manifest)
    assert manifest["config"]["mediaType"] == SIF_CONFIG == "application/vnd.sylabs.sif.config.v1+json"
    (layer,) = manifest["layers"]
    assert layer["mediaType"] == SIF_LAYER == "application/vnd.sylabs.sif.layer.v1.sif"
    assert (
        layer["digest"] == sif.digest
        and layer["size"] == sif.size
        and layer["annotations"] == {TITLE: "t.sif"}
    )
    assert manifest["annotations"] == {"org.opencontainers.image.source": "here"}


def test_unchanged_sif(sif: SifImage, registry: parts.Registry) -> None:
    """An unchanged SIF is not sent again, also not with another title."""
    with RegistryClient(registry.host) as client:
        push_tagged(sif_artifact(sif, "a.sif"), client, "oras/again", ["1"])
        same = push_tagged(sif_artifact(sif, "a.sif"), client, "oras/again", ["2"])
        other = push_tagged(sif_artifact(sif, "b.sif"), client, "oras/again", ["3"])
        assert (same.bytes_sent, other.bytes_sent) == (0, 0)
        assert same.digest == client.head_manifest("oras/again", "2").digest != other.digest  # type: ignore[union-attr]


def test_credentials(sif: SifImage, make_registry: parts.RegistryFactory, tmp_path: Path) -> None:
    """SIFs use the same credentials as images."""
    robot = "robot$m558+perlmutter-nersc-gov"
    closed = make_registry(htpasswd={robot: "pa$$ word"})
    with RegistryClient(closed.host, Credentials(robot, "pa$$ word")) as client:
        push_tagged(sif_artifact(sif, "a.sif"), client, "closed/a", ["latest"])
        assert pull(client, "closed/a", "latest", tmp_path / "a.sif", Store(tmp_path / "cache"))
    with (
        RegistryClient(closed.host, Credentials(robot, "wrong")) as client,
        pytest.raises(RegistryError, match="401") as caught,
    ):
        client.head_manifest("closed/a", "latest")
    assert "wrong," in caught.value.hint and "pa$$ word" not in str(caught.value)


def slow_pull(
    registry: parts.Registry, repository: str, sif: SifImage, target: Path, cache: Path, body: str
) -> subprocess.Popen[bytes]:
    """A pull in another process that executes ``body`` after every chunk; ``self.seen`` is what arrived."""
    program = f"""
import time
from pathlib import Path
from builder.model import Descriptor
from builder.progress import NullReporter
from builder.registry.client import RegistryClient
from builder.registry.oras import pull_sif
from builder.store.blobs import Store
class Slow(NullReporter):
    seen = 0
    def advance(self, task, amount):
        self.seen += amount
        {body}
with RegistryClient({registry.host!r}) as client:
    layer = Descriptor({SIF_LAYER!r}, {sif.digest!r}, {sif.size})
    pull_sif(client, {repository!r}, layer, Path({str(target)!r}), Store(Path({str(cache)!r})), Slow())
"""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(parts.CLONE)},
        stdout=subprocess.PIPE,
    )


def test_several_at_once(registry: parts.Registry, tmp_path: Path) -> None:
    """The tasks of a job pull on one node into one shared folder, each with its own cache."""
    big = make_sif(tmp_path / "many.sif", size=8 << 20)
    with RegistryClient(registry.host) as client:
        push_tagged(sif_artifact(big, "many.sif"), client, "oras/many", ["latest"])
    target = tmp_path / "out" / "many.sif"
    target.parent.mkdir()
    (target.parent / ".many.sif.0123456789abcdef.othernode.part").write_bytes(b"at work")
    stale = target.parent / ".many.sif.0123456789abcdef.deadnode.part"
    stale.write_bytes(b"last year's")
    os.utime(stale, (1, 1))
    processes = [
        slow_pull(registry, "oras/many", big, target, tmp_path / f"cache{n}", "time.sleep(0.01)")
        for n in range(3)
    ]
    assert [p.wait(120) for p in processes] == [0, 0, 0]
    assert sha256_file(target) == big.digest
    assert sorted(p.name for p in target.parent.iterdir()) == [
        ".many.sif.0123456789abcdef.othernode.part",
        "many.sif",
    ]


def test_killed_pull(registry: parts.Registry, tmp_path: Path) -> None:
    """A pull that was killed is resumed; the old file stays until the new one is complete."""
    big = make_sif(tmp_path / "big.sif", size=24 << 20)
    with RegistryClient(registry.host) as client:
        push_tagged(sif_artifact(big, "big.sif"), client, "oras/big", ["latest"])
    target = tmp_path / "out" / "big.sif"
    target.parent.mkdir()
    target.write_bytes(b"last month's")
    stop = "if self.seen > 1 << 20: print('here', flush=True); time.sleep(600)"
    process = slow_pull(registry, "oras/big", big, target, tmp_path / "cache", stop)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n", "it ended before it could be killed"
    finally:
        process.kill()
        process.communicate()
    (partial,) = target.parent.glob(".big.sif.*.part")
    have = partial.stat().st_size
    assert 1 << 20 < have < big.size
    assert target.read_bytes() == b"last month's", "nothing is at its place before it is whole"
    seen: list[int] = []

    class Watching(NullReporter):
        def advance(self, task: str, amount: int) -> None:
            seen.append(amount)

    with RegistryClient(registry.host) as client:
        described = client.head_manifest("oras/big", "latest")
        assert described is not None
        layer = sif_layer(client.get_manifest("oras/big", "latest")[0], described, "")
        assert layer is not None
        assert pull_sif(client, "oras/big", layer, target, Store(tmp_path / "cache"), Watching())
    assert seen[0] == have, "what was there counts as done and is not fetched again"
    assert sha256_file(target) == big.digest and sorted(p.name for p in target.parent.iterdir()) == [
        "big.sif"
    ]


def test_layout_holds_a_copy(sif: SifImage, tmp_path: Path) -> None:
    """Signing the original does not change the copy in a layout."""
    original = make_sif(tmp_path / "o.sif", size=1 << 20)
    place = LayoutPlace(tmp_path / "layout", Store(tmp_path / "cache"))
    image = sif_artifact(original, "o.sif")
    place.push(image)
    place.move_tag("latest", image)
    with original.path.open("r+b") as f:
        f.seek(-1, os.SEEK_END)
        f.write(b"\xff")
    blob = tmp_path / "layout/blobs" / original.digest.replace(":", "/")
    assert sha256_file(blob) == original.digest and place.resolve("latest").digest == image.digest  # type: ignore[union-attr]


def test_not_a_sif(tmp_path: Path) -> None:
    """A file that is not a SIF is refused before anything is sent."""
    (tmp_path / "x.sif").write_bytes(b"#!/bin/sh\n" * 100)
    with pytest.raises(ImageError, match=r"x\.sif is not a SIF"):
        sif_artifact(SifImage(tmp_path / "x.sif", "sha256:" + "0" * 64, 1000), "x.sif")
    with pytest.raises(ImageError, match=r"none\.sif: No such file"):
        sif_artifact(SifImage(tmp_path / "none.sif", "sha256:" + "0" * 64, 1000), "none.sif")
