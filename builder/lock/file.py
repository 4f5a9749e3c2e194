"""Lock files in conda-lock's format, version 1.

The goals of the format:

- **Complete.** A build needs the lock, the recipe and the named bytes, and asks no solver or index:
  each package has its version, URL and hash, and ``builder.*`` keys have the base image's digest,
  the sources of built wheels and what was asked for (:mod:`builder.lock.record`).
- **Small differences.** Packages and keys have a fixed order, and nothing in the file depends on
  the machine: the same lock is written as the same bytes, whose digest is part of images, and a
  lock that did not change keeps its date. A change of one package changes its entry.
- **Verifiable.** A download counts only with its hash, whatever host it comes from. Names, versions
  and URLs become parts of paths and scripts, so they are checked when they are read.
- **Readable by others, and for long.** conda-lock and micromamba install the file: builder's own
  keys are in ``custom_metadata``, which they ignore. Files of conda-lock 1 to 4 and of earlier
  builders are read; an unknown version is refused with the line to type.
"""

from __future__ import annotations

import logging
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, Field, ValidationError, field_validator
from pydantic import ValidationInfo as Info

from builder.core.datafiles import read_beside
from builder.core.errors import ConfigError, LockError
from builder.core.markers import ARCHITECTURES
from builder.core.model import MAIN, Lock, LockedPackage
from builder.core.redact import redact
from builder.core.settings import seconds_of
from builder.core.store.files import write_atomic
from builder.core.store.reading import Reader
from builder.formats.net.urlvariables import variables_in
from builder.formats.oci.digest import sha256

from .config.explain import first_problem
from .config.safeyaml import MAX_BYTES, load
from .config.yamlfile import Key, not_yaml, parse_yaml
from .othertools import CONDA_LOCK, other_file
from .record import TIME, RecordError, custom_metadata, read_custom
from .sourcerecords import TEXT, with_sources

log = logging.getLogger(__name__)

#: The folder of a conda package in its channel, and the file name of a package, both from its URL.
_SUBDIR = re.compile(r"[a-z0-9-]+")
_FILENAME = re.compile(r"[A-Za-z0-9_][^/\\\s]*")
_TIME = re.compile(r"[12]\d{3}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
_RESTORE = "restore the file from version control, or lock again: builder lock"
#: Bytes of a file that is not a lock file in which builder looks for what it is.
_LOOKED_AT = 100_000

# Part of the lock's digest: every change changes the digests of all new locks and images.
_HEADER = read_beside(__file__, "lock_header.txt")


def read_lock(path: Path) -> Lock:
    """Read a lock file of builder or of conda-lock 1 to 4 (format version 1).

    Raises:
        LockError: the file is missing or damaged, has another format, or a package without a hash.
            The message names file, line and key.
    """
    return parse_lock(lock_bytes(path, "create it: builder lock"), path)


def lock_bytes(path: Path, create: str) -> bytes:
    """Return the content of a lock file.

    Args:
        path: the file.
        create: the hint for a file that does not exist.

    Raises:
        LockError: it cannot be read, or has more than 16 MiB.
    """
    return Reader(LockError, _RESTORE, MAX_BYTES, "lock file").read(path, create)


def parse_lock(raw: bytes, path: Path) -> Lock:
    """Return the lock in the bytes of a file at ``path``. Raises as :func:`read_lock`."""
    try:
        data = load(raw)
    except yaml.YAMLError as e:
        if refused := _of_other_tool(raw, path):
            raise refused from None
        raise LockError(not_yaml(path, e, raw.decode(errors="replace")).message, _RESTORE) from None
    return _LockReader(raw, path).read(data)


def _of_other_tool(raw: bytes, path: Path) -> LockError | None:
    """Return the error for a file of another tool; None if it is not known to be one."""
    found = other_file(path, raw[:_LOOKED_AT].decode(errors="replace"))
    if found is None or found.what == CONDA_LOCK.what:
        return None
    return LockError(f"{path}: this is {found.what}, not a lock file of conda-lock", found.hint)


def _word(value: str) -> str:
    """Check a name, version or URL: it becomes a part of file names, requirements and scripts."""
    if not TEXT.fullmatch(value):
        raise ValueError("has a blank, a control character or too many characters")
    return value


_Word = Annotated[str, AfterValidator(_word)]
_LOWER = AfterValidator(str.lower)


class _Hashes(BaseModel):
    sha256: Annotated[str, Field(pattern="(?i)^[0-9a-f]{64}$"), _LOWER] | None = None
    md5: Annotated[str, Field(pattern="(?i)^[0-9a-f]{32}$"), _LOWER] | None = None


class LockEntry(BaseModel):
    """An entry of ``package:``. Its fields may become parts of file names."""

    name: _Word
    manager: Literal["conda", "pip"]
    version: _Word
    platform: _Word
    url: _Word
    hash: Annotated[_Hashes, Field(validate_default=True)] = _Hashes()
    dependencies: dict[str, str | None] | None = None
    category: str = MAIN
    optional: bool = False

    @field_validator("url")
    @classmethod
    def _is_in_its_folder(cls, url: str, info: Info) -> str:
        is_conda = info.data.get("manager") == "conda"
        if not is_package_url(url, is_conda=is_conda):
            raise ValueError(f"does not end with {'SUBDIR/FILE' if is_conda else 'a file name'}")
        if is_conda and not url.endswith((".conda", ".tar.bz2")):
            raise ValueError("is no conda package, whose file ends with .conda or .tar.bz2")
        return url

    @field_validator("hash", mode="wrap")
    @classmethod
    def _has_one(cls, value: Any, valid: Callable[[Any], _Hashes], info: Info) -> _Hashes:
        if info.data.get("manager") == "pip" and info.data.get("url", "").startswith("git+"):
            # a build refuses it; conda-lock 2.5 to 4 store the commit as "sha256"
            return _Hashes()
        hashes = valid(value)
        if not hashes.sha256 and not hashes.md5:
            raise ValueError("no hash: without one a download cannot be verified")
        return hashes

    def locked(self) -> LockedPackage:
        """Return the package as other rooms take it."""
        values = self.model_dump(exclude={"hash", "dependencies"})
        sha256, md5 = self.hash.sha256, self.hash.md5
        needs = {name: spec or "" for name, spec in (self.dependencies or {}).items()}
        return LockedPackage(**values, sha256=sha256, md5=md5, dependencies=needs)


class _Metadata(BaseModel):
    platforms: list[str]
    channels: list[Any] | None = None
    sources: list[str] | None = None
    content_hash: dict[str, str] | None = None
    custom_metadata: dict[str, str] | None = None
    time_metadata: Any = None


class _LockText(BaseModel):
    metadata: _Metadata
    package: list[Any]


_M = TypeVar("_M", bound=BaseModel)


class _LockReader:
    """Checks the data of a lock file and names what is wrong with it."""

    def __init__(self, raw: bytes, path: Path) -> None:
        self._raw = raw
        self._path = path

    def read(self, data: Any) -> Lock:
        if not isinstance(data, dict) or "package" not in data:
            if not self._raw.strip() or self._raw.startswith(_HEADER[:40].encode()):
                raise LockError(f"{self._path}: empty or cut off: it has no package:", _RESTORE)
            raise _of_other_tool(self._raw, self._path) or LockError(
                f"{self._path}: not a lock file of conda-lock",
                "a lock file has the keys version:, metadata: and package:; create one: builder lock",
            )
        version = data.get("version")
        if version != 1:
            raise self._error(
                f"lock format version {reprlib.repr(version)}; builder reads version 1",
                ("version",),
                "lock again with builder lock, or with conda-lock 1 to 4",
            )
        return self._lock(self._valid(_LockText, data))

    def _lock(self, file: _LockText) -> Lock:
        meta = file.metadata
        try:
            record, base, sources = read_custom(meta.custom_metadata or {})
        except RecordError as e:
            raise self._error(str(e), ("metadata", "custom_metadata", e.key)) from None
        created = record.created or _created_elsewhere(meta.time_metadata)
        return Lock(
            packages=with_sources(list(self._packages(file.package)), sources),
            platforms=tuple(meta.platforms),
            channels=tuple(_channel(channel) for channel in meta.channels or ()),
            sources=tuple(meta.sources or ()),
            content_hash=meta.content_hash or {},
            record=replace(record, created=created),
            base=base,
            digest=sha256(self._raw),
            text=self._raw,
        )

    def _packages(self, items: list[Any]) -> Iterator[LockedPackage]:
        """Yield the packages, without virtual ones: conda-lock filters them, version 1 wrote them.

        What is wrong with an entry for a platform that builder does not build for stops no build.
        """
        for position, item in enumerate(items):
            if isinstance(item, dict) and str(item.get("name")).startswith("__"):
                continue
            if isinstance(item, dict) and str(item.get("platform")) not in ARCHITECTURES:
                with suppress(ValidationError, LockError):
                    yield LockEntry.model_validate(item).locked()
                continue
            yield self._valid(LockEntry, item, "package", position).locked()

    def _valid(self, model: type[_M], data: Any, *keys: str | int) -> _M:
        try:
            return model.model_validate(data)
        except ValidationError as e:
            below, problem = first_problem(e)
        if keys:
            name = data.get("name") if isinstance(data, dict) else keys[-1]
            problem = f"package {name}: {problem}"
        raise self._error(problem, (*keys, *below))

    def _error(self, message: str, keys: tuple[Key, ...], hint: str = _RESTORE) -> LockError:
        where = str(self._path)
        with suppress(ConfigError):  # a key appears twice, which other readers allow
            where = parse_yaml(self._path, self._raw.decode()).where(*keys)
        return LockError(f"{where}: {message}", hint)


def is_package_url(url: str, *, is_conda: bool) -> bool:
    """Return whether the file name of a URL stays in the folders into which packages are put."""
    try:
        path = urlsplit(url).path
        filename = unquote(path, errors="strict").rsplit("/", 1)[-1]
    except ValueError:
        return False
    subdir = path.split("/")[-2] if path.count("/") else ""
    return bool(_FILENAME.fullmatch(filename) and (not is_conda or _SUBDIR.fullmatch(subdir)))


def _created_elsewhere(times: Any) -> str:
    """Return the time of a lock of conda-lock (``time_metadata``, on request); empty if unknown."""
    text = str(times.get("created_at", "")) if isinstance(times, dict) else ""
    return text if _TIME.fullmatch(text) else ""


def _channel(channel: Any) -> str:
    """Return a channel's URL; conda-lock writes ``{url: ..., used_env_vars: [...]}`` or the URL."""
    return str(channel.get("url", "")) if isinstance(channel, dict) else str(channel)


def write_lock(lock: Lock, path: Path) -> Lock:
    """Write a lock file that builder and conda-lock read, and return it as read back.

    The same lock has the same bytes: they depend neither on time nor on machine or user.

    Raises:
        SpaceError: the disk is full.
        BuilderError: the folder cannot be written to.
    """
    raw = _rendered(lock, path)
    write_atomic(path, raw, durable=True)
    return parse_lock(raw, path)


def earlier_lock(path: Path) -> Lock | None:
    """Return the lock of a file; None if there is no file, or if it is damaged."""
    try:
        return read_lock(path)
    except LockError:
        return None


def replace_lock(lock: Lock, path: Path) -> Lock:
    """Write a new lock with its date. Returns and raises as :func:`write_lock`."""
    made = write_lock(dated(lock, path), path)
    log.info("%s is written, %s", path, made.digest)
    return made


def dated(lock: Lock, path: Path, now: datetime | None = None) -> Lock:
    """Return the lock with its date, which is the creation time of the images made from it.

    A date must not make two equal locks differ. So it comes from the sources if they have one: with
    ``conda.exclude_newer`` it is the time before which all conda packages were published. Otherwise
    the day of locking is written into the lock once, and stays as long as a new solve returns the
    same lock. It is the day and not the second, so that two machines that lock on one day write the
    same bytes.

    Args:
        lock: a new one.
        path: where it will be written. If the lock there is the same but for its date, that date is
            kept.
        now: the time of locking; default: the current one.
    """
    now = now or datetime.now(UTC)
    cutoff = seconds_of(lock.record.solved_before)
    if cutoff is not None and cutoff <= now.timestamp():
        return replace(lock, record=replace(lock.record, created=""))
    previous = earlier_lock(path)
    if previous and previous.record.created:
        kept = replace(lock, record=replace(lock.record, created=previous.record.created))
        if sha256(_rendered(kept, path)) == previous.digest:
            return kept
    today = now.replace(hour=0, minute=0, second=0).strftime(TIME)
    return replace(lock, record=replace(lock.record, created=today))


def _rendered(lock: Lock, path: Path) -> bytes:
    """Return the bytes of a lock file."""
    metadata: dict[str, Any] = {
        "content_hash": dict(sorted(lock.content_hash.items())),
        "channels": [{"url": c, "used_env_vars": sorted(variables_in(c))} for c in lock.channels],
        "platforms": list(lock.platforms),
        "sources": list(lock.sources),
    }
    if custom := custom_metadata(lock):
        metadata["custom_metadata"] = custom
    packages = sorted(lock.packages, key=lambda p: (p.manager, p.name, p.platform, p.category))
    data = {"version": 1, "metadata": metadata, "package": [_item(package) for package in packages]}
    # PyYAML's writer in Python, not the one in C: the lock's digest goes into the image, and no version of
    # libyaml on this machine may change a byte.
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    return (_header(path) + text).encode()


def _header(path: Path) -> str:
    """Return the comment at the top, with the target of ``ENVIRONMENT.TARGET.lock.yml``."""
    target = ""
    if path.name.endswith(".lock.yml"):
        target = path.name.removesuffix(".lock.yml").rpartition(".")[2]
    return _HEADER.format(target=target).replace(" \n", "\n")


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
        "hash": {kind: value for kind, value in hashes.items() if value},
        "category": package.category,
        "optional": package.optional,
    }
