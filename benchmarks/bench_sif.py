"""Makes SIFs of the torch CPU image by builder and by ``apptainer build``, and imports torch from each.

Needs root and the parts of the tests (``make apt-test``, ``make parts``). ``make bench`` runs it; results go
to ``.cache/bench/sif.json`` and, between the markers, to ``docs/performance.md``. ``make bench
BENCH_ARGS=--quick`` is a short run with numpy instead of torch, which checks that everything works and does
not change the page.

All start from the same OCI image on this disk, whose layers are in the page cache and in builder's cache.
builder's time is that of the whole ``builder build``, including its start, the check of the lock, and the OCI
image. "One package changed" is a new version of a small package in the lock, including the download of its
wheel. Before the first import the file of the container is dropped from the page cache; the SIFs take turns.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.measure import CommandFailed
from benchmarks.report import write_page
from builder.image.convert import image_tree
from builder.oci.layout import read_layout
from builder.store.blobs import Store
from builder.store.records import read_record
from tests.support import parts

CLONE = Path(__file__).resolve().parents[1]
FOLDER = (CLONE / ".cache" / "bench").resolve()
PAGE = CLONE / "docs" / "performance.md"
BEGIN, END = "<!-- make bench, SIF: begin -->", "<!-- make bench, SIF: end -->"
#: The small package that changes, and its versions: the first one, and one for each run.
PACKAGE, VERSIONS = "prettytable", ("3.12.0", "3.14.0", "3.16.0", "3.17.0")
#: Packages besides those of target cpu: with them the image has 1.5 GB.
MORE = ("pyarrow==21.0.0", "numba==0.62.1")
#: The environment of a short run.
QUICK_ENVIRONMENT = """\
name: bench
channels: [conda-forge, nodefaults]
dependencies:
  - python=3.11
  - pip
  - pip:
      - numpy
"""
ZSTD = "-comp zstd -Xcompression-level 3"


@dataclass(frozen=True)
class Options:
    """What is measured."""

    runs: int
    """Runs of builder's builds."""
    imports: int
    """First imports from each SIF."""
    quick: bool
    """numpy instead of torch."""

    @property
    def module(self) -> str:
        return "numpy" if self.quick else "torch"


def run(command: Sequence[str | Path], env: Mapping[str, str]) -> tuple[float, float, str]:
    """Runs a command and returns its seconds, its CPU seconds and its output.

    Raises:
        CommandFailed: its exit code is not 0.
    """
    os.sync()
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [str(c) for c in command], env=dict(env), capture_output=True, text=True, check=False
    )
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise CommandFailed(f"exit code {done.returncode}: {' '.join(map(str, command))}\n{tail}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, done.stdout


class Project:
    """Target cpu with a few more packages: an OCI image, a SIF of each layout, and a cache for them."""

    targets = ("oci", "flat", "layered")

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.root = folder / "project"
        self.cache = folder / "cache"
        self.env = {**os.environ, "PYTHONPATH": str(CLONE), "BUILDER_CACHE": str(self.cache)}
        self._quick = quick
        (self.root / "recipes").mkdir(parents=True)
        (self.root / "environments").mkdir()
        recipe = (CLONE / "recipes/cpu.yaml").read_text()
        recipe = re.sub(r"^environment:.*", "environment: environments/bench.yml", recipe, flags=re.M)
        (self.root / "recipes/oci.yaml").write_text(recipe)
        for layout in ("flat", "layered"):
            text = f"extends: oci\nformat: sif\nsif: {{layout: {layout}}}\n"
            (self.root / f"recipes/{layout}.yaml").write_text(text)

    def builder(self, *args: str | Path) -> tuple[float, float]:
        """Runs builder and returns its seconds and CPU seconds."""
        command = [sys.executable, "-m", "builder", "--project", self.root, "--json", *args]
        return run(command, self.env)[:2]

    def lock(self, version: str) -> None:
        """Locks the environment with this version of the small package, for all targets alike."""
        text = QUICK_ENVIRONMENT if self._quick else (CLONE / "environments/cpu.yml").read_text()
        wanted = [f"{PACKAGE}=={version}"] if self._quick else [*MORE, f"{PACKAGE}=={version}"]
        lines = "".join(f"\n      - {line}" for line in wanted)
        (self.root / "environments/bench.yml").write_text(f"{text.rstrip()}{lines}\n")
        locks = [self.root / "environments" / f"bench.{target}.lock.yml" for target in self.targets]
        for lock in locks:
            lock.unlink(missing_ok=True)
        self.builder("lock", "oci")
        for lock in locks[1:]:
            shutil.copy(locks[0], lock)

    def forget_sifs(self) -> None:
        """Removes every SIF and every partition of a SIF from the cache."""
        for record in (self.cache / "layers").glob("sif-*.json"):
            digest = read_record(record)["digest"].partition(":")[2]
            for path in (self.cache / "blobs/sha256").glob(f"{digest}*"):
                path.unlink()
            record.unlink()
        shutil.rmtree(self.cache / "sif", ignore_errors=True)
        for path in (self.root / "dist").glob("*.sif"):
            path.unlink()

    def sif(self, layout: str) -> Path:
        return self.root / "dist" / f"{layout}.sif"


def unpacked_size(project: Project) -> int:
    """Bytes of all files of the image."""
    project.builder("build", "oci")
    tree = image_tree(read_layout(project.root / "dist", "oci"), Store(project.cache))
    return sum(node.size for node in tree.values())


Builds = dict[str, dict[str, Any]]


def _record(builds: Builds, name: str, measured: Sequence[tuple[float, float]], sif: Path) -> None:
    """Adds the medians of some runs of a way to make SIFs."""
    seconds, cpu = median(m[0] for m in measured), median(m[1] for m in measured)
    size = sif.stat().st_size
    builds[name] = {"seconds": seconds, "cpu": cpu, "runs": list(measured), "size": size, "sif": str(sif)}
    print(f"{name}: {seconds:.2f} s, {cpu:.1f} s CPU", file=sys.stderr, flush=True)


def builder_builds(project: Project, runs: int) -> Builds:
    """Seconds, CPU seconds and sizes of builder's SIFs.

    At the end all targets are built from the first lock.
    """
    builds: Builds = {}
    for name in ("flat", "layered"):
        measured = []
        for _ in range(runs):
            project.forget_sifs()
            measured.append(project.builder("build", name))
        _record(builds, f"builder, {name}", measured, project.sif(name))
    unchanged = [project.builder("build", "layered") for _ in range(runs)]
    _record(builds, "builder, layered, nothing changed", unchanged, project.sif("layered"))
    changed = []
    for version in VERSIONS[1 : runs + 1]:
        project.lock(version)
        changed.append(project.builder("build", "layered"))
    _record(builds, "builder, layered, one package changed", changed, project.sif("layered"))
    project.lock(VERSIONS[0])
    for name in Project.targets:
        project.builder("build", name)
    return builds


def apptainer_builds(project: Project, apptainer: parts.Apptainer, folder: Path) -> Builds:
    """The same of ``apptainer build``, one run each."""
    builds: Builds = {}
    layout = folder / "oci"  # apptainer reads layouts with one image only
    run(["skopeo", "copy", f"oci:{project.root}/dist:oci", f"oci:{layout}"], apptainer.env)
    ways = {"apptainer build": [], "apptainer build, zstd 3": ["--mksquashfs-args", ZSTD]}
    for name, options in ways.items():
        sif = folder / f"{name.replace(' ', '-').replace(',', '')}.sif"
        command: list[str | Path] = [apptainer.path, "build", "--force", *options, sif, f"oci:{layout}"]
        seconds, cpu, _ = run(command, apptainer.env)
        _record(builds, name, [(seconds, cpu)], sif)
    return builds


def first_imports(
    apptainer: parts.Apptainer, sifs: Mapping[str, Path], options: Options
) -> dict[str, list[float]]:
    """Seconds of the import when nothing of the SIF is in the page cache. The SIFs take turns."""
    code = f"import time; t = time.monotonic(); import {options.module}; print(time.monotonic() - t)"
    found: dict[str, list[float]] = {name: [] for name in sifs}
    for turn in range(options.imports + 1):
        for name, sif in sifs.items():
            with sif.open("rb") as f:
                os.fsync(f.fileno())
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            container: list[str | Path] = [apptainer.path, "exec", "--containall", "--cleanenv", sif]
            output = run([*container, "python", "-c", code], apptainer.env)[2]
            if turn:  # the first turn only warms up the runtime
                found[name].append(float(output))
    return found


def bench(options: Options) -> dict[str, Any]:
    """Runs everything and returns the content of sif.json.

    Raises:
        CommandFailed: a measured command failed.
    """
    folder = FOLDER / "sif"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with parts.apptainer() as apptainer:
            project = Project(folder, quick=options.quick)
            project.lock(VERSIONS[0])
            size = unpacked_size(project)
            builds = builder_builds(project, options.runs) | apptainer_builds(project, apptainer, folder)
            sifs = {name: Path(build.pop("sif")) for name, build in builds.items()}
            compared = ("apptainer build", "apptainer build, zstd 3", "builder, flat", "builder, layered")
            imports = first_imports(apptainer, {name: sifs[name] for name in compared}, options)
            return {
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "machine": {"cores": len(os.sched_getaffinity(0)), "system": platform.platform()},
                "apptainer": apptainer.run("--version").stdout.strip(),
                "unpacked": size,
                "runs": options.runs,
                "module": options.module,
                "builds": builds,
                "imports": imports,
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def render(results: Mapping[str, Any]) -> str:
    """The tables."""
    builds, imports = results["builds"], results["imports"]
    bases = [builds[name]["seconds"] for name in ("apptainer build", "apptainer build, zstd 3")]
    lines = [
        f"{results['date']}, {results['machine']['cores']} cores, {results['apptainer']}; "
        f"the OCI image has {results['unpacked'] / 1e9:.2f} GB unpacked. "
        f"builder: medians of {results['runs']}; apptainer build: one run each.",
        "",
        "| | time | CPU | against apptainer build | with zstd 3 | SIF |",
        "|---|---|---|---|---|---|",
    ]
    for name, build in builds.items():
        label = f"**builder**{name.removeprefix('builder')}" if name.startswith("builder") else name
        ratios = " | ".join(f"1/{base / build['seconds']:.1f}" for base in bases)
        size = f"{build['size'] / 1e6:.0f} MB"
        lines.append(f"| {label} | {build['seconds']:.2f} s | {build['cpu']:.1f} s | {ratios} | {size} |")
    own = median(imports["apptainer build"])
    lines += [
        "",
        f"| first `import {results['module']}`, median of {len(imports['apptainer build'])} "
        "| time | against apptainer's own SIF |",
        "|---|---|---|",
    ]
    for name, seconds in imports.items():
        lines.append(f"| {name} | {median(seconds):.2f} s | {median(seconds) / own:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    runs_help = "runs of builder's builds (apptainer's are one each)"
    parser.add_argument("--runs", type=int, default=3, choices=(1, 2, 3), help=runs_help)
    parser.add_argument(
        "--quick", action="store_true", help="one run with numpy instead of torch; the page does not change"
    )
    given = parser.parse_args()
    options = Options(1 if given.quick else given.runs, 1 if given.quick else 5, given.quick)
    try:
        parts.need_root()
        parts.need("skopeo", "mmdebstrap")
        results = bench(options)
    except (CommandFailed, pytest.skip.Exception, pytest.fail.Exception) as e:
        print(f"bench: {e}", file=sys.stderr)
        return 1
    tables = render(results)
    if not options.quick:
        (FOLDER / "sif.json").write_text(json.dumps(results, indent=1) + "\n")
        write_page(tables, PAGE, BEGIN, END)
    print(tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
