"""Builds and publishes one set of wheels by docker, buildah and builder, and measures each of them.

Needs root, dockerd, buildah, docker-registry, mmdebstrap and skopeo (``make apt-test``). ``make bench`` runs
it; results go to ``.cache/bench/results.json`` and, between the markers, to ``docs/performance.md``. ``make
bench BENCH_ARGS=--quick`` is a short run with a few small wheels, which checks that everything works and does
not change the page.

All start from the same Debian base in the same registry and install the same wheels from this machine, with
exact versions (a lock for builder, ``--no-deps`` for pip). The base of docker and buildah already contains
conda's python; builder installs it from locked conda packages. "Cold" means an empty cache (no layer, no
package, no image except the base) and a registry with nothing except the bases; the wheels are in the page
cache for all. No tag moves, and builder's smoke test does not run.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import DOCKERFILE, Buildah, Docker, Run
from benchmarks.floor import floor
from benchmarks.measure import Cgroup, CommandFailed, medians
from benchmarks.project import (
    CLONE,
    BuilderRun,
    Project,
    RegistryState,
    builder_run,
    publish_debian,
)
from benchmarks.report import render, write_page
from benchmarks.wheels import fetch_wheels, requirements, served, with_update
from tests.support import parts

FOLDER = (CLONE / ".cache" / "bench").resolve()
PAGE = CLONE / "docs" / "performance.md"


@dataclass(frozen=True)
class Options:
    """What is measured."""

    runs: int
    """Runs of each tool."""
    skip: Sequence[str]
    """``docker`` or ``buildah``."""
    quick: bool
    """A few small wheels instead of all."""


@dataclass(frozen=True)
class Setup:
    """What all tools share: the project, the registry and the Dockerfiles."""

    project: Project
    group: Cgroup
    state: RegistryState
    context: Path
    """The folder with the Dockerfiles."""
    base: str
    """The reference of the base image of docker and buildah."""
    lock: Path
    updated_lock: Path


def bench(options: Options) -> dict[str, Any]:
    """Runs everything and returns the content of results.json.

    Raises:
        CommandFailed: a measured command failed.
    """
    wanted = requirements(quick=options.quick)
    wheels = FOLDER / ("wheels-quick" if options.quick else "wheels")
    fetch_wheels(wheels, wanted)
    work = FOLDER / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "runs": options.runs,
    }
    with contextlib.ExitStack() as stack:
        group = Cgroup(f"builder-bench-{os.getpid()}")
        stack.callback(group.remove)
        registry = stack.enter_context(parts.registries())()
        links = stack.enter_context(served(wheels))
        setup = prepare(Project(work, wheels, registry), group, wanted, links)
        results |= bench_builder(setup, options.runs)
        if "docker" not in options.skip:
            arguments = ["--exec-opt", "native.cgroupdriver=cgroupfs"]
            engine = stack.enter_context(parts.docker_engine(arguments))
            first = results["builder"]["cold"]["runs"][0]["output"]
            results |= bench_docker(setup, engine, options.runs, first)
        if "buildah" not in options.skip:
            podman = stack.enter_context(parts.podman())
            buildah = Buildah(podman, group, setup.state, setup.context, setup.base)
            results["buildah"] = compare("buildah", buildah, "Dockerfile", options.runs, setup.state)
    say("the least that each step costs")
    results["floor"] = floor(wheels, work / "scratch")
    shutil.rmtree(work, ignore_errors=True)
    return results


def prepare(project: Project, group: Cgroup, wanted: Sequence[str], links: str) -> Setup:
    """Pushes the bases, locks the wheels and writes the Dockerfiles.

    Args:
        project: the project.
        group: the cgroup of everything that is measured.
        wanted: the exact versions of the wheels.
        links: the address of the wheels.
    """
    work = project.root.parent
    say("bases")
    publish_debian(project)
    project.publish("python")
    digest = project.builder("build", "python")["digest"]
    base = f"{project.registry.host}/bench/python@{digest}"
    say("locks")
    updated_lock = project.lock(with_update(wanted))
    lock = project.lock(wanted)
    context = work / "context"
    context.mkdir()
    (context / "requirements.txt").write_text("\n".join(wanted))
    for file, flags in (("Dockerfile", ""), ("Dockerfile.no-compile", "--no-compile")):
        (context / file).write_text(DOCKERFILE.format(base=base, links=links, options=flags))
    state = RegistryState(project.registry, work)
    return Setup(project, group, state, context, base, lock, updated_lock)


def bench_builder(setup: Setup, runs: int) -> dict[str, Any]:
    """builder: cold, with nothing changed, and with one small package updated."""
    cold, unchanged, bumped = [], [], []
    for n in range(runs):
        say(f"builder {n + 1}/{runs}")
        shutil.rmtree(setup.project.cache, ignore_errors=True)
        setup.state.reset()
        setup.project.use(setup.lock)
        cold.append(builder_run(setup.project, setup.group, setup.state))
        unchanged.append(builder_run(setup.project, setup.group, setup.state))
        setup.project.use(setup.updated_lock)
        bumped.append(builder_run(setup.project, setup.group, setup.state))
    if len({run.output["digest"] for run in cold + unchanged}) != 1:
        raise CommandFailed("builder made images with different digests from one lock")
    runs_of = {"cold": cold, "unchanged": unchanged, "bumped": bumped}
    return {"builder": {name: describe(done) for name, done in runs_of.items()}}


def bench_docker(
    setup: Setup, engine: parts.DockerEngine, runs: int, output: Mapping[str, Any]
) -> dict[str, Any]:
    """docker with and without compiled bytecode, and a comparison of its packages with builder's.

    Args:
        setup: what all tools share.
        engine: the engine.
        runs: the number of runs.
        output: the output of a ``builder publish`` of the same wheels.
    """
    docker = Docker(engine, setup.group, setup.state, setup.context, setup.base)
    results = {
        name: compare(name, docker, file, runs, setup.state)
        for name, file in (("docker", "Dockerfile"), ("docker --no-compile", "Dockerfile.no-compile"))
    }
    results["same packages"] = same_packages(docker, setup, output)
    return results


def compare(name: str, tool: Docker | Buildah, file: str, runs: int, state: RegistryState) -> dict[str, Any]:
    """One of the other tools: cold, and with nothing changed.

    Args:
        name: its name, for messages.
        tool: the tool.
        file: the name of the Dockerfile.
        runs: the number of runs.
        state: the registry.
    """
    cold, unchanged = [], []
    for n in range(runs):
        say(f"{name} {n + 1}/{runs}")
        tool.forget()
        state.reset()
        cold.append(tool.run(file))
        unchanged.append(tool.run(file))
    return {"cold": describe(cold), "unchanged": describe(unchanged)}


def same_packages(docker: Docker, setup: Setup, output: Mapping[str, Any]) -> dict[str, Any]:
    """The distributions in builder's image and in docker's, by the Python in each."""
    theirs = docker.packages()
    setup.state.reset()
    setup.project.use(setup.lock)
    setup.project.publish("bench")
    reference = f"{output['reference']}@{output['digest']}"
    docker.engine.docker("pull", reference)
    ours = docker.packages(reference)
    return {
        "count": len(ours & theirs),
        "only builder": sorted(ours - theirs),
        "only docker": sorted(theirs - ours),
    }


def describe(runs: Sequence[Run] | Sequence[BuilderRun]) -> dict[str, Any]:
    """The medians of some runs, and every run."""
    out: dict[str, Any] = {
        "median": asdict(medians([run.both for run in runs])),
        "bytes_sent": sorted(run.bytes_sent for run in runs)[len(runs) // 2],
    }
    for part in ("build", "push"):
        figures = [getattr(run, part) for run in runs if hasattr(run, part)]
        if figures:
            out[part] = asdict(medians(figures))
    out["runs"] = [asdict(run) for run in runs]
    return out


def machine() -> dict[str, Any]:
    """The machine and the versions of the tools."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    tools = {}
    for tool in ("dockerd", "buildah", "docker-registry"):
        done = subprocess.run([tool, "--version"], capture_output=True, text=True)
        tools[tool] = done.stdout.strip()
    return {
        "cpu": models[0] if models else "?",
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "tools": tools,
    }


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="runs of each tool (default 3)")
    parser.add_argument(
        "--skip", action="append", default=[], choices=["docker", "buildah"], help="leave out this tool"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one run with a few small wheels; the page does not change"
    )
    given = parser.parse_args()
    options = Options(1 if given.quick else given.runs, given.skip, given.quick)
    try:
        parts.need_root()
        parts.need("dockerd", "buildah", "docker-registry", "mmdebstrap", "skopeo")
        results = bench(options)
    except (CommandFailed, subprocess.CalledProcessError, pytest.skip.Exception, pytest.fail.Exception) as e:
        print(f"bench: {e}", file=sys.stderr)
        return 1
    if not options.quick:
        (FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        write_page(render(results), PAGE)
    print(render(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
