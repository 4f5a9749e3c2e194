"""The user's copies of site files: ``builder sites update`` writes them, and ``--reset`` removes them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.config.sitefile import read_site
from builder.config.sites import all_site_files, load_site_from, user_folder, yaml_files
from builder.errors import ConfigError
from builder.redact import redact
from builder.settings import Settings
from builder.site.sources import read_source
from builder.store.files import space_errors, write_atomic


@dataclass(frozen=True, slots=True)
class SiteChanges:
    """What an update changed in the user's folder, as names of site files."""

    folder: Path
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def update_sites(source: str, settings: Settings, rev: str | None = None) -> SiteChanges:
    """Copies site files into the user's folder.

    All of them are validated, together with the sites that extend them, before the first one is written. Each
    file is replaced atomically, what others extend first.

    Args:
        source: see :func:`builder.site.sources.read_source`.
        settings: mirrors, and whether the network may be used.
        rev: a branch, tag or commit of a git repository.

    Raises:
        ConfigError: a site file is not valid; the message names source, file and line.
        FetchError: the source cannot be read.
        UsageError: the source is not a folder, file, repository or URL.
    """
    files = read_source(source, settings, rev)
    _validate(files, redact(source))
    folder = user_folder()
    existing = yaml_files(folder)
    added, changed, unchanged = [], [], []
    for name in sorted(files, key=lambda name: (not name.startswith("_"), name)):
        data = files[name]
        path = existing.get(name, folder / f"{name}.yaml")
        if name not in existing:
            added.append(name)
        elif path.read_bytes() == data:
            unchanged.append(name)
            continue
        else:
            changed.append(name)
        write_atomic(path, data, durable=True)
    return SiteChanges(folder, tuple(added), tuple(changed), tuple(unchanged))


def _validate(files: Mapping[str, bytes], source: str) -> None:
    """Raises ConfigError unless the new files, and all sites that extend them, are valid."""
    with tempfile.TemporaryDirectory(prefix="builder-sites-") as folder:
        staged = {name: Path(folder, f"{name}.yaml") for name in files}
        for name, path in staged.items():
            path.write_bytes(files[name])
        together = {**all_site_files(None), **staged}
        try:
            for name in (*staged, *(together.keys() - staged.keys())):
                _check(name, together)
        except ConfigError as e:
            raise ConfigError(
                e.message.replace(f"{folder}/", f"{source}: "), f"nothing was written; {e.hint}"
            ) from None


def _check(name: str, files: Mapping[str, Path]) -> None:
    """Validates a site. A file that only others extend may lack something: its values are validated there."""
    if name.startswith("_"):
        load_site_from(name, files)
    else:
        read_site(name, files)


def reset_sites() -> SiteChanges:
    """Removes the user's copies, so that the package's site files are used again."""
    folder = user_folder()
    files = yaml_files(folder)
    with space_errors(folder):
        for path in files.values():
            path.unlink()
    return SiteChanges(folder, removed=tuple(files))
