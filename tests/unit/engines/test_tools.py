"""micromamba, and the Python that runs rattler."""

from __future__ import annotations

from pathlib import Path

from builder.engines.tools import micromamba, python_closure
from builder.oci.layout import write_layout
from builder.store.blobs import Store
from tests.support.engines import package, request
from tests.support.image_kit import image, layer, member


def test_micromamba_from_an_image(tmp_path: Path) -> None:
    """It is copied from the image once."""
    other = Store(tmp_path / "other")
    made = image(other, layer(other, member("usr/bin/micromamba", b"\x7fELF of an image")))
    write_layout(made, tmp_path / "mamba", "v1", other)
    r = request(tmp_path, installer={"micromamba": "oci:mamba:v1"})
    first = micromamba(r)
    assert first.read_bytes() == b"\x7fELF of an image"
    stamp = first.stat().st_mtime_ns
    assert micromamba(r) == first and first.stat().st_mtime_ns == stamp


def test_python_closure() -> None:
    packages = [
        package("python", dependencies={"openssl": "", "__glibc": ""}),
        package("openssl", dependencies={"libc": ""}),
        package("libc"),
        package("numpy", dependencies={"python": ""}),
    ]
    assert [p.name for p in python_closure(packages)] == ["libc", "openssl", "python"]
