"""SBOM and provenance: valid, complete, reproducible, and without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from builder.config.recipe import Recipe
from builder.engines.base import BuildResult
from builder.model import (
    Descriptor,
    Image,
    Lock,
    LockedBase,
    LockedPackage,
    LockedSource,
    LockRecord,
    OsPackage,
    SifImage,
    canonical_json,
)
from builder.publishing.attest import package_url, provenance, sbom
from builder.version import __version__

FORGE = "https://conda.anaconda.org/conda-forge"
A, B, C = ("a" * 64, "b" * 64, "c" * 64)
PACKAGES = (
    LockedPackage(
        "python",
        "3.11.9",
        "conda",
        "linux-64",
        f"{FORGE}/linux-64/python-3.11.9-hb806964_0_cpython.conda",
        A,
        "0" * 32,
        {"libzlib": ">=1.3", "__glibc": ">=2.17"},
    ),
    LockedPackage(
        "libzlib",
        "1.3.1",
        "conda",
        "linux-64",
        f"{FORGE}/linux-64/libzlib-1.3.1-h4ab18f5_1.tar.bz2",
        None,
        "1" * 32,
    ),
    LockedPackage(
        "Foo.Bar_baz",
        "1.0+cu124",
        "pip",
        "linux-64",
        "https://user:secret@download.pytorch.org/whl/cu124/foo_bar_baz-1.0%2Bcu124-py3-none-any.whl",
        B,
        dependencies={"numpy": "", "python": ">=3.8"},
    ),
    LockedPackage(
        "numpy",
        "2.0.0",
        "pip",
        "linux-64",
        "builder://find-links/numpy-2.0.0-cp311-cp311-linux_x86_64.whl",
        C,
    ),
    LockedPackage("other", "1", "conda", "linux-aarch64", f"{FORGE}/linux-aarch64/other-1-0.conda", A),
)
LOCK = Lock(PACKAGES, ("linux-64", "linux-aarch64"), digest="sha256:" + "d" * 64)
BASE = LockedBase("docker://debian@sha256:" + "e" * 64, "sha256:" + "e" * 64)


def recipe(**more: Any) -> Recipe:
    values = {
        "name": "site",
        "base": BASE.reference,
        "environment": "e.yml",
        "source": Path("/home/me/recipes/site.yaml"),
    }
    return Recipe.model_validate({**values, "root": Path("/home/me"), **more})


def sbom_of(lock: Lock = LOCK, base: LockedBase | None = BASE) -> Any:
    return json.loads(sbom(recipe(), lock, base))


def test_valid_cyclonedx() -> None:
    """The SBOM follows CycloneDX's schema."""
    text = sbom(recipe(), LOCK, BASE).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert (
        JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.replace('"library"', '"bookshelf"'))
        is not None
    )


def test_packages() -> None:
    """Every package has version, hashes and address, without credentials."""
    found = {c["name"]: c for c in sbom_of()["components"]}
    assert set(found) == {"python", "libzlib", "Foo.Bar_baz", "numpy", BASE.reference}
    assert found["python"]["version"] == "3.11.9"
    assert found["python"]["hashes"] == [
        {"alg": "SHA-256", "content": A},
        {"alg": "MD5", "content": "0" * 32},
    ]
    assert found["libzlib"]["hashes"] == [{"alg": "MD5", "content": "1" * 32}]
    (place,) = found["Foo.Bar_baz"]["externalReferences"]
    assert place["url"] == "https://download.pytorch.org/whl/cu124/foo_bar_baz-1.0%2Bcu124-py3-none-any.whl"
    assert "externalReferences" not in found["numpy"], "what only this machine could find has no address"
    assert found[BASE.reference]["hashes"] == [{"alg": "SHA-256", "content": "e" * 64}]


def test_dependencies() -> None:
    """Dependencies refer to the locked packages."""
    found = {d["ref"]: d["dependsOn"] for d in sbom_of()["dependencies"]}
    python, zlib, foo, numpy = (package_url(p) for p in PACKAGES[:4])
    assert found[python] == [zlib] and found[foo] == sorted([numpy, python]) and found[zlib] == []
    assert set(found["builder:site"]) == {python, zlib, foo, numpy, f"base:{BASE.digest}"}


def test_provenance() -> None:
    """The provenance names recipe, lock and base, without paths and credentials."""
    ours = recipe(
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
    result = BuildResult(recipe(), LOCK, BASE, image)
    definition = json.loads(provenance(result, image.digest, 0))["predicate"]["buildDefinition"]
    assert definition["resolvedDependencies"][2:] == expected


def test_sources() -> None:
    """A wheel that builder built names its source: purl, reference and pins, without credentials."""
    url = "builder://wheels/tool-1.0-py3-none-any.whl"
    git = LockedSource("git", "https://me:secret@host.example/tool", commit="c" * 40, tree="d" * 40)
    sdist = LockedSource("sdist", "https://host.example/s-1.tar.gz", sha256=A)
    local = LockedSource("local", "libs/one", tree=B)
    packages = [
        LockedPackage(name, "1.0", "pip", "linux-64", url, C, source=source)
        for name, source in (("tool", git), ("s", sdist), ("one", local))
    ]
    assert [package_url(package) for package in packages] == [
        f"pkg:pypi/tool@1.0?vcs_url=git%2Bhttps://host.example/tool%40{'c' * 40}",
        f"pkg:pypi/s@1.0?checksum=sha256:{A}&download_url=https://host.example/s-1.tar.gz",
        "pkg:pypi/one@1.0",
    ]
    text = sbom(recipe(), Lock(tuple(packages), ("linux-64",)), None).decode()
    components = {item["name"]: item for item in json.loads(text)["components"]}
    assert components["tool"]["externalReferences"] == [{"type": "vcs", "url": "https://host.example/tool"}]
    assert {"name": "builder:source:folder", "value": "libs/one"} in components["one"]["properties"]
    assert {"name": "builder:source:commit", "value": "c" * 40} in components["tool"]["properties"]
    assert "secret" not in text


def test_sbom_os_packages() -> None:
    """The OS packages of a lock are components with a purl of type deb."""
    hello = OsPackage("hello", "1:2-1", "amd64", "http://deb.debian.org/debian/pool/h/hello.deb", A, 5)
    lock = Lock((), ("linux-64",), record=LockRecord(os_packages=(hello,)), digest="sha256:x")
    recipe = Recipe(name="t", base="oci:base", environment="e.yml")
    text = sbom(recipe, lock, None)
    JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.decode())
    (component,) = json.loads(text)["components"]
    assert component["hashes"] == [{"alg": "SHA-256", "content": A}]
    assert PackageURL.from_string(component["purl"]).to_dict()["type"] == "deb"
