"""GPUs: their PCI address, the driver's figures, and which code runs on which architecture."""

from __future__ import annotations

import ctypes
import re
import time

from ..core import Item, Run, one_line
from .files import names, read
from .nvml import nvidia_state


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
    library, call = "libamdhip64.so", "hipDeviceGetPCIBusId"
    if run.build == "CUDA":
        library, call = "libcuda.so.1", "cuDeviceGetPCIBusId"
    text = ctypes.create_string_buffer(32)
    try:
        if getattr(ctypes.CDLL(library), call)(text, 32, index) == 0:
            return text.value.decode("ascii", "replace").lower()[-12:]
    except (OSError, AttributeError):
        pass
    return ""


def gpu_state(run: Run, index: int) -> Item:
    """Clocks, temperature and errors of a GPU, as far as the driver reports them; empty if it does not."""
    address = pci_address(run, index)
    if not address:
        return {}
    if run.build == "CUDA":
        return nvidia_state(address)
    return amd_state("/sys/bus/pci/devices/" + address)


def loaded_state(run: Run, index: int) -> Item:
    """The state of a GPU while it multiplies matrices."""
    torch, device = run.torch, f"cuda:{index}"
    a = torch.ones(4096, 4096, device=device)
    until = time.monotonic() + 0.4
    state: Item = {}
    while time.monotonic() < until:
        for _ in range(10):
            torch.mm(a, a)
        state = gpu_state(run, index)
        torch.cuda.synchronize(index)
    return state


#: field, file of the hardware monitor, factor to the field's unit
_AMD_SENSORS = (
    ("temperature_c", "temp1_input", 1e-3),
    ("clock_mhz", "freq1_input", 1e-6),
    ("memory_clock_mhz", "freq2_input", 1e-6),
    ("power_w", "power1_average", 1e-6),
)


def amd_state(folder: str) -> Item:
    """The state of an AMD GPU, from the files of its driver in sysfs."""
    state: Item = {}
    for monitor in names(folder + "/hwmon"):
        for field, name, factor in _AMD_SENSORS:
            value = read(f"{folder}/hwmon/{monitor}/{name}")
            if value.isdigit():
                state[field] = int(value) * factor

    clocks = re.findall(r"(\d+)Mhz", read(folder + "/pp_dpm_sclk"), re.IGNORECASE)
    if clocks:
        state["clock_max_mhz"] = float(max(map(int, clocks)))

    uncorrected = re.search(r"ue: *(\d+)", read(folder + "/ras/umc_err_count"))
    if uncorrected:
        state["ecc"] = True
        state["ecc_uncorrected"] = int(uncorrected[1])
    return state
