"""The licences that a package declares: in ``info/index.json`` of conda, in METADATA of a wheel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from email.message import Message
from email.parser import HeaderParser
from typing import Any

from builder.core.model import Fetched
from builder.core.redact import redact
from builder.formats.layers import bounds

from .conda_info import read_index_file
from .wheel_archive import WheelArchive

#: The longest licence, in characters: some wheels have a whole text in METADATA.
_MAX_TEXT = 500


def declared_licences(fetched: Fetched) -> tuple[str, ...]:
    """Return the licences that a package declares, each on one line; often one SPDX expression.

    Raises:
        LayerError: the archive is unsafe or damaged.
    """
    if fetched.package.manager == "conda":
        return conda_licences(read_index_file(fetched))
    with WheelArchive(fetched) as wheel:
        return wheel_licences(wheel_metadata(wheel))


def wheel_metadata(wheel: WheelArchive) -> Message:
    """Return the headers of a wheel's METADATA.

    Raises:
        LayerError: the archive is damaged.
    """
    raw = wheel.read(wheel.metadata("METADATA"), bounds.MAX_LISTING)
    return HeaderParser().parsestr(raw.decode(errors="replace"))


def conda_licences(index: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the licences in a conda package's ``info/index.json``."""
    return _listed([str(index.get("license") or "")])


def wheel_licences(metadata: Message) -> tuple[str, ...]:
    """Return ``License-Expression`` (PEP 639), a short ``License``, or else the classifiers.

    A long ``License`` is the text of one; its first line is used if there is no classifier.
    """
    text = str(metadata.get("License-Expression") or metadata.get("License", "")).strip()
    if text not in ("", "UNKNOWN") and "\n" not in text and len(text) <= _MAX_TEXT:
        return _listed([text])
    classifiers = [c.split(" :: ") for c in metadata.get_all("Classifier", [])]
    names = [c[-1] for c in classifiers if c[0] == "License" and c[-1] != "OSI Approved"]
    return _listed(names or text.splitlines()[:1])


def _listed(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(text for text in map(_one_line, texts) if text not in ("", "UNKNOWN"))


def _one_line(text: str) -> str:
    """Return a text that any JSON file can hold, without credentials."""
    words = text[: 8 * _MAX_TEXT].encode(errors="replace").decode().split()
    return redact(" ".join(words))[:_MAX_TEXT]
