"""The cotainr engine with a program of that name that does nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.engines.cotainr import PREFIX, Cotainr, with_cotainr_prefix
from builder.engines.dispatch import run_engine
from builder.errors import ImageError, UsageError
from tests.support.engines import package, request


def test_prefix(tmp_path: Path) -> None:
    r = with_cotainr_prefix(request(tmp_path, format="sif"))
    assert r.recipe.conda.prefix == PREFIX


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
    return folder


def test_licence_not_accepted(tmp_path: Path, programs: Path) -> None:
    """cotainr does not start."""
    with pytest.raises(UsageError, match=r"Miniforge(.|\n)*licence was not accepted(.|\n)*--accept-licenses"):
        run_engine(Cotainr(), request(tmp_path, format="sif"))
    assert not (tmp_path / "started").exists()


def test_licence_accepted_by_variable(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_ACCEPT_LICENSES", "1")
    with pytest.raises(ImageError, match="wrote no file"):
        run_engine(
            Cotainr(), request(tmp_path, [package("zlib")], format="sif", cotainr={"system": "lumi-g"})
        )
    assert "--accept-licenses" in (tmp_path / "started").read_text()


def test_success_without_a_file(tmp_path: Path, programs: Path) -> None:
    asked = request(tmp_path, [package("zlib")], format="sif", cotainr={"system": "lumi-g"})
    with pytest.raises(ImageError) as caught:
        run_engine(Cotainr(), replace(asked, accept_licenses=True))
    assert (
        "cotainr build of target t ended with code 0 but wrote no file:\n    Cotainr:-: nothing to do"
        in caught.value.message
    )
    words = (tmp_path / "started").read_text().split()
    assert words[0] == "build" and "--system=lumi-g" in words and "--accept-licenses" in words
    assert not [w for w in words if w.startswith("--base-image")]
