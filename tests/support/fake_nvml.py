"""A stand-in for NVML, compiled from fake_nvml.c, with the layouts and signatures of the real library."""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.parts import shared_library

_SOURCE = Path(__file__).with_name("fake_nvml.c")


@functools.cache
def library() -> Path:
    """The compiled library; skips the test if there is no gcc."""
    folder = tempfile.mkdtemp(prefix="builder-fake-nvml-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "libnvidia-ml.so.1"
    shared_library(_SOURCE, path, "-w")
    return path


class FakeNvml:
    """The library of a machine with one GPU at 0000:3b:00.0, an H100 at rest unless the test sets more."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        """``folder`` gets a copy of the library, whose variables are this test's own."""
        path = folder / "libnvidia-ml.so.1"
        shutil.copy(library(), path)
        load = ctypes.CDLL
        self._loaded = load(str(path))

        def find(name: Any, *arguments: Any, **keywords: Any) -> Any:
            return load(str(path) if name == path.name else name, *arguments, **keywords)

        patch.setattr(ctypes, "CDLL", find)

    def set(self, **values: int) -> None:
        """Sets variables, ``clock=735`` for example."""
        for name, value in values.items():
            wide = name in ("reasons", "used")
            kind = ctypes.c_ulonglong if wide else ctypes.c_int
            kind.in_dll(self._loaded, "fake_" + name).value = value
