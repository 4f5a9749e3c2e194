"""TensorFlow and JAX: what the benchmark needs of them.

Nothing here is imported before the probe ``NAME.import`` asks for it. Both bring NumPy along.
"""

from __future__ import annotations

import os
import pkgutil
import re
from typing import Any

from .core import Item

#: The names that ``--framework`` accepts.
NAMES = ("torch", "tensorflow", "jax", "none")


class TensorFlow:
    """TensorFlow 2; without Keras, which has a version of its own."""

    name = "tensorflow"

    def __init__(self) -> None:
        # Other processes of the test use the same GPU: TensorFlow must not take all of its memory at once.
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        import tensorflow

        self.module: Any = tensorflow
        self._devices = list(tensorflow.config.list_physical_devices("GPU"))
        self.gpus = len(self._devices)
        about = dict(tensorflow.sysconfig.get_build_info())
        #: ``CUDA``, ``HIP`` or ``CPU``, and the version of CUDA or ROCm; empty if unknown.
        self.build = "CUDA" if about.get("is_cuda_build") else "CPU"
        if about.get("is_rocm_build"):
            self.build = "HIP"
        self.runtime = str(about.get("cuda_version") or about.get("rocm_version") or "")

    def describe_gpu(self, index: int) -> Item:
        """Return ``name`` and ``architecture`` of a GPU, as far as TensorFlow reports them."""
        details = self.module.config.experimental.get_device_details(self._devices[index])
        capability = details.get("compute_capability")
        known = isinstance(capability, tuple)
        architecture = "sm_" + "".join(map(str, capability[:2])) if known else "unknown"
        return {"name": str(details.get("device_name", "GPU")), "architecture": architecture}

    def product(self, a: Any, b: Any, device: str) -> Any:
        """Multiply two square matrices in float32, without TF32, on ``cpu`` or ``cuda:N``."""
        tf = self.module
        tf.config.experimental.enable_tensor_float_32_execution(False)
        with tf.device(device.replace("cpu", "/CPU:0").replace("cuda:", "/GPU:")):
            return tf.linalg.matmul(tf.constant(a), tf.constant(b)).numpy()


class Jax:
    """JAX, with all that its installed plugins offer."""

    name = "jax"

    def __init__(self) -> None:
        # Other processes of the test use the same GPU: JAX must not take most of its memory at once.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax
        import jax.numpy

        self.module: Any = jax
        self._devices = jax.devices()
        first = self._devices[0]
        self.gpus = len([d for d in self._devices if d.platform in ("gpu", "cuda", "rocm")])
        about = f"{first.platform} {first.client.platform_version}".lower()
        plugins = " ".join(module.name for module in pkgutil.iter_modules())
        is_rocm = "rocm" in (about if self.gpus else plugins)
        has_gpus = self.gpus or re.search(r"\bjax_(cuda|rocm)\d*_plugin\b", plugins)
        self.build = "CPU"
        if has_gpus:
            self.build = "HIP" if is_rocm else "CUDA"
        found = re.search(r"(?:cuda|rocm)\s+(\d+)(\d\d)\d\b", about)  # "cuda 12080" is 12.8
        self.runtime = f"{found[1]}.{int(found[2])}" if found else ""

    def describe_gpu(self, index: int) -> Item:
        """Return ``name`` and ``architecture`` of a GPU, as far as JAX reports them."""
        device = self._devices[index]
        capability = str(getattr(device, "compute_capability", "") or "unknown")
        if re.fullmatch(r"\d+\.\d+", capability):
            capability = "sm_" + capability.replace(".", "")
        return {"name": str(device.device_kind), "architecture": capability.split(":")[0]}

    def product(self, a: Any, b: Any, device: str) -> Any:
        """Multiply two square matrices in float32, without TF32, on ``cpu`` or ``cuda:N``."""
        import numpy

        jax = self.module
        place = self._devices[int(device.partition(":")[2] or 0)]
        x, y = (jax.device_put(array, place) for array in (a, b))
        return numpy.asarray(jax.numpy.matmul(x, y, precision=jax.lax.Precision.HIGHEST))


def load_framework(name: str) -> Any:
    """Import torch (and return its module), TensorFlow or JAX. Raises any exception."""
    if name == "torch":
        import torch

        torch.ones(1).sum().item()
        return torch
    return TensorFlow() if name == "tensorflow" else Jax()
