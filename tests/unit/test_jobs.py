"""What ``builder run --print`` and ``builder job`` give for every recipe: whole, as golden files, and value by value.

``BUILDER_GOLDEN=write pytest tests/unit/test_jobs.py`` writes the golden files anew; read the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.cli import cli, run
from builder.config.recipe import load_recipe, recipe_files
from builder.errors import UsageError
from builder.site.plan import JobRequest, plan_job, salloc
from builder.site.render import render
from builder.site.shell import command_line

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
COMMAND = ["python", "train.py", "--note", 'it\'s "100 $" & more']

#: name of the golden file -> target and options of builder job.
SCRIPTS = {
    "cpu.torchrun.sh": ("cpu", "--tasks 2 --launcher torchrun --checkpoint checkpoints"),
    "perlmutter.gpu.sh": ("perlmutter", "--account m558"),
    "perlmutter.node.sh": (
        "perlmutter",
        "--account m558 --gpus 4 --data $SCRATCH/set.tar --checkpoint $SCRATCH/run",
    ),
    "perlmutter.nodes.sh": ("perlmutter", "--account m558 --nodes 2 --mlflow https://mlflow.example.org"),
    "lumi-g.gpu.sh": ("lumi-g", "--account project_465000000"),
    "lumi-g.node.sh": ("lumi-g", "--account project_465000000 --gpus 8"),
    "lumi-g.nodes.sh": (
        "lumi-g",
        "--account project_465000000 --nodes 4 --check-fabric --data /scratch/project_465000000/set.tar",
    ),
    "lumi-g.torchrun.sh": ("lumi-g", "--account project_465000000 --nodes 2 --launcher torchrun"),
    "archer2-gpu.gpu.sh": ("archer2-gpu", "--account z19"),
    "archer2-gpu.nodes.sh": ("archer2-gpu", "--account z19 --nodes 2"),
    "archer2-cpu.mpi.sh": ("archer2-cpu", "--account z19 --nodes 32"),
    "archer2-tensorflow.mpi.sh": ("archer2-tensorflow", "--account z19 --nodes 32"),
    "chameleon-mi100.ray.sh": (
        "chameleon-mi100",
        "--gpus 2 --mlflow http://10.0.0.5:8000 --checkpoint s3://ray --data set.tar",
    ),
    "chameleon-a100.ray.sh": ("chameleon-a100", ""),
    "chameleon-a100.torchrun.sh": ("chameleon-a100", "--gpus 2 --launcher torchrun"),
    "alliance-cedar.gpu.sh": ("alliance-cedar", "--account def-someuser"),
    "alliance-graham.gpu.sh": ("alliance-graham", "--account def-someuser"),
    "alliance-beluga.gpu.sh": ("alliance-beluga", "--account def-someuser"),
    "alliance-fir.chain.sh": ("alliance-fir", "--account def-someuser --data set.tar --chain 7"),
    "alliance-nibi.node.sh": ("alliance-nibi", "--account def-someuser --gpus 8"),
    "alliance-rorqual.gpu.sh": ("alliance-rorqual", "--account def-someuser --gpus 2"),
    "alliance-narval.nodes.sh": ("alliance-narval", "--account def-someuser --nodes 2 --time 0-12:00"),
}
INTERACTIVE = {
    "perlmutter.salloc.txt": ("perlmutter", "--account PROJECT --interactive"),
    "lumi-g.salloc.txt": ("lumi-g", "--account project_465000000 --interactive"),
    "archer2-cpu.salloc.txt": ("archer2-cpu", "--account z19 --interactive"),
    "alliance-nibi.salloc.txt": ("alliance-nibi", "--account def-someuser --interactive"),
}
TARGETS = sorted(recipe_files(ROOT))


def builder(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The standard output of the command line, which has to succeed."""
    code = run(cli, ["--project", str(ROOT), *args])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("BUILDER_GOLDEN") == "write":
        path.write_text(text)
    assert path.exists(), f"no {path}: BUILDER_GOLDEN=write pytest {__file__}"
    assert text == path.read_text()


@pytest.mark.parametrize("name", [*SCRIPTS, *INTERACTIVE])
def test_jobs_are_as_in_the_golden_files(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    target, options = {**SCRIPTS, **INTERACTIVE}[name]
    golden(name, builder(capsys, "job", target, *options.split(), "--", *COMMAND))


@pytest.mark.parametrize("target", TARGETS)
def test_commands_are_as_in_the_golden_files(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    golden(f"{target}.run.txt", builder(capsys, "run", target, "--print", "--", *COMMAND))


def test_every_recipe_has_its_golden_files_and_none_is_left_over() -> None:
    names = {*SCRIPTS, *INTERACTIVE, *(f"{t}.run.txt" for t in TARGETS)}
    assert {p.name for p in GOLDEN.iterdir()} == names
    assert {target for target, _ in SCRIPTS.values()} == set(TARGETS)


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_scripts_are_bash_and_shellcheck_finds_nothing(name: str) -> None:
    subprocess.run(["bash", "-n", GOLDEN / name], check=True)
    if shutil.which("shellcheck") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("shellcheck is not here")
        pytest.skip("shellcheck is not here (make apt-test)")
    done = subprocess.run(
        ["shellcheck", "--shell=bash", "--severity=style", GOLDEN / name], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


# what the sites' own documentation says, value by value ---------------------------------------------------------------


def script(target: str, *command: str, **request: Any) -> str:
    recipe = load_recipe(target, ROOT)
    return render(plan_job(recipe, JobRequest(command=command or ("python", "train.py"), **request)))


def directives(text: str) -> set[str]:
    return set(re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE))


def print_command(target: str, capsys: pytest.CaptureFixture[str], *args: str) -> str:
    return builder(capsys, "run", target, "--print", *args).strip()


LUMI_MASKS = "0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000"


def test_perlmutter(capsys: pytest.CaptureFixture[str]) -> None:
    words = print_command(
        "perlmutter",
        capsys,
        "-i",
        "--bind",
        "/home/me/db.profile:/root/db.profile",
        "--",
        "python",
        "-u",
        "/app/ml/train_model.py",
    )
    assert words == (
        "podman-hpc run --rm -it --gpu -v /etc/localtime:/etc/localtime -v /home/me/db.profile:/root/db.profile "
        "registry.nersc.gov/m558/superfacility/synapse-ml:latest python -u /app/ml/train_model.py"
    )
    asked = directives(script("perlmutter", account="m558"))
    assert {"--qos=regular", "--constraint=gpu", "--gpus-per-node=1", "--account=m558"} <= asked
    allocate, then = salloc(load_recipe("perlmutter", ROOT), JobRequest(account="PROJECT"))
    # salloc -N 1 --ntasks-per-node=1 -t 1:00:00 -q interactive -C gpu --gpu-bind=single:1 -c 32 -G 1 -A PROJECT
    assert set(allocate) == {
        "salloc",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--time=01:00:00",
        "--qos=interactive",
        "--constraint=gpu",
        "--gpu-bind=single:1",
        "--cpus-per-task=32",
        "--gpus=1",
        "--account=PROJECT",
    }
    assert then[:4] == ["podman-hpc", "run", "--rm", "-it"]
    _, then = salloc(load_recipe("archer2-cpu", ROOT), JobRequest(account="z19"))
    assert then[:2] == ["srun", "--pty"] and "singularity" in then, "salloc's shell stays on the login node"
    assert "--nccl" in script("perlmutter", account="m558", nodes=2) and "--nccl" not in script(
        "perlmutter", account="m558", gpus=4
    )


def test_lumi_g(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = load_recipe("lumi-g", ROOT)
    assert recipe.base == "sif:/appl/local/containers/sif-images/lumi-rocm-rocm-5.6.1.sif"
    assert recipe.cotainr.system == "lumi-g"
    one = directives(script("lumi-g", account="project_1"))
    assert {"--partition=small-g", "--gpus-per-node=1", "--cpus-per-task=7", "--mem-per-gpu=60G"} <= one
    whole = script("lumi-g", account="project_1", nodes=4)
    assert {
        "--partition=standard-g",
        "--nodes=4",
        "--ntasks-per-node=8",
        "--cpus-per-task=7",
        "--gpus-per-node=8",
        "--mem=480G",
    } <= directives(whole)
    assert f"srun --cpu-bind=mask_cpu:{LUMI_MASKS} --kill-on-bad-exit=1 bash -c task" in whole
    assert '--env "RANK=$SLURM_PROCID"' in whole and '"LOCAL_RANK=$SLURM_LOCALID"' in whole
    assert '"WORLD_SIZE=$SLURM_NTASKS"' in whole and "MASTER_PORT=29500" in whole
    assert 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1' in whole
    assert "/pfs,/scratch,/projappl,/project,/flash,/appl" in whole
    assert "/var/spool/slurmd,/opt/cray,/usr/lib64/libcxi.so.1,/usr/lib64/libjansson.so.4" in whole
    assert "NCCL_SOCKET_IFNAME=hsn " in whole and "NCCL_NET_GDR_LEVEL=3" in whole
    for name in ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"):
        assert f'"{name}=/tmp/$USER-miopen-cache-$SLURM_JOB_ID"' in whole
    assert "NCCL_SOCKET_IFNAME" not in script("lumi-g", account="project_1", gpus=8), "one node has no fabric"
    check = script("lumi-g", account="project_1", nodes=2, check_fabric=True)
    assert (
        "--env NCCL_DEBUG=INFO --env NCCL_DEBUG_SUBSYS=INIT,COLL" in check
        and "NET/OFI Using aws-ofi-rccl" in check
    )
    torchrun = script("lumi-g", account="project_1", nodes=2, launcher="torchrun")
    assert {"--ntasks-per-node=1", "--cpus-per-task=56"} <= directives(torchrun)
    assert "torchrun --nnodes=2 --nproc-per-node=8" in torchrun and "--cpu-bind" not in torchrun
    assert recipe.site.slurm is not None
    build = recipe.site.slurm.queues["build"]
    assert (build.partition, build.memory, build.cpus_per_task, build.time) == (
        "debug",
        "64G",
        32,
        "00:30:00",
    )
    printed = print_command("lumi-g", capsys, "--", "python", "t.py")
    assert printed.startswith(
        "singularity exec --cleanenv --no-eval --rocm --bind /pfs,/scratch,/projappl,/project,/flash,/appl "
    )


def test_archer2_gpu() -> None:
    one = directives(script("archer2-gpu", account="z19"))
    assert {"--partition=gpu", "--qos=gpu-shd", "--gpus=1"} <= one and "--exclusive" not in one
    two = script("archer2-gpu", account="z19", nodes=2)
    assert {
        "--partition=gpu",
        "--qos=gpu-exc",
        "--exclusive",
        "--nodes=2",
        "--gpus=8",
        "--ntasks-per-node=4",
    } <= directives(two)
    assert "srun --cpu-bind=verbose,map_cpu:0,8,16,24 --hint=nomultithread" in two
    assert "--env OMP_NUM_THREADS=1 " in two and "--rocm" in two
    assert 'BUILDER_IMAGE="/work/z19/z19/$USER/images/archer2-gpu.sif"' in two


def test_archer2_cpu() -> None:
    deepcam = script("archer2-cpu", account="z19", nodes=32)
    assert {
        "--partition=standard",
        "--qos=standard",
        "--nodes=32",
        "--ntasks-per-node=1",
        "--cpus-per-task=128",
    } <= directives(deepcam)
    assert "module load cray-mpich-abi" in deepcam
    assert (
        "LD_LIBRARY_PATH=/opt/cray/pe/mpich/8.1.27/ofi/gnu/9.1/lib-abi-mpich:/opt/cray/pe/mpich/8.1.27/gtl/lib:"
        "/opt/cray/libfabric/1.12.1.2.2.0.0/lib64:/opt/cray/pe/gcc-libs:/opt/cray/pe/lib64:/opt/xpmem/lib64:"
        "/usr/lib64/libibverbs:/usr/lib64 " in deepcam
    )
    binds = re.search(r'--bind "([^"]*)"', deepcam)
    assert binds is not None
    bound = binds[1].split(",")
    assert {"/opt/cray", "/var/spool", "/opt/xpmem/lib64"} <= set(bound)
    for library in ("munge", "libnl-3", "librdmacm", "libjansson"):
        assert any(library in b for b in bound), library
    assert "SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK" in deepcam
    cosmoflow = script("archer2-tensorflow", account="z19", nodes=32)
    assert {"--nodes=32", "--ntasks-per-node=8", "--cpus-per-task=16"} <= directives(cosmoflow)
    assert "srun --hint=nomultithread --distribution=block:block --cpu-freq=2250000" in cosmoflow
    for variable in (
        "OMP_NUM_THREADS=16",
        "TF_ENABLE_ONEDNN_OPTS=1",
        "UCX_MEMTYPE_CACHE=n",
        '"MPICH_DPM_DIR=$SLURM_SUBMIT_DIR/dpmdir"',
    ):
        assert f"--env {variable}" in cosmoflow
    plain = script("archer2-cpu", account="z19", launcher="srun")
    assert "cray-mpich-abi" not in plain and "lib-abi-mpich" not in plain


def compose(text: str) -> dict[str, Any]:
    found = re.search(r"compose.yaml\" <<'EOF'\n(.*?)^EOF$", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    services = yaml.safe_load(found[1])["services"]
    assert isinstance(services, dict)
    return services


def test_chameleon(capsys: pytest.CaptureFixture[str]) -> None:
    amd = print_command("chameleon-mi100", capsys, "--", "x")
    assert "--device=/dev/kfd --device=/dev/dri --group-add video --shm-size=12g" in amd
    assert "--device=/dev/kfd --device=/dev/dri/renderD128 --group" in print_command(
        "chameleon-mi100", capsys, "--gpus", "1", "--", "x"
    )
    assert "docker run --rm --gpus=all" in print_command("chameleon-a100", capsys, "--", "x")
    text = script(
        "chameleon-mi100", "python", "train.py", gpus=2, mlflow="http://m:8000", checkpoint="s3://ray"
    )
    services = compose(text)
    assert list(services) == ["ray-head", "ray-worker-0", "ray-worker-1"]
    head, first, second = services.values()
    assert head["command"][:3] == ["ray", "start", "--head"]
    assert {"--port=6379", "--dashboard-port=8265", "--metrics-export-port=8080"} <= set(head["command"])
    for worker in (first, second):
        assert worker["command"] == [
            "ray",
            "start",
            "--address=ray-head:6379",
            "--num-cpus=32",
            "--num-gpus=1",
            "--block",
        ]
        assert worker["shm_size"] == "12g" and worker["group_add"] == ["video"]
        assert {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"} <= set(worker["environment"])
        assert worker["environment"]["MLFLOW_TRACKING_URI"] == "http://m:8000"
        assert worker["environment"]["BUILDER_CHECKPOINT_DIR"] == "s3://ray"
        assert worker["environment"]["AWS_SECRET_ACCESS_KEY"] is None, (
            "handed on from the shell, never written"
        )
    assert first["devices"] == ["/dev/kfd", "/dev/dri/renderD128"] and second["devices"] == [
        "/dev/kfd",
        "/dev/dri/renderD129",
    ]
    odd = compose(script("chameleon-a100", "x", env={"A": 'b$c "${d}"'}))
    assert odd["ray-worker-0"]["environment"]["A"] == 'b$$c "$${d}"', "compose makes one dollar sign of two"
    one = script("chameleon-a100", "python", "train.py")
    assert "ray job submit" in one and "--runtime-env /builder/runtime.json" in one
    assert (
        "--entrypoint-num-gpus 1 --entrypoint-num-cpus 8 --working-dir /job \\\n    -- python train.py" in one
    )
    device = compose(one)["ray-worker-0"]["deploy"]["resources"]["reservations"]["devices"][0]
    assert device == {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}


@pytest.mark.parametrize(
    ("name", "memory"), [("cedar", "32000M"), ("graham", "64000M"), ("beluga", "47000M")]
)
def test_alliance_seeds(name: str, memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(f"alliance-{name}", account="def-someuser")
    assert {"--account=def-someuser", "--gres=gpu:1", f"--mem={memory}", "--time=0-03:00"} <= directives(text)
    assert "module load apptainer" in text and "apptainer exec" in text and " --nv" in text
    cpus = re.search(r"--cpus-per-task=(\d+)", text)
    assert cpus is not None and 3 <= int(cpus[1]) <= 6


@pytest.mark.parametrize(
    ("name", "model"), [("fir", "h100"), ("nibi", "h100"), ("rorqual", "h100"), ("narval", "a100")]
)
def test_alliance_successors(name: str, model: str) -> None:
    text = script(f"alliance-{name}", account="def-someuser", data="set.tar", chain=7)
    assert {f"--gres=gpu:{model}:1", "--array=1-7%1", "--time=24:00:00"} <= directives(text)
    assert 'BUILDER_DATA="$SLURM_TMPDIR/data"' in text and '"$BUILDER_CHECKPOINT_DIR"/*.pt' in text
    assert "rm -rf" not in text, "Slurm removes $SLURM_TMPDIR itself"


# bad input ------------------------------------------------------------------------------------------------------------


def refused(target: str, **request: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        script(target, **{"account": "z19", **request})
    return caught.value


@pytest.mark.parametrize(
    ("target", "request_", "said", "hint"),
    [
        (
            "lumi-g",
            {"gpus": 9},
            "9 GPUs asked for, but a node of LUMI-G has 8",
            "at most 8 a node, and for more nodes with --nodes",
        ),
        (
            "chameleon-a100",
            {"gpus": 3},
            "3 GPUs asked for, but a node of Chameleon compute_liqid has 2",
            "ask for at most 2",
        ),
        ("archer2-cpu", {"gpus": 1}, "1 GPUs asked for, but a node of ARCHER2 (CPU) has none", "at most 0"),
        ("lumi-g", {"gpus": -1}, "--gpus -1 cannot be", "from 0"),
        ("lumi-g", {"nodes": 0}, "--nodes 0 cannot be", "from 1"),
        ("lumi-g", {"chain": 0}, "--chain 0 cannot be", "leave it out for a single job"),
        ("lumi-g", {"chain": -3}, "--chain -3 cannot be", "number of pieces"),
        (
            "lumi-g",
            {"account": ""},
            "LUMI-G wants an account for every job",
            "--account NAME, such as project_465000000",
        ),
        ("alliance-fir", {"account": ""}, "Alliance Fir wants an account", "def-someuser"),
        ("lumi-g", {"account": "a\n#SBATCH --x"}, "--account 'a\\n#SBATCH --x' cannot be", "letters, digits"),
        ("lumi-g", {"name": "a b"}, "--name 'a b' cannot be", "letters, digits"),
        ("lumi-g", {"time": "3h"}, "--time: '3h' is not a time", "HH:MM:SS"),
        ("lumi-g", {"time": "0:0"}, "--time: '0:0' is no time at all", "HH:MM:SS"),
        (
            "lumi-g",
            {"time": "7-0"},
            "--time 7-0 is longer than LUMI-G allows here (48:00:00)",
            "--time 48:00:00 --chain 4",
        ),
        ("lumi-g", {"launcher": "mpi"}, "LUMI-G: the recipe has no 'mpi:'", "--launcher srun"),
        ("lumi-g", {"launcher": "ray"}, "LUMI-G: the recipe has no 'ray:'", "srun or torchrun"),
        ("lumi-g", {"tasks": 2}, "--tasks with GPUs cannot be", "--gpus N"),
        ("archer2-cpu", {"tasks": 0}, "--tasks 0 cannot be", "from 1"),
        ("lumi-g", {"check_fabric": True}, "--check-fabric needs more than one node", "--nodes 2"),
        (
            "perlmutter",
            {"check_fabric": True, "nodes": 2},
            "does not say how to see the network's plugin",
            "site.fabric.check",
        ),
        ("chameleon-a100", {"nodes": 2}, "the Ray cluster is one machine's", "leave them out"),
        (
            "chameleon-a100",
            {"chain": 2, "launcher": "torchrun"},
            "has no scheduler, which --chain needs",
            "leave it out",
        ),
        ("cpu", {"launcher": "srun", "nodes": 2}, "cpu has no scheduler, which --nodes needs", "site.slurm"),
        ("chameleon-a100", {"gpus": 2, "launcher": "srun"}, "no scheduler to start 2 processes", "torchrun"),
        ("cpu", {"tasks": 2}, "no scheduler to start 2 processes", "torchrun"),
        (
            "lumi-g",
            {"gpus": 0},
            "LUMI-G: the recipe has no queue for jobs without GPUs",
            "site.slurm.queues.cpu",
        ),
        (
            "lumi-g",
            {"mlflow": "https://me:secret@m.example.org"},
            "holds a user or password",
            "MLFLOW_TRACKING_PASSWORD",
        ),
        ("lumi-g", {"binds": ("/a:b",)}, "--bind /a:b: cannot be read", "SOURCE:TARGET:ro"),
        (
            "lumi-g",
            {"env": {"A": '"x"'}},
            "A: a value that begins or ends with a double quote",
            "write it without",
        ),
    ],
)
def test_what_a_site_cannot_do_is_refused(
    target: str, request_: dict[str, Any], said: str, hint: str
) -> None:
    error = refused(target, **request_)
    assert said in error.message and hint in error.hint
    assert "secret" not in str(error)


def test_a_ray_job_needs_a_command() -> None:
    with pytest.raises(UsageError, match="a Ray job needs a command"):
        plan_job(load_recipe("chameleon-a100", ROOT), JobRequest())


def test_data_that_is_here_must_be_a_tar(tmp_path: Path) -> None:
    import tarfile

    import zstandard

    (tmp_path / "folder").mkdir()
    (tmp_path / "text.tar").write_text("no tar\n" * 400)
    (tmp_path / "empty.tar").touch()
    (tmp_path / "text.tar.zst").write_bytes(zstandard.compress(b"no tar\n" * 400))
    (tmp_path / "cut.tar.zst").write_bytes(zstandard.compress(b"no tar\n" * 400)[:20])
    assert "is a folder, not a tar" in refused("lumi-g", data=str(tmp_path / "folder")).message
    assert "tar -cf folder.tar -C" in refused("lumi-g", data=str(tmp_path / "folder")).hint
    for name in ("text.tar", "empty.tar", "text.tar.zst", "cut.tar.zst"):
        assert "is not a tar" in refused("lumi-g", data=str(tmp_path / name)).message, name
    (tmp_path / "a").write_text("a")
    for name, mode in (("good.tar", "w"), ("good.tgz", "w:gz"), ("good.tar.xz", "w:xz")):
        with tarfile.open(tmp_path / name, mode) as tar:  # type: ignore[call-overload]
            tar.add(tmp_path / "a", "a")
        assert str(tmp_path / name) in script("lumi-g", account="z19", data=str(tmp_path / name))
    (tmp_path / "good.tar.zst").write_bytes(zstandard.compress((tmp_path / "good.tar").read_bytes()))
    assert "good.tar.zst" in script("lumi-g", account="z19", data=str(tmp_path / "good.tar.zst"))


def test_refusals_reach_the_command_line_with_their_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(cli, ["--project", str(ROOT), "job", "lumi-g", "--chain", "0", "--account", "x", "--", "y"]) == 2
    )
    assert "--chain 0 cannot be" in capsys.readouterr().err
    assert run(cli, ["--project", str(ROOT), "job", "chameleon-a100", "--submit", "--", "y"]) == 2
    assert "has no scheduler to submit to" in capsys.readouterr().err
    assert run(cli, ["--project", str(ROOT), "run", "perlmutter", "--env", "A-B=1", "--", "y"]) == 2
    assert "--env A-B: cannot be the name" in capsys.readouterr().err


# the command line -----------------------------------------------------------------------------------------------------


def test_a_script_goes_to_a_file_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.sh"
    data = json.loads(
        builder(
            capsys, "job", "lumi-g", "--account", "a", "--output", str(file), "--json", "--", "python", "t.py"
        )
    )
    assert file.read_text() == data["script"] and os.access(file, os.X_OK) and data["job"] is None
    assert (
        run(
            cli,
            [
                "--project",
                str(ROOT),
                "job",
                "lumi-g",
                "--account",
                "a",
                "--output",
                f"{tmp_path}/no/x",
                "--",
                "y",
            ],
        )
        == 2
    )
    assert "there is no folder" in capsys.readouterr().err
    printed = json.loads(builder(capsys, "run", "lumi-g", "--print", "--json", "--", "a b"))
    assert printed["command"][-1] == "a b" and printed["shell"].endswith("'a b'")


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--runtime docker --gpu amd",
        "--runtime podman-hpc --gpu none",
        "--runtime singularity --gpu amd",
        "--runtime podman",
    ],
)
def test_a_new_site_loads_and_gives_a_job(
    options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipes").mkdir()
    assert run(cli, ["--project", str(tmp_path), "init-site", "mine", *options.split()]) == 0
    recipe = load_recipe("mine", tmp_path)
    assert recipe.environment_path.is_file() and recipe.site.slurm is not None
    text = render(plan_job(recipe, JobRequest(command=("python", "t.py"), nodes=2)))
    assert f"{recipe.site.runtime.kind} " in text
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    from builder.lock.environment import read_environment

    assert read_environment(recipe.environment_path, "linux-64").conda
    capsys.readouterr()
    assert run(cli, ["--project", str(tmp_path), "init-site", "mine"]) == 2
    assert "there is a target mine already" in capsys.readouterr().err
    assert run(cli, ["--project", str(tmp_path), "init-site", "My Site"]) == 2
    assert "cannot be a target's name" in capsys.readouterr().err


def test_words_of_a_command_line_are_quoted_for_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    line = print_command("perlmutter", capsys, "--", *COMMAND)
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\0")[-5:-1] == COMMAND
    assert command_line(["a", "$b"]) == 'a "\\$b"'
