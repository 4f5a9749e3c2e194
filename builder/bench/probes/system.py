"""Probes of the container and its share of the machine: files, Python's paths, cores, time."""

from __future__ import annotations

import os
import site
import sys
import tempfile
import time

from ..core import Run, fail, one_line, warn
from ..machine import processor
from ..machine.files import within

_ST_NOEXEC = 8


def probe_shm(run: Run) -> str:
    """Check that /dev/shm is large enough and can be written."""
    try:
        stat = os.statvfs("/dev/shm")
    except OSError as e:
        advice = "DataLoader workers need it: mount a tmpfs there"
        raise warn(f"/dev/shm: {e.strerror}", advice) from None
    size = stat.f_frsize * stat.f_blocks
    seen = f"/dev/shm has {size / 2**20:.0f} MiB"
    if size < 512 << 20 or _write_error("/dev/shm"):
        advice = "DataLoader workers and NCCL need to write at least 512 MiB there: "
        raise warn(seen, advice + "--shm-size=8g, or --ipc=host")
    return seen


def probe_tmp(run: Run) -> str:
    """Check that there is space for temporary files, and that programs may run there."""
    try:
        folder = tempfile.gettempdir()
    except OSError as e:
        advice = "programs need a folder for temporary files: bind one at /tmp, or set TMPDIR"
        raise fail(one_line(e), advice) from None
    stat = os.statvfs(folder)
    if stat.f_flag & _ST_NOEXEC:
        advice = (
            "what Triton, torch.compile and MIOpen compile there cannot run: "
            "set TMPDIR to a folder on a file system that is mounted with exec"
        )
        raise warn(f"{folder} is mounted noexec", advice)
    free = stat.f_frsize * stat.f_bavail
    if free < 64 << 20:
        seen = f"{folder} has {free / 2**20:.0f} MiB free"
        raise warn(seen, "free some space there, or set TMPDIR")
    return f"{folder}, {free / 2**30:.1f} GiB free"


def probe_home(run: Run) -> str:
    """Check that HOME exists, can be written, and does not hide the image's Python."""
    home = os.environ.get("HOME") or os.path.expanduser("~")
    advice = "torch, Triton and MIOpen store caches there: "
    advice += "bind a home directory, or set HOME to a writable folder"
    if not os.path.isdir(home):
        raise warn(f"HOME={home} does not exist", advice)
    mounted = _is_mounted(os.path.realpath(home))
    if mounted and within(sys.prefix, home):
        seen = f"python runs from {sys.prefix}, "
        seen += "in a home directory that is mounted over the image's"
        advice = "the image's own python is hidden: "
        raise fail(seen, advice + "use --no-home, or an environment outside of home")
    problem = _write_error(home)
    if problem:
        raise warn(f"HOME={home} cannot be written: {problem}", advice)
    return f"{home} (mounted)" if mounted else home


def _write_error(folder: str) -> str:
    """Return the reason why no file can be made in a folder; empty if one can.

    ``os.access`` does not tell: it allows root everything, and knows no quota.
    """
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as e:
        return e.strerror or one_line(e)
    return ""


def _is_mounted(folder: str) -> bool:
    """Return whether a folder is on another file system than the image."""
    return folder != "/" and (os.path.ismount(folder) or _is_mounted(os.path.dirname(folder)))


def probe_path(run: Run) -> str:
    """Check that PYTHONPATH and PYTHONHOME are unset, and ``~/.local`` has no framework."""
    folder = site.getusersitepackages()
    if run.module is not None and str(run.module.__file__).startswith(folder):
        seen = f"{run.options.framework} comes from {folder}"
        raise fail(seen, "your own packages hide the image's: export PYTHONNOUSERSITE=1")
    names = ("PYTHONPATH", "PYTHONHOME")
    found = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]
    # builder init writes it for a folder src: the recipe wants it.
    own = f"PYTHONPATH={run.options.python_path}"
    if found == [own]:
        return f"{own}, as the recipe says"
    if found:
        raise warn(" ".join(found), "packages from there may hide the image's: unset the variable")
    return "PYTHONPATH and PYTHONHOME are not set"


def probe_affinity(run: Run) -> str:
    """Check that this process may use more than one core."""
    usable, total = processor.usable_cores(), os.cpu_count() or 1
    seen = f"{usable} of {total} cores"
    if run.torch is not None:
        seen += f", {run.torch.get_num_threads()} threads"

    advice = "request more cores (--cpus-per-task, --cpu-bind, --cpuset-cpus)"
    if usable == 1 < total:
        raise fail(seen, f"all threads share one core: {advice}")
    if processor.physical_cores() == 1 < usable and total > 2:
        raise fail(seen, f"these are the hardware threads of one core: {advice}")

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > usable:
        seen += f", OMP_NUM_THREADS={threads}"
        raise warn(seen, "threads wait for each other: set OMP_NUM_THREADS to the cores per rank")

    quota = processor.quota()
    if quota is not None and quota < 1:
        seen += f", and a quota of {quota:.2g}"
        advice = "the control group allows less than one core: raise the container's --cpus"
        raise warn(seen, advice)
    return seen


def probe_budget(run: Run) -> str:
    """Check that there was time for all measurements."""
    if run.missed:
        seen = f"{run.budget_s:.0f} s were not enough for {', '.join(run.missed)}"
        own = "allow more time: --budget"
        slow = "the machine is slow, or other programs use it"
        raise warn(seen, slow if run.options.budget is None else own)
    used_s = time.monotonic() - run.started
    return f"{used_s:.0f} of {run.budget_s:.0f} s"
