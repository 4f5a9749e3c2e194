"""Records of a lock in ``custom_metadata``: texts by ``builder.*`` keys that conda-lock ignores.

This is the only module that knows the keys and the form of their values::

    builder.base, builder.base-digest   Lock.base
    builder.sources                     LockedPackage.source, see sourcerecords.py
    builder.os-packages                 Lock.record.os_packages, a list in canonical JSON
    builder.created, ...                the other fields of Lock.record, as text
    builder.conda, ...                  Lock.record.inputs, see inputs.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from builder.core.errors import LockError
from builder.core.model import Lock, LockedBase, LockedSource, LockRecord, OsPackage, canonical_json
from builder.core.settings import seconds_of
from builder.formats.oci.reference import is_digest

from .config.explain import first_problem
from .sourcerecords import parse_sources, rendered_sources

#: The form of times.
TIME = "%Y-%m-%dT%H:%M:%SZ"
#: Bytes of a ``.deb``.
MAX_SIZE = 64 << 30
_PREFIX = "builder."
_BASE = "builder.base"
_BASE_DIGEST = "builder.base-digest"
_OS_PACKAGES = "builder.os-packages"
_SOURCES = "builder.sources"
_FIELDS = ("solved_before", "created", "imported_tool", "left_out", "link_order", "asked")
#: Fields of a record that are texts, by their keys.
_TEXTS = {_PREFIX + name.replace("_", "-"): name for name in _FIELDS}


class RecordError(ValueError):
    """A value of ``custom_metadata`` is damaged."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}{problem}")
        self.key = key


def read_custom(
    custom: Mapping[str, str],
) -> tuple[LockRecord, LockedBase | None, Mapping[str, LockedSource]]:
    """Read ``custom_metadata``: the record, the base, and sources by the names of packages.

    Raises:
        RecordError: a value is damaged.
    """
    rest = dict(custom)
    reference, digest = rest.pop(_BASE, ""), rest.pop(_BASE_DIGEST, "")
    if digest and not is_digest(digest):
        raise RecordError(_BASE_DIGEST, " is not sha256: and 64 hex digits")
    try:
        sources = parse_sources(rest.pop(_SOURCES, ""))
    except ValueError as e:
        raise RecordError(_SOURCES, f": {e}") from None
    texts = {name: rest.pop(key) for key, name in _TEXTS.items() if key in rest}
    system = _os_packages(rest.pop(_OS_PACKAGES)) if _OS_PACKAGES in rest else None
    inputs = {k.removeprefix(_PREFIX): v for k, v in rest.items() if k.startswith(_PREFIX)}
    others = {key: text for key, text in rest.items() if not key.startswith(_PREFIX)}
    record = LockRecord(inputs, os_packages=system, others=others, **texts)
    return record, LockedBase(reference, digest) if reference and digest else None, sources


def custom_metadata(lock: Lock) -> dict[str, str]:
    """Return ``custom_metadata`` of a lock file, in the order of the keys."""
    record = lock.record
    values = {**record.others, **prefixed(record.inputs)}
    values |= {key: text for key, name in _TEXTS.items() if (text := getattr(record, name))}
    if record.os_packages is not None:
        system = sorted(record.os_packages, key=lambda p: (p.name, p.architecture, p.version))
        values[_OS_PACKAGES] = canonical_json([asdict(package) for package in system]).decode()
    if lock.base:
        values |= {_BASE: lock.base.reference, _BASE_DIGEST: lock.base.digest}
    if sources := rendered_sources(lock.packages):
        values[_SOURCES] = sources
    return dict(sorted(values.items()))


def prefixed(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the inputs of a lock by the keys of the file."""
    return {_PREFIX + name: text for name, text in inputs.items()}


# OS packages


class _OsValues(BaseModel):
    """The values of an :class:`OsPackage`, checked."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]{0,200}$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+~:-]{0,200}$")]
    architecture: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]
    url: Annotated[str, Field(pattern=r"^(https?|file)://[!-~]{1,2000}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(gt=0, lt=MAX_SIZE)]


def package_of(item: Any) -> OsPackage:
    """Return the package of which a lock, or the base's apt, has these values.

    Raises:
        ValueError: a value is missing, or may not be part of a file name, an address or a command.
    """
    try:
        return OsPackage(**_OsValues.model_validate(item).model_dump())
    except ValidationError as e:
        raise ValueError(first_problem(e)[1]) from None


def _os_packages(text: str) -> tuple[OsPackage, ...]:
    found: dict[str, OsPackage] = {}
    try:
        for package in map(package_of, json.loads(text)):
            if found.setdefault(package.filename, package) != package:
                raise ValueError(f"{package.filename} appears twice")
    except (ValueError, TypeError, RecursionError) as e:
        raise RecordError(_OS_PACKAGES, f" is damaged: {e}") from None
    return tuple(found.values())


# the date


def lock_date(record: LockRecord) -> int | None:
    """Return the date of a lock in seconds since 1970; None if it has none (one of another tool).

    Raises:
        LockError: the date is not a time from 1970 to 2106.
    """
    name = "created" if record.created else "solved-before"
    text = record.created or record.solved_before
    seconds = seconds_of(text)
    if text and seconds is None:
        problem = f"the lock's {_PREFIX}{name} {text[:40]!r} is not a time"
        raise LockError(problem, "write 2026-11-01T00:00:00Z, or lock again")
    return seconds
