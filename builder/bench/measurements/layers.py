"""Training steps of typical layers: convolutions and attention."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Callable

from ..core import Item, Run, skip, warn
from .accuracy import checked_error, worst_error
from .precision import PRECISIONS, unsupported
from .timing import rate, timed

#: batch, channels, height and width. On a GPU so large that the host is not what is measured.
CONVOLUTIONS = {"cpu": (8, 32, 28), "gpu": (128, 256, 56), "small": (64, 128, 56)}
#: batch, heads, length, width of a head
ATTENTIONS = {"cpu": (1, 4, 512, 64), "gpu": (4, 32, 4096, 128), "small": (4, 16, 2048, 64)}
#: GPUs with less memory get the small sizes.
_SMALL_BELOW_BYTES = 32e9
#: torch.nn.attention.SDPBackend
BACKENDS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "other"}

_CHECK = "error of output and gradients against float64"
_CONVOLUTION_LIMITS = {"fp32": 1e-3, "fp16": 3e-2}
_ATTENTION_LIMITS = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2}


def measure_convolutions(run: Run) -> Item:
    """Run training steps of two 3x3 convolutions with a ReLU: forward, backward, update."""
    torch = run.need_torch
    precision = _precision(run, "fp16")

    small = _convolution_tensors(run, precision, 2, 16, 8)
    reference = [tensor.double().cpu() for tensor in small]
    error = worst_error(_convolve(torch, *small), _convolve(torch, *reference))

    batch, channels, size = CONVOLUTIONS["small" if _is_small(run) else run.kind]
    x, first, second, g = _convolution_tensors(run, precision, batch, channels, size)

    def step() -> None:
        _, first_gradient, second_gradient = _convolve(torch, x, first, second, g)
        first.sub_(first_gradient, alpha=1e-6)
        second.sub_(second_gradient, alpha=1e-6)

    seconds = timed(run, step, limit_s=run.share(2.0))
    error = max(error, _large_error(torch, x, first, second, g))
    check = checked_error(_CHECK, error, _CONVOLUTION_LIMITS[precision])

    # Five convolutions: 2 forward; backward 1 for the first (its input needs no gradient) and 2 for the
    # second.
    flop = 5 * 2.0 * batch * size * size * channels * channels * 9
    fields = {"device": run.device, "precision": precision, "size": batch, "flop": flop}
    return {**rate("gflop_per_s", flop / 1e9, seconds, **fields), **check}


def _large_error(torch: Any, x: Any, first: Any, second: Any, g: Any) -> float:
    """Return the error of the large convolutions in the first image, against the CPU's in float64.

    Infinite if any value is not finite.
    """
    out, *gradients = _convolve(torch, x, first, second, g)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in (out, *gradients)):
        return math.inf
    expected = _forward(torch, *(tensor.double().cpu() for tensor in (x[:1], first, second)))
    return worst_error([out[:1]], [expected])


def _forward(torch: Any, x: Any, first: Any, second: Any) -> Any:
    conv2d = torch.nn.functional.conv2d
    return conv2d(torch.relu(conv2d(x, first, padding=1)), second, padding=1)


def _convolution_tensors(
    run: Run, precision: str, batch: int, channels: int, size: int
) -> list[Any]:
    """Return input, both weights and the output's gradient, in scales that suit fp16."""
    torch = run.torch
    generator = torch.Generator(device=run.device).manual_seed(5)
    image = (batch, channels, size, size)
    weights = (channels, channels, 3, 3)
    weight_scale = 1 / math.sqrt(4.5 * channels)
    gradient_scale = 1 / math.sqrt(batch * size * size)
    dtype = getattr(torch, PRECISIONS[precision].dtype)

    scales = (1.0, weight_scale, weight_scale, gradient_scale)
    made = []
    for shape, scale in zip((image, weights, weights, image), scales):
        tensor = torch.randn(shape, generator=generator, device=run.device).mul_(scale).to(dtype)
        made.append(tensor.contiguous(memory_format=torch.channels_last))
    return made


def _convolve(torch: Any, x: Any, first: Any, second: Any, g: Any) -> list[Any]:
    """Return the output, and the gradients of the weights of both convolutions."""
    return _gradients(partial(_forward, torch, x), first, second, g)


def measure_attention(run: Run) -> Item:
    """Run torch's scaled_dot_product_attention, forward and backward."""
    torch = run.need_torch
    attention = getattr(torch.nn.functional, "scaled_dot_product_attention", None)
    if attention is None:
        raise skip(f"torch {torch.__version__} has no scaled_dot_product_attention")
    precision = _precision(run, "bf16", "fp16")

    small = _attention_tensors(run, precision, 1, 2, 128, 64)
    reference = [tensor.double().cpu() for tensor in small]
    plain = partial(_plain_attention, torch)
    error = worst_error(_gradients(attention, *small), _gradients(plain, *reference))

    big = _attention_tensors(run, precision, *ATTENTIONS[run.kind])
    backend = _backend(torch, big)
    if run.on_gpu and (backend == "math" or _is_small(run)):
        big = _attention_tensors(run, precision, *ATTENTIONS["small"])
    batch, heads, length, width = big[0].shape
    flop = 3.5 * 4.0 * batch * heads * length * length * width  # 2 products forward, 5 backward
    seconds = timed(run, lambda: _gradients(attention, *big), limit_s=run.share(2.0))

    error = max(error, _head_error(torch, *big))
    check = checked_error(_CHECK, error, _ATTENTION_LIMITS[precision])

    fields = {"device": run.device, "precision": precision, "size": int(length), "flop": flop}
    item = {**rate("gflop_per_s", flop / 1e9, seconds, **fields), "backend": backend, **check}
    if run.on_gpu and backend == "math" and _has_fused(run):
        seen = "torch uses no fused kernel for attention (backend math): it is 4 to 12 times slower"
        advice = "lock a build of torch with flash attention (for ROCm: with AOTriton)"
        raise warn(seen, advice, **item)
    return item


def _head_error(torch: Any, *tensors: Any) -> float:
    """Return the error of the first head, which is independent of all others, against float64."""
    attention = torch.nn.functional.scaled_dot_product_attention
    found = [tensor[:1, :1] for tensor in _gradients(attention, *tensors)]
    head = [tensor[:1, :1].float() for tensor in tensors]
    plain = partial(_plain_attention, torch)
    expected = [tensor.double().cpu() for tensor in _gradients(plain, *head)]
    return worst_error(found, expected)


def _backend(torch: Any, tensors: list[Any]) -> str:
    """Return the kernel that torch chooses for attention with gradients; empty if unknown."""
    q, k, v = (tensor.detach().requires_grad_() for tensor in tensors[:3])
    try:
        return BACKENDS.get(int(torch._fused_sdp_choice(q, k, v, None, 0.0, False)), "")
    except (AttributeError, RuntimeError, TypeError):
        return ""


def _has_fused(run: Run) -> bool:
    """Return whether this GPU has fused kernels for attention in usual builds of torch."""
    if run.build == "HIP":
        return run.architecture(run.index).startswith(("gfx90a", "gfx94", "gfx95"))
    return int(run.torch.cuda.get_device_properties(run.index).major) >= 8


def _plain_attention(torch: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v


def _attention_tensors(run: Run, precision: str, *shape: int) -> list[Any]:
    """Return query, key, value and the gradient of the output."""
    torch = run.torch
    generator = torch.Generator(device=run.device).manual_seed(6)
    dtype = getattr(torch, PRECISIONS[precision].dtype)
    return [torch.randn(shape, generator=generator, device=run.device).to(dtype) for _ in range(4)]


def _gradients(function: Callable[..., Any], *tensors: Any) -> list[Any]:
    """Return the output of a function, and the gradients of its inputs.

    Args:
        function: what is differentiated.
        tensors: its inputs, and then the gradient of its output.
    """
    inputs = [tensor.detach().requires_grad_() for tensor in tensors[:-1]]
    out = function(*inputs)
    out.backward(tensors[-1])
    return [out.detach(), *(tensor.grad for tensor in inputs)]


def _is_small(run: Run) -> bool:
    return run.on_gpu and int(run.torch.cuda.mem_get_info(run.index)[1]) < _SMALL_BELOW_BYTES


def _precision(run: Run, *preferred: str) -> str:
    """Return the first of these precisions that a GPU supports; otherwise fp32, as on all CPUs."""
    if run.on_gpu:
        for name in preferred:
            if not unsupported(run, name):
                return name
    return "fp32"
