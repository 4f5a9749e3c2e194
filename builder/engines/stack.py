"""The layers of an image while it is built, and the steps that run over those so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from builder.engines.base import BuildRequest
from builder.engines.prepare import Inputs
from builder.image.config import environment
from builder.model import Layer

if TYPE_CHECKING:
    from builder.steps.compare import StepDifference
    from builder.steps.job import StepRun


class Stack:
    """Builder's layers over the base, from the bottom up.

    Args:
        request: the build.
        inputs: its base.
        env: variables that activating the environment sets.
    """

    def __init__(self, request: BuildRequest, inputs: Inputs, env: Mapping[str, str]) -> None:
        self.layers: list[Layer] = []
        self.differences: list[StepDifference] = []
        """What a second run of the steps left otherwise, if the request asks for one."""
        self._request = request
        self._inputs = inputs
        self._env = env
        self._base: tuple[Layer, ...] | None = None

    def run(self, step: StepRun) -> None:
        """Runs a step over the layers so far, unless the cache has its layer; adds the layer.

        Raises:
            ImageError, RunnerError, FetchError, SpaceError: See :func:`builder.steps.cache.cached_step`.
        """
        # imported here: most targets have no steps
        from builder.steps.cache import cached_step
        from builder.steps.compare import compare_layers
        from builder.steps.image import image_of
        from builder.steps.run import run_step

        request, recipe = self._request, self._request.recipe
        image = image_of(
            (*self._base_layers(), *self.layers),
            environment(self._inputs.base, recipe, request.lock, self._env),
            architecture=recipe.architecture,
            target=recipe.name,
        )
        settings, store, reporter = request.settings, request.store, request.reporter
        compression = recipe.layers.compression
        layer = cached_step(image, step, settings, store, reporter, compression=compression)
        if request.check_steps:
            again = run_step(image, step, settings, store, reporter, compression=compression)
            self.differences += compare_layers(step.name, layer, again, store)
        self.layers.append(layer)

    def _base_layers(self) -> tuple[Layer, ...]:
        """The layers of the base; for a SIF, its partitions as layers."""
        base, request = self._inputs.base, self._request
        if self._base is None:
            self._base = base.layers
            if base.sif is not None:
                from builder.image.convert import sif_to_oci

                below = sif_to_oci(base.sif, request.settings, request.store, request.reporter)
                self._base = (*below.layers, *base.layers)
        return self._base
