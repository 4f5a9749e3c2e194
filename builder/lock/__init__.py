"""Solves environment files, and reads and writes lock files in conda-lock's format.

No solver is imported before one is needed: reading and checking a lock is fast.

================  =======================================================================
module            what it does
================  =======================================================================
``spec``          the content of an environment file, whatever its format
``environment``   reads environment files
``manifests``     reads ``pyproject.toml``, ``pixi.toml`` and requirements as environment files
``tomlfile``      reads TOML files of other tools
``inputs``        records in the lock what it was made from; reports why a lock is stale
``file``          reads and writes lock files
``solve``         :func:`lock_target`: from a recipe to a lock
``imported``      makes builder's lock from the lock of another tool
``groups``        chooses what of a lock goes into the image
``condalock``     solves with conda-lock, which runs conda or micromamba
``channels``      finds the conda channels of an environment
``conda``         solves conda packages with rattler
``indexes``       finds the package indexes and find-links of an environment
``pip``           solves pip packages on top of the conda packages
``uv``            runs uv for that
``wheels``        chooses the wheel of each pip package
``names``         maps names of conda packages to names of PyPI projects
``urls``          environment variables in URLs
================  =======================================================================
"""

from __future__ import annotations

from builder.lock.environment import find_links, read_environment
from builder.lock.file import parse_lock, read_lock, write_lock
from builder.lock.inputs import stale_reasons
from builder.lock.solve import lock_target
from builder.lock.spec import Environment, Spec

__all__ = [
    "Environment",
    "Spec",
    "find_links",
    "lock_target",
    "parse_lock",
    "read_environment",
    "read_lock",
    "stale_reasons",
    "write_lock",
]
