"""The Dockerfiles of the rivals."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engines import missing, write_context
from benchmarks.workloads import BUILDAH, MICROMAMBA, PIP, UV, UV_NO_COMPILE, workloads

_UV = "uv pip install --system --break-system-packages --link-mode=copy"


def dockerfile(tmp_path: Path, way: str) -> str:
    workload = next(w for w in workloads(tmp_path, quick=True) if w.name == "small")
    write_context(tmp_path / "context", way, workload, "http://127.0.0.1:1/", "HOST/base@sha256:1")
    return (tmp_path / "context/Dockerfile").read_text()


@pytest.mark.parametrize(
    ("way", "words", "without"),
    [
        (PIP, "pip install", "uv"),
        (UV, f"{_UV} --compile-bytecode", "pip/"),
        (UV_NO_COMPILE, _UV, "--compile-bytecode"),
        (BUILDAH, _UV, "--compile-bytecode"),
    ],
)
def test_wheels(tmp_path: Path, way: str, words: str, without: str) -> None:
    text = dockerfile(tmp_path, way)
    assert text.startswith("FROM HOST/base@sha256:1\n")
    assert words in text
    assert without not in text
    assert f"--mount=type=cache,target=/root/.cache/{'pip' if way == PIP else 'uv'} " in text
    assert "no-cache" not in text
    assert "--find-links http://127.0.0.1:1/" in text
    assert "click==8" in (tmp_path / "context/requirements.txt").read_text()


def test_micromamba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rival for conda packages needs micromamba; without it the reason is named."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    assert missing(MICROMAMBA) == "micromamba is not installed"
    (programs / "micromamba").write_text("#!/bin/sh\n")
    (programs / "micromamba").chmod(0o755)
    assert missing(MICROMAMBA) == ""
    workload = next(w for w in workloads(tmp_path, quick=True) if w.name == "conda")
    write_context(tmp_path / "context", MICROMAMBA, workload, "http://127.0.0.1:1/", "BASE")
    text = (tmp_path / "context/Dockerfile").read_text()
    assert "--channel http://127.0.0.1:1/ python=3.11 pip setuptools wheel" in text
    assert (tmp_path / "context/micromamba").exists()
