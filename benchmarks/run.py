"""One run of the benchmark: workloads, rivals, SIFs, starts and the cost against size."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import (
    Buildah,
    Docker,
    buildah_rival,
    check_counted,
    docker_rival,
    missing,
    same_packages,
    write_context,
)
from benchmarks.floor import floor
from benchmarks.measure import Cgroup, CommandFailed
from benchmarks.project import REUSE, Project, RegistryState, Traffic, builder_run, publish_debian
from benchmarks.sif import apptainer_sifs, builder_sifs
from benchmarks.start import StartContext, measure_start
from benchmarks.suite import Suite, open_suite
from benchmarks.wheels import fetch_wheels, requirement_of, served
from benchmarks.workloads import (
    BUILDAH,
    BUILDER,
    MICROMAMBA,
    NO_BYTECODE,
    UV,
    Workload,
    sized,
    workloads,
)
from tests.support import parts
from tests.support.debian_channel import make_debian_channel

#: builder's targets by the names of their rows. The last one's layers are in the cache for the SIFs.
_TARGETS = {NO_BYTECODE: "none", BUILDER: "bench"}
#: Packages and bytes of the points of the plot.
SIZES = ((10, 10**8), (30, 4 * 10**8), (75, 10**9), (150, 3 * 10**9), (300, 8 * 10**9))
QUICK_SIZES = ((10, 2 * 10**7), (30, 10**8))
#: Names for --only besides those of the workloads.
SIZE, START = "size", "start"

#: What a rival, or a part that the tests share, raises.
_FAILURES = (
    CommandFailed,
    subprocess.CalledProcessError,
    pytest.skip.Exception,
    pytest.fail.Exception,
)

Results = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What is measured."""

    folder: Path
    """Where wheels are stored between runs, and what is made meanwhile."""
    quick: bool = False
    only: Sequence[str] = ()
    """Names of workloads, "size" or "start"; empty: all. Starts are those of a workload's images."""
    save: Callable[[Results], None] = lambda results: None
    """Called after each part with what is there so far."""

    def wants(self, name: str) -> bool:
        return not self.only or name in self.only


@dataclass
class _Bench:
    """What all parts of a run share."""

    options: Options
    work: Path
    project: Project
    state: RegistryState
    traffic: Traffic
    suite: Suite
    """Where docker, buildah and podman are."""
    base: str
    """The reference of the base image of docker and buildah."""
    stack: contextlib.ExitStack
    _rivals: dict[str, Docker | Buildah] = field(default_factory=dict)
    _groups: dict[str, Cgroup] = field(default_factory=dict)

    def group(self, name: str) -> Cgroup:
        """The cgroup of a tool: a daemon that is idle does not count for the others."""
        if name not in self._groups:
            self._groups[name] = group = Cgroup(f"builder-bench-{os.getpid()}-{name}")
            self.stack.callback(group.remove)
        return self._groups[name]

    def rival(self, way: str) -> Docker | Buildah:
        """The tool of a rival, started when it is first needed."""
        tool = "buildah" if way == BUILDAH else "docker"
        if tool not in self._rivals:
            made = buildah_rival if way == BUILDAH else docker_rival
            opened: contextlib.AbstractContextManager[Docker | Buildah] = made(
                self.suite, self.group(tool), self.traffic, self.base
            )
            self._rivals[tool] = self.stack.enter_context(opened)
            check_counted(self._rivals[tool], self.work / f"counted-{tool}", self.base)
        return self._rivals[tool]


def bench(options: Options) -> Results:
    """Runs everything that is wanted and returns the results.

    Raises:
        CommandFailed: a measured command failed.
    """
    started, load = time.monotonic(), os.getloadavg()[0]
    results: Results = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": options.quick,
        "machine": {},
        "workloads": {},
        "skipped": {},
        "seconds": {},
    }
    with _opened(options) as run:
        results["machine"] = machine(load, run.suite)
        for workload in workloads(options.folder, quick=options.quick):
            if options.wants(workload.name) or (workload.starts and options.wants(START)):
                with _timed(results, workload.name):
                    _workload(run, workload, results)
                options.save(results)
        if options.wants(SIZE):
            with _timed(results, SIZE):
                results["size"] = [
                    _size_point(run, count, size)
                    for count, size in (QUICK_SIZES if options.quick else SIZES)
                ]
    results["seconds"]["all"] = round(time.monotonic() - started, 1)
    options.save(results)
    return results


@contextlib.contextmanager
def _timed(results: Results, name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    results["seconds"][name] = round(time.monotonic() - start, 1)


@contextlib.contextmanager
def _opened(options: Options) -> Iterator[_Bench]:
    """Starts the registry and pushes the bases."""
    work = options.folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    tools = options.folder / "tools"
    fetch_wheels(tools, [f"uv=={importlib.metadata.version('uv')}"])
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        suite = stack.enter_context(open_suite(work))
        registry = stack.enter_context(parts.registries())()
        channel = stack.enter_context(served(make_debian_channel(work / "channel")))
        project = Project(work, tools, registry, channel.url)
        say("bases")
        publish_debian(project)
        base = project.publish("python")
        state = RegistryState(registry, work)
        yield _Bench(options, work, project, state, Traffic(state, [channel]), suite, base, stack)


def _workload(run: _Bench, workload: Workload, results: Results) -> None:
    """Measures a workload; a workload that cannot be prepared is skipped with the reason."""
    if shutil.disk_usage(run.options.folder).free < workload.space:
        results["skipped"][workload.name] = f"needs {workload.space / 1e9:.0f} GB of free disk"
        return
    try:
        if workload.fetch is not None:
            workload.fetch(workload.wheels)
    except CommandFailed as e:
        results["skipped"][workload.name] = str(e).splitlines()[0]
        return
    workload.wheels.mkdir(parents=True, exist_ok=True)
    with served(workload.wheels) as server, run.traffic.including(server):
        _measured_workload(run, workload, server.url, results)


def _measured_workload(run: _Bench, workload: Workload, links: str, results: Results) -> None:
    """Measures a workload whose wheels are served at ``links``."""
    say(f"{workload.name}: locks")
    project = run.project
    updated = None
    if workload.updated:
        updated = project.lock(links, workload.conda, workload.updated)
    lock = project.lock(links, workload.conda, workload.wanted)
    found: Results = {
        "title": workload.title,
        "packages": len(workload.wanted) or 1 + len(workload.conda),
    }
    results["workloads"][workload.name] = found
    found["ways"] = _builder_runs(run, workload, lock, updated)
    chosen = [w for w in _wheels_of(workload) if requirement_of(w) in workload.wanted]
    if chosen:
        found["floor"] = floor(chosen, run.work / "scratch")
    if workload.sif:
        _sifs(run, workload, results, lock, updated)
    run.options.save(results)
    _rival_runs(run, workload, links, results)
    if UV in found["ways"] and workload.starts and updated is not None:
        with _skipping(results["skipped"], f"{workload.name}: starts"):
            _after_docker(run, workload, found, lock, updated)


def _wheels_of(workload: Workload) -> list[Path]:
    return sorted(workload.wheels.glob("*.whl"))


def _builder_runs(run: _Bench, workload: Workload, lock: Path, updated: Path | None) -> Results:
    """builder: cold, with nothing changed, with one small package updated, and that on a fresh machine."""
    ways: Results = {}
    for n in range(workload.runs):
        for way, target in _TARGETS.items():
            say(f"{workload.name}: {way} {n + 1}/{workload.runs}")
            run.project.forget()
            run.state.reset()
            run.project.use(lock)
            cases = ["cold", "again", "unchanged"]  # builder records at "again" what it has read
            if updated is not None:
                cases.append("bumped")
            for case in cases:
                if case == "bumped" and updated is not None:
                    run.project.use(updated)
                done = builder_run(run.project, target, run.group("builder"), run.traffic)
                ways.setdefault(way, {}).setdefault(case, []).append(done)
            if updated is not None and way == BUILDER:
                ways[way].setdefault("fresh", []).append(_fresh(run, lock, updated))
    for way, cases_of in ways.items():
        if (
            len(
                {
                    one["digest"]
                    for one in cases_of["cold"] + cases_of["again"] + cases_of["unchanged"]
                }
            )
            != 1
        ):
            raise CommandFailed(f"{way} made images with different digests from one lock")
    run.project.use(lock)
    return ways


def _fresh(run: _Bench, lock: Path, updated: Path) -> Results:
    """One small package is updated on a machine with an empty cache; the registry has the image before."""
    run.project.use(lock)
    run.state.reset()
    run.project.publish(REUSE)
    run.project.forget(base=True)
    run.project.use(updated)
    return builder_run(run.project, REUSE, run.group("builder"), run.traffic)


def _rival_runs(run: _Bench, workload: Workload, links: str, results: Results) -> None:
    """The other tools: the cases of builder. One that fails is left out, with the reason."""
    ways, skipped = results["workloads"][workload.name]["ways"], results["skipped"]
    for way in workload.rivals:
        if reason := missing(way):
            skipped[f"{workload.name}: {way}"] = reason
            continue
        with _skipping(skipped, f"{workload.name}: {way}"):
            source = run.project.channel if way == MICROMAMBA else links
            ways[way] = _rival(run, workload, way, source)
        run.options.save(results)


def _rival(run: _Bench, workload: Workload, way: str, links: str) -> Results:
    """A rival: cold, with nothing changed, and with one small package updated.

    What it does on a fresh machine is the cold build: the changed requirements change its only layer.
    """
    context = run.work / f"context-{workload.name}-{workload.rivals.index(way)}"
    bumped = context.with_name(f"{context.name}-bumped")
    tool = run.rival(way)
    write_context(context, way, workload, links, run.base)
    if workload.updated:
        write_context(bumped, way, replace(workload, wanted=workload.updated), links, run.base)
    cases: dict[str, list[Results]] = {}
    for n in range(workload.rival_runs):
        say(f"{workload.name}: {way} {n + 1}/{workload.rival_runs}")
        tool.forget()
        run.state.reset()
        cases.setdefault("cold", []).append(tool.run(context))
        cases.setdefault("unchanged", []).append(tool.run(context))
        if workload.updated:
            cases.setdefault("bumped", []).append(tool.run(bumped, tool.bumped_image))
    return cases


@contextlib.contextmanager
def _skipping(skipped: dict[str, str], name: str) -> Iterator[None]:
    """Notes the failure of a part, so that the rest is measured."""
    try:
        yield
    except _FAILURES as e:
        skipped[name] = str(e)[:500].replace("\n", " ")
        say(f"{name} is left out: {e}")


def _sifs(
    run: _Bench, workload: Workload, results: Results, lock: Path, updated: Path | None
) -> None:
    found = results["workloads"][workload.name]
    say(f"{workload.name}: SIFs")
    project, group = run.project, run.group("builder")
    update = None if updated is None else lambda: project.use(updated)
    project.publish(_TARGETS[BUILDER])  # the cache of the fresh machine has few layers
    found["sif"] = builder_sifs(project, workload.sif, workload.runs, group, update)
    project.use(lock)
    if workload.apptainer:
        with _skipping(results["skipped"], f"{workload.name}: apptainer build"):
            found["sif"] |= apptainer_sifs(project, run.work, run.group("apptainer"))
    project.forget_sifs()


def _after_docker(
    run: _Bench, workload: Workload, found: Results, lock: Path, updated: Path
) -> None:
    """Compares packages of docker's image with those of builder's, and measures starts.

    The registry still contains the images that docker pushed last.
    """
    project, docker = run.project, run.rival(UV)
    assert isinstance(docker, Docker)
    images = {UV: docker.image, f"{UV}, bumped": docker.bumped_image}
    project.use(updated)
    images[f"{BUILDER}, bumped"] = project.publish("bench")
    project.use(lock)
    images[BUILDER], images[NO_BYTECODE] = project.publish("bench"), project.publish("none")
    say(f"{workload.name}: packages")
    found["same packages"] = same_packages(docker, project, workload, images[BUILDER])
    docker.forget()
    if run.options.wants(START):
        say(f"{workload.name}: starts")
        for layout in workload.sif:
            project.builder("build", layout)
        sifs = {
            f"{BUILDER}, {layout}": project.root / f"dist/{layout}.sif" for layout in workload.sif
        }
        module = "prettytable" if run.options.quick else "torch"
        context = StartContext(run.suite, project.registry, images, sifs, module, run.options.quick)
        found["start"] = measure_start(context)


def _size_point(run: _Bench, count: int, size: int) -> Results:
    """Cold builds of made wheels, and the machine's limit for the same wheels, right after them."""
    workload = sized(run.options.folder, count, size)
    assert workload.fetch is not None
    say(f"size: {count} packages, {size / 1e9:g} GB")
    workload.fetch(workload.wheels)
    try:
        with served(workload.wheels) as server, run.traffic.including(server):
            lock = run.project.lock(server.url, (), workload.wanted)
            point: Results = {"packages": count, "ways": {}}
            for way, target in _TARGETS.items():
                run.project.forget()
                run.state.reset()
                run.project.use(lock)
                done = builder_run(run.project, target, run.group("builder"), run.traffic)
                point["ways"][way] = {"cold": [done]}
        chosen = [w for w in _wheels_of(workload) if requirement_of(w) in workload.wanted]
        point["floor"] = floor(chosen, run.work / "scratch")
        return point
    finally:
        shutil.rmtree(workload.wheels)  # up to several GB, written again in seconds
        run.project.forget()
        run.state.reset()


def machine(load: float, suite: Suite) -> dict[str, Any]:
    """The machine, and the versions of the tools.

    Args:
        load: the load before the run.
        suite: where docker, buildah and podman are.
    """
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    env = parts.clean_environment()
    tools = {
        tool: suite.run([tool, "--version"], env).strip()
        for tool in ("dockerd", "buildah", "podman")
    }
    tools["uv"] = importlib.metadata.version("uv")
    return {
        "cpu": models[0] if models else "?",
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": load,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "tools": tools,
    }


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
