"""Builds and publishes one set of wheels by docker, buildah and builder, one after another, and writes down what it cost.

Needs root, dockerd, buildah, docker-registry and mmdebstrap (``make apt-test``). ``make bench`` runs it; results go to
``.cache/bench/results.json`` and, between the markers, to ``docs/performance.md``.

Everybody starts from the same Debian base in the same registry and installs the same wheels from this machine, known by version
beforehand (a lock for builder, ``--no-deps`` and exact versions for pip). docker's and buildah's base has conda's python already;
builder brings it, as locked conda packages. "Cold" is an empty cache (no layer, no package, no image but the base) and a registry
that holds nothing but the bases; the wheels are in the page cache for all. No tag is moved, and builder's smoke test is not run.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.floor import floor
from benchmarks.measure import Cgroup, CommandFailed, Figures, Meter, medians
from builder.bases.resolve import open_base, resolve_base
from builder.model import OCI_INDEX, canonical_json
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support import parts

CLONE = Path(__file__).resolve().parents[1]
FOLDER = CLONE / ".cache" / "bench"
REQUIREMENTS = CLONE / "benchmarks" / "wheels.txt"
PAGE = CLONE / "docs" / "performance.md"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
#: The small package that is bumped: from the version in wheels.txt to this one.
BUMP = "prettytable==3.17.0"

DOCKERFILE = """\
FROM {base}
COPY requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore {options} --no-index --no-deps \\
    --find-links {links} -r /tmp/requirements.txt
"""
PYTHON_RECIPE = """\
description: Debian and conda's python, for docker and buildah to start from
base: debian:bookworm
environment: environments/python.yml
virtual_packages: {__glibc: "2.36"}
registry: {repository: bench/python}
"""
RECIPE = """\
description: the wheels of benchmarks/wheels.txt
base: docker://%s/bench/debian:bookworm
environment: environments/bench.yml
virtual_packages: {__glibc: "2.36"}
registry: {repository: bench/builder}
"""
NAMES = """
import importlib.metadata as m
print(*sorted({d.name.lower().replace("_", "-") + "==" + d.version for d in m.distributions()}))
"""


@dataclass(frozen=True)
class Run:
    """A build and a push: of each the figures, of both the bytes that the registry got."""

    build: Figures
    push: Figures
    bytes_sent: int

    @property
    def both(self) -> Figures:
        b, p = self.build, self.push
        return Figures(b.seconds + p.seconds, b.cpu + p.cpu, max(b.rss, p.rss), max(b.pss, p.pss))


# preparation ----------------------------------------------------------------------------------------------------------


def requirements() -> list[str]:
    """The exact versions in wheels.txt."""
    return [line for line in REQUIREMENTS.read_text().split("\n") if line and not line.startswith("#")]


def fetch_wheels(folder: Path) -> None:
    """Downloads the wheels that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    present = {_name(w) for w in folder.glob("*.whl")}
    missing = [r for r in [*requirements(), BUMP] if r not in present]
    torch = [r for r in missing if r.startswith("torch==")]
    others = [r for r in missing if r not in torch]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
    ]
    if others:
        print(f"downloading {len(others)} wheels into {folder}", file=sys.stderr)
        subprocess.run([*pip, *others], check=True)
    if (
        torch and subprocess.run([*pip, *torch], capture_output=True).returncode
    ):  # no index of pip's has the +cpu one
        subprocess.run([*pip, "--index-url", TORCH_INDEX, *torch], check=True)


def _name(wheel: Path) -> str:
    name, version, *_ = wheel.name.split("-")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder over http: how RUN gets at the wheels without their becoming part of the image."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()


class Project:
    """A project folder for builder, with a cache that is emptied between runs."""

    def __init__(self, folder: Path, wheels: Path, registry: parts.Registry) -> None:
        self.root = folder / "project"
        self.cache = folder / "cache"
        self.registry = registry
        self.env = {**parts.clean_environment(HOME=folder), "PYTHONPATH": str(CLONE), "PIP_NO_INDEX": "1"}
        self.env |= {
            "PIP_FIND_LINKS": str(wheels),
            "BUILDER_CACHE": str(self.cache),
            "PIP_CONFIG_FILE": os.devnull,
        }
        self._channel = folder / "channel"
        for name in ("recipes", "environments"):
            (self.root / name).mkdir(parents=True)
        self.builder("channel", "debian", self._channel)
        (self.root / "recipes/python.yaml").write_text(PYTHON_RECIPE)
        self.environment("python", ["pip"], [])
        (self.root / "recipes/bench.yaml").write_text(RECIPE % registry.host)

    def environment(self, name: str, conda: Sequence[str], pip: Sequence[str]) -> None:
        """Writes an environment file; JSON is YAML."""
        wanted: list[Any] = ["python=3.11", *conda]
        if pip:
            wanted.append({"pip": list(pip)})
        data = {"name": name, "channels": [self._channel.as_uri(), "nodefaults"], "dependencies": wanted}
        (self.root / f"environments/{name}.yml").write_text(json.dumps(data))

    def command(self, *args: str | Path) -> list[str]:
        return [
            sys.executable,
            "-m",
            "builder",
            "--project",
            str(self.root),
            "--json",
            *(str(a) for a in args),
        ]

    def publish_command(self, target: str) -> list[str]:
        return self.command("publish", target, "--registry", self.registry.host, "--no-tags")

    def builder(self, *args: str | Path) -> Any:
        """Runs builder, unmeasured, and gives what it says."""
        return json.loads(_output(self.command(*args), self.env, self.root) or "null")

    def lock(self, wanted: Sequence[str]) -> Path:
        """Locks target bench with these pip requirements; gives a copy of the environment and its lock."""
        copy = self.root.parent / f"locked-{hashlib.sha256(' '.join(wanted).encode()).hexdigest()[:8]}"
        self.environment("bench", [], wanted)
        self.builder("lock", "bench")
        shutil.copytree(self.root / "environments", copy)
        return copy

    def use(self, copy: Path) -> None:
        """Puts such a copy back."""
        shutil.copytree(copy, self.root / "environments", dirs_exist_ok=True)


def _output(command: Sequence[str | Path], env: Mapping[str, str], cwd: Path) -> str:
    done = subprocess.run([str(c) for c in command], env=dict(env), cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise CommandFailed(
            f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def publish_debian(project: Project) -> None:
    """Puts the bare Debian base into the registry, as builder makes it."""
    settings = Settings.from_environment({"HOME": str(project.root)}, cache=project.cache)
    store = Store(settings.cache)
    base = open_base(resolve_base("debian:bookworm", "amd64", settings, store), "amd64", settings, store)
    layout = project.root.parent / "debian"
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    manifest = store.path(base.digest)
    for digest in (base.digest, *(d["digest"] for d in _blobs_of(manifest))):
        shutil.copy(store.path(digest), blobs / digest.removeprefix("sha256:"))
    media_type = "application/vnd.oci.image.manifest.v1+json"
    entry = {"mediaType": media_type, "digest": base.digest, "size": manifest.stat().st_size}
    (layout / "index.json").write_bytes(
        canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]})
    )
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    target = f"docker://{project.registry.host}/bench/debian:bookworm"
    _output(["skopeo", "copy", "--dest-tls-verify=false", f"oci:{layout}", target], project.env, layout)


def _blobs_of(manifest: Path) -> list[dict[str, Any]]:
    data = json.loads(manifest.read_bytes())
    return [data["config"], *data["layers"]]


class Shelf:
    """The registry as it was with nothing but the bases in it."""

    def __init__(self, registry: parts.Registry, folder: Path) -> None:
        self.registry = registry
        self._copy = folder / "bases"
        self._set(registry.root, self._copy)

    def reset(self) -> None:
        """Makes the registry hold the bases again and nothing else."""
        self._set(self._copy, self.registry.root)

    def _set(self, source: Path, target: Path) -> None:
        self.registry.stop()
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        self.registry.start()

    def size(self) -> int:
        return sum(self.registry.blobs().values())


# the competitors ------------------------------------------------------------------------------------------------------


class Docker:
    """``docker build`` and ``docker push``, with all that the daemon does."""

    def __init__(
        self, engine: parts.DockerEngine, group: Cgroup, shelf: Shelf, context: Path, base: str
    ) -> None:
        self.engine, self.group, self.shelf, self.context = engine, group, shelf, context
        self.image = f"{shelf.registry.host}/bench/docker:1"
        group.add(engine.pid)
        engine.docker("pull", base)
        self.kept = {i.id for i in engine.client.images.list(all=True)}

    def forget(self) -> None:
        """Removes every image but the base."""
        self.engine.client.containers.prune()
        for _ in range(5):
            rest = [i for i in self.engine.client.images.list(all=True) if i.id not in self.kept]
            for image in rest:
                with contextlib.suppress(Exception):
                    self.engine.client.images.remove(image.id, force=True)
            if not rest:
                return

    def run(self, file: str) -> Run:
        """One build and push with this Dockerfile; nothing is forgotten before."""
        before = self.shelf.size()
        build, push = Meter(self.group), Meter(self.group)
        parent = f"--cgroup-parent={self.group.name}"
        command = [
            "docker",
            "build",
            "--quiet",
            "--network=host",
            parent,
            "--tag",
            self.image,
            "--file",
            self.context / file,
            self.context,
        ]
        with build.measure():
            build.run(command, self.engine.env, self.context)
        with push.measure():
            push.run(["docker", "push", "--quiet", self.image], self.engine.env, self.context)
        assert build.figures and push.figures
        return Run(build.figures, push.figures, self.shelf.size() - before)

    def packages(self) -> set[str]:
        out = self.engine.client.containers.run(
            self.image, ["python", "-c", NAMES], network_mode="none", remove=True
        )
        return set(out.decode().split())


class Buildah:
    """``buildah bud`` and ``buildah push``."""

    def __init__(self, podman: parts.Podman, group: Cgroup, shelf: Shelf, context: Path, base: str) -> None:
        self.podman, self.group, self.shelf, self.context = podman, group, shelf, context
        self.image = f"{shelf.registry.host}/bench/buildah:1"
        podman.run("pull", "--tls-verify=false", base)
        self.base = base

    def forget(self) -> None:
        """Removes every image but the base."""
        self.podman.run("rmi", "--force", self.image, check=False)
        self.podman.run("image", "prune", "--force")

    def run(self, file: str) -> Run:
        before = self.shelf.size()
        build, push = Meter(self.group), Meter(self.group)
        options = [
            "--quiet",
            "--layers",
            "--network=host",
            f"--cgroup-parent={self.group.name}",
            "--pull=never",
        ]
        command = [
            "buildah",
            "bud",
            *options,
            "--tag",
            self.image,
            "--file",
            self.context / file,
            self.context,
        ]
        with build.measure():
            build.run(command, self.podman.env, self.context)
        with push.measure():
            push.run(
                ["buildah", "push", "--quiet", "--tls-verify=false", self.image],
                self.podman.env,
                self.context,
            )
        assert build.figures and push.figures
        return Run(build.figures, push.figures, self.shelf.size() - before)


@dataclass(frozen=True)
class BuilderRun:
    """One ``builder publish``: both steps in one process. ``told`` is what it says itself."""

    both: Figures
    bytes_sent: int
    told: dict[str, Any]


def builder_run(project: Project, group: Cgroup, shelf: Shelf) -> BuilderRun:
    before = shelf.size()
    meter = Meter(group)
    with meter.measure():
        told = json.loads(meter.run(project.publish_command("bench"), project.env, project.root))
    assert meter.figures
    return BuilderRun(meter.figures, shelf.size() - before, told[0] if isinstance(told, list) else told)


# all of it ------------------------------------------------------------------------------------------------------------


def bench(runs: int, skip: Sequence[str]) -> dict[str, Any]:
    """All runs; gives the results as they are written to results.json.

    Raises:
        CommandFailed: something that is measured does not work.
    """
    wheels = FOLDER / "wheels"
    fetch_wheels(wheels)
    work = FOLDER / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    results: dict[str, Any] = {"date": datetime.date.today().isoformat(), "machine": machine(), "runs": runs}
    with contextlib.ExitStack() as stack:
        group = Cgroup(f"builder-bench-{os.getpid()}")
        stack.callback(group.remove)
        registry = stack.enter_context(parts.registries())()
        links = stack.enter_context(served(wheels))
        project = Project(work, wheels, registry)
        say("bases")
        publish_debian(project)
        _output(project.publish_command("python"), project.env, project.root)
        base = f"{registry.host}/bench/python@{project.builder('build', 'python')['digest']}"
        say("locks")
        plain = requirements()
        name = BUMP.partition("==")[0]
        bumped_lock = project.lock([BUMP if r.startswith(f"{name}==") else r for r in plain])
        plain_lock = project.lock(plain)
        shelf = Shelf(registry, work)
        context = work / "context"
        context.mkdir()
        (context / "requirements.txt").write_text("\n".join(plain))
        for file, options in (("Dockerfile", ""), ("Dockerfile.no-compile", "--no-compile")):
            (context / file).write_text(DOCKERFILE.format(base=base, links=links, options=options))

        cold, same, bump = [], [], []
        for n in range(runs):
            say(f"builder {n + 1}/{runs}")
            shutil.rmtree(project.cache, ignore_errors=True)
            shelf.reset()
            project.use(plain_lock)
            cold.append(builder_run(project, group, shelf))
            same.append(builder_run(project, group, shelf))
            project.use(bumped_lock)
            bump.append(builder_run(project, group, shelf))
        if len({r.told["digest"] for r in cold + same}) != 1:
            raise CommandFailed("builder did not give one digest for one lock")
        results["builder"] = {"cold": describe(cold), "unchanged": describe(same), "bumped": describe(bump)}

        if "docker" not in skip:
            options = ["--exec-opt", "native.cgroupdriver=cgroupfs"]
            engine = stack.enter_context(parts.docker_engine(options))
            docker = Docker(engine, group, shelf, context, base)
            for key, file in (("docker", "Dockerfile"), ("docker --no-compile", "Dockerfile.no-compile")):
                results[key] = compete(key, docker, file, runs, shelf)
            results["same packages"] = same_packages(docker, project, shelf, plain_lock, cold[0].told)
        if "buildah" not in skip:
            podman = stack.enter_context(parts.podman())
            results["buildah"] = compete(
                "buildah", Buildah(podman, group, shelf, context, base), "Dockerfile", runs, shelf
            )
    say("floor")
    results["floor"] = floor(wheels, work / "scratch")
    shutil.rmtree(work, ignore_errors=True)
    return results


def compete(name: str, who: Docker | Buildah, file: str, runs: int, shelf: Shelf) -> dict[str, Any]:
    cold, same = [], []
    for n in range(runs):
        say(f"{name} {n + 1}/{runs}")
        who.forget()
        shelf.reset()
        cold.append(who.run(file))
        same.append(who.run(file))
    return {"cold": describe(cold), "unchanged": describe(same)}


def same_packages(
    docker: Docker, project: Project, shelf: Shelf, lock: Path, told: Mapping[str, Any]
) -> dict[str, Any]:
    """Whether builder's image and docker's hold the same distributions, by asking the python in each."""
    theirs = docker.packages()
    shelf.reset()
    project.use(lock)
    _output(project.publish_command("bench"), project.env, project.root)
    reference = f"{told['reference']}@{told['digest']}"
    docker.engine.docker("pull", reference)
    out = docker.engine.client.containers.run(
        reference, ["python", "-c", NAMES], network_mode="none", remove=True
    )
    ours = set(out.decode().split())
    return {
        "count": len(ours & theirs),
        "only builder": sorted(ours - theirs),
        "only docker": sorted(theirs - ours),
    }


def describe(runs: Sequence[Run] | Sequence[BuilderRun]) -> dict[str, Any]:
    """Medians, and every run."""
    out: dict[str, Any] = {
        "median": asdict(medians([r.both for r in runs])),
        "bytes_sent": sorted(r.bytes_sent for r in runs)[len(runs) // 2],
    }
    for part in ("build", "push"):
        figures = [getattr(r, part) for r in runs if hasattr(r, part)]
        if figures:
            out[part] = asdict(medians(figures))
    out["runs"] = [asdict(r) for r in runs]
    return out


def machine() -> dict[str, Any]:
    """What ran it, as far as it matters."""
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "?",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    tools = {}
    for tool in (["dockerd", "--version"], ["buildah", "--version"], ["docker-registry", "--version"]):
        tools[tool[0]] = subprocess.run(tool, capture_output=True, text=True).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    return {
        "cpu": cpu,
        "cores": cores,
        "memory": memory,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "tools": tools,
    }


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument(
        "--skip", action="append", default=[], choices=["docker", "buildah"], help="leave one out"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write the tables into")
    options = parser.parse_args()
    try:
        parts.need_root()
        parts.need("dockerd", "buildah", "docker-registry", "mmdebstrap", "skopeo")
        results = bench(options.runs, options.skip)
    except (CommandFailed, pytest.skip.Exception, pytest.fail.Exception) as e:
        print(f"bench: {e}", file=sys.stderr)
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    from benchmarks.report import write_page

    print(write_page(results, options.page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
