"""The record of ``builder pull --load ENGINE``: the image of a target in a container engine.

``builder run`` and ``builder job`` use that image, by its digest, without asking a registry. The
record is in ``dist/``; a later build or pull into ``dist/`` removes it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import StringConstraints, TypeAdapter, ValidationError

from builder.core.errors import ImageError
from builder.core.store.files import space_errors, write_atomic
from builder.lock.config.explain import first_problem


def _form(pattern: str) -> StringConstraints:
    """Return the form of a value that becomes a word of a command line: a name, and no option."""
    return StringConstraints(pattern=f"^{pattern}$")


@dataclass(frozen=True, slots=True)
class EnginePull:
    """An image that a container engine has pulled into its own storage."""

    engine: Annotated[str, _form("[a-z][a-z-]*")]
    """``docker``, ``podman`` or ``podman-hpc``."""
    reference: Annotated[str, _form("[A-Za-z0-9_][A-Za-z0-9_.:/@-]*")]
    """The user's: ``HOST/REPOSITORY:TAG``."""
    image: Annotated[str, _form("[A-Za-z0-9_][A-Za-z0-9_.:/-]*@sha256:[0-9a-f]+")]
    """``HOST/REPOSITORY@sha256:...``: the manifest."""
    image_id: Annotated[str, _form("sha256:[0-9a-f]+")]
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
        return TypeAdapter(EnginePull).validate_json(path.read_bytes(), strict=True)
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as e:
        reason = first_problem(e)[1] if isinstance(e, ValidationError) else e
        raise ImageError(
            f"{path} cannot be read: {reason}", f"remove the file: rm {path}"
        ) from None


def forget_pull(folder: Path, target: str) -> None:
    """Remove the record, if there is one.

    Raises:
        BuilderError: the folder cannot be written to.
    """
    with space_errors(folder):
        _file(folder, target).unlink(missing_ok=True)


def _file(folder: Path, target: str) -> Path:
    return folder / f"{target}.pulled.json"
