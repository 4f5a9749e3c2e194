"""BUILDER_MIRRORS: which prefixes count, and what they lead to."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import UsageError
from builder.core.settings import Settings
from builder.formats.net.mirrors import mirrored_base, mirrored_url, mirrors_of, public_url

DIGEST = "sha256:" + "a" * 64
FORGE = "https://conda.anaconda.org/conda-forge"


def settings(*mirrors: str) -> Settings:
    return Settings.from_environment({"HOME": "/h", "BUILDER_MIRRORS": " ".join(mirrors)})


@pytest.mark.parametrize("source", [FORGE, f"{FORGE}/"])
@pytest.mark.parametrize("target", ["https://m.example/forge", "https://m.example/forge/"])
def test_prefix(source: str, target: str) -> None:
    """A prefix ends where a part of the name ends."""
    own = settings(f"{source}={target}")
    assert mirrored_url(own, f"{FORGE}/noarch/a.conda") == "https://m.example/forge/noarch/a.conda"
    assert mirrored_url(own, f"{FORGE}/") == "https://m.example/forge/"
    assert list(mirrors_of(own, f"{FORGE}/noarch/a.conda")) == ["https://m.example/forge/noarch/a.conda"]
    for other in (
        f"{FORGE}-staging/noarch/a.conda",
        "https://conda.anaconda.org/conda",
        "http://conda.anaconda.org/conda-forge/x",
    ):
        assert mirrored_url(own, other) == other and list(mirrors_of(own, other)) == []


def test_folders() -> None:
    """Folders are paths for downloads and file URLs for solvers."""
    own = settings("https://download.pytorch.org=/srv/with%20blank", f"{FORGE}=~/forge")
    url = "https://download.pytorch.org/whl/cpu/torch-2.13.0%2Bcpu.whl"
    assert list(mirrors_of(own, url)) == ["/srv/with%20blank/whl/cpu/torch-2.13.0+cpu.whl"]
    assert mirrored_url(own, url) == "file:///srv/with%2520blank/whl/cpu/torch-2.13.0%2Bcpu.whl"
    assert mirrored_url(own, f"{FORGE}/") == (Path.home() / "forge").as_uri() + "/"
    assert list(mirrors_of(own, f"{FORGE}//[/a.conda")) == ["~/forge//[/a.conda"]  # no host


@pytest.mark.parametrize("rest", ["/../b/a.conda", "/x/%2e./%2e%2e/b/a.conda"])
def test_outside_the_folder(rest: str) -> None:
    """A URL of a lock leads to no file outside the mirror."""
    assert list(mirrors_of(settings(f"{FORGE}=/srv/forge"), FORGE + rest)) == []


@pytest.mark.parametrize(
    "target", ["/srv/pytorch", "https://m.example/pytorch", "https://user:secret@m.example/pytorch"]
)
def test_public_url(target: str) -> None:
    """Locks contain the public URL, not the mirror's."""
    own = settings(f"https://download.pytorch.org={target}")
    url = "https://download.pytorch.org/whl/cpu/torch-2.13.0%2Bcpu.whl"
    there = mirrored_url(own, url)
    assert there != url and public_url(own, there) == url
    assert public_url(own, there.replace("user:secret@", "")) == url
    assert public_url(own, "https://elsewhere.example/x") == "https://elsewhere.example/x"


def test_nested() -> None:
    """The longest address of a mirror is the one that a file is in."""
    own = settings("https://a.org=https://m.org", "https://b.org=https://m.org/b")
    assert public_url(own, "https://m.org/b/x.conda") == "https://b.org/x.conda"
    assert public_url(own, "https://m.org/bb/x.conda") == "https://a.org/bb/x.conda"


@pytest.mark.parametrize(
    ("mirror", "base", "expected"),
    [
        (
            "docker://docker.io=docker://m:5000/hub",
            "docker://debian:bookworm",
            "docker://m:5000/hub/library/debian:bookworm",
        ),
        (
            "docker://docker.io/library=docker://m:5000",
            "docker://docker.io/library/debian:12",
            "docker://m:5000/debian:12",
        ),
        (
            "docker://nvcr.io/nvidia/pytorch=docker://m/p",
            "docker://nvcr.io/nvidia/pytorch:24.01",
            "docker://m/p:24.01",
        ),
        (
            "docker://nvcr.io/nvidia=docker://m/p",
            f"docker://nvcr.io/nvidia/a@{DIGEST}",
            f"docker://m/p/a@{DIGEST}",
        ),
        (
            "docker://nvcr.io/nvidia=oci:/srv/m",
            "docker://nvcr.io/nvidia/pytorch:24.01",
            "oci:/srv/m/pytorch:24.01",
        ),
        (
            "docker://nvcr.io/nvidia=/srv/m/",
            "docker://nvcr.io/nvidia/pytorch:24.01",
            "oci:/srv/m/pytorch:24.01",
        ),
        ("docker://nvcr.io/nvidia/py=docker://m/p", "docker://nvcr.io/nvidia/pytorch:24.01", ""),
        ("docker://nvcr.io=docker://m", "docker://nvcr.io.evil.example/a:b", ""),
        ("https://nvcr.io=https://m", "docker://nvcr.io/a:b", ""),
        ("/appl/local=/srv/appl", "sif:/appl/local/containers/x.sif", "sif:/srv/appl/containers/x.sif"),
        (
            "sif:/appl/local/=sif:/srv/appl/",
            "sif:/appl/local/containers/x.sif",
            "sif:/srv/appl/containers/x.sif",
        ),
        ("/appl/local=/srv/appl", "sif:/appl/localized/x.sif", ""),
        ("/appl/x.sif=/srv/y.sif", "sif:/appl/x.sif", "sif:/srv/y.sif"),
        ("/images=/srv", "oci:/images/base:tag", "oci:/srv/base:tag"),
        ("/images=/srv", "debian:bookworm", ""),
    ],
)
def test_bases(mirror: str, base: str, expected: str) -> None:
    """Mirrors of base images."""
    assert mirrored_base(settings("https://other.example=/x", mirror), base) == (expected or base)


def test_order() -> None:
    """The first mirror that fits counts; packages try all."""
    own = settings("https://a.example/b=/one", "https://a.example=/two")
    assert mirrored_url(own, "https://a.example/b/c") == "file:///one/c"
    assert list(mirrors_of(own, "https://a.example/b/c")) == ["/one/c", "/two/b/c"]


@pytest.mark.parametrize(
    "text", ["https://a.example", "=/x", "https://a.example=", "https://a=https://[b", "https://me:hush@a/"]
)
def test_malformed_setting(text: str) -> None:
    """A malformed BUILDER_MIRRORS is an error with a hint."""
    with pytest.raises(UsageError, match="BUILDER_MIRRORS: .* is not FROM=TO") as caught:
        settings(text)
    assert "FROM=TO" in caught.value.hint and "hush" not in caught.value.message
