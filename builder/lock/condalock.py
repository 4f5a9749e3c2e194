"""Reading and writing conda-lock v1 files (``version: 1``, as conda-lock 1 to 4 write them)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import yaml

from builder.errors import LockError
from builder.model import Lock, LockedBase, LockedPackage
from builder.store import write_atomic

try:
    from yaml import CSafeDumper as _Dumper
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML without libyaml
    from yaml import SafeDumper as _Dumper  # type: ignore[assignment]
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

BASE = "builder.base"
BASE_DIGEST = "builder.base-digest"

_HEADER = """\
# This lock file was made by builder (https://conda.github.io/conda-lock format, version 1). DO NOT EDIT.
# It names every package of an image by URL and hash, and the base image by digest.
"""


def read_lock(path: Path) -> Lock:
    """Reads a lock file.

    Raises:
        LockError: missing, damaged, of another version, or a package without a hash; file and package are named.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise LockError(f"{path}: no such lock file", "make it: builder lock") from None
    except OSError as e:
        raise LockError(f"{path}: cannot be read: {e.strerror}", "check the path and its permissions") from None
    try:
        data = yaml.load(raw, Loader=_Loader)  # noqa: S506  a safe loader
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        at = f"{path}:{mark.line + 1}" if mark else str(path)
        raise LockError(f"{at}: damaged: {getattr(e, 'problem', None) or 'not YAML'}", "restore it from version control, or lock again") from None
    if not isinstance(data, dict) or "package" not in data:
        raise LockError(f"{path}: not a conda-lock file: no list 'package'", "give a lock file of conda-lock or builder")
    if data.get("version") != 1:
        raise LockError(f"{path}: lock file version {data.get('version')!r}, builder reads version 1", "write it with conda-lock 1 to 4 or builder")
    metadata = data.get("metadata") or {}
    packages = tuple(_package(path, number, p) for number, p in enumerate(data["package"] or []))
    custom = {str(k): str(v) for k, v in (metadata.get("custom_metadata") or {}).items()}
    base = LockedBase(custom[BASE], custom[BASE_DIGEST]) if BASE in custom and BASE_DIGEST in custom else None
    return Lock(
        packages,
        tuple(metadata.get("platforms") or sorted({p.platform for p in packages})),
        tuple(c["url"] if isinstance(c, dict) else str(c) for c in metadata.get("channels") or ()),
        tuple(metadata.get("sources") or ()),
        dict(metadata.get("content_hash") or {}),
        custom,
        base,
        f"sha256:{hashlib.sha256(raw).hexdigest()}",
    )


def _package(path: Path, number: int, data: Any) -> LockedPackage:
    try:
        hashes = data.get("hash") or {}
        package = LockedPackage(
            name=data["name"],
            version=str(data["version"]),
            manager=data["manager"],
            platform=data["platform"],
            url=data["url"],
            sha256=hashes.get("sha256"),
            md5=hashes.get("md5"),
            dependencies={str(k): str(v) for k, v in (data.get("dependencies") or {}).items()},
            category=data.get("category", "main"),
            optional=bool(data.get("optional", False)),
        )
    except (KeyError, AttributeError, TypeError) as e:
        raise LockError(f"{path}: package {number + 1}: {e!r} is missing or wrong", "restore the file, or lock again") from None
    if not package.sha256 and not package.md5:
        raise LockError(f"{path}: {package.name} {package.version} has no hash", "lock again: builder takes no package without a hash")
    if package.manager not in ("conda", "pip"):
        raise LockError(f"{path}: {package.name}: unknown manager {package.manager!r}", "builder knows conda and pip")
    return package


def without_secrets(url: str) -> str:
    """A URL without user and password: lock files are committed and go into images."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def write_lock(lock: Lock, path: Path) -> Lock:
    """Writes a lock file, the same bytes for the same lock; gives the lock with its digest.

    Raises:
        SpaceError: it cannot be written.
    """
    custom = dict(lock.custom)
    if lock.base:
        custom |= {BASE: lock.base.reference, BASE_DIGEST: lock.base.digest}
    data: dict[str, Any] = {
        "version": 1,
        "metadata": {
            "content_hash": dict(lock.content_hash),
            "channels": [{"url": without_secrets(c), "used_env_vars": []} for c in lock.channels],
            "platforms": list(lock.platforms),
            "sources": list(lock.sources),
            "custom_metadata": dict(sorted(custom.items())),
        },
        "package": [_plain(p) for p in sorted(lock.packages, key=lambda p: (p.manager, p.name, p.platform))],
    }
    raw = (_HEADER + yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)).encode()
    write_atomic(path, raw)
    return replace(lock, custom=custom, digest=f"sha256:{hashlib.sha256(raw).hexdigest()}")


def _plain(p: LockedPackage) -> Mapping[str, Any]:
    hashes = {k: v for k, v in (("md5", p.md5), ("sha256", p.sha256)) if v}
    return {
        "name": p.name,
        "version": p.version,
        "manager": p.manager,
        "platform": p.platform,
        "dependencies": dict(sorted(p.dependencies.items())),
        "url": without_secrets(p.url),
        "hash": hashes,
        "category": p.category,
        "optional": p.optional,
    }
