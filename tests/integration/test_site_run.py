"""``builder run`` with real container runtimes: words, variables and folders arrive unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.conftest import CLONE, Builder
from tests.support.parts import Apptainer, DockerEngine, Podman
from tests.support.rootfs import make_rootfs, make_rootfs_tar

RECIPE = """\
base: oci:base
environment: e.yml
site:
  launcher: torchrun
  images: $IMAGES
  runtime:
    kind: {kind}
    program: {program}
    options: {options}
    clean_env: {clean}
    binds: ["{folder}:/mnt/site:ro"]
    env: {{SITE: "$HERE/site"}}
    folders: [$IMAGES/made]
"""
#: Values that need correct quoting for a shell, a CSV reader or a container runtime.
VALUES = {
    "A": "a b",
    "B": "x=1,y=2",
    "C": "$HOME `id` \\ !",
    "D": 'it\'s "so" ü',
    "E": "",
    "F": '"a=b"c',
    "G": 'q" , r',
}
WORDS = ("a b", "it's", "$HOME", "`id`", "\\", "*", "", "-x", "--", 'say "no"')
SHOW = """
set -- "$A" "$B" "$C" "$D" "$E" "$F" "$G" "$SITE" "$HOST" "$PASSED" "$PWD" "$@"
for i in "$@"; do printf "[%s]\\n" "$i"; done
cat /mnt/site/file
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A project folder, and a folder to bind."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "bound").mkdir()
    (tmp_path / "bound" / "file").write_text("from the site\n")
    return tmp_path


def builder_run(
    site: Path, env: Mapping[str, str], *args: str, target: str = "t"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "builder", "--project", str(site), "run", target, *args]
    full = {
        **env,
        "PYTHONPATH": str(CLONE),
        "HERE": "/h e",
        "HOST": "from the host",
        "PASSED": "h $x",
        "IMAGES": str(site),
    }
    return subprocess.run(command, env=full, capture_output=True, text=True, cwd=site)


def check(site: Path, env: Mapping[str, str], image: str, host: str) -> None:
    """Runs a command with builder, and with bash from the line that --print writes. Both outputs must be
    equal."""
    variables = [w for k, v in VALUES.items() for w in ("--env", f"{k}={v}")]
    args = [
        "--image",
        image,
        *variables,
        "--env",
        "PASSED",
        "--bind",
        "bound:/mnt/mine",
        "--workdir",
        "/mnt/mine",
    ]
    command = ["--", "/bin/sh", "-c", SHOW, "sh", *WORDS]
    done = builder_run(site, env, *args, *command)
    assert done.returncode == 0, done.stderr
    expected = [*VALUES.values(), "/h e/site", host, "h $x", "/mnt/mine", *WORDS]
    assert done.stdout == "".join(f"[{w}]\n" for w in expected) + "from the site\n"
    assert (site / "made").is_dir()
    assert builder_run(site, env, *args, "--", "/bin/sh", "-c", "exit 7").returncode == 7
    line = builder_run(site, env, *args, "--print", *command).stdout
    shell = {**env, "HERE": "/h e", "PASSED": "h $x", "IMAGES": str(site), "HOST": "from the host"}
    shell["APPTAINERENV_PASSED"] = (
        "h $x" if "--no-eval" in line else r"h \$x"
    )  # builder run does this for --env NAME
    printed = subprocess.run(["bash", "-c", line], env=shell, capture_output=True, text=True, cwd=site)
    assert printed.stdout == done.stdout, printed.stderr


def write(site: Path, kind: str, program: str | Path, options: str = "[]", clean: bool = False) -> None:
    text = RECIPE.format(
        kind=kind, program=program, options=options, clean=str(clean).lower(), folder=site / "bound"
    )
    (site / "recipes" / "t.yaml").write_text(text)


@pytest.mark.apptainer
@pytest.mark.parametrize(("clean", "no_eval"), [(True, True), (True, False), (False, False)])
def test_apptainer(clean: bool, no_eval: bool, site: Path, apptainer: Apptainer) -> None:
    write(site, "apptainer", apptainer.path, "[--no-eval]" if no_eval else "[]", clean)
    make_rootfs(site / "t.sif")  # apptainer also runs folders
    for name in ("mnt/site", "mnt/mine"):
        (site / "t.sif" / name).mkdir(parents=True)
    check(site, apptainer.env, str(site / "t.sif"), host="" if clean else "from the host")
    # The image is where the recipe says, in a folder with a variable.
    done = builder_run(site, apptainer.env, "--", "/bin/sh", "-c", "echo $SITE")
    assert done.stdout == "/h e/site\n", done.stderr


@pytest.mark.podman
def test_podman_hpc(site: Path, podman: Podman) -> None:
    """podman accepts the command line for podman-hpc."""
    tar = make_rootfs_tar(site / "image")
    podman.run("import", tar, "tiny:site")
    write(site, "podman-hpc", "podman", "[--network=none]")
    check(site, podman.env, "localhost/tiny:site", host="")


@pytest.mark.docker
def test_docker(site: Path, docker_engine: DockerEngine) -> None:
    docker_engine.docker("import", str(make_rootfs_tar(site / "image")), "tiny:site")
    write(site, "docker", "docker", "[--network=none]")
    check(site, docker_engine.env, "tiny:site", host="")


#: Variables that every job passes, and one that none does.
OF_JOB = {
    "CUDA_VISIBLE_DEVICES": "3",
    "MLFLOW_TRACKING_URI": "http://h/?a=1&b=$x",
    "NCCL_NET": "two words",
    "AWS_ODD": "",
    "NOT_PASSED": "1",
}


#: Prints those that are set.
SHOW_JOB = """for n; do eval "[ -z \\${$n+set} ] || printf '%s=%s\\n' $n \\"\\$$n\\""; done"""


def check_job(site: Path, env: Mapping[str, str], image: str) -> None:
    """A script's container gets the job's variables, and so does ``builder run`` in a job."""
    shell = {**env, **OF_JOB, "PYTHONPATH": str(CLONE), "HERE": "/h e", "IMAGES": str(site)}
    show = ["--", "/bin/sh", "-c", SHOW_JOB, "sh", *OF_JOB]
    words = ["--launcher", "srun", "--image", image, "--env", "NCCL_NET=one", "--output", "job.sh", *show]
    command = [sys.executable, "-m", "builder", "--project", str(site), "job", "t", *words]
    subprocess.run(command, env=shell, cwd=site, check=True, capture_output=True)
    job = subprocess.run(["bash", "job.sh"], env=shell, cwd=site, capture_output=True, text=True)
    passed = {name: value for name, value in OF_JOB.items() if name != "NOT_PASSED"}
    seen = [line for line in job.stdout.splitlines() if line.partition("=")[0] in OF_JOB]
    assert seen == [f"{k}={v}" for k, v in {**passed, "NCCL_NET": "one"}.items()], job.stderr
    for number in ({}, {"SLURM_JOB_ID": "7"}):
        run = builder_run(site, {**env, **OF_JOB, **number}, "--image", image, *show)
        assert run.returncode == 0, run.stderr
        assert run.stdout.splitlines() == [f"{k}={v}" for k, v in passed.items() if number]


@pytest.mark.podman
def test_job_of_podman(site: Path, podman: Podman) -> None:
    podman.run("import", make_rootfs_tar(site / "image"), "tiny:job")
    write(site, "podman", "podman", "[--network=none]")
    check_job(site, podman.env, "localhost/tiny:job")


@pytest.mark.docker
def test_job_of_docker(site: Path, docker_engine: DockerEngine) -> None:
    docker_engine.docker("import", str(make_rootfs_tar(site / "image")), "tiny:job")
    write(site, "docker", "docker", "[--network=none]")
    check_job(site, docker_engine.env, "tiny:job")


def test_userns(cpu: Builder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("bound\n")
    show = "import os, sys; print(os.environ['A'], os.getcwd(), sys.argv[1:], open('file').read(), end='')"
    done = cpu.run(
        "run",
        "cpu",
        "--env",
        "A=a b",
        "--bind",
        f"{tmp_path}:/mnt",
        "--workdir",
        "/mnt",
        "--",
        "python",
        "-c",
        show,
        *WORDS,
    )
    assert done.stdout == f"a b /mnt {list(WORDS)} bound\n"
    assert cpu.run("run", "cpu", "--", "python", "-c", "raise SystemExit(5)", check=False).returncode == 5


def test_missing_program_image_or_variable(site: Path) -> None:
    """The error names what is missing."""
    write(site, "podman-hpc", "podman-hpc")
    done = builder_run(site, os.environ, "--image", "x", "--", "true")
    assert (
        done.returncode == 10
        and "podman-hpc is not installed on this machine" in done.stderr
        and "--print" in done.stderr
    )
    write(site, "apptainer", "sh")
    done = builder_run(site, os.environ, "--", "true")
    assert (
        done.returncode == 10
        and f"{site}/t.sif: no such image" in done.stderr
        and "builder pull" in done.stderr
    )
    text = (site / "recipes" / "t.yaml").read_text()
    (site / "recipes" / "t.yaml").write_text(text.replace("$HERE", "$NOT_SET_ANYWHERE"))
    (site / "t.sif").touch()
    done = builder_run(site, os.environ, "--", "true")
    assert done.returncode == 10 and "$NOT_SET_ANYWHERE is not set" in done.stderr
