"""A team that signs and publishes tiny images with a policy, and an attacker who may push but has no key."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2
import pytest

from builder.build.engines.base import BuildResult
from builder.cli import cli, run
from builder.core.model import (
    OCI_CONFIG,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    Image,
    Lock,
    LockedBase,
    SifImage,
    canonical_json,
)
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.deliver.project import Project
from builder.deliver.publishing.destination import RegistryDestination
from builder.deliver.publishing.keys import SigningKey
from builder.deliver.publishing.publish import Published, PublishOptions, publish
from builder.deliver.publishing.signatures import PAYLOAD, SIGNATURE, signature_tag
from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.run import SmokeReport
from builder.formats.oci.digest import sha256
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS
from builder.formats.registry.referrers import Artifact, AttachedFile, attach
from builder.formats.registry.source import bytes_source
from builder.formats.registry.transport import Transport
from builder.lock.config.recipe import Recipe
from tests.support.images import make_layer, make_test_image, record_contents
from tests.support.signkeys import make_pair

LOCK = Lock((), ("linux-64",), digest="sha256:" + "d" * 64)
RECIPE = """\
base: oci:base
environment: environments/t.yml
registry: {{host: "{host}", repository: {repository}}}
smoke: torch
"""


@dataclass
class Team:
    """A project with target ``t``, a policy and a key."""

    root: Path
    host: str
    repository: str
    policy: str = "keys: [team.pub]\n"
    cache: Path = field(init=False)

    def __post_init__(self) -> None:
        self.cache = self.root / "cache"
        for name in ("recipes", "environments"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "recipes/t.yaml").write_text(RECIPE.format(host=self.host, repository=self.repository))
        (self.root / "environments/t.yml").write_text("dependencies: [python=3.11]\n")
        if not self.key_file.exists():
            make_pair(self.root / "recipes", "team")
        if self.policy:
            (self.root / "recipes/_policy.yaml").write_text(self.policy)

    @property
    def name(self) -> str:
        """``HOST/REPOSITORY``."""
        return f"{self.host}/{self.repository}"

    @property
    def key_file(self) -> Path:
        return self.root / "recipes/team.key"

    @property
    def key(self) -> SigningKey:
        return SigningKey.load(self.key_file, lambda: b"")

    @property
    def project(self) -> Project:
        settings = Settings.from_environment({"HOME": str(self.root)}, cache=self.cache)
        store = Store(settings.cache)
        record_contents(store)
        return Project(self.root, Workspace(settings, store))

    @property
    def recipe(self) -> Recipe:
        return self.project.recipe("t")

    def built(self, label: str) -> BuildResult:
        """An image that passed its test; other labels are other images."""
        image = make_test_image([make_layer(self.root / "layers", "one")], label)
        path = self.root / f"reports/t/{label}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report(image.digest)))
        SmokeRecord(self.cache).update(SmokeReport("pass", {}, "userns", image.digest, 0.0, path))
        return BuildResult(self.recipe, LOCK, LockedBase("oci:b", "sha256:" + "e" * 64), image)

    def publish(self, label: str, month: str = "26.10", *, signed: bool = True, **more: Any) -> Published:
        """Publishes an image under its tags, signed by the team's key."""
        key = self.key if signed else None
        options = PublishOptions(month=month, force=True, sign=key, **more)
        return publish(self.project, self.built(label), options)

    def sif(self, label: str) -> SifImage:
        """A file that begins as a SIF does."""
        path = self.root / f"{label}.sif"
        path.write_bytes(
            b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + label.encode() * 99
        )
        return SifImage(path, sha256(path.read_bytes()), path.stat().st_size, "amd64")

    def publish_sif(self, label: str) -> Published:
        """Publishes a SIF, signed."""
        sif, built = self.sif(label), self.built(label)
        path = self.root / "reports/t/sif.json"
        path.write_text(json.dumps(report(sif.digest)))
        SmokeRecord(self.cache).update(SmokeReport("pass", {}, "userns", sif.digest, 0.0, path))
        options = PublishOptions(month="26.10", sign=self.key)
        return publish(self.project, replace(built, artifact=sif), options)

    def attacker(self) -> Attacker:
        return Attacker(self.host, self.repository, self.root / "attacker")


def report(digest: str, **more: Any) -> dict[str, Any]:
    """A smoke report that passed."""
    about = {"digest": digest, "target": "t"}
    started = "2026-11-21T08:00:00Z"
    return {"verdict": "pass", "started": started, "image": about, "expect": {"gpu": "none"}, **more}


@dataclass(frozen=True)
class Attacker:
    """Somebody who may push anything to a repository, and delete."""

    host: str
    repository: str
    folder: Path

    @cached_property
    def client(self) -> RegistryClient:
        return RegistryClient(self.host, ANONYMOUS)

    def image(self, label: str = "evil") -> Image:
        return make_test_image([make_layer(self.folder, "evil")], label)

    def place(self) -> RegistryDestination:
        return RegistryDestination(self.client, self.repository, Store(self.folder / "cache"))

    def push(self, image: Image, *tags: str) -> str:
        """Pushes an image; returns its digest."""
        place = self.place()
        place.push(image)
        for tag in tags:
            place.move_tag(tag, image)
        return image.digest

    def blob(self, data: bytes, media_type: str = PAYLOAD) -> dict[str, Any]:
        """Pushes a blob; returns its descriptor."""
        found = Descriptor.of(media_type, data)
        self.client.blobs.upload(self.repository, found, bytes_source(data))
        return found.to_json()

    def put(self, ref: str, value: Mapping[str, Any], media_type: str = OCI_MANIFEST) -> str:
        """Stores a manifest or an index under a tag or digest; returns the digest."""
        data = canonical_json(value)
        self.client.manifests.put(self.repository, ref, data, media_type)
        return sha256(data)

    def put_raw(self, tag: str, data: bytes, media_type: str = OCI_MANIFEST) -> None:
        """Stores anything under a tag, in a registry that does not look at it."""
        url = f"http://{self.host}/v2/{self.repository}/manifests/{tag}"
        answer = httpx2.put(url, content=data, headers={"Content-Type": media_type})
        assert answer.status_code == 201, answer.text

    def get(self, ref: str, repository: str = "") -> dict[str, Any]:
        """The manifest of a tag or digest."""
        data, _ = self.client.manifests.get(repository or self.repository, ref)
        value: dict[str, Any] = json.loads(data)
        return value

    def digest(self, ref: str) -> str:
        """What a tag names; empty: nothing."""
        found = self.client.manifests.head(self.repository, ref)
        return found.digest if found else ""

    def has(self, ref: str) -> bool:
        return bool(self.digest(ref))

    def move(self, tag: str, ref: str) -> None:
        """Moves a tag to what another tag or a digest names."""
        data, found = self.client.manifests.get(self.repository, ref)
        self.client.manifests.put(self.repository, tag, data, found.media_type)

    def attach(self, subject: str, kind: str, value: Any, created: str = "2030-01-01T00:00:00Z") -> str:
        """Attaches a document to an image, newer than all others."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        annotations = {"org.opencontainers.image.created": created}
        found = self.client.manifests.head(self.repository, subject)
        assert found is not None
        artifact = Artifact(kind, [AttachedFile("x.json", kind, data)], annotations)
        return attach(self.client, self.repository, found, artifact)

    def delete(self, ref: str) -> None:
        """Deletes a manifest, with all its tags."""
        found = self.client.manifests.head(self.repository, ref)
        if found is not None:
            self._delete(found.digest)
        if ref != (found and found.digest):
            with contextlib.suppress(AssertionError):
                self._delete(ref)  # crane's registry keeps the tag

    def _delete(self, ref: str) -> None:
        answer = httpx2.delete(f"http://{self.host}/v2/{self.repository}/manifests/{ref}")
        assert answer.status_code in (200, 202, 404, 400, 405), answer.text

    def signatures(self, digest: str, layers: Sequence[Mapping[str, Any]]) -> None:
        """Replaces the signatures of an image."""
        config = self.blob(b"{}", OCI_CONFIG)
        value = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": list(layers)}
        self.put(signature_tag(digest), value)

    def signature(self, payload: bytes, key: SigningKey | None = None) -> dict[str, Any]:
        """A layer of the image of signatures; without a key the signature is garbage."""
        signed = key.sign(payload) if key else b"garbage"
        return {**self.blob(payload), "annotations": {SIGNATURE: base64.b64encode(signed).decode()}}

    def steal_signatures(self, digest: str, to: str, repository: str = "") -> None:
        """Copies the signatures of an image, with what they name, to another image's tag."""
        self.copy(signature_tag(digest), repository or self.repository, signature_tag(to))

    def read(self, blob: Mapping[str, Any], repository: str = "") -> bytes:
        """The content of a blob, by its descriptor."""
        return self.client.blobs.get(repository or self.repository, Descriptor.from_json(dict(blob)))

    def document(self, artifact: str) -> bytes:
        """The file of an attached artifact."""
        return self.read(self.get(artifact)["layers"][0])

    def copy(self, digest: str, repository: str, to: str = "") -> None:
        """Copies a manifest of another repository, with its blobs."""
        value = self.get(digest, repository)
        for part in (value["config"], *value["layers"]):
            self.blob(self.read(part, repository), part["mediaType"])
        self.put(to or digest, value)

    def tags(self) -> list[str]:
        answer = httpx2.get(f"http://{self.host}/v2/{self.repository}/tags/list").json()
        return [str(tag) for tag in answer["tags"]]

    def index(self, *digests: str) -> str:
        """Pushes an image index for linux/amd64; returns its digest."""
        entries = []
        for digest in digests:
            found = self.client.manifests.head(self.repository, digest)
            assert found is not None
            platform = {"architecture": "amd64", "os": "linux"}
            entries.append({**found.to_json(), "platform": platform})
        value = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
        return self.put(Descriptor.of(OCI_INDEX, canonical_json(value)).digest, value, OCI_INDEX)


def released(team: Team, digest: str) -> dict[str, Any]:
    """The signed release record of an image, and the digest of its artifact."""
    thief = team.attacker()
    payload = thief.read(thief.get(signature_tag(digest))["layers"][-1])
    artifact = json.loads(payload)["optional"]["org.builder.release"]
    return {**json.loads(thief.document(artifact)), "artifact": artifact}


def builder(team: Team, *args: str | Path) -> int:
    """Runs a command in the team's project; returns its exit code."""
    return run(cli, ["--project", str(team.root), "--cache", str(team.cache), *map(str, args)])


def forget_settings(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Removes the credentials and folders of whoever runs the tests, and pauses between requests."""
    names = ("REGISTRY_USER", "REGISTRY_PASSWORD", "REGISTRY_HOST", "REGISTRY_AUTH_FILE", "DOCKER_CONFIG")
    folders = ("XDG_CONFIG_HOME", "BUILDER_CACHE")
    for name in (*names, *folders, "BUILDER_SIGN_KEY", "BUILDER_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))  # without it root's /run/containers is read
    monkeypatch.setattr(Transport, "pause", lambda *_: None)
