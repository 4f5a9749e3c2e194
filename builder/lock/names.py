"""The names on PyPI of conda packages.

They come from the mapping that conda-lock uses too. Where it is not available, a built-in
table of common packages serves instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Literal

from packaging.utils import canonicalize_name

from builder.core.datafiles import table
from builder.core.settings import Settings
from builder.core.store.folders import CacheFolders
from builder.core.store.records import Record

log = logging.getLogger(__name__)

_MAX_AGE_S = 2 * 24 * 3600


def known_names(
    what: Literal["conda_to_pypi", "meant_on_conda", "meant_on_pypi"],
) -> Mapping[str, str]:
    """Return a table of names.yaml."""
    return dict(table(__file__, "names.yaml")[what])


def pypi_name(conda_name: str, mapping: Mapping[str, str] | None = None) -> str:
    """Return the PyPI name of a conda package, normalised as in PEP 503."""
    known = (mapping or {}).get(conda_name) or known_names("conda_to_pypi").get(conda_name)
    return canonicalize_name(known or conda_name)


def conda_mapping(settings: Settings) -> Mapping[str, str]:
    """Return the PyPI names of conda packages.

    Returns:
        The downloaded mapping (cached for two days), an older one if it cannot be downloaded now,
        or that of names.yaml if it never was.
    """
    record = Record(CacheFolders(settings.cache).names / "conda-to-pypi.json", dict[str, Any])
    stored = record.read()
    is_fresh = stored is not None and time.time() - stored["downloaded"] < _MAX_AGE_S
    if not is_fresh and not settings.offline and (mapping := _download()) is not None:
        stored = {"downloaded": time.time(), "mapping": mapping}
        record.write(stored)
    return dict(stored["mapping"]) if stored else known_names("conda_to_pypi")


def _download() -> Mapping[str, str] | None:
    """Return the mapping; None if it is not available or not as expected."""
    import httpx2

    from builder.formats.net.answers import MAX_PAGE, load_json, read_body
    from builder.formats.net.http import make_client

    limits, url = httpx2.Timeout(15, connect=3), table(__file__, "names.yaml")["mapping"]
    try:
        with make_client(1, timeout=limits) as client, client.stream("GET", url) as answer:
            records = load_json(read_body(answer.raise_for_status(), MAX_PAGE))
        return {str(record["conda_name"]): str(record["pypi_name"]) for record in records.values()}
    except (httpx2.HTTPError, ValueError, KeyError, TypeError, AttributeError) as e:
        log.info("names of conda packages on PyPI are not available, using older ones: %r", e)
        return None
