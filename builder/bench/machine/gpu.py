"""GPUs: their identity, the driver's figures, and which code runs on which architecture."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import contextmanager
from typing import Iterator

from ..core import Item, Run, one_line
from .amd import AmdGpu
from .files import read
from .nvml import NvidiaGpu, open_nvidia
from .processor import affinity, parse_cores


def covers(architecture: str, known: list[str]) -> str:
    """Return how code for the architectures ``known`` runs on a GPU: ``yes``, ``jit`` or ``no``.

    With CUDA, code for sm_XY runs on GPUs with the same major version X and the same or a later
    minor version. PTX (compute_XY) runs on every later GPU; the driver compiles it at the first run
    (``jit``).
    """
    if architecture in known:
        return "yes"
    if not architecture.startswith("sm_"):
        return "no"

    number = _digits(architecture)
    # sm_90a has code for 9.0 only, without the promise to run on 9.1
    codes = [_digits(name) for name in known if re.fullmatch(r"sm_\d+", name)]
    if any(number // 10 * 10 <= code <= number for code in codes):
        return "yes"
    intermediate = [_digits(name) for name in known if name.startswith("compute_")]
    return "jit" if any(code <= number for code in intermediate) else "no"


def _digits(name: str) -> int:
    """Return the number in ``sm_80`` or ``compute_90a``."""
    return int("".join(c for c in name.partition("_")[2] if c.isdigit()) or 0)


def why_no_gpu(run: Run) -> str:
    """Return the reason why torch uses no GPU: torch's message if there is one."""
    if run.build == "CPU":
        return "it is a CPU build"
    if run.torch is None:
        return "it finds none"
    try:
        run.torch.cuda.init()
    except Exception as e:
        return one_line(e)
    return "it finds none"


def pci_address(run: Run, index: int) -> str:
    """Return the PCI address of a GPU, ``0000:3b:00.0``; empty if unknown."""
    properties = run.torch.cuda.get_device_properties(index)
    if hasattr(properties, "pci_bus_id"):
        domain = getattr(properties, "pci_domain_id", 0)
        device = getattr(properties, "pci_device_id", 0)
        return f"{domain:04x}:{properties.pci_bus_id:02x}:{device:02x}.0"

    # older versions of torch do not have pci_bus_id
    library, call = _hip_library(), "hipDeviceGetPCIBusId"
    if run.build == "CUDA":
        library, call = "libcuda.so.1", "cuDeviceGetPCIBusId"
    text = ctypes.create_string_buffer(32)
    try:
        if library and getattr(ctypes.CDLL(library), call)(text, 32, index) == 0:
            return text.value.decode("ascii", "replace").lower()[-12:]
    except (OSError, AttributeError):
        pass
    return ""


def _hip_library() -> str:
    """Return the HIP runtime that torch has loaded; empty if there is none.

    Its name alone could load a second one, from another folder, into this process.
    """
    for line in read("/proc/self/maps", 1 << 22).splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        if os.path.basename(path).startswith("libamdhip64.so"):
            return path
    return ""


def _folder(address: str) -> str:
    return "/sys/bus/pci/devices/" + address


def driver_of(run: Run, index: int) -> NvidiaGpu | AmdGpu | None:
    """Return the GPU as its driver knows it; None if it does not.

    It has the methods ``sample``, ``state``, ``identity`` and ``use``.
    """
    address = pci_address(run, index) if run.torch is not None else ""
    if not address:
        return None
    return open_nvidia(address) if run.build == "CUDA" else AmdGpu(_folder(address))


def gpu_state(run: Run, index: int) -> Item:
    """Return clocks, temperature and errors of a GPU; empty if its driver reports none."""
    gpu = driver_of(run, index)
    return gpu.state() if gpu is not None else {}


def gpu_use(run: Run, index: int) -> Item:
    """Return a GPU's use by all processes together; empty if unknown, as on a MIG slice."""
    gpu = driver_of(run, index)
    return dict(gpu.use()) if gpu is not None else {}


def identity(run: Run, index: int) -> Item:
    """Return ``uuid``, ``power_limit_w``, ``mig`` and ``nvlink``, as far as they can be read."""
    gpu = driver_of(run, index)
    out = dict(gpu.identity()) if gpu is not None else {}
    uuid = str(getattr(run.torch.cuda.get_device_properties(index), "uuid", ""))
    if run.build == "CUDA" and uuid:
        out["uuid"] = f"{'MIG' if out.get('mig') else 'GPU'}-{uuid}"
    return out


@contextmanager
def near_gpu(run: Run, index: int) -> Iterator[bool]:
    """Run the block on cores near a GPU, so that the memory that it allocates is near, too.

    Yields whether that was possible: not if the job may use other cores only, or if the system does
    not report which ones are near. Afterwards this thread may use its own cores again.
    """
    own, address = affinity(), pci_address(run, index)
    near = parse_cores(read(_folder(address) + "/local_cpulist")) if address else set()
    try:
        if near:
            os.sched_setaffinity(0, near)
    except OSError:  # the control group allows none of them
        pass
    try:
        yield bool(near) and affinity() <= near
    finally:
        os.sched_setaffinity(0, own)
