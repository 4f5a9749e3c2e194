"""The names on PyPI of conda packages.

They come from the mapping that conda-lock uses too. Where it is not available, a built-in
table of common packages serves instead.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping

from packaging.utils import canonicalize_name

from builder.core.settings import Settings
from builder.core.store.folders import CacheFolders
from builder.core.store.records import read_record, write_record

log = logging.getLogger(__name__)

#: The URL of the mapping, conda-lock's default (``conda_lock.lookup.DEFAULT_MAPPING_URL``).
MAPPING_URL = (
    "https://raw.githubusercontent.com/regro/cf-graph-countyfair/master"
    "/mappings/pypi/grayskull_pypi_mapping.json"
)
#: conda name -> PyPI name, where the two are different names and not only spelled differently.
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
    """Return the PyPI name of a conda package, normalised as in PEP 503."""
    return canonicalize_name(mapping.get(conda_name) or BUILTIN.get(conda_name) or conda_name)


def conda_mapping(settings: Settings) -> Mapping[str, str]:
    """Return the PyPI names of conda packages.

    Returns:
        The downloaded mapping (cached for two days), an older one if it cannot be downloaded now,
        or :data:`BUILTIN` if it never was.
    """
    path = CacheFolders(settings.cache).names / "conda-to-pypi.json"
    stored = read_record(path)
    is_fresh = stored is not None and time.time() - stored["downloaded"] < _MAX_AGE_S
    if not is_fresh and not settings.offline:
        mapping = _download()
        if mapping is not None:
            stored = {"downloaded": time.time(), "mapping": mapping}
            write_record(path, stored)
    if stored is None:
        return BUILTIN
    names: Mapping[str, str] = stored["mapping"]
    return names


def _download() -> Mapping[str, str] | None:
    """Return the mapping; None if it is not available or not as expected."""
    import httpx

    from builder.formats.net.http import tls_context

    try:
        limits = httpx.Timeout(15, connect=3)
        tls = tls_context()
        answer = httpx.get(MAPPING_URL, timeout=limits, verify=tls, follow_redirects=True)
        answer.raise_for_status()
        records = json.loads(answer.content)
        return {str(record["conda_name"]): str(record["pypi_name"]) for record in records.values()}
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as e:
        log.info("names of conda packages on PyPI are not available, using older ones: %r", e)
        return None
