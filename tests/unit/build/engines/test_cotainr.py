"""The cotainr engine with a program of that name that does nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from builder.build.engines import cotainr
from builder.build.engines.cotainr import Cotainr, environment_file
from builder.build.engines.dispatch import run_engine
from builder.core.errors import ImageError, UsageError
from builder.core.stages import BuildOptions
from builder.core.store.blobs import Store
from tests.support import image_kit
from tests.support.engines import HASH, package, request


def test_environment_file(tmp_path: Path) -> None:
    """It has every locked package by version and build, from builder's server, and no credentials."""
    url = "https://user:secret@mirror.example/t/token123/own/noarch/local-2.0-h1_3.tar.bz2"
    packages = [
        package("python", version="3.11.9"),
        package("local", url=url, version="2.0"),
        package("torch", "pip", "2.0+rocm"),
    ]
    text = environment_file(request(tmp_path, packages, format="sif"), "http://127.0.0.1:1")
    data = yaml.safe_load(text)
    assert data["channels"] == ["http://127.0.0.1:1/conda", "nodefaults"]
    assert data["dependencies"] == [
        "local=2.0=h1_3",
        "python=3.11.9=py_0",
        {
            "pip": [
                "--no-index --find-links http://127.0.0.1:1/wheels/",
                f"torch==2.0+rocm --hash=sha256:{HASH}",
            ]
        },
    ]
    assert "secret" not in text and "token123" not in text


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs named cotainr and singularity that end with 0 and do nothing else but tell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cotainr", "singularity"):
        (folder / name).write_text(
            f"#!/bin/sh\necho 'Cotainr:-: nothing to do'; echo \"$*\" >> {tmp_path}/started\n"
        )
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("BUILDER_ACCEPT_LICENSES", raising=False)
    base = image_kit.base(image_kit.layer(Store(tmp_path / "cache"), image_kit.member("etc/os", b"")))
    monkeypatch.setattr(cotainr, "open_locked_base", lambda _: base)
    return folder


def test_licence_not_accepted(tmp_path: Path, programs: Path) -> None:
    """cotainr does not start."""
    with pytest.raises(UsageError, match=r"Miniforge(.|\n)*licence was not accepted(.|\n)*--accept-licenses"):
        run_engine(Cotainr(), request(tmp_path, format="sif"))
    assert not (tmp_path / "started").exists()


def test_success_without_a_file(tmp_path: Path, programs: Path) -> None:
    asked = request(tmp_path, [package("zlib")], format="sif")
    with pytest.raises(ImageError) as caught:
        run_engine(Cotainr(), replace(asked, options=BuildOptions(accept_licenses=True)))
    assert (
        "cotainr build of target t ended with code 0 but wrote no file:\n    Cotainr:-: nothing to do"
        in caught.value.message
    )
    words = (tmp_path / "started").read_text().split()
    assert words[0] == "build" and "--accept-licenses" in words
    assert [w for w in words if w.startswith("--base-image=oci:")]
