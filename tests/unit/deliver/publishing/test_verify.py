"""``builder verify``: each check, what it finds, and when it fails. Attackers have tests of their own."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.core.errors import VerifyError
from builder.core.model import Image
from builder.core.store.blobs import Store
from builder.deliver.publishing import seal
from builder.deliver.publishing.destination import RegistryDestination
from builder.deliver.publishing.keys import SigningKey
from builder.deliver.publishing.release import PROVENANCE, SBOM, SMOKE_REPORT
from builder.deliver.publishing.seal import Seal, Signer
from builder.deliver.publishing.signatures import add_signature
from builder.deliver.publishing.tags import Tagging, TagPlan
from builder.deliver.publishing.verify import Check, Subject, Trust, Verification, verify
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.referrers import Artifact, AttachedFile
from builder.lock.config.policy import Policy
from tests.support.fakeregistry import FakeRegistry
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.signkeys import make_pair

TAGS = TagPlan(("26.11", "latest"), frozenset({"26.11"}))
OTHER = "sha256:" + "0" * 64
DAY = datetime.timedelta(days=1)


@dataclass
class Site:
    """A repository with an image, and a key."""

    place: RegistryDestination
    image: Image
    key: SigningKey
    policy: Policy

    def documents(self) -> dict[str, Any]:
        """The documents of a good release."""
        gpu: dict[str, Any] = {"recipe": {"name": "t"}}
        built = {"buildDefinition": {"externalParameters": gpu}, "runDetails": {}}
        report = {"verdict": "pass", "started": "2026-11-28", "expect": {"gpu": "none"}}
        return {
            SBOM: {"bomFormat": "CycloneDX", "components": [{}, {}]},
            PROVENANCE: {"subject": [{"digest": {"sha256": self.image.digest[7:]}}], "predicate": built},
            SMOKE_REPORT: {**report, "image": {"digest": self.image.digest}},
        }

    def release(self, documents: Mapping[str, Any], tags: TagPlan = TAGS) -> None:
        """Attach documents and sign a record of them."""
        attached = {}
        for kind, value in documents.items():
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            artifact = Artifact(kind, [AttachedFile("file", kind, data)])
            attached[kind] = self.place.attach(self.image.manifest_descriptor, artifact)
        tagging = Tagging(self.place, tags, self.image)
        sealed = Seal(tagging, "t", "publish", Signer(self.key), attached)
        sealed.record(dict.fromkeys(tags.tags))

    def verify(self, ref: str = "latest", **policy: Any) -> Verification:
        trust = Trust(self.policy.model_copy(update=policy), (self.key.public,))
        return verify(Subject(self.place, ref, self.image.digest), trust)


@pytest.fixture
def site(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> Site:
    fake.lists_referrers = True
    place = RegistryDestination(client, "a/b", Store(tmp_path / "cache"))
    image = make_test_image([make_layer(tmp_path / "layers", "one")])
    push_tagged(image, client, "a/b", TAGS.tags)
    key = SigningKey.load(make_pair(tmp_path / "keys", "k")[0], bytes)
    return Site(place, image, key, Policy(keys=("k.pub",)))


def failed(done: Verification) -> dict[str, str]:
    return {check.name: check.seen for check in done.checks if not check.passed}


def test_good(site: Site) -> None:
    site.release(site.documents())
    done = site.verify()
    assert done.passed and done.release is not None
    assert set(done.release.attached) == set(site.documents())
    seen = {check.name: check.seen for check in done.checks}
    assert list(seen) == ["signature", "tag", "sbom", "provenance", "smoke"]
    assert seen["sbom"] == "2 components" and seen["smoke"] == "pass, GPUs: none, 2026-11-28"
    done.require()


def test_by_digest(site: Site) -> None:
    """A digest needs no tag in the record, and no age."""
    site.release(site.documents())
    done = site.verify(site.image.digest, max_age_days=1)
    assert done.passed and "tag" not in [check.name for check in done.checks]


def test_not_signed(site: Site) -> None:
    """The error names the image, what failed, and the command that shows more."""
    done = site.verify()
    assert failed(done) == {"signature": done.checks[0].seen} and done.release is None
    with pytest.raises(VerifyError, match="is refused: signature: no signature of builder") as caught:
        done.require()
    assert caught.value.exit_code == 15
    assert caught.value.hint == f"see all checks: builder verify {site.place.name}:latest"


def test_signed_by_another_program(site: Site) -> None:
    """A signature of cosign alone names no release: nothing says which tag the image may have."""
    add_signature(site.place, site.image.digest, site.key, {"creator": "cosign"})
    assert list(failed(site.verify())) == ["signature"]


@pytest.mark.parametrize(
    ("kind", "change", "name", "seen"),
    [
        (SBOM, None, "sbom", "not attached"),
        (SBOM, {"bomFormat": "SPDX"}, "sbom", "is no CycloneDX document"),
        (SBOM, b"[]", "sbom", "is no CycloneDX document"),
        (PROVENANCE, None, "provenance", "not attached"),
        (PROVENANCE, {"subject": [{"digest": {"sha256": "0" * 64}}]}, "provenance", "is about another image"),
        (PROVENANCE, {"subject": []}, "provenance", "is about another image"),
        (SMOKE_REPORT, None, "smoke", "not attached"),
        (SMOKE_REPORT, {"verdict": "fail"}, "smoke", "the verdict is fail, not pass"),
        (SMOKE_REPORT, {"image": {"digest": OTHER}}, "smoke", f"is about another image, {OTHER}"),
        (SMOKE_REPORT, {"expect": {}}, "smoke", "tested GPUs of None, and the recipe is for none"),
    ],
)
def test_documents(site: Site, kind: str, change: Any, name: str, seen: str) -> None:
    """What is missing or wrong is refused if the policy requires it, and not looked at otherwise."""
    documents = site.documents()
    good = documents.pop(kind)
    if change is not None:
        documents[kind] = change if isinstance(change, bytes) else {**good, **change}
    site.release(documents)
    assert failed(site.verify())[name] == seen
    others = tuple(other for other in site.policy.require if other != name and other != "smoke")
    assert site.verify(require=others).passed


def test_deleted(site: Site, fake: FakeRegistry) -> None:
    """An attached document that the registry has lost."""
    site.release(site.documents())
    release = site.verify().release
    assert release is not None
    del fake.manifests["a/b"][release.attached[SBOM]]
    assert failed(site.verify())["sbom"].startswith("was attached, and is lost: ")


def test_other_tag(site: Site) -> None:
    site.release(site.documents())
    assert failed(site.verify("26.12")) == {"tag": "signed for 26.11, latest, not for 26.12"}


@pytest.mark.parametrize(
    ("tag", "after", "allowed"),
    [("latest", 2.9, True), ("latest", 3.1, False), ("26.11", 900, True), ("latest", -1, False)],
)
def test_age(site: Site, monkeypatch: pytest.MonkeyPatch, tag: str, after: float, allowed: bool) -> None:
    """``max_age_days`` is for tags that move; a signature of tomorrow is refused under each tag."""
    signed = datetime.datetime.now(datetime.UTC) - after * DAY
    clock = SimpleNamespace(now=lambda zone: signed)
    monkeypatch.setattr(seal, "datetime", SimpleNamespace(datetime=clock, UTC=datetime.UTC))
    site.release(site.documents())
    assert (failed(site.verify(tag, max_age_days=3)) == {}) is allowed


def test_two_releases(site: Site) -> None:
    """The newest record that names the tag counts: a later one for another tag hides nothing."""
    site.release(site.documents())
    site.release({}, TagPlan(("edge",), frozenset()))
    assert site.verify().passed and list(failed(site.verify("edge"))) == ["sbom", "provenance", "smoke"]


def test_older_release(site: Site, tmp_path: Path) -> None:
    """A machine that has verified a newer release of a tag refuses an older one; others do not."""
    old = site.image
    site.release(site.documents())
    assert site.verify().passed
    site.image = make_test_image(list(old.layers), "new")
    push_tagged(site.image, site.place.client, "a/b", ["latest"])
    site.release(site.documents())
    assert site.verify().passed
    site.image = old
    assert list(failed(site.verify())) == ["replay"] and site.verify("26.11").passed
    site.place = replace(site.place, store=Store(tmp_path / "another machine"))
    assert site.verify().passed


def test_failure_is_not_remembered(site: Site) -> None:
    """Only what passed is a release that was verified."""
    site.release(site.documents())
    site.release({})
    assert not site.verify().passed
    assert Check("tag", "signed for 26.11, latest") in site.verify(require=()).checks
