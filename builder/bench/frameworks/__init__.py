"""Frameworks other than torch, behind one interface: what the benchmark needs of TensorFlow and of JAX.

Both bring NumPy along, in which their results are checked. Nothing here is imported before the probe
``NAME.import`` asks for it.
"""

from __future__ import annotations

from typing import Callable

from .base import Framework

#: The names that ``--framework`` accepts.
NAMES = ("torch", "tensorflow", "jax", "none")


def load_framework(name: str) -> Framework:
    """Imports TensorFlow or JAX. Raises whatever the import raises."""
    return _LOADERS[name]()


def _load_tensorflow() -> Framework:
    from .with_tensorflow import TensorFlow

    return TensorFlow()


def _load_jax() -> Framework:
    from .with_jax import Jax

    return Jax()


_LOADERS: dict[str, Callable[[], Framework]] = {"tensorflow": _load_tensorflow, "jax": _load_jax}
