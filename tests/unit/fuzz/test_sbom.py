"""What packages and bases declare about themselves, nearly right: the SBOM is valid all the same."""

from __future__ import annotations

import json
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hypothesis import given
from hypothesis import strategies as st

from builder.build.bases.contents import find_system
from builder.core.model import Fetched, Lock, LockedBase
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.deliver.publishing.sbom import sbom
from builder.formats.layers.cache import declared_record
from builder.formats.layers.inside import declared
from tests.support import condapackage
from tests.support.channel import make_package
from tests.support.fuzz import STRANGE, fuzz, only_builder_errors
from tests.support.image_kit import base, layer, member, recipe, settings
from tests.support.wheels import fetched, make_wheel

VALIDATOR = JsonStrictValidator(SchemaVersion.V1_6)
BASE = LockedBase("oci:base", "sha256:" + "e" * 64)
STATUS = [
    *(b"Package: a", b"Package:", b"Package: a b\xff", b"Version: 1:2~3+b1", b"Version: %@?#&", b"Status: x"),
    *(b"Architecture: amd64", b"Architecture: &=", b"Source: b (1)", b"Source: b (", b"Source: (", b"", b" "),
]
RELEASE = [
    b"ID=debian",
    b"ID='",
    b'ID="ubuntu"',
    b"VERSION_ID=1&2",
    b"VERSION_CODENAME=x",
    b"ID_LIKE=\xff",
    b"=",
]
METADATA = [
    *(
        "License: MIT",
        "License-Expression: MIT OR",
        "License: \udce4\x00",
        "License:",
        " more",
        "",
        "License",
    ),
    *("Classifier: License ::", "Classifier: License :: \x1b[2J", "License-Expression: (" + "(" * 199),
]


def lines(given: list[bytes]) -> st.SearchStrategy[bytes]:
    """Texts of lines, some of them right."""
    return st.lists(st.sampled_from(given) | st.binary(max_size=20), max_size=12).map(b"\n".join)


def check(text: bytes) -> None:
    assert VALIDATOR.validate_str(text.decode()) is None, text


@fuzz(60)
@given(lines(STATUS), lines(STATUS), lines(RELEASE))
def test_base(tmp_path: Path, one: bytes, other: bytes, release: bytes) -> None:
    store = Store(tmp_path / "cache")
    files = {"etc/os-release": release, "var/lib/dpkg/status.d/a": one, "var/lib/dpkg/status": other}
    with only_builder_errors():
        made = base(layer(store, *(member(path, data) for path, data in files.items())))
        system = find_system(made, Workspace(settings(tmp_path), store))
        check(sbom(recipe(), Lock((), ("linux-64",)), BASE, {}, system))


def check_package(package: Fetched, folder: Path) -> None:
    store = Store(folder / "cache")
    with only_builder_errors():
        record = declared_record(package.package, store)
        record.write(declared(package))
        known = record.read()
        assert known is not None
        lock = Lock((package.package,), ("linux-64",))
        check(sbom(recipe(), lock, BASE, {package.package.key: known}))


@fuzz(60)
@given(st.lists(st.sampled_from(METADATA) | st.text(max_size=20), max_size=6).map("\n".join))
def test_wheel(tmp_path: Path, text: str) -> None:
    metadata = text.encode(errors="surrogateescape").decode(errors="replace")
    check_package(fetched(make_wheel(tmp_path, metadata=metadata)), tmp_path)


@fuzz(40)
@given(st.sampled_from(STRANGE) | st.text(max_size=30) | st.just("\ud800"))
def test_conda(tmp_path: Path, licence: object) -> None:
    check_package(condapackage.fetched(make_package(tmp_path, "a", index={"license": licence})), tmp_path)


KEYS = [
    *("bomFormat", "metadata", "component", "components", "name", "name", "version", "type", "purl", "cpe"),
    *("scope", "licenses", "license", "id", "expression", "hashes", "alg", "content", "bom-ref"),
]
VALUES = [*STRANGE, "CycloneDX", "library", "pkg:generic/a@1", "SHA-256", "a" * 64, "MIT", "excluded"]
INSIDE = st.recursive(
    st.sampled_from(VALUES) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=12,
)


@fuzz(80)
@given(INSIDE)
def test_inside(tmp_path: Path, value: object) -> None:
    """The SBOM of a wheel, nearly right: it is merged, or named as not read."""
    document = json.dumps({"bomFormat": "CycloneDX", "components": value})
    wheel = fetched(make_wheel(tmp_path, files={"demo-1.0.dist-info/sboms/a.json": document}))
    check_package(wheel, tmp_path)
