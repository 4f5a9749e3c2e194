"""Stubs: wheels with metadata only, in place of packages that uv must not or cannot read."""

from __future__ import annotations

import zipfile
from pathlib import Path


def write_stub(folder: Path, name: str, version: str) -> Path:
    """Write a wheel with metadata only and without dependencies, and return its path."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    tags = "Wheel-Version: 1.0\nGenerator: builder\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
        wheel.writestr(f"{stem}.dist-info/WHEEL", tags)
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return path
