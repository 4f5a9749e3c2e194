"""The provenance: complete, reproducible, and without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.build.engines.base import BuildResult
from builder.core.model import (
    Descriptor,
    Image,
    Lock,
    SifImage,
    canonical_json,
)
from builder.core.version import __version__
from builder.deliver.publishing.attest import provenance
from tests.support.recipes import BASE, site_recipe

LOCK = Lock((), ("linux-64",), digest="sha256:" + "d" * 64)


def test_provenance() -> None:
    """The provenance names recipe, lock and base, without paths and credentials."""
    ours = site_recipe(
        pip={
            "extra_index_urls": [
                "https://user:secret@host.example/simple",
                "https://robot$ml+ci:secret@host.example/simple",
                "https://u:p@secret/secret@host.example/simple?private_token=secret",
                "https://$TOKEN@host.example/x",
            ]
        },
        env={"A": "1"},
    )
    digest = "sha256:" + "9" * 64
    sif, requested = SifImage(Path("site.sif"), digest, 1), frozenset({"python"})
    result = BuildResult(ours, LOCK, BASE, sif, engine="layered", requested=requested)
    text = provenance(result, digest, 315532800)
    assert provenance(result, digest, 315532800) == text
    statement = json.loads(text)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [{"name": "site", "digest": {"sha256": "9" * 64}}]
    definition, details = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    assert definition["externalParameters"]["recipe"]["env"] == {"A": "1"}
    assert definition["externalParameters"]["recipe"]["base"] == BASE.reference
    assert definition["internalParameters"] == {"SOURCE_DATE_EPOCH": 315532800, "requested": ["python"]}
    lock, base = definition["resolvedDependencies"]
    assert lock["digest"] == {"sha256": "d" * 64}
    assert base == {"name": "base", "uri": BASE.reference, "digest": {"sha256": "e" * 64}}
    assert details["builder"]["version"] == {"builder": __version__}
    assert details["builder"]["id"].startswith("urn:")
    assert b"secret" not in text and b"$TOKEN@" in text and b"/home/me" not in text


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, []),
        ({"source": "https://me:secret@host/repo"}, [{"name": "source", "uri": "https://host/repo"}]),
        (
            {"source": "https://host/repo", "revision": "c0ffee"},
            [{"name": "source", "uri": "git+https://host/repo", "digest": {"gitCommit": "c0ffee"}}],
        ),
    ],
)
def test_source_in_provenance(annotations: dict[str, str], expected: list[Any]) -> None:
    """The provenance names the repository and the revision that the image's annotations name."""
    names = {f"org.opencontainers.image.{key}": value for key, value in annotations.items()}
    manifest = canonical_json({"annotations": names})
    nothing = Descriptor.of("application/json", b"{}")
    image = Image((), b"{}", nothing, manifest, Descriptor.of("application/json", manifest))
    result = BuildResult(site_recipe(), LOCK, BASE, image)
    definition = json.loads(provenance(result, image.digest, 0))["predicate"]["buildDefinition"]
    assert definition["resolvedDependencies"][2:] == expected
