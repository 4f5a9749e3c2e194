"""SIFs through a real registry, to and from a real Apptainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.model import OCI_MANIFEST, Descriptor, SifImage
from builder.core.progress import Reporter
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.deliver.publishing.destination import LayoutDestination
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.oras import SIF_LAYER, pull_sif, sif_artifact, sif_layer
from tests.support import parts
from tests.support.images import push_tagged
from tests.support.sif import make_sif


@pytest.fixture(scope="module")
def sif(tmp_path_factory: pytest.TempPathFactory) -> SifImage:
    return make_sif(tmp_path_factory.mktemp("sif") / "ours.sif", size=3 << 20)


def pull(client: RegistryClient, repository: str, ref: str, output: Path, store: Store) -> bool:
    described = client.manifests.head(repository, ref)
    assert described is not None
    layer = sif_layer(client.manifests.get(repository, described.digest)[0], described, repository)
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
        data, _ = client.manifests.get("oras/theirs", "v1")
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


def test_first_media_type(
    sif: SifImage, registry: parts.Registry, apptainer: parts.Apptainer, tmp_path: Path
) -> None:
    """Apptainer and builder pull SIFs with the layer type of Singularity before 3.7 (sic)."""
    now = sif_artifact(sif, "old.sif")
    manifest = now.manifest.replace(SIF_LAYER.encode(), b"appliciation/vnd.sylabs.sif.layer.tar")
    old = replace(now, manifest=manifest, manifest_descriptor=Descriptor.of(OCI_MANIFEST, manifest))
    with RegistryClient(registry.host) as client:
        push_tagged(old, client, "oras/old", ["1"])
        assert pull(client, "oras/old", "1", tmp_path / "ours.sif", Store(tmp_path / "cache"))
    apptainer.run("pull", "--no-https", tmp_path / "theirs.sif", f"oras://{registry.host}/oras/old:1")
    assert sha256_file(tmp_path / "ours.sif") == sha256_file(tmp_path / "theirs.sif") == sif.digest


def test_unchanged_sif(sif: SifImage, registry: parts.Registry) -> None:
    """An unchanged SIF is not sent again, also not with another title."""
    with RegistryClient(registry.host) as client:
        push_tagged(sif_artifact(sif, "a.sif"), client, "oras/again", ["1"])
        same = push_tagged(sif_artifact(sif, "a.sif"), client, "oras/again", ["2"])
        other = push_tagged(sif_artifact(sif, "b.sif"), client, "oras/again", ["3"])
        assert (same.bytes_sent, other.bytes_sent) == (0, 0)
        assert same.digest == client.manifests.head("oras/again", "2").digest != other.digest  # type: ignore[union-attr]


def slow_pull(
    registry: parts.Registry, repository: str, sif: SifImage, target: Path, cache: Path, body: str
) -> subprocess.Popen[bytes]:
    """A pull in another process that executes ``body`` after every chunk; ``self.seen`` is what arrived."""
    program = f"""
import time
from pathlib import Path
from builder.core.model import Descriptor
from builder.core.progress import Reporter
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.oras import pull_sif
from builder.core.store.blobs import Store
class Slow(Reporter):
    seen = 0
    def advance(self, task, amount):
        self.seen += amount
        {body}
with RegistryClient({registry.host!r}, reporter=Slow()) as client:
    layer = Descriptor({SIF_LAYER!r}, {sif.digest!r}, {sif.size})
    pull_sif(client, {repository!r}, layer, Path({str(target)!r}), Store(Path({str(cache)!r})))
"""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(parts.CLONE)},
        stdout=subprocess.PIPE,
    )


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
    (partial,) = target.parent.glob(".big.sif.*.part.*")
    have = partial.stat().st_size
    assert 1 << 20 < have < big.size
    assert target.read_bytes() == b"last month's", "nothing is at its place before it is whole"
    seen: list[int] = []

    class Watching(Reporter):
        def advance(self, task: str, amount: int) -> None:
            seen.append(amount)

    with RegistryClient(registry.host, reporter=Watching()) as client:
        assert pull(client, "oras/big", "latest", target, Store(tmp_path / "cache"))
    assert seen[0] == have, "what was there counts as done and is not fetched again"
    assert sha256_file(target) == big.digest and sorted(p.name for p in target.parent.iterdir()) == [
        "big.sif"
    ]


def test_layout_holds_a_copy(sif: SifImage, tmp_path: Path) -> None:
    """Signing the original does not change the copy in a layout."""
    original = make_sif(tmp_path / "o.sif", size=1 << 20)
    place = LayoutDestination(tmp_path / "layout", Store(tmp_path / "cache"))
    image = sif_artifact(original, "o.sif")
    place.push(image)
    place.move_tag("latest", image)
    with original.path.open("r+b") as f:
        f.seek(-1, os.SEEK_END)
        f.write(b"\xff")
    blob = tmp_path / "layout/blobs" / original.digest.replace(":", "/")
    assert sha256_file(blob) == original.digest and place.resolve("latest").digest == image.digest  # type: ignore[union-attr]
