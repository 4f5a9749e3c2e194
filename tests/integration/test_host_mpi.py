"""Jobs with the host's MPI: Debian's MPICH under a real Slurm, and a program in a SIF that finds libmpi by
DT_RPATH, as conda's programs do.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.conftest import CLONE, Builder, keep_base
from tests.support.channel import index_channel, make_package
from tests.support.debian_channel import mirror_line
from tests.support.parts import Apptainer, need, part_missing, shared_library
from tests.support.programs import run_program
from tests.support.slurm import Slurm

LIBMPICH = Path("/usr/lib/x86_64-linux-gnu/libmpich.so.12")
SITE = """\
base: debian:bookworm
platform: linux-64
format: sif
virtual_packages: {{__glibc: "2.36"}}
site:
  title: Here
  images: {folder}/project/dist
  runtime: {{kind: apptainer, clean_env: true}}
  node: {{cores: 2, tasks: 1}}
  launcher: mpi
  slurm:
    account: optional
    time: "00:05:00"
    queues: {{cpu: {{partition: debug}}}}
  mpi:
    abi: mpich
    binds: ["{folder}/host:/host/mpi"]
    env: {{LD_LIBRARY_PATH: /host/mpi}}
    srun: [--mpi=pmi2]
"""
#: Targets: MPICH of conda-forge, the same with the host's preloaded, and conda-forge's empty package for it.
RECIPES = {
    "own": "site: here\nenvironment: own.yml\n",
    "preload": "extends: own\nsite: {mpi: {env: {LD_PRELOAD: /host/mpi/libmpi.so.12}}}\n",
    "external": "site: here\nenvironment: external.yml\n",
}
ENVIRONMENT = "channels: [{channels}]\ndependencies: [ring, mpich=4]\n"
OWN = "the image has its own MPI, mpich 4.3.2, but jobs on Here use the host's (mpich)"


@dataclass
class Cluster:
    """A project whose targets are built, and a Slurm to run them."""

    slurm: Slurm
    builder: Builder
    env: dict[str, str]
    warnings: dict[str, str]
    """What each build printed."""

    def job(self, target: str, folder: Path) -> tuple[str, list[str]]:
        """Runs the program on two nodes; returns what ``builder job`` printed, and the ranks' lines."""
        command = self.builder.command("job", target, "--nodes", "2", "--submit", "--", "ring")
        submitted = run_program(command, self.env, cwd=folder)
        number = submitted.stdout.strip()
        state = self.slurm.wait(number)
        (output,) = folder.glob(f"*-{number}.out")
        text = output.read_text()
        assert state == ["COMPLETED"], text
        return submitted.stderr, sorted(re.findall(r"rank .*", text))


def host_mpi(folder: Path) -> None:
    """Puts Debian's MPICH, and what it needs beside glibc, into a folder, as ``libmpi.so.12``."""
    folder.mkdir()
    shutil.copy(LIBMPICH, folder / "libmpi.so.12")
    printed = subprocess.run(["ldd", LIBMPICH], capture_output=True, text=True, check=True).stdout
    for path in re.findall(r"=> (/\S+)", printed):
        if not re.match(r"lib(c|m)\.so", Path(path).name):
            shutil.copy(path, folder)


def make_channel(folder: Path, work: Path) -> None:
    """Makes conda-forge and its label: the program, MPICH, and an empty package of it."""
    (gcc,) = need("gcc")
    library, program = work / "libmpi.so.12", work / "ring"
    shared_library(CLONE / "tests/support/mpi_alone.c", library, "-Wl,-soname,libmpi.so.12")
    rpath = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../lib"
    source = CLONE / "tests/support/mpi_ring.c"
    subprocess.run([gcc, source, library, rpath, "-o", program], check=True)
    make_package(folder, "ring", files={"bin/ring": program.read_bytes()}, depends=["mpich"])
    make_package(folder, "mpich", "4.3.2", "h1_105", files={"lib/libmpi.so.12": library.read_bytes()})
    make_package(folder / "label/mpi-external", "mpich", "4.3.2", "h2_105")
    index_channel(folder)
    index_channel(folder / "label/mpi-external")


def make_project(root: Path) -> None:
    """Makes a project with the site and the targets."""
    (root / "recipes").mkdir(parents=True)
    (root / "sites").mkdir()
    (root / "sites/here.yaml").write_text(SITE.format(folder=root.parent))
    for name, text in RECIPES.items():
        (root / f"recipes/{name}.yaml").write_text(text)
    (root / "own.yml").write_text(ENVIRONMENT.format(channels="conda-forge"))
    both = "conda-forge/label/mpi-external, conda-forge"
    (root / "external.yml").write_text(ENVIRONMENT.format(channels=both))


@pytest.fixture(scope="module")
def cluster(module_folder: Path, base_cache: Path, slurm: Slurm, apptainer: Apptainer) -> Cluster:
    if not LIBMPICH.exists():
        part_missing("libmpich12 is not installed (make apt-test)")
    host_mpi(module_folder / "host")
    make_channel(module_folder / "conda-forge", module_folder)
    make_project(module_folder / "project")
    builder = Builder(module_folder / "project", keep_base(base_cache, module_folder / "cache"))
    mirrors = {"BUILDER_MIRRORS": mirror_line(module_folder / "conda-forge")}
    printed = {name: builder.run("build", name, env=mirrors).stderr for name in RECIPES}
    env = {**slurm.env, **apptainer.env, "SLURM_CONF": slurm.env["SLURM_CONF"], "PYTHONPATH": str(CLONE)}
    return Cluster(slurm, builder, env, printed)


def test_own(cluster: Cluster, tmp_path: Path) -> None:
    """LD_LIBRARY_PATH does not replace a library that DT_RPATH finds: processes are alone; builder warns."""
    printed, ranks = cluster.job("own", tmp_path)
    assert ranks == ["rank 0 of 1 has 0"] * 2
    for warning in (printed, cluster.warnings["own"]):
        assert (
            OWN in warning
            and "write conda-forge/label/mpi-external first below channels: in own.yml" in warning
        )


@pytest.mark.parametrize("target", ["external", "preload"])
def test_host(target: str, cluster: Cluster, tmp_path: Path) -> None:
    """Without a library of its own in the image, or preloaded, the host's MPI connects the processes."""
    printed, ranks = cluster.job(target, tmp_path)
    assert ranks == ["rank 0 of 2 has 42", "rank 1 of 2 has 42"]
    assert OWN not in printed + cluster.warnings[target]
