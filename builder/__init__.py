"""builder: container images from conda environments, verified to run at full speed on the target
GPU.

This module is the public Python API, and ``docs/cli.md`` lists its names. Everything else may change
in any release. A program that builds the target ``cpu`` of the current folder and publishes it::

    from builder import Project, PublishOptions, publish

    project = Project.find()
    recipe = project.recipe("cpu")
    result = project.build(recipe)  # locks first if there is no lock file
    print(project.place(result))  # into dist/
    published = publish(project, result, PublishOptions(to="oci:published"))
    print(published.digest, published.tags)

Names are imported when they are used, so that ``import builder`` stays fast; ``__init__.pyi`` lists
them. Old versions of Python can read this module: :mod:`builder.core.version` reports them.
"""

import importlib
from pathlib import Path
from typing import Any

from builder.core.version import __version__

_STUB = Path(__file__).with_suffix(".pyi").read_text("utf-8").splitlines()
#: The module that defines each public name: "from MODULE import NAME as NAME".
_MODULES = {line.split()[3]: line.split()[1] for line in _STUB if line.startswith("from ")}

__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'builder' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
