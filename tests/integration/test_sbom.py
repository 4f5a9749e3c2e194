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


@pytest.fixture(scope="module")
def made(module_folder: Path, base_cache: Path) -> Builder:
    """A machine that has locked a real Python, a wheel of the index and one that is built here."""
    cache = keep_base(base_cache, module_folder / "cache")
    builder = Builder(project(module_folder / "one", "-e ..", "filelock==3.16.1"), cache)
    builder.run("lock", "t")
    return builder


@pytest.fixture(scope="module")
def sbom(made: Builder, module_folder: Path) -> bytes:
    return published_sbom(made, module_folder / "out")


@pytest.fixture(scope="module")
def components(sbom: bytes) -> dict[str, Any]:
    """The components by purl without version, or by name."""
    found = json.loads(sbom)["components"]
    return {c.get("purl", c["name"]).partition("@")[0]: c for c in found}


def test_valid(sbom: bytes) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(sbom.decode()) is None


def test_licences(components: dict[str, Any]) -> None:
    """Every conda package and wheel has its licence, except for one that declares none."""
    packages = {p: c for p, c in components.items() if p.startswith(("pkg:conda/", "pkg:pypi/"))}
    assert [p for p, c in packages.items() if not c.get("licenses")] == ["pkg:pypi/mine"]
    assert components["pkg:conda/python"]["licenses"] == [{"license": {"id": "Python-2.0"}}]
    assert components["pkg:conda/libgcc"]["licenses"][0]["expression"].startswith("GPL-3.0")
    assert len(packages) > 15


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
    assert {found["purl"] for found in read["artifacts"]} == purls
    python = next(found for found in read["artifacts"] if found["purl"].startswith("pkg:conda/python@"))
    assert [licence["spdxExpression"] for licence in python["licenses"]] == ["Python-2.0"]
    assert {f["type"] for f in read["artifacts"] if f["purl"].startswith("pkg:deb/")} == {"deb"}
