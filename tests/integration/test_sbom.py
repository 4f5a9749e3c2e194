"""The SBOM of a real image: valid, complete, the same on another machine, and read by Syft."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from builder.deliver.publishing.release import SBOM
from builder.formats.oci.layout import read_layout
from tests.integration.conftest import Builder, keep_base
from tests.integration.test_source_packages import project
from tests.support.debs import call
from tests.support.install_registries import install_syft
from tests.support.parts import installed


def published_sbom(builder: Builder, folder: Path) -> bytes:
    """What ``builder publish`` attaches in an OCI layout."""
    done = builder.json("publish", "t", "--to", f"oci:{folder}", "--no-tags")
    blobs = folder / "blobs/sha256"
    artifact = json.loads((blobs / done["attached"][SBOM][7:]).read_bytes())
    return (blobs / artifact["layers"][0]["digest"][7:]).read_bytes()


#: Wheels of November 2026 that have SBOMs (PEP 770), and numpy, which bundles OpenBLAS and has none.
WHEELS = ("cryptography==50.0.2", "pillow==13.0.0", "numpy==2.4.6", "scipy==1.17.1", "scikit-learn==1.9.1")


@pytest.fixture(scope="module")
def made(module_folder: Path, base_cache: Path) -> Builder:
    """A machine that has locked a real Python, wheels of the index and one that is built here."""
    cache = keep_base(base_cache, module_folder / "cache")
    builder = Builder(project(module_folder / "one", "-e ..", *WHEELS), cache)
    builder.run("lock", "t")
    return builder


@pytest.fixture(scope="module")
def sbom(made: Builder, module_folder: Path) -> bytes:
    return published_sbom(made, module_folder / "out")


@pytest.fixture(scope="module")
def components(sbom: bytes) -> dict[str, Any]:
    """The components by purl without version, or by name; without those that are inside of wheels."""
    found = [c for c in json.loads(sbom)["components"] if "#inside-" not in c["bom-ref"]]
    return {c.get("purl", c["name"]).partition("@")[0]: c for c in found}


def test_valid(sbom: bytes) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(sbom.decode()) is None


def test_licences(components: dict[str, Any]) -> None:
    """Every conda package and wheel has its licence, except for one that declares none."""
    packages = {p: c for p, c in components.items() if p.startswith(("pkg:conda/", "pkg:pypi/"))}
    assert [p for p, c in packages.items() if not c.get("licenses")] == ["pkg:pypi/mine"]
    assert components["pkg:conda/python"]["licenses"] == [{"license": {"id": "Python-2.0"}}]
    assert components["pkg:conda/libgcc"]["licenses"][0]["expression"].startswith("GPL-3.0")
    assert len(packages) > 15 and components["pkg:pypi/pillow"]["licenses"] == [
        {"license": {"id": "MIT-CMU"}}
    ]


def test_base(components: dict[str, Any]) -> None:
    """The packages of the base are those of dpkg, with the release and the source package."""
    packages = {p for p in components if p.startswith("pkg:deb/debian/")}
    assert {"pkg:deb/debian/libc6", "pkg:deb/debian/bash", "pkg:deb/debian/ca-certificates"} <= packages
    assert len(packages) > 80
    assert components["pkg:deb/debian/libc6"]["purl"].endswith("?arch=amd64&distro=debian-12&upstream=glibc")
    assert components["debian"]["type"] == "operating-system" and components["debian"]["version"] == "12"


def test_source(components: dict[str, Any]) -> None:
    """A wheel that builder built names its source."""
    found = {p["name"]: p["value"] for p in components["pkg:pypi/mine"]["properties"]}
    assert found["builder:source:folder"] == "." and len(found["builder:source:tree"]) == 64


def inside(sbom: bytes, wheel: str) -> dict[str, tuple[str, str]]:
    """Version, and SBOM or library, by the names of what is inside of a wheel."""
    value = json.loads(sbom)
    edges = {d["ref"]: d["dependsOn"] for d in value["dependencies"]}
    (refs,) = (edges[ref] for ref in edges if ref.startswith(f"pkg:pypi/{wheel}@"))
    parts = [c for c in value["components"] if c["bom-ref"] in refs and "#inside-" in c["bom-ref"]]
    return {c["name"]: (c.get("version", ""), c["properties"][0]["value"]) for c in parts}


def test_inside(sbom: bytes) -> None:
    """Real SBOMs of cargo-cyclonedx, auditwheel and two projects, in CycloneDX 1.4, 1.5 and 1.7."""
    cryptography = inside(sbom, "cryptography")
    assert cryptography["openssl"] == ("4.0.3", "cryptography-50.0.2.dist-info/sboms/sbom.json")
    assert cryptography["pyo3"][0] and cryptography["cryptography-rust"][0] == "0.50.2"
    assert "cryptography_rust" not in cryptography, "a target of the crate"
    pillow = inside(sbom, "pillow")
    assert pillow["libwebp"] == ("1.6.0", "pillow-13.0.0.dist-info/sboms/pillow-13.0.0.cdx.json")
    assert pillow["libXau"] == ("1.0.9-3.el8", "pillow-13.0.0.dist-info/sboms/auditwheel.cdx.json")
    assert pillow["libpng16"] == ("", "pillow.libs/libpng16-1d1ba958.so.16.58.0"), "none of both names it"
    assert not {"pillow", "Pillow", "PIL._webp"} & pillow.keys()
    assert [*inside(sbom, "scikit-learn")] == ["libgomp"]
    ((name, (version, path)),) = ((n, v) for n, v in inside(sbom, "numpy").items() if "openblas" in n)
    assert (name, version) == ("libscipy_openblas64_", "") and path.startswith(
        "numpy.libs/libscipy_openblas64_-"
    )
    assert "sbom-not-read" not in sbom.decode() and "#inside-" in sbom.decode()


def test_same_elsewhere(sbom: bytes, made: Builder, base_cache: Path, tmp_path: Path) -> None:
    """Another machine, and this one with its records, make the same bytes, without the digest of an image."""
    other = Builder(tmp_path / "two", keep_base(base_cache, tmp_path / "cache"))
    shutil.copytree(made.root, other.root, ignore=shutil.ignore_patterns("dist"))
    assert published_sbom(other, tmp_path / "out") == sbom
    assert published_sbom(made, tmp_path / "again") == sbom
    digest = made.json("build", "t")["digest"]
    image = read_layout(made.root / "dist", "t", "amd64")
    assert image.digest == digest and digest.encode() not in sbom and str(tmp_path).encode() not in sbom


def test_read_by_syft(sbom: bytes, tmp_path: Path) -> None:
    """Syft, whose reader Grype uses, finds every package, the distribution and the licences."""
    program = installed(install_syft, "syft")
    (tmp_path / "sbom.cdx.json").write_bytes(sbom)
    command = [program, "convert", "--quiet", tmp_path / "sbom.cdx.json", "-o", "syft-json"]
    read = json.loads(call(command, SYFT_CHECK_FOR_APP_UPDATE="false", HOME=str(tmp_path)))
    assert read["distro"]["id"] == "debian" and read["distro"]["versionID"] == "12"
    purls = {c["purl"] for c in json.loads(sbom)["components"] if "purl" in c}
    assert {found["purl"] for found in read["artifacts"]} - {""} == purls
    found = {(one["name"], one["version"]) for one in read["artifacts"]}
    assert {("openssl", "4.0.3"), ("libwebp", "1.6.0"), ("libscipy_openblas64_", "")} <= found
    python = next(found for found in read["artifacts"] if found["purl"].startswith("pkg:conda/python@"))
    assert [licence["spdxExpression"] for licence in python["licenses"]] == ["Python-2.0"]
    assert {f["type"] for f in read["artifacts"] if f["purl"].startswith("pkg:deb/")} == {"deb"}
