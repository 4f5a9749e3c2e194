"""The benchmark on GPUs that are the CPU: see made_up_gpus.py."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.support.fake_nvml import library
from tests.support.package_folders import package_folder
from tests.support.parts import shared_library
from tests.support.smoke import Modified, Result

#: Sizes that a CPU computes in a moment.
SHRINK = """
from bench.measurements import collectives, imports, layers, matmul, timing
from bench.probes import gpu_memory

bench.core.Run.share = lambda run, nominal_s: min(nominal_s, 0.2)
collectives.SIZES["gpu"] = (1 << 16, 1 << 20)
collectives._SAMPLE_S = 0.001
layers.CONVOLUTIONS.update(small=(2, 16, 14))
layers.ATTENTIONS.update(small=(1, 2, 128, 64))
matmul.SIZES["gpu"] = (256, 544)
gpu_memory.CHUNK = 1 << 18
imports._STARTS = 1
timing.WARM_UP_S, timing.SAMPLING_S, timing._MOST_CALLS = 0.02, 0.07, 5
"""


def run_on_gpus(
    folder: Path, *options: str, gpus: int = 1, build: str = "CUDA", driver: bool = True
) -> Result:
    """The benchmark with so many H200 (CUDA) or MI300X (HIP).

    Args:
        folder: for the libraries of the driver.
        options: of the benchmark.
        driver: whether it reports clocks, power and the like.
    """
    torch = package_folder("torch")
    here = Path(__file__).parent
    code = SHRINK
    libraries = folder / "lib"
    libraries.mkdir()
    if build == "CUDA":
        source = folder / "cuda.c"
        source.write_text("int cuDriverGetVersion(int *out) { *out = 13000; return 0; }\n")
        shared_library(source, libraries / "libcuda.so.1")
        if driver:
            shutil.copy(library(), libraries / "libnvidia-ml.so.1")
    else:
        code += f"bench.machine.files.ROOT = {str(amd_system(folder, gpus))!r}\n"
    env = {
        "PYTHONPATH": os.pathsep.join(map(str, (here, torch))),
        "LD_LIBRARY_PATH": str(libraries),
        "MADE_UP_GPUS": str(gpus),
        "MADE_UP_BUILD": build,
    }
    expect = {"CUDA": "nvidia", "HIP": "amd"}[build]
    return Modified(code).run("--expect", expect, "--budget", "250", *options, env=env)


def amd_system(folder: Path, gpus: int) -> Path:
    """A tree of system files with AMD's GPUs; the rest is this machine's."""
    root = folder / "root"
    (root / "dev").mkdir(parents=True)
    (root / "dev/kfd").touch()
    for name in ("proc", "etc", "usr"):
        (root / name).symlink_to(f"/{name}")
    for address in ("0000:3b:00.0", "0000:5d:00.0")[:gpus]:
        device = root / "sys/bus/pci/devices" / address
        sensors = device / "hwmon/hwmon5"
        sensors.mkdir(parents=True)
        files = {
            "numa_node": "0",
            "mem_info_vram_total": str(192 << 30), "mem_info_vram_used": str(300 << 20),
            "gpu_busy_percent": "0", "current_compute_partition": "SPX",
        }  # fmt: skip
        for name, text in files.items():
            (device / name).write_text(text)
        values = {
            "temp2_input": "58000", "temp2_label": "junction", "power1_input": "690000000",
            "power1_cap": "750000000", "freq1_input": "2100000000",
        }  # fmt: skip
        for name, text in values.items():
            (sensors / name).write_text(text)
    return root
