"""What all probes and measurements share: result (Outcome), rank (RankPosition) and state (Run)."""

from __future__ import annotations

import argparse
import time
from typing import Any, Callable, Dict, Mapping, NamedTuple

Item = Dict[str, Any]

#: Seconds for all measurements of a rank. A measurement that would begin later is skipped.
#: On GPUs libraries load and search kernels in first calls.
BUDGETS_S = {"cpu": 60.0, "gpu": 150.0}


class Outcome(Exception):
    """Ends a probe or measurement with a status other than "pass"."""

    def __init__(self, status: str, seen: str, advice: str = "", **fields: Any) -> None:
        super().__init__(seen)
        self.status = status
        self.seen = seen
        self.advice = advice
        self.fields = fields


def fail(seen: str, advice: str, **fields: Any) -> Outcome:
    """Return an outcome for a useless image or node; ``fields`` go into the report."""
    return Outcome("fail", seen, advice, **fields)


def warn(seen: str, advice: str, **fields: Any) -> Outcome:
    """Return an outcome for a slow or fragile image or node; ``fields`` go into the report."""
    return Outcome("warn", seen, advice, **fields)


def skip(seen: str) -> Outcome:
    """Return an outcome for what does not apply here; ``seen`` is the reason."""
    return Outcome("skip", seen)


def finding(name: str, status: str, seen: str, advice: str = "") -> Item:
    """Return a result as the report holds it.

    Args:
        name: the id of the probe or measurement.
        status: ``pass``, ``skip``, ``warn`` or ``fail``.
        seen: what was found, for people.
        advice: what to do about it; empty if it passed.
    """
    return {"id": name, "status": status, "seen": seen, "advice": advice}


def known(**fields: Any) -> Item:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def median_key(item: Mapping[str, Any]) -> str:
    """Return the key of a measurement's figure (``median_gb_per_s``); empty if it has none."""
    return next((key for key in item if key.startswith("median_")), "")


def one_line(error: BaseException) -> str:
    """Return type and first line of an exception; torch's messages have many lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    return f"{name}: {lines[0][:400]}" if lines else name


class RankPosition(NamedTuple):
    """The position of a rank among all ranks."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    #: Ranks on this node; 0 means unknown.
    local_ranks: int = 1
    #: Where torch's ranks meet: ``file://PATH`` or ``tcp://HOST:PORT``.
    init_method: str = ""


class Run:
    """What the probes and measurements of one rank share."""

    def __init__(self, options: argparse.Namespace, place: RankPosition = RankPosition()) -> None:  # noqa: B008
        self.options = options
        self.place = place
        #: When its budget began (time.monotonic): after the facts; turns of other ranks move it on.
        self.started = time.monotonic()

        #: The module torch, once the probe ``torch.import`` has imported it.
        self.torch: Any = None
        #: TensorFlow or JAX, once its probe has imported it.
        self.framework: Any = None

        #: Host names of all ranks, by rank; empty until all ranks are ready.
        self.hosts: list[str] = []
        #: The results of the measurements so far.
        self.results: list[Item] = []
        #: Names of the measurements for which no time was left.
        self.missed: list[str] = []

        #: NCCL's log, after the collectives.
        self.nccl_log = ""
        #: The state of this rank's GPU under load.
        self.loaded: Item = {}
        #: The GPUs of this rank that another program used at the start.
        self.shared_gpus: set[int] = set()

    @property
    def need_torch(self) -> Any:
        """The module torch. Raises a skip where it could not be imported."""
        if self.torch is None:
            raise skip("no torch")
        return self.torch

    @property
    def module(self) -> Any:
        """The framework's module: torch, tensorflow or jax; None without."""
        return self.torch if self.framework is None else self.framework.module

    @property
    def build(self) -> str:
        """What the framework was built for: ``CUDA``, ``HIP`` or ``CPU``."""
        if self.framework is not None:
            return str(self.framework.build)
        if self.module is None:
            raise skip(f"no {self.options.framework}")
        version = self.torch.version
        if getattr(version, "hip", None):
            return "HIP"
        return "CUDA" if getattr(version, "cuda", None) else "CPU"

    @property
    def runtime(self) -> str:
        """The version of CUDA or HIP that the framework was built for; empty if unknown."""
        if self.framework is not None:
            return str(self.framework.runtime)
        version = self.torch.version
        return getattr(version, "hip", None) or getattr(version, "cuda", None) or ""

    @property
    def gpus(self) -> int:
        """How many GPUs the framework can use."""
        if self.framework is not None:
            return int(self.framework.gpus)
        if self.build == "CPU" or not self.torch.cuda.is_available():
            return 0
        return int(self.torch.cuda.device_count())

    @property
    def index(self) -> int:
        """The number of this rank's GPU. Where each rank sees one GPU only, that is 0."""
        return self.place.local_rank % max(self.gpus, 1)

    @property
    def own_gpus(self) -> list[int]:
        """The GPUs that this rank checks: all of them if it is the only rank."""
        if self.module is None or self.options.expect == "none" or not self.gpus:
            return []
        return list(range(self.gpus)) if self.place.ranks == 1 else [self.index]

    @property
    def need_gpus(self) -> list[int]:
        """:attr:`own_gpus`. Raises a skip if there are none."""
        own = self.own_gpus
        if not own:
            raise skip("no GPU")
        return own

    @property
    def kind(self) -> str:
        """What is measured: ``gpu`` or ``cpu``. Raises a skip where an expected GPU is missing."""
        expect = self.options.expect
        if expect != "none" and self.gpus:
            return "gpu"
        if expect in ("nvidia", "amd"):
            raise skip("no GPU to measure")
        if self.module is None:
            raise skip(f"no {self.options.framework}")
        return "cpu"

    @property
    def device(self) -> str:
        """Where tensors go: ``cpu`` or ``cuda:N`` (also for AMD GPUs)."""
        return f"cuda:{self.index}" if self.kind == "gpu" else "cpu"

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is measured."""
        return self.kind == "gpu"

    def synchronize(self) -> None:
        """Wait until the GPU has finished torch's work."""
        if self.torch is not None and self.on_gpu:
            self.torch.cuda.synchronize()

    def architecture(self, index: int) -> str:
        """Return the architecture of a GPU: ``sm_80``, ``gfx90a``."""
        properties = self.torch.cuda.get_device_properties(index)
        if self.build == "HIP":
            return str(properties.gcnArchName).split(":")[0]
        return f"sm_{properties.major}{properties.minor}"

    def describe_gpu(self, index: int) -> Item:
        """Return ``name`` and ``architecture`` of a GPU."""
        if self.framework is not None:
            return dict(self.framework.describe_gpu(index))
        name = str(self.torch.cuda.get_device_name(index))
        return {"name": name, "architecture": self.architecture(index)}

    def architectures(self) -> list[str]:
        """Return the architectures that torch has code for, also where there is no GPU."""
        known = list(self.torch.cuda.get_arch_list())
        if not known and self.build != "CPU":
            # torch.cuda.get_arch_list() is empty without a GPU.
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
        """Seconds of the budget that are left; negative once it is spent."""
        return self.started + self.budget_s - time.monotonic()

    def share(self, nominal_s: float) -> float:
        """Return the seconds for repeats: ``nominal_s``, but at most a third of what is left."""
        return max(0.0, min(nominal_s, self.left_s / 3))


Function = Callable[[Run], Any]


#: The frameworks that a probe or measurement is for; "none" is a test without a framework.
ANY = ("torch", "tensorflow", "jax", "none")
FRAMEWORKS = ("torch", "tensorflow", "jax")


class Probe(NamedTuple):
    """A check of the image or the machine: returns what it found, or raises an Outcome."""

    id: str
    look: Function
    #: Runs after the measurements.
    late: bool = False
    #: The frameworks whose test it is part of.
    of: tuple[str, ...] = ("torch",)


class Measurement(NamedTuple):
    """A measurement: returns its fields, with units in their names, or raises an Outcome."""

    id: str
    look: Function
    #: Which ranks run it. ``device``: those with a separate device, all at once; ``turn``: the same, one
    #: after the other on each node; ``turn on node``: the first of each node, in its turn; ``once``: rank 0,
    #: in its turn; ``all``: all ranks together.
    scope: str = "device"
    #: The only kind of device to measure: ``gpu`` or ``cpu``; empty: both.
    only: str = ""
    #: The frameworks whose test it is part of.
    of: tuple[str, ...] = ("torch",)
    #: The recipe's own test: it runs even if no time is left.
    always: bool = False
