"""The classes of all runtimes."""

from __future__ import annotations

from collections.abc import Mapping

from builder.lock.config.recipe import Recipe

from .engines import DockerRuntime, EngineRuntime, PodmanHpcRuntime
from .own import OwnRuntime
from .plugins import ContainerEngine, Pyxis
from .runtime import ContainerRuntime
from .sif import SifRuntime

#: By the name of a runtime that differs from its family, or else of the family.
_CLASSES: Mapping[str, type[ContainerRuntime]] = {
    "podman-hpc": PodmanHpcRuntime,
    "docker": DockerRuntime,
    "engine": EngineRuntime,
    "sif": SifRuntime,
    "edf": ContainerEngine,
    "plugin": Pyxis,
    "own": OwnRuntime,
}


def runtime_of(recipe: Recipe) -> ContainerRuntime:
    """Return the runtime of a target's site."""
    settings = recipe.site.runtime
    return (_CLASSES.get(settings.kind) or _CLASSES[settings.family])(recipe)
