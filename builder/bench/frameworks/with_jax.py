"""JAX for the benchmark."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Callable

from ..core import Item
from ..machine.files import names
from .base import MOMENTUM, Framework, Predict, Step, device_index

_PLUGIN = re.compile(r"jax[-_](cuda|rocm)(\d*)[-_](?:plugin|pjrt)", re.IGNORECASE)
_CONDA_BUILD = re.compile(r"jaxlib-.*-(cuda|rocm)(\d*).*\.json")


class Jax(Framework):
    """JAX, with all that its installed plugins offer."""

    name = "jax"

    def __init__(self) -> None:
        # Other processes of the test use the same GPU: JAX must not take most of its memory at once.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax
        import jax.numpy

        self.module = jax

    @property
    def _devices(self) -> list[Any]:
        devices: list[Any] = self.module.devices()
        return devices

    @property
    def build(self) -> str:
        first = self._devices[0]
        if first.platform in ("gpu", "cuda", "rocm"):
            about = f"{first.platform} {first.client.platform_version}".lower()
            return "HIP" if "rocm" in about else "CUDA"
        kind = _plugin()[0]
        return {"cuda": "CUDA", "rocm": "HIP"}.get(kind, "CPU")

    @property
    def runtime(self) -> str:
        about = str(self._devices[0].client.platform_version)
        found = re.search(r"(?:cuda|rocm)\s+(\d+)(\d\d)\d\b", about)  # "cuda 12080" is 12.8
        if found:
            return f"{found[1]}.{int(found[2])}"
        return _plugin()[1]

    @property
    def gpus(self) -> int:
        return len([device for device in self._devices if device.platform in ("gpu", "cuda", "rocm")])

    def describe_gpu(self, index: int) -> Item:
        device = self._devices[index]
        capability = str(getattr(device, "compute_capability", "") or "unknown")
        if re.fullmatch(r"\d+\.\d+", capability):
            capability = "sm_" + capability.replace(".", "")
        return {"name": str(device.device_kind), "architecture": capability.split(":")[0]}

    def _put(self, device: str, *arrays: Any) -> list[Any]:
        place = self._devices[max(device_index(device), 0)]
        return [self.module.device_put(array, place) for array in arrays]

    def product(self, a: Any, b: Any, precision: str, device: str) -> tuple[Callable[[], None], Any]:
        jax, jnp = self.module, self.module.numpy
        x, y = self._put(device, a, b)
        if precision == "bf16":
            x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
        multiply = jax.jit(lambda x, y: jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST))

        def again() -> None:
            multiply(x, y).block_until_ready()

        import numpy

        return again, numpy.asarray(multiply(x, y).astype(jnp.float32))

    def train(self, weights: list[Any], rate: float, device: str) -> tuple[Step, Predict]:
        jax, jnp = self.module, self.module.numpy

        def scores(parameters: Any, images: Any) -> Any:
            first, bias, second, bias2 = parameters
            return jnp.maximum(images @ first + bias, 0) @ second + bias2

        def loss(parameters: Any, images: Any, labels: Any) -> Any:
            logarithms = jax.nn.log_softmax(scores(parameters, images))
            return -jnp.take_along_axis(logarithms, labels[:, None], axis=1).mean()

        def update(parameters: Any, speeds: Any, images: Any, labels: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(parameters, images, labels)
            speeds = [MOMENTUM * speed + gradient for speed, gradient in zip(speeds, gradients)]
            return value, [p - rate * speed for p, speed in zip(parameters, speeds)], speeds

        compiled = jax.jit(update)
        state = [self._put(device, *weights), self._put(device, *[0 * weight for weight in weights])]

        def step(images: Any, labels: Any) -> float:
            value, *state[:] = compiled(*state, *self._put(device, images, labels))
            return float(value)

        def predict(images: Any) -> Any:
            import numpy

            return numpy.asarray(scores(state[0], *self._put(device, images)).argmax(1))

        return step, predict


def _plugin() -> tuple[str, str]:
    """``cuda`` or ``rocm`` and its version, of the installed plugin or conda build; two empty texts: none."""
    from importlib.metadata import distributions

    for distribution in distributions():
        found = _PLUGIN.match(distribution.metadata["Name"] or "")
        if found:
            return found[1].lower(), found[2]
    for name in names(os.path.join(sys.prefix, "conda-meta")):
        found = _CONDA_BUILD.match(name)
        if found:
            return found[1], found[2]
    return "", ""
