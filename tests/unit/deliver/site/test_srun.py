"""Containers that a plugin of srun starts: what is common, and pyxis."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import ConfigError, RunnerError, UsageError
from builder.deliver.site.job_plan import plan_job, salloc
from builder.deliver.site.request import JobRequest
from builder.deliver.site.shell import ShellText
from builder.deliver.site.srun import SrunContainer, engine_image
from builder.lock.config.recipe import Recipe
from tests.unit.deliver.site.test_edf import job_script, make_recipe

RUNTIME: dict[str, Any] = {
    "kind": "pyxis",
    "binds": ["/store", "/data:/input:ro"],
    "env": {"CACHE": "$SCRATCH/cache", "MELLANOX_VISIBLE_DEVICES": "all"},
}


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return make_recipe(tmp_path, runtime=RUNTIME)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("docker://ghcr.io/me/x:1", "ghcr.io#me/x:1"),
        ("docker://localhost:5000/x@sha256:00", "localhost:5000#x@sha256:00"),
        ("docker://library/debian", "library/debian"),
        ("/x/y.sqsh", "/x/y.sqsh"),
        ("y.sqsh", "./y.sqsh"),
        (ShellText("$SCRATCH/y.sqsh"), "$SCRATCH/y.sqsh"),
    ],
)
def test_engine_image(text: str, expected: str) -> None:
    """The registry is separated by # for enroot, and a relative path begins with a dot."""
    assert engine_image(text) == expected


@pytest.mark.parametrize("option", ["--environment", "--container-image"])
def test_require_plugin(option: str, tmp_path: Path) -> None:
    """srun is asked for its options."""
    container = SrunContainer("x", (f"{option}=/a.sqsh",), {})
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    (tmp_path / "srun").write_text("#!/bin/sh\necho --export\n")
    (tmp_path / "srun").chmod(stat.S_IRWXU)
    with pytest.raises(RunnerError, match=f"no option {option}: x is not installed"):
        container.require_plugin(env)
    (tmp_path / "srun").write_text(f"#!/bin/sh\necho {option}=FILE\n")
    container.require_plugin(env)
    with pytest.raises(RunnerError, match="srun is not installed"):
        container.require_plugin({"PATH": str(tmp_path / "none")})


# pyxis ------------------------------------------------------------------------------------------------------


def container(script: str) -> list[str]:
    """The options for the container in a script."""
    return script.partition("container=(")[2].partition(")\n")[0].replace("\\\n", "").split()


def test_options(recipe: Recipe) -> None:
    """srun gets the container's options, in one array."""
    script = job_script(recipe, "python", "t.py", env={"OF_HOST": None}, gpus=4)
    named = ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "MELLANOX_VISIBLE_DEVICES", "OF_HOST"]
    assert container(script) == [
        '"--container-image=$BUILDER_IMAGE"',
        "--container-writable",
        *(f"--no-container-{name}" for name in ("mount-home", "remap-root", "entrypoint")),
        '"--container-mounts=/store,/data:/input:ro,$SLURM_SUBMIT_DIR"',
        '"--container-workdir=$SLURM_SUBMIT_DIR"',
        f"--container-env={','.join(named)}",
    ]
    assert 'BUILDER_IMAGE="$SCRATCH/ce-images/engine.sqsh"' in script and "*--container-image*" in script
    start = 'srun "${cores[@]}" --kill-on-bad-exit=1 "${container[@]}" bash -c "$(declare -f task); task"'
    assert start in script


def test_variables(recipe: Recipe) -> None:
    """Variables of enroot's hooks are exported; the others precede the command."""
    script = job_script(recipe, "python", "t.py", env={"MINE": "a $b"}, gpus=4)
    exported = script.partition("image's PATH.\n")[2].partition("\n    # shellcheck")[0].splitlines()
    assert [line.strip() for line in exported] == [
        "export ENROOT_LOGIN_SHELL=no",
        "export NVIDIA_VISIBLE_DEVICES=all",
        "export NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        "export MELLANOX_VISIBLE_DEVICES=all",
    ]
    for variable in ("RANK=$SLURM_PROCID", "MINE=a \\$b", "CACHE=$SCRATCH/cache"):
        assert f'"{variable}"' in script


def test_files(recipe: Recipe) -> None:
    """The data and the file with variables are mounted; torchrun runs once per node."""
    request = {"data": "set.tar", "env_file": "secrets", "launcher": "torchrun", "nodes": 2}
    script = job_script(recipe, "python", "t.py", **request)
    mounts = next(word for word in container(script) if "-mounts=" in word)
    assert mounts.endswith('$BUILDER_DATA,$SLURM_SUBMIT_DIR/secrets:$SLURM_SUBMIT_DIR/secrets:ro"')
    assert "torchrun" in script and "RANK=" not in script


def test_shell(recipe: Recipe, tmp_path: Path) -> None:
    """shellcheck finds nothing in the script."""
    (tmp_path / "job.sh").write_text(job_script(recipe, "python", "it's $x"))
    shellcheck = shutil.which("shellcheck")
    command = [shellcheck, "--severity=style"] if shellcheck else ["bash", "-n"]
    done = subprocess.run([*command, tmp_path / "job.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("folder", ["/x$(id)", "/x`id`", '/x"', "/x\\"])
def test_shell_code(recipe: Recipe, folder: str) -> None:
    """enroot reads a mount as shell code: such a folder is refused, for a shell on the node, too."""
    for plan in (plan_job, salloc):
        with pytest.raises(UsageError, match="a mount is part of a shell script"):
            plan(recipe, JobRequest(command=("true",), binds=(f"{folder}:/x",)))


def test_image(recipe: Recipe) -> None:
    """enroot pulls an image of a registry; a file is absolute, or pyxis would take it for an image's name."""
    digest = "@sha256:" + "0" * 64
    script = job_script(recipe, "true", image=f"ghcr.io/me/x{digest}")
    assert f"BUILDER_IMAGE='ghcr.io#me/x{digest}'" in script and "-r $BUILDER_IMAGE" not in script
    assert 'BUILDER_IMAGE="$SLURM_SUBMIT_DIR/x.sqsh"' in job_script(recipe, "true", image="x.sqsh")


def test_no_gpus(tmp_path: Path) -> None:
    """Without GPUs, NVIDIA's hook is not asked for: it fails on a node without the driver."""
    slurm = {"account": "none", "queues": {"cpu": {}}}
    assert "NVIDIA_" not in job_script(make_recipe(tmp_path, runtime=RUNTIME, slurm=slurm), "true", gpus=0)


def test_interactive(recipe: Recipe) -> None:
    """srun starts the container in the allocation."""
    _, then = salloc(recipe, JobRequest(command=("bash",), gpus=4))
    assert then.startswith(
        "ENROOT_LOGIN_SHELL=no NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility "
        "MELLANOX_VISIBLE_DEVICES=all "
        "srun --pty --cpus-per-task=16 "
        '"--container-image=$SCRATCH/ce-images/engine.sqsh" --container-writable '
    )


def test_mpi(tmp_path: Path) -> None:
    """Options of srun for MPI are added as with other runtimes."""
    recipe = make_recipe(tmp_path, runtime=RUNTIME, mpi={"srun": ["--mpi=pmix"]})
    job = plan_job(recipe, JobRequest(command=("x",), launcher="mpi", nodes=2))
    assert "--mpi=pmix" in job.srun and job.container.srun


def test_useless_keys(tmp_path: Path) -> None:
    """Keys that pyxis has no use for are refused, with the key to use."""
    with pytest.raises(ConfigError, match="gpu does not apply: pyxis has no command line of its own"):
        make_recipe(tmp_path, runtime={"kind": "pyxis", "gpu": ["--nv"]})
    with pytest.raises(ConfigError, match="annotations: for edf only, not for pyxis"):
        make_recipe(tmp_path, runtime={"kind": "pyxis", "annotations": {"a": "b"}})
    with pytest.raises(ConfigError, match="mpi.options: pyxis has no command line; use mpi.srun"):
        make_recipe(tmp_path, runtime=RUNTIME, mpi={"options": ["--x"]})
    with pytest.raises(
        ConfigError, match="optional_binds: for singularity and apptainer only, not for pyxis"
    ):
        make_recipe(tmp_path, runtime={"kind": "pyxis", "optional_binds": ["/x"]})
    with pytest.raises(ConfigError, match="replaces: for docker, podman and podman-hpc only, not for pyxis"):
        make_recipe(tmp_path, runtime={"kind": "pyxis", "replaces": {"--a": ["--b"]}})
    with pytest.raises(ConfigError, match="jobs with pyxis run a squashfs"):
        make_recipe(tmp_path, format="sif", runtime=RUNTIME)
