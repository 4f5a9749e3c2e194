"""One lock, four engines: each builds the same small conda and pip environment for real, and the file trees agree."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from builder.channel.debian import make_debian_channel
from builder.engines.cotainr import PREFIX
from builder.image.layout import read_layout
from builder.image.trees import Tree, layer_source, read_tree
from builder.settings import Settings
from builder.store import Store
from tests.integration.conftest import CLONE, Builder, keep_base
from tests.support.channel import PLACEHOLDER, index_channel, make_package, serve
from tests.support.miniforge import cotainr_with, make_installer
from tests.support.parts import Apptainer, DockerEngine, need_root

#: The prefix that cotainr's environments have: the same for all, so that the trees can be compared byte for byte.
HOME = PREFIX.strip("/")
ENVIRONMENT = """\
name: small
channels:
  - {url}
  - nodefaults
dependencies:
  - python=3.11
  - greeter
  - textual
  - binary
  - activator
  - pip:
      - six==1.16.0
      - packaging==24.0
"""
RECIPE = f"""\
description: one lock, four engines
base: debian:bookworm
environment: environments/small.yml
virtual_packages: {{__glibc: "2.36"}}
conda: {{prefix: {PREFIX}}}
installer: {{program: rattler}}
env: {{GREETING: 'a "quoted" $value, with spaces'}}
files:
  - {{source: hello.txt, target: /srv/hello.txt}}
cmd: [greet]
workdir: /srv
labels: {{org.opencontainers.image.title: small}}
registry: {{repository: tests/small}}
"""
SIF_RECIPE = """\
extends: small
format: sif
lock: environments/small.small.lock.yml
site:
  title: Small
  launcher: torchrun
  slurm:
    account: required
    account_example: project_1
    queues:
      build: {partition: debug, cpus_per_task: 1, time: "00:05:00"}
"""


GREETER = """\
import os


def main():
    print("hello from", __file__, os.environ["GREETING"])
"""


@dataclass(frozen=True)
class Small(Builder):
    """The project: target ``small`` is an OCI image, ``small-sif`` a SIF of the same lock."""

    url: str = ""

    @property
    def dist(self) -> Path:
        return self.root / "dist"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, base_cache: Path) -> Iterator[Small]:
    folder = tmp_path_factory.mktemp("small")
    channel = folder / "channel"
    cache = keep_base(base_cache, folder / "cache")
    embedded = make_debian_channel(cache / "channels" / "debian", Settings.from_environment({"HOME": str(folder)}, cache=cache))
    for subdir in ("linux-64", "noarch"):
        shutil.copytree(embedded / subdir, channel / subdir, ignore=shutil.ignore_patterns("repodata*", "shards"))
    make_package(
        channel, "greeter", "1.0", noarch="python", depends=["python >=3.8"], entry_points=["greet = greeter:main"],
        files={"site-packages/greeter.py": GREETER},
    )  # fmt: skip
    make_package(
        channel, "textual", "1.0", files={"bin/where": f"#!/bin/sh\necho {PLACEHOLDER}/share\n"},
        prefix_files={"bin/where": "text"}, symlinks={"bin/there": "where"},
    )  # fmt: skip
    make_package(
        channel, "binary", "1.0", depends=["textual"],
        files={"lib/blob.bin": b"\x7f\0" + PLACEHOLDER.encode() + b"/lib\0end"}, prefix_files={"lib/blob.bin": "binary"},
    )  # fmt: skip
    make_package(
        channel, "activator", "1.0", files={"etc/conda/activate.d/a.sh": 'export SMALL_HOME="$CONDA_PREFIX/share"\n'}
    )  # fmt: skip
    index_channel(channel)
    root = folder / "project"
    for name in ("recipes", "environments"):
        (root / name).mkdir(parents=True)
    (root / "hello.txt").write_text("hello\n")
    (root / "recipes" / "small.yaml").write_text(RECIPE)
    (root / "recipes" / "small-sif.yaml").write_text(SIF_RECIPE)
    with serve(channel) as server:
        builder = Small(root, cache, server.url)
        (root / "environments" / "small.yml").write_text(ENVIRONMENT.format(url=server.url))
        builder.run("build", "small")
        yield builder


def with_ids(command: Sequence[str], folder: Path) -> list[str]:
    """The command, where root has subordinate ids (apptainer's ``%post`` needs them here); the host's files stay as they are."""
    need_root()
    for name in ("subuid", "subgid"):
        (folder / name).write_text("root:200000:65536\n")
    mounts = [f"mount --bind {shlex.quote(str(folder / name))} /etc/{name}" for name in ("subuid", "subgid")]
    script = "\n".join(["set -e", *mounts, f"exec {shlex.join(command)}"])
    return ["unshare", "--mount", "--propagation=private", "bash", "-c", script]


def run(
    small: Builder, *args: str, env: Mapping[str, str] | None = None, check: bool = True, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """``builder ARGS`` with subordinate ids, and nothing on standard input."""
    command = small.command(*args)
    if folder is not None:
        command = with_ids(command, folder)
    full = {**os.environ, "PYTHONPATH": str(CLONE), **(env or {})}
    done = subprocess.run(command, env=full, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if check and done.returncode:
        pytest.fail(f"builder {' '.join(args)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


@pytest.fixture(scope="module")
def docker_built(small: Small, docker_engine: DockerEngine) -> dict[str, Any]:
    """What ``builder build small --engine docker`` said; the image is in a layout of its own."""
    layout = str(small.root / "by-docker")
    done = small.run(
        "build", "small", "--engine", "docker", "--layout", layout, "--json", env={"DOCKER_HOST": docker_engine.host}
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture(scope="module")
def apptainer_built(small: Small, apptainer: Apptainer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ids")
    args = ("build", "small-sif", "--engine", "apptainer", "--layout", str(small.root / "by-apptainer"), "--json")
    told: dict[str, Any] = json.loads(run(small, *args, env=apptainer.env, folder=folder).stdout)
    return told


@pytest.fixture(scope="module")
def stub_cotainr(small: Small, docker_built: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """cotainr with the Miniforge installer replaced by the stub of tests/support/miniforge.py; its folder for PATH."""
    folder = tmp_path_factory.mktemp("cotainr")
    (tool,) = (small.cache / "tools").glob("rattler-*.tar")
    installer = make_installer(folder / "miniforge.sh", tool)
    base = json.dumps({"small": {"base-image": f"oci:{base_layout(small, folder / 'base')}"}})
    return cotainr_with(folder, installer, systems=base).parent


def base_layout(small: Small, folder: Path) -> Path:
    """The Debian base alone in an OCI layout, as a site would have it."""
    from builder.image.layout import write_layout

    image = read_layout(small.dist, "small")
    made = json.loads(image.manifest)
    store = Store(small.cache)
    base = json.loads(store.path(made["annotations"]["org.opencontainers.image.base.digest"]).read_bytes())
    config = store.path(base["config"]["digest"]).read_bytes()
    count = len(base["layers"])
    manifest = json.dumps(base).encode()
    import hashlib

    described = replace(image.manifest_descriptor, digest=f"sha256:{hashlib.sha256(manifest).hexdigest()}", size=len(manifest))
    own = replace(image.config_descriptor, digest=base["config"]["digest"], size=len(config))
    write_layout(
        replace(
            image,
            layers=image.layers[:count],
            config=config,
            config_descriptor=own,
            manifest=manifest,
            manifest_descriptor=described,
        ),
        folder,
        None,
        store,
    )  # noqa: E501
    return folder


@pytest.fixture(scope="module")
def cotainr_env(stub_cotainr: Path, apptainer: Apptainer) -> dict[str, str]:
    return {**apptainer.env, "PATH": f"{stub_cotainr}:{apptainer.env['PATH']}"}


@pytest.fixture(scope="module")
def cotainr_built(small: Small, cotainr_env: dict[str, str]) -> dict[str, Any]:
    layout = str(small.root / "by-cotainr")
    args = ("build", "small-sif", "--engine", "cotainr", "--accept-licenses", "--layout", layout, "--json")
    told: dict[str, Any] = json.loads(run(small, *args, env=cotainr_env).stdout)
    return told


# docker ---------------------------------------------------------------------------------------------------------------


def test_docker_image_runs_as_the_layered_one_does(
    small: Small, docker_built: dict[str, Any], docker_engine: DockerEngine
) -> None:
    from builder.image.archive import docker_load

    said = []
    for layout in (small.dist, small.root / "by-docker"):
        image = read_layout(layout, "small")
        docker_load(image, "small:test", docker_engine.client)

        def out(*command: str) -> str:
            return str(docker_engine.docker("run", "--rm", "--network=none", "small:test", *command).stdout)

        said.append(
            (
                out(),
                out("where"),
                out("python", "-c", "import six; print(six.__version__)"),
                out("sh", "-c", "pwd; env | sort | grep -v HOSTNAME"),
                json.loads(image.config)["config"],
            )
        )  # noqa: E501
    assert said[0] == said[1]
    assert said[0][0] == f'hello from {PREFIX}/lib/python3.11/site-packages/greeter.py a "quoted" $value, with spaces\n'
    assert f"SMALL_HOME={PREFIX}/share" in said[0][3]


def test_docker_result_is_an_image_like_any_other(small: Small, docker_built: dict[str, Any]) -> None:
    image = read_layout(small.root / "by-docker", "small")
    layered = read_layout(small.dist, "small")
    assert docker_built["engine"] == "docker" and docker_built["digest"] == image.digest != layered.digest
    assert image.layers[0].descriptor == layered.layers[0].descriptor, "the base's layers are the registry's own"
    notes = json.loads(image.manifest)["annotations"]
    assert notes["org.builder.lock"] == docker_built["lock"]
    assert notes["org.opencontainers.image.base.digest"] == docker_built["base"]["digest"]


def test_dockerfile_is_kept_and_is_the_one_that_was_built(small: Small, docker_built: dict[str, Any]) -> None:
    text = (small.root / "by-docker" / "small.Dockerfile").read_text()
    assert re.search(r"^FROM builder-base:[0-9a-f]{12} AS install$", text, re.M)
    assert docker_built["base"]["digest"] in text
    assert 'ENV GREETING="a \\"quoted\\" \\$value, with spaces"' in text


def test_docker_leaves_nothing_of_the_build_behind(
    docker_built: dict[str, Any], docker_engine: DockerEngine, small: Small
) -> None:
    tags = [t for image in docker_engine.client.images.list() for t in image.tags]
    assert not [t for t in tags if t.startswith("builder-build:")]
    assert not list((small.cache / "tmp").glob("build-*"))


def test_a_step_that_fails_is_named_with_its_last_lines(small: Small, docker_engine: DockerEngine, tmp_path: Path) -> None:
    """A package whose post-link script fails: docker runs it, as conda would."""
    lock = (small.root / "environments" / "small.small.lock.yml").read_text()
    wheel = re.search(r"name: packaging\n(?:.*\n)*?.*sha256: ([0-9a-f]{64})", lock)
    assert wheel
    broken = tmp_path / "small.lock.yml"
    broken.write_text(lock.replace("version: '24.0'", "version: '99.0'").replace("version: 24.0", "version: '99.0'"))
    assert broken.read_text() != lock
    env = {"DOCKER_HOST": docker_engine.host}
    done = small.run("build", "small", "--engine", "docker", "--lock", str(broken), env=env, check=False)
    assert done.returncode == 8, done.stderr
    assert "docker build of target small failed at step 4 of" in done.stderr
    assert "packaging==99.0" in done.stderr and "--engine layered" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_docker_engine(small: Small, tmp_path: Path) -> None:
    done = small.run("build", "small", "--engine", "docker", env={"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}, check=False)
    assert done.returncode == 10
    assert (
        "the engine docker does not work here: no engine answers at unix://" in done.stderr and "--engine layered" in done.stderr
    )


# trees ----------------------------------------------------------------------------------------------------------------


def oci_tree(small: Small, layout: Path) -> Tree:
    image = read_layout(layout, "small")
    store = Store(small.cache)
    return read_tree([layer_source(layer, store) for layer in image.layers])
