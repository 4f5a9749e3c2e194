"""builder: container images from conda environments, verified to run at full speed on the target
GPU.

This module is the public Python API; ``docs/cli.md`` shows how to use it. Everything else may
change in any release. Names are imported when they are used, so that ``import builder`` stays fast.
Old versions of Python can read this module: :mod:`builder.core.version` reports them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from builder.core.version import __version__

if TYPE_CHECKING:
    from builder.build.engines.base import BuildResult as BuildResult
    from builder.core.errors import BuilderError as BuilderError
    from builder.core.model import Lock as Lock
    from builder.core.settings import Settings as Settings
    from builder.core.stages import BuildOptions as BuildOptions
    from builder.core.stages import LockOptions as LockOptions
    from builder.deliver.doctor import Finding as Finding
    from builder.deliver.doctor import examine_host as examine_host
    from builder.deliver.launch.images import target_images as target_images
    from builder.deliver.launch.smoke import SmokeOutcome as SmokeOutcome
    from builder.deliver.launch.smoke import SmokeRequest as SmokeRequest
    from builder.deliver.launch.smoke import smoke_target as smoke_target
    from builder.deliver.project import Project as Project
    from builder.deliver.publishing.publish import Published as Published
    from builder.deliver.publishing.publish import PublishOptions as PublishOptions
    from builder.deliver.publishing.publish import publish as publish
    from builder.deliver.smoke.options import SmokeOptions as SmokeOptions
    from builder.deliver.smoke.run import SmokeReport as SmokeReport
    from builder.lock.config.recipe import Recipe as Recipe

#: The module that defines each public name.
_MODULES = {
    "BuildOptions": "builder.core.stages",
    "BuildResult": "builder.build.engines.base",
    "BuilderError": "builder.core.errors",
    "Finding": "builder.deliver.doctor",
    "Lock": "builder.core.model",
    "LockOptions": "builder.core.stages",
    "Project": "builder.deliver.project",
    "PublishOptions": "builder.deliver.publishing.publish",
    "Published": "builder.deliver.publishing.publish",
    "Recipe": "builder.lock.config.recipe",
    "Settings": "builder.core.settings",
    "SmokeOptions": "builder.deliver.smoke.options",
    "SmokeReport": "builder.deliver.smoke.run",
    "SmokeRequest": "builder.deliver.launch.smoke",
    "SmokeOutcome": "builder.deliver.launch.smoke",
    "target_images": "builder.deliver.launch.images",
    "examine_host": "builder.deliver.doctor",
    "publish": "builder.deliver.publishing.publish",
    "smoke_target": "builder.deliver.launch.smoke",
}

__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'builder' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
