"""The record of a pull: which image of a target is the newest, if it was not built here.

``builder pull`` writes it into ``dist/``, for an image that it put there or that a container engine
pulled. ``builder run`` and ``builder job`` use that image, by its digest, without asking a
registry. The next pull replaces the record, and the next build removes it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import StringConstraints, TypeAdapter, ValidationError

from builder.core.errors import ImageError
from builder.core.store.files import space_errors
from builder.formats.oci.layout import write_if_changed
from builder.lock.config.explain import first_problem

#: The name of an image of a registry: a word of a command line, and no option.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@-]*")


def _form(pattern: str) -> StringConstraints:
    """Return the form of a value that becomes a word of a command line: a name, and no option."""
    return StringConstraints(pattern=f"^{pattern}$")


@dataclass(frozen=True, slots=True)
class Pull:
    """An image that was pulled."""

    reference: str
    """Where it came from: ``HOST/REPOSITORY:TAG`` or ``oci:DIR:TAG``."""
    image: Annotated[str, _form("([A-Za-z0-9_][A-Za-z0-9_.:/-]*@)?sha256:[0-9a-f]+")]
    """In an engine ``HOST/REPOSITORY@sha256:...``, in ``dist/`` the digest: of the manifest."""
    engine: Annotated[str, _form("([a-z][a-z-]*)?")] = ""
    """``docker``, ``podman`` or ``podman-hpc``, whose storage has it; empty: it is in ``dist/``."""
    image_id: Annotated[str, _form("(sha256:[0-9a-f]+)?")] = ""
    """Digest of the image's config, by which podman's storage knows it; empty in ``dist/``."""

    def __post_init__(self) -> None:
        """Raise ValueError for an engine's image without all its names there."""
        is_named = self.image_id and "@" in self.image and _NAME.fullmatch(self.reference)
        if self.engine and not is_named:
            raise ValueError("the image in the engine has no complete name")


def record_pull(folder: Path, target: str, pull: Pull) -> None:
    """Record a pull, unless the record says so already.

    Args:
        folder: the project's ``dist/``, or another layout that an image was pulled into.
        target: the target's name.
        pull: what was pulled.

    Raises:
        SpaceError: the disk is full.
        BuilderError: the folder cannot be written to.
    """
    data = json.dumps(asdict(pull), indent=2).encode()
    with space_errors(folder):
        write_if_changed(_file(folder, target), data, durable=True)


def recorded_pull(folder: Path, target: str) -> Pull | None:
    """Return the last pull of a target, if nothing was built after it.

    Raises:
        ImageError: the record is damaged.
    """
    path = _file(folder, target)
    try:
        return TypeAdapter(Pull).validate_json(path.read_bytes(), strict=True)
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
