"""TensorFlow for the benchmark."""

from __future__ import annotations

import os
from typing import Any, Callable

from ..core import Item
from .base import MOMENTUM, Framework, Predict, Step, device_index


class TensorFlow(Framework):
    """TensorFlow 2; without Keras, which has a version of its own."""

    name = "tensorflow"

    def __init__(self) -> None:
        # Other processes of the test use the same GPU: TensorFlow must not take all of its memory at once.
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        import tensorflow

        self.module = tensorflow

    @property
    def _about(self) -> Item:
        return dict(self.module.sysconfig.get_build_info())

    @property
    def build(self) -> str:
        about = self._about
        if about.get("is_rocm_build"):
            return "HIP"
        return "CUDA" if about.get("is_cuda_build") else "CPU"

    @property
    def runtime(self) -> str:
        about = self._about
        return str(about.get("cuda_version") or about.get("rocm_version") or "")

    @property
    def _devices(self) -> list[Any]:
        return list(self.module.config.list_physical_devices("GPU"))

    @property
    def gpus(self) -> int:
        return len(self._devices)

    def describe_gpu(self, index: int) -> Item:
        details = self.module.config.experimental.get_device_details(self._devices[index])
        capability = details.get("compute_capability")
        architecture = "unknown"
        if isinstance(capability, tuple):
            architecture = "sm_" + "".join(str(part) for part in capability[:2])
        return {"name": str(details.get("device_name", "GPU")), "architecture": architecture}

    def _on(self, device: str) -> Any:
        index = device_index(device)
        return self.module.device("/CPU:0" if index < 0 else f"/GPU:{index}")

    def product(self, a: Any, b: Any, precision: str, device: str) -> tuple[Callable[[], None], Any]:
        tf = self.module
        tf.config.experimental.enable_tensor_float_32_execution(False)
        with self._on(device):
            kind = tf.bfloat16 if precision == "bf16" else tf.float32
            x, y = (tf.cast(tf.constant(array), kind) for array in (a, b))
            multiply = tf.function(tf.linalg.matmul)

            def again() -> None:
                with self._on(device):
                    multiply(x, y)[0, 0].numpy()  # waits for the device

            return again, tf.cast(multiply(x, y), tf.float32).numpy()

    def train(self, weights: list[Any], rate: float, device: str) -> tuple[Step, Predict]:
        tf = self.module
        with self._on(device):
            parameters = [tf.Variable(weight) for weight in weights]
            speeds = [tf.Variable(0 * weight) for weight in weights]

        def scores(images: Any) -> Any:
            first, bias, second, bias2 = parameters
            return tf.nn.relu(images @ first + bias) @ second + bias2

        def update(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores(images))
                value = tf.reduce_mean(losses)
            for parameter, speed, gradient in zip(parameters, speeds, tape.gradient(value, parameters)):
                speed.assign(MOMENTUM * speed + gradient)
                parameter.assign_sub(rate * speed)
            return value

        compiled = tf.function(update)

        def step(images: Any, labels: Any) -> float:
            with self._on(device):
                return float(compiled(tf.constant(images), tf.constant(labels)).numpy())

        def predict(images: Any) -> Any:
            with self._on(device):
                return tf.argmax(scores(tf.constant(images)), axis=1).numpy()

        return step, predict
