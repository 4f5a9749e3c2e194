#!/usr/bin/env python3
"""Does this image really use this machine? One file, Python >= 3.8, the standard library and torch.

    python smoke.py [--expect nvidia|amd|none] [--architectures sm_80,sm_90] [--devices N] [--all-gpus] [--json FILE|-]

Every image has it as /opt/builder/smoke.py. Probes say what is there and whether it fits. Measurements time something whose
result is checked against a reference. All of it runs in child processes, one per rank: whatever hangs or crashes there (a
driver, a network, torch itself), the parent still writes the report. A new probe or measurement is one function with a decorator.

Exit code: 0 pass or warn; 1 fail: the image or this machine is not right; 2 error: the test itself could not be carried out.
The report's schema is builder/smoke/report.schema.json; docs/smoke.md explains every id.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import functools
import glob
import importlib
import json
import math
import os
import platform
import re
import selectors
import shutil
import signal
import site
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

SCHEMA_VERSION = 2
EXIT_CODES = {"pass": 0, "warn": 0, "fail": 1, "error": 2}
#: Seconds for the measurements of a CPU and of GPUs; what would begin later is skipped.
BUDGETS_S = {"cpu": 60.0, "gpu": 45.0}
#: Variables that explain a result; none of them holds a secret.
VARIABLES = re.compile(
    "(CUDA|NVIDIA|ROCR|HIP)_VISIBLE_DEVICES|HSA_OVERRIDE_GFX_VERSION|(OMP|MKL)_NUM_THREADS|LD_(LIBRARY_PATH|PRELOAD)|"
    "PYTHON(PATH|HOME|NOUSERSITE)|CONDA_PREFIX|(NCCL|GLOO)_SOCKET_IFNAME|NCCL_(NET|NET_GDR_LEVEL|NET_PLUGIN|IB_DISABLE|P2P_DISABLE)|"
    "FI_PROVIDER|MIOPEN_(USER_DB_PATH|CUSTOM_CACHE_DIR)|SSL_CERT_(FILE|DIR)|LANG|LC_ALL|TZ|HOME|TMPDIR|"
    "SLURM_(STEP_NUM_TASKS|STEP_NODELIST|CPUS_PER_TASK)|WORLD_SIZE"
)
NETWORK_FILE_SYSTEMS = re.compile(
    "lustre|nfs4?|gpfs|beegfs|ceph|cifs|smb3|smbfs|9p|afs|panfs|wekafs|orangefs|pvfs2|fuse.(sshfs|ceph.*|gluster.*)"
)
#: Beginning of every path that is read from /proc and /sys; tests put another tree there.
ROOT = ""

Item = Dict[str, Any]


class Outcome(Exception):
    """Ends a probe or measurement with anything but "pass"."""

    def __init__(self, status: str, seen: str, advice: str = "", **fields: Any) -> None:
        super().__init__(seen)
        self.status, self.seen, self.advice, self.fields = status, seen, advice, fields


def fail(seen: str, advice: str, **fields: Any) -> Outcome:
    return Outcome("fail", seen, advice, **fields)


def warn(seen: str, advice: str, **fields: Any) -> Outcome:
    return Outcome("warn", seen, advice, **fields)


def skip(seen: str) -> Outcome:
    return Outcome("skip", seen)


class Place(NamedTuple):
    """Where a process stands among those that take part."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1  # on this node; 0 when nobody says
    #: Where ranks find each other: ``file://PATH`` or ``tcp://HOST:PORT``.
    meeting: str = ""


class Run:
    """What the probes and measurements of a rank share."""

    def __init__(self, options: argparse.Namespace, place: Place = Place()) -> None:  # noqa: B008
        self.options, self.place = options, place
        self.torch: Any = None
        self.import_s = 0.0
        self.started = time.monotonic()
        self.hosts: List[str] = []  # of every rank, once all are there
        self.results: List[Item] = []  # of the measurements so far
        self.busy_s = self.wall_s = 0.0  # what `steady` needs
        self.kept: Dict[str, Any] = {}  # what one measurement leaves to another
        self.folder = ""  # for temporary files

    @property
    def need_torch(self) -> Any:
        """torch, or skips what asks for it."""
        if self.torch is None:
            raise skip("no torch")
        return self.torch

    @property
    def build(self) -> str:
        """What torch was built for: CUDA, HIP or CPU."""
        version = self.need_torch.version
        return "HIP" if getattr(version, "hip", None) else "CUDA" if getattr(version, "cuda", None) else "CPU"

    @property
    def gpus(self) -> int:
        """How many GPUs torch can use."""
        return (
            int(self.need_torch.cuda.device_count())
            if self.build != "CPU" and self.torch.cuda.is_available()
            else 0
        )

    @property
    def index(self) -> int:
        """This rank's GPU; where each rank is given one alone, it is number 0."""
        return self.place.local_rank % max(self.gpus, 1)

    @property
    def own_gpus(self) -> List[int]:
        """The GPUs that this rank answers for: all of them when it is alone."""
        if self.torch is None or self.options.expect == "none" or not self.gpus:
            return []
        return list(range(self.gpus)) if self.place.ranks == 1 else [self.index]

    @property
    def kind(self) -> str:
        """What is measured: ``gpu``; ``cpu`` when no GPU is expected. Skips when one is expected and there is none."""
        expect = self.options.expect
        if expect != "none" and self.gpus:
            return "gpu"
        if expect in ("nvidia", "amd"):
            raise skip("no GPU to measure")
        self.need_torch  # noqa: B018
        return "cpu"

    @property
    def device(self) -> str:
        """Where the tensors go."""
        return "cuda:%d" % self.index if self.kind == "gpu" else "cpu"

    @property
    def on_gpu(self) -> bool:
        return self.kind == "gpu"

    def synchronize(self) -> None:
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def architecture(self, index: int) -> str:
        """``sm_80``, or ``gfx90a``."""
        properties = self.torch.cuda.get_device_properties(index)
        if self.build == "HIP":
            return str(properties.gcnArchName).split(":")[0]
        return "sm_%d%d" % (properties.major, properties.minor)

    def architectures(self) -> List[str]:
        """What torch has code for; torch tells even where no GPU is."""
        known = list(self.torch.cuda.get_arch_list())
        if not known and self.build != "CPU":
            flags = getattr(self.torch._C, "_cuda_getArchFlags", lambda: None)()
            known = (flags or "").split()
        return [name.split(":")[0] for name in known]

    @property
    def budget_s(self) -> float:
        """Seconds for all measurements of this rank."""
        if self.options.budget is not None:
            return float(self.options.budget)
        return BUDGETS_S["gpu" if self.own_gpus else "cpu"]

    @property
    def left_s(self) -> float:
        return self.started + self.budget_s - time.monotonic()

    def share(self, nominal_s: float) -> float:
        """Seconds that a measurement may repeat for: its share of the budget, and never all that is left."""
        return max(0.0, min(nominal_s, self.left_s / 3))


Function = Callable[[Run], Any]


class Probe(NamedTuple):
    id: str
    look: Function
    late: bool = False  # after the measurements


class Measurement(NamedTuple):
    """``scope``: ``device`` for every rank with a GPU of its own, ``once`` for rank 0 alone, ``all`` for all ranks together."""

    id: str
    look: Function
    scope: str = "device"
    only: str = ""  # on this kind of device: gpu, cpu


PROBES: List[Probe] = []
MEASUREMENTS: List[Measurement] = []


def probe(name: str, late: bool = False) -> Callable[[Function], Function]:
    """Registers a probe: returns what was seen when all is well, raises an Outcome otherwise."""

    def register(function: Function) -> Function:
        PROBES.append(Probe(name, function, late))
        return function

    return register


def measurement(name: str, scope: str = "device", only: str = "") -> Callable[[Function], Function]:
    """Registers a measurement: returns its fields (units in their names), raises an Outcome otherwise."""

    def register(function: Function) -> Function:
        MEASUREMENTS.append(Measurement(name, function, scope, only))
        return function

    return register


def read(path: str, size: int = 4096) -> str:
    """The text of a small file of the system, or nothing."""
    try:
        with open(ROOT + path, encoding="utf-8", errors="replace") as f:
            return f.read(size).strip()
    except OSError:
        return ""


def names(folder: str) -> List[str]:
    """What lies in a folder of the system."""
    try:
        return sorted(os.listdir(ROOT + folder))
    except OSError:
        return []


# probes: torch --------------------------------------------------------------------------------------------------------

GIVE_NVIDIA = "give the container the driver: --gpus all (docker), --gpu (podman-hpc), --nv (apptainer)"
GIVE_AMD = "give the container the GPU: --rocm (apptainer), or --device /dev/kfd --device /dev/dri"


@probe("torch.import")
def probe_torch(run: Run) -> str:
    started = time.perf_counter()
    try:
        import torch

        torch.ones(1).sum().item()
    except ModuleNotFoundError as e:
        missing = (
            "there is no torch in " + sys.prefix if e.name == "torch" else "torch does not import: %s" % e
        )
        raise fail(
            missing,
            "add the package to the environment, lock and build again; or this is not the image's python",
        ) from None
    except Exception as e:  # a missing or wrong library raises OSError, a half package nearly anything
        text = str(e)
        advice = "a library is missing, or of another build than torch: look at the base image and the lock"
        if "libcuda.so" in text or "libnvidia" in text:
            advice = GIVE_NVIDIA
        elif re.search("lib(amdhip|hsa|rocm|roc|rccl)", text):
            advice = "ROCm's libraries are not there: they belong into the image; and " + GIVE_AMD
        elif "GLIBC" in text:
            advice = "a library needs a newer glibc than the image's: a newer base image, or do not bind the host's libraries"
        raise fail("torch does not import: %s" % one_line(e), advice) from None
    run.torch, run.import_s = torch, time.perf_counter() - started
    return "torch %s in %.1f s" % (torch.__version__, run.import_s)


@probe("torch.build")
def probe_build(run: Run) -> str:
    built, version = run.build, run.torch.version
    number = getattr(version, "hip", None) or getattr(version, "cuda", None) or ""
    seen = ("%s build %s" % (built, number)).strip()
    wanted = {"nvidia": "CUDA", "amd": "HIP", "none": "CPU"}.get(run.options.expect, built)
    if wanted == built:
        return seen
    if wanted == "CPU":
        raise warn(seen, "the recipe says no GPU: a CPU build is several GB smaller")
    how = (
        "declare __cuda and lock again"
        if wanted == "CUDA"
        else "name a ROCm index or channel, and lock again"
    )
    raise fail(seen, "this image is for %s GPUs: %s" % (run.options.expect.upper(), how))


@probe("torch.architectures")
def probe_architectures(run: Run) -> str:
    wanted = run.options.architectures
    if run.build == "CPU" or not wanted:
        raise skip("no architecture is asked for" if not wanted else "CPU build")
    known = run.architectures()
    if not known:
        raise warn("torch does not say what it was built for", "look at the package's own description")
    seen, ways = " ".join(known), {a: covers(a, known) for a in wanted}
    if missing := [a for a in wanted if ways[a] == "no"]:
        raise fail(seen, "the recipe wants %s: take a torch that was built for it" % ", ".join(missing))
    if compiled := [a for a in wanted if ways[a] == "jit"]:
        raise warn(
            seen, "torch will compile its kernels for %s at the first run: slow starts" % ", ".join(compiled)
        )
    return seen


# probes: GPU ----------------------------------------------------------------------------------------------------------


@probe("gpu.driver")
def probe_driver(run: Run) -> str:
    if run.build == "CPU" or run.options.expect == "none":
        raise skip("CPU build" if run.build == "CPU" else "no GPU is expected")
    if run.build == "HIP":
        version = read("/sys/module/amdgpu/version") or "in the kernel"
        if not os.path.exists(ROOT + "/dev/kfd"):
            raise fail("no /dev/kfd", GIVE_AMD)
        if not os.access(ROOT + "/dev/kfd", os.R_OK | os.W_OK):
            raise fail(
                "/dev/kfd may not be opened", "join the groups video and render: --group-add keep-groups"
            )
        return "amdgpu %s, torch of HIP %s" % (version, run.torch.version.hip)
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        if "GLIBC" in str(e):
            raise fail(
                one_line(e), "the host's driver needs a newer glibc than the image's: a newer base image"
            ) from None
        raise fail("no libcuda.so.1", GIVE_NVIDIA) from None
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        raise fail(
            "libcuda.so.1 does not tell its version",
            "the host's driver does not work: try nvidia-smi on the host",
        )
    driver = (number.value // 1000, number.value % 1000 // 10)
    runtime = tuple(int(x) for x in run.torch.version.cuda.split(".")[:2])
    seen = "driver for CUDA %d.%d, torch of CUDA %s" % (*driver, run.torch.version.cuda)
    if driver[0] < runtime[0]:
        raise fail(
            seen, "the driver is too old for this torch: update it, or take torch of CUDA %d" % driver[0]
        )
    if driver < runtime:
        raise warn(seen, "works by CUDA's minor version compatibility; kernels compiled at run time may not")
    return seen


@probe("gpu.visible")
def probe_devices(run: Run) -> str:
    expect, wanted, count = run.options.expect, run.options.devices, run.gpus
    if expect == "none" or (expect == "auto" and not count and not wanted):
        raise skip("no GPU is expected")
    if not count:
        advice = "give the container the GPU (--gpus all, --gpu, --nv, --rocm), or ask the job for one; CPU torch never sees any"
        raise fail(
            "torch sees no GPU: %s; in /dev: %s" % (why_no_gpu(run), " ".join(device_files()) or "none"),
            advice,
        )
    described = ["%s (%s)" % (run.torch.cuda.get_device_name(i), run.architecture(i)) for i in range(count)]
    seen = "%d: %s" % (count, ", ".join(described))
    if count == 1 and run.place.ranks > 1:  # each rank was given one of its own
        count = run.place.local_ranks or wanted or 1
        seen += " for each of %s ranks" % (run.place.local_ranks or "the")
    if wanted is not None and count != wanted:
        advice = "%d were expected: look at CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES, and at what the job asked for"
        raise fail(seen, advice % wanted)
    return seen


@probe("gpu.architecture")
def probe_gpu_architecture(run: Run) -> str:
    if not run.gpus or run.options.expect == "none":
        raise skip("no GPU")
    known, own = run.architectures(), sorted({run.architecture(i) for i in range(run.gpus)})
    seen = "%s; torch has %s" % (" ".join(own), " ".join(known))
    for name in own:
        how = covers(name, known)
        if how == "no":
            raise fail(seen, "torch has no code for %s: take one that was built for it" % name)
        if how == "jit":
            raise warn(seen, "torch compiles its kernels for %s at the first run: slow starts" % name)
    return seen


@probe("gpu.compute")
def probe_compute(run: Run) -> str:
    """Every GPU multiplies two small matrices and gives the CPU's result."""
    if not run.own_gpus:
        raise skip("no GPU")
    a, b = (random_matrix(run, 256, seed) for seed in (1, 2))
    expected = a.double() @ b.double()
    for index in run.own_gpus:
        device = "cuda:%d" % index
        got = run.torch.mm(a.to(device), b.to(device)).double().cpu()
        error = float((got - expected).abs().max() / expected.abs().max())
        if not error <= 1e-2:
            raise fail(
                "GPU %d is off by %.2g" % (index, error),
                "wrong results: a fault of device, driver or library",
            )
    return "%d right" % len(run.own_gpus)


@probe("gpu.ecc")
def probe_ecc(run: Run) -> str:
    states = known_states(run, "ecc", "ecc_uncorrected", "remap_failed", "remap_pending")
    for index, state in states.items():
        if state.get("ecc_uncorrected") or state.get("remap_failed"):
            seen = "GPU %d: %s" % (index, described_errors(state))
            raise fail(seen, "its memory is faulty: take the node out of use, and tell its keepers")
        if state.get("remap_pending"):
            raise warn(
                "GPU %d: memory rows wait to be replaced" % index,
                "the GPU must be reset: tell the node's keepers",
            )
        if state.get("ecc") is False:
            raise warn(
                "GPU %d: ECC is off" % index,
                "wrong bits go unseen: nvidia-smi -e 1 and a reboot, if they matter",
            )
    return "no uncorrected error"


def described_errors(state: Item) -> str:
    count = state.get("ecc_uncorrected") or 0
    words = ["%d memory errors that ECC could not correct" % count] if count else []
    return ", ".join(
        words + (["memory rows that could not be replaced"] if state.get("remap_failed") else [])
    )


@probe("gpu.persistence")
def probe_persistence(run: Run) -> str:
    off = [i for i, state in known_states(run, "persistence").items() if not state["persistence"]]
    if off:
        seen = "off on GPU %s" % ", ".join(map(str, off))
        raise warn(
            seen,
            "every start loads the driver anew, seconds each time: nvidia-smi -pm 1, or nvidia-persistenced",
        )
    return "on"


def known_states(run: Run, *keys: str) -> Dict[int, Item]:
    """What can be read about this rank's GPUs, where one of these keys is in it; skips when nothing is."""
    if not run.own_gpus:
        raise skip("no GPU")
    states = {i: gpu_state(run, i) for i in run.own_gpus}
    states = {i: s for i, s in states.items() if any(k in s for k in keys)}
    if not states:
        raise skip("cannot be read here")
    return states


@probe("gpu.dnn")
def probe_dnn(run: Run) -> str:
    name = {"CUDA": "cuDNN", "HIP": "MIOpen"}.get(run.build)
    if name is None or run.options.expect == "none":
        raise skip("CPU build" if name is None else "no GPU is expected")
    cudnn = run.torch.backends.cudnn
    if not cudnn.is_available():
        if not run.gpus:
            raise skip("torch tells only where a GPU is")
        raise fail(
            "torch has no " + name,
            "convolutions will be slow or fail: lock a torch with %s, and %s itself" % (name, name),
        )
    if not cudnn.enabled:
        raise warn(name + " is switched off", "something set torch.backends.cudnn.enabled = False")
    return "%s %s" % (name, cudnn.version())


# probes: network ------------------------------------------------------------------------------------------------------


@probe("nccl.version")
def probe_nccl(run: Run) -> str:
    name = {"CUDA": "NCCL", "HIP": "RCCL"}.get(run.build)
    if name is None or run.options.expect == "none":
        raise skip("CPU build" if name is None else "no GPU is expected")
    distributed = run.torch.distributed
    if not (distributed.is_available() and distributed.is_nccl_available()):
        several = run.place.ranks > 1 or run.gpus > 1
        raise (fail if several else warn)(
            "torch has no " + name, "several GPUs cannot work together: lock a torch with " + name
        )
    version = run.torch.cuda.nccl.version()
    return "%s %s" % (name, ".".join(map(str, version)) if isinstance(version, tuple) else version)


@probe("nccl.interface")
def probe_interface(run: Run) -> str:
    """NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name interfaces that are there (RCCL reads NCCL's)."""
    there = names("/sys/class/net")
    used = ["GLOO_SOCKET_IFNAME"] + (
        ["NCCL_SOCKET_IFNAME"] if run.torch is None or run.build != "CPU" else []
    )
    found = []
    for variable in sorted(used):
        value = os.environ.get(variable)
        if not value:
            continue
        if not any(matches_interface(value, name) for name in there):
            seen = "%s=%s, but there is %s" % (variable, value, " ".join(there) or "none")
            raise fail(seen, "name an interface that this node has, or unset the variable")
        found.append("%s=%s" % (variable, value))
    fast = [n for n in there if re.fullmatch(r"(hsn|ib|ibs?p?)\d+\w*", n)]
    if fast and 0 < run.place.local_ranks < run.place.ranks and not os.environ.get("NCCL_SOCKET_IFNAME"):
        raise warn(
            "not set, though there is " + " ".join(fast),
            "NCCL_SOCKET_IFNAME=%s" % fast[0].rstrip("0123456789"),
        )
    return " ".join(found) or "not set; there is " + (" ".join(there) or "none")


def matches_interface(value: str, name: str) -> bool:
    """As NCCL reads it: names by their beginning, ``=`` for the whole name, ``^`` for all but these. Gloo: the whole name."""
    negated = value.startswith("^")
    exact = value.lstrip("^").startswith("=")
    wanted = [w for w in value.lstrip("^=").split(",") if w]
    hit = any(name == w if exact else name.startswith(w) for w in wanted)
    return hit != negated


@probe("nccl.transport", late=True)
def probe_transport(run: Run) -> str:
    """What NCCL's own log says about the network it took; the collectives have been measured by now."""
    text = run.kept.get("nccl_log", "")
    if not text:
        raise skip("no collective was measured with NCCL or RCCL")
    said = transport(text)
    nodes = len(set(run.hosts)) or 1
    seen = "%s %s" % (said["library"] or "NCCL", said["version"])
    seen += ", network: %s, between GPUs: %s" % (
        said["network"] or "none",
        " ".join(said["paths"]) or "not said",
    )
    fabric = fast_fabric()
    if said["network"] == "Socket" and fabric:
        advice = (
            "it fell back to TCP sockets, about ten times slower than the %s of this node: put aws-ofi-nccl or aws-ofi-rccl and "
            "libfabric on LD_LIBRARY_PATH (podman-hpc --nccl, the site's bindings)" % fabric
        )
        raise (fail if nodes > 1 else warn)(seen, advice)
    if said["network"] == "Socket" and nodes > 1:
        raise warn(seen, "TCP sockets between nodes: slow, if this site has a faster network")
    return seen


def transport(log: str) -> Item:
    """Library, version, network plugin and the paths between GPUs, of a log written with NCCL_DEBUG=INFO."""
    found = re.search(r"\b([NR]CCL) version :?\s*([0-9][\w.+-]*)", log)
    network = ""
    if re.search(r"NET/OFI .*(Using aws-ofi|Initializing aws-ofi|Selected [Pp]rovider)", log):
        network = "OFI (%s)" % (re.search(r"Selected [Pp]rovider is (\S+)", log) or ["", "aws-ofi"])[
            1
        ].rstrip(",(")
    using = re.findall(r"Using network ([\w /-]+?)\s*(?:$|\n)", log)
    if using:
        network = (
            network if using[-1].upper().startswith(("AWS", "OFI", "LIBFABRIC")) and network else using[-1]
        )
    elif not network:
        network = (
            "IB"
            if re.search(r"NET/IB : Using \[", log)
            else "Socket"
            if re.search(r"NET/Socket : Using \[", log)
            else ""
        )
    paths = sorted(set(re.findall(r"via (P2P(?:/\w+)*|SHM(?:/\w+)*|NET/\w+)", log)))
    return {
        "library": found[1] if found else "",
        "version": found[2] if found else "",
        "network": network,
        "paths": paths,
    }


def fast_fabric() -> str:
    """Slingshot or InfiniBand on this node, or nothing."""
    if names("/sys/class/cxi") or any(n.startswith("hsn") for n in names("/sys/class/net")):
        return "Slingshot"
    return "InfiniBand" if names("/sys/class/infiniband") else ""


@probe("miopen.cache")
def probe_miopen(run: Run) -> str:
    if run.need_torch is None or run.build != "HIP":
        raise skip("no MIOpen")
    home = os.environ.get("HOME") or "/"
    places = {
        "MIOPEN_USER_DB_PATH": os.environ.get("MIOPEN_USER_DB_PATH") or home + "/.config/miopen",
        "MIOPEN_CUSTOM_CACHE_DIR": os.environ.get("MIOPEN_CUSTOM_CACHE_DIR") or home + "/.cache/miopen",
    }
    advice = "set %s to a folder of this node, such as /tmp/$USER-miopen"
    for variable, path in places.items():
        kind = file_system(path)[1]
        if NETWORK_FILE_SYSTEMS.fullmatch(kind):
            raise warn(
                "%s is on %s" % (path, kind), "its SQLite files fail there, or are slow: " + advice % variable
            )
        if not writable(path):
            raise warn(
                "%s cannot be written" % path,
                "kernels are searched and compiled anew in every process: " + advice % variable,
            )
    return " ".join(places.values())


# probes: processor and memory -----------------------------------------------------------------------------------------


@probe("cpu.affinity")
def probe_affinity(run: Run) -> str:
    usable, total = usable_cores(), os.cpu_count() or 1
    physical = physical_cores()
    seen = "%d of %d cores, %s threads" % (usable, total, run.torch.get_num_threads() if run.torch else "?")
    if usable == 1 < total or (physical == 1 < usable and total > 2):
        what = "everything shares one core" if usable == 1 else "these are the threads of one core"
        raise fail(seen, what + ": ask for more (--cpus-per-task, --cpu-bind, --cpuset-cpus)")
    limit = quota()
    if limit is not None and limit < 1:
        raise warn(
            "%s, and a quota of %.2g" % (seen, limit), "the control group gives less than a core: --cpus"
        )
    return seen


@probe("gpu.distance")
def probe_distance(run: Run) -> str:
    """This rank may run on cores near its GPU (Linux: local_cpulist of the PCI device)."""
    if not run.own_gpus:
        raise skip("no GPU")
    cores, near = affinity(), {}
    for index in run.own_gpus:
        local = read("/sys/bus/pci/devices/%s/local_cpulist" % pci_address(run, index))
        if local:
            near[index] = number_list(local)
    if not near:
        raise skip("the system does not say which cores are near")
    seen = "cores %s; near: %s" % (
        ranges(cores),
        "; ".join("GPU %d %s" % (i, ranges(n)) for i, n in near.items()),
    )
    far = [i for i, n in near.items() if not n & cores]
    if far and (run.place.ranks > 1 or len(far) == len(near)):
        own = near[far[0]]
        advice = "copies to GPU %d cross the sockets: bind this rank to cores %s (--cpu-bind=map_cpu, --gpu-bind=closest)"
        raise warn(seen, advice % (far[0], ranges(own)))
    return seen


@probe("cpu.threads")
def probe_threads(run: Run) -> str:
    value, usable = os.environ.get("OMP_NUM_THREADS"), usable_cores()
    if not value:
        return "OMP_NUM_THREADS is not set"
    seen = "OMP_NUM_THREADS=%s for %d cores" % (value, usable)
    try:
        threads = int(value.split(",")[0])
    except ValueError:
        threads = 0
    if threads < 1:
        raise warn(seen, "it is no number of threads: correct it, or unset it")
    if (
        threads * run.place.local_ranks > usable
        and len(affinity()) == (os.cpu_count() or 1)
        and run.place.local_ranks > 1
    ):
        raise warn(
            "%s and %d ranks" % (seen, run.place.local_ranks),
            "more threads than cores: threads wait for each other",
        )
    if threads > usable:
        raise warn(seen, "more threads than cores: threads wait for each other")
    if threads == 1 < usable and run.options.expect == "none" and run.place.ranks == 1:
        raise warn(seen, "torch computes with one thread: unset it, or set it to the number of cores")
    return seen


@probe("memory.shm")
def probe_shm(run: Run) -> str:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError as e:
        raise warn("/dev/shm: %s" % e.strerror, "DataLoader workers need it: mount a tmpfs there") from None
    size = stat.f_frsize * stat.f_blocks
    seen = "/dev/shm has %.0f MiB" % (size / 2**20)
    if size < 512 << 20 or not os.access("/dev/shm", os.W_OK):
        raise warn(
            seen, "DataLoader workers and NCCL need more, and to write there: --shm-size=8g, or --ipc=host"
        )
    return seen


# probes: python and system --------------------------------------------------------------------------------------------


@probe("python.usersite")
def probe_user_site(run: Run) -> str:
    own = site.getusersitepackages()
    if own not in sys.path:
        return "not in use"
    if run.torch is not None and str(run.torch.__file__).startswith(own):
        raise fail("torch comes from " + own, "your own packages hide the image's: set PYTHONNOUSERSITE=1")
    raise warn(own + " is in use", "packages of your own may hide the image's: set PYTHONNOUSERSITE=1")


@probe("python.path")
def probe_python_path(run: Run) -> str:
    found = [
        "%s=%s" % (name, os.environ[name]) for name in ("PYTHONPATH", "PYTHONHOME") if os.environ.get(name)
    ]
    if found:
        raise warn(" ".join(found), "packages from elsewhere may hide the image's: unset it")
    return "PYTHONPATH and PYTHONHOME are not set"


@probe("system.home")
def probe_home(run: Run) -> str:
    """A home from the host hides what the image has there; and a home must be there, and be writable."""
    home = os.environ.get("HOME") or os.path.expanduser("~")
    advice = "torch, Triton and MIOpen keep their caches there: bind a home, or set HOME to a folder that can be written"
    if not os.path.isdir(home):
        raise warn("HOME=%s does not exist" % home, advice)
    mounted = file_system(home)[0] not in ("", "/")
    if mounted and home != "/":
        if within(sys.prefix, home):
            seen = "python runs from %s, in a home that is bound over the image's" % sys.prefix
            raise fail(seen, "the image's own is hidden: --no-home, or an environment outside of homes")
        hidden = [
            "%s=%s" % (variable, path)
            for variable in (
                "CONDA_PREFIX",
                "SSL_CERT_FILE",
                "SSL_CERT_DIR",
                "LD_LIBRARY_PATH",
                "PATH",
                "PYTHONPATH",
            )
            for path in os.environ.get(variable, "").split(":")
            if within(path, home)
            and not os.path.exists(path)
            and not path.endswith(("/.local/bin", home + "/bin"))
        ]
        if hidden:
            seen = "HOME=%s is bound from elsewhere, and there is no %s" % (home, hidden[0])
            sure = hidden[0].startswith(
                ("CONDA_PREFIX=", "SSL_CERT")
            )  # a path may hold what no image ever had
            raise (fail if sure else warn)(
                seen, "the image's files there are out of sight: --no-home, or HOME elsewhere"
            )
    if not os.access(home, os.W_OK):
        raise warn("HOME=%s cannot be written" % home, advice)
    return home + (" (mounted)" if mounted else "")


@probe("system.certificates")
def probe_certificates(run: Run) -> str:
    try:
        import ssl
    except ImportError as e:
        raise warn("no ssl module: %s" % e, "no download will work in this image") from None
    paths = ssl.get_default_verify_paths()
    advice = "https will not work in this image: add ca-certificates, or correct the variable"
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        if os.environ.get(name) and not os.path.exists(os.environ[name]):
            raise warn("%s=%s does not exist" % (name, os.environ[name]), advice)
    if paths.cafile:
        try:
            count = ssl.create_default_context(cafile=paths.cafile).cert_store_stats()["x509_ca"]
        except OSError as e:  # ssl.SSLError is one
            raise warn("%s: %s" % (paths.cafile, one_line(e)), advice) from None
        if not count:
            raise warn("no certificate in " + paths.cafile, advice)
        return str(paths.cafile)
    if not (paths.capath and os.path.isdir(paths.capath) and os.listdir(paths.capath)):
        raise warn("none at %s or %s" % (paths.openssl_cafile, paths.openssl_capath), advice)
    return str(paths.capath)


@probe("system.tmp")
def probe_tmp(run: Run) -> str:
    try:
        folder = tempfile.gettempdir()
    except OSError as e:
        raise fail(
            one_line(e), "torch needs room for temporary files: mount or bind a folder at /tmp, or set TMPDIR"
        ) from None
    stat = os.statvfs(folder)
    if stat.f_flag & 8:  # ST_NOEXEC
        advice = "what Triton, torch.compile and MIOpen compile there cannot be run: set TMPDIR to a folder of a file system with exec"
        raise warn("%s is mounted noexec" % folder, advice)
    free = stat.f_frsize * stat.f_bavail
    if free < 64 << 20:
        raise warn("%s has %.0f MiB free" % (folder, free / 2**20), "make room there, or set TMPDIR")
    if long_for_sockets(folder):
        raise warn("%s is too long a path for sockets" % folder, SHORT_TMP)
    return "%s, %.1f GiB free" % (folder, free / 2**30)


SHORT_TMP = "workers of a DataLoader hand tensors over by sockets there, and hang: bind a writable /tmp, or set TMPDIR to a short path"


def long_for_sockets(folder: str) -> bool:
    """Whether Python's ``pymp-XXXXXXXX/listener-XXXXXXXX`` in a folder makes a path that no Unix socket can have (107 bytes)."""
    return len(os.fsencode(folder)) + 32 > 107


@probe("system.locale")
def probe_locale(run: Run) -> str:
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") != "utf8":
        raise warn("file names are " + encoding, "set LANG=C.UTF-8")
    return encoding


@probe("system.timezone")
def probe_time_zone(run: Run) -> str:
    zone = os.environ.get("TZ", "").lstrip(":")
    if "/" in zone and not os.path.exists(
        zone if zone.startswith("/") else ROOT + "/usr/share/zoneinfo/" + zone
    ):
        raise warn(
            "TZ=%s, but the image has no such zone: times are UTC" % zone,
            "add tzdata, or bind /usr/share/zoneinfo",
        )
    local = ROOT + "/etc/localtime"
    if not zone and os.path.islink(local) and not os.path.exists(local):
        raise warn(
            "/etc/localtime leads to %s, which is not there: times are UTC" % os.readlink(local),
            "bind the host's, or add tzdata",
        )
    return "%s (UTC%s)" % (time.tzname[0], time.strftime("%z"))


@probe("system.glibc")
def probe_glibc(run: Run) -> str:
    """The image's C library; what a runner brings from the host (--nv, --rocm, bindings) must not need a newer one."""
    name, version = platform.libc_ver()
    if name != "glibc":
        raise fail(
            "the C library is %s" % (name or "not glibc"),
            "torch's packages need glibc: take a Debian, Ubuntu or RHEL base",
        )
    own = tuple(int(x) for x in re.findall(r"\d+", version)[:2])
    needing = [(needed_glibc(path), path) for path in foreign_libraries()]
    newest, path = max(needing, default=((0, 0), ""))
    if newest > own:
        advice = (
            "libraries of the host do not load: a base image with glibc %d.%d or newer, or do not bind them"
        )
        raise fail("glibc %s, but %s needs %d.%d" % (version, path, *newest), advice % newest)
    if own < (2, 28):
        raise warn("glibc " + version, "torch's wheels of today need 2.28: take a newer base image")
    return "glibc %s%s" % (version, "; %d libraries of the host fit" % len(needing) if needing else "")


def foreign_libraries() -> List[str]:
    """Shared libraries that do not come from the image: Apptainer's folder, and mounts on the library path."""
    folders = [ROOT + "/.singularity.d/libs"]
    folders += [
        f
        for f in os.environ.get("LD_LIBRARY_PATH", "").split(":")
        if f and file_system(f)[0] not in ("", "/")
    ]
    found = sorted(
        {
            path
            for folder in folders
            for path in glob.glob(glob.escape(folder) + "/lib*.so*")
            if os.path.isfile(path)
        }
    )
    return found[:300]


def needed_glibc(path: str) -> Tuple[int, int]:
    """The newest version of glibc that a library names; ELF keeps such names near its beginning."""
    try:
        with open(path, "rb") as f:
            data = f.read(1 << 20)
    except OSError:
        return (0, 0)
    if not data.startswith(b"\x7fELF"):
        return (0, 0)
    return max(
        ((int(a), int(b)) for a, b in re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?=[.\d]*\0)", data)), default=(0, 0)
    )


# probes: after the measurements ---------------------------------------------------------------------------------------


@probe("gpu.clocks", late=True)
def probe_clocks(run: Run) -> str:
    """Clock and temperature of each GPU under load, and whether something holds it down."""
    if not run.own_gpus:
        raise skip("no GPU")
    seen, slow = [], ""
    for index in run.own_gpus:
        state = run.kept.setdefault("after", {})[index] = loaded_state(run, index)
        if not state:
            continue
        words = [("%.0f MHz" % state["clock_mhz"]) if "clock_mhz" in state else "clock not known"]
        words += ["of %.0f" % state["clock_max_mhz"]] if "clock_max_mhz" in state else []
        words += ["%.0f C" % state["temperature_c"]] if "temperature_c" in state else []
        words += ["held down by " + ", ".join(state["throttled"])] if state.get("throttled") else []
        seen.append("GPU %d: %s" % (index, " ".join(words)))
        serious = [t for t in state.get("throttled", []) if t != "power cap"]
        slow = slow or (", ".join(serious) if serious else "")
        if not slow and state.get("clock_mhz", 1e9) < 0.5 * state.get("clock_max_mhz", 0):
            slow = "a clock below half of what it can be"
    if not seen:
        raise skip("cannot be read here")
    if slow:
        raise warn(
            "; ".join(seen),
            "slow for a reason (%s): cooling, power supply, or clocks that were set by hand" % slow,
        )
    return "; ".join(seen)


@probe("machine.steady", late=True)
def probe_steady(run: Run) -> str:
    """Whether this process got the processor it asked for, and figures that mean something."""
    share = run.busy_s / run.wall_s if run.wall_s else 1.0
    held = throttled_s() - run.kept.get("throttled_s", 0.0)
    uneven = [m["id"] for m in run.results if m["status"] == "pass" and m.get("lost_fraction", 0) > 0.35]
    seen = "%.0f %% of a core while computing" % (100 * min(share, 1.0))
    if held > 1:
        raise warn(
            "%s; the control group held it back for %.1f s" % (seen, held),
            "a CPU quota that is too small: --cpus",
        )
    if share < 0.8:
        raise warn(
            seen,
            "something else uses this machine, or slows this process down: figures are too low; run again alone",
        )
    if len(uneven) > 1:
        raise warn(
            "uneven: " + ", ".join(uneven),
            "something else uses this device, or slows it down: run again alone",
        )
    return seen


@probe("time.budget", late=True)
def probe_budget(run: Run) -> str:
    missed = run.kept.get("missed", [])
    used = time.monotonic() - run.started
    if missed:
        seen = "%.0f s were not enough for %s" % (run.budget_s, ", ".join(missed))
        raise warn(seen, "a slow machine: give it more (--budget), or ask why (machine.steady)")
    return "%.0f of %.0f s" % (used, run.budget_s)


# measurements: starting -----------------------------------------------------------------------------------------------

STARTER = """
import sys, time
t = time.perf_counter()
import torch
u = time.perf_counter()
x = torch.full((64, 64), 2.0, device=sys.argv[1])
said = (x @ x).sum().item()
print()
print(u - t, time.perf_counter() - u, said, torch.__version__)
"""


def starts(run: Run) -> List[Tuple[float, float, float, str]]:
    """Seconds for importing torch and for its first kernel, in new processes."""
    if "starts" not in run.kept:
        found: List[Tuple[float, float, float, str]] = []
        run.kept["starts"] = found
        begun, limit_s = time.monotonic(), run.share(8.0)
        while not found or (
            len(found) < 3 and time.monotonic() - begun < limit_s * len(found) / (len(found) + 1)
        ):
            command = [sys.executable, "-c", STARTER, run.device]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
            words = done.stdout.decode("utf-8", "replace").split()
            if done.returncode or len(words) < 4:
                advice = "look at what differs in a new process: memory, limits, variables; an exclusive GPU takes one process only"
                raise fail(
                    "torch imports here, but does not start in a new process (exit code %d)"
                    % done.returncode,
                    advice,
                )
            found.append((float(words[-4]), float(words[-3]), float(words[-2]), words[-1]))
    return list(run.kept["starts"])


@measurement("torch.import_time", "once")
def measure_import(run: Run) -> Item:
    """Importing torch in new processes: what every job pays first. ``first_s`` is this process's own."""
    version, found = str(run.need_torch.__version__), starts(run)
    check = checked("a new process imports the same version", found[-1][3], version, found[-1][3] == version)
    return {**spread("s", [f[0] for f in found]), "better": "lower", "first_s": run.import_s, **check}


@measurement("torch.first_kernel", "once")
def measure_first_kernel(run: Run) -> Item:
    """From the end of the import to the first result from the device: the driver's and the libraries' start."""
    run.need_torch  # noqa: B018
    device, found = run.device, starts(run)
    check = checked("sum of the first product", found[-1][2], 64.0**3 * 4, found[-1][2] == 64.0**3 * 4)
    return {**spread("s", [f[1] for f in found]), "better": "lower", "device": device, **check}


# measurements: training -----------------------------------------------------------------------------------------------

#: From 93 to 97 % come out, by seed and rounding.
ACCURACY = 0.9
STEPS, BATCH, TESTED = 200, 64, 200


@measurement("training")
def measure_training(run: Run) -> Item:
    """A small convolutional network learns to read handwritten digits, from a fixed seed; the time is that of a step."""
    torch = run.need_torch
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # on CPUs it is too small for more: threads would wait for each other
    try:
        return train(run)
    finally:
        torch.set_num_threads(before)


def train(run: Run) -> Item:
    torch, device = run.torch, run.device
    images, labels = (t.to(device) for t in handwritten_digits(torch))
    torch.manual_seed(7)
    nn = torch.nn
    features = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = nn.Sequential(*features, nn.Linear(16 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    losses, milliseconds = [], []
    trained = len(images) - TESTED
    for step in range(STEPS):
        chosen = torch.arange(step * BATCH, (step + 1) * BATCH, device=device) % trained
        started = time.perf_counter()
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.item()))  # waits for the device
        milliseconds.append(1e3 * (time.perf_counter() - started))
        if not math.isfinite(losses[-1]):
            seen = "the loss is %s at step %d" % (losses[-1], step)
            raise fail(seen, "wrong results: a fault of device, driver or library", device=device, step=step)
    with torch.no_grad():
        accuracy = float((model(images[-TESTED:]).argmax(1) == labels[-TESTED:]).float().mean().item())
    fields = {
        "device": device,
        "first_step_ms": milliseconds[0],
        "first_loss": losses[0],
        "last_loss": losses[-1],
        **checked("accuracy on digits not trained on", accuracy, ACCURACY, accuracy >= ACCURACY),
    }
    if not accuracy >= ACCURACY:
        seen = "accuracy %.3f after %d steps, at least %g is right" % (accuracy, STEPS, ACCURACY)
        raise fail(seen, "the training does not converge: wrong results somewhere", **fields)
    return {**spread("ms", milliseconds[10:]), "better": "lower", **fields}


def handwritten_digits(torch: Any) -> Tuple[Any, Any]:
    """Images (1000, 1, 8, 8) from 0 to 1 and labels; see DIGITS."""
    data = zlib.decompress(base64.b85decode("".join(DIGITS.split())))
    numbers = torch.tensor(list(data), dtype=torch.float32)
    return numbers[:-1000].reshape(-1, 1, 8, 8) / 4, numbers[-1000:].long()


# measurements: arithmetic ---------------------------------------------------------------------------------------------

PRECISIONS = {
    # largest error of a row against float64, over the rows' typical size
    "fp32": ("float32", 1e-4),
    "tf32": ("float32", 1e-2),
    "fp16": ("float16", 2e-2),
    "bf16": ("bfloat16", 5e-2),
}
SIZES = {"cpu": (512, 1024, 2048), "gpu": (2048, 4096, 8192, 16384)}


def matmul(run: Run, precision: str) -> Item:
    """Matrix products of several sizes, all checked; the fastest size counts."""
    torch, device = run.need_torch, run.device
    if reason := without(run, precision):
        raise skip(reason)
    name, limit = PRECISIONS[precision]
    sizes: List[Item] = []
    best: Item = {}
    began, limit_s = time.monotonic(), run.share(4.0)
    with TF32(torch, precision == "tf32"):
        for n in SIZES[run.kind]:
            last_s = time.monotonic() - began
            if sizes and last_s * 5 > limit_s:
                break  # the next size takes eight times as long
            if run.on_gpu and 16 * n * n > torch.cuda.mem_get_info(run.index)[0] // 2:
                break
            a, b = (random_matrix(run, n, seed, device).to(dtype=getattr(torch, name)) for seed in (n, n + 1))
            error = reference_error(torch, a, b, torch.matmul(a, b))
            check = checked("largest error of a row against float64", error, limit, error <= limit)
            if not error <= limit:
                seen = "the product of two %s matrices of size %d is off by %.2g" % (precision, n, error)
                raise fail(
                    seen,
                    "wrong results: a fault of device, driver or library",
                    device=device,
                    size=n,
                    **check,
                )
            seconds = timed(run, functools.partial(torch.matmul, a, b), limit_s=limit_s / 8)
            item = {"size": n, **rate("gflop_per_s", 2e-9 * n**3, seconds), **check}
            sizes.append(
                {
                    k: v
                    for k, v in item.items()
                    if k in ("size", "median_gflop_per_s", "mad_gflop_per_s", "repeats")
                }
            )
            if not best or item["median_gflop_per_s"] > best["median_gflop_per_s"]:
                best = {**item, "flop": 2.0 * n**3, "bytes": 3.0 * n * n * a.element_size()}
    return {**best, "device": device, "sizes": sizes}


for _precision in PRECISIONS:
    measurement("matmul." + _precision, only="gpu" if _precision in ("tf32", "fp16") else "")(
        functools.partial(matmul, precision=_precision)
    )


@measurement("cpu.peak", only="cpu")
def measure_peak(run: Run) -> Item:
    """What this processor computes at most, by cores: with memory.triad, the roofline for whatever else runs on it."""
    torch = run.need_torch
    before = torch.get_num_threads()
    counts = sorted({1, *(2**k for k in range(12) if 2**k < before), before})
    cores, limit_s = [], run.share(2.5)
    best: Item = {}
    check = {}
    try:
        for n in (512, 1024):
            a, b = (random_matrix(run, n, seed) for seed in (3, 4))
            out = torch.empty_like(a)
            error = reference_error(torch, a, b, torch.mm(a, b))
            check = checked("largest error of a row against float64", error, 1e-4, error <= 1e-4)
            if not error <= 1e-4:
                break
            for count in counts:
                torch.set_num_threads(count)
                seconds = timed(
                    run, functools.partial(torch.mm, a, b, out=out), limit_s=limit_s / len(counts) / 2
                )
                item = {
                    "size": n,
                    "flop": 2.0 * n**3,
                    "bytes": 12.0 * n * n,
                    **rate("gflop_per_s", 2e-9 * n**3, seconds),
                }
                cores.append(
                    {
                        "cores": count,
                        **{k: item[k] for k in ("size", "median_gflop_per_s", "mad_gflop_per_s")},
                    }
                )
                if count == before and (not best or item["median_gflop_per_s"] > best["median_gflop_per_s"]):
                    best = item
    finally:
        torch.set_num_threads(before)
    fastest = [
        max((c for c in cores if c["cores"] == n), key=lambda c: float(c["median_gflop_per_s"]))
        for n in counts
        if cores
    ]
    return {**best, "device": "cpu", "threads": before, "cores": fastest, **check}


#: batch, channels, height and width
CONVOLUTIONS = {"cpu": (8, 32, 28), "gpu": (64, 128, 56)}


@measurement("conv.training")
def measure_convolutions(run: Run) -> Item:
    """A training step of two 3x3 convolutions with a ReLU between them: forward, backward, update."""
    torch = run.need_torch
    precision = "fp16" if run.on_gpu and not without(run, "fp16") else "fp32"
    dtype, limit = getattr(torch, PRECISIONS[precision][0]), 1e-3 if precision == "fp32" else 3e-2

    def tensors(batch: int, channels: int, size: int) -> List[Any]:
        generator = torch.Generator().manual_seed(5)
        shapes = (
            (batch, channels, size, size),
            (channels, channels, 3, 3),
            (channels, channels, 3, 3),
            (batch, channels, size, size),
        )
        scales = (
            1.0,
            1 / math.sqrt(4.5 * channels),
            1 / math.sqrt(4.5 * channels),
            1 / math.sqrt(batch * size * size),
        )
        made = [torch.randn(s, generator=generator) * scale for s, scale in zip(shapes, scales)]  # noqa: B905
        return [
            t.to(device=run.device, dtype=dtype).contiguous(memory_format=torch.channels_last) for t in made
        ]

    def gradients(x: Any, first: Any, second: Any, g: Any) -> List[Any]:
        conv = torch.nn.functional.conv2d
        weights = [first.detach().requires_grad_(), second.detach().requires_grad_()]
        out = conv(torch.relu(conv(x, weights[0], padding=1)), weights[1], padding=1)
        out.backward(g)
        return [out.detach(), *(w.grad for w in weights)]

    small = tensors(2, 16, 8)
    error = worst_error(gradients(*small), gradients(*(t.double().cpu() for t in small)))
    check = checked("error of output and gradients against float64", error, limit, error <= limit)
    if not error <= limit:
        seen = "output or gradients of a convolution are off by %.2g" % error
        raise fail(
            seen, "wrong results: a fault of device, driver, cuDNN or MIOpen", device=run.device, **check
        )
    batch, channels, size = CONVOLUTIONS[run.kind]
    x, first, second, g = tensors(batch, channels, size)

    def step() -> None:
        _, by_first, by_second = gradients(x, first, second, g)
        first.sub_(by_first, alpha=1e-6)
        second.sub_(by_second, alpha=1e-6)

    # the first convolution's input has no gradient: 2 forward, 1 + 2 backward
    flop = 5 * 2.0 * batch * size * size * channels * channels * 9
    moved = 5 * 2.0 * batch * channels * size * size * x.element_size()
    seconds = timed(run, step, limit_s=run.share(2.0))
    fields = {"device": run.device, "precision": precision, "size": batch, "flop": flop, "bytes": moved}
    return {**rate("gflop_per_s", flop / 1e9, seconds), **fields, **check}


#: batch, heads, length, width of a head
ATTENTIONS = {"cpu": (1, 4, 512, 64), "gpu": (4, 16, 2048, 64)}


@measurement("attention")
def measure_attention(run: Run) -> Item:
    """torch's scaled_dot_product_attention, forward and backward."""
    torch = run.need_torch
    attention = getattr(torch.nn.functional, "scaled_dot_product_attention", None)
    if attention is None:
        raise skip("torch %s has none" % torch.__version__)
    precision = "fp32"
    if run.on_gpu:
        precision = next((p for p in ("bf16", "fp16") if not without(run, p)), "fp32")
    dtype, limit = (
        getattr(torch, PRECISIONS[precision][0]),
        {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2}[precision],
    )

    def tensors(*shape: int) -> List[Any]:
        generator = torch.Generator().manual_seed(6)
        return [torch.randn(shape, generator=generator).to(device=run.device, dtype=dtype) for _ in range(4)]

    def gradients(function: Callable[..., Any], q: Any, k: Any, v: Any, g: Any) -> List[Any]:
        inputs = [t.detach().requires_grad_() for t in (q, k, v)]
        out = function(*inputs)
        out.backward(g)
        return [out.detach(), *(t.grad for t in inputs)]

    def plainly(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v

    small = tensors(1, 2, 128, 64)
    error = worst_error(gradients(attention, *small), gradients(plainly, *(t.double().cpu() for t in small)))
    check = checked("error of output and gradients against float64", error, limit, error <= limit)
    if not error <= limit:
        seen = "output or gradients of attention are off by %.2g" % error
        raise fail(seen, "wrong results: a fault of device, driver or library", device=run.device, **check)
    batch, heads, length, width = ATTENTIONS[run.kind]
    big = tensors(batch, heads, length, width)
    flop = 3.5 * 4.0 * batch * heads * length * length * width  # two products forward, five backward
    moved = 12.0 * batch * heads * length * width * big[0].element_size()
    seconds = timed(run, lambda: gradients(attention, *big), limit_s=run.share(2.0))
    fields = {"device": run.device, "precision": precision, "size": length, "flop": flop, "bytes": moved}
    return {**rate("gflop_per_s", flop / 1e9, seconds), **fields, **check}


# measurements: memory and copies --------------------------------------------------------------------------------------


def array_bytes(run: Run) -> int:
    """Of an array that no cache holds, and that does not fill the memory either."""
    if run.on_gpu:
        return int(min(1 << 30, run.torch.cuda.mem_get_info(run.index)[0] // 8))
    cache = cache_bytes()
    return (
        max(32 << 20, min(4 * cache, 256 << 20, (memory().get("available_bytes") or 1 << 30) // 16)) & -4096
    )


@measurement("memory.copy")
def measure_copy(run: Run) -> Item:
    """Copies within the device's memory; a byte read and a byte written count as two."""
    torch, device = run.need_torch, run.device
    size = array_bytes(run)
    source = torch.arange(size // 4, dtype=torch.int32, device=device)
    target = torch.zeros_like(source)
    seconds = timed(run, lambda: target.copy_(source), limit_s=run.share(0.8))
    wrong = int((source != target).sum().item())
    check = checked("words that differ after the copy", wrong, 0, wrong == 0)
    if wrong:
        seen = "%d of %d words differ after a copy" % (wrong, size // 4)
        raise fail(seen, "wrong results: a fault of memory, device or driver", device=device, **check)
    return {
        **rate("gb_per_s", 2e-9 * size, seconds),
        "device": device,
        "size": size,
        "bytes": 2.0 * size,
        **check,
    }


@measurement("memory.triad")
def measure_triad(run: Run) -> Item:
    """a = b + 3 c as STREAM counts it: two arrays read and one written."""
    torch, device = run.need_torch, run.device
    size = array_bytes(run)
    b = torch.arange(size // 4, dtype=torch.float32, device=device).remainder_(1000)
    c = torch.arange(size // 4, dtype=torch.float32, device=device).remainder_(77)
    a = torch.empty_like(b)
    seconds = timed(run, lambda: torch.add(b, c, alpha=3, out=a), limit_s=run.share(0.8))
    wrong = int((a.sub_(b).sub_(c).sub_(c).sub_(c) != 0).sum().item())  # all of it is exact in float32
    check = checked("wrong words", wrong, 0, wrong == 0)
    if wrong:
        seen = "%d of %d words of b + 3 c are wrong" % (wrong, size // 4)
        raise fail(seen, "wrong results: a fault of memory, device or driver", device=device, **check)
    fields = {"device": device, "size": size, "bytes": 3.0 * size, "flop": 2.0 * size / 4}
    return {**rate("gb_per_s", 3e-9 * size, seconds), **fields, **check}


def transfer(run: Run, to_device: bool, pinned: bool) -> Item:
    """Copies between the host's memory and the GPU's."""
    torch, device = run.need_torch, run.device
    size = int(min(256 << 20, torch.cuda.mem_get_info(run.index)[0] // 8))
    host = torch.arange(size // 4, dtype=torch.int32)
    host = host.pin_memory() if pinned else host
    there = host.to(device) if not to_device else torch.zeros(size // 4, dtype=torch.int32, device=device)
    back = torch.zeros_like(host)
    back = back.pin_memory() if pinned else back
    step = (
        (lambda: there.copy_(host, non_blocking=pinned))
        if to_device
        else (lambda: back.copy_(there, non_blocking=pinned))
    )
    seconds = timed(run, step, limit_s=run.share(0.5))
    run.synchronize()
    wrong = int(((there.cpu() if to_device else back) != host).sum().item())
    check = checked("words that differ after the copy", wrong, 0, wrong == 0)
    if wrong:
        seen = "%d of %d words differ after a copy" % (wrong, size // 4)
        raise fail(seen, "wrong results: a fault of bus, memory or driver", device=device, **check)
    return {
        **rate("gb_per_s", 1e-9 * size, seconds),
        "device": device,
        "size": size,
        "bytes": float(size),
        **check,
    }


for _to in (True, False):
    for _pinned in (True, False):
        _id = "transfer.%s_%s" % ("h2d" if _to else "d2h", "pinned" if _pinned else "pageable")
        measurement(_id, only="gpu")(functools.partial(transfer, to_device=_to, pinned=_pinned))


# measurements: feeding and saving -------------------------------------------------------------------------------------


class Samples:
    """A data set of packed images, as torch's DataLoader takes it: reading one means unpacking and scaling it."""

    SHAPE, DISTINCT = (3, 64, 64), 16

    def __init__(self, torch: Any, count: int) -> None:
        self.torch, self.count = torch, count
        size = math.prod(self.SHAPE)
        self.packed = [
            zlib.compress(bytes((i * 7 + k * (i + 3)) % 251 for k in range(size)), 1)
            for i in range(self.DISTINCT)
        ]
        self.sums = [float(sum(zlib.decompress(p))) for p in self.packed]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Tuple[Any, int]:
        data = bytearray(zlib.decompress(self.packed[i % self.DISTINCT]))
        return self.torch.frombuffer(data, dtype=self.torch.uint8).reshape(self.SHAPE).float().div_(255), i

    def expected(self) -> float:
        """The sum of all pixels of an epoch."""
        return sum(self.sums[i % self.DISTINCT] for i in range(self.count))


@measurement("dataloader", "once")
def measure_loader(run: Run) -> Item:
    """torch's DataLoader with worker processes: samples that are unpacked, batched and handed over by shared memory."""
    torch = run.need_torch
    samples, hung = Samples(torch, 1024), ""
    while True:
        try:
            item = load_epochs(run, samples)
            break
        except RuntimeError as e:
            words = next(
                (line.strip()[:300] for line in str(e).splitlines() if line.strip()), "no reason given"
            )
            if "timed out" in words and long_for_sockets(tempfile.gettempdir()):
                raise fail(
                    "DataLoader workers hang: %s is too long a path for sockets" % tempfile.gettempdir(),
                    SHORT_TMP,
                ) from None
            if "timed out" in words and not hung:
                hung = words  # forked workers hang now and then, by a lock that another thread held; always is another matter
                continue
            advice = "shared memory too small (--shm-size, --ipc=host), or too little memory; see memory.shm"
            raise fail("a DataLoader worker ended: %s" % words, advice) from None
    if hung:
        advice = "forked beside a thread that held a lock, perhaps: multiprocessing_context='spawn' or 'forkserver' avoids that"
        raise warn("DataLoader workers hung once, and then worked: %s" % hung, advice, **item)
    return item


def load_epochs(run: Run, samples: "Samples") -> Item:
    """Some epochs of a DataLoader. Raises RuntimeError when a worker dies, or gives nothing for 20 s."""
    torch = run.need_torch
    workers, batch, limit_s = max(1, min(4, usable_cores())), 64, run.share(5.0)
    options: Item = {
        "batch_size": batch,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(8),
        "num_workers": workers,
        "persistent_workers": True,
        "timeout": 20,
        "multiprocessing_context": "fork",
    }
    rates: List[float] = []
    off = indices = 0.0
    began = time.monotonic()
    loader = importlib.import_module("torch.utils.data").DataLoader(samples, **options)
    while len(rates) < 2 or (len(rates) < 6 and time.monotonic() - began < limit_s):
        pixels = indices = 0.0
        started = time.perf_counter()
        for images, numbers in loader:
            pixels += float(images.sum(dtype=torch.float64)) * 255
            indices += float(numbers.sum())
        rates.append(len(samples) / (time.perf_counter() - started))
        off = max(off, abs(pixels / samples.expected() - 1))
    del loader
    right = off < 1e-5 and indices == len(samples) * (len(samples) - 1) / 2
    check = checked("error of the sum of an epoch's pixels; every sample once", off, 1e-5, right)
    return {
        **spread("samples_per_s", rates[1:]),
        "better": "higher",
        "device": "cpu",
        "size": batch,
        "workers": workers,
        **check,
    }


@measurement("checkpoint.write", "once")
def measure_write(run: Run) -> Item:
    """torch.save of a state of many tensors to a file, until the file system says that it is there."""
    torch, device = run.need_torch, run.device
    folder = run.options.scratch or run.folder or tempfile.gettempdir()
    size = (256 if run.on_gpu else 64) << 20
    stat = os.statvfs(folder)
    if stat.f_frsize * stat.f_bavail < 3 * size:
        raise warn(
            "%s has no %d MiB free" % (folder, 3 * size >> 20),
            "checkpoints need room: --scratch with another folder",
        )
    state = {
        "layer%d" % i: torch.arange(size // 64, dtype=torch.float32, device=device).mul_(i + 1)
        for i in range(16)
    }  # 16 tensors
    path = os.path.join(folder, "builder-smoke-%d.pt" % os.getpid())
    run.kept["checkpoint"] = (path, state)
    rates: List[float] = []
    began, limit_s = time.monotonic(), run.share(2.5)
    while not rates or (len(rates) < 5 and time.monotonic() - began < limit_s):
        started = time.perf_counter()
        with open(path, "wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
        rates.append(1e-9 * size / (time.perf_counter() - started))
    written = os.path.getsize(path)
    check = checked("bytes of the file, at least", written, size, written >= size)
    fields = {"device": device, "size": size, "file_system": file_system(folder)[1]}
    return {**spread("gb_per_s", rates), "better": "higher", **fields, **check}


@measurement("checkpoint.read", "once")
def measure_read(run: Run) -> Item:
    """torch.load of the same file, compared tensor by tensor; the page cache is asked to forget it, and may not."""
    torch = run.need_torch
    if "checkpoint" not in run.kept:
        raise skip("there is no checkpoint")
    path, state = run.kept.pop("checkpoint")
    rates: List[float] = []
    wrong, size = 0, sum(t.numel() * t.element_size() for t in state.values())
    try:
        began, limit_s = time.monotonic(), run.share(2.0)
        while not rates or (len(rates) < 5 and time.monotonic() - began < limit_s):
            with open(path, "rb") as f:
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                started = time.perf_counter()
                back = torch.load(f, map_location=run.device)
                run.synchronize()
                rates.append(1e-9 * size / (time.perf_counter() - started))
            wrong = sum(1 for k, t in state.items() if k not in back or not torch.equal(t, back[k]))
    finally:
        os.unlink(path)
    check = checked("tensors that differ", wrong, 0, wrong == 0)
    if wrong:
        seen = "%d of %d tensors are not what was written" % (wrong, len(state))
        raise fail(seen, "the file system or torch's files are broken", **check)
    return {**spread("gb_per_s", rates), "better": "higher", "device": run.device, "size": size, **check}


# measurements: all ranks together -------------------------------------------------------------------------------------

#: bytes of the array that is summed
REDUCTIONS = {"cpu": (1 << 20, 8 << 20), "gpu": (16 << 20, 256 << 20)}


def group(run: Run) -> Any:
    """torch.distributed with all ranks in it; every rank comes here at about the same time."""
    distributed = run.need_torch.distributed
    if not distributed.is_initialized():
        import datetime

        place = run.place
        # Longer than our own watchdog, which says more: torch's ends the process.
        patience = datetime.timedelta(seconds=run.options.timeout + 60)
        backend = "nccl" if run.on_gpu else "gloo"
        options = {"rank": place.rank, "world_size": place.ranks, "timeout": patience}
        distributed.init_process_group(backend, init_method=place.meeting, **options)
    return distributed


def all_reduce(run: Run, where: str) -> Item:
    """Sums an array over ranks. Bus bandwidth as nccl-tests counts it: 2 (n - 1) / n times the bytes, over the time."""
    place = run.place
    if place.ranks == 1:
        raise skip("one rank; --all-gpus starts one for each GPU, --ranks N several on CPUs")
    nodes = sorted(set(run.hosts))
    mates = {node: [r for r, host in enumerate(run.hosts) if host == node] for node in nodes}
    if where == "network" and len(nodes) == 1:
        raise skip("one node")
    if where == "node" and max(map(len, mates.values())) == 1:
        raise skip("one rank on each node")
    distributed = group(run)
    torch, device = run.torch, run.device
    members, among = list(range(place.ranks)), None
    if where == "node" and len(nodes) > 1:
        groups = {node: distributed.new_group(mates[node]) for node in nodes}  # every rank makes every group
        own = run.hosts[place.rank]
        members, among = mates[own], groups[own]
    n = len(members)
    if n == 1:
        raise skip("one rank on this node")
    expected = float(sum(m + 1 for m in members))
    best: Item = {}
    sizes = []
    for size in REDUCTIONS[run.kind]:
        pattern = torch.arange(size // 4, dtype=torch.float32, device=device).remainder_(1000)
        tensor = torch.empty_like(pattern)
        torch.mul(pattern, place.rank + 1, out=tensor)
        distributed.all_reduce(tensor, group=among)
        wrong = int((tensor != pattern * expected).sum().item())
        check = checked("words of the sum that are wrong", wrong, 0, wrong == 0)
        if wrong:
            seen = "%d of %d words of the sum over %d ranks are wrong" % (wrong, size // 4, n)
            raise fail(
                seen, "wrong results: a fault of network, NCCL, RCCL or a device", device=device, **check
            )
        tensor.zero_()
        seconds = timed(run, lambda t=tensor: distributed.all_reduce(t, group=among), exactly=10)  # type: ignore[misc]
        item = {"size": size, **rate("gb_per_s", 2e-9 * size * (n - 1) / n, seconds), **check}
        sizes.append({k: v for k, v in item.items() if k in ("size", "median_gb_per_s", "mad_gb_per_s")})
        if not best or item["median_gb_per_s"] > best["median_gb_per_s"]:
            best = item
    log = os.environ.get("NCCL_DEBUG_FILE", "")
    for path in glob.glob(log.replace("%h", "*").replace("%p", str(os.getpid()))) if log else ():
        with open(path, encoding="utf-8", errors="replace") as f:
            run.kept["nccl_log"] = f.read(1 << 20)
    fields = {
        "device": device,
        "members": n,
        "nodes": len(nodes),
        "backend": "nccl" if run.on_gpu else "gloo",
    }
    return {**best, **fields, "sizes": sizes}


for _where in ("node", "network"):
    measurement("allreduce." + _where, "all")(functools.partial(all_reduce, where=_where))


# how they measure -----------------------------------------------------------------------------------------------------


def timed(
    run: Run, function: Callable[[], Any], most: int = 40, limit_s: float = 0.6, exactly: int = 0
) -> List[float]:
    """Seconds of each of some runs, after a warm-up: by the device's own events on a GPU, by the clock on the CPU.

    ``exactly`` so many, where ranks have to agree on it.
    """
    cuda = run.torch.cuda
    samples: List[float] = []
    started = time.perf_counter()
    function()
    least = 3 if time.perf_counter() - started > limit_s else 5  # a slow machine shall come to an end, too
    function()
    run.synchronize()
    started = time.perf_counter()
    while len(samples) < (exactly or least) or (
        not exactly and len(samples) < most and time.perf_counter() - started < limit_s
    ):
        if run.on_gpu:
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            begin.record()
            function()
            end.record()
            end.synchronize()
            samples.append(begin.elapsed_time(end) / 1e3)
        else:
            before = time.perf_counter()
            function()
            samples.append(time.perf_counter() - before)
    return samples


def spread(unit: str, samples: List[float]) -> Item:
    """Median, median absolute deviation, number of samples, and the samples, under names that hold the unit."""
    median = statistics.median(samples)
    return {
        "median_" + unit: median,
        "mad_" + unit: statistics.median(abs(s - median) for s in samples),
        "samples_" + unit: samples,
        "repeats": len(samples),
    }


def rate(unit: str, amount: float, seconds: List[float]) -> Item:
    """An amount per second, from the seconds of each repeat; and which part of the time went beyond the median."""
    lost = 1 - min(1.0, statistics.median(seconds) * len(seconds) / sum(seconds))
    return {**spread(unit, [amount / s for s in seconds]), "better": "higher", "lost_fraction": lost}


def checked(what: str, value: Any, limit: Any, ok: bool) -> Item:
    """The check of a measurement's result."""
    return {"correctness": {"check": what, "value": value, "limit": limit, "ok": bool(ok)}}


def random_matrix(run: Run, n: int, seed: int, device: str = "cpu") -> Any:
    """Normal numbers in float32; on the CPU the same everywhere."""
    generator = run.torch.Generator(device=device).manual_seed(seed)
    return run.torch.randn(n, n, generator=generator, device=device)


def reference_error(torch: Any, a: Any, b: Any, product: Any) -> float:
    """How far a product is from the float64 one: the largest error, over the typical size of the entries.

    Up to 512 every entry is compared, computed by the CPU. Beyond that both are multiplied by a random vector of +-1 (Freivalds'
    check): every entry counts, at the cost of three matrix-vector products in float64 on the device.
    """
    n = a.shape[0]
    if n <= 512:
        expected = torch.mm(a.double().cpu(), b.double().cpu())
        difference = product.double().cpu() - expected
    else:
        x = (torch.randint(2, (n,), generator=torch.Generator().manual_seed(n)) * 2 - 1).double().to(a.device)

        def times(matrix: Any, vector: Any) -> Any:
            return torch.cat([torch.mv(rows.double(), vector) for rows in matrix.split(1024)])

        expected = times(a, times(b, x))
        difference = times(product, x) - expected
    error = float((difference.abs().max() / expected.square().mean().sqrt()).item())
    return error if math.isfinite(error) else math.inf


def worst_error(got: Iterable[Any], expected: Iterable[Any]) -> float:
    """The largest of some tensors' errors, each over the norm of what is right."""
    errors = [float(((g.double().cpu() - e).norm() / e.norm()).item()) for g, e in zip(got, expected)]  # noqa: B905
    return max(e if math.isfinite(e) else math.inf for e in errors)


def without(run: Run, precision: str) -> str:
    """Why this device does not do this precision in hardware, or nothing."""
    if precision == "fp32":
        return ""
    if not run.on_gpu:
        able = precision == "bf16" and bool({"avx512_bf16", "amx_bf16"} & cpu_flags())
        return "" if able else "this processor has no " + precision
    name, major = run.architecture(run.index), int(run.torch.cuda.get_device_properties(run.index).major)
    if run.build == "HIP":
        new = name.startswith(("gfx94", "gfx95")) or (
            precision != "tf32" and name not in ("gfx900", "gfx906")
        )
        able = precision == "fp16" or new
    else:
        able = major >= {"fp16": 6, "bf16": 8, "tf32": 8}[precision]
    return "" if able else "%s has no %s" % (name, precision)


class TF32:
    """Lets float32 products use TF32, or not, for a while."""

    def __init__(self, torch: Any, on: bool) -> None:
        self.matmul, self.on = torch.backends.cuda.matmul, on

    def __enter__(self) -> None:
        self.before, self.matmul.allow_tf32 = self.matmul.allow_tf32, self.on

    def __exit__(self, *exception: Any) -> None:
        self.matmul.allow_tf32 = self.before


def spin(run: Run, seconds: float = 0.06) -> None:
    """Computes for a moment: how much of the processor this process gets while it wants all of a core."""
    wall, busy = time.perf_counter(), time.thread_time()
    number = 1
    while time.perf_counter() - wall < seconds:
        for _ in range(2000):
            number = number * 1103515245 % 2147483647
    run.wall_s += time.perf_counter() - wall
    run.busy_s += time.thread_time() - busy


# reading the machine --------------------------------------------------------------------------------------------------


def covers(architecture: str, known: List[str]) -> str:
    """How code for ``known`` runs on a GPU: "yes", "jit" (PTX, compiled at the first run) or "no".

    CUDA: code for sm_XY runs on the same major version with the same or a later minor one; PTX (compute_XY) on anything later.
    """
    if architecture in known:
        return "yes"
    if not architecture.startswith("sm_"):
        return "no"
    number = digits(architecture)
    if any(
        k.startswith("sm_") and k[-1].isdigit() and digits(k) // 10 == number // 10 and digits(k) <= number
        for k in known
    ):
        return "yes"
    return "jit" if any(k.startswith("compute_") and digits(k) <= number for k in known) else "no"


def digits(name: str) -> int:
    return int("".join(c for c in name.partition("_")[2] if c.isdigit()) or 0)


def affinity() -> Set[int]:
    """Logical cores that this process may run on."""
    return (
        set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    )


def usable_cores() -> int:
    return len(affinity())


def physical_cores() -> int:
    """How many real cores those are; as many as logical ones where the system does not say."""
    siblings = {
        c: read("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % c) or str(c)
        for c in affinity()
    }
    return len(set(siblings.values()))


def number_list(text: str) -> Set[int]:
    """``0-3,8`` as Linux writes sets of cores."""
    found: Set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def ranges(numbers: Iterable[int]) -> str:
    """The other way round."""
    runs: List[List[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join("%d" % a if a == b else "%d-%d" % (a, b) for a, b in runs)


def why_no_gpu(run: Run) -> str:
    """What torch itself says when it is asked to use one."""
    if run.build == "CPU":
        return "it is a CPU build"
    try:
        run.torch.cuda.init()
    except Exception as e:
        return one_line(e)
    return "it counts none"


def device_files() -> List[str]:
    """The GPU device files of this container."""
    return ["/dev/" + n for n in names("/dev") if n in ("kfd", "dri", "dxg") or n.startswith("nvidia")]


def within(path: str, folder: str) -> bool:
    return bool(path) and (path == folder or path.startswith(folder.rstrip("/") + "/"))


def writable(path: str) -> bool:
    """Whether a folder, or what there is of the path to it, can be written to."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return os.access(path, os.W_OK)


def file_system(path: str) -> Tuple[str, str]:
    """Mount point and type of the file system that a path is or would be on; empty when the system does not say."""
    path, best = os.path.realpath(path), ("", "")
    for line in read("/proc/self/mountinfo", 1 << 20).splitlines():
        fields, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), (fields.split() + [""] * 5)[4])
        if within(path, point) and len(point) >= len(best[0]):
            best = (point, (rest.split() or [""])[0])
    return best


def one_line(error: BaseException) -> str:
    """An exception for people: type and the first line that says something, not the whole library path soup."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "%s: %s" % (type(error).__name__, lines[0][:400]) if lines else type(error).__name__


def pci_address(run: Run, index: int) -> str:
    """``0000:3b:00.0``, or nothing."""
    properties = run.torch.cuda.get_device_properties(index)
    if hasattr(properties, "pci_bus_id"):
        address = (
            getattr(properties, "pci_domain_id", 0),
            properties.pci_bus_id,
            getattr(properties, "pci_device_id", 0),
        )
        return "%04x:%02x:%02x.0" % address
    library, call = (
        ("libcuda.so.1", "cuDeviceGetPCIBusId")
        if run.build == "CUDA"
        else ("libamdhip64.so", "hipDeviceGetPCIBusId")
    )
    text = ctypes.create_string_buffer(32)
    try:
        if getattr(ctypes.CDLL(library), call)(text, 32, index) == 0:
            return text.value.decode("ascii", "replace").lower()[-12:]
    except (OSError, AttributeError):
        pass
    return ""


def gpu_state(run: Run, index: int) -> Item:
    """Clocks, temperature, errors of a GPU, as far as the driver tells: NVIDIA's by NVML, AMD's by sysfs."""
    address = pci_address(run, index)
    if not address:
        return {}
    return nvidia_state(address) if run.build == "CUDA" else amd_state("/sys/bus/pci/devices/" + address)


#: nvml.h: nvmlClocksEventReason*; what is left out (idle, clocks that an application set) is no fault
THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}


def nvidia_state(address: str) -> Item:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        handle = ctypes.c_void_p()
        if (
            nvml.nvmlInit_v2() != 0
            or nvml.nvmlDeviceGetHandleByPciBusId_v2(address.encode(), ctypes.byref(handle)) != 0
        ):
            return {}
    except (OSError, AttributeError):
        return {}

    def numbers(
        function: str, *arguments: int, count: int = 1, kind: Any = ctypes.c_uint
    ) -> Optional[List[int]]:
        values = [kind() for _ in range(count)]
        try:
            code = getattr(nvml, function)(handle, *arguments, *(ctypes.byref(v) for v in values))
        except AttributeError:
            return None
        return [int(v.value) for v in values] if code == 0 else None

    out: Item = {}
    for key, found, factor in (
        ("clock_mhz", numbers("nvmlDeviceGetClockInfo", 1), 1.0),
        ("clock_max_mhz", numbers("nvmlDeviceGetMaxClockInfo", 1), 1.0),
        ("memory_clock_mhz", numbers("nvmlDeviceGetClockInfo", 2), 1.0),
        ("temperature_c", numbers("nvmlDeviceGetTemperature", 0), 1.0),
        ("power_w", numbers("nvmlDeviceGetPowerUsage"), 1e-3),
    ):
        if found:
            out[key] = found[0] * factor
    reasons = numbers("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong)
    if reasons:
        out["throttled"] = [name for bit, name in THROTTLES.items() if reasons[0] & bit]
    ecc = numbers("nvmlDeviceGetEccMode", count=2)
    if ecc:
        out["ecc"] = bool(ecc[0])
    errors = numbers(
        "nvmlDeviceGetTotalEccErrors", 1, 0, kind=ctypes.c_ulonglong
    )  # uncorrected, since the driver was loaded
    if errors:
        out["ecc_uncorrected"] = errors[0]
    rows = numbers("nvmlDeviceGetRemappedRows", count=4)
    if rows:
        out["remap_pending"], out["remap_failed"] = bool(rows[2]), bool(rows[3])
    persistence = numbers("nvmlDeviceGetPersistenceMode")
    if persistence:
        out["persistence"] = bool(persistence[0])
    return out


def amd_state(folder: str) -> Item:
    out: Item = {}
    monitors = ["%s/hwmon/%s/" % (folder, n) for n in names(folder + "/hwmon")]
    for key, name, factor in (
        ("temperature_c", "temp1_input", 1e-3),
        ("clock_mhz", "freq1_input", 1e-6),
        ("memory_clock_mhz", "freq2_input", 1e-6),
        ("power_w", "power1_average", 1e-6),
    ):
        for monitor in monitors:
            if read(monitor + name).isdigit():
                out[key] = int(read(monitor + name)) * factor
    steps = re.findall(r"(\d+)Mhz", read(folder + "/pp_dpm_sclk"), re.IGNORECASE)
    if steps:
        out["clock_max_mhz"] = float(max(map(int, steps)))
    uncorrected = re.search(r"ue: *(\d+)", read(folder + "/ras/umc_err_count"))
    if uncorrected:
        out["ecc"], out["ecc_uncorrected"] = True, int(uncorrected[1])
    return out


def loaded_state(run: Run, index: int) -> Item:
    """The state of a GPU while it multiplies matrices."""
    torch, device = run.torch, "cuda:%d" % index
    a = torch.ones(4096, 4096, device=device)
    until = time.monotonic() + 0.4
    state: Item = {}
    while time.monotonic() < until:
        for _ in range(10):
            torch.mm(a, a)
        state = gpu_state(run, index)
        torch.cuda.synchronize(index)
    return state


# facts ----------------------------------------------------------------------------------------------------------------


def facts(run: Run) -> Item:
    """What the machine and the image are, for the record. Anything that cannot be read is left out."""
    out: Item = {
        "host": host_name(),
        "python": {"version": platform.python_version(), "executable": sys.executable, "prefix": sys.prefix},
        "system": {
            "machine": platform.machine(),
            "kernel": platform.release(),
            "glibc": platform.libc_ver()[1],
            "distribution": distribution(),
            "uid": os.getuid(),
            "time_zone": time.tzname[0],
        },
        "cpu": {
            "model": cpu_model(),
            "cores": os.cpu_count() or 0,
            "usable_cores": usable_cores(),
            "physical_cores": physical_cores(),
            "quota_cores": quota(),
            **cpu_state(),
        },
        "memory": memory(),
        "variables": {name: os.environ[name] for name in sorted(os.environ) if VARIABLES.fullmatch(name)},
        "device_files": device_files(),
    }
    if run.torch is not None:
        out["torch"] = torch_facts(run)
        if run.own_gpus:
            out["devices"] = [gpu_facts(run, i) for i in run.own_gpus]
            out["driver"] = read("/sys/module/nvidia/version") or read("/sys/module/amdgpu/version")
    return out


def host_name() -> str:
    """Of the node: a container may have a name of its own."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def distribution() -> str:
    lines = (line.partition("=") for line in read("/etc/os-release").splitlines())
    return next((value.strip('"') for key, _, value in lines if key == "PRETTY_NAME"), "")


def torch_facts(run: Run) -> Item:
    torch = run.torch
    return {
        "version": str(torch.__version__),
        "build": run.build,
        "cuda": getattr(torch.version, "cuda", None),
        "hip": getattr(torch.version, "hip", None),
        "path": os.path.dirname(str(torch.__file__)),
        "threads": torch.get_num_threads(),
        "architectures": run.architectures() if run.build != "CPU" else [],
        "cudnn": torch.backends.cudnn.version() if run.gpus else None,
    }


def gpu_facts(run: Run, index: int) -> Item:
    properties = run.torch.cuda.get_device_properties(index)
    address = pci_address(run, index)
    node = read("/sys/bus/pci/devices/%s/numa_node" % address) if address else ""
    return {
        "name": str(properties.name),
        "architecture": run.architecture(index),
        "memory_bytes": int(properties.total_memory),
        "multiprocessors": int(properties.multi_processor_count),
        "rank": run.place.rank,
        "host": host_name(),
        **({"pci_address": address} if address else {}),
        **({"numa_node": int(node)} if re.fullmatch(r"-?\d+", node) else {}),
        "before": gpu_state(run, index),
    }


def cpu_lines(key: str) -> str:
    """The first value of a key in /proc/cpuinfo."""
    for line in read("/proc/cpuinfo", 1 << 14).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def cpu_model() -> str:
    return cpu_lines("model name") or platform.processor() or platform.machine()


def cpu_flags() -> Set[str]:
    return set(cpu_lines("flags").split())


def cpu_state() -> Item:
    """Clock and temperature, where they can be read."""
    out: Item = {}
    clock = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    if clock.isdigit():
        out["clock_mhz"] = int(clock) / 1e3
    elif re.fullmatch(r"[\d.]+", cpu_lines("cpu MHz")):
        out["clock_mhz"] = float(cpu_lines("cpu MHz"))
    for name in names("/sys/class/hwmon"):
        folder = "/sys/class/hwmon/" + name
        if (
            read(folder + "/name") in ("k10temp", "coretemp", "zenpower")
            and read(folder + "/temp1_input").isdigit()
        ):
            out["temperature_c"] = int(read(folder + "/temp1_input")) / 1e3
    return out


def cache_bytes() -> int:
    """Of the largest cache of the first usable core."""
    sizes = [0]
    for name in names("/sys/devices/system/cpu/cpu%d/cache" % min(affinity())):
        size = read("/sys/devices/system/cpu/cpu%d/cache/%s/size" % (min(affinity()), name))
        found = re.fullmatch(r"(\d+)([KMG])", size)
        if found:
            sizes.append(int(found[1]) << {"K": 10, "M": 20, "G": 30}[found[2]])
    return max(sizes)


def quota() -> Optional[float]:
    """CPU cores that the control group allows, or None when it sets no limit."""
    v2 = read("/sys/fs/cgroup/cpu.max").split()
    v1 = [read("/sys/fs/cgroup/cpu/cpu.cfs_%s_us" % n) for n in ("quota", "period")]
    pair = v2 if len(v2) == 2 else v1
    try:
        return int(pair[0]) / int(pair[1]) if int(pair[0]) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def throttled_s() -> float:
    """Seconds that the control group's processes have been held back for by its quota."""
    found = re.search(r"throttled_usec (\d+)", read("/sys/fs/cgroup/cpu.stat"))
    if found:
        return int(found[1]) / 1e6
    found = re.search(r"throttled_time (\d+)", read("/sys/fs/cgroup/cpu/cpu.stat"))
    return int(found[1]) / 1e9 if found else 0.0


def memory() -> Item:
    """Bytes of memory: the machine's, what the control group allows, and /dev/shm."""
    out: Item = {}
    for line in read("/proc/meminfo").splitlines():
        for key, name in (("MemTotal:", "total_bytes"), ("MemAvailable:", "available_bytes")):
            if line.startswith(key):
                out[name] = int(line.split()[1]) * 1024
    limit = read("/sys/fs/cgroup/memory.max") or read("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    if limit.isdigit() and int(limit) < 1 << 60:
        out["limit_bytes"] = int(limit)
        out["available_bytes"] = min(int(limit), out.get("available_bytes", int(limit)))
    try:
        stat = os.statvfs("/dev/shm")
        out["shm_bytes"] = stat.f_frsize * stat.f_blocks
    except OSError:
        pass
    return out


# a rank: a child process that runs everything -------------------------------------------------------------------------


def examine(run: Run, agree: Callable[[], Item]) -> Iterator[Item]:
    """Everything that is found, one event after another; says what it is about to do, so that a hang has a name.

    ``agree`` waits until all ranks are ready for what they do together, and gives what the head process says to that.
    """
    place = run.place
    for p in PROBES:
        if not p.late:
            yield {"begin": p.id}
            yield {"probe": found(p.id, lambda look=p.look: {"seen": look(run)})}  # type: ignore[misc]
    yield {"begin": "facts"}
    try:
        yield {"facts": facts(run)}
    except Exception as e:
        yield {"probe": finding("facts", "warn", one_line(e), "the facts of this machine could not be read")}
    run.kept["throttled_s"] = throttled_s()
    own = bool(run.own_gpus) or place.local_rank == 0
    for m in MEASUREMENTS:
        if m.scope == "all" or (m.scope == "once" and place.rank) or not own:
            continue
        yield {"begin": m.id}
        spin(run)
        yield {"measurement": measured(run, m)}
    together = [m for m in MEASUREMENTS if m.scope == "all"]
    go: Item = {"go": True, "hosts": [host_name()]}
    if place.ranks > 1:
        yield {
            "ready": run.torch is not None and not (run.options.expect in ("nvidia", "amd") and not run.gpus)
        }
        go = agree()
        run.hosts = list(go.get("hosts", []))
    for m in together:
        yield {"begin": m.id, "together": True}
        if go.get("go"):
            yield {"measurement": measured(run, m, always=True)}
        else:
            yield {
                "measurement": finding(
                    m.id, "fail", str(go.get("why")), "all ranks have to be there: see the other findings"
                )
            }
    for p in PROBES:
        if p.late:
            yield {"begin": p.id}
            yield {"probe": found(p.id, lambda look=p.look: {"seen": look(run)})}  # type: ignore[misc]
    yield {"end": True, "after": {str(k): v for k, v in run.kept.get("after", {}).items()}}


def measured(run: Run, m: Measurement, always: bool = False) -> Item:
    """One measurement, or the reason for leaving it out."""
    if m.only and run.torch is not None and m.only != ("gpu" if run.own_gpus else "cpu"):
        return finding(m.id, "skip", "on %ss only" % m.only.upper())
    if run.left_s <= 0 and not always:
        run.kept.setdefault("missed", []).append(m.id)
        return finding(m.id, "skip", "the time budget of %.0f s is spent" % run.budget_s)

    def look() -> Item:
        if run.own_gpus:
            run.torch.cuda.set_device(run.index)  # events are recorded on the current device
        return dict(m.look(run))

    item = found(m.id, look)
    run.results.append(item)
    return item


def found(name: str, look: Callable[[], Item]) -> Item:
    """What a probe or measurement found, whatever happens in it."""
    try:
        item = {**finding(name, "pass", ""), **look()}
    except Outcome as o:
        return {**finding(name, o.status, o.seen, o.advice), **o.fields}
    except Exception as e:
        minor = name.startswith(
            (
                "python.",
                "system.",
                "memory.shm",
                "cpu.",
                "machine.",
                "gpu.ecc",
                "gpu.pers",
                "gpu.dist",
                "gpu.clocks",
            )
        )
        advice = "it could not be carried out at all"
        if isinstance(e, MemoryError) or "out of memory" in str(e).lower() or "alloc" in str(e).lower():
            advice = "too little memory: does another job use this device, or is the container's limit low?"
        elif name.startswith("allreduce"):
            advice = "a rank ended, or the network between them failed: NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO"
        return finding(name, "warn" if minor else "fail", one_line(e), advice)
    if not item.get("correctness", {}).get("ok", True):
        check = item["correctness"]
        item.update(
            finding(name, "fail", "%s: %s" % (check["check"], check["value"]), "%s is right" % check["limit"])
        )
    for key, value in list(item.items()):
        if key.startswith("median_") and not (isinstance(value, (int, float)) and math.isfinite(value)):
            return finding(
                name, "fail", "%s is %s" % (key, value), "the clock or the device's events are broken"
            )
    return item


def finding(name: str, status: str, seen: str, advice: str = "") -> Item:
    return {"id": name, "status": status, "seen": seen, "advice": advice}


def child(options: argparse.Namespace, place: Place, folder: str, events: int, orders: int) -> None:
    """Runs in the forked process: sends events as lines of JSON. Never returns."""
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        try:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: dies with the parent
        except (OSError, AttributeError):
            pass
        os.dup2(2, 1)  # what libraries print must not get into the report
        if place.ranks > 1:
            values = {"RANK": place.rank, "WORLD_SIZE": place.ranks, "LOCAL_RANK": place.local_rank}
            os.environ.update({k: str(v) for k, v in values.items()})
            os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=os.path.join(folder, "nccl.%h.%p"))
            os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH")
            if place.meeting.startswith("file:"):
                os.environ.setdefault(
                    "GLOO_SOCKET_IFNAME", "lo"
                )  # one node: its name need not lead to an address
        run = Run(options, place)
        run.folder = folder
        pipe = os.fdopen(orders, "r", encoding="utf-8")

        def agree() -> Item:
            line = pipe.readline()
            return dict(json.loads(line)) if line else {"go": False, "why": "the head process is gone"}

        with os.fdopen(events, "w", encoding="utf-8") as out:
            for event in examine(run, agree):
                out.write(json.dumps(plain(event)) + "\n")
                out.flush()
            if place.ranks > 1:
                pipe.readline()  # until all are through: a rank that leaves early takes the others' connections with it
        os._exit(0)
    except BaseException as e:
        os.write(2, ("smoke: %s\n" % one_line(e)).encode("utf-8", "replace"))
        os._exit(70)


def plain(value: Any) -> Any:
    """A value as JSON can hold it; NaN and infinity become null."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


# starting ranks -------------------------------------------------------------------------------------------------------


class Launch(NamedTuple):
    """What this process is to start, among ``units`` processes like it."""

    by: str = "single"
    unit: int = 0
    units: int = 1
    ranks: int = 1  # that this process starts
    local_unit: int = 0
    local_units: int = 1  # on this node; 0 when nobody says
    address: str = ""  # of unit 0
    port: int = 0  # where unit 0 listens; torch's ranks meet at the next one

    def place(self, number: int, folder: str) -> Place:
        """Of the rank that is the number-th of this process."""
        meeting = (
            "tcp://%s:%d" % (self.address, self.port + 1)
            if self.units > 1
            else "file://" + os.path.join(folder, "meeting")
        )
        rank = self.unit * self.ranks + number
        local = self.local_unit * self.ranks + number
        return Place(rank, self.units * self.ranks, local, self.local_units * self.ranks, meeting)


def plan(options: argparse.Namespace) -> Launch:
    """From the options, from torchrun's variables, or from those of srun; a step of one task is no launch.

    Raises ValueError for variables that make no sense.
    """
    env = os.environ
    if options.ranks is not None:
        return Launch("spawn" if options.ranks > 1 else "single", ranks=options.ranks)

    def number(name: str, default: int) -> int:
        value = env.get(name, "")
        if value and not value.isdigit():
            raise ValueError("%s=%s is no number" % (name, value))
        return int(value) if value else default

    launch = Launch()
    if number("WORLD_SIZE", 1) > 1:
        if "RANK" not in env or "MASTER_ADDR" not in env:
            raise ValueError("WORLD_SIZE=%s, but RANK or MASTER_ADDR is not set" % env["WORLD_SIZE"])
        units = number("WORLD_SIZE", 1)
        local = number("LOCAL_RANK", number("SLURM_LOCALID", 0))
        port = number("MASTER_PORT", 29500) + 1
        local_units = number("LOCAL_WORLD_SIZE", tasks_of_node())
        launch = Launch(
            "environment", number("RANK", 0), units, 1, local, local_units, env["MASTER_ADDR"], port
        )
    elif number("SLURM_STEP_NUM_TASKS", 1) > 1:
        units, unit = number("SLURM_STEP_NUM_TASKS", 1), number("SLURM_PROCID", 0)
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST") or ""
        address = env.get("MASTER_ADDR") or first_host(nodes)
        if not address:
            raise ValueError("SLURM_STEP_NODELIST is not set: nobody says where rank 0 is")
        port = 20000 + (number("SLURM_JOB_ID", 0) * 16 + number("SLURM_STEP_ID", 0) * 2) % 12000
        launch = Launch("slurm", unit, units, 1, number("SLURM_LOCALID", 0), tasks_of_node(), address, port)
    if launch.unit >= launch.units:
        raise ValueError("rank %d of %d makes no sense" % (launch.unit, launch.units))
    if options.all_gpus and (
        launch.units == 1 or launch.local_units == 1
    ):  # else each GPU has its process already
        count = count_gpus(options.timeout)
        if count > 1:
            launch = launch._replace(ranks=count, by="spawn" if launch.by == "single" else launch.by)
    return launch


def tasks_of_node() -> int:
    """As Slurm says, ``8(x2)``; 0 when nobody does."""
    found = re.match(
        r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get("SLURM_NTASKS_PER_NODE") or ""
    )
    return int(found[0]) if found else 0


def first_host(nodes: str) -> str:
    """Of a list as Slurm writes it: ``nid[001-003,007],login1``."""
    found = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\]([^,]*))?", nodes)
    return found[1] + (found[2] or "") + (found[3] or "") if found else ""


def count_gpus(limit_s: float) -> int:
    """How many GPUs torch sees, asked in a process of its own: one that has counted them cannot be forked any more."""
    code = "import torch; n = torch.cuda.device_count(); print(); print(n)"
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=pipe, stderr=nothing, timeout=limit_s / 2, check=False
        )
    except (subprocess.TimeoutExpired, OSError):
        return 0
    words = done.stdout.split()
    return int(words[-1]) if words and words[-1].isdigit() else 0


def start_rank(options: argparse.Namespace, place: Place, folder: str) -> Tuple[int, int, int]:
    """Forks a rank; gives its process id, where its events come from and where its orders go."""
    events, orders = os.pipe(), os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(events[0])
        os.close(orders[1])
        child(options, place, folder, events[1], orders[0])
    os.close(events[1])
    os.close(orders[0])
    return pid, events[0], orders[1]


def end_process(pid: int) -> None:
    """Kills a rank and all that it started; a process that hangs in the kernel is left behind."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (OSError, AttributeError):
            pass
    for _ in range(200):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        time.sleep(0.01)


def death(pid: int, at: str) -> Tuple[str, str]:
    """How a rank ended before its time, and what to do about it."""
    status, patience = 0, time.monotonic() + 5
    while time.monotonic() < patience:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    if not os.WIFSIGNALED(status):
        return (
            "the test ended by itself in %s" % at,
            "something that torch loads ended the process: see the output above",
        )
    number = os.WTERMSIG(status)
    name = next((s.name for s in signal.Signals if s == number), "signal %d" % number)
    advice = {
        "SIGKILL": "probably out of memory: allow the container more",
        "SIGILL": "a library was built for another processor than this one",
        "SIGBUS": "shared memory or a file ended before its time: --shm-size, and see memory.shm",
    }.get(name, "a library crashed: look at the lock, and at the driver")
    return "the test was ended by %s in %s" % (name, at), advice


def process_state(pid: Optional[int]) -> str:
    """Why a process of this node does nothing, where the kernel says."""
    state = re.search(r"^State:\s+(\w)", read("/proc/%d/status" % pid), re.MULTILINE) if pid else None
    return {"T": ", which is stopped", "D": ", which hangs in the kernel"}.get(state[1] if state else "", "")


class Lines:
    """Lines of JSON from a pipe or socket that gives them in pieces."""

    def __init__(self) -> None:
        self.buffer = b""

    def feed(self, data: bytes) -> List[Item]:
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [value for value in map(json.loads, filter(None, lines)) if isinstance(value, dict)]


# the head: watches all ranks ------------------------------------------------------------------------------------------


class Member:
    """A rank, as the head knows it."""

    def __init__(self, rank: int, since: float) -> None:
        self.rank, self.since = rank, since
        self.host = ""
        self.pid: Optional[int] = None
        self.at = "start"
        self.ready: Optional[bool] = None
        self.together = self.done = self.left = False
        self.facts: Item = {}
        self.after: Item = {}
        self.probes: List[Item] = []
        self.measurements: List[Item] = []
        self.when: Dict[str, float] = {}  # by id

    @property
    def waiting(self) -> bool:
        """For the others, where that is nobody's fault."""
        return self.ready is not None and not self.together


class Head:
    """Starts ranks, hears all of them, ends those that hang, and makes one report of what they found."""

    GRACE_S = 15.0  # for ranks in a collective that another one has left

    def __init__(self, options: argparse.Namespace, launch: Launch, folder: str) -> None:
        self.options, self.launch, self.folder = options, launch, folder
        self.begun = time.monotonic()
        self.ranks = launch.units * launch.ranks
        self.members = [Member(r, self.begun) for r in range(self.ranks)]
        self.findings: List[Item] = []
        self.selector = selectors.DefaultSelector()
        self.orders: Dict[int, Callable[[bytes], Any]] = {}  # by rank
        self.connections: List[socket.socket] = []
        self.agreed: Optional[bool] = None
        self.lost_at: Optional[float] = None

    # what comes in

    def run(self) -> None:
        """Until every rank has ended, or the time is up."""
        deadline = self.begun + self.options.timeout
        try:
            if self.launch.units > 1:
                self.listen()
            for number in range(self.launch.ranks):
                self.start(number)
            while not all(m.done for m in self.members):
                now = time.monotonic()
                if now >= deadline:
                    self.hung([m for m in self.members if not m.done], self.options.timeout, everybody=True)
                    break
                self.judge(now)
                for key, _ in self.selector.select(max(0.0, min(deadline - now, 0.5))):
                    key.data()
        finally:
            self.end()

    def start(self, number: int) -> None:
        place = self.launch.place(number, self.folder)
        pid, events, orders = start_rank(self.options, place, self.folder)
        member, lines = self.members[place.rank], Lines()
        member.pid, member.host = pid, host_name()
        self.orders[member.rank] = functools.partial(write_all, orders)

        def hear() -> None:
            data = os.read(events, 1 << 16)
            for event in lines.feed(data):
                self.take(member, event)
            if not data:
                self.selector.unregister(events)
                os.close(events)
                if not member.done:
                    self.lose(member, *death(pid, member.at))

        self.selector.register(events, selectors.EVENT_READ, hear)

    def listen(self) -> None:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", self.launch.port))
        server.listen(self.launch.units)
        self.connections.append(server)
        self.selector.register(server, selectors.EVENT_READ, lambda: self.accept(server.accept()[0]))

    def accept(self, connection: socket.socket) -> None:
        self.connections.append(connection)
        lines, mine = Lines(), []  # type: Lines, List[Member]

        def hear() -> None:
            try:
                data = connection.recv(1 << 16)
                events = lines.feed(data)
            except (OSError, ValueError):
                data, events = b"", []
            for event in events:
                rank = event.get("rank")
                if not isinstance(rank, int) or not self.launch.ranks <= rank < self.ranks:
                    continue
                member = self.members[rank]
                if "hello" in event:
                    mine.append(member)
                    member.host, member.since, member.at = str(event["hello"]), time.monotonic(), "start"
                    self.orders[rank] = connection.sendall
                elif "gone" in event:
                    self.lose(member, *event["gone"])
                else:
                    self.take(member, event)
            if not data:
                self.selector.unregister(connection)
                for member in mine:
                    if not member.done:
                        self.lose(
                            member,
                            "the connection ended in %s" % member.at,
                            "its node or process is gone: see the job's log",
                        )

        self.selector.register(connection, selectors.EVENT_READ, hear)

    def take(self, member: Member, event: Item) -> None:
        """One event of a rank."""
        if member.done:
            return
        member.since = time.monotonic()
        if "begin" in event:
            member.at = str(event["begin"])
            member.left = member.left or (member.together and not event.get("together"))
            member.together = bool(event.get("together"))
        if "probe" in event:
            member.probes.append(event["probe"])
        if "measurement" in event:
            member.measurements.append(event["measurement"])
            member.when[event["measurement"]["id"]] = member.since
        member.facts = event.get("facts", member.facts)
        if "ready" in event:
            member.ready = bool(event["ready"])
        if "end" in event:
            member.after = event.get("after", {})
            member.done = member.left = True

    # what to think of it

    def judge(self, now: float) -> None:
        """Who is late, who can go on, and who waits for somebody that will not come."""
        several = self.ranks > 1
        absent = [m for m in self.members if not m.host and not m.done and now - m.since > self.options.stall]
        if absent:
            who = ", ".join(str(m.rank) for m in absent)
            advice = "was it started, and can its node reach %s, port %d?" % (
                self.launch.address,
                self.launch.port,
            )
            self.add(
                "ranks.present",
                "fail",
                "rank %s of %d never came in %g s" % (who, self.ranks, self.options.stall),
                advice,
            )
            for m in absent:
                m.done = True
        late = [
            m
            for m in self.members
            if m.host and not m.done and not m.waiting and now - m.since > self.options.stall
        ]
        if late:
            self.hung(late, self.options.stall)
        if several and self.agreed is None and all(m.done or m.ready is not None for m in self.members):
            unfit = [m for m in self.members if m.done or not m.ready]
            self.agreed = not unfit
            order: Item = {"go": self.agreed, "hosts": [m.host for m in self.members]}
            if unfit:
                order["why"] = "rank %s takes no part" % ", ".join(str(m.rank) for m in unfit)
            for m in self.members:
                if not m.done:
                    m.together, m.since = True, now
                    self.tell(m, order)
        if self.agreed:
            stuck = [m for m in self.members if not m.done and m.together and m.at.startswith("allreduce")]
            gone = [m for m in self.members if m.left or m.done]
            self.lost_at = (self.lost_at or now) if stuck and gone else None
            if self.lost_at is not None and now - self.lost_at > self.GRACE_S:
                self.hung(stuck, now - self.lost_at, without=gone)

    def hung(
        self, late: List[Member], seconds: float, everybody: bool = False, without: Iterable[Member] = ()
    ) -> None:
        """Ends ranks that are late, and says which of them are to blame."""
        blamed = [m for m in late if not m.together and not m.waiting] or late
        if without or (
            any(f["id"] in ("process", "ranks.present") for f in self.findings)
            and all(m.together for m in late)
        ):
            blamed = []  # it has been said who is missing
        for m in blamed:
            who = (
                "rank %d (%s)%s: " % (m.rank, m.host or "never came", process_state(m.pid))
                if self.ranks > 1
                else ""
            )
            advice = "a hung GPU, driver or file system; or a slow one: --timeout, --stall"
            if m.together:
                advice = "a hung network, GPU or driver; or a firewall between the nodes: NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO"
            self.add("watchdog", "fail", "%sno end of %s after %g s" % (who, m.at, seconds), advice)
        for m in late:
            self.stop(m)

    def lose(self, member: Member, seen: str, advice: str) -> None:
        """A rank that is not there any more."""
        if not member.done:
            member.done = True
            who = "rank %d (%s): " % (member.rank, member.host) if self.ranks > 1 else ""
            self.add("process", "fail", who + seen, advice)

    def stop(self, member: Member) -> None:
        member.done = True
        if member.pid is not None:
            end_process(member.pid)
        elif member.rank in self.orders:
            self.tell(member, {"stop": True})

    def tell(self, member: Member, order: Item) -> None:
        try:
            self.orders[member.rank]((json.dumps({**order, "rank": member.rank}) + "\n").encode())
        except (OSError, KeyError):
            pass  # it is gone, and that will be noticed

    def add(self, name: str, status: str, seen: str, advice: str) -> None:
        for f in self.findings:
            if f["id"] == name:  # an id once in a report
                f["seen"] += "; " + seen
                return
        self.findings.append(finding(name, status, seen, advice))

    def end(self) -> None:
        for m in self.members:
            if m.pid is not None:
                end_process(m.pid)

    def dismiss(self, verdict: str) -> None:
        """Tells the other units how it ended; they end with the same exit code."""
        for connection in self.connections:
            try:
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0:
                    connection.sendall((json.dumps({"verdict": verdict}) + "\n").encode())
            except OSError:
                pass
            connection.close()

    # what becomes of it

    def report(self) -> Item:
        """Probes, measurements and facts of all ranks as one."""
        probes = merged([(m, p) for m in self.members for p in m.probes], self.ranks)
        measurements = merged(
            [(m, p) for m in self.members for p in m.measurements], self.ranks, figures=True
        )
        first = next((m for m in self.members if m.facts), self.members[0])
        out = dict(first.facts)
        devices = [dict(d, after=m.after.get(str(i), {})) for m in self.members for i, d in self.devices(m)]
        if devices:
            out["devices"] = devices
        uneven = uneven_ranks(measurements) if self.ranks > 1 else None
        return {
            "facts": out,
            "probes": probes + self.findings + ([uneven] if uneven else []),
            "measurements": measurements,
            "launch": {
                "ranks": self.ranks,
                "nodes": len({m.host for m in self.members if m.host}) or 1,
                "by": self.launch.by,
            },
        }

    @staticmethod
    def devices(member: Member) -> List[Tuple[Any, Item]]:
        found = member.facts.get("devices") or []
        keys = list(member.after) if len(member.after) == len(found) else range(len(found))
        return list(zip(keys, found))  # noqa: B905


SEVERITY = {"skip": 0, "pass": 1, "warn": 2, "fail": 3}


def merged(items: List[Tuple[Member, Item]], ranks: int, figures: bool = False) -> List[Item]:
    """One item for each id: the worst, and on which ranks it was found; with the figures of all."""
    by_id: Dict[str, List[Tuple[Member, Item]]] = {}
    for member, item in items:
        by_id.setdefault(item["id"], []).append((member, item))
    out = []
    for found in by_id.values():
        # Of several that fail the first to say so: the others may have lost their connection to it.
        member, worst = max(
            found, key=lambda pair: (SEVERITY[pair[1]["status"]], -pair[0].when.get(pair[1]["id"], 0.0))
        )
        item, same = dict(worst), [m.rank for m, i in found if i["status"] == worst["status"]]
        if worst["status"] in ("warn", "fail") and ranks > 1:
            item["seen"] = "rank %d (%s): %s" % (member.rank, member.host, worst["seen"])
            if not figures:
                item["ranks"] = same
        if figures and len(found) > 1:
            item["ranks"] = [
                {
                    "rank": m.rank,
                    "host": m.host,
                    "device": str(i.get("device", "")),
                    "status": i["status"],
                    **{k: v for k, v in i.items() if k.startswith(("median_", "mad_"))},
                }
                for m, i in found
            ]
        out.append(item)
    return out


def uneven_ranks(measurements: List[Item]) -> Optional[Item]:
    """A finding about ranks whose device is slower than the others'."""
    slow, compared = [], 0
    for item in measurements:
        ranks = [r for r in item.get("ranks", []) if r["status"] == "pass"]
        key = next((k for k in item if k.startswith("median_")), "")
        if len(ranks) < 2 or not key or item["id"].startswith(("allreduce", "training")):
            continue
        compared += 1
        values = [r[key] for r in ranks]
        # of two, the better one says what is right
        usual = statistics.median(values) if len(values) > 2 else max(values)
        slow += [
            "rank %d (%s, %s): %.0f %% in %s"
            % (r["rank"], r["host"], r["device"], 100 * r[key] / usual, item["id"])
            for r in ranks
            if r[key] < 0.85 * usual
        ]
    if not compared:
        return None
    if slow:
        advice = "look at that GPU's clocks, temperature and neighbours; a slow rank slows all of them down"
        return finding("ranks.even", "warn", "slower than the others: " + "; ".join(slow[:6]), advice)
    return finding("ranks.even", "pass", "within 15 %% of each other in %d measurements" % compared)


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def relay(options: argparse.Namespace, launch: Launch, folder: str) -> int:
    """In a unit other than the head's: starts its ranks, and hands their events on. Gives the exit code of the whole."""
    deadline = time.monotonic() + options.timeout + 30
    # Longer than rank 0 waits for us: where one process ends badly the others may be ended, too, and it has to write the report.
    patience = time.monotonic() + min(2 * options.stall, options.timeout)
    connection = None
    while connection is None:
        try:
            connection = socket.create_connection((launch.address, launch.port), timeout=5)
        except OSError as e:
            if time.monotonic() > patience:
                say(
                    "rank %d cannot reach rank 0 at %s, port %d: %s"
                    % (launch.unit, launch.address, launch.port, one_line(e))
                )
                return EXIT_CODES["error"]
            time.sleep(0.2)
    connection.settimeout(None)
    selector, running = selectors.DefaultSelector(), {}  # type: selectors.BaseSelector, Dict[int, Tuple[int, int]]
    code = None

    def send(event: Item) -> None:
        try:
            connection.sendall((json.dumps(event) + "\n").encode())
        except OSError:
            pass  # the head is gone: reading says so, too

    def start(number: int) -> None:
        place = launch.place(number, folder)
        send({"rank": place.rank, "hello": host_name()})
        pid, events, orders = start_rank(options, place, folder)
        running[place.rank] = (pid, orders)
        lines, state = Lines(), {"at": "start", "end": False}

        def hear() -> None:
            data = os.read(events, 1 << 16)
            for event in lines.feed(data):
                state.update(at=event.get("begin", state["at"]), end="end" in event)
                send({**event, "rank": place.rank})
            if not data:
                selector.unregister(events)
                if not state["end"]:
                    send({"rank": place.rank, "gone": death(pid, str(state["at"]))})

        selector.register(events, selectors.EVENT_READ, hear)

    incoming = Lines()

    def obey() -> None:
        nonlocal code
        try:
            data = connection.recv(1 << 16)
        except OSError:
            data = b""
        for order in incoming.feed(data):
            if "verdict" in order:
                code = EXIT_CODES.get(order["verdict"], 2)
            elif "stop" in order:
                end_process(running[order["rank"]][0])
            else:
                write_all(running[order["rank"]][1], (json.dumps(order) + "\n").encode())
        if not data and code is None:
            say("rank 0 is gone")
            code = EXIT_CODES["error"]

    try:
        for number in range(launch.ranks):
            start(number)
        selector.register(connection, selectors.EVENT_READ, obey)
        while code is None and time.monotonic() < deadline:
            for key, _ in selector.select(0.5):
                key.data()
    finally:
        for pid, _ in running.values():
            end_process(pid)
        connection.close()
    return EXIT_CODES["error"] if code is None else code


def say(text: str) -> None:
    os.write(2, ("smoke: %s\n" % text).encode("utf-8", "replace"))


# the report -----------------------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """A signal asked this process to end."""


def verdict(report: Item) -> str:
    """The worst of all findings. Nothing measured is not a pass."""
    statuses = {item["status"] for item in report["probes"] + report["measurements"]}
    for status in ("fail", "warn"):
        if status in statuses:
            return status
    return "pass" if any(m["status"] == "pass" for m in report["measurements"]) else "error"


def table(report: Item) -> str:
    """The report for people."""
    lines = []
    for item in report["probes"] + report["measurements"]:
        text = item["seen"] or figures(item)
        lines.append("%-5s %-22s %s" % (item["status"], item["id"], text))
        if item["advice"]:
            lines.append("%29s-> %s" % ("", item["advice"]))
    lines.append("%s in %.1f s" % (report["verdict"].upper(), report["duration_s"]))
    return "\n".join(lines) + "\n"


def figures(item: Item) -> str:
    """``123.4 gflop/s +- 1.2 (40 times, size 2048)``."""
    for key, value in item.items():
        if key.startswith("median_"):
            unit = key[len("median_") :]
            times = item["repeats"]
            size = ", size %d" % item["size"] if "size" in item else ""
            shown = (value, unit.replace("_per_", "/"), item["mad_" + unit], times, size)
            return "%.4g %s +- %.2g (%d times%s)" % shown
    return ""


def positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1024:
        raise argparse.ArgumentTypeError("from 1 to 1024")
    return value


def parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="smoke.py", description="Tests whether this image uses this machine as it should."
    )
    add = parser.add_argument
    add(
        "--expect",
        choices=("auto", "nvidia", "amd", "none"),
        default="auto",
        help="the GPUs that the image is for",
    )
    add(
        "--architectures",
        default="",
        metavar="A,B",
        help="what torch must have code for: sm_80,sm_90 or gfx90a",
    )
    add(
        "--devices",
        type=int,
        metavar="N",
        help="how many GPUs of this node there must be (default: at least one)",
    )
    add(
        "--all-gpus",
        action="store_true",
        help="one process for each GPU; under srun or torchrun: from each of their tasks",
    )
    add(
        "--ranks",
        type=positive,
        metavar="N",
        help="so many processes, whatever srun or torchrun say; on CPUs they talk by gloo",
    )
    add(
        "--budget",
        type=float,
        metavar="S",
        help="seconds for the measurements (default: 60 on CPUs, 45 on GPUs)",
    )
    add(
        "--timeout",
        type=float,
        default=240,
        metavar="S",
        help="seconds after which all is ended (default: %(default)s)",
    )
    add(
        "--stall",
        type=float,
        default=150,
        metavar="S",
        help="seconds of silence that make a hang (default: %(default)s)",
    )
    add("--scratch", metavar="FOLDER", help="where checkpoints are written (default: the temporary folder)")
    add("--json", metavar="FILE|-", help="write the report there; with - the table goes to stderr")
    return parser.parse_args(arguments)


def main(arguments: Optional[List[str]] = None) -> int:
    options = parse(arguments)
    options.architectures = [a for a in options.architectures.split(",") if a]
    started = time.monotonic()
    report: Item = {
        "schema_version": SCHEMA_VERSION,
        "verdict": "error",
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "duration_s": 0.0,
        "budget_s": options.budget,
        "expect": {"gpu": options.expect, "architectures": options.architectures, "devices": options.devices},
        "launch": {"ranks": 1, "nodes": 1, "by": "single"},
        "facts": {},
        "probes": [],
        "measurements": [],
    }

    def interrupted(number: int, frame: Any) -> None:
        raise Interrupted(signal.Signals(number).name)

    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in signals:
        signal.signal(number, interrupted)
    head: Optional[Head] = None
    launch: Optional[Launch] = None
    folder, trouble = "", None
    try:
        try:
            folder = tempfile.mkdtemp(prefix="builder-smoke-")
        except OSError:
            pass  # system.tmp says so
        launch = plan(options)
        if launch.unit:
            return relay(options, launch, folder)
        head = Head(options, launch, folder)
        head.run()
    except Interrupted as e:
        trouble = finding("process", "fail", "interrupted by %s" % e, "run it again")
        if launch is not None and launch.unit:
            return EXIT_CODES["error"]
    except Exception as e:
        trouble = finding("process", "fail", one_line(e), "the test cannot be run here: see the message")
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    if head is not None:
        report.update(head.report())
        if options.budget is None:
            report["budget_s"] = BUDGETS_S["gpu" if report["facts"].get("devices") else "cpu"]
    if trouble is not None:
        report["probes"] = [p for p in report["probes"] if p["id"] != "process"] + [trouble]
    else:
        report["verdict"] = verdict(report)
    report["duration_s"] = round(time.monotonic() - started, 3)
    code = deliver(report, options.json)
    if head is not None:
        head.dismiss(report["verdict"])
    return code


def deliver(report: Item, place: Optional[str]) -> int:
    """Writes report and table; gives the exit code."""
    text = json.dumps(report, indent=1, sort_keys=True) + "\n"
    people = (table(report)).encode("ascii", "backslashreplace").decode("ascii")
    try:
        (sys.stderr if place == "-" else sys.stdout).write(people)
        if place == "-":
            sys.stdout.write(text)
        elif place:
            with open(place, "w", encoding="ascii") as f:
                f.write(text)
        sys.stdout.flush()
    except OSError as e:
        say("cannot write the report to %s: %s" % (place or "-", e.strerror))
        return EXIT_CODES["error"]
    return EXIT_CODES[report["verdict"]]


#: The first 1000 of scikit-learn's digits (UCI's "Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak, 1998,
#: CC BY 4.0): 8x8 pixels in five shades, row by row, then the labels; a byte each, packed by zlib and base85.
DIGITS = """
c-rk<$+jcOZVL`Q{r?Yp5d=suL;dW9H$GnUQCHQyQYw?d0R+KwEc~2vPNb)uV|h;aITq)*pJQIHasU3Ld7N{O*YBMO!yBA)j%E5e$20T(d#2T^%WM7ov5fk?toOaY=vk
k0|GM7BA~W!RK7Y*Xb0X?<>y>|T+|M~~c7HGU1;)Rg`j+Q--tV1$($BHXdm+c_y3hSQyi3;gM}0rM9&>(CKj)Z5+WkU4FVA>eOfEn9eDHg9<NV$S_sBfwxLduG$2rHmJ
|KAi4d3g&pVimq=hlt%`;%7R*Ro#xKKHCE#n1D0-#=T{^UD(nySiWSUf4PJK{@QE9$@6XlJxr|((3*j{~UJCiKqwV_y&m^m~|mh1`}m3F8_|#x<2Fe*L^5^@KZmASDIz
IpK~nkH}Fiib1dBPT*@%``>?-zU;RG62t2NoAM><~`&iQN<A%N92YuW|i~IQFUIy-F|G4A*tqu^6+c|0wYTnMTeeEpszLRC$8Rw1my3cveF|Ws5$LwSohR3}?SOL#jIT
Cj~kNN=~4|_hBpgoKGInKw+a}PtYx-ieW{A(bA^E$ttWj*+W-}C$Gu;-xtiCtOTuUlXH7%pf$nKQmYyRG`Mx?H2(#e94x)4k45)P2peztB4iyW>f(^L;-*+dqmO*fsAH
us=K(k6Z>*KX;EqmZMT@>vM&FF~{-nc^i0pQq1%i|D5-oU{5^Q-i99IfOy2c{_KFG4ll%w_%(;)0mlx%RBpxYeMug3xFPyaJV%!UNY8uyn89D;`Q76Mzlr$kd5+tCO}y
TJhhN3Ppxsyejb&&3`DOoh4d8ykxcAf2?V4kq(z<Qt7Rz7aTzlO<N4zh4akwihKOh0lqrwZW%JOI&JaVpajw0_jwX8dS-@%ghSMjIgu}%L1htgp}<6l;M#W_d3Nz=S%g
x`7ljkn+N{*3=TXmvw9ubo^+Q8y&wUZ^9#(#!R-Q*-y_@5(LR-}4*^kp{5J>)en>)cL({9QE@KN0jSadfom?GiZPG8#uow?sKt<UrgZi{PFTu9Pe{?k8wXyU-90jUp1F
EG{5<Z_4!A@Sn;O}CEaIWHNVft6Zz)4Y*-cUqw`7C=g<T8bw!>3d+y3#n&gk3;cn*`k9X3eN_xTb(_bVc{|-qzzpwa0^+A5~Jxf1z%x><VcFgawG{5<1B_8RTx773U6X
okrKiuD|JI@PS`M+o7h0Msrzj?<4#H$LxOq>x|aL^3~?BjegQ9@pBG&G4H7Vg*Y(h+JH!Q(|d^DOu36;Q*(-uc{2&s86^N<@5AAlF=^T<E+b#1NeM3+uS7`sMnsxRqXH
uKY#g1@dP2Q~#bn*Sg9>1E5QuTJD13$=h+n%m+iWmJ$EG;sxqGtqA-0ht>g+8ei(RR{D2F`e2gZe7>(s{_bT66+Ta;^M?A*M&@kof4Xj69|QN~-kHw(J{#;1^%p)@f4}
q0qu;0ed;Q$--!|`8^r>+_C$jP?`ccb}-$Oa3Y1QeftNdKqpQj<vAR*8=9NXLT+`_T35Vn~<xF$Ot{9r%GAFUECIBs!^9aY*+*7wy6w~j5$lJS>yHxmTCFk017JOqA}W
wZbA+lO&DMjqtM=J9^aKO$xt$Fw|r=6hawDDqAl^$+YOXJSt;oXG2b=D&3So%n(Exre{$s-@#|h@&<7sdYY+H%tz`0gnpx|JUNokUvF*C*(IP&u13F^PB32O@Rk|Pw#s
0jN{8hr?Xj<gZDb(T8c;GZ#MA}k3ivY#(np=-y6R-fB)hr85$7##N9d)apaq?nf#fCRJd1YedyOg8S*F7u)rvPT-{dWdE#H04J^(;1z5pGouUYu#wq9d46O>`Mo}dxF4
x&z-nuR57?|&cJXWL)vHS+jQ}M5izOm!g5(kU*xB8WJ|8V>=P2&S^Y&>tv2lwHp5zpN5H)7(8&Mz82Jh{sONG5XOD{ja1yM0?y9jS#)zY$#k|H^mq{C${h*Q1WQIu)qs
1me~S2w%AX+jdV@Z(|ewIk|2u3Ov-)QRPAVvyWpIb7NI0aPV1a>VV%RPh`H<@y2oCq2UNwHtN8I->mxG)5<Mb792r8XpcNHi92_LU}XSu<A8@|ZlIjsZ<^8Y`x+*?fZF
&M-?rkP)9={lcy^i6b=kcU6)!ET9tDmNWzgnQ=URrF<Sz@?8F{vk?}NP3-1x+ne~5{Go=TG~KmONWS-y?9htCz@tJ6pP83|no?$rg&eL}!p2LLbk-*ZQI#$!p8`t938Y
dy5{X!S=pzu~)J@Em!gxxMiN<}J*_&ODCa`rT>w_PC7E#WLdR3vgTjgofvKT6XP^4qE$G^!tH&@8+*Q{Pd__4$<Y0R}94;cfQK{56ANwx^;k*a}#bkaXVY*H+CLEpbU3
#b-G;eMjOXT?hEj**cF9`mi<T{+YgnU6b`!1O~=_(n1<n(c)UKKu0JYYe&bIA)~<TQQXKv<7f<b405kk|KTqJ9e(<ylG1S$+bfib=n*WW2PJhqaFa*C|=>y=su-xrDiE
H)=BQYNrpK~VwAN;b))WR<n7x~nI%ytYgp-CTdxIck+f(>oK0lE+18aJvR$UZRp?e%z_X<15v*SFmS_UY$GIIeKe?lapesjJ;7fwqrPu7hsNo4T~+Y==>piLviC`3Hyf
i{bgPttS<lbsu6CF1vqKeQM_SXg}sNT#WXZk9x#1Zy+<X-O#s}12F&eKWr5u=%0k(&!75%X6$xxny~q=ah~Ox=em8HHnFp3)b(btL!XJu$h$%l+{o$YW1VMXS`tV5H?*
U9ZY>S?H2xjH1FoO_NIl;JFuDDelk)(w-3;?_WB=FgWmX<{KPiznH?1Uu;1XQ`bUXhX`#3-k@gGUpS{;3ET-4B>j8Pt(Xrjlipi}X~pkI~)O7|8E&1n2v`uEOrQ+Wc;#
eyAE8hY0KKaGp$Q>MB}UoNi6L@J`(W#hVktA2`HH?r-|X8o0w=rxZA;i&4vVBetNOXAZpag(kW8u^<EOV^K*PI$UiACLV<pXV-Us9k{BqtQ?}orP_O)&+sh>qo(~?bNl
bCXM6fyWQ^|iJ!eZ$r1lx@xA=nzdEElRew70!K(l+|L7T&e{Co4XZ1^6`7b}BM8q5ahyfJ%@KfFImBy^+#hJr@=5KLUp$)?aE>I6ECC^}kB(%P#|BKxHUlt%X+D(=n&#
d`wUU`R;k6;J+Zb<*C;Tscx)W4r^)qgP!*D>;EYbz16XnaNC=jI*UzUe|&`m#0+A+;?2#y`3-TxV1t#CXA@{_DQ2ZEKe_z<i~r<RhS8-F%Pm!N<(%X98z!xYGr1_wrvx
0><?tR!=G_0X5=3XiEWy)P^J7*+G2N=ihysfc?df_*((*z)@a1R~QuL*>;5d9sMcyMfi$W`G1BR_TfjqY2e5J2XS-YuA8{3aTY``2eE3z*;zlED_-S|j+9*$PR2|#G%<
;HqYM37-$1kHC(*Z&fL2=RgSY8=SM0nTWykO3z)l;CkNi07+dw#9V8D2e+Wx)#j!PeV$3IUgxJgsA%G<~rJt4#-;#WEU8Z?AYUNQno_~1o0?Rka!AHPrjUNZ2WBLPwQt
ms#D|3qOZ<M~B?!aCTLcToH#GfBX9_=yDoer^Z&ff-WQ6UPMqz!*pFd5Z2M{~!QPo@@8h<IUUc#-)`1-DivZq%o5}z1szghTByf^H3*`A|}6B`@e#`YXmR>{K@~J8(V3
j?Rv^*ABg#Lr`P)99?U<GpuTWI*s<kKoF4_}By^0v+%5C$6G2z~dnABI`;WyVLmpFRdeUsx!A)mdM8RkO(1yFHewBqZOn&5Loy|GwgW{(z0^Fio>@F4SiVB?RzWcBC=7
ERS1(gT;0#<zWcVLG+KjRl%`qHs2eK$^g)CK0Y>&b|bHzNOe;14SiTJ7h?-RfB0jBN5?W6WWk;TK%tU(ji*j~%%JU>OwsD*K0d@e|YQ-)sv#XO@azG#_YNk}1Gad;`9A
`a*o$X93=*Qm+16?E9yDfB%&)Ant~*`UB79K2Ptw->W~W_g~w2jN>kK^!WV~vwrOXBL55ydHa7GY1I?Q8?<^hqC)sW`AqC%m7hPnmw{d|_(L)ILro*fb>r6qs_WkEFIW
8W{0IE;Fm2BLc`NRCPW}?}_DPJB`GXy<oar#))oxJ1Zf*37UJU-275JDZIcH5iJrXkH6T+*T04Q+3m443(Q0&Y|lvtmNI1XGGz@san*A{<dCR*N!;HYa?1IxAEAo0ihM
4O(6Fd@J$`m}GjX6I{6w<JMsz&=+0#B<>=KJ&&1+k}JvRDb2nLv}xmIGgVW_RaeS@3`^n9|Qmg{)+GQvBw2Shy1$rIN!Z~@;93fI{O$#T2<9Ai+|N|EMwN)hV}t@19o2
Yo)4Tx{2<_$I^$hT%;y_?@<mOf7@i7$HSo@8M<f#Xva`<H?MXz{1Yos4hMPuuegh5o<5B&~@%}Lbrlr*HKI#p=ia#cAW7&tpzu)}$(|_gd>*r?@H_j91>Ar?50OjgF$2
qcLhc@bjH-M>MQ_kPQJr*rsJ*MW5U4F@)&xvPy)#90T37?GoFaPEr-FMvg0eMg8U|_!4m%r*d;yRggjHvmOILG#>AJ5Ug6Zn$#{O@3@?ffwo55TqUYlUZ_kNCTPr(xd4
{6{?aXEPk#IhM#LFVgaR|Ca-=IN&k+AU*$~JY6O-sl-a)f&-sk?Sha0oplfKlBUDU*bDkMhw<Be=94{tQ}~zXbAIKp|7XNsF^3#6`cd|odk^jV$GU&uPrHEt5T^J&^A8
`q9ba>o?n*r9vd#5#f?;0!sEa;j&Fi|~H)QT-&hg~T2S!-l@aVcO!RtSHX49<iWdp9}{B`X5yax>9`}>$~9BD2Gu`j^s@BZ6>*9`q$pLo@e29CRw1I_yy13of8;u8Pq2
o}88ex&CbEe8Hzu^J#_fJ6rg+5lfPGQ{zk3-svrzQ!%Dejx^wyAN(7t@OB`&wk=y6fRo6<WGVhmLIgrpG@>8`u?5s;$OQa_RahGMCO?XVcsI5$9(Kne?<X8!GS&EBtFX
p>-6W-e}Cye%)XEne<er$;_)H&&Uos1=ZP(I=Z%}M=&LWa(uX}qgZwfsfE>~O>%m`cVt_CFG5kIMg69OjQ|VXa8rOy!<REO1UE~?_rg2Q>Hk+3ItHFn_<KS<)^}L1oox
?uG<DL8x69A|K*Y0cVxflVyy6<1(!Rvw8hyT(3FURN9<FOG?j?Tl>{JEL%_8<Nae+-v-;!VrO*d_2rnLlDb#G8J2--qV2=)du7Z+Lj;*OUKYg8-d=<JU&o#C~(<E9c0(
!M#vRtLM!=rtqc*KC|Yd?It9#63S!dlLsA#eJG!wU-|HL!rlL}X#2~$-#UjHA-qp_0)(jy;d`syArMpXp$=5>ay$F~5d4*w%WA#m&MH0Y>fXUVCDY;B-@zQ9J_vua>)F
rB`#>xxK!p5hjkDwF;J}!v{)cOT1MZPm;Nb?bjyp5|sro!(`6c9yahfl7BG_*YwSQlO6`*C5eV{+T^Wmbe1>Pq`Z^Y{J!>@fg?B4AA{AXaazW)3D>)$OgU&g+I&psj>Q
2qnvCVtO3*k@bmqo45~UOAo<;hJA-{5cLnw$6##V&xw46AQSeN3>l1cO5qf?Y|@bdCyt8RL18>qA>Wfx2^~iUTA#ACr-@s<hkfvvEf&ZH@@dG(U*_rbCv&f1KGFAlR1A
FMc8K_gLOFP&S(7O{9%H>+x!&K5lM^<zV$%HT&}tBDjK%by1`f9qw8^B=LdYK4{^|SaOw?I!9SUyZzAKx4e-|>Y6ZZRCt$3F@>}+utCIYa0xf|)a-eRtnLkhc1sDGN(h
)d%&;|f1x+1&(5-Q&S`a7l!Hoj+B0W6aQMfrCa`!NIk27M%-dFbHTo<WN@`vN|Kq<HfX5Qi1l`1TJ3XtP-L8vqvX-wY*sEB_}}9}4nVYv8nr0WSP0t3PMPnir4VKCq*C
Kuo=v%-z51Ki2(@tZ{pP&XH;z9IHFuMenuOir**ves%JymJU;V&`l@)6oUs${8zp8?%$96?^>p3oh(<upby-4{a{qzv-OO=Z6yfR059U))p<T}jUS_Z;cHN8%|(Ca7$?
9=8JkTfkF9^P2#A=!ik@5af%muHr~aeX-=@5I_pblfKwq2}eS<tX(ot>ap91(%W-om6BPxBm*Yk^4j(LsLxX$Yj=xpuhQFUK{|Is-1nf}|>K*fg_GUi7V$D#hA;EtdEk
*od=5^eOkipMbHFkY+93FYq&A*6-pt-oHhUNpWsKfmsL4Jh_JvGQ%sNB>K4DaLE|$H2QY3&ppTr*aleGq(SBnFknp8y6nl7qaS-tigon0nR61e)SWZCpFx;k2;ofC7T}
^-A}g1ar%KDS$g^J2GZAnZ@l@>XQ6e&uCD(rqB3+W=|)#zco4XK#IN|qlczrH=+CMB`3Jvy@-CZbfCIWd-x&sY{(aO>UB9hF@-x+u|N1)S75(Aw>F;a-EJi=G%BS!A=f
dyUSE%_J2*h#zvjC^Ue{Wvq<j-m!(VG9Q1HDVG;6$>2ka6J}^kJu75)+Odqj|};%=D#nXEBGCi-@&#h1ctrf3-)zudi{>jXCurg`c^8e(5;b=$Fs@oBAuz-{W=h{8#<g
d?VkjM1S#~Dt-kE23LT0;eWgS`1Dt7q3T|J?ScP>;=fbB#Ph}(YkpEb0mifRXGzCgK|c=k@F>t@`St%NSD$J3gZuS;USmJd9-|2>nM^z1@%zH3oc*6ATl8t*l7IA`f9p
BZW6=F{%5)Am!M8rFZ`PrgA1mDYhp<B9k4wLd=bZSd2{BIEN62fU;-{Un>jQkvnqLeG<y`-3#{SWH$h!je?fKuFJm}W{K2Kb6;F_QvMCMGRf@QqsCAr$`C3p+|Lg{5X^
;7LA{bdM23;%Wqd|02KW2++b#;@(k>!c3)b=*00gIs_FUkw;sO=eF0Xg@ES$Sxl&Ket=zN2~fV(#gZw!sci6aSS@L?kZo4zaXv({E`V(-M_0Z?itW&UN{)SUh@xDg5I*
H7sp{AN&9d69C4oWUTE<I9DG^yO~1$^h#;zSTXUaV_sb@JGjX4uW47Y!+M2_6>05-aF=6l-!*uSf07&zE+0B4iDI>9k(%1YE@NbiRwA-ci*9U#%dmp^<L-v1{ASQJ@ZO
kM4AOzdOxn_WL<qw@aFBzCK<nxmHYo+5Xd<#0()PXjGew0&w<A?qbU|H}9!7BhCBxP?wl#X=v>&hQ=?sw}Kcm5dbI2+rHl|P2)AThu47J#;^ACfl^q&*wV$|F0DetPMN
#c@|2QJve9(;qZ%0{W7zLx+UgzA259{u(mQ(sP{V^Bj2eK8$65VT-^W<9%%CM!p*y7(?OtM;~#?*o^x(ABaQnQDJ?{Er<`jvU;@XF1+<|cWjvJN#i<>m^|7OTfg5Yo-%
nWI(~BaoHj2`=GSUW3p^zsynE`OC^5jRaJdgYs=t@E3O3t`8(|FUu1tNm-G75wg8tyH^DEfr5KXTJaD=#y`Wbr%z$4T8;k5pQ%>N>PZ+_%wfMx)JKIbRwWq<7JOTOxb-
<$6|Xy|3<=o{POZ`xwM0uKz>-;Q4<;{juilemo3k9+<f`%j4Lx!7O#%eb##@m@m{nt>C}<7QRQ_WVi=0$2^8r(b*<c|hgUZ~JTh0p|<P&|MAc)1c0U;Nj-~`PA<|(eYI
U$6$XYl<ZBoQvMZmkH#E2bnp~dUgn3ortWMEp~bTQnDcX-1BpO=SM@gK+!uYJ;+O0AU40MFtB1;DYlL5)ZGZG>ZS9}&=Kmb!1H&(LAfEHX;UW6Sd|o5(zfZr~55D*V8$
T%iX~i4&jz8Bf$Ug{^c{ER*Uul_a087M=W8ksIF~+K6p&OUVXNvgfL;2wUd3d>nqjSi|l+uCuk>>9Jx2kgwoz_%6khuH?;wJ_jfNrFr5RAc7n0eEiz`pSBJ%2p(xE0VH
#2_XXmptG(`ar&c<jo(AYruIOP4ge^3rxMz>eh3ryu((S+xchJ2W%KoI6ViSHcep1<6FNhl(#wra_9K})V+=Mx&+ra-w6Ey=uf-o0DwQR^mhjS>H{9~)juIH!TlEOdzs
SKV{Nb*{opx>5qS%)rh!%8`)I#yKldo2lp_J<0D0#xK7a@wAKQ8>HfbEK8)wQhnFAC)cnC}!V@^$;AphXJb$5ff2Y}+WAEch2>whDER{dOGc*93#dIJ%rfw|?0Dvo{`W
NYpTyh%5mKY@-k2nfFWAEEP4Y!68Nk@h*LY4>fXo1p!U_$mF`<_DHz@AxVH^Kel~5n!voj(XYlJ`LYGY`LD_>Jy`W=sh@FKS<6^tU8u^IO-FF`a^tw0)yqhD-Lk~3-DK
*)YTyT=r`iyL9?oUH1anF3IslsvnDv<Ftd6;(O<Mre*ruwwj<aNsLv04{?yOr_Yc9tTK~Xn{w&rW8_sW4{I!yyDSfTheO0AJ?*D1J(@TG&^X=`wO&cvJbjj<9Uehr8X%
GJBqPt)%R@Vz5xDWDL@XVR_`rN<a0o~rli9{(E@q_DDc>UGqIEvr<BHD$ke1vQH@{+xhHcaU{4juJ+U+@r@zz*YT)f3T$&(Zi5lRww>+dA*mZ)xG_S-+xA1MV^BSeZXg
KD23@viDFK@w=G&e*%s6HLkMeHEiJBYj9;5P9XoP22>3y!ERd5_eX!&<s6NvVCln+^Y1Yid^Vjz@4IRK)%Rh|ABCPOxW8^YH=)U(>$mntzV?TF<_>0OYR)YHx8?#9@Q>
|HfY`9;X8}wBSb;e@=*oBF%AbQ>TTe{&C=T=^=Ki0#|CO-N)}u4+zc7Ey-1))OKWX~De-%-u-&7c!_{k?h@AzjT+}U(m;6EuklA{pj{z;Ah%2Op@^NT;O#tQQP;C@?|y
)TykmdB1wGd^(GDaVZUhIoFoGci;rEvWW~9>^5LtP3%R6YOKh${+Z(s!s^Md`x({+u`azDXX_}cnc9`LVebA$gcZlbB*0S?z`5Jt~?d)lR}%mbhINrgG)zoaLx(PkDuw
c&qqIJ>Ka)V4nO#JHtG+r^}Vszzis^4V+&H<curoRXFT)!4-d2VHdUBP$-g^|Q~VzBzrG;#QV;n{)pu^-c@_|3|J_mA)Y|LpOaEgCMohfi9|WMIfFtsE#IM`OE&STL!T
&19P)A~Z{Ihq}bpL^O_*zU4*E!}Y?^^%Ywytoz`+_NX67o<FHcYl2#eGmw#F=dTeibaw_UT7H0PS5jf4VOgx&gu<;j9?=!%3It$-3MJ|J>*2hwKmf4xFq#M%eec1)RA5
K;xq|nwoQr5B6=PE7)ohXfKD3A;;3K#}#9qm3xlQzw_R##|x)^u*V6t8@}Hgzp(;jqJY^omf1Lz`C90*);kCFiK-4S`;Cx!scjGreYetO%HI2-^TTJwqqX>zJae<nFEz
n8SKZ%FEOs2QfhVvJ;d^j$$ogdA1ECGz@*~hMU-);&ff)D^dB?uyuSvAw94_#W(g!QxXbCd59;B=OLeHPoW#j$_^=v^X3TvLikS}r{^&W8csiP)|S+GFzz2CO%Ms?p^b
>KPgY6Skyb1rtv5;5P#!k(-HM_xfl-qU;gKEg9*(~$u83h3r7|1l>0EB}=FhmqEq;O4#VPv##^KJ{l$IObG+^B{|tZEJpQ!w+r}-a>hh)MbbM)Y9J`{5JGs+$C*)sn5;
=*a--X{2hC*JTNwi0?lLEugpJKh4JF;a{dwvwU>S^cmUNulf4(R|Du2%$y+?$_^ExSe|t^32uiAcz9(RoYO`4EaNoLQJ_8fRYnoWL4hH6z%a4%w+zXFR<HMde0tEGk(%
x;9%HuE>*s{3fbvyd+KKO%!9;AC7dw&w=MKBlXGCv!We@6a*9amlG+;aF&`WXAV=wE&Im|-lqo<9Qtc`r8i{yK0ZENF-S%zD7=zi})hXt$==ea!juY`gzg+}_{&AMW17
A?RwoMzYc=S$FfmZJH1tW8%E`pQ2vbgTC04vlj5|{O~4@KJaJv&SwT4j(o5zeRl8|kxy1ZsUvMmK4a*03I6P$<FNj5^iR3?RR#2839dNzkET5gZwpklet-%8W$4pSoet
u@;Qv;B6jiUd8~0^!{=OcJf%iKB1L)sJ>*s+7nXo^b{kzq_FJ9!#ALhD)L)nF;9};kb?q-COnGQ2=;=HS;>NdCDX~986H|_^6#-w-u)fD&iH7BM#2J!~cple<#c!f52O
89&mpI^KL6aR8P`aSI50l&rkUkMD@%HR3<*Y8;GGn;<jFjrSRKKt;Hu#e;bh}CghoL??RRvs9x-)Vm`msTyTCK?X{D(ADO|6MZwmc;2Tbm4-oduskpz<+?(^4uS|;ljN
|)z_SWISPF`q)OCO7}_XPOWnZL&bFff_eWTI>KlFN<70m>@}khZ^ArD}Z*k^ed7$rd^;7)P|8C!|a6bVmoaOi4N4VFo_>sA>p=S%n=r(X?@J4XX3pc~(2k}P>9gIT#8<
W2k-u#`*OK<)a>oc1$Jn3tJ{`+~-#-j!(K+x9op=q)Q`}KU|Gv?L<3=N#L9{AL^+OXq>e_PP-gnaM<8fYIe1fn|Krv6cy?*ZwJ`+x_F#j+v*m&!L_{g%*gaWWq4oj;%F
Ic&X>D~!^Mi8Ot~{SS*@&#xC-x#;gn{0|d219<S<|1$lbLEfI}HIYEA{~W|@Xa1FQzm)ex!mb~|k7N7?;9GX0${5~z7VOc79192_=ag1s`j;=U_D^B{Z}fj+)M0hQVP4
&b8Jm_0k2-UHc=Ks62b%Z7eC)B*!Z8$oi8nieexJNH2$Z<)SO2UdXu2)q8w#^m`~n`e=jSl*lw<x+iBIUiBTFRj)@|gyvD&US7D!kp>>kvwtU}qe;Rk$k#NDUgjwM&)+
@D*CBXD!#R+WEqFCBQlM*z^4KiYGv)bRlip>PZCqulzNHfS7dqoUmGehoiA=Jog*P|Sn;@f4r3`f*;k0rlHX3gFy(`mWo?ecDPGJ@?ZMgOK_&W*)To*xaL&fdQi;e6oE
47>KmO_t;sS=FwR<e9$idf1~CV4Bxx^f2zyY4Lpz2^#W)B=!4DYC;Chl=V{m59>-o49Ec1d&VL3u!8clk-S)~cbsU<t(fdQne^@U6F@;lX<PWMt(fL>TzxMy>V_Hkth}
~ZOmfvR6F?`2n<2mj!%F>J>(B1k=zV<qRm$UbLE&bBIuiSrUoep@6JvfR>X#E=s7y3um*n7{W&JTtRu!E=kxpB}V1Q1H$I9qnN=(`KYOA2l27i#-=jsMUC;>V)?;rz+m
+XVWc#lfC19pL%I|BtNd7IfU}gHjfBkhtV)p?M89bh`drUp^N&2rIkk@tCXRzKaz<n}A;ZbgBQ=e!k<;`d}gUXcMRQxDhp~{)?WQ_~?hRe=)=R5U7;%yY(ACJhAl}ss~
Qp67PjUu+EwjKj?!&_e=5r^&EKp)_%8q_0tbW>jyHQF5zeRxik6)jC%*VhVbJ{{=e`x;C7z@_2&PX3;!$xe>-c7i1lp(kI4joJH7XC<_+$rd84yYi9Yi9d>0<0FZ(5J+
jGugw1ZveY|#q_&xwta7zh{6aWrv5I_kl_9h(l$+nWRbGCu+<9Ha}4KVf|P!)Ny~A8SdtJ;QH%HDv5}l_y95izfyhb?{<i$R4h_S6O>9cr_irpY`FUKNZ{*+CTaHf^kt
68LLtkv(KtDbL!jpAczZXH$?yH>nJ;~=DcQ3UIN+=hxztdgOWH!>_0}{c%IE0I(cf2>H@~lp*Sszr@UF}2*ujd6{2ta)pKN_6Z3pna<2yfucH7k6Lj*bYQC@PhwdNU^k
fadc+bH}!549+K5C}}mvGW+uhv*)FK{Hlu8BQp%#7bh@lVqSc+&ml2Y{;(|KuV;J{|VQto&&4b_Bn)PrlOify{Y&&z;%Rf6M+2*?&9Uhx2a_{cR=AhxX5g|C{d*o#*R-
XCI*FH>#c`@kIFZ31VIkkfV=@0pV177am(kpQUv`IR9A=MD$WU`ajXtBf-aAfKFFk(Vu!$M|F3j*9GrB5$QFen@4*HnU}M8AQ(OkHTDA850S9!z4zC|<h?9jy|WMH;D=
(Y8#EKak*)jf&#{<LRfZF_AU(4a?79EjfDbi+l;#x;vkv|H#h(i4uUXAsl3&XHJovDNJ_ZNzxWM=F=RDFVOFHV(_l8RM=I@-L8(2A<7hd7s{HL`JBV@f&F1@x?{kyULE
PTx`+H`LZT_nOjbJ50<TaS3`PZh*2;=O+}gq~}Ke?=u8oxgwWZ?31=_+QJ<Sr2^bIXthn(D)SY%PWB-b6LC*sG}DEQ5P2ZWAWjxKd#@m?r$m&kFp$f18nH(#VCBec=|(
k^#>5{Ywn)ogj0vyp{Enr#}c}KeD669)%mie2R0WShlE)VU*(3Dqfr1I1u<Ot+HgbXvzMF;5+Ayi)6wSO-=g2x`{&3**ZVhMs5o2f<$UB1XCKUZ%<*A=M2}cs>Hakz0@
zd7f{nTk3{T58mw7kx{h6n+zxMHeJ_ht~lF(SLG03hTe>T#nBP06f&0~}O3$34OO4}Vb765Q~*Ym9Z?1%lIF(|Rhq1k5Yxlz--)o@H0EADA{(N+5JKK7XN$K8@$0lH4<
Y=lYwa_%qm32)j_{NDA0W4Y=0vHyMQAIyDB)DJnZvnV=SOdY7Pmo+}heItHhe%gy(<Kau@D7aukbP*bWyU2GXdi?xwdkbg5{|)}2m7g>D{1E#G|HfkraDWE`nOx$Yr9<
}FEOn;+je)B<N5uFs@T7(7A#pAN567a^>nF%}_myE0DZu%y1jHJESo=}q-4{jzd+W|1&JcUCVF)oXL_Y-mqS)i-W6!G%zWbbC2?+q)mn*mRyZ$w{zQ5|fx$Y0;J~9FsO
SgvlFN3o^^0@9}E&UcBIwz;cPagAm5IEHQY3bLp&iO6`F`xQjBRxyum6MncU7zBse&$(i;=cpG=G=+$K!7{=8k`O8gDk&u!<&7t|A<iU0_d&x$V|N$&OiGY$ebS1D4_X
6sPwy6Z_C)Be^Gl9wr)f}PF>_e!MkVuL()|DGmEcN1LnOaejeZBdx8DxxFEr7_&w)XeCu})g3?^@X2W2Q@C;lNjFEr%WA3jDMW%D*eq!wjR{f;oIzKx1)=A?d-}_%a`x
iPc&jlKu#=Qf0@QbLT=~O(`v2Onhuw#t=Q}aj8!gEP8IujTO<oBWa(eCeK*<ByrF5()qZ#sYo-CJsG3xa<U{`v$kh;V(${T?g++B5!+^})KYQ{{(Fe)xDz1N816ZW`a1
10+#u_b=3cJLgSi{zKi3*5PY@4<=YAK1SV=c;_9`P;5T`<{!%(vhad5p7H16hoEum6{hZw2==d`+ar2Y?f1B#(e>c1{k=c-^mrEkc=_+%UzFq>KlT>cxc`bT4qdzvzfb
MqY5gJgPgC~?y3YTNMOWL8Y~5Dj-!Lv?-Ycljk3o+2yyjbmdenc2k0$%$hJJaD`84;l_Sl@YSBVQdbc}`b##{eAj?(l3`|6r_X(KOMY3vA}@4eJ5Ajca>ft2A#toImx5
T3;&03V6t%Fq$s`?m)x`7!3T+guz3=*`??4jy#P)@`y?_#-Bu;E3MOVUK)O$M-(#3b!l_`)8y(jdL*v$w7FfIZ~L3bWW+?!++NAGJohjf4%fCGz_zTX^WD@-)@bc<)}+
rAO3?2{d@c)ugnxb+55{tgK7O9Q<{%1O6d7bI_$7H_d0ZgW&eBb@=2bbHGQS$y|x1QY+C_98Fl09{Mnb!Lc5pm#rZ?Wc$(HLAAp|ipgMO^Ww;5B(|y(0i>Co+gy^>qdG
<IusPNt&gLx|ZE*x5bBXp#m{n_unAke*`+X(^0XvL^;1LG3pZS-l_*eR2Q<I`ic`}$2cr(di6t0oP+h%MMM=X>oN#@6#6^N6*7kphA_{qIKyuk+I^JF%&Mu)Uuv;I;QB
Hi6OR`ANTh(5yZ&!#}r*R>h3MF>e86+419Tzk@$Zp@f;rUtGkPmo(tL&OO6_@k`%^<TYOj9C_<kLstkqlLa$)k~XP;;mZHa?Y;Oair_l-5!t$a)xG|vkv8|LQvbEbRO~
x#C~b<x`%t0S?vvSv|5A1OvtKyt59l}MIDg%i*>erS{f4L4YkZe1+WtbZ`$}gPpfvy>=4g}`ZQ5eTubleVn7cFV4e>F5?Xyv`^#4%)7k+AxhaP%(N5+hL;a}Blt#4>0^
EC6Oj~-Uve-blmk17so#v(#)&o=Yw<N}a0=jNQe;~tyW#Uj*CK>RvB+Kgkac=azLWq}%=AM`Prp7X15ob&mCKY)F^pE8H~jOMC~z@IbfC;N8>-G=_s;#Vx4gYT=rBG!G
oS>`aU`7D6j?jT&`515ad=F@Wk<E;Ee@RwNgdu!b)#=?3IT?><nKi&WRvG#{JPptF1>XWs9yY-l<UwZ^l=APE@&t{&1uZ=+zy+5Y#2c|a0dTx#ngJ^~Qhgv^Vzl`+AwZ
Nco9}Eb`+TY|ZeV@U5nK=0Q>W74_0%h}0d<}HXg$qNyX|3P;=+ZHsc+UP#&p#|d%WnhW^2bc~(Yv0b9@7NvMD+YWdx%NnPwD>++BMSjwH9{Q{V8m;DX%+q;n=4gKZxfa
>zJWVcYDY4qkgUUU%=5$2!H9*@b3jeA^ff4A4WiLL?LYh!KrV!&jG~R|9)eVzWU(lbYT0jx9}HkzvKf4efv!?wJrbc?k4uf^2rx}_bB0ui@8GgFFtVxuX&U7d%(D^wE6
4YQ-0;Uuom+u{eP|hFk9^}^x@i`&Ya&e##KKeP_lIQhVY!|vdjUxv-p}X0<U%b485kcf7d@9awPz>9|>UMc+?zI)coY^WAy$LoBXcn_e}Svuf{ay5`g=Xo~FEW@GmJ)P
Tiiu<*AEp=jkAj@9X$%&*?PZclA%-b0PlTo_d!4a_@z3)&H~ZPv1O|v}#-Quh{(S=kv$@TI7HE>AzzB4LsYjTa&!D>BR(YW~JBz5o|n$q_5z;w+?;uVj#qS)hz`5pl~z
Oe&c%n)W_Naj)VV~Gx7QO-G$446Q^Txj_xb>7urfwdjB-rb)oRs=N0;8G4MRf+V4emeg2<tOZR<7{$vU)sX)hPe|t>*IB9rj0cxTn*5kX>@4Gy4Uv=w#+b@5{WE^F^`j
57PulgjKH$3-H&wQ-rzg^_h&+@a-yQ(_JLVy1gKU;<fa^=7FThgCQ-kar;%lG%3<(R9{eaik>Q!FwFtse?Oo>hj9`E&ODt@W__f~<*9BYs)0)mn{-$6m#XhoRT6`e@kO
KK6)17qs-)QuwD|Iin-T^nBKr_V{(q{TI4^WiI@j<9vg!R)rkn|H?y{rmOz;C~Q?H%a@+>64pMTEi`==Z!`Vx#08{&EZrU(`}?F&GLMe|9U%az{OM>va8G0|Ku!+o;Po
!vYXzQ_nD`>TV&CDCPuO`mbx?0!oizs$Lr?m7K7H>$2<;z3zt?ju?)Im-IM>Z4_!5}EV0;U~<CxdAyoMEjcn(H`STORZ#S>yXWu_a=!}#c5$DFIQBpe_61V#0KRR20$i
JEKglBKi_25%;GUk2hxJiC4^>$BD|j`a^S&$izCMct2_I9KCG2>;-37XK2BpfG7ENAF)W;VW{j&Uub4?z(7=_k4MY+J@<_%ox9ODc5>VSmwv#vrsy<ZzM3uN5Jb-&SkK
E^P@Us_wUclcdhnb*udpo!-?#Vg<g^E{X5*l(>l5~+c)u(ez0F@rUG1j{I974Z^L`bL;2P})3!I(+nljKCxm~$>c7$NaRD04Hh)p}Z#)1NU+z?eNiyxl*D&p)?=kI(gL
2MnS}y9@_B+pY43GI0L;SyM#cCZZ_Q9AhK=!jn!nAMA`wraTsP5#(^;bPG91-;~6-WKxB#U3L=htG7m&qK{-X}8mKU^NEN&N2lTj2kJ`h5{KN*BRBUirP}=Hu>lo6Awe
n$L@T>ah>}!leBvssMA(^X|8>F9G~`IRNfGtNEprexG+?UUgRskH6*$R{X56-|euS=XU<K_(>t-Ma^Gc^Pl7)eEG8W@Ak9yFE2gQPScnNq?FYiPiOxJdb9TNyNILIpC$
h(qWO(q)|AFSrWKtY795ZHS66=C6l$t?q4NtK3jns49~c6(>%lR9?)|sAcxLaPI-!N>qPOkwNJm^$fwQq++iek-ObJY)!`@}O@`8r2fSfSaS)l@5ExQ1GUgihBd6@RU>
^uIo*6di(El#@NCwq)#`P<Pyn7<dC8(0a7ef0l4Ui{V{_=oMSU?+dbPSGoO{$(=1k#j%Zz<HLVPaX85evsShots{8$QsAN8)N_Ge$5T==s2HcHMYmxYxSuE`pOEs+n%>
o_^e@I-6uE&i|mnBwXAXRA4B)<dIyxKojTCzkiZm8e^mQ@>)M;IF@zucTgLPR+u7J(a8{a?W3LtVlX9M*f%iR#6tT===3Be3*n0`~{P`xDw((Ry<BnC2JthlaO6a<T>^
)xh-&y~x`m^~MBv4EoXX9t#Yk>!O7J>c3&`<Z3Z|ER4&rjt&)DceX^^ON&yyYW9_ZLx)BvRH?_u6g_NOQr=gO>9l@NE3a0*%hBy}6oy4&9Y!LqEf8>YKvt_2QP5P;s9E
_tN;>-~RCviTTfiz0|-@R^O7iyWpbP^_=iENZ$pIg#4{1EZyh?`l_WbGWgp$8_nd=)&37>zR>(Udz4o_ui<lks?$Tjb?AFj_abcZW6J+pXhYP5X<cV|>Yh*i>e;uk!Cg
7^=hiQ4yhHm>AN~5+_7`r%KX?6azF80L{v9~~<cHCnY?@Mv{h4zv!Bjtd)qhq*qv9dP)#bMQWq(`;qw80pXFU5yWj`+byYrTLY+7`$yWswJ*S-Pc*W^hJ9-!cyz4z0ke
9P7`ko5A5{V%067BYW^7ZZ68>wUAm>3Ry>Tc{4j(65g%zhlw%2mNcQUt%XMDeWAyZyn%s|M3|AtH<z3z!uM_6T{lOrR}dJ2st+%%=nf&;R`hWipO?|pwurgTLUa6aCXm
|9o;KqJ;+=0Cm@J}K%uD95}N>x_+$-m5C`r(OxQn_bMLk<9keDgZ~We8{z!T2^z}fI*B*<<ekl6sI6A*|to>gUdwVW;G@WmSK8MB7EwAJ+WFAiE?VSA~Gt~#&`wN;s5~
Kd)c-N3qD7_Rio#p(nZ$TMzx9YFV^DIc=J-?s*30ki%|C7`ysQ9h>+Ze_J^KORnAQ!??^J6&2YmTk;$Ech0gFk7ze*@h=?GK0V1s1wsBZNoYdv}qqgyJCV4{rY#5`RhW
<DQN7|M&SF{ruDWyTpI*Ic4xu$j5!`6|ljN$eZYl{ev5sSvu7D(Lr=+m;-;TLLP({?|t@le>DD-ek@c@y8dc`m3luco>(5j8$Wmj%Ar5F?70WrFKyDQKjM>@Zp4?}v~R
|KrYI#^-UngSQTotSmwb|~@#h%A;5ourW%XtsVUhj4T=MVMcSTu%Jrbyw`SVjC)Rh+KkQWH<2~k|0K%SjY{*WvGz<(@q>pY~0@-g-QiGSs{|04e%YyZ^u{@a^B+`N{)|
1rzR1Wm}EeDM+2Xa9b|BVVzSk-v$4Dd#vqb6ULmPTx7GeZRly9B|G5!YvQw7#sPo_dX3%{x9n|m-v0w9BMAT+d-7|MIg^t-(u{)k^P_a|FQN(hX6o!M}#hZq(E{<*AhT
KH3#4_|9^fgbYFbDwZF`E{EJuuWV>&`4>9R`CxmT#{$J|BU-=jJ4+Iu6_W~E)m;eD~5XOvkvtRfBB*wPBBlwd&r(uu!5d=tU!rk+@pZpv|@-b}05Au$ozr?nD%(RV@3A
JBs=*sFE_E`DD)W3&)oAjL^<6)??b>FGE00`tb0~jXmu<|!weN*!HG1wfclYq6ZCqD~k=6TK%go~m7ekSfa){_X1XNP+xO#FAu{?*CtzwKMs#PHv(f2i{>Qv-46AX3kG
EPS8mANoV6`|v)*A+R6TS6lbHKQGU#QSO03M*ubvXso#c6@nvEFKc;|AO63^GDiIr<^N-x|K_J~QOis`&A|r&eijr)tHvPe1&m4lSTr;U9I`%jmB+Ehk1XE!VUW@O4Hq
RO=>reTTfZUd%7aq=+8*-+uOyJ5n>66qN7(*7bbk*pE#%)6y!dH9i@$AZKc0cfL!UVC+-QBvO;112V7z>M(VeIMIrf)wy#Wd1rQ>deOD+BNXP-gvj>YR|#u?s&-<;n^o
zY{oF?nbo`-dLE+W%Q=N__0Gg}$5g&nbTf{=OeN^rH?M1o5qZ%W?t4SqxNU@83PYl=|4$-iyBa{7l%?sUMeYQ~dGgUw{Ae{J($x_~Xw%&Od+u^LN@`f5jhmj{9GK`!WA
B;;)GO^Upu?AN%9{^N0WK=h$C=hTC8HXIT7WfBpG)hUNJq{`}`p`|FR)zx;3aKmPjXkNo@Z{OA1r&)@$`SMaZ&|G)m}|NZYD|7V}T|6jrX=nDRa7x3Ts^!efc1=6iV-2
"""


if __name__ == "__main__":
    sys.exit(main())
