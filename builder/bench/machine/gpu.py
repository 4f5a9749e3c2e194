"""GPUs: their identity, the driver's figures, and which code runs on which architecture."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable

from ..core import Item, Run, one_line
from .amd import AmdGpu
from .files import read, system_path
from .nvml import NvidiaGpu, open_nvidia

#: The generation of PCIe by its speed in GT/s.
_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}


def covers(architecture: str, known: list[str]) -> str:
    """How code for the architectures ``known`` runs on a GPU: ``yes``, ``jit`` or ``no``.

    With CUDA, code for sm_XY runs on GPUs with the same major version X and the same or a later minor
    version. PTX (compute_XY) runs on every later GPU; the driver compiles it at the first run (``jit``).
    """
    if architecture in known:
        return "yes"
    if not architecture.startswith("sm_"):
        return "no"

    number = _digits(architecture)
    for name in known:
        runs_here = _digits(name) // 10 == number // 10 and _digits(name) <= number
        # sm_90a has code for 9.0 only, without the promise to run on 9.1
        if name.startswith("sm_") and name[-1].isdigit() and runs_here:
            return "yes"
    if any(name.startswith("compute_") and _digits(name) <= number for name in known):
        return "jit"
    return "no"


def _digits(name: str) -> int:
    """The number in ``sm_80`` or ``compute_90a``."""
    return int("".join(c for c in name.partition("_")[2] if c.isdigit()) or 0)


def why_no_gpu(run: Run) -> str:
    """Why torch uses no GPU: torch's message if there is one."""
    if run.build == "CPU":
        return "it is a CPU build"
    try:
        run.torch.cuda.init()
    except Exception as e:
        return one_line(e)
    return "it finds none"


def pci_address(run: Run, index: int) -> str:
    """The PCI address of a GPU, ``0000:3b:00.0``; empty if unknown."""
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
            return _existing(text.value.decode("ascii", "replace").lower()[-12:])
    except (OSError, AttributeError):
        pass
    return ""


def _hip_library() -> str:
    """The HIP runtime that torch has loaded; empty if there is none.

    Its name alone could load a second one, from another folder, into this process.
    """
    for line in read("/proc/self/maps", 1 << 22).splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        if os.path.basename(path).startswith("libamdhip64.so"):
            return path
    return ""


def _existing(address: str) -> str:
    """The address of the PCI device: the partitions of a MI300 have functions that do not exist, .1 to .7."""
    if os.path.exists(system_path(_folder(address))):
        return address
    return address[:-1] + "0"


def _folder(address: str) -> str:
    return "/sys/bus/pci/devices/" + address


def opened(run: Run, index: int) -> Callable[[], NvidiaGpu | AmdGpu | None] | None:
    """What opens the driver's figures of a GPU, which may take a moment; None if the GPU is not known.

    What it returns has the methods ``sample``, ``state``, ``identity``, ``is_part`` and ``use``; it returns
    None if the driver does not report any.
    """
    if run.torch is None:
        return None
    address = pci_address(run, index)
    if not address:
        return None
    if run.build == "CUDA":
        return lambda: open_nvidia(address)
    architecture = run.architecture(index)
    return lambda: AmdGpu(_folder(address), architecture)


def _driver_of(run: Run, index: int) -> Any:
    """The GPU as its driver knows it; None if it does not."""
    opens = opened(run, index)
    return opens() if opens is not None else None


def gpu_state(run: Run, index: int) -> Item:
    """Clocks, temperature and errors of a GPU, as far as the driver reports them; empty if it does not."""
    gpu = _driver_of(run, index)
    return gpu.state() if gpu is not None else {}


def gpu_use(run: Run, index: int) -> Item:
    """What all processes together use of a GPU; empty if unknown, as on a MIG slice or a partition.

    There, the driver reports what all users of the whole GPU use.
    """
    gpu = _driver_of(run, index)
    return {} if gpu is None or gpu.is_part() else dict(gpu.use())


def is_part(run: Run, index: int) -> bool:
    """Whether a GPU is a MIG slice, or a partition of a MI300."""
    gpu = _driver_of(run, index)
    return gpu is not None and bool(gpu.is_part())


def compute_mode(run: Run, index: int) -> str:
    """How many processes may use a GPU: ``default``, ``exclusive_process``, ``prohibited``; empty if unknown.

    In the mode ``exclusive_process`` a second process fails with "busy or unavailable", also if the first
    one is its parent.
    """
    if run.torch is None or run.build != "CUDA":
        return ""
    gpu = _driver_of(run, index)
    if gpu is not None and gpu.is_part():
        gpu = open_nvidia(uuid=_uuid(run, index, "MIG"))
    return gpu.compute_mode() if gpu is not None else ""


def _uuid(run: Run, index: int, kind: str) -> str:
    """The UUID as NVML writes it; empty for versions of torch that do not have it."""
    uuid = str(getattr(run.torch.cuda.get_device_properties(index), "uuid", ""))
    return f"{kind}-{uuid}" if uuid else ""


def identity(run: Run, index: int) -> Item:
    """Which GPU this is, and how it is set up: what explains that its figures differ from another one's.

    ``uuid``, ``serial``, ``vbios``, ``driver``, ``power_limit_w``, ``compute_mode``, ``mig``, ``partition``,
    ``nvlink`` and ``pcie``, as far as they can be read.
    """
    gpu = _driver_of(run, index)
    out = dict(gpu.identity()) if gpu is not None else {}
    if run.build == "CUDA":
        uuid = _uuid(run, index, "MIG" if out.get("mig") else "GPU")
        if uuid:
            out["uuid"] = uuid
        mode = compute_mode(run, index) if out.get("mig") else ""  # of the slice; otherwise it is known
        if mode:
            out["compute_mode"] = mode
    link = _link(run, index, gpu)
    return {**out, "pcie": link} if link else out


def pcie_link(run: Run, index: int) -> Item:
    """``generation``, ``width``, ``max_generation`` and ``max_width`` of a GPU's PCIe link.

    The generation falls while the GPU is idle. The largest width is what GPU and slot allow together.
    """
    return _link(run, index, _driver_of(run, index))


def _link(run: Run, index: int, gpu: Any) -> Item:
    found = gpu.link() if isinstance(gpu, NvidiaGpu) else {}
    if found:
        return found
    address = pci_address(run, index)
    return _link_of_device(_folder(address)) if address else {}


def _link_of_device(folder: str) -> Item:
    """The link of a PCI device, as the kernel knows it."""
    out: Item = {}
    for prefix, when in (("", "current"), ("max_", "max")):
        generation = _GENERATIONS.get(read(f"{folder}/{when}_link_speed").partition(" ")[0])
        width = read(f"{folder}/{when}_link_width")
        if generation:
            out[prefix + "generation"] = generation
        if width.isdigit() and 0 < int(width) <= 32:  # 255 is unknown
            out[prefix + "width"] = int(width)
    return out
