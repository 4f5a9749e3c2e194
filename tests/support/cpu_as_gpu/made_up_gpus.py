"""GPUs for a torch that was built for CPUs.

``cuda:N`` is the CPU. A tensor remembers the GPU that it is on (``gpu``), and an operation on tensors of
different devices fails as with CUDA. Results are computed; kernels take the time that an H200 needs, on a
virtual clock that only events read. ``MADE_UP_GPUS`` is their number, ``MADE_UP_BUILD`` is CUDA or HIP.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

COUNT = int(os.environ["MADE_UP_GPUS"])
HIP = os.environ["MADE_UP_BUILD"] == "HIP"
#: Operations per second, by type; TF32 is float32 where it is allowed.
SPEEDS = {
    torch.float64: 60e12, torch.float32: 50e12, torch.float16: 700e12, torch.bfloat16: 720e12,
    torch.float8_e4m3fn: 1400e12, torch.float8_e4m3fnuz: 1400e12,
}  # fmt: skip
TF32 = 400e12
#: Bytes per second: of the memory, of copies from and to the host, of collectives.
MEMORY, PINNED, PAGEABLE, COLLECTIVE = 3.9e12, 54e9, 9e9, 300e9
#: Operations whose tensors may be on several devices.
BETWEEN_DEVICES = ("copy_", "to", "__set__", "__getitem__", "_has_compatible_shallow_copy_type")
DEVICE, DATA = torch.Tensor.device, torch.Tensor.data
MATMUL = torch.backends.cuda.matmul


class Clock:
    """The GPUs' time in seconds, and whether operations take any."""

    now = 0.0
    running = False


def gpu_of(tensor: Any) -> int | None:
    """The number of the GPU that a tensor is on; None on the host."""
    return tensor.__dict__.get("gpu")


def tensors_of(values: Any) -> list[Any]:
    """The tensors among some values, and in lists of them."""
    found = []
    for value in values:
        items = value if isinstance(value, (list, tuple)) else [value]
        found += [item for item in items if isinstance(item, torch.Tensor)]
    return found


def bytes_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def is_device(value: Any) -> bool:
    return isinstance(value, (str, torch.device)) and str(value).partition(":")[0] in ("cpu", "cuda")


def number_of(device: Any) -> int | None:
    """The number of the GPU in ``cuda:1``; None for the host."""
    name, _, number = str(device).partition(":")
    assert int(number or 0) < COUNT
    return None if name == "cpu" else int(number or 0)


class Kernels(TorchDispatchMode):  # type: ignore[misc]
    """Lets operations take time."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        product = scaled_product if func is torch.ops.aten._scaled_mm.default else func
        out = product(*args, **(kwargs or {}))
        if Clock.running:
            tensors = tensors_of(args)
            count = flop_registry.get(func._overloadpacket)
            if count is not None:
                kind = tensors[0].dtype
                speed = TF32 if kind == torch.float32 and MATMUL.allow_tf32 else SPEEDS[kind]
                Clock.now += count(*args, **(kwargs or {}), out_val=out) / speed
            else:
                moved = {id(tensor): bytes_of(tensor) for tensor in [*tensors, *tensors_of([out])]}
                Clock.now += sum(moved.values()) / MEMORY
        return out


def scaled_product(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, scale_result: Any, out_dtype: Any, *_: Any
) -> Any:
    """torch._scaled_mm for every fp8 type. torch's own for CPUs has those that the processor knows."""
    return (a.float() * scale_a @ (b.float() * scale_b)).to(out_dtype)


class Devices(TorchFunctionMode):  # type: ignore[misc]
    """Makes ``cuda:N`` the CPU, and keeps in mind which tensor is on which GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        tensors = tensors_of([*args, *kwargs.values()])
        own = gpu_of(tensors[0]) if tensors else None
        if func == DEVICE.__get__ and own is not None:
            return torch.device("cuda", own)
        if name in ("_parse_to", "_has_compatible_shallow_copy_type"):
            return func(*args, **kwargs)
        if func is torch.Tensor.pin_memory:
            pinned = args[0].clone()
            pinned.pinned = True
            return pinned
        require_one_device(name, tensors)
        if func == DATA.__set__:
            args[0].gpu = gpu_of(args[1])
            return func(*args)
        if func is torch.Tensor.copy_ and own != gpu_of(args[1]):
            return copied(func, args, kwargs, args[1], args[0])

        devices = [value for value in [*args, *kwargs.values()] if is_device(value)]
        target = number_of(devices[0]) if devices else None if func is torch.Tensor.cpu else own
        args = tuple("cpu" if is_device(value) else value for value in args)
        kwargs = {key: "cpu" if is_device(value) else value for key, value in kwargs.items()}
        if tensors and own != target:
            out = copied(func, args, kwargs, tensors[0], None)
        else:
            out = computed(func, with_tf32(name, args), kwargs, on_gpu=target is not None)
        for tensor in tensors_of([out]):
            if not any(tensor is other for other in tensors):
                tensor.gpu = target
        return out


def require_one_device(name: str, tensors: list[Any]) -> None:
    """Single numbers may be on the host."""
    found = {gpu_of(tensor) for tensor in tensors if tensor.dim() or gpu_of(tensor) is not None}
    if len(found) > 1 and name not in BETWEEN_DEVICES:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} has {found}")


def copied(func: Any, args: Any, kwargs: Any, source: Any, target: Any) -> Any:
    """A copy to another device. ``target``: the tensor that gets it; None: a new one."""
    out = func(*args, **kwargs)
    pinned = any(tensor is not None and "pinned" in tensor.__dict__ for tensor in (source, target))
    Clock.now += bytes_of(source) / (PINNED if pinned else PAGEABLE)
    return out.clone() if out is source else out


def with_tf32(name: str, args: Any) -> Any:
    """Factors of a product in TF32 lose digits."""
    allowed = name in ("matmul", "mm") and MATMUL.allow_tf32 and args[0].dtype == torch.float32
    return tuple(factor.bfloat16().float() for factor in args) if allowed else args


def computed(func: Any, args: Any, kwargs: Any, on_gpu: bool) -> Any:
    Clock.running = on_gpu
    try:
        return func(*args, **kwargs)
    finally:
        Clock.running = False


class Event:
    """torch.cuda.Event"""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = Clock.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


class Generator(torch.Generator):  # type: ignore[misc]
    """Of any device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls, "cpu")


def properties(index: int) -> Any:
    """An H200 or a MI300X, as torch describes it."""
    return SimpleNamespace(
        name=device_name(index), major=9, minor=4 if HIP else 0, gcnArchName="gfx942:sramecc+:xnack-",
        total_memory=192 << 30 if HIP else 143156 << 20, multi_processor_count=304 if HIP else 132,
        pci_domain_id=0, pci_bus_id=(0x3B, 0x5D)[index], pci_device_id=0,
        uuid=f"{index}1111111-2222-3333-4444-555555555555", is_integrated=0,
    )  # fmt: skip


def device_name(index: int) -> str:
    return "AMD Instinct MI300X" if HIP else "NVIDIA H200"


BEGIN = torch.distributed.init_process_group


def log(text: str) -> None:
    """Writes a line into NCCL's log."""
    path = os.environ["NCCL_DEBUG_FILE"].replace("%h", "host").replace("%p", str(os.getpid()))
    with open(path, "a") as f:
        f.write(f"host:1:2 [0] NCCL INFO {text}\n")


def init_process_group(backend: str, **more: Any) -> None:
    """gloo works as NCCL, and writes its log."""
    assert backend == "nccl"
    BEGIN("gloo", **more)
    log("NCCL version 2.27.7+cuda13.0")
    log("Using network IB")
    log("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC")


def timed(right: Any) -> Any:
    """An all-reduce that takes time."""

    def function(*arrays: Any, **more: Any) -> Any:
        size = bytes_of(arrays[0])
        Clock.now += 20e-6 + size / COLLECTIVE
        log(f"AllReduce: {size} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..15}}")
        return right(*arrays, **more)

    return function


def install() -> None:
    """Replaces what of torch knows GPUs."""
    cuda = dict(
        is_available=lambda: True, is_initialized=lambda: True, device_count=lambda: COUNT,
        init=lambda: None, get_arch_list=lambda: ["gfx942" if HIP else "sm_90"],
        get_device_properties=properties, get_device_name=device_name, set_device=lambda index: None,
        device=lambda index: nullcontext(), current_device=lambda: 0, empty_cache=lambda: None,
        synchronize=lambda *index: None, Event=Event,
        mem_get_info=lambda index: (64 << 20, 64 << 20),
    )  # fmt: skip
    for name, value in cuda.items():
        setattr(torch.cuda, name, value)
    torch.version.cuda, torch.version.hip = (None, "7.0") if HIP else ("13.0", None)
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.version = lambda: 91002
    torch.Generator = Generator

    distributed = torch.distributed
    distributed.init_process_group, distributed.is_nccl_available = init_process_group, lambda: True
    distributed.all_reduce = timed(distributed.all_reduce)
    Devices().__enter__()
    Kernels().__enter__()
