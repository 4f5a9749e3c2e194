"""Engines turn a recipe and its lock into an OCI image or a SIF. ``layered`` needs no daemon and no root, and runs nothing.

All are :class:`builder.engines.base.Engine`; each is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.engines.base import Engine

#: Names, and the class of each in the module of the same name.
ENGINES = {"layered": "Layered", "docker": "Docker", "apptainer": "Apptainer", "cotainr": "Cotainr"}


def find_engine(name: str) -> Engine:
    """The engine of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in ENGINES:
        from builder.errors import UsageError

        raise UsageError(f"no engine named {name!r}", f"engines: {', '.join(ENGINES)}")
    found: Engine = getattr(importlib.import_module(f"builder.engines.{name}"), ENGINES[name])()
    return found
