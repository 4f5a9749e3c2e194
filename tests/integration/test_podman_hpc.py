"""The command lines for podman-hpc: the real program reads them, and hands podman what builder means."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.suite import Suite
from tests.integration.conftest import CLONE
from tests.support.parts import clean_environment, need, part_folder, podman_environment
from tests.support.podman_hpc import podman_hpc, program_environment
from tests.support.programs import run_program
from tests.support.rootfs import PROGRAMS, make_rootfs

GOLDEN = CLONE / "tests/golden"
COMMAND = ["python", "train.py", "--note", 'it\'s "100 $" & more']
IMAGE = "registry.nersc.gov/m558/superfacility/synapse-ml:latest"
#: Notes what podman gets. podman-hpc asks it for its options, and in a shared run for its container.
PODMAN = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
if "--help" in words[:2]:
    os.execv("{podman}", ["podman", *words])
if {{"run", "exec"}} & set(words[:1]):
    open("{log}", "a").write(json.dumps(words) + "\\n")
"""
#: Options of podman whose value is the next word.
_WITH_VALUE = {"-e", "--env", "-v", "-w", "--annotation", "--cgroup-manager", "--hooks-dir", "--log-level"}
_WITH_VALUE |= {"--name", "--root", "--runroot", "--security-opt", "--storage-opt"}
#: The job's variables. In a shared run, the first rank of a node starts the container.
JOB = {
    "BUILDER_IMAGE": "cafe",
    "SLURM_SUBMIT_DIR": "/pscratch/my job",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURMD_NODENAME": "nid001",
    "MASTER_ADDR": "nid001",
    "MASTER_PORT": "29500",
    "NCCL_DEBUG": "INFO",
}


@dataclass
class Call:
    """A command line of podman's run or exec."""

    words: Sequence[str]
    options: dict[str, list[str]] = field(default_factory=dict)
    image: str = ""
    command: Sequence[str] = ()

    @classmethod
    def of(cls, words: Sequence[str]) -> Call:
        """Reads a command line as podman does: options, image, command."""
        call, rest = cls(words), list(words[1:])
        while rest and rest[0].startswith("-"):
            name, _, value = rest.pop(0).partition(" ")  # podman-hpc's modules have "-e NAME" in one word
            if not value and name in _WITH_VALUE:
                value = rest.pop(0)
            call.options.setdefault(name, []).append(value)
        call.image, call.command = rest[0], rest[1:]
        return call

    @property
    def variables(self) -> dict[str, str | None]:
        """Its variables; None is the value of the host."""
        split = [word.partition("=") for word in self.options["-e"]]
        return {name: value if equals else None for name, equals, value in split}


class Program:
    """podman-hpc, with a podman that notes its command line."""

    def __init__(self, folder: Path) -> None:
        (podman,) = need("podman")
        need("runc")
        self.log = folder / "log"
        self.env = clean_environment() | program_environment(folder / "hpc")
        (folder / "bin").mkdir()
        (folder / "bin/podman").write_text(PODMAN.format(python=sys.executable, podman=podman, log=self.log))
        (folder / "bin/podman").chmod(0o755)
        self.env["PATH"] = f"{folder / 'bin'}:{self.env['PATH']}:{clean_environment()['PATH']}:/usr/sbin"

    def calls(self, line: str, more: Mapping[str, str] | None = None) -> list[Call]:
        """Runs a line of shell; returns what podman got."""
        self.log.write_text("")
        run_program(["bash", "-euc", line], self.env | dict(more or {}))
        return [Call.of(json.loads(words)) for words in self.log.read_text().splitlines()]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def task(name: str) -> str:
    """The lines of a golden job that a process runs."""
    text = (GOLDEN / name).read_text()
    return f"task() {{\n{text.partition('task() {')[2].partition('export -f task')[0]}\ntask"


def modules(call: Call) -> set[str]:
    """The modules of podman-hpc that a command line loads, by their variables."""
    return {name for name in call.variables if name.startswith("ENABLE_")}


def test_run(program: Program) -> None:
    """The module for GPUs, the site's mount and the command arrive."""
    (call,) = program.calls((GOLDEN / "perlmutter.run.txt").read_text())
    assert (call.words[0], call.image, list(call.command)) == ("run", IMAGE, COMMAND)
    assert call.options["-v"] == ["/etc/localtime:/etc/localtime"] and modules(call) == {"ENABLE_GPU"}


def test_salloc(program: Program) -> None:
    """The same in a folder with a blank, with a terminal."""
    line = (GOLDEN / "perlmutter.salloc.txt").read_text().splitlines()[1]
    (call,) = program.calls(line, JOB)
    assert (call.image, list(call.command)) == (IMAGE, COMMAND) and "-it" in call.options
    folder = JOB["SLURM_SUBMIT_DIR"]
    assert call.options["-w"] == [folder] and f"{folder}:{folder}" in call.options["-v"]


#: podman-hpc 1.2.2 with a module that has ``shared_run``.
shared_run = pytest.mark.skipif(sys.version_info >= (3, 14), reason="--mpi needs Python before 3.14")


@shared_run
def test_mpi(program: Program) -> None:
    """With the host's MPI, one process of a node starts the container, and all run their command in it."""
    line = task("perlmutter.mpi.sh").replace("/dev/cxi_sbl", "/dev/null")
    run, inside = program.calls(line, JOB)
    assert (run.words[0], run.image, inside.words[0]) == ("run", "cafe", "exec")
    assert list(inside.command) == COMMAND
    folder = JOB["SLURM_SUBMIT_DIR"]
    assert f"{folder}:{folder}" in run.options["-v"] and "--device=/dev/null" in run.options
    assert modules(run) == {"ENABLE_GPU", "ENABLE_MPICH_SS", "ENABLE_NCCL_CU12"}
    own = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "FI_PROVIDER": "cxi"}
    for call in (run, inside):
        assert own.items() <= call.variables.items() and call.variables["NCCL_DEBUG"] is None
    libraries = inside.variables["LD_LIBRARY_PATH"]
    assert libraries and {"mpich", "nccl-plugin"} <= {
        part for p in libraries.split(":") for part in p.split("/")
    }
    assert inside.options["-w"] == [folder]


def test_jupyter(program: Program) -> None:
    """The server's function and its arguments arrive."""
    (call,) = program.calls(task("perlmutter.jupyter.sh").replace("$SLURM_SUBMIT_DIR/.b", "/tmp/b"), JOB)
    assert call.image == "cafe" and call.command[:2] == ["bash", "-c"]
    assert call.command[2].startswith("jupyter_server ()")
    assert call.command[3:6] == ["jupyter", "nid001", "29500"]


#: podman-hpc 1.2.2 starts a process with os.environ as an argument, which forkserver cannot pickle.
_MPI = pytest.mark.skipif(sys.version_info >= (3, 14), reason="podman-hpc --mpi needs Python before 3.14")


@pytest.mark.parametrize("extra", ["", pytest.param("--mpi ", marks=_MPI)])
def test_words_like_options(extra: str, program: Program, tmp_path: Path) -> None:
    """Words of the command that podman-hpc knows as its options belong to the command."""
    words = ["python", "train.py", "--gpu", "--help", "--nccl", "--mpi", "--", "run", "x"]
    printed = run_program(
        [sys.executable, "-m", "builder", "run", "perlmutter", "--print", "--", *words],
        clean_environment(PYTHONPATH=CLONE, HOME=tmp_path),
        cwd=CLONE,
    ).stdout
    assert printed.startswith("podman-hpc run --rm ")
    *_, call = program.calls(printed.replace("run --rm ", f"run --rm {extra}", 1), JOB)
    assert list(call.command) == words
    assert ("ENABLE_NCCL" in call.variables, call.words[0]) == (False, "exec" if extra else "run")


def test_modules_of_the_package(program: Program) -> None:
    """Its only network module is ``nccl``: those of the site file are NERSC's own."""
    shipped = Path(program.env["PODMANHPC_MODULES_DIR"])
    assert {path.stem for path in shipped.glob("nccl*")} == {"nccl", "nccl-cu12", "nccl-cu13"}
    (shipped / "nccl-cu12.yaml").unlink()
    (call,) = program.calls("podman-hpc run --nccl-cu12 -- image true")
    assert "--nccl-cu12" in call.options, "podman gets it, and does not know it"


# with a podman that starts containers -------------------------------------------------------------

#: A target whose owner adds options that docker accepts beside those of the site.
RECIPE = """\
base: debian:bookworm
lock: t.lock.yml
site:
  name: perlmutter
  runtime: {{options: [--network=host, --shm-size=8g]}}
  mpi: {{options: [{module}]}}
"""
#: Stands for python and torchrun in the image.
SAY = "#!/bin/sh\necho ran $0 in $PWD with /dev/shm of $(ls -i /dev | grep shm)\n"


@pytest.fixture(params=["podman", "sid"])
def real(request: pytest.FixtureRequest) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder and the variables of podman-hpc with podman 4.3 of this machine, and with 5.8 of sid."""
    with part_folder("hpc") as folder:
        if request.param == "podman":
            env = podman_hpc(folder / "hpc", request.getfixturevalue("podman")).env
        else:
            suite: Suite = request.getfixturevalue("sid")
            env = podman_environment(folder, folder) | program_environment(folder / "hpc")
            env["PODMANHPC_USE_DEFAULT_ARGS"] = "no"  # they name programs that the tree does not have
            script = folder / "podman"
            inside = " ".join(map(str, suite.command("/usr/bin/podman")))
            script.write_text(f'#!/bin/sh\nexec {inside} "$@"\n')
            script.chmod(0o755)
            env["PATH"] = f"{folder}:{env['PATH']}:{os.environ['PATH']}"
        tree = make_rootfs(folder / "rootfs", (*PROGRAMS, "sleep", "grep"))
        for name in ("python", "torchrun"):
            (tree / "bin" / name).write_text(SAY)
            (tree / "bin" / name).chmod(0o755)
        run_program(["tar", "--create", f"--file={folder}/tiny.tar", f"--directory={tree}", "."], env)
        run_program(["podman-hpc", "import", f"{folder}/tiny.tar", "tiny"], env)
        yield folder, env


@pytest.mark.parametrize(
    ("launcher", "module"),
    [
        ("srun", "--mpi"),
        ("torchrun", "--mpi"),
        pytest.param("mpi", "--mpi", marks=shared_run),
        pytest.param("mpi", "--cuda-mpi", marks=shared_run),
    ],
)
def test_starts(launcher: str, module: str, real: tuple[Path, dict[str, str]]) -> None:
    """A process of a job starts: podman (4.3.1, 5.8.6) refuses a second ``--network=host``, which the modules
    of podman-hpc 1.2.2 bring, and ``--shm-size`` beside ``--ipc=host``.
    """
    folder, env = real
    (folder / "recipes").mkdir()
    (folder / "recipes/t.yaml").write_text(RECIPE.format(module=module))
    (folder / "work").mkdir()
    options = ["--account", "m1", "--nodes", "2", "--launcher", launcher, "--image", "localhost/tiny"]
    script = run_program(
        [sys.executable, "-m", "builder", "--project", folder, "job", "t", *options, "--", "python", "x"],
        clean_environment(PYTHONPATH=CLONE, HOME=folder),
    ).stdout
    lines = script.partition("task() {")[2].partition("export -f task")[0]
    variables = {"SLURM_SUBMIT_DIR": f"{folder}/work", "BUILDER_IMAGE": "localhost/tiny"}
    variables["PODMANHPC_WAIT_TIMEOUT"] = "120"
    line = f"task() {{{lines.replace('/dev/cxi_sbl', '/dev/null')}\ntask"
    done = run_program(["bash", "-euc", line], env | JOB | variables, check=False)
    program = "torchrun" if launcher == "torchrun" else "python"
    assert f"ran /bin/{program} in {folder}/work" in done.stdout, done.stderr
