"""The licences that a package declares: in ``info/index.json`` of conda, in METADATA of a wheel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from email.message import Message
from email.parser import HeaderParser
from typing import TYPE_CHECKING, Any

from builder.core.redact import redact
from builder.formats.layers import bounds

if TYPE_CHECKING:
    from .wheel_archive import WheelArchive

#: The longest licence, in characters: some wheels have a whole text in METADATA.
_MAX_TEXT = 500


def wheel_metadata(wheel: WheelArchive) -> Message:
    """Return the headers of a wheel's METADATA.

    Raises:
        LayerError: the archive is damaged.
    """
    raw = wheel.read(wheel.metadata("METADATA"), bounds.MAX_LISTING)
    return HeaderParser().parsestr(raw.decode(errors="replace"))


def conda_licences(index: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the licences in a conda package's ``info/index.json``."""
    return listed([str(index.get("license") or "")])


def wheel_licences(metadata: Message) -> tuple[str, ...]:
    """Return ``License-Expression`` (PEP 639), a short ``License``, or else the classifiers.

    A long ``License`` is the text of one; its first line is used if there is no classifier.
    """
    text = str(metadata.get("License-Expression") or metadata.get("License", "")).strip()
    if text not in ("", "UNKNOWN") and "\n" not in text and len(text) <= _MAX_TEXT:
        return listed([text])
    classifiers = [c.split(" :: ") for c in metadata.get_all("Classifier", [])]
    names = [c[-1] for c in classifiers if c[0] == "License" and c[-1] != "OSI Approved"]
    return listed(names or text.splitlines()[:1])


def licence_choice(declared: Sequence[str]) -> list[dict[str, Any]]:
    """Return declared licences as CycloneDX has them: an SPDX id or expression, else names."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    names = [{"license": {"name": name}} for name in declared]
    if len(declared) != 1:
        return names
    try:
        text = canonicalize_license_expression(declared[0])
    except InvalidLicenseExpression:
        return names
    if re.search(r"[\s+]|^LicenseRef-", text):
        return [{"expression": text}]
    return [{"license": {"id": text}}]


def listed(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts that name a licence, each on one line and without credentials."""
    return tuple(text for text in map(_one_line, texts) if text not in ("", "UNKNOWN"))


def _one_line(text: str) -> str:
    """Return a text that any JSON file can hold, without credentials."""
    words = text[: 8 * _MAX_TEXT].encode(errors="replace").decode().split()
    return redact(" ".join(words))[:_MAX_TEXT]
