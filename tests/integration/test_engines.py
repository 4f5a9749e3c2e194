"""One lock, four engines: each builds the same small environment, and the file trees are equal."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder.build.engines.cotainr import PREFIX
from builder.build.image.archive import docker_load
from builder.core.model import Image, SifImage
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.formats.oci.layout import read_layout
from builder.formats.sif.read import open_sif
from builder.formats.trees.merge import Merge
from tests.integration.conftest import CLONE, Builder, keep_base
from tests.support.channel import index_channel, make_package, serve
from tests.support.compare import compare_trees, image_sources, image_tree
from tests.support.condapackage import PLACEHOLDER
from tests.support.debian_channel import CHANNEL_FOLDER, make_debian_channel
from tests.support.images import unpack
from tests.support.miniforge import cotainr_with, make_installer, write_tool
from tests.support.parts import (
    Apptainer,
    DockerEngine,
    need_root,
)
from tests.support.programs import run_program
from tests.support.slurm import Slurm

#: Four engines build before a comparison.
pytestmark = pytest.mark.timeout(1200)

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
    debian = make_debian_channel(CHANNEL_FOLDER)
    for subdir in ("linux-64", "noarch"):
        shutil.copytree(
            debian / subdir, channel / subdir, ignore=shutil.ignore_patterns("repodata*", "shards")
        )
    make_packages(channel)
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


def make_packages(channel: Path) -> None:
    """Make a package with an entry point, two with the prefix in a text and a binary, and a script."""
    greeter = {"site-packages/greeter.py": GREETER}
    start = ["greet = greeter:main"]
    make_package(
        channel, "greeter", "1.0", noarch="python", depends=["python"], entry_points=start, files=greeter
    )
    make_package(
        channel,
        "textual",
        "1.0",
        files={"bin/where": f"#!/bin/sh\necho {PLACEHOLDER}/share\n"},
        prefix_files={"bin/where": "text"},
        symlinks={"bin/there": "where"},
    )
    blob = {"lib/blob.bin": b"\x7f\0" + PLACEHOLDER.encode() + b"/lib\0end"}
    prefixed = {"lib/blob.bin": "binary"}
    make_package(channel, "binary", "1.0", depends=["textual"], files=blob, prefix_files=prefixed)
    script = {"etc/conda/activate.d/a.sh": 'export SMALL_HOME="$CONDA_PREFIX/share"\n'}
    make_package(channel, "activator", "1.0", files=script)


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
    return run_program(command, full, check=check, stdin="")


@pytest.fixture(scope="module")
def docker_built(small: Small, docker_engine: DockerEngine) -> dict[str, Any]:
    """The JSON of ``builder build small --engine docker``; its image is in the layout ``by-docker``."""
    words = ["build", "small", "--engine", "docker", "--to", f"oci:{small.root}/by-docker"]
    answer: dict[str, Any] = small.json(*words, env={"DOCKER_HOST": docker_engine.host})
    return answer


@pytest.fixture(scope="module")
def apptainer_built(
    small: Small, apptainer: Apptainer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ids")
    args = ("build", "small-sif", "--engine", "apptainer", "--to", f"oci:{small.root}/by-apptainer", "--json")
    answer: dict[str, Any] = json.loads(run(small, *args, env=apptainer.env, folder=folder).stdout)
    return answer


@pytest.fixture(scope="module")
def stub_cotainr(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH with a cotainr that uses the stub of tests/support/miniforge.py."""
    folder = tmp_path_factory.mktemp("cotainr")
    unpack(read_layout(small.dist, "small"), folder / "image", Store(small.cache))
    tool = write_tool(folder / "image" / HOME, folder / "tool.tar")
    installer = make_installer(folder / "miniforge.sh", tool)
    return cotainr_with(folder, installer).parent


@pytest.fixture(scope="module")
def cotainr_env(stub_cotainr: Path, apptainer: Apptainer) -> dict[str, str]:
    return {**apptainer.env, **FOR_COTAINR, "PATH": f"{stub_cotainr}:{apptainer.env['PATH']}"}


@pytest.fixture(scope="module")
def cotainr_built(small: Small, cotainr_env: dict[str, str], slurm: Slurm) -> dict[str, Any]:
    """Built in a job, as on LUMI. With --offline, conda and pip get the locked archives from builder."""
    env = {**cotainr_env, "SLURM_CONF": slurm.env["SLURM_CONF"]}
    args = ["build", "small-sif", "--engine", "cotainr", "--on", "slurm", "--account", "project_1"]
    args += ["--accept-licenses", "--to", f"oci:{small.root}/by-cotainr", "--json"]
    answer: dict[str, Any] = json.loads(run(small, "--offline", *args, env=env).stdout)
    return answer


@pytest.fixture(scope="module")
def layered_sif(small: Small) -> Path:
    small.run("build", "small-sif")
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
    done = small.run("build", target, "--engine", engine, "--to", f"oci:{tmp_path}/dist", "--json", env=env)
    again = json.loads(done.stdout)
    assert again["digest"] == answer["digest"] and "unchanged since the build at" in done.stderr
    if engine == "docker":
        assert read_layout(tmp_path / "dist", "small").digest == answer["digest"]
    else:
        assert sha256_file(tmp_path / "dist" / "small-sif.sif") == answer["digest"]


# cotainr ----------------------------------------------------------------------------------------------------


def test_cotainr_build_in_a_job(cotainr_built: dict[str, Any], slurm: Slurm, small: Small) -> None:
    jobs = slurm.run("scontrol", "--oneliner", "show", "job").stdout.splitlines()
    (job,) = [line for line in jobs if "JobName=builder-" in line and "TimeLimit=00:20:00" in line]
    assert "JobState=COMPLETED" in job and "NodeList=node1" in job and "Partition=debug" in job
    assert Path(cotainr_built["sif"]) == small.root / "by-cotainr" / "small-sif.sif"
    assert cotainr_built["engine"] == "cotainr" and cotainr_built["digest"] == sha256_file(
        Path(cotainr_built["sif"])
    )


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


# one lock, four engines -------------------------------------------------------------------------------------

PYTHON = f"{HOME}/lib/python3.11"
WHEELS_BY_PIP = "wheels are installed by pip, not by builder"
MODE_ONLY = "mode only: setuid, setgid and sticky bits get lost in a sandbox"
#: Differences from the layered engine's tree by engine: a pattern of paths, and the reason, which is in
#: docs/engines.md too. A pattern that matches nothing is an error.
EXPLAINED = {
    "docker": {},
    "apptainer": {r"etc/hosts": "apptainer empties what it mounts over"},
    "cotainr": {
        rf"{HOME}/conda-meta/[^/]+": "conda's records and history; compared by field below",
        rf"{PYTHON}/site-packages/[^/]+\.dist-info/(INSTALLER|RECORD)": WHEELS_BY_PIP,
        rf"{HOME}/(.+/)?__pycache__(/.+)?": "pip compiles what it installs",
        rf"{HOME}/CACHEDIR\.TAG": "of rattler, which is the stub conda's solver and installer",
        r"opt/cotainr/conda/(bin|etc)(/.*)?": "cotainr's own conda",
        r"environment\.yml": "cotainr leaves the environment file at the root",
        r"etc/hosts": "apptainer empties what it mounts over",
        r"opt/builder/entrypoint": "cotainr's own environment script runs the activation scripts",
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
            files, wanted = (
                sorted(file for file in found["files"] if not file.endswith(".pyc"))
                for found in (record, expected[name])
            )
            assert files == wanted, (engine, name)


def test_docs_have_every_difference() -> None:
    text = " ".join((CLONE / "docs" / "engines.md").read_text().split())
    for engine, explained in EXPLAINED.items():
        assert f"`{engine}`" in text
        for reason in explained.values():
            assert reason.partition(";")[0].partition(":")[0] in text, (engine, reason)
