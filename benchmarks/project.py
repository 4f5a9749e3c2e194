"""builder as the benchmark runs it: a project, the bases in a registry, and ``builder publish``."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Cgroup, CommandFailed, Figures, Meter
from benchmarks.wheels import FileServer
from builder.build.bases.image import WantedBase
from builder.build.bases.resolve import open_base, resolve_base
from builder.core.model import OCI_INDEX, canonical_json
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.store.records import read_record
from builder.core.workspace import Workspace
from tests.support import parts

CLONE = Path(__file__).resolve().parents[1]
#: What the base of the benchmarks has to be.
WANTED = WantedBase("amd64")
#: The size of an answer's content in the access log of docker-registry.
_ANSWERED = re.compile(rb'^\S+ - - \[.*?\] "GET [^"]*" \d+ (\d+) ', re.MULTILINE)

_PYTHON_RECIPE = """\
description: Debian and conda's python, the base image for docker and buildah
base: debian:bookworm
environment: environments/python.yml
virtual_packages: {__glibc: "2.36"}
registry: {repository: bench/python}
"""
_RECIPE = """\
description: what the benchmark installs
base: docker://%s/bench/debian:bookworm
environment: environments/bench.yml
virtual_packages: {__glibc: "2.36"}
registry: {repository: bench/builder, tags: [latest]}
smoke: {none: the benchmark measures builds}
"""
#: The target that takes unchanged layers from the image in the registry.
REUSE = "reuse"
#: The targets of a workload, and what each adds to the first one's recipe.
TARGETS = {
    "bench": "",
    "none": "extends: bench\nbytecode: none\n",
    "flat": "extends: bench\nformat: sif\nsif: {layout: flat}\n",
    "layered": "extends: bench\nformat: sif\nsif: {layout: layered}\n",
    REUSE: "extends: bench\nregistry: {reuse: true}\n",
}


def output_of(command: Sequence[str | Path], env: Mapping[str, str], cwd: Path) -> str:
    """Runs a command, which is not measured, and returns its standard output.

    Raises:
        CommandFailed: its exit code is not 0.
    """
    done = subprocess.run(
        [str(c) for c in command], env=dict(env), cwd=cwd, capture_output=True, text=True
    )
    if done.returncode:
        raise CommandFailed(
            f"exit code {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


class Project:
    """A project folder for builder, with its own cache."""

    #: What the base of docker and buildah contains besides python.
    base_packages = ("pip", "setuptools", "wheel", "uv")

    def __init__(self, folder: Path, tools: Path, registry: parts.Registry, channel: str) -> None:
        """Makes the project.

        Args:
            folder: a folder for it.
            tools: the folder with the wheel of uv, for the base of docker and buildah.
            registry: where images go.
            channel: the URL of the conda channel.
        """
        self.root = folder / "project"
        self.cache = folder / "cache"
        self.registry = registry
        self.env = {
            **parts.clean_environment(HOME=folder),
            "PYTHONPATH": str(CLONE),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(tools),
            "PIP_CONFIG_FILE": os.devnull,
            "BUILDER_CACHE": str(self.cache),
        }
        self.channel = channel
        for name in ("recipes", "environments"):
            (self.root / name).mkdir(parents=True)
        (self.root / "recipes/python.yaml").write_text(_PYTHON_RECIPE)
        self._write_environment("python", ["pip"], [f"uv=={importlib.metadata.version('uv')}"])
        for target, text in TARGETS.items():
            (self.root / f"recipes/{target}.yaml").write_text(text or _RECIPE % registry.host)

    def _write_environment(self, name: str, conda: Sequence[str], pip: Sequence[str]) -> None:
        """Writes an environment file. JSON is valid YAML."""
        dependencies: list[Any] = ["python=3.11", *conda]
        if pip:
            dependencies.append({"pip": list(pip)})
        channels = [self.channel, "nodefaults"]
        data = {"name": name, "channels": channels, "dependencies": dependencies}
        (self.root / f"environments/{name}.yml").write_text(json.dumps(data))

    def command(self, name: str, *args: str | Path) -> list[str]:
        program = [sys.executable, "-m", "builder", "--project", str(self.root), name, "--json"]
        return [*program, *(str(a) for a in args)]

    def publish_command(self, target: str) -> list[str]:
        return self.command("publish", target, "--to", f"{self.registry.host}/", "--force")

    def builder(self, name: str, *args: str | Path) -> Any:
        """Runs builder, not measured, and returns its JSON output."""
        return json.loads(output_of(self.command(name, *args), self.env, self.root) or "null")

    def publish(self, target: str) -> str:
        """Runs builder publish, not measured, and returns the image's reference with its digest."""
        output = _first(output_of(self.publish_command(target), self.env, self.root))
        return f"{output['reference']}@{output['digest']}"

    def lock(self, links: str, conda: Sequence[str], wanted: Sequence[str]) -> Path:
        """Locks all targets; returns a copy of the environment and its locks.

        Args:
            links: the URL of the wheels.
            conda: conda packages besides python.
            wanted: the wheels, as pip requirements.
        """
        self.env["PIP_FIND_LINKS"] = links
        name = hashlib.sha256(" ".join([*conda, *wanted]).encode()).hexdigest()[:8]
        copy = self.root.parent / f"locked-{name}"
        shutil.rmtree(copy, ignore_errors=True)
        self._write_environment("bench", conda, wanted)
        locks = self.root / "environments"
        for old in locks.glob("bench.*.lock.yml"):
            old.unlink()
        self.builder("lock", "bench")
        for target in TARGETS:
            if target != "bench":
                shutil.copy(locks / "bench.bench.lock.yml", locks / f"bench.{target}.lock.yml")
        shutil.copytree(locks, copy)
        return copy

    def use(self, copy: Path) -> None:
        """Restores such a copy."""
        shutil.copytree(copy, self.root / "environments", dirs_exist_ok=True)

    def forget(self, *, base: bool = False) -> None:
        """Empties builder's cache, but for the base image, which docker and buildah have, too.

        Args:
            base: whether the base goes, too.
        """
        shutil.rmtree(self.cache, ignore_errors=True)
        if not base:
            settings = Settings.from_environment({"HOME": str(self.root)}, cache=self.cache)
            work = Workspace.of(settings)
            debian = f"docker://{self.registry.host}/bench/debian:bookworm"
            open_base(resolve_base(debian, WANTED, work), WANTED, work)

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


def _first(text: str) -> dict[str, Any]:
    """The JSON output of a command about one target."""
    output = json.loads(text)
    return dict(output[0] if isinstance(output, list) else output)


def publish_debian(project: Project) -> None:
    """Pushes builder's Debian base to the registry, unchanged."""
    settings = Settings.from_environment({"HOME": str(project.root)}, cache=project.cache)
    store = Store(settings.cache)
    base = open_base(
        resolve_base("debian:bookworm", WANTED, Workspace(settings, store)),
        WANTED,
        Workspace(settings, store),
    )
    layout = project.root.parent / "debian"
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    manifest = store.path(base.digest)
    content = json.loads(manifest.read_bytes())
    for digest in (
        base.digest,
        *(blob["digest"] for blob in [content["config"], *content["layers"]]),
    ):
        shutil.copy(store.path(digest), blobs / digest.removeprefix("sha256:"))
    media_type = "application/vnd.oci.image.manifest.v1+json"
    entry = {"mediaType": media_type, "digest": base.digest, "size": manifest.stat().st_size}
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}
    (layout / "index.json").write_bytes(canonical_json(index))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    target = f"docker://{project.registry.host}/bench/debian:bookworm"
    output_of(
        ["skopeo", "copy", "--dest-tls-verify=false", f"oci:{layout}", target], project.env, layout
    )


class RegistryState:
    """A registry that can be reset to the state in which it held only the bases."""

    def __init__(self, registry: parts.Registry, folder: Path) -> None:
        self.registry = registry
        self._copy = folder / "bases"
        self._replace(registry.root, self._copy)

    def reset(self) -> None:
        self._replace(self._copy, self.registry.root)

    def _replace(self, source: Path, target: Path) -> None:
        self.registry.stop()
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        self.registry.start()

    def size(self) -> int:
        """Bytes of all blobs."""
        return sum(self.registry.blobs().values())


@dataclass(frozen=True)
class Counts:
    """Bytes that went over the network so far, as clients see them."""

    sent: int
    """Bytes that the registry has stored."""
    received: int
    """Bytes that the registry and the servers of packages have sent."""


class Traffic:
    """Counts what clients send and receive."""

    def __init__(self, state: RegistryState, servers: Sequence[FileServer]) -> None:
        self.state, self._servers = state, list(servers)

    @contextlib.contextmanager
    def including(self, server: FileServer) -> Iterator[None]:
        """Count one more server of packages."""
        self._servers.append(server)
        yield
        self._servers.remove(server)

    def count(self) -> Counts:
        """Return the bytes of this moment; subtract two of them."""
        registry = self.state.registry
        with registry.log.open("rb") as log:
            lines = log.read(registry.log_size())
        received = sum(int(size) for size in _ANSWERED.findall(lines))
        return Counts(self.state.size(), received + sum(server.sent() for server in self._servers))


def measured(
    figures: Figures, before: Counts | None = None, after: Counts | None = None
) -> dict[str, Any]:
    """A repetition as it is stored: time, CPU, memory, and what was sent and received."""
    traffic = {}
    if before and after:
        traffic = {"sent": after.sent - before.sent, "received": after.received - before.received}
    return {**asdict(figures), **traffic}


def builder_run(project: Project, target: str, group: Cgroup, traffic: Traffic) -> dict[str, Any]:
    """Runs and measures ``builder publish``: build and push in one process."""
    meter = Meter(group)
    before = traffic.count()
    with meter.measure():
        text = meter.run(project.publish_command(target), project.env, project.root)
    assert meter.figures
    output = _first(text)
    stages = {
        **output.get("build_seconds", {}),
        "push": (output.get("push") or {}).get("seconds", 0.0),
    }
    found = measured(meter.figures, before, traffic.count())
    return {**found, "stages": stages, "digest": output["digest"], "reference": output["reference"]}
