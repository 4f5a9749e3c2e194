"""Makes SIFs of the torch CPU image by builder and by ``apptainer build``, imports torch from each, and writes down what it cost.

Needs root and the parts of the tests (``make apt-test``, ``make parts``). ``make bench`` runs it; results go to
``.cache/bench/sif.json`` and, between the markers, to ``docs/performance.md``.

All start from the same OCI image on this disk, whose layers are in the page cache and in builder's cache; builder's time is that
of the whole ``builder build``, with its start, the lock's check and the OCI image. "One package changed" is a new version of a
small package in the lock, with the download of its wheel. The first import is that of a process whose container's file was thrown
out of the page cache before; the SIFs take turns.
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
from pathlib import Path
from statistics import median
from typing import Any

from builder.image.convert import image_tree
from builder.oci.layout import read_layout
from builder.store.blobs import Store
from builder.store.records import read_record
from tests.support import parts

CLONE = Path(__file__).resolve().parents[1]
FOLDER = CLONE / ".cache" / "bench"
PAGE = CLONE / "docs" / "performance.md"
BEGIN, END = "<!-- make bench, SIF: begin -->", "<!-- make bench, SIF: end -->"
#: The small package that changes, and its versions: the first, and one for each run.
PACKAGE, VERSIONS = "prettytable", ("3.12.0", "3.14.0", "3.16.0", "3.17.0")
#: Beside target cpu's: what makes it 1.5 GB.
MORE = ("pyarrow==21.0.0", "numba==0.62.1")
ZSTD = "-comp zstd -Xcompression-level 3"
IMPORT = "import time; t = time.monotonic(); import torch; print(time.monotonic() - t)"
IMPORTS = 5


class Failed(Exception):
    """A command that is measured has failed; the message holds the end of its output."""


def run(command: Sequence[str | Path], env: Mapping[str, str]) -> tuple[float, float, str]:
    """Runs a command; gives its seconds, its CPU seconds and its output."""
    os.sync()
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [str(c) for c in command], env=dict(env), capture_output=True, text=True, check=False
    )
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{tail}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


class Project:
    """Target cpu with a few more packages, as an OCI image and as a SIF of each layout, in a cache of its own."""

    targets = ("oci", "flat", "layered")

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.cache = folder / "cache"
        self.env = {**os.environ, "PYTHONPATH": str(CLONE), "BUILDER_CACHE": str(self.cache)}
        (self.root / "recipes").mkdir(parents=True)
        (self.root / "environments").mkdir()
        recipe = re.sub(
            r"^environment:.*",
            "environment: environments/bench.yml",
            (CLONE / "recipes/cpu.yaml").read_text(),
            flags=re.M,
        )
        (self.root / "recipes/oci.yaml").write_text(recipe)
        for layout in ("flat", "layered"):
            (self.root / f"recipes/{layout}.yaml").write_text(
                f"extends: oci\nformat: sif\nsif: {{layout: {layout}}}\n"
            )

    def builder(self, *args: str | Path) -> tuple[float, float, Any]:
        command = [sys.executable, "-m", "builder", "--project", self.root, "--json", *args]
        seconds, cpu, out = run(command, self.env)
        return seconds, cpu, json.loads(out)

    def lock(self, version: str) -> None:
        """Locks the environment with this version of the small package, the same for every target."""
        text = (CLONE / "environments/cpu.yml").read_text().rstrip("\n")
        wanted = "".join(f"\n      - {w}" for w in (*MORE, f"{PACKAGE}=={version}"))
        (self.root / "environments/bench.yml").write_text(f"{text}{wanted}\n")
        locks = [self.root / "environments" / f"bench.{t}.lock.yml" for t in self.targets]
        for lock in locks:
            lock.unlink(missing_ok=True)
        self.builder("lock", "oci")
        for lock in locks[1:]:
            shutil.copy(locks[0], lock)

    def forget_sifs(self) -> None:
        """Removes every partition and every SIF from the cache."""
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


def unpacked(project: Project) -> int:
    """Bytes of all files of the image."""
    project.builder("build", "oci")
    tree = image_tree(read_layout(project.root / "dist", "oci"), Store(project.cache))
    return sum(node.size for node in tree.values())


def build_all(project: Project, apptainer: parts.Apptainer, folder: Path, runs: int) -> dict[str, Any]:
    """Seconds, CPU seconds and sizes of each way."""
    results: dict[str, Any] = {}

    def note(name: str, measured: list[tuple[float, float]], sif: Path) -> None:
        seconds, cpu = (median(m[i] for m in measured) for i in (0, 1))
        results[name] = {"seconds": seconds, "cpu": cpu, "runs": measured, "size": sif.stat().st_size}
        print(f"{name}: {seconds:.2f} s, {cpu:.1f} s CPU", file=sys.stderr)

    for name in ("flat", "layered"):
        measured = []
        for _ in range(runs):
            project.forget_sifs()
            measured.append(project.builder("build", name)[:2])
        note(f"builder, {name}", measured, project.sif(name))
    note(
        "builder, layered, nothing changed",
        [project.builder("build", "layered")[:2] for _ in range(runs)],
        project.sif("layered"),
    )
    measured = []
    for version in VERSIONS[1 : runs + 1]:
        project.lock(version)
        measured.append(project.builder("build", "layered")[:2])
    note("builder, layered, one package changed", measured, project.sif("layered"))
    project.lock(VERSIONS[0])  # what all the others hold
    for name in Project.targets:
        project.builder("build", name)
    layout = folder / "oci"  # apptainer takes a layout with one image
    run(["skopeo", "copy", f"oci:{project.root}/dist:oci", f"oci:{layout}"], apptainer.env)
    for name, options in (("apptainer build", []), ("apptainer build, zstd 3", ["--mksquashfs-args", ZSTD])):
        sif = folder / f"{name.replace(' ', '-').replace(',', '')}.sif"
        seconds, cpu, _ = run(
            [apptainer.path, "build", "--force", *options, sif, f"oci:{layout}"], apptainer.env
        )
        note(name, [(seconds, cpu)], sif)
        results[name]["sif"] = str(sif)
    return results


def first_imports(apptainer: parts.Apptainer, sifs: Mapping[str, Path]) -> dict[str, list[float]]:
    """Seconds that ``import torch`` takes when nothing of the SIF is in the page cache; the SIFs take turns."""
    found: dict[str, list[float]] = {name: [] for name in sifs}
    for turn in range(IMPORTS + 1):
        for name, sif in sifs.items():
            with sif.open("rb") as f:
                os.fsync(f.fileno())
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            out = run(
                [apptainer.path, "exec", "--containall", "--cleanenv", sif, "python", "-c", IMPORT],
                apptainer.env,
            )[2]
            if turn:  # the first round warms up everything else: the runtime itself
                found[name].append(float(out))
    return found


def render(results: Mapping[str, Any]) -> str:
    """The tables."""
    builds, imports = results["builds"], results["imports"]
    slow, quick = builds["apptainer build"]["seconds"], builds["apptainer build, zstd 3"]["seconds"]
    machine = results["machine"]
    lines = [
        f"{results['date']}, {machine['cores']} cores, {results['apptainer']}; "
        f"the OCI image has {results['unpacked'] / 1e9:.2f} GB unpacked. "
        f"builder: medians of {results['runs']}; apptainer build: one run each.",
        "",
        "| | time | CPU | against apptainer build | with zstd 3 | SIF |",
        "|---|---|---|---|---|---|",
    ]
    for name, b in builds.items():
        bold = f"**builder**{name.removeprefix('builder')}" if name.startswith("builder") else name
        ratios = [f"1/{base / b['seconds']:.1f}" for base in (slow, quick)]
        lines.append(
            f"| {bold} | {b['seconds']:.2f} s | {b['cpu']:.1f} s | {' | '.join(ratios)} | {b['size'] / 1e6:.0f} MB |"
        )
    lines += [
        "",
        f"| first `import torch`, median of {IMPORTS} | time | against apptainer's own SIF |",
        "|---|---|---|",
    ]
    own = median(imports["apptainer build"])
    for name, seconds in imports.items():
        lines.append(f"| {name} | {median(seconds):.2f} s | {median(seconds) / own:.2f} |")
    return "\n".join(lines) + "\n"


def write_page(tables: str, page: Path) -> None:
    """Puts the tables between the page's markers.

    Raises:
        ValueError: the page has no markers.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{tables}{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=3,
        choices=(1, 2, 3),
        help="runs of builder's builds (apptainer's are one each)",
    )
    options = parser.parse_args()
    folder = FOLDER / "sif"
    shutil.rmtree(folder, ignore_errors=True)
    project = Project(folder)
    try:
        with parts.apptainer() as apptainer:
            project.lock(VERSIONS[0])
            size = unpacked(project)
            builds = build_all(project, apptainer, folder, options.runs)
            sifs = {
                name: Path(builds[name].pop("sif")) for name in ("apptainer build", "apptainer build, zstd 3")
            }
            sifs |= {f"builder, {layout}": project.sif(layout) for layout in ("flat", "layered")}
            results = {
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "machine": {"cores": len(os.sched_getaffinity(0)), "system": platform.platform()},
                "apptainer": apptainer.run("--version").stdout.strip(),
                "unpacked": size,
                "runs": options.runs,
                "builds": builds,
                "imports": first_imports(apptainer, sifs),
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    (FOLDER / "sif.json").write_text(json.dumps(results, indent=1) + "\n")
    tables = render(results)
    write_page(tables, PAGE)
    print(tables)


if __name__ == "__main__":
    main()
