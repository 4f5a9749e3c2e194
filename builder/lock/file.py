"""Lock files of conda-lock's format, version 1: read fast, written with the same bytes for the same lock."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from builder.errors import LockError
from builder.model import Lock, LockedBase, LockedPackage
from builder.redact import redact
from builder.store.files import write_atomic

_BASE = "builder.base"
_BASE_DIGEST = "builder.base-digest"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_HEX = {"sha256": re.compile(r"[0-9a-f]{64}").fullmatch, "md5": re.compile(r"[0-9a-f]{32}").fullmatch}
_TEXT_KEYS = ("name", "version", "platform", "url")

_HEADER = """\
# Lock file in conda-lock's format (version 1), made by builder. Do not edit: change the sources and run
#     builder lock {target}
# Other tools read it too: conda-lock render -k explicit, conda-lock install, micromamba create.
"""


def read_lock(path: Path) -> Lock:
    """Reads a lock file of builder or of conda-lock 1 to 4 (format version 1).

    Raises:
        LockError: missing, damaged, of another format, or a package without a hash; file, line and key are named.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise LockError(f"{path}: no such lock file", "make it: builder lock") from None
    except OSError as e:
        raise LockError(
            f"{path}: cannot be read: {e.strerror}", "check the path and its permissions"
        ) from None
    return parse_lock(raw, path)


def parse_lock(raw: bytes, path: Path) -> Lock:
    """The lock that these bytes hold; ``path`` is for messages. Raises LockError as :func:`read_lock`."""
    try:
        data = yaml.load(raw, Loader=_LOADER)  # noqa: S506 (a safe loader, in C)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as e:
        mark = getattr(e, "problem_mark", None)
        at = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(e, "problem", None) or "not UTF-8 text"
        raise LockError(
            f"{at}: not a lock file: {problem}", "take the file from version control again, or lock again"
        ) from None
    return _Reader(raw, path).read(data)


class _Reader:
    def __init__(self, raw: bytes, path: Path) -> None:
        self._raw = raw
        self._path = path

    def read(self, data: Any) -> Lock:
        if not isinstance(data, dict) or "package" not in data:
            raise LockError(
                f"{self._path}: not a lock file of conda-lock",
                "a lock holds version:, metadata: and package:; make one: builder lock",
            )
        version = data.get("version")
        if version != 1:
            raise self._bad(
                f"lock format version {version!r}; builder reads version 1",
                ("version",),
                "lock again with conda-lock 1 to 4, or with builder lock",
            )
        meta = data.get("metadata")
        if not isinstance(meta, dict):
            raise self._bad("metadata: is missing or no mapping", ("metadata",))
        items = data["package"]
        if not isinstance(items, list):
            raise self._bad("package: must be a list", ("package",))
        custom = self._texts(meta.get("custom_metadata"), ("metadata", "custom_metadata"))
        reference, digest = custom.pop(_BASE, ""), custom.pop(_BASE_DIGEST, "")
        platforms = meta.get("platforms")
        if not isinstance(platforms, list):
            raise self._bad("metadata.platforms: must be a list", ("metadata", "platforms"))
        return Lock(
            packages=tuple(self._package(item, i) for i, item in enumerate(items)),
            platforms=tuple(str(p) for p in platforms),
            channels=tuple(
                str(c.get("url", "")) if isinstance(c, dict) else str(c) for c in meta.get("channels") or ()
            ),
            sources=tuple(str(s) for s in meta.get("sources") or ()),
            content_hash=self._texts(meta.get("content_hash"), ("metadata", "content_hash")),
            custom=custom,
            base=LockedBase(reference, digest) if reference and digest else None,
            digest=f"sha256:{hashlib.sha256(self._raw).hexdigest()}",
        )

    def _texts(self, value: Any, keys: tuple[str | int, ...]) -> dict[str, str]:
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self._bad(f"{'.'.join(map(str, keys))}: must map names to texts", keys)
        return {str(k): v for k, v in value.items()}

    def _package(self, item: Any, i: int) -> LockedPackage:
        at = ("package", i)
        if not isinstance(item, dict):
            raise self._bad(f"package {i + 1}: not a mapping", at)
        for key in _TEXT_KEYS:
            if not isinstance(item.get(key), str) or not item[key]:
                raise self._bad(
                    f"package {item.get('name') or i + 1}: {key} is missing or no text", (*at, key)
                )
        name, manager, hashes, depends = (
            item["name"],
            item.get("manager"),
            item.get("hash"),
            item.get("dependencies") or {},
        )
        if manager not in ("conda", "pip"):
            raise self._bad(f"package {name}: manager is {manager!r}, not conda or pip", (*at, "manager"))
        if not isinstance(hashes, dict):
            raise self._bad(
                f"package {name}: no hash",
                (*at, "hash"),
                "lock again: without a hash nobody knows what is fetched",
            )
        for kind, matches in _HEX.items():
            if (value := hashes.get(kind)) is not None and not (
                isinstance(value, str) and matches(value.lower())
            ):
                raise self._bad(f"package {name}: hash.{kind} is not one", (*at, "hash", kind))
        sha256, md5 = hashes.get("sha256"), hashes.get("md5")
        if not sha256 and not md5:
            raise self._bad(
                f"package {name}: no hash",
                (*at, "hash"),
                "lock again: without a hash nobody knows what is fetched",
            )
        if not isinstance(depends, dict):
            raise self._bad(f"package {name}: dependencies: no mapping", (*at, "dependencies"))
        return LockedPackage(
            name=name,
            version=item["version"],
            manager=manager,
            platform=item["platform"],
            url=item["url"],
            sha256=sha256.lower() if sha256 else None,
            md5=md5.lower() if md5 else None,
            dependencies={str(k): str(v) if v is not None else "" for k, v in depends.items()},
            category=str(item.get("category", "main")),
            optional=bool(item.get("optional", False)),
        )

    def _bad(self, message: str, keys: tuple[str | int, ...], hint: str = "") -> LockError:
        at = _line(self._raw, keys)
        return LockError(
            f"{self._path}{f':{at}' if at else ''}: {message}",
            hint or "take the file from version control again, or lock again",
        )


def _line(raw: bytes, keys: tuple[str | int, ...]) -> int | None:
    """The line of a key, or of its nearest parent; looked up only when something is wrong."""
    node: yaml.Node | None = yaml.compose(raw, Loader=_LOADER)
    line = None
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == key), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
        else:
            break
    return line


def write_lock(lock: Lock, path: Path) -> Lock:
    """Writes a lock file that builder and conda-lock read; gives it as read back, with its digest.

    The same lock gives the same bytes: nothing of time, machine or user goes in.

    Raises:
        SpaceError: the folder cannot be written, or is full.
    """
    custom = dict(lock.custom)
    if lock.base:
        custom |= {_BASE: lock.base.reference, _BASE_DIGEST: lock.base.digest}
    metadata = {
        "content_hash": dict(sorted(lock.content_hash.items())),
        "channels": [
            {"url": c, "used_env_vars": sorted(set(re.findall(r"\$\{?(\w+)", c)))} for c in lock.channels
        ],
        "platforms": list(lock.platforms),
        "sources": list(lock.sources),
        **({"custom_metadata": dict(sorted(custom.items()))} if custom else {}),
    }
    order = sorted(lock.packages, key=lambda p: (p.manager, p.name, p.platform, p.category))
    data = {"version": 1, "metadata": metadata, "package": [_item(p) for p in order]}
    # The writer in Python, not libyaml's: the lock's digest goes into the image, so no library of the host may change a byte.
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    target = path.name.removesuffix(".lock.yml").rpartition(".")[2] if path.name.endswith(".lock.yml") else ""
    raw = (_HEADER.format(target=target).replace(" \n", "\n") + text).encode()
    write_atomic(path, raw)
    return parse_lock(raw, path)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _item(package: LockedPackage) -> Mapping[str, Any]:
    hashes = {"md5": package.md5, "sha256": package.sha256}
    return {
        "name": package.name,
        "version": package.version,
        "manager": package.manager,
        "platform": package.platform,
        "dependencies": dict(sorted(package.dependencies.items())),
        "url": redact(package.url),
        "hash": {k: v for k, v in hashes.items() if v},
        "category": package.category,
        "optional": package.optional,
    }
