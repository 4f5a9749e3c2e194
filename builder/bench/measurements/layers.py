"""Training steps of typical layers: convolutions and attention."""

from __future__ import annotations

import math
from typing import Any, Callable

from ..core import Item, Run, skip
from .accuracy import checked, require, worst_error, wrong_results
from .precision import PRECISIONS, unsupported
from .timing import rate, timed

#: batch, channels, height and width
CONVOLUTIONS = {"cpu": (8, 32, 28), "gpu": (64, 128, 56)}
#: batch, heads, length, width of a head
ATTENTIONS = {"cpu": (1, 4, 512, 64), "gpu": (4, 16, 2048, 64)}

_CHECK = "error of output and gradients against float64"
_CONVOLUTION_LIMITS = {"fp32": 1e-3, "fp16": 3e-2}
_ATTENTION_LIMITS = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2}


def measure_convolutions(run: Run) -> Item:
    """A training step of two 3x3 convolutions with a ReLU between them: forward, backward, update."""
    torch = run.need_torch
    precision = _precision(run, "fp16")
    limit = _CONVOLUTION_LIMITS[precision]

    small = _convolution_tensors(run, precision, 2, 16, 8)
    reference = [tensor.double().cpu() for tensor in small]
    error = worst_error(_convolve(torch, *small), _convolve(torch, *reference))
    check = checked(_CHECK, error, limit, error <= limit)
    advice = wrong_results("device, driver, cuDNN or MIOpen")
    require(check, f"output or gradients of a convolution are off by {error:.2g}", advice, device=run.device)

    batch, channels, size = CONVOLUTIONS[run.kind]
    x, first, second, g = _convolution_tensors(run, precision, batch, channels, size)

    def step() -> None:
        _, first_gradient, second_gradient = _convolve(torch, x, first, second, g)
        first.sub_(first_gradient, alpha=1e-6)
        second.sub_(second_gradient, alpha=1e-6)

    # Five convolutions: 2 forward; backward 1 for the first (its input needs no gradient) and 2 for the
    # second.
    flop = 5 * 2.0 * batch * size * size * channels * channels * 9
    moved = 5 * 2.0 * batch * channels * size * size * x.element_size()
    seconds = timed(run, step, limit_s=run.share(2.0))
    fields = {"device": run.device, "precision": precision, "size": batch, "flop": flop, "bytes": moved}
    return {**rate("gflop_per_s", flop / 1e9, seconds), **fields, **check}


def _convolution_tensors(run: Run, precision: str, batch: int, channels: int, size: int) -> list[Any]:
    """Input, weights of both convolutions, gradient of the output, in scales that suit fp16."""
    torch = run.torch
    generator = torch.Generator().manual_seed(5)
    image = (batch, channels, size, size)
    weights = (channels, channels, 3, 3)
    weight_scale = 1 / math.sqrt(4.5 * channels)
    gradient_scale = 1 / math.sqrt(batch * size * size)
    dtype = getattr(torch, PRECISIONS[precision].dtype)

    made = []
    for shape, scale in (
        (image, 1.0),
        (weights, weight_scale),
        (weights, weight_scale),
        (image, gradient_scale),
    ):
        tensor = torch.randn(shape, generator=generator) * scale
        tensor = tensor.to(device=run.device, dtype=dtype)
        made.append(tensor.contiguous(memory_format=torch.channels_last))
    return made


def _convolve(torch: Any, x: Any, first: Any, second: Any, g: Any) -> list[Any]:
    """Output, and gradients of the weights of both convolutions."""
    conv2d = torch.nn.functional.conv2d
    weights = [first.detach().requires_grad_(), second.detach().requires_grad_()]
    out = conv2d(torch.relu(conv2d(x, weights[0], padding=1)), weights[1], padding=1)
    out.backward(g)
    return [out.detach(), *(weight.grad for weight in weights)]


def measure_attention(run: Run) -> Item:
    """torch's scaled_dot_product_attention, forward and backward."""
    torch = run.need_torch
    attention = getattr(torch.nn.functional, "scaled_dot_product_attention", None)
    if attention is None:
        raise skip(f"torch {torch.__version__} has no scaled_dot_product_attention")
    precision = _precision(run, "bf16", "fp16")
    limit = _ATTENTION_LIMITS[precision]

    small = _attention_tensors(run, precision, 1, 2, 128, 64)
    reference = [tensor.double().cpu() for tensor in small]

    def plain_attention(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v

    error = worst_error(_attend(attention, *small), _attend(plain_attention, *reference))
    check = checked(_CHECK, error, limit, error <= limit)
    seen = f"output or gradients of attention are off by {error:.2g}"
    require(check, seen, wrong_results(), device=run.device)

    batch, heads, length, width = ATTENTIONS[run.kind]
    big = _attention_tensors(run, precision, batch, heads, length, width)
    flop = 3.5 * 4.0 * batch * heads * length * length * width  # two products forward, five backward
    moved = 12.0 * batch * heads * length * width * big[0].element_size()
    seconds = timed(run, lambda: _attend(attention, *big), limit_s=run.share(2.0))
    fields = {"device": run.device, "precision": precision, "size": length, "flop": flop, "bytes": moved}
    return {**rate("gflop_per_s", flop / 1e9, seconds), **fields, **check}


def _attention_tensors(run: Run, precision: str, *shape: int) -> list[Any]:
    """Query, key, value and the gradient of the output."""
    torch = run.torch
    generator = torch.Generator().manual_seed(6)
    dtype = getattr(torch, PRECISIONS[precision].dtype)
    return [torch.randn(shape, generator=generator).to(device=run.device, dtype=dtype) for _ in range(4)]


def _attend(function: Callable[..., Any], q: Any, k: Any, v: Any, g: Any) -> list[Any]:
    """Output of attention, and gradients of query, key and value."""
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    out = function(*inputs)
    out.backward(g)
    return [out.detach(), *(tensor.grad for tensor in inputs)]


def _precision(run: Run, *preferred: str) -> str:
    """The first of these precisions that a GPU supports; otherwise fp32, as on all CPUs."""
    if run.on_gpu:
        for name in preferred:
            if not unsupported(run, name):
                return name
    return "fp32"
