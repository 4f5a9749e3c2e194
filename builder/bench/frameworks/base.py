"""What the benchmark needs of a framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable

from ..core import Item

#: A step of a training: receives images and labels, and returns the loss once the device is done.
Step = Callable[[Any, Any], float]
#: The classes that a trained network finds in images, as a NumPy array.
Predict = Callable[[Any], Any]


class Framework(ABC):
    """TensorFlow or JAX. Arrays that go in and come out are NumPy's."""

    name: str
    #: The imported module.
    module: Any

    @property
    def version(self) -> str:
        """The framework's version."""
        return str(self.module.__version__)

    @property
    @abstractmethod
    def build(self) -> str:
        """What it was built for: ``CUDA``, ``HIP`` or ``CPU``."""

    @property
    @abstractmethod
    def runtime(self) -> str:
        """The version of CUDA or ROCm that it was built for; empty if unknown."""

    @property
    @abstractmethod
    def gpus(self) -> int:
        """How many GPUs it can use."""

    @abstractmethod
    def describe_gpu(self, index: int) -> Item:
        """``name`` and ``architecture`` of a GPU, as far as the framework reports them."""

    @abstractmethod
    def product(self, a: Any, b: Any, precision: str, device: str) -> tuple[Callable[[], None], Any]:
        """Compiles and computes a matrix product.

        Args:
            a, b: square matrices, float32.
            precision: ``fp32`` (without TF32) or ``bf16``.
            device: ``cpu`` or ``cuda:N``.

        Returns:
            A function that computes it again and returns when the device is done, and the product as
            float32.
        """

    @abstractmethod
    def train(self, weights: list[Any], rate: float, device: str) -> tuple[Step, Predict]:
        """A network of two dense layers, trained by gradient descent with momentum.

        Args:
            weights: first weights: matrix and bias of each layer.
            rate: the learning rate.
            device: ``cpu`` or ``cuda:N``.
        """


def device_index(device: str) -> int:
    """The number in ``cuda:N``; -1 for ``cpu``."""
    return int(device.partition(":")[2]) if ":" in device else -1


#: Of the momentum in ``train``.
MOMENTUM = 0.9
