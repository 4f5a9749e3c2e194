"""What is inside of packages: their own SBOMs (PEP 770) and libraries that auditwheel copied.

The forms are those of real wheels of November 2026: cryptography 50.0.2 and pydantic-core 2.50.5
(cargo-cyclonedx 0.5.9, CycloneDX 1.5), pillow 13.0.0 (1.7, and auditwheel 6.8.2 with 1.4), scipy 1.18.1. The
real ones are in tests/integration/test_sbom.py.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from builder.core.model import Fetched
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.formats.layers import inside
from builder.formats.layers.cache import declared_record
from builder.formats.layers.entry import Declared
from builder.formats.layers.inside import declared
from tests.support import condapackage
from tests.support.channel import make_package
from tests.support.packagefiles import files_of
from tests.support.wheels import fetched, make_wheel

SELF = "pkg:pypi/de_mo@1.0?file_name=de_mo-1.0-py3-none-any.whl"


def cyclonedx(*components: Any, about: Any = None, version: str = "1.5") -> str:
    metadata = {"component": about} if about else {}
    value = {"bomFormat": "CycloneDX", "specVersion": version, "metadata": metadata}
    return json.dumps({**value, "components": components})


def component(name: object, version: str = "1.0", purl: str = "", **more: Any) -> dict[str, Any]:
    known = {"purl": purl} if purl else {}
    return {"type": "library", "name": name, "version": version, **known, **more}


def read(folder: Path, **files: str | bytes) -> Declared:
    """What a wheel declares; the names of files are those of SBOMs, or of libraries with their folder."""
    paths = {n if "/" in n else f"de_mo-1.0.dist-info/sboms/{n}": data for n, data in files.items()}
    return declared(fetched(make_wheel(folder, "de_mo", files=paths)))


def named(found: Declared) -> list[tuple[str, str]]:
    return [(part["name"], part.get("version", "")) for part in found.parts]


def origin(part: dict[str, Any]) -> str:
    (only,) = part["properties"]
    return str(only["value"])


def test_cargo(tmp_path: Path) -> None:
    """Crates with licence, hash and scope; the targets of a crate are the crate."""
    target = component("demo_rust", purl="pkg:cargo/demo-rust@1.0?download_url=file://.#src/lib.rs")
    about = component("demo-rust", purl="pkg:cargo/demo-rust@1.0?download_url=file://.", components=[target])
    crate = component(
        "cc",
        purl="pkg:cargo/cc@1.0",
        scope="excluded",
        licenses=[{"expression": "MIT OR Apache-2.0"}],
        hashes=[{"alg": "SHA-256", "content": "a" * 64}, {"alg": "Streebog-256", "content": "b" * 64}],
        cpe="cpe:2.3:a:cc:cc:1.0:*:*:*:*:*:*:*",
    )
    found = read(tmp_path, **{"demo.cyclonedx.json": cyclonedx(crate, about=about)})
    assert named(found) == [("cc", "1.0"), ("demo-rust", "1.0")] and not found.unread
    hashes = [{"alg": "SHA-256", "content": "a" * 64}]
    path = "de_mo-1.0.dist-info/sboms/demo.cyclonedx.json"
    properties = [{"name": "builder:sbom", "value": path}]
    assert found.parts[0] == {**crate, "hashes": hashes, "properties": properties}, "1.6 has no Streebog"


def test_itself(tmp_path: Path) -> None:
    """auditwheel lists the wheel in its own SBOM, and Pillow its modules: neither is inside of the wheel."""
    itself = component("de_mo", purl=SELF)
    module = component("DE_MO._webp", purl="pkg:pypi/de-mo@1.0#c-ext/DE_MO._webp")
    rpm = component("libXau", "1.0.9-3.el8", "pkg:rpm/almalinux/libXau@1.0.9-3.el8")
    about = component("De.Mo", purl="pkg:pypi/de-mo@1.0")
    pillow = cyclonedx(module, component("libtiff", "4.7.2"), about=about, version="1.7")
    found = read(
        tmp_path,
        **{
            "auditwheel.cdx.json": cyclonedx(itself, rpm, about=itself, version="1.4"),
            "de_mo.cdx.json": pillow,
        },
    )
    assert named(found) == [("libXau", "1.0.9-3.el8"), ("libtiff", "4.7.2")]


def test_nested(tmp_path: Path) -> None:
    """Components in components are read; one package is listed once, whoever names it."""
    inner = component("inner", purl="pkg:generic/inner@1.0?download_url=https://me:secret@host.example/x")
    outer = component("outer", components=[inner, component("outer")])
    found = read(
        tmp_path, one=cyclonedx(outer), two=cyclonedx(component("inner", purl="pkg:generic/inner@1.0"))
    )
    assert named(found) == [("outer", "1.0"), ("inner", "1.0")]
    assert "secret" not in str(found)


def test_types(tmp_path: Path) -> None:
    """An operating system in a wheel is not that of the image: scanners take the first one (Syft 1.18)."""
    kinds = ["operating-system", "container", "application", "something new"]
    found = read(tmp_path, one=cyclonedx(*({"type": kind, "name": kind} for kind in kinds)))
    assert [part["type"] for part in found.parts] == ["library", "library", "application", "library"]


def test_libraries(tmp_path: Path) -> None:
    """Libraries that no SBOM names are listed with path and hash. auditwheel writes package names only."""
    names = ["libXau-154567c4.so.6.0.0", "libtiff-20b7e810.so.6", "libgfortran-83c28eba.so.5"]
    names += ["libgfortran-040039e1-0352e75f.so.5"]
    files = {f"de_mo.libs/{name}": name for name in names}
    sbom = cyclonedx(
        component("libXau", "1.0.9-3.el8", "pkg:rpm/almalinux/libXau@1.0.9-3.el8"),
        component("libgfortran", "8.5.0", "pkg:rpm/almalinux/libgfortran@8.5.0"),
        {"type": "library", "name": "tiff"},
    )
    more = {"de_mo/lib/libown.so": "", "de_mo.libs/readme.txt": "", "de_mo.libs/sub/libdeep.so": ""}
    found = read(tmp_path, **{"auditwheel.cdx.json": sbom}, **files, **more)
    listed = {origin(part): part for part in found.parts if ".libs/" in origin(part)}
    assert [*listed] == [f"de_mo.libs/{name}" for name in names[1:]], "tiff has no version, two are gfortran"
    assert listed["de_mo.libs/libtiff-20b7e810.so.6"] == {
        "type": "library",
        "name": "libtiff",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(names[1].encode()).hexdigest()}],
        "properties": [{"name": "builder:bundled-library", "value": "de_mo.libs/libtiff-20b7e810.so.6"}],
    }


DEEP = (
    '{"bomFormat": "CycloneDX", "components": '
    + '[{"type": "x", "name": "a", "components": ' * 40
    + "[]"
    + "}]" * 40
    + "}"
)


@pytest.mark.parametrize(
    "data",
    [
        '{"spdxVersion": "SPDX-2.3", "packages": []}',
        '{"bomFormat": "SPDX", "components": []}',
        '<bom xmlns="http://cyclonedx.org/schema/bom/1.5"/>',
        b'{"bomFormat": "CycloneDX", "components": [], "x": "\xff"}',
        '{"bomFormat": "CycloneDX", "components": [], "components": []}',
        *("[]", "", "null", '"x"', '{"bomFormat": "CycloneDX", "components": {"a": 1}}'),
        cyclonedx() + " " * 400,
        cyclonedx("x"),
        cyclonedx(component("a"), component(1)),
        cyclonedx({"type": "library", "version": "1"}),
        cyclonedx({"type": "library", "name": None}),
        cyclonedx({"type": "library", "name": ["a"]}),
        cyclonedx(component("a", purl="no purl")),
        cyclonedx(component("a", licenses=["MIT"])),
        cyclonedx(component("a", licenses=[{"license": {"id": 1}}])),
        cyclonedx(component("a", hashes=[{"alg": "MD5"}])),
        cyclonedx(component("a", scope="none")),
        cyclonedx(component("a", "1" * 9999)),
        cyclonedx(*[component(n) for n in "abcd"]),
    ],
)
def test_unread(data: str | bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SBOM of another format, or that is damaged or too large, is named; others are read all the same."""
    monkeypatch.setattr(inside, "MAX_SBOMS", 450)
    monkeypatch.setattr(inside, "MAX_PARTS", 3)
    found = read(tmp_path, a=cyclonedx(component("good")), b=data)
    assert named(found) == [("good", "1.0")]
    assert found.unread == ("de_mo-1.0.dist-info/sboms/b",)


def test_deep(tmp_path: Path) -> None:
    assert read(tmp_path, a=DEEP).unread == ("de_mo-1.0.dist-info/sboms/a",)


def test_duplicates_and_circles(tmp_path: Path) -> None:
    """bom-refs may be there twice, and edges may be circles: builder makes its own."""
    same = [component(name, **{"bom-ref": "path+file:///home/me/x#1.0"}) for name in ("a", "b")]
    value = json.loads(cyclonedx(*same))
    value["dependencies"] = [{"ref": "a", "dependsOn": ["b"]}, {"ref": "b", "dependsOn": ["a"]}]
    assert named(read(tmp_path, a=json.dumps(value))) == [("a", "1.0"), ("b", "1.0")]


def test_nulls(tmp_path: Path) -> None:
    """Programs in Go write null for an empty list (Trivy 0.33)."""
    found = read(tmp_path, a='{"bomFormat": "CycloneDX", "metadata": null, "components": null}')
    assert found == Declared((), (), ())


def test_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "MAX_PARTS", 2)
    found = read(tmp_path, **{f"de_mo.libs/lib{n}.so": n for n in "abcd"})
    assert len(found.parts) == 2 and found.unread == ("de_mo.libs/libc.so and others",)


@pytest.mark.parametrize("extension", [".conda", ".tar.bz2"])
@pytest.mark.parametrize("noarch", ["", "python"])
def test_conda(extension: str, noarch: str, tmp_path: Path) -> None:
    """Conda packages that were made of wheels have the same files."""
    site = "site-packages" if noarch else "lib/python3.11/site-packages"
    files = {
        f"{site}/demo-1.0.dist-info/sboms/sbom.json": cyclonedx(component("openssl", "3.5.0")),
        f"{site}/demo-1.0.dist-info/sboms/x.spdx": "SPDXVersion: SPDX-2.3",
        f"{site}/demo.libs/libz-0123abcd.so.1": "z",
    }
    package = make_package(tmp_path, "demo", files=files, extension=extension, noarch=noarch)
    found = declared(condapackage.fetched(package))
    assert named(found) == [("openssl", "3.5.0"), ("libz", "")] and found.licences == ("BSD-3-Clause",)
    assert found.parts[1]["hashes"][0]["content"] == hashlib.sha256(b"z").hexdigest()
    assert origin(found.parts[1]) == "demo.libs/libz-0123abcd.so.1"
    assert found.unread == ("demo-1.0.dist-info/sboms/x.spdx",)


def test_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build records what is inside; the archives of packages with nothing inside are not read again."""
    opened: list[str] = []

    def files(package: Fetched) -> Any:
        opened.append(package.package.name)
        return all_files(package)

    all_files = inside._files
    monkeypatch.setattr(inside, "_files", files)
    sboms = {"one-1.0.dist-info/sboms/sbom.json": cyclonedx(component("openssl", "3.5.0"))}
    packages = [fetched(make_wheel(tmp_path, "one", files=sboms)), fetched(make_wheel(tmp_path, "two"))]
    settings = Settings(tmp_path / "cache", tmp_path / "tmp", 2)
    assert len(files_of(packages, settings).indexes) == 2 and opened == ["one"]
    records = [declared_record(one.package, Store(settings.cache)).read() for one in packages]
    assert records == [declared(one) for one in packages]
