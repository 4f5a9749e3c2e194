"""SIFs that builder wrote, used by Apptainer and siftool: both layouts, bases of Apptainer, and refusals."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.build.bases.image import WantedBase
from builder.build.bases.pack import pack_tar
from builder.build.bases.resolve import open_base, resolve_base
from builder.build.run.apptainer import ApptainerRunner
from builder.build.run.base import RunOptions
from builder.build.run.docker import DockerRunner
from builder.build.run.podman import PodmanRunner
from builder.core.errors import RunnerError
from builder.core.model import Image, SifImage
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.core.workspace import Workspace
from builder.formats.oci.layout import read_layout
from builder.formats.sif.read import read_sif
from builder.formats.sif.write import write_sif
from tests.integration.conftest import Builder, working_runner
from tests.support import image_kit, parts
from tests.support.compare import compare_trees, image_tree
from tests.support.image_kit import layer
from tests.support.rootfs import make_rootfs

pytestmark = pytest.mark.apptainer
NUMPY = "import numpy; print(numpy.__version__, numpy.zeros(2).sum(), numpy.ones(2).sum())"


@dataclass
class Sifs:
    """Target cpu as a SIF of each layout, and the builder that made them."""

    builder: Builder
    flat: Path
    layered: Path
    oci: str

    def __getitem__(self, layout: str) -> Path:
        return {"flat": self.flat, "layered": self.layered}[layout]


@pytest.fixture(scope="module")
def sifs(cpu: Builder, cpu_sif: Path, module_folder: Path) -> Sifs:
    layered = module_folder / "layered.sif"
    oci = f"oci:{cpu.root}/dist:cpu"
    _write_layered(cpu, layered, cpu.cache, jobs=2)
    return Sifs(cpu, cpu_sif, layered, oci)


def _write_layered(cpu: Builder, path: Path, cache: Path, jobs: int) -> None:
    image = read_layout(cpu.root / "dist", "cpu")
    settings = Settings(cache, cache / "tmp", jobs)
    write_sif(image, path, Workspace(settings, Store(cache)), layout="layered", compression="zstd")


# target cpu -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fuse")
@pytest.mark.parametrize("layout", ["flat", "layered"])
def test_numpy(
    sifs: Sifs, layout: str, apptainer: parts.Apptainer, ordinary_user: parts.OrdinaryUser
) -> None:
    """numpy computes in both layouts, for root and for an ordinary user."""
    sif = sifs[layout]
    done = apptainer.run("exec", "--containall", "--cleanenv", sif, "python", "-c", NUMPY)
    assert done.stdout.split()[1:] == ["0.0", "2.0"]
    env = parts.apptainer_environment(apptainer.path, ordinary_user.home)
    command = [apptainer.path, "run", "--containall", "--cleanenv", sif, "python", "-c", NUMPY]
    assert ordinary_user.run(command, env, readable=[sif]).stdout == done.stdout


@pytest.mark.usefixtures("fuse")
@pytest.mark.parametrize("layout", ["flat", "layered"])
def test_inspect_and_shell(sifs: Sifs, layout: str, apptainer: parts.Apptainer) -> None:
    """apptainer inspect shows labels, scripts and the definition; a shell has the environment."""
    sif = sifs[layout]
    labels = json.loads(apptainer.run("inspect", "--json", "--labels", sif).stdout)["data"]["attributes"][
        "labels"
    ]
    assert labels["org.builder.target"] == ("cpu-sif" if layout == "flat" else "cpu")
    assert labels["org.builder.python"].startswith("3.11")
    assert 'exec /opt/builder/entrypoint "$@"' in apptainer.run("inspect", "--runscript", sif).stdout
    assert "export CONDA_PREFIX=/opt/conda" in apptainer.run("inspect", "--environment", sif).stdout
    assert "Bootstrap:" in apptainer.run("inspect", "--deffile", sif).stdout
    shell = subprocess.run(
        [apptainer.path, "shell", "--cleanenv", sif],
        env=apptainer.env,
        input="command -v python",
        capture_output=True,
        text=True,
    )
    assert "/opt/conda/bin/python" in shell.stdout
    paths = apptainer.run(
        "exec", "--cleanenv", sif, "sh", "-c", "echo $PATH; echo $LD_LIBRARY_PATH"
    ).stdout.splitlines()
    assert paths[0].startswith("/opt/conda/bin:/usr/")
    assert paths[1] == "/.singularity.d/libs"


# tiny images ------------------------------------------------------------------------------------------------


DEFINITION = """\
Bootstrap: localimage
From: {tree}
%labels
    site.base yes
%environment
    export ROCM_PATH=/opt/rocm
    export PYTHONPATH=/base/lib PYTHONHOME=$(echo /base)
    export PATH=/opt/rocm/bin:$PATH
%runscript
    echo base
"""


@dataclass
class Tiny:
    """A SIF that Apptainer built, and an image of packages above it."""

    base: SifImage
    image: Image
    settings: Settings
    store: Store


@pytest.fixture(scope="module")
def tiny(apptainer: parts.Apptainer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    folder = tmp_path_factory.mktemp("tiny")
    tree = make_rootfs(folder / "tree")
    (tree / "opt/conda/bin").mkdir(parents=True)
    (tree / "opt/conda/bin/old").write_text("old")
    (tree / "opt/conda/bin/both").write_text("old")
    (folder / "base.def").write_text(DEFINITION.format(tree=tree))
    apptainer.run("build", folder / "base.sif", folder / "base.def")
    settings = image_kit.settings(folder)
    store = Store(settings.cache)
    locked = resolve_base(f"sif:{folder}/base.sif", WantedBase("amd64"), Workspace(settings, store))
    base = open_base(locked, WantedBase("amd64"), Workspace(settings, store))
    assert base.sif is not None

    def member(name: str, data: bytes | None = None) -> object:
        return image_kit.member(name, data, mode=0o755)

    parents = [member("opt/"), member("opt/conda/"), member("opt/conda/bin/")]
    hello = b"#!/bin/sh\necho hello $0 $ROCM_PATH $MINE\n"
    layers = [
        layer(store, *parents[:2], member("opt/conda/.wh..wh..opq", b""), title="environment prefix"),  # type: ignore[arg-type]
        layer(store, *parents, member("opt/conda/bin/hello", hello), title="pip hello 1.0"),  # type: ignore[arg-type]
        layer(store, *parents, member("opt/conda/bin/both", b"new"), title="conda both 1.0"),  # type: ignore[arg-type]
    ]
    image = image_kit.image_above(base, layers, env={"MINE": "it's"}, entrypoint=(), cmd=("hello",))
    yield Tiny(base.sif, image, settings, store)


@pytest.mark.usefixtures("fuse")
@pytest.mark.parametrize("layout", ["flat", "layered"])
def test_base_of_apptainer(
    tiny: Tiny, layout: str, apptainer: parts.Apptainer, ordinary_user: parts.OrdinaryUser, tmp_path: Path
) -> None:
    """Packages above a SIF that Apptainer built run, in both layouts."""
    path = tmp_path / "a.sif"
    sif = write_sif(tiny.image, path, Workspace(tiny.settings, tiny.store), layout=layout, base=tiny.base)  # type: ignore[arg-type]
    show = "cat /etc/builder-test; ls /opt/conda/bin; cat /opt/conda/bin/both; echo; echo $PATH"
    show += '; echo "${PYTHONPATH-none}${PYTHONHOME-none}"'
    commands = [["run", "--cleanenv", path], ["exec", "--cleanenv", path, "sh", "-c", show]]
    expected = [
        "hello /opt/conda/bin/hello /opt/rocm it's\n",
        "tiny\nboth\nhello\nnew\n/opt/conda/bin:/opt/rocm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nnonenone\n",
    ]
    env = parts.apptainer_environment(apptainer.path, ordinary_user.home)
    for command, wanted in zip(commands, expected, strict=True):
        assert apptainer.run(*command).stdout == wanted
        assert ordinary_user.run([apptainer.path, *command], env, readable=[tmp_path]).stdout == wanted
    labels = apptainer.run("inspect", "--labels", path).stdout
    assert "site.base: yes" in labels
    assert "org.builder.target: tiny" in labels
    assert "label-schema" not in labels and "label-schema" in apptainer.run("inspect", tiny.base.path).stdout
    if layout == "layered":  # the base's partition is copied
        own, theirs = read_sif(path).partitions[0], read_sif(tiny.base.path).partitions[0]
        with path.open("rb") as a, tiny.base.path.open("rb") as b:
            a.seek(own.offset)
            b.seek(theirs.offset)
            assert own.size == theirs.size
            assert a.read(own.size) == b.read(theirs.size)
    else:
        other = write_sif(
            tiny.image,
            tmp_path / "b.sif",
            Workspace(tiny.settings, tiny.store),
            layout="layered",
            base=tiny.base,
        )
        assert compare_trees(image_tree(sif, tiny.store), image_tree(other, tiny.store)) == []


def test_reads_sif_of_apptainer(tiny: Tiny, apptainer: parts.Apptainer, tmp_path: Path) -> None:
    """Apptainer's sandbox and builder's reading of a SIF have the same files."""
    apptainer.run("build", "--sandbox", tmp_path / "sandbox", tiny.base.path)
    tree = image_tree(tiny.base, tiny.store)
    tree = {
        p: node for p, node in tree.items() if p and not p.startswith(".singularity.d")
    }  # which a build adds to
    found = {str(p.relative_to(tmp_path / "sandbox")) for p in (tmp_path / "sandbox").rglob("*")}
    assert {p for p in found if not p.startswith(".singularity.d")} == tree.keys()
    for path, node in tree.items():
        real = tmp_path / "sandbox" / path
        if node.type == "file":
            assert f"sha256:{node.sha256}" == sha256_file(real)
        elif node.type == "symlink":
            assert node.target == os.readlink(real)


@pytest.fixture
def layered(tiny: Tiny, tmp_path: Path) -> SifImage:
    """A layered SIF on an OCI base."""
    store = tiny.store
    tree = make_rootfs(tmp_path / "rootfs")
    tar = tmp_path / "rootfs.tar"
    subprocess.run(["tar", "--owner=0", "--group=0", "-C", tree, "-cf", tar, "."], check=True)
    base = image_kit.base(pack_tar([tar.read_bytes()], store, 2, "base"))
    image = image_kit.image_above(base, tiny.image.layers, env={"MINE": "x"}, cmd=("hello",), entrypoint=())
    return write_sif(image, tmp_path / "layered.sif", Workspace(tiny.settings, store), layout="layered")


@pytest.mark.usefixtures("fuse")
def test_host_variables(layered: SifImage, apptainer: parts.Apptainer) -> None:
    """The image's variables win over the host's, and --env over the image's."""
    env = {**apptainer.env, "CONDA_PREFIX": "/host/conda", "PYTHONNOUSERSITE": "", "OMP_NUM_THREADS": "3"}
    command = [apptainer.path, "exec", "--env", "MINE=a b", layered.path, "sh", "-c"]
    show = 'echo "$CONDA_PREFIX|$PYTHONNOUSERSITE|$MINE|$OMP_NUM_THREADS"'
    shown = subprocess.run([*command, show], env=env, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "/opt/conda|1|a b|3"
    shown = subprocess.run(
        [*command[:2], "--cleanenv", *command[4:], show], env=env, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "/opt/conda|1|x|"


@pytest.mark.usefixtures("fuse")
def test_runtime_without_overlays(
    layered: SifImage, tiny: Tiny, apptainer: parts.Apptainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime that does not mount overlays says so, with a hint."""
    installed = next(
        p for p in apptainer.path.resolve().parents if (p / "etc/apptainer/apptainer.conf").exists()
    )
    conf = tmp_path / "apptainer.conf"
    conf.write_text(
        (installed / "etc/apptainer/apptainer.conf")
        .read_text()
        .replace("enable overlay = yes", "enable overlay = no")
    )
    done = apptainer.run("--config", conf, "exec", layered.path, "sh", "-c", "echo here", check=False)
    assert done.returncode == 1
    assert "did not mount the overlay partitions" in done.stderr
    assert "sif: {layout: flat}" in done.stderr
    for name, value in apptainer.env.items():
        monkeypatch.setenv(name, value)
    runner = ApptainerRunner(Workspace(tiny.settings, tiny.store))
    assert runner.run(layered, []).stdout == "hello /opt/conda/bin/hello x\n"
    monkeypatch.setenv("APPTAINER_CONFIG_FILE", str(conf))
    with pytest.raises(RunnerError, match=r"did not mount the overlay partitions of .*layered\.sif") as e:
        runner.run(layered, [])
    assert "sif: {layout: flat}" in e.value.hint


@pytest.mark.usefixtures("fuse")
def test_every_runner(layered: SifImage, tiny: Tiny, use_runner: Callable[[str], None]) -> None:
    """Runners for SIFs run it; docker and podman refuse it with a hint."""
    use_runner("apptainer")
    work = Workspace(tiny.settings, tiny.store)
    for runner in (working_runner("apptainer", work), working_runner("userns", work)):
        assert runner.run(layered, []).stdout == "hello /opt/conda/bin/hello x\n"
        done = runner.run(
            layered,
            ["sh", "-c", 'echo "$1" $EXTRA; cat /opt/conda/bin/both; exit 7', "-", "a  b"],
            RunOptions(env={"EXTRA": "$e"}),
        )
        assert (done.returncode, done.stdout) == (7, "a  b $e\nnew")
        assert (
            runner.run(layered, ["-c", "pwd"], RunOptions(entrypoint=["sh"], workdir="/etc")).stdout
            == "/etc\n"
        )
    for refusing in (DockerRunner(work), PodmanRunner(work)):
        with pytest.raises(
            RunnerError, match=f"{refusing.name} does not run SIFs, and .*layered.sif is one"
        ) as e:
            refusing.run(layered, ["true"])
        assert "--runner userns" in e.value.hint


def test_userns_runs_sif_of_apptainer(tiny: Tiny) -> None:
    """The user-namespace runner runs a SIF that Apptainer built."""
    runner = working_runner("userns", Workspace(tiny.settings, tiny.store))
    assert (
        runner.run(tiny.base, ["sh", "-c", "echo $ROCM_PATH"], RunOptions(entrypoint=[])).stdout
        == "/opt/rocm\n"
    )
    assert runner.run(tiny.base, []).stdout == "base\n"
