"""``builder registry prune`` against a real registry: Debian's docker-registry on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.model import OCI_INDEX, Image, canonical_json
from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS
from builder.registry.pull import pull_image
from builder.registry.referrers import AttachedFile, attach, referrers, referrers_tag
from builder.store.blobs import Store
from tests.integration.conftest import Builder
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.parts import RegistryFactory

pytestmark = pytest.mark.registry

REPO = "team/images"
REPORT = "application/vnd.builder.smoke-report.v1+json"


def test_prune(make_registry: RegistryFactory, tmp_path: Path) -> None:
    """Old images go with their reports; what a tag that stays needs can be pulled afterwards."""
    registry = make_registry()
    builder = Builder(tmp_path, tmp_path / "cache")
    (tmp_path / "recipes").mkdir()
    with RegistryClient(registry.host, ANONYMOUS) as client:

        def push(label: str, *tags: str) -> Image:
            image = make_test_image([make_layer(tmp_path / "layers", "same")], label)
            push_tagged(image, client, REPO, tags)
            attach(
                client, REPO, image.manifest_descriptor, REPORT, [AttachedFile("r", REPORT, label.encode())]
            )
            return image

        old, new = push("old", "20.01", "20.02"), push("new", "20.03", "latest")
        other, shared = push("other", "other"), push("shared", "shared")
        entries = [image.manifest_descriptor.to_json() for image in (old, shared)]
        data = canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries})
        index = client.put_manifest(REPO, "20.04", data, OCI_INDEX)

        command = ["registry", "prune", f"{registry.host}/{REPO}", "--keep", "12 months,20.05"]
        assert builder.json(*command)["manifests"] == [old.digest, index]
        readonly = make_registry(readonly=True, root=registry.root)
        refused = ["registry", "prune", f"{readonly.host}/{REPO}", "--keep", "12 months", "--delete"]
        done = builder.run(*refused, check=False)
        assert done.returncode == 9 and "retention rule" in done.stderr
        assert len(client.list_tags(REPO)) == 7

        done = builder.json(*command, "--delete")
        assert len(done["attached"]) == 2 and done["deleted"][-2:] == [old.digest, index]
        assert client.list_tags(REPO) == ["20.03", "latest", "other", "shared"]
        for gone in (old.digest, index, referrers_tag(old.digest), *done["attached"]):
            assert client.head_manifest(REPO, gone) is None
        for image in (new, other, shared):
            assert len(referrers(client, REPO, image.digest)) == 1
        assert pull_image(client, REPO, "20.03", "amd64", Store(tmp_path / "cache")).digest == new.digest
        assert builder.json(*command, "--delete")["deleted"] == []
