"""The record of ``builder pull --load ENGINE``: the image of a target in a container engine.

``builder run`` and ``builder job`` use that image, by its digest, without asking a registry. The
record is in ``dist/``; a later build or pull into ``dist/`` removes it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.errors import ImageError
from builder.store.files import space_errors, write_atomic

#: What the values become on a command line: names, and no options.
_FORMS = {
    "engine": r"[a-z][a-z-]*",
    "reference": r"\w[\w.:/@-]*",
    "image": r"\w[\w.:/-]*@sha256:[0-9a-f]+",
    "image_id": r"sha256:[0-9a-f]+",
}


@dataclass(frozen=True, slots=True)
class EnginePull:
    """An image that a container engine has pulled into its own storage."""

    engine: str
    """``docker``, ``podman`` or ``podman-hpc``."""
    reference: str
    """The user's: ``HOST/REPOSITORY:TAG``."""
    image: str
    """``HOST/REPOSITORY@sha256:...``: the manifest."""
    image_id: str
    """Digest of the image's config, by which podman's storage knows it."""


def record_pull(folder: Path, target: str, pull: EnginePull) -> None:
    """Record a pull.

    Args:
        folder: the project's ``dist/``.
        target: the target's name.
        pull: what was pulled.

    Raises:
        SpaceError: the disk is full.
        BuilderError: the folder cannot be written to.
    """
    write_atomic(_file(folder, target), json.dumps(asdict(pull), indent=2).encode())


def recorded_pull(folder: Path, target: str) -> EnginePull | None:
    """Return the last pull into an engine, if nothing was built or pulled into ``dist/`` after it.

    Raises:
        ImageError: the record is damaged.
    """
    path = _file(folder, target)
    try:
        values = json.loads(path.read_text())
        for name, form in _FORMS.items():
            if not re.fullmatch(form, values[name], re.ASCII):
                raise ValueError(f"{name}: {values[name]!r}")
        return EnginePull(**{name: values[name] for name in _FORMS})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise ImageError(f"{path} cannot be read: {e}", f"remove the file: rm {path}") from None


def forget_pull(folder: Path, target: str) -> None:
    """Remove the record, if there is one.

    Raises:
        BuilderError: the folder cannot be written to.
    """
    with space_errors(folder):
        _file(folder, target).unlink(missing_ok=True)


def _file(folder: Path, target: str) -> Path:
    return folder / f"{target}.pulled.json"
