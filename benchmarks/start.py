"""Measures how long images take to start: from nothing to the first import, and the import alone.

``start_rows`` pulls each image from a registry and imports modules in a new container, first with nothing on
this machine, then with the image of the previous version (one small package differs). ``import_rows`` imports
modules in new containers of images that are here already. Both need root. Images take turns, so that other
programs on the machine slow all of them. ``make bench`` calls ``measure_start``. Alone, with images that
exist:

    python -m benchmarks.start --against docker --image builder=oci:dist:cpu --image docker=oci:other:cpu

An image is NAME=SOURCE, where the source is what skopeo copies from; its second version is
"NAME, bumped=SOURCE". ``--sif`` has the same form with the path of a SIF.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import docker_engine, podman_storage
from benchmarks.measure import Cgroup, CommandFailed, Meter
from benchmarks.sif import ZSTD
from benchmarks.start_rows import StartImage, StartRow, images_of, render
from benchmarks.start_runtimes import (
    ApptainerRuntime,
    DockerRuntime,
    PodmanRuntime,
    Runtime,
    drop_page_cache,
)
from benchmarks.suite import Suite, open_suite
from benchmarks.workloads import UV
from tests.support import parts

#: The image that the others are compared with.
RIVAL = UV
#: What the import rows import if the image has torch.
MODULES = {"torch": "torch, pandas, sklearn"}
CASES = {False: "cold pull and start", True: "pull and start after a bump"}
#: Starts argv[1] processes at once that run argv[2]; prints the seconds until all have ended, and their CPU
#: seconds.
_AT_ONCE = """
import os, resource, sys, time
command = [sys.executable, "-c", sys.argv[2]]
start = time.monotonic()
started = [os.posix_spawn(sys.executable, command, os.environ) for _ in range(int(sys.argv[1]))]
failed = sum(os.waitpid(process, 0)[1] != 0 for process in started)
seconds = time.monotonic() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(seconds, used.ru_utime + used.ru_stime)
sys.exit(failed != 0)
"""


@dataclass(frozen=True)
class StartContext:
    """What is there when the starts of a workload's images are measured."""

    suite: Suite
    """Where docker and podman are."""
    registry: parts.Registry
    """The registry that holds the images."""
    images: Mapping[str, str]
    """``HOST/REPOSITORY@DIGEST`` by name; ``NAME, bumped`` is the second version of ``NAME``."""
    sifs: Mapping[str, Path]
    """SIFs by name; may be empty."""
    module: str
    """The module that the start imports."""
    quick: bool
    """One repetition, docker only."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A measurement of some images by one runtime."""

    runtime: Runtime
    images: tuple[StartImage, ...]
    group: Cgroup
    """The cgroup of the runtime's processes."""
    repetitions: int
    against: str = RIVAL


def measure_start(context: StartContext) -> list[dict[str, Any]]:
    """Measures pull, start and imports of all images; each row is the content of a :class:`StartRow`.

    Pull and start: images that have a second version, by docker and podman; SIFs by apptainer with ``oras``.
    Imports: all images by docker, and the SIFs.

    Raises:
        CommandFailed: a measured command failed.
    """
    # apptainer makes a SIF of an OCI image in minutes: "apptainer, docker" is for this program alone
    names = ("docker",) if context.quick else ("docker", "podman", "apptainer, oras")
    images = images_of(context.images)
    bumped = tuple(image for image in images if image.bumped) or images
    count = 1 if context.quick else 3
    rows: list[StartRow] = []
    with contextlib.ExitStack() as stack:
        group = Cgroup(f"builder-start-{os.getpid()}")
        stack.callback(group.remove)
        sifs = (
            ()
            if context.quick
            else stored_sifs(context.registry.host, context.sifs, context.images)
        )
        for runtime in stack.enter_context(runtimes(names, group, context.suite)):
            starting = sifs if runtime.name == "apptainer, oras" else bumped
            rows += start_rows(Plan(runtime, starting, group, 1), context.module)
            if runtime.name in ("docker", "apptainer, oras"):
                importing = sifs if runtime.name == "apptainer, oras" else images
                modules = MODULES.get(context.module, context.module)
                rows += import_rows(Plan(runtime, importing, group, count), modules)
    return [asdict(row) for row in rows]


def start_rows(plan: Plan, modules: str) -> list[StartRow]:
    """Measures pull and first import of each image: with nothing here, and after the bump of a package.

    Raises:
        CommandFailed: a pull or an import failed.
    """
    rows: dict[tuple[str, str], StartRow] = {}
    for _ in range(plan.repetitions):
        for image in plan.images:
            plan.runtime.forget()
            for reference in filter(None, (image.reference, image.bumped)):
                case = CASES[reference == image.bumped]
                empty = StartRow(case, plan.runtime.name, image.name, plan.against)
                _pull_and_import(
                    plan, reference, modules, rows.setdefault((case, image.name), empty)
                )
    plan.runtime.forget()
    return list(rows.values())


def _pull_and_import(plan: Plan, reference: str, modules: str, row: StartRow) -> None:
    drop_page_cache()
    meter = Meter(plan.group)
    with meter.measure():
        start = time.monotonic()
        plan.runtime.pull(meter, reference)
        row.pull_seconds.append(time.monotonic() - start)
        plan.runtime.python(meter, reference, ["-c", f"import {modules}"])
    assert meter.figures
    row.seconds.append(meter.figures.seconds)
    row.cpu.append(meter.figures.cpu)
    _say(row)


def import_rows(plan: Plan, modules: str, processes: Sequence[int] = (1, 8)) -> list[StartRow]:
    """Measures imports in new containers of pulled images: cold and warm page cache, 1 and 8 processes.

    Cold rows are left out if this user may not empty the page cache.

    Args:
        plan: what is measured; only the first version of each image is.
        modules: the modules, separated by commas.
        processes: how many processes import at once in one container.

    Raises:
        CommandFailed: a pull or an import failed.
    """
    rows: dict[tuple[str, str], StartRow] = {}
    plan.runtime.forget()
    for image in plan.images:
        plan.runtime.pull(Meter(plan.group), image.reference)
        _import_at_once(
            plan, image, modules, 1
        )  # not counted: the first container of an image costs more
    caches = ("cold", "warm") if drop_page_cache() else ("warm",)
    for cache in caches:
        for count in processes:
            if cache == "warm":
                for image in plan.images:
                    _import_at_once(plan, image, modules, 1)
            for _ in range(plan.repetitions):
                for image in plan.images:
                    if cache == "cold":
                        drop_page_cache()
                    seconds, cpu = _import_at_once(plan, image, modules, count)
                    case = import_case(cache, count)
                    empty = StartRow(case, plan.runtime.name, image.name, plan.against)
                    row = rows.setdefault((case, image.name), empty)
                    row.seconds.append(seconds)
                    row.cpu.append(cpu)
                    _say(row)
    plan.runtime.forget()
    return list(rows.values())


def _say(row: StartRow) -> None:
    """Shows the last repetition."""
    figures = f"{row.seconds[-1]:.2f} s, {row.cpu[-1]:.2f} s CPU"
    print(f"start: {row.tool}, {row.image}, {row.case}: {figures}", file=sys.stderr, flush=True)


def import_case(cache: str, processes: int) -> str:
    """How tables name a row of imports."""
    return f"import, {cache} page cache" + (
        f", {processes} processes at once" if processes > 1 else ""
    )


def _import_at_once(plan: Plan, image: StartImage, modules: str, count: int) -> tuple[float, float]:
    """Seconds and CPU seconds of processes that import the modules at once in a new container."""
    arguments = ["-c", _AT_ONCE, str(count), f"import {modules}"]
    output = plan.runtime.python(Meter(plan.group), image.reference, arguments)
    seconds, cpu = map(float, output.split()[-2:])
    return seconds, cpu


@contextlib.contextmanager
def runtimes(names: Sequence[str], group: Cgroup, suite: Suite) -> Iterator[tuple[Runtime, ...]]:
    """Starts engines of their own for runtimes with these names."""
    with contextlib.ExitStack() as stack:
        found: list[Runtime] = []
        if "docker" in names:
            found.append(DockerRuntime(stack.enter_context(docker_engine(suite, group)), group))
        if "podman" in names:
            found.append(PodmanRuntime(stack.enter_context(podman_storage(suite)), group))
        schemes = [scheme for scheme in ("docker", "oras") if f"apptainer, {scheme}" in names]
        if schemes:
            apptainer = stack.enter_context(parts.apptainer())
            folder = stack.enter_context(parts.part_folder("sifs"))
            found += [ApptainerRuntime(apptainer, folder / scheme, scheme) for scheme in schemes]
        yield tuple(found)


def stored_sifs(
    host: str, sifs: Mapping[str, Path], images: Mapping[str, str], rival: str = RIVAL
) -> tuple[StartImage, ...]:
    """Pushes SIFs to a registry, and the one that ``apptainer build`` with zstd makes of the rival's image.

    Args:
        host: the registry.
        sifs: SIFs by name.
        images: references of OCI images by name.
        rival: the name of the rival's image; nothing is made if it has a SIF or no image.
    """
    references = {}
    with parts.apptainer() as apptainer, parts.part_folder("rival") as folder:
        files = dict(sifs)
        if files and rival not in files and rival in images:
            files[rival] = folder / "rival.sif"
            source = f"docker://{images[rival]}"
            apptainer.run("--quiet", "build", "--no-https", *ZSTD, files[rival], source)
        for number, (name, file) in enumerate(files.items()):
            references[name] = f"{host}/start/sif{number}:1"
            apptainer.run("push", "--allow-unsigned", file, f"oras://{references[name]}")
    return images_of(references)


def _named(argument: str) -> tuple[str, str]:
    """``NAME=SOURCE`` of the command line."""
    name, equals, source = argument.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"write NAME=SOURCE, not {argument}")
    return name, source


def _copied(host: str, sources: Mapping[str, str]) -> dict[str, str]:
    """Copies images into the registry; returns their references."""
    references = {}
    for number, (name, source) in enumerate(sources.items()):
        references[name] = f"{host}/start/{number}:1"
        copy = [
            "skopeo",
            "copy",
            "--quiet",
            "--src-tls-verify=false",
            "--dest-tls-verify=false",
            source,
        ]
        subprocess.run([*copy, f"docker://{references[name]}"], check=True)
    return references


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    known = ("docker", "podman", "apptainer, docker", "apptainer, oras")
    add("--image", type=_named, action="append", required=True, help="NAME=SOURCE of skopeo")
    add("--sif", type=_named, action="append", default=[], help="NAME=FILE")
    add("--runtime", action="append", choices=known, help="measure with this one (default: docker)")
    add("--skip", action="append", default=[], choices=("start", "imports"))
    add("--against", default=RIVAL, help=f"the image to compare with (default: {RIVAL})")
    add("--repetitions", type=int, default=3)
    add("--module", default="torch", help="what the start imports")
    add("--out", type=Path, help="write the rows to this JSON file")
    return parser


def _measure(given: argparse.Namespace) -> list[StartRow]:
    """What the command line asks for."""
    modules = MODULES.get(given.module, given.module)
    rows: list[StartRow] = []
    with contextlib.ExitStack() as stack:
        group = Cgroup(f"builder-start-{os.getpid()}")
        stack.callback(group.remove)
        suite = stack.enter_context(open_suite())
        host = stack.enter_context(parts.registries())().host
        references = _copied(host, dict(given.image))
        files = {name: Path(file) for name, file in given.sif}
        names = given.runtime or ["docker"]
        sifs = (
            stored_sifs(host, files, references, given.against)
            if "apptainer, oras" in names
            else ()
        )
        for runtime in stack.enter_context(runtimes(names, group, suite)):
            images = sifs if runtime.name == "apptainer, oras" else images_of(references)
            plan = Plan(runtime, images, group, given.repetitions, given.against)
            rows += [] if "start" in given.skip else start_rows(plan, given.module)
            rows += [] if "imports" in given.skip else import_rows(plan, modules)
    return rows


def main() -> int:
    given = _arguments().parse_args()
    try:
        parts.need_root()
        parts.need("skopeo", "docker-registry")
        rows = _measure(given)
    except (
        CommandFailed,
        subprocess.CalledProcessError,
        pytest.skip.Exception,
        pytest.fail.Exception,
    ) as e:
        print(f"start: {e}", file=sys.stderr)
        return 1
    if given.out:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
