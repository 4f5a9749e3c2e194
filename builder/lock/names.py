"""Which PyPI distribution a conda package is: by conda-lock's mapping where it can be had, else by a table of the common ones."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.settings import Settings
from builder.store.files import write_atomic

#: conda name -> PyPI name, where they differ beyond spelling.
BUILTIN: Mapping[str, str] = {
    "antlr-python-runtime": "antlr4-python3-runtime",
    "brotli-python": "brotli",
    "cupy-core": "cupy",
    "dask-core": "dask",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "opencv": "opencv-python",
    "py-opencv": "opencv-python",
    "py-xgboost": "xgboost",
    "pyarrow-core": "pyarrow",
    "pyqt": "pyqt5",
    "pytables": "tables",
    "python-annoy": "annoy",
    "python-blosc": "blosc",
    "python-build": "build",
    "python-duckdb": "duckdb",
    "python-flatbuffers": "flatbuffers",
    "python-graphviz": "graphviz",
    "python-kaleido": "kaleido",
    "python-lmdb": "lmdb",
    "python-tzdata": "tzdata",
    "python-wget": "wget",
    "python-xxhash": "xxhash",
    "pytorch": "torch",
    "pytorch-cpu": "torch",
    "pytorch-gpu": "torch",
    "pytorch_geometric": "torch-geometric",
    "seaborn-base": "seaborn",
    "tensorflow-base": "tensorflow",
    "uvicorn-standard": "uvicorn",
}

_MAX_AGE_S = 2 * 24 * 3600


def pypi_name(conda_name: str, mapping: Mapping[str, str] = BUILTIN) -> str:
    """The PyPI name (normalised) of a conda package."""
    return canonicalize_name(mapping.get(conda_name) or BUILTIN.get(conda_name) or conda_name)


def conda_mapping(settings: Settings) -> Mapping[str, str]:
    """conda-lock's mapping of conda names to PyPI's; from the cache for two days; the built-in one where it cannot be had."""
    path = settings.cache / "conda-pypi-mapping.json"
    fresh = path.exists() and time.time() - path.stat().st_mtime < _MAX_AGE_S
    if not fresh and not settings.offline:
        _download(path)
    try:
        records = json.loads(path.read_bytes())
        return {r["conda_name"]: r["pypi_name"] for r in records.values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return BUILTIN


def _download(path: Path) -> None:
    import httpx
    from conda_lock.lookup import DEFAULT_MAPPING_URL

    from builder.net.http import tls_context

    try:
        answer = httpx.get(
            DEFAULT_MAPPING_URL,
            timeout=httpx.Timeout(15, connect=3),
            verify=tls_context(),
            follow_redirects=True,
        )
        answer.raise_for_status()
        json.loads(answer.content)
    except (httpx.HTTPError, ValueError):
        return
    write_atomic(path, answer.content)
