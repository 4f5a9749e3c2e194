"""The SBOM: valid, complete, reproducible, and without secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from builder.build.bases.contents import BaseSystem, DebianPackage
from builder.core.model import Lock, LockedBase, LockedPackage, LockedSource, LockRecord, OsPackage
from builder.deliver.publishing.sbom import package_url, sbom
from builder.formats.layers.entry import Declared, Part
from builder.formats.layers.licences import licence_choice
from builder.lock.config.recipe import Recipe
from tests.support.recipes import BASE, site_recipe

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
HELLO = OsPackage("hello", "1:2-1", "amd64", "http://archive.example/debian/pool/h/hello.deb", A, 5)
LOCK = Lock(PACKAGES, ("linux-64", "linux-aarch64"), digest="sha256:" + "d" * 64)


def sbom_of(lock: Lock = LOCK, base: LockedBase | None = BASE) -> Any:
    return json.loads(sbom(site_recipe(), lock, base))


def test_valid_cyclonedx() -> None:
    """The SBOM follows CycloneDX's schema."""
    text = sbom(site_recipe(), LOCK, BASE).decode()
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
    text = sbom(site_recipe(), Lock(tuple(packages), ("linux-64",)), None).decode()
    components = {item["name"]: item for item in json.loads(text)["components"]}
    assert components["tool"]["externalReferences"] == [{"type": "vcs", "url": "https://host.example/tool"}]
    assert {"name": "builder:source:folder", "value": "libs/one"} in components["one"]["properties"]
    assert {"name": "builder:source:commit", "value": "c" * 40} in components["tool"]["properties"]
    assert "secret" not in text


def test_sbom_os_packages() -> None:
    """The OS packages of a lock are components with a purl of type deb."""
    lock = Lock((), ("linux-64",), record=LockRecord(os_packages=(HELLO,)), digest="sha256:x")
    recipe = Recipe(name="t", base="oci:base", environment="e.yml")
    text = sbom(recipe, lock, None)
    JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.decode())
    (component,) = json.loads(text)["components"]
    assert component["hashes"] == [{"alg": "SHA-256", "content": A}]
    assert PackageURL.from_string(component["purl"]).to_dict()["type"] == "deb"


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (["mit"], [{"license": {"id": "MIT"}}]),
        (["GPL-2.0+"], [{"expression": "GPL-2.0+"}]),
        (["apache-2.0 or (mit and BSD-3-Clause)"], [{"expression": "Apache-2.0 OR (MIT AND BSD-3-Clause)"}]),
        (["LicenseRef-Nvidia"], [{"expression": "LicenseRef-Nvidia"}]),
        (["BSD 3-Clause"], [{"license": {"name": "BSD 3-Clause"}}]),
        (["MIT", "BSD"], [{"license": {"name": "MIT"}}, {"license": {"name": "BSD"}}]),
        (["(" * 150 + "MIT"], [{"license": {"name": "(" * 150 + "MIT"}}]),
    ],
)
def test_licences(declared: list[str], expected: list[Any]) -> None:
    """An SPDX id, an SPDX expression or a name, as CycloneDX tells them apart."""
    assert licence_choice(declared) == expected
    of_python = Declared(tuple(declared), (), ())
    text = sbom(site_recipe(), LOCK, BASE, {PACKAGES[0].key: of_python}).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    (python,) = (c for c in json.loads(text)["components"] if c["name"] == "python")
    assert python["licenses"] == expected


def inside_of(*parts: Part, unread: tuple[str, ...] = ()) -> Any:
    """The SBOM of a lock whose wheel Foo.Bar_baz has something inside."""
    text = sbom(site_recipe(), LOCK, BASE, {PACKAGES[2].key: Declared((), parts, unread)}, SYSTEM)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.decode()) is None
    assert text == sbom(site_recipe(), LOCK, BASE, {PACKAGES[2].key: Declared((), parts, unread)}, SYSTEM)
    return json.loads(text)


OPENSSL: Part = {
    "type": "library",
    "name": "openssl",
    "version": "3.5.0",
    "purl": "pkg:generic/openssl@3.5.0",
    "properties": [{"name": "builder:sbom", "value": "foo-1.0.dist-info/sboms/sbom.json"}],
}
LIBRARY: Part = {"type": "library", "name": "libz", "hashes": [{"alg": "SHA-256", "content": B}]}


def test_inside() -> None:
    """What is inside of a wheel is beside it, and the wheel depends on it; so Trivy reads it, too.

    Syft 1.18 reads nested components as well; Trivy's pkg/sbom/cyclonedx/unmarshal.go does not.
    """
    found = inside_of(OPENSSL, LIBRARY)
    wheel = package_url(PACKAGES[2])
    refs = [f"{wheel}#inside-1", f"{wheel}#inside-2"]
    known = {c["bom-ref"]: c for c in found["components"]}
    assert known[refs[0]] == {**OPENSSL, "bom-ref": refs[0]} and known[refs[1]]["hashes"] == LIBRARY["hashes"]
    edges = {d["ref"]: d["dependsOn"] for d in found["dependencies"]}
    assert set(refs) < set(edges[wheel]) and not set(refs) & set(edges["builder:site"])
    assert [c["type"] for c in found["components"]].index("operating-system") < [*known].index(refs[0])


def test_same_inside_of_two() -> None:
    """Two wheels hold the same crate: each has its own reference."""
    known = {PACKAGES[n].key: Declared((), (OPENSSL, LIBRARY), ()) for n in (2, 3)}
    text = sbom(site_recipe(), LOCK, BASE, known).decode()
    refs = [c["bom-ref"] for c in json.loads(text)["components"]]
    assert len(set(refs)) == len(refs) and sum("#inside-" in ref for ref in refs) == 4


def test_unread_sboms() -> None:
    """The component of a wheel names the SBOMs that were not read, beside its other properties."""
    source = LockedSource("sdist", "https://host.example/s-1.tar.gz", sha256=A)
    package = LockedPackage("s", "1.0", "pip", "linux-64", "builder://wheels/s.whl", C, source=source)
    known = {package.key: Declared((), (), ("s-1.0.dist-info/sboms/s.spdx.json: bomFormat: required",))}
    text = sbom(site_recipe(), Lock((package,), ("linux-64",)), None, known).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    (component,) = json.loads(text)["components"]
    names = [one["name"] for one in component["properties"]]
    assert names == ["builder:source:sha256", "builder:sbom-not-read"]


SYSTEM = BaseSystem(
    "debian",
    "12",
    (
        DebianPackage("hello", "1:1-1", "amd64", ""),
        DebianPackage("libssl3", "3.0.22-1~deb12u2", "amd64", "openssl"),
        DebianPackage("libstdc++6", "12-1+b1", "amd64", "gcc-12 (12-1)"),
    ),
)


def test_base_packages() -> None:
    """Packages of the base hang below it; the lock's replace them. Scanners read the release in the purls."""
    lock = Lock((), ("linux-64",), record=LockRecord(os_packages=(HELLO,)), digest="sha256:x")
    text = sbom(site_recipe(), lock, BASE, {}, SYSTEM).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = json.loads(text)
    purls = [c["purl"] for c in found["components"] if "purl" in c]
    assert purls == [
        "pkg:deb/debian/hello@1%3A2-1?arch=amd64&distro=debian-12",
        "pkg:deb/debian/libssl3@3.0.22-1~deb12u2?arch=amd64&distro=debian-12&upstream=openssl",
        "pkg:deb/debian/libstdc%2B%2B6@12-1%2Bb1?arch=amd64&distro=debian-12&upstream=gcc-12%4012-1",
    ]
    versions = [PackageURL.from_string(purl).version for purl in purls]
    assert versions == ["1:2-1", "3.0.22-1~deb12u2", "12-1+b1"]
    edges = {d["ref"]: d["dependsOn"] for d in found["dependencies"]}
    assert edges["builder:site"] == [f"base:{BASE.digest}", purls[0]]
    assert edges[f"base:{BASE.digest}"] == ["os:debian-12", *purls[1:]]


def test_unknown_release() -> None:
    """A testing release has no number, and a base that is not made of Debian packages has none listed."""
    package = DebianPackage("a", "1", "all", "")
    text = sbom(site_recipe(), Lock((), ()), BASE, {}, BaseSystem("debian", "", (package,))).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert "pkg:deb/debian/a@1?arch=all" in [c.get("purl") for c in json.loads(text)["components"]]
    rocky = json.loads(sbom(site_recipe(), Lock((), ()), BASE, {}, BaseSystem("rocky", "9.4", ())))
    assert [c["name"] for c in rocky["components"]] == [BASE.reference, "rocky"]
