"""Wheels for two versions of CUDA in one lock. The locks are those of PyPI on 2026-11-29 (uv 0.13.9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.model import LockedPackage
from builder.lock.config.recipe import Recipe
from builder.lock.indexes import warn_of_kind
from tests.support.reporters import Notes, Warnings

TORCH_215 = "torch 2.15.0|nvidia-cublas 13.4.1.3|nvidia-cudnn-cu13 9.26.0.51|nvidia-nccl-cu13 2.30.7"
TORCH_210 = "torch 2.10.0|nvidia-cublas-cu12 12.8.4.1|nvidia-cudnn-cu12 9.10.2.21|nvidia-nccl-cu12 2.27.5"
TORCH_126 = TORCH_210.replace("2.10.0", "2.15.0+cu126")
JAX_12 = "jax 0.12.0.1|jax-cuda12-plugin 0.12.0.1|nvidia-cublas-cu12 12.9.3.13|nvidia-cudnn-cu12 9.28.0.42"
JAX_13 = "jax 0.12.0.1|jax-cuda13-plugin 0.12.0.1|nvidia-cublas 13.10.0.20|nvidia-cudnn-cu13 9.28.1.4"
XGBOOST_33 = "xgboost 3.3.0|nvidia-nccl-cu12 2.32.3"
XGBOOST_34 = "xgboost 3.4.1|nvidia-nccl-cu13 2.32.3"
FAISS = "faiss-gpu-cu12 1.14.1|nvidia-cublas-cu12 12.9.3.13|nvidia-cuda-runtime-cu12 12.9.79"
INDEX = "torch==VERSION+cu126, with --extra-index-url https://download.pytorch.org/whl/cu126"


def recipe(folder: Path, driver: str) -> Recipe:
    given = {"__cuda": driver} if driver else {}
    data = {"name": "mine", "base": "debian:bookworm", "environment": "environment.yml"}
    places = {"root": folder, "source": folder / "mine.yaml"}
    return Recipe.model_validate({**data, **places, "gpu": {"vendor": "nvidia"}, "virtual_packages": given})


def packages(text: str) -> list[LockedPackage]:
    pairs = [one.split() for one in text.split("|")]
    return [LockedPackage(*pair, "pip", "linux-64", f"https://h/{pair[0]}.whl", "0" * 64) for pair in pairs]


@pytest.mark.parametrize(
    ("locked", "driver", "files_of", "lines"),
    [
        (f"{TORCH_215}|{JAX_12}", "", "cudnn", f"CUDA 13 write jax[cuda13]; for CUDA 12 write {INDEX}"),
        (f"{TORCH_215}|{JAX_12}", "12.8", "cudnn", f": for CUDA 12 write {INDEX}"),
        (f"{TORCH_210}|{JAX_13}", "13.0", "cudnn", "CUDA 13 write torch>=2.11; for CUDA 12 write jax["),
        (f"{TORCH_126}|{JAX_13}", "", "cudnn", "CUDA 13 write torch>=2.11; for CUDA 12 write jax[cuda12]"),
        (f"{TORCH_215}|{XGBOOST_33}", "", "nccl", f"CUDA 13 write xgboost>=3.4; for CUDA 12 write {INDEX}"),
        (f"{TORCH_210}|{XGBOOST_34}", "", "nccl", "CUDA 13 write torch>=2.11; for CUDA 12 write xgboost<3.4"),
        ("a 1|nvidia-nccl-cu11 2.21.5|nvidia-nccl-cu12 2.32.3", "", "nccl", ": choose packages for one"),
    ],
)
def test_replaced(tmp_path: Path, locked: str, driver: str, files_of: str, lines: str) -> None:
    """nvidia-nccl-cu12 and -cu13 have libnccl.so.2 at one path: the image would have one of the two."""
    reporter = Warnings()
    warn_of_kind(recipe(tmp_path, driver), packages(locked), reporter)
    (text,) = reporter.messages
    assert "replace each other's files" in text and f"nvidia-{files_of}-cu12" in text and lines in text
    assert "nvidia-cublas" not in text


@pytest.mark.parametrize(
    "locked",
    [TORCH_215, TORCH_210, f"{TORCH_215}|{JAX_13}", f"{TORCH_210}|{JAX_12}", f"{XGBOOST_34}|a 1"],
)
def test_one_version(tmp_path: Path, locked: str) -> None:
    reporter = Warnings()
    warn_of_kind(recipe(tmp_path, ""), packages(locked), reporter)
    assert reporter.messages == []


def test_side_by_side(tmp_path: Path) -> None:
    """Files of nvidia-cublas 13 are in nvidia/cu13, those of nvidia-cublas-cu12 in nvidia/cublas."""
    reporter = Notes()
    warn_of_kind(recipe(tmp_path, ""), packages(f"{TORCH_215}|{FAISS}"), reporter)
    assert reporter.notes == [
        "mine: packages are for CUDA 12 and 13: the image has the libraries of both, in different folders"
    ]
