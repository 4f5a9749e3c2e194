#!/usr/bin/env python3
"""Does this image really use this machine? One file, Python >= 3.8, the standard library and torch, in every image as /opt/builder/smoke.py.

    python smoke.py [--expect nvidia|amd|none] [--architectures sm_80,sm_90] [--devices N] [--timeout S] [--json FILE|-]

Probes say what is there and whether it fits; measurements time something whose result is checked against a reference.
Exit code: 0 pass or warn, 1 fail, 2 could not run (torch missing or broken, or hung).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import site
import statistics
import sys
import threading
import time
import traceback

SCHEMA_VERSION = 1
RANK = {"pass": 0, "skip": 0, "warn": 1, "fail": 2, "error": 3}

PROBES = []
MEASUREMENTS = []


def probe(function):
    """Registers a probe: gives (status, what was seen, what to do)."""
    PROBES.append(function)
    return function


def measurement(function):
    """Registers a measurement: gives a dictionary of figures; raises Wrong when the result is not right."""
    MEASUREMENTS.append(function)
    return function


class Wrong(Exception):
    """A result that is not what it must be; the second argument says what to do."""


class Skip(Exception):
    """A measurement that has no meaning here."""


class Run:
    """What all probes and measurements share."""

    def __init__(self, options):
        self.options = options
        self.torch = None
        self.import_s = None
        self.import_error = ""

    def load(self):
        """Imports torch and times it."""
        started = time.perf_counter()
        try:
            import torch
        except Exception as e:  # a broken library raises OSError, a wrong one anything
            self.import_error = "%s: %s" % (type(e).__name__, e)
            return
        self.import_s = time.perf_counter() - started
        self.torch = torch

    @property
    def build(self):
        """cuda, hip or cpu: what this torch was built for."""
        version = self.torch.version
        if getattr(version, "hip", None):
            return "hip"
        return "cuda" if getattr(version, "cuda", None) else "cpu"

    @property
    def device(self):
        """The device that is measured."""
        return "cuda" if self.build != "cpu" and self.torch.cuda.is_available() else "cpu"

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()


# probes ---------------------------------------------------------------------------------------------------------------


@probe
def torch_imports(run):
    if run.torch is None:
        return "fail", run.import_error, "torch is missing or broken in this image: see the environment file and the base image's libraries"
    return "pass", "torch %s in %.2f s" % (run.torch.__version__, run.import_s), ""


@probe
def torch_build(run):
    if run.torch is None:
        return "skip", "", ""
    wanted = {"nvidia": "cuda", "amd": "hip", "none": None}[run.options.expect]
    if wanted and run.build != wanted:
        return "fail", "%s build" % run.build, "this image is for %s GPUs: take torch's %s build" % (run.options.expect, wanted)
    return "pass", "%s build %s" % (run.build, run.torch.version.cuda or getattr(run.torch.version, "hip", None) or ""), ""


@probe
def devices(run):
    if run.torch is None:
        return "skip", "", ""
    count = run.torch.cuda.device_count() if run.build != "cpu" else 0
    if run.options.expect == "none":
        return "pass", "%d CPUs" % (os.cpu_count() or 1), ""
    names = [run.torch.cuda.get_device_name(i) for i in range(count)]
    if not count:
        return "fail", "torch sees no GPU", "give the container the GPU (--gpus all, --nv, --rocm, --gpu), or look at the host's driver"
    wanted = run.options.devices
    if wanted is not None and count != wanted:
        return "fail", "%d GPUs: %s" % (count, ", ".join(names)), "%d were expected: look at CUDA_VISIBLE_DEVICES / ROCR_VISIBLE_DEVICES and the job" % wanted
    return "pass", ", ".join(names), ""


@probe
def architecture(run):
    if run.torch is None or run.device == "cpu":
        return "skip", "", ""
    known = run.torch.cuda.get_arch_list()
    major, minor = run.torch.cuda.get_device_capability(0)
    name = getattr(run.torch.cuda.get_device_properties(0), "gcnArchName", "").split(":")[0] if run.build == "hip" else "sm_%d%d" % (major, minor)
    same_major = run.build == "cuda" and any(a.startswith("sm_%d" % major) and a <= name for a in known)
    if name in known or same_major:
        return "pass", "%s, torch has %s" % (name, " ".join(known)), ""
    return "fail", "%s is not among %s" % (name, " ".join(known)), "take a torch that was built for this GPU"


@probe
def wanted_architectures(run):
    wanted = [a for a in (run.options.architectures or "").split(",") if a]
    if run.torch is None or run.build == "cpu" or not wanted:
        return "skip", "", ""
    known = run.torch.cuda.get_arch_list()
    missing = [a for a in wanted if a not in known and not any(k.startswith(a[:4]) and k <= a for k in known if a.startswith("sm_"))]
    if known and missing:
        return "fail", "torch has %s" % " ".join(known), "this image is for %s: take a torch that was built for it" % " ".join(missing)
    return "pass", " ".join(known), ""


@probe
def user_site(run):
    if site.ENABLE_USER_SITE and os.path.isdir(site.getusersitepackages()) and site.getusersitepackages() in sys.path:
        return "warn", site.getusersitepackages(), "packages of your home leak in: set PYTHONNOUSERSITE=1"
    return "pass", "user site-packages are off", ""


@probe
def shared_memory(run):
    try:
        stat = os.statvfs("/dev/shm")
    except OSError as e:
        return "warn", str(e), "DataLoader workers need /dev/shm"
    size = stat.f_frsize * stat.f_blocks
    if size < 256 << 20:
        return "warn", "/dev/shm has %d MiB" % (size >> 20), "DataLoader workers need more: --shm-size=8g or --ipc=host"
    return "pass", "/dev/shm has %d MiB" % (size >> 20), ""


@probe
def affinity(run):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    total = os.cpu_count() or 1
    if cores == 1 and total > 1:
        return "warn", "1 core of %d" % total, "all workers share one core: ask for more (--cpus-per-task)"
    return "pass", "%d cores of %d" % (cores, total), ""


@probe
def certificates(run):
    import ssl

    paths = ssl.get_default_verify_paths()
    found = os.environ.get("SSL_CERT_FILE") or paths.cafile or paths.capath
    if found and os.path.exists(found):
        return "pass", found, ""
    return "warn", "no CA certificates", "https will fail in this image: add ca-certificates"


# measurements ---------------------------------------------------------------------------------------------------------


def timed(run, function, budget_s=2.0, least=5, most=50):
    """Seconds of each run of ``function``, after warming up; as many as the budget allows."""
    function()
    run.synchronize()
    samples = []
    started = time.perf_counter()
    while len(samples) < least or (time.perf_counter() - started < budget_s and len(samples) < most):
        if run.device == "cuda":
            begin, end = run.torch.cuda.Event(enable_timing=True), run.torch.cuda.Event(enable_timing=True)
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


def spread(samples):
    """Median and median absolute deviation."""
    median = statistics.median(samples)
    return median, statistics.median(abs(s - median) for s in samples)


def _matmul(run, dtype, tolerance, tf32=False):
    torch = run.torch
    if run.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = tf32
    best = None
    for n in (2048, 4096, 8192) if run.device == "cuda" else (512, 1024):
        generator = torch.Generator().manual_seed(n)
        a = torch.randn(n, n, generator=generator).to(run.device, dtype)
        b = torch.randn(n, n, generator=generator).to(run.device, dtype)
        samples = timed(run, lambda: a @ b, budget_s=1.0)
        median, mad = spread(samples)
        figures = {"n": n, "tflop_per_s": 2.0 * n**3 / median / 1e12, "median_s": median, "mad_s": mad, "repeats": len(samples)}
        rows = (a @ b)[:16].double().cpu()
        reference = a[:16].double().cpu() @ b.double().cpu()
        error = ((rows - reference).abs().max() / reference.abs().max()).item()
        if not error <= tolerance:
            raise Wrong("a %s matrix product of size %d is off by %.2g (at most %.2g)" % (dtype, n, error, tolerance), "wrong results: driver, library or hardware fault")
        figures["relative_error"] = error
        if best is None or figures["tflop_per_s"] > best["tflop_per_s"]:
            best = figures
    return best


@measurement
def matmul_fp32(run):
    return _matmul(run, run.torch.float32, 1e-4)


@measurement
def matmul_tf32(run):
    if run.device == "cpu" or run.build != "cuda" or run.torch.cuda.get_device_capability(0)[0] < 8:
        raise Skip("no tf32 on this device")
    try:
        return _matmul(run, run.torch.float32, 1e-2, tf32=True)
    finally:
        run.torch.backends.cuda.matmul.allow_tf32 = False


@measurement
def matmul_fp16(run):
    if run.device == "cpu":
        raise Skip("on GPUs only")
    return _matmul(run, run.torch.float16, 1e-2)


@measurement
def matmul_bf16(run):
    if run.device == "cpu" or not run.torch.cuda.is_bf16_supported():
        raise Skip("no bf16 on this device")
    return _matmul(run, run.torch.bfloat16, 5e-2)


@measurement
def memory_copy(run):
    torch = run.torch
    n = (256 << 20) if run.device == "cuda" else (32 << 20)
    source = torch.arange(n, dtype=torch.int32, device=run.device)
    target = torch.empty_like(source)
    samples = timed(run, lambda: target.copy_(source), budget_s=1.0)
    median, mad = spread(samples)
    if not torch.equal(source, target):
        raise Wrong("a copy in memory is not what was copied", "wrong results: memory or driver fault")
    return {"gb_per_s": 2.0 * 4 * n / median / 1e9, "median_s": median, "mad_s": mad, "repeats": len(samples)}


@measurement
def training(run):
    """Ten clusters in 32 dimensions, far enough apart to be learnt in a few seconds, from a fixed seed."""
    torch = run.torch
    generator = torch.Generator().manual_seed(20)
    centres = torch.randn(10, 32, generator=generator) * 2
    labels = torch.randint(10, (6000,), generator=generator)
    inputs = centres[labels] + torch.randn(6000, 32, generator=generator)
    inputs, labels = inputs.to(run.device), labels.to(run.device)
    torch.manual_seed(20)
    model = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    started = time.perf_counter()
    loss_value = float("nan")
    for epoch in range(5):
        order = torch.randperm(5000, generator=torch.Generator().manual_seed(epoch)).to(run.device)
        for start in range(0, 5000, 100):
            batch = order[start : start + 100]
            loss = torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss_value = loss.item()
        if loss_value != loss_value:
            raise Wrong("the loss became NaN in epoch %d" % epoch, "wrong results: driver, library or hardware fault")
    run.synchronize()
    seconds = time.perf_counter() - started
    with torch.no_grad():
        accuracy = (model(inputs[5000:]).argmax(1) == labels[5000:]).float().mean().item()
    if not accuracy >= 0.95:
        raise Wrong("the small training reached an accuracy of %.3f, not 0.95" % accuracy, "training does not converge here: wrong results somewhere")
    return {"accuracy": accuracy, "final_loss": loss_value, "samples_per_s": 5 * 5000 / seconds, "seconds": seconds}


# the run --------------------------------------------------------------------------------------------------------------


def facts(run):
    """What the environment is, for the record."""
    out = {
        "python": platform.python_version(),
        "glibc": platform.libc_ver()[1],
        "machine": platform.machine(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "prefix": sys.prefix,
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
    }
    if run.torch is not None:
        torch = run.torch
        out.update({"torch": str(torch.__version__), "build": run.build, "device": run.device, "torch_threads": torch.get_num_threads()})
        out["cuda"] = torch.version.cuda
        out["hip"] = getattr(torch.version, "hip", None)
        out["import_s"] = run.import_s
        if run.device == "cuda":
            out["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
            out["arch_list"] = torch.cuda.get_arch_list()
            out["driver"] = _driver()
    return out


def _driver():
    for path in ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version"):
        try:
            with open(path) as f:
                return f.readline().strip()
        except OSError:
            continue
    return ""


def finish(run, report, started):
    """Adds verdict and time."""
    worst = max((item["status"] for item in report["probes"] + report["measurements"]), key=lambda s: RANK[s], default="error")
    if run.torch is None:
        worst = "error"
    report["verdict"] = "pass" if worst == "skip" else worst
    report["duration_s"] = round(time.perf_counter() - started, 3)
    return report


def examine(run, report):
    """Runs everything; what goes wrong is a finding, never a traceback."""
    run.load()
    report["facts"] = facts(run)
    for function in PROBES:
        report["at"] = function.__name__
        try:
            status, seen, advice = function(run)
        except Exception as e:
            status, seen, advice = "fail", "%s: %s" % (type(e).__name__, e), "this probe could not look: " + _where(e)
        report["probes"].append({"id": function.__name__, "status": status, "seen": str(seen), "advice": advice})
    if run.torch is None or any(p["status"] == "fail" for p in report["probes"]):
        return
    for function in MEASUREMENTS:
        report["at"] = function.__name__
        item = {"id": function.__name__, "status": "pass", "seen": "", "advice": "", "figures": {}}
        try:
            item["figures"] = function(run)
        except Skip as e:
            item["status"], item["seen"] = "skip", str(e)
        except Wrong as e:
            item["status"], item["seen"], item["advice"] = "fail", e.args[0], e.args[1]
        except Exception as e:
            item["status"], item["seen"] = "fail", "%s: %s" % (type(e).__name__, str(e)[:500])
            item["advice"] = "this device could not do it: " + _where(e)
        report["measurements"].append(item)
    del report["at"]


def _where(error):
    frames = traceback.extract_tb(error.__traceback__)
    return "line %d of the benchmark" % frames[-1].lineno if frames else "unknown place"


def table(report):
    """The report for people."""
    lines = []
    for item in report["probes"] + report["measurements"]:
        figures = item.get("figures") or {}
        shown = "  ".join("%s=%.4g" % (k, v) for k, v in figures.items() if isinstance(v, (int, float)))
        lines.append("%-5s %-22s %s" % (item["status"], item["id"], item["seen"] or shown))
        if item["advice"]:
            lines.append("      %-22s -> %s" % ("", item["advice"]))
    lines.append("verdict: %s in %.1f s" % (report["verdict"], report["duration_s"]))
    return "\n".join(lines)


def deliver(report, where):
    """Writes the report: the file whole or not at all, the table to stderr."""
    sys.stderr.write(table(report) + "\n")
    text = json.dumps(report, sort_keys=True, indent=1)
    if where == "-":
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    elif where:
        with open(where + ".tmp", "w") as f:
            f.write(text + "\n")
        os.replace(where + ".tmp", where)
    sys.stderr.flush()


def main(arguments=None):
    """Gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--expect", choices=["nvidia", "amd", "none"], default="none", help="the GPU that this image is for")
    parser.add_argument("--architectures", default="", help="architectures that torch must have, with commas")
    parser.add_argument("--devices", type=int, help="how many GPUs there must be")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds after which the run counts as hung")
    parser.add_argument("--json", default="", metavar="FILE", help="where the report goes; - for standard output")
    options = parser.parse_args(arguments)
    run = Run(options)
    started = time.perf_counter()
    report = {"schema_version": SCHEMA_VERSION, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "facts": {}, "probes": [], "measurements": [], "expect": options.expect}

    def hung():
        at = report.get("at", "start")
        stuck = {**report, "probes": list(report["probes"])}
        stuck.pop("at", None)
        stuck["probes"].append({"id": "watchdog", "status": "fail", "seen": "nothing moved after %g s, in %s" % (options.timeout, at), "advice": "a hung GPU, driver or file system"})
        stuck["verdict"], stuck["duration_s"] = "error", round(time.perf_counter() - started, 3)
        deliver(stuck, options.json)
        os._exit(2)

    watchdog = threading.Timer(options.timeout, hung)
    watchdog.daemon = True
    watchdog.start()
    examine(run, report)
    watchdog.cancel()
    report.pop("at", None)
    finish(run, report, started)
    deliver(report, options.json)
    return {"pass": 0, "warn": 0, "fail": 1, "error": 2}[report["verdict"]]


if __name__ == "__main__":
    sys.exit(main())
