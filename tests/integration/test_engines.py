"""One lock, four engines: each builds the same small environment, and the file trees are equal."""

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

import docker
import pytest
import yaml

from builder.bases.resolve import open_base, resolve_base
from builder.channel.debian import make_debian_channel
from builder.engines.base import BuildRequest
from builder.engines.cotainr import PREFIX
from builder.engines.docker import provide_base
from builder.image.archive import docker_load
from builder.image.convert import image_sources, image_tree
from builder.lock.file import read_lock
from builder.model import Image, Lock, SifImage
from builder.oci.layout import read_layout
from builder.publishing.places import open_place
from builder.settings import Settings
from builder.sif.read import open_sif, read_sif
from builder.store.blobs import Store
from builder.store.files import sha256_file
from builder.trees.compare import compare_trees
from builder.trees.merge import Merge
from tests.integration.conftest import CLONE, Builder, keep_base
from tests.support import image_kit
from tests.support.channel import PLACEHOLDER, index_channel, make_package, serve
from tests.support.install import install_apptainer
from tests.support.miniforge import cotainr_with, make_installer
from tests.support.parts import (
    Apptainer,
    DockerEngine,
    OrdinaryUser,
    Registry,
    apptainer_environment,
    need,
    need_root,
    part_folder,
)
from tests.support.slurm import Slurm

#: The prefix that cotainr's environments have: the same for all, so that the trees can be compared byte for
#: byte.
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
      build: {partition: debug, cpus_per_task: 1, time: "00:20:00"}
"""


GREETER = """\
import os


def main():
    print("hello from", __file__, os.environ["GREETING"])
"""


#: cotainr works in a folder below /tmp, so the runtime must mount /tmp, which the tests' configuration turns
#: off. gzip, Apptainer's default for cotainr's SIF, takes several times as long as zstd.
FOR_COTAINR = {
    "APPTAINER_NO_MOUNT": "hostfs",
    "TMPDIR": "/tmp",
    "APPTAINER_MKSQUASHFS_ARGS": "-comp zstd -Xcompression-level 1",
}


@dataclass(frozen=True)
class Small(Builder):
    """The project: target ``small`` is an OCI image, ``small-sif`` a SIF of the same lock."""

    url: str = ""

    @property
    def dist(self) -> Path:
        return self.root / "dist"


@pytest.fixture(scope="module")
def small(module_folder: Path, base_cache: Path) -> Iterator[Small]:
    folder = module_folder
    channel = folder / "channel"
    cache = keep_base(base_cache, folder / "cache")
    debian = make_debian_channel(
        cache / "channels" / "debian", Settings.from_environment({"HOME": str(folder)}, cache=cache)
    )
    for subdir in ("linux-64", "noarch"):
        shutil.copytree(
            debian / subdir, channel / subdir, ignore=shutil.ignore_patterns("repodata*", "shards")
        )
    make_package(
        channel,
        "greeter",
        "1.0",
        noarch="python",
        depends=["python >=3.8"],
        entry_points=["greet = greeter:main"],
        files={"site-packages/greeter.py": GREETER},
    )
    make_package(
        channel,
        "textual",
        "1.0",
        files={"bin/where": f"#!/bin/sh\necho {PLACEHOLDER}/share\n"},
        prefix_files={"bin/where": "text"},
        symlinks={"bin/there": "where"},
    )
    make_package(
        channel,
        "binary",
        "1.0",
        depends=["textual"],
        files={"lib/blob.bin": b"\x7f\0" + PLACEHOLDER.encode() + b"/lib\0end"},
        prefix_files={"lib/blob.bin": "binary"},
    )
    make_package(
        channel,
        "activator",
        "1.0",
        files={"etc/conda/activate.d/a.sh": 'export SMALL_HOME="$CONDA_PREFIX/share"\n'},
    )
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
        build_layered(builder, "small")
        yield builder


def build_layered(builder: Builder, target: str) -> None:
    """Builds a target with builder's own engine, without compiled modules: two other engines compile none."""
    recipe = builder.root / "recipes" / "small.yaml"
    recipe.write_text(f"{RECIPE}bytecode: none\n")
    builder.run("build", target)
    recipe.write_text(RECIPE)


def with_subordinate_ids(command: Sequence[str], folder: Path) -> list[str]:
    """The command in a mount namespace where root has subordinate ids, which ``%post`` needs here."""
    need_root()
    for name in ("subuid", "subgid"):
        (folder / name).write_text("root:200000:65536\n")
    mounts = [f"mount --bind {shlex.quote(str(folder / name))} /etc/{name}" for name in ("subuid", "subgid")]
    script = "\n".join(["set -e", *mounts, f"exec {shlex.join(command)}"])
    return ["unshare", "--mount", "--propagation=private", "bash", "-c", script]


def run(
    small: Builder,
    *args: str,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """``builder ARGS`` with subordinate ids, and nothing on standard input."""
    command = small.command(*args)
    if folder is not None:
        command = with_subordinate_ids(command, folder)
    full = {**os.environ, "PYTHONPATH": str(CLONE), **(env or {})}
    full.pop("PYTHONPYCACHEPREFIX", None)  # apptainer passes variables into cotainr's sandbox:
    full["PYTHONDONTWRITEBYTECODE"] = "1"  # the programs in it compile nothing but what pip installs
    done = subprocess.run(command, env=full, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if check and done.returncode:
        pytest.fail(f"builder {' '.join(args)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


@pytest.fixture(scope="module")
def docker_built(small: Small, docker_engine: DockerEngine) -> dict[str, Any]:
    """The JSON of ``builder build small --engine docker``; its image is in the layout ``by-docker``."""
    layout = str(small.root / "by-docker")
    done = small.run(
        "build",
        "small",
        "--engine",
        "docker",
        "--layout",
        layout,
        "--json",
        env={"DOCKER_HOST": docker_engine.host},
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def apptainer_built(
    small: Small, apptainer: Apptainer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ids")
    args = (
        "build",
        "small-sif",
        "--engine",
        "apptainer",
        "--layout",
        str(small.root / "by-apptainer"),
        "--json",
    )
    answer: dict[str, Any] = json.loads(run(small, *args, env=apptainer.env, folder=folder).stdout)
    return answer


@pytest.fixture(scope="module")
def stub_cotainr(
    small: Small, docker_built: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder for PATH with a cotainr that uses the stub of tests/support/miniforge.py."""
    folder = tmp_path_factory.mktemp("cotainr")
    (tool,) = (small.cache / "tools").glob("rattler-*.tar")
    installer = make_installer(folder / "miniforge.sh", tool)
    return cotainr_with(folder, installer).parent


@pytest.fixture(scope="module")
def cotainr_env(stub_cotainr: Path, apptainer: Apptainer) -> dict[str, str]:
    return {**apptainer.env, **FOR_COTAINR, "PATH": f"{stub_cotainr}:{apptainer.env['PATH']}"}


@pytest.fixture(scope="module")
def cotainr_built(small: Small, cotainr_env: dict[str, str], slurm: Slurm) -> dict[str, Any]:
    """Built in a job, as on LUMI. With --offline, conda and pip get the locked archives from builder."""
    env = {**cotainr_env, "SLURM_CONF": slurm.env["SLURM_CONF"]}
    layout = str(small.root / "by-cotainr")
    args = (
        "build",
        "small-sif",
        "--engine",
        "cotainr",
        "--on",
        "slurm",
        "--account",
        "project_1",
        "--accept-licenses",
    )
    answer: dict[str, Any] = json.loads(
        run(small, "--offline", *args, "--layout", layout, "--json", env=env).stdout
    )
    return answer


@pytest.fixture(scope="module")
def layered_sif(small: Small) -> Path:
    build_layered(small, "small-sif")
    return small.dist / "small-sif.sif"


# docker -----------------------------------------------------------------------------------------------------


def test_docker_image_runs(small: Small, docker_built: dict[str, Any], docker_engine: DockerEngine) -> None:
    """The docker engine's image runs as the layered engine's does, with the same config."""
    output = []
    for layout in (small.dist, small.root / "by-docker"):
        image = read_layout(layout, "small")
        docker_load(image, "small:test", docker_engine.client)

        def out(*command: str) -> str:
            return str(docker_engine.docker("run", "--rm", "--network=none", "small:test", *command).stdout)

        output.append(
            (
                out(),
                out("where"),
                out("python", "-c", "import six; print(six.__version__)"),
                out("sh", "-c", "pwd; env | sort | grep -v HOSTNAME"),
                json.loads(image.config)["config"],
            )
        )
    assert output[0] == output[1]
    assert (
        output[0][0]
        == f'hello from {PREFIX}/lib/python3.11/site-packages/greeter.py a "quoted" $value, with spaces\n'
    )
    assert f"SMALL_HOME={PREFIX}/share" in output[0][3]


def test_docker_image_metadata(small: Small, docker_built: dict[str, Any]) -> None:
    """Digest, base layers and annotations are as with any engine."""
    image = read_layout(small.root / "by-docker", "small")
    layered = read_layout(small.dist, "small")
    assert docker_built["engine"] == "docker" and docker_built["digest"] == image.digest != layered.digest
    assert image.layers[0].descriptor == layered.layers[0].descriptor, (
        "the base's layers are the registry's own"
    )
    notes = json.loads(image.manifest)["annotations"]
    assert notes["org.builder.lock"] == docker_built["lock"]
    assert notes["org.opencontainers.image.base.digest"] == docker_built["base"]["digest"]


def test_dockerfile_is_stored(small: Small, docker_built: dict[str, Any]) -> None:
    """The Dockerfile that was built is beside the layout."""
    text = (small.root / "by-docker" / "small.Dockerfile").read_text()
    assert re.search(r"^FROM builder-base:[0-9a-f]{12} AS install$", text, re.M)
    assert docker_built["base"]["digest"] in text
    assert 'ENV GREETING="a \\"quoted\\" \\$value, with spaces"' in text


def test_docker_build_is_cleaned_up(
    docker_built: dict[str, Any], docker_engine: DockerEngine, small: Small
) -> None:
    tags = [t for image in docker_engine.client.images.list() for t in image.tags]
    assert not [t for t in tags if t.startswith("builder-build:")]
    assert not list((small.cache / "tmp").glob("build-*"))


def test_docker_pulls_base_by_digest(docker_engine: DockerEngine, registry: Registry, tmp_path: Path) -> None:
    settings = Settings.from_environment({"HOME": str(tmp_path)})
    store = Store(settings.cache)
    base = image_kit.image(store)
    destination = open_place(f"{registry.host}/engines/base", settings, store)
    destination.push(base)
    destination.move_tag("1", base)
    reference = f"docker://{registry.host}/engines/base:1"
    opened = open_base(
        resolve_base(reference, "amd64", settings, store), "amd64", settings, store, download=False
    )
    recipe = image_kit.recipe(tmp_path, base=reference)
    request = BuildRequest(recipe, Lock((), ("linux-64",)), b"", settings, store)
    name = provide_base(request, opened, docker_engine.client)
    assert name == f"{registry.host}/engines/base@{base.digest}"
    assert docker_engine.client.images.get(name).id == base.config_descriptor.digest
    gone = replace(opened, digest="sha256:" + "0" * 64)
    with pytest.raises(docker.errors.DockerException, match="not found|unknown"):
        provide_base(request, gone, docker_engine.client)


def broken_lock(small: Small, folder: Path) -> Path:
    """A lock with a wrong version of a wheel, which pip refuses."""
    lock = (small.root / "environments" / "small.small.lock.yml").read_text()
    broken = folder / "broken.lock.yml"
    broken.write_text(re.sub(r"version: '?24\.0'?$", "version: '99.0'", lock, flags=re.M))
    assert broken.read_text() != lock
    return broken


def test_failed_docker_step(small: Small, docker_engine: DockerEngine, tmp_path: Path) -> None:
    """The error has the step and its last lines of output."""
    env = {"DOCKER_HOST": docker_engine.host}
    done = small.run(
        "build",
        "small",
        "--engine",
        "docker",
        "--lock",
        str(broken_lock(small, tmp_path)),
        env=env,
        check=False,
    )
    assert done.returncode == 8, done.stderr
    assert "docker build of target small failed at step 4 of" in done.stderr
    assert "packaging==99.0" in done.stderr and "--engine layered" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_docker_engine(small: Small, tmp_path: Path) -> None:
    args = ("build", "small", "--engine", "docker", "--rebuild", "--layout", str(tmp_path / "dist"))
    done = small.run(*args, env={"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}, check=False)
    assert done.returncode == 10
    assert (
        "the engine docker does not work here: no engine answers at unix://" in done.stderr
        and "--engine layered" in done.stderr
    )


@pytest.mark.parametrize(
    ("target", "engine", "built"),
    [("small", "docker", "docker_built"), ("small-sif", "cotainr", "cotainr_built")],
)
def test_unchanged_target_is_not_rebuilt(
    small: Small, target: str, engine: str, built: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """It needs no engine, as on a login node after a build job: the same image is tested and published."""
    answer = request.getfixturevalue(built)
    env = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "PATH": "/usr/bin:/bin"}
    done = small.run(
        "build", target, "--engine", engine, "--layout", str(tmp_path / "dist"), "--json", env=env
    )
    again = json.loads(done.stdout)
    assert again["digest"] == answer["digest"] and "unchanged since the build at" in done.stderr
    if engine == "docker":
        assert read_layout(tmp_path / "dist", "small").digest == answer["digest"]
    else:
        assert sha256_file(tmp_path / "dist" / "small-sif.sif") == answer["digest"]


# cotainr ----------------------------------------------------------------------------------------------------


def test_cotainr_build_in_a_job(cotainr_built: dict[str, Any], slurm: Slurm, small: Small) -> None:
    jobs = slurm.run("scontrol", "--oneliner", "show", "job").stdout.splitlines()
    (job,) = [line for line in jobs if "JobName=builder-small-sif" in line and "Partition=debug" in line]
    assert "JobState=COMPLETED" in job and "NodeList=node1" in job and "TimeLimit=00:20:00" in job
    assert Path(cotainr_built["sif"]) == small.root / "by-cotainr" / "small-sif.sif"
    assert cotainr_built["engine"] == "cotainr" and cotainr_built["digest"] == sha256_file(
        Path(cotainr_built["sif"])
    )


def test_cotainr_environment_file(small: Small, cotainr_built: dict[str, Any]) -> None:
    """The environment file has every locked version."""
    data = yaml.safe_load((small.root / "by-cotainr" / "small-sif.cotainr.yml").read_text())
    lock = read_lock(small.root / "environments" / "small.small.lock.yml")
    assert [d for d in data["dependencies"] if isinstance(d, str)] == sorted(
        f"{p.name}={p.version}={p.build}" for p in lock.packages if p.manager == "conda"
    )
    assert data["channels"] == [small.url, "nodefaults"]
    assert [line.split()[0] for line in data["dependencies"][-1]["pip"]] == ["packaging==24.0", "six==1.16.0"]


def test_sifs_run(
    small: Small,
    layered_sif: Path,
    apptainer_built: dict[str, Any],
    cotainr_built: dict[str, Any],
    apptainer: Apptainer,
) -> None:
    """The SIFs of all engines run alike."""
    output = {}
    for name, path in {
        "layered": layered_sif,
        "apptainer": apptainer_built["sif"],
        "cotainr": cotainr_built["sif"],
    }.items():
        env = apptainer.run(
            "exec", "--containall", "--cleanenv", path, "sh", "-c", "env | sort"
        ).stdout.splitlines()
        output[name] = (
            apptainer.run("run", "--containall", "--cleanenv", path).stdout,
            apptainer.run("exec", "--containall", "--cleanenv", path, "where").stdout,
            [
                line
                for line in env
                if line.startswith(("PATH=", "CONDA_PREFIX=", "GREETING=", "PYTHON", "LANG="))
            ],
        )
    assert (
        output["layered"][0]
        == f'hello from {PREFIX}/lib/python3.11/site-packages/greeter.py a "quoted" $value, with spaces\n'
    )
    assert f"CONDA_PREFIX={PREFIX}" in output["layered"][2]
    assert output["apptainer"] == output["layered"]
    assert output["cotainr"][:2] == output["layered"][:2]


def test_apptainer_inspect(
    apptainer_built: dict[str, Any], cotainr_built: dict[str, Any], apptainer: Apptainer
) -> None:
    for built in (apptainer_built, cotainr_built):
        shown = apptainer.run("inspect", built["sif"]).stdout
        assert (
            "org.opencontainers.image.title: small" in shown and f"org.builder.lock: {built['lock']}" in shown
        )
    assert "cotainr.version" in apptainer.run("inspect", cotainr_built["sif"]).stdout


def test_cotainr_download_fails(small: Small, apptainer: Apptainer, tmp_path: Path) -> None:
    """The real download of Miniforge, which fails without GitHub: builder passes on cotainr's error."""
    program = cotainr_with(tmp_path, None)
    env = {**apptainer.env, **FOR_COTAINR, "https_proxy": "http://127.0.0.1:9"}
    env["PATH"] = f"{program.parent}:{env['PATH']}"
    args = ("build", "small-sif", "--engine", "cotainr", "--accept-licenses", "--rebuild")
    done = run(small, *args, env=env, check=False)
    assert done.returncode == 8, done.stderr
    assert (
        "cotainr build of target small-sif ended with code 1" in done.stderr
        and "urlopen error" in done.stderr
    )
    assert "cotainr downloads Miniforge" in done.stderr
    assert "Traceback" not in done.stderr


# apptainer --------------------------------------------------------------------------------------------------


def test_failed_apptainer_step(small: Small, apptainer: Apptainer, tmp_path: Path) -> None:
    """The error has the step and the last lines of output."""
    broken = broken_lock(small, tmp_path)
    args = (
        "build",
        "small-sif",
        "--engine",
        "apptainer",
        "--lock",
        str(broken),
        "--layout",
        str(tmp_path / "out"),
    )
    done = run(small, *args, env=apptainer.env, check=False, folder=tmp_path)
    assert done.returncode == 8, done.stderr
    assert "apptainer build of target small-sif ended with code" in done.stderr
    assert "in %post (installing the lock)" in done.stderr and "packaging==99.0" in done.stderr
    assert not list((tmp_path / "out").glob("*.sif")) and "Traceback" not in done.stderr


def of_root(sif: Path, target: Path) -> None:
    """Writes the same SIF with root as the owner of every file, as in SIFs that ordinary users built.

    The tests' Apptainer cannot change owners, so it cannot unpack other SIFs.
    """
    tree, partition = target.with_suffix(".tree"), target.with_suffix(".squashfs")
    offset = read_sif(sif).partitions[0].offset
    need("siftool", "mksquashfs", "unsquashfs")
    for command in (
        f"unsquashfs -quiet -no-progress -offset {offset} -dest {tree} {sif}",
        f"mksquashfs {tree} {partition} -quiet -no-progress -all-root -comp zstd -Xcompression-level 1",
        f"siftool new {target}",
        f"siftool add --datatype 4 --parttype 2 --partfs 1 --partarch 2 --groupid 1 {target} {partition}",
    ):
        subprocess.run(command.split(), check=True, capture_output=True)
    partition.unlink()
    shutil.rmtree(tree)


@pytest.fixture
def reachable_apptainer(apptainer: Apptainer) -> Iterator[Path]:
    """Apptainer outside /root, where --fakeroot mounts the user's home; this clone may be in /root."""
    if Path("/root") not in apptainer.path.parents:
        yield apptainer.path
        return
    with part_folder("ap") as folder:
        yield install_apptainer(folder / "apptainer")


@pytest.mark.usefixtures("fuse")
def test_ordinary_user_builds_on_a_sif(
    small: Small, layered_sif: Path, reachable_apptainer: Path, ordinary_user: OrdinaryUser
) -> None:
    """As on a site: the user's own cache, a base SIF, ``%post`` in a user namespace."""
    project, cache = ordinary_user.tmp / "engines", ordinary_user.tmp / "engines-cache"
    shutil.copytree(small.root, project, ignore=shutil.ignore_patterns("by-*", "dist"))
    for part in ("blobs", "channels"):
        shutil.copytree(small.cache / part, cache / part)
    of_root(layered_sif, project / "base.sif")
    lock = (small.root / "environments" / "small.small.lock.yml").read_text()
    # as conda-lock writes it: it pins no base, and the recipe's is taken
    (project / "environments" / "foreign.lock.yml").write_text(
        re.sub(r"  custom_metadata:\n(    .*\n)+", "", lock)
    )
    (project / "recipes" / "on-sif.yaml").write_text(
        "extends: small\nformat: sif\nbase: sif:base.sif\nlock: environments/foreign.lock.yml\n"
    )
    ordinary_user.own(ordinary_user.tmp)
    env = {**apptainer_environment(reachable_apptainer, ordinary_user.home), "PYTHONPATH": str(CLONE)}
    done = ordinary_user.run(
        Builder(project, cache).command("build", "on-sif", "--engine", "apptainer", "--json"), env
    )
    answer = json.loads(done.stdout)
    assert answer["base"] == {"reference": "sif:base.sif", "digest": sha256_file(project / "base.sif")}
    output = ordinary_user.run(["apptainer", "run", "--containall", "--cleanenv", answer["sif"]], env).stdout
    assert (
        output
        == f'hello from {PREFIX}/lib/python3.11/site-packages/greeter.py a "quoted" $value, with spaces\n'
    )
    assert "Bootstrap: localimage" in (project / "dist" / "on-sif.def").read_text()


def test_definition_is_stored(small: Small, apptainer_built: dict[str, Any]) -> None:
    text = (small.root / "by-apptainer" / "small-sif.def").read_text()
    assert "Bootstrap: oci\nFrom: base\n" in text and apptainer_built["base"]["digest"] in text
    assert str(small.cache) not in text


# on Slurm ---------------------------------------------------------------------------------------------------


def test_failed_build_in_a_job(small: Small, slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    args = (
        "build",
        "small-sif",
        "--on",
        "slurm",
        "--account",
        "project_1",
        "--layout",
        str(tmp_path / "file" / "dist"),
    )
    done = small.run(*args, env=slurm.env, check=False)
    assert done.returncode == 10
    assert "the build job of target small-sif failed with exit code 1" in done.stderr
    assert f"cannot write to {tmp_path}/file/dist" in done.stderr


def test_job_refused_by_slurm(small: Small, slurm: Slurm) -> None:
    recipe = small.root / "recipes" / "small-sif.yaml"
    text = recipe.read_text()
    recipe.write_text(text.replace("partition: debug", "partition: closed"))
    try:
        done = small.run(
            "build", "small-sif", "--on", "slurm", "--account", "project_1", env=slurm.env, check=False
        )
    finally:
        recipe.write_text(text)
    assert done.returncode == 10
    assert (
        "Slurm did not run the build job of target small-sif" in done.stderr and "srun: error" in done.stderr
    )
    assert "site.slurm.queues.build" in done.stderr


def test_target_without_scheduler(small: Small) -> None:
    done = small.run("build", "small", "--on", "slurm", check=False)
    assert (
        done.returncode == 2
        and "site.slurm is not set: target small has no compute nodes to build on" in done.stderr
    )


# one lock, four engines -------------------------------------------------------------------------------------

PYTHON = f"{HOME}/lib/python3.11"
RATTLER_RECORDS = "rattler's records and history are worded differently; compared by field below"
WHEELS_BY_PIP = "wheels are installed by pip, not by builder"
MODE_ONLY = "mode only: setuid, setgid and sticky bits get lost in a sandbox"
#: Differences from the layered engine's tree by engine: a pattern of paths, and the reason, which is in
#: docs/engines.md too. A pattern that matches nothing is an error.
EXPLAINED = {
    "docker": {
        rf"{HOME}/conda-meta/[^/]+": RATTLER_RECORDS,
        rf"{PYTHON}/site-packages/[^/]+\.dist-info/(INSTALLER|RECORD)": WHEELS_BY_PIP,
    },
    "apptainer": {
        rf"{HOME}/conda-meta/[^/]+": RATTLER_RECORDS,
        rf"{PYTHON}/site-packages/[^/]+\.dist-info/(INSTALLER|RECORD)": WHEELS_BY_PIP,
        r"etc/hosts": "apptainer empties what it mounts over",
    },
    "cotainr": {
        rf"{HOME}/conda-meta/[^/]+": "conda's records and history; compared by field below",
        rf"{PYTHON}/site-packages/[^/]+\.dist-info/(INSTALLER|RECORD)": WHEELS_BY_PIP,
        rf"{PYTHON}/site-packages/(.+/)?__pycache__(/.+)?": "pip compiles what it installs",
        rf"{HOME}/CACHEDIR\.TAG": "of rattler, which is the stub conda's solver and installer",
        r"opt/cotainr/conda/(bin|etc)(/.*)?": "cotainr's own conda",
        r"environment\.yml": "cotainr leaves the environment file at the root",
        r"etc/hosts": "apptainer empties what it mounts over",
        r"usr/s?bin/.+|tmp|var/(tmp|local|mail)|run/lock": MODE_ONLY,
    },
}


def conda_meta(image: Image | SifImage, store: Store) -> dict[str, dict[str, Any]]:
    """The records of an image's environment, by file name."""
    found = {}
    for member, content in Merge(image_sources(image, store)):
        data = b"".join(content)
        if member.path.startswith(f"{HOME}/conda-meta/") and member.path.endswith(".json"):
            found[member.path.rpartition("/")[2]] = json.loads(data)
    return found


@pytest.fixture(scope="module")
def images(
    small: Small,
    layered_sif: Path,
    docker_built: dict[str, Any],
    apptainer_built: dict[str, Any],
    cotainr_built: dict[str, Any],
) -> dict[str, Image | SifImage]:
    store = Store(small.cache)
    return {
        "layered": read_layout(small.dist, "small"),
        "layered as SIF": open_sif(layered_sif, store),
        "docker": read_layout(small.root / "by-docker", "small"),
        "apptainer": open_sif(Path(apptainer_built["sif"]), store),
        "cotainr": open_sif(Path(cotainr_built["sif"]), store),
    }


def test_file_trees_are_equal(small: Small, images: dict[str, Image | SifImage]) -> None:
    """All engines build the same files from one lock, except for those in EXPLAINED."""
    store = Store(small.cache)
    trees = {name: image_tree(image, store) for name, image in images.items()}
    expected = trees["layered"]
    assert len(expected) > 3000 and f"{PYTHON}/site-packages/greeter.py" in expected
    assert compare_trees(expected, trees["layered as SIF"]) == []
    for engine, explained in EXPLAINED.items():
        used = set()
        for difference in compare_trees(expected, trees[engine]):
            reason = next((p for p in explained if re.fullmatch(p, difference.path)), None)
            assert reason is not None, f"{engine}: {difference}"
            used.add(reason)
            if explained[reason] == MODE_ONLY:
                assert difference.what == ("mode",), difference
        assert used == set(explained), f"{engine}: no longer so: {set(explained) - used}"


def test_conda_records_are_equal(small: Small, images: dict[str, Image | SifImage]) -> None:
    store = Store(small.cache)
    expected = conda_meta(images["layered"], store)
    assert len(expected) > 15
    for engine in ("docker", "apptainer", "cotainr"):
        records = conda_meta(images[engine], store)
        assert records.keys() == expected.keys()
        fields = ["name", "version", "build", "build_number", "subdir", "fn", "depends", "sha256"]
        if engine != "cotainr":  # conda got the archives from builder's own server
            fields += ["url", "requested_specs"]
        for name, record in records.items():
            assert {f: record.get(f) for f in fields} == {f: expected[name].get(f) for f in fields}, (
                engine,
                name,
            )
            assert sorted(record["files"]) == sorted(expected[name]["files"]), (engine, name)


def test_docs_have_every_difference() -> None:
    text = (CLONE / "docs" / "engines.md").read_text()
    for engine, explained in EXPLAINED.items():
        assert f"`{engine}`" in text
        for reason in explained.values():
            assert reason.partition(";")[0].partition(":")[0] in text, (engine, reason)
