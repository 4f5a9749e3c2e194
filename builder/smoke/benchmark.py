#!/usr/bin/env python3
"""Does this image really use this machine? One file, Python >= 3.8, the standard library and torch.

    python smoke.py [--expect nvidia|amd|none] [--architectures sm_80,sm_90] [--devices N] [--timeout S] [--json FILE|-]

Every image has it as /opt/builder/smoke.py. Probes say what is there and whether it fits. Measurements time something whose
result is checked against a reference. All of it runs in a child process: whatever hangs or crashes there (a driver, a library,
torch itself), the parent still writes the report. A new probe or measurement is one function with a decorator.

Exit code: 0 pass or warn; 1 fail: the image or this machine is not right; 2 error: the test itself could not be carried out.
The report's schema is builder/smoke/report.schema.json; docs/smoke.md explains every id.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import math
import os
import platform
import re
import select
import signal
import site
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

SCHEMA_VERSION = 2
EXIT_CODES = {"pass": 0, "warn": 0, "fail": 1, "error": 2}
#: Variables that explain a result; none of them holds a secret.
VARIABLES = re.compile(
    "(CUDA|NVIDIA|ROCR|HIP)_VISIBLE_DEVICES|HSA_OVERRIDE_GFX_VERSION|(OMP|MKL)_NUM_THREADS|LD_(LIBRARY_PATH|PRELOAD)|"
    "PYTHON(PATH|HOME|NOUSERSITE)|CONDA_PREFIX|NCCL_SOCKET_IFNAME|MIOPEN_USER_DB_PATH|SSL_CERT_(FILE|DIR)|LANG|LC_ALL|TZ"
)

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


class Run:
    """What the probes and measurements share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.torch: Any = None
        self.import_s = 0.0

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
        return int(self.need_torch.cuda.device_count()) if self.build != "CPU" and self.torch.cuda.is_available() else 0

    @property
    def device(self) -> str:
        """What is measured: the first GPU; the CPU when no GPU is expected. Skips when one is expected and there is none."""
        expect = self.options.expect
        if expect != "none" and self.gpus:
            return "cuda:0"
        if expect in ("nvidia", "amd"):
            raise skip("no GPU to measure")
        self.need_torch  # noqa: B018
        return "cpu"

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


Function = Callable[[Run], Any]
PROBES: List[Tuple[str, Function]] = []
MEASUREMENTS: List[Tuple[str, Function]] = []


def probe(name: str) -> Callable[[Function], Function]:
    """Registers a probe: returns what was seen when all is well, raises an Outcome otherwise."""

    def register(function: Function) -> Function:
        PROBES.append((name, function))
        return function

    return register


def measurement(name: str) -> Callable[[Function], Function]:
    """Registers a measurement: returns its fields (units in their names), raises an Outcome otherwise."""

    def register(function: Function) -> Function:
        MEASUREMENTS.append((name, function))
        return function

    return register


def read(path: str) -> str:
    """The text of a small file, or nothing."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read(4096).strip()
    except OSError:
        return ""


# probes ---------------------------------------------------------------------------------------------------------------


@probe("torch.import")
def probe_torch(run: Run) -> str:
    started = time.perf_counter()
    try:
        import torch

        torch.ones(1).sum().item()
    except ModuleNotFoundError as e:
        missing = "there is no torch in " + sys.prefix if e.name == "torch" else "torch does not import: %s" % e
        raise fail(
            missing, "add the package to the environment, lock and build again; or this is not the image's python"
        ) from None
    except Exception as e:  # a missing or wrong library raises OSError, a half package nearly anything
        advice = "a library is missing, or of another build than torch: look at the base image and the lock"
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
    how = "declare __cuda and lock again" if wanted == "CUDA" else "name a ROCm index or channel, and lock again"
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
        raise warn(seen, "torch will compile its kernels for %s at the first run: slow starts" % ", ".join(compiled))
    return seen


@probe("gpu.driver")
def probe_driver(run: Run) -> str:
    if run.build == "CPU" or run.options.expect == "none":
        raise skip("CPU build" if run.build == "CPU" else "no GPU is expected")
    if run.build == "HIP":
        version = read("/sys/module/amdgpu/version") or "in the kernel"
        if not os.path.exists("/dev/kfd"):
            raise fail("no /dev/kfd", "give the container the GPU: --rocm, or --device /dev/kfd --device /dev/dri")
        if not os.access("/dev/kfd", os.R_OK | os.W_OK):
            raise fail("/dev/kfd may not be opened", "join the groups video and render: --group-add keep-groups")
        return "amdgpu " + version
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        advice = "give the container the driver: --gpus all (docker), --gpu (podman-hpc), --nv (apptainer)"
        raise fail("no libcuda.so.1", advice) from None
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        raise fail("libcuda.so.1 does not tell its version", "the host's driver does not work: try nvidia-smi on the host")
    driver = (number.value // 1000, number.value % 1000 // 10)
    runtime = tuple(int(x) for x in run.torch.version.cuda.split(".")[:2])
    seen = "driver for CUDA %d.%d, torch of CUDA %s" % (*driver, run.torch.version.cuda)
    if driver[0] < runtime[0]:
        raise fail(seen, "the driver is too old for this torch: update it, or take torch of CUDA %d" % driver[0])
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
        raise fail("torch sees no GPU: %s; in /dev: %s" % (why_no_gpu(run), " ".join(device_files()) or "none"), advice)
    names = ["%s (%s)" % (run.torch.cuda.get_device_name(i), run.architecture(i)) for i in range(count)]
    seen = "%d: %s" % (count, ", ".join(names))
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
    if not run.gpus or run.options.expect == "none":
        raise skip("no GPU")
    a, b = (random_matrix(run, 256, seed) for seed in (1, 2))
    expected = a.double() @ b.double()
    for index in range(run.gpus):
        device = "cuda:%d" % index
        got = run.torch.mm(a.to(device), b.to(device)).double().cpu()
        error = float((got - expected).abs().max() / expected.abs().max())
        if not error <= 1e-2:
            raise fail("GPU %d is off by %.2g" % (index, error), "wrong results: a fault of device, driver or library")
    return "%d right" % run.gpus


@probe("cpu.affinity")
def probe_affinity(run: Run) -> str:
    usable, total = usable_cores(), os.cpu_count() or 1
    seen = "%d of %d cores, %s threads" % (usable, total, run.torch.get_num_threads() if run.torch else "?")
    if usable == 1 < total:
        advice = "everything shares one core: ask for more (--cpus-per-task, --cpu-bind)"
        raise fail(seen, advice) if run.options.expect in ("nvidia", "amd") else warn(seen, advice)
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
        raise warn(seen, "DataLoader workers and NCCL need more, and to write there: --shm-size=8g, or --ipc=host")
    return seen


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
    found = ["%s=%s" % (name, os.environ[name]) for name in ("PYTHONPATH", "PYTHONHOME") if os.environ.get(name)]
    if found:
        raise warn(" ".join(found), "packages from elsewhere may hide the image's: unset it")
    return "PYTHONPATH and PYTHONHOME are not set"


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
        return tempfile.gettempdir()
    except OSError as e:
        raise fail(one_line(e), "torch needs room for temporary files: mount or bind a folder at /tmp, or set TMPDIR") from None


@probe("system.locale")
def probe_locale(run: Run) -> str:
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") != "utf8":
        raise warn("file names are " + encoding, "set LANG=C.UTF-8")
    return encoding


# measurements ---------------------------------------------------------------------------------------------------------


@measurement("torch.import_time")
def measure_import(run: Run) -> Item:
    """Importing torch in new processes: what every job pays first. ``first_s`` is this process's own."""
    version, said = str(run.need_torch.__version__), ""
    samples: List[float] = []
    code = "import time; t = time.perf_counter(); import torch; print(); print(time.perf_counter() - t, torch.__version__)"
    started = time.perf_counter()
    while len(samples) < 2 or (len(samples) < 5 and time.perf_counter() - started < 3):
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        words = done.stdout.decode("utf-8", "replace").split()
        if done.returncode or len(words) < 2:
            advice = "look at what differs in a new process: memory, limits, variables"
            raise fail("torch imports here, but not in a new process (exit code %d)" % done.returncode, advice)
        samples.append(float(words[-2]))
        said = words[-1]
    check = checked("a new process imports the same version", said, version, said == version)
    return {**spread("s", samples), "first_s": run.import_s, **check}


PRECISIONS = {
    # largest error of a row against float64, over the rows' typical size
    "fp32": ("float32", 1e-4),
    "tf32": ("float32", 1e-2),
    "fp16": ("float16", 2e-2),
    "bf16": ("bfloat16", 5e-2),
}


def matmul(run: Run, precision: str) -> Item:
    """Matrix products of several sizes, all checked; the fastest size counts."""
    torch, device = run.need_torch, run.device
    if reason := without(run, device, precision):
        raise skip(reason)
    name, limit = PRECISIONS[precision]
    sizes = []
    with TF32(torch, precision == "tf32"):
        for n in (512, 1024, 2048) if device == "cpu" else (2048, 4096, 8192):
            a, b = (random_matrix(run, n, seed).to(device=device, dtype=getattr(torch, name)) for seed in (n, n + 1))
            error = reference_error(torch, a, b, torch.matmul(a, b))
            check = checked("largest error of a row against float64", error, limit, error <= limit)
            if not error <= limit:
                seen = "the product of two %s matrices of size %d is off by %.2g" % (precision, n, error)
                raise fail(seen, "wrong results: a fault of device, driver or library", device=device, size=n, **check)
            seconds = timed(run, device, functools.partial(torch.matmul, a, b))
            sizes.append({"size": n, **spread("gflop_per_s", [2e-9 * n**3 / s for s in seconds]), **check})
    return {**max(sizes, key=lambda s: float(s["median_gflop_per_s"])), "device": device, "sizes": sizes}


for _precision in PRECISIONS:
    measurement("matmul." + _precision)(functools.partial(matmul, precision=_precision))


@measurement("memory.copy")
def measure_copy(run: Run) -> Item:
    """Copies within the device's memory; a byte read and a byte written count as two."""
    torch, device = run.need_torch, run.device
    size = 128 << 20 if device == "cpu" else min(1 << 30, torch.cuda.mem_get_info(0)[0] // 4)
    source = torch.arange(size // 4, dtype=torch.int32, device=device)
    target = torch.zeros_like(source)
    seconds = timed(run, device, lambda: target.copy_(source))
    wrong = int((source != target).sum().item())
    check = checked("words that differ after the copy", wrong, 0, wrong == 0)
    if wrong:
        seen = "%d of %d words differ after a copy" % (wrong, size // 4)
        raise fail(seen, "wrong results: a fault of memory, device or driver", device=device, **check)
    return {**spread("gb_per_s", [2e-9 * size / s for s in seconds]), "device": device, "bytes": size, **check}


ACCURACY = 0.97
STEPS, BATCH, TESTED = 160, 128, 1000


@measurement("training")
def measure_training(run: Run) -> Item:
    """A small convolutional network learns to read noisy seven-segment digits, from a fixed seed; the time is that of a step."""
    torch, device = run.need_torch, run.device
    images, labels = (t.to(device) for t in seven_segment_digits(torch, STEPS * BATCH // 3 + TESTED))
    torch.manual_seed(7)
    nn = torch.nn
    features = (nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = nn.Sequential(*features, nn.Linear(16 * 5 * 5, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses, milliseconds = [], []
    for step in range(STEPS):
        first = step * BATCH % (len(images) - TESTED)
        started = time.perf_counter()
        loss = nn.functional.cross_entropy(model(images[first : first + BATCH]), labels[first : first + BATCH])
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
        "device": device, "first_step_ms": milliseconds[0], "first_loss": losses[0], "last_loss": losses[-1],
        **checked("accuracy on digits not trained on", accuracy, ACCURACY, accuracy >= ACCURACY),
    }  # fmt: skip
    if not accuracy >= ACCURACY:
        seen = "accuracy %.3f after %d steps, at least %g is right" % (accuracy, STEPS, ACCURACY)
        raise fail(seen, "the training does not converge: wrong results somewhere", **fields)
    return {**spread("ms", milliseconds[5:]), **fields}


SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcfgd")


def seven_segment_digits(torch: Any, count: int) -> Tuple[Any, Any]:
    """Images (count, 1, 12, 12) and labels; made on the CPU from a fixed seed, so the same everywhere."""
    top, left, right = slice(0, 5), 0, 4
    strokes = {
        "a": (0, slice(0, 5)), "g": (4, slice(0, 5)), "d": (8, slice(0, 5)),
        "f": (top, left), "b": (top, right), "e": (slice(4, 9), left), "c": (slice(4, 9), right),
    }  # fmt: skip
    glyphs = torch.zeros(10, 9, 5)
    for digit, lit in enumerate(SEGMENTS):
        for name in lit:
            glyphs[(digit, *strokes[name])] = 1
    generator = torch.Generator().manual_seed(1887)
    labels = torch.randint(10, (count,), generator=generator)
    shifts = torch.randint(3, (count, 2), generator=generator).tolist()
    images = 0.2 * torch.randn(count, 1, 12, 12, generator=generator)
    for image, label, (down, along) in zip(images, labels.tolist(), shifts):  # noqa: B905  zip got strict in 3.10
        image[0, down : down + 9, along + 2 : along + 7] += glyphs[label]
    return images, labels


# how they measure -----------------------------------------------------------------------------------------------------


def timed(run: Run, device: str, function: Callable[[], Any], most: int = 40, limit_s: float = 0.6) -> List[float]:
    """Seconds of each of some runs, after a warm-up: by the device's own events on a GPU, by the clock on the CPU."""
    cuda = run.torch.cuda
    samples: List[float] = []
    started = time.perf_counter()
    function()
    least = 3 if time.perf_counter() - started > limit_s else 5  # a slow machine shall come to an end, too
    if device != "cpu":
        function()
        cuda.synchronize()
    started = time.perf_counter()
    while len(samples) < least or (len(samples) < most and time.perf_counter() - started < limit_s):
        if device == "cpu":
            before = time.perf_counter()
            function()
            samples.append(time.perf_counter() - before)
        else:
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            begin.record()
            function()
            end.record()
            end.synchronize()
            samples.append(begin.elapsed_time(end) / 1e3)
    return samples


def spread(unit: str, samples: List[float]) -> Item:
    """Median, median absolute deviation and number of samples, under names that hold the unit."""
    median = statistics.median(samples)
    return {
        "median_" + unit: median,
        "mad_" + unit: statistics.median(abs(s - median) for s in samples),
        "samples_" + unit: samples,
        "repeats": len(samples),
    }


def checked(what: str, value: Any, limit: Any, ok: bool) -> Item:
    """The check of a measurement's result."""
    return {"correctness": {"check": what, "value": value, "limit": limit, "ok": ok}}


def random_matrix(run: Run, n: int, seed: int) -> Any:
    """Normal numbers in float32 on the CPU, the same everywhere."""
    return run.torch.randn(n, n, generator=run.torch.Generator().manual_seed(seed))


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


def without(run: Run, device: str, precision: str) -> str:
    """Why this device does not do this precision in hardware, or nothing."""
    if precision == "fp32":
        return ""
    if device == "cpu":
        return "on GPUs only"
    name, major = run.architecture(0), int(run.torch.cuda.get_device_properties(0).major)
    if run.build == "HIP":
        new = name.startswith(("gfx94", "gfx95")) or (precision != "tf32" and name not in ("gfx900", "gfx906"))
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


def covers(architecture: str, known: List[str]) -> str:
    """How code for ``known`` runs on a GPU: "yes", "jit" (PTX, compiled at the first run) or "no".

    CUDA: code for sm_XY runs on the same major version with the same or a later minor one; PTX (compute_XY) on anything later.
    """
    if architecture in known:
        return "yes"
    if not architecture.startswith("sm_"):
        return "no"
    number = digits(architecture)
    if any(k.startswith("sm_") and k[-1].isdigit() and digits(k) // 10 == number // 10 and digits(k) <= number for k in known):
        return "yes"
    return "jit" if any(k.startswith("compute_") and digits(k) <= number for k in known) else "no"


def digits(name: str) -> int:
    return int("".join(c for c in name.partition("_")[2] if c.isdigit()) or 0)


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    return ["/dev/" + n for n in sorted(os.listdir("/dev")) if n in ("kfd", "dri", "dxg") or n.startswith("nvidia")]


def one_line(error: BaseException) -> str:
    """An exception for people: type and the first line that says something, not the whole library path soup."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "%s: %s" % (type(error).__name__, lines[0][:400]) if lines else type(error).__name__


# facts ----------------------------------------------------------------------------------------------------------------


def facts(run: Run) -> Item:
    """What the machine and the image are, for the record. Anything that cannot be read is left out."""
    out: Item = {
        "python": {"version": platform.python_version(), "executable": sys.executable, "prefix": sys.prefix},
        "system": {
            "machine": platform.machine(),
            "kernel": platform.release(),
            "glibc": platform.libc_ver()[1],
            "distribution": distribution(),
            "uid": os.getuid(),
            "time_zone": time.tzname[0],
        },
        "cpu": {"model": cpu_model(), "cores": os.cpu_count() or 0, "usable_cores": usable_cores(), "quota_cores": quota()},
        "memory": memory(),
        "variables": {name: os.environ[name] for name in sorted(os.environ) if VARIABLES.fullmatch(name)},
        "device_files": device_files(),
    }
    if run.torch is not None:
        out["torch"] = torch_facts(run)
        if run.gpus:
            out["devices"] = [gpu_facts(run, i) for i in range(run.gpus)]
            out["driver"] = read("/sys/module/nvidia/version") or read("/sys/module/amdgpu/version")
    return out


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
    return {
        "name": str(properties.name),
        "architecture": run.architecture(index),
        "memory_bytes": int(properties.total_memory),
        "multiprocessors": int(properties.multi_processor_count),
    }


def cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            return next((line.partition(":")[2].strip() for line in f if line.startswith("model name")), platform.processor())
    except OSError:
        return platform.processor()


def quota() -> Optional[float]:
    """CPU cores that the control group allows, or None when it sets no limit."""
    v2 = read("/sys/fs/cgroup/cpu.max").split()
    v1 = [read("/sys/fs/cgroup/cpu/cpu.cfs_%s_us" % n) for n in ("quota", "period")]
    pair = v2 if len(v2) == 2 else v1
    try:
        return int(pair[0]) / int(pair[1]) if int(pair[0]) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def memory() -> Item:
    """Bytes of memory: the machine's, what the control group allows, and /dev/shm."""
    out: Item = {}
    for line in read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            out["total_bytes"] = int(line.split()[1]) * 1024
    limit = read("/sys/fs/cgroup/memory.max") or read("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    if limit.isdigit() and int(limit) < 1 << 60:
        out["limit_bytes"] = int(limit)
    try:
        stat = os.statvfs("/dev/shm")
        out["shm_bytes"] = stat.f_frsize * stat.f_blocks
    except OSError:
        pass
    return out


# the child: runs everything -------------------------------------------------------------------------------------------


def examine(options: argparse.Namespace) -> Iterator[Item]:
    """Everything that is found, one event after another; says what it is about to do, so that a hang has a name."""
    run = Run(options)
    for name, function in PROBES:
        yield {"begin": name}
        yield {"probe": found(name, lambda f=function: {"seen": f(run)})}  # type: ignore[misc]
    yield {"begin": "facts"}
    try:
        yield {"facts": facts(run)}
    except Exception as e:
        yield {"probe": finding("facts", "warn", one_line(e), "the facts of this machine could not be read")}
    for name, function in MEASUREMENTS:
        yield {"begin": name}
        yield {"measurement": found(name, lambda f=function: f(run))}  # type: ignore[misc]
    yield {"end": True}


def found(name: str, look: Callable[[], Item]) -> Item:
    """What a probe or measurement found, whatever happens in it."""
    try:
        item = {**finding(name, "pass", ""), **look()}
    except Outcome as o:
        return {**finding(name, o.status, o.seen, o.advice), **o.fields}
    except Exception as e:
        minor = name.startswith(("python.", "system.", "memory.shm", "cpu."))
        advice = (
            "does another job use this device's memory?" if "memory" in str(e).lower() else "it could not be carried out at all"
        )
        return finding(name, "warn" if minor else "fail", one_line(e), advice)
    if not item.get("correctness", {}).get("ok", True):
        check = item["correctness"]
        item.update(finding(name, "fail", "%s: %s" % (check["check"], check["value"]), "%s is right" % check["limit"]))
    return item


def finding(name: str, status: str, seen: str, advice: str = "") -> Item:
    return {"id": name, "status": status, "seen": seen, "advice": advice}


def child(options: argparse.Namespace, pipe: int) -> None:
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
        with os.fdopen(pipe, "w", encoding="utf-8") as out:
            for event in examine(options):
                out.write(json.dumps(plain(event)) + "\n")
                out.flush()
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


# the parent: watches, and writes the report ---------------------------------------------------------------------------


class Interrupted(Exception):
    """A signal asked this process to end."""


def watch(options: argparse.Namespace, report: Item) -> None:
    """Runs the child and collects what it finds; ends it when the time is up."""
    deadline = time.monotonic() + options.timeout
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        child(options, writer)
    os.close(writer)
    at, ended, buffer = "start", False, b""
    try:
        while not ended:
            left = deadline - time.monotonic()
            if left <= 0:
                seen = "no end of %s after %g s" % (at, options.timeout)
                advice = "a hung GPU, driver or file system; or a slow one: --timeout"
                report["probes"].append(finding("watchdog", "fail", seen, advice))
                break
            if not select.select([reader], [], [], left)[0]:
                continue
            data = os.read(reader, 1 << 16)
            if not data:
                report["probes"].append(finding("process", "fail", *death(pid, at, deadline)))
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                event = json.loads(line.decode("utf-8"))
                at, ended = event.get("begin", at), "end" in event
                report["facts"] = event.get("facts", report["facts"])
                report["probes"] += [event["probe"]] if "probe" in event else []
                report["measurements"] += [event["measurement"]] if "measurement" in event else []
    finally:
        os.close(reader)
        end_process(pid)


def death(pid: int, at: str, deadline: float) -> Tuple[str, str]:
    """How the child ended before its time, and what to do about it."""
    status = 0
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    if not os.WIFSIGNALED(status):
        return "the test ended by itself in %s" % at, "something that torch loads ended the process: see the output above"
    number = os.WTERMSIG(status)
    name = next((s.name for s in signal.Signals if s == number), "signal %d" % number)
    advice = {
        "SIGKILL": "probably out of memory: allow the container more",
        "SIGILL": "a library was built for another processor than this one",
    }.get(name, "a library crashed: look at the lock, and at the driver")
    return "the test was ended by %s in %s" % (name, at), advice


def end_process(pid: int) -> None:
    """Kills the child and all that it started; a process that hangs in the kernel is left behind."""
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
        lines.append("%-5s %-20s %s" % (item["status"], item["id"], text))
        if item["advice"]:
            lines.append("%27s-> %s" % ("", item["advice"]))
    lines.append("%s in %.1f s" % (report["verdict"].upper(), report["duration_s"]))
    return "\n".join(lines) + "\n"


def figures(item: Item) -> str:
    """``123.4 gflop_per_s +- 1.2 (40 times, size 2048)``."""
    for key, value in item.items():
        if key.startswith("median_"):
            unit = key[len("median_") :]
            times = item["repeats"]
            size = ", size %d" % item["size"] if "size" in item else ""
            return "%.4g %s +- %.2g (%d times%s)" % (value, unit.replace("_per_", "/"), item["mad_" + unit], times, size)
    return ""


def parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="smoke.py", description="Tests whether this image uses this machine as it should.")
    add = parser.add_argument
    add("--expect", choices=("auto", "nvidia", "amd", "none"), default="auto", help="the GPUs that the image is for")
    add("--architectures", default="", metavar="A,B", help="what torch must have code for: sm_80,sm_90 or gfx90a")
    add("--devices", type=int, metavar="N", help="how many GPUs there must be (default: at least one)")
    add("--timeout", type=float, default=240, metavar="S", help="seconds after which a hang is ended (default: %(default)s)")
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
        "expect": {"gpu": options.expect, "architectures": options.architectures, "devices": options.devices},
        "facts": {},
        "probes": [],
        "measurements": [],
    }

    def interrupted(number: int, frame: Any) -> None:
        raise Interrupted(signal.Signals(number).name)

    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in signals:
        signal.signal(number, interrupted)
    try:
        watch(options, report)
        report["verdict"] = verdict(report)
    except Interrupted as e:
        report["probes"].append(finding("process", "fail", "interrupted by %s" % e, "run it again"))
    except Exception as e:
        report["probes"].append(finding("process", "fail", one_line(e), "the test cannot be run here: see the message"))
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    report["duration_s"] = round(time.monotonic() - started, 3)
    return deliver(report, options.json)


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
        os.write(2, ("smoke: cannot write the report to %s: %s\n" % (place or "-", e.strerror)).encode("utf-8", "replace"))
        return EXIT_CODES["error"]
    return EXIT_CODES[report["verdict"]]


if __name__ == "__main__":
    sys.exit(main())
