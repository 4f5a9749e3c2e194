"""Jobs and commands of the shipped recipes: values of the sites' documentation, and invalid requests."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
import zstandard

from builder.config.queues import Slurm
from builder.config.recipe import Files, load_recipe
from builder.config.site import Fabric, Node, Proxy, Runtime, Site
from builder.errors import UsageError
from builder.site.command import ContainerRequest, site_command
from builder.site.images import image_reference
from builder.site.plan import plan_job, salloc
from builder.site.render import render
from builder.site.request import JobRequest, SlurmRequest
from builder.site.shell import command_line
from tests.support.image_kit import recipe as made_recipe

ROOT = Path(__file__).parents[3]

#: An account of LUMI's form.
LUMI = "project_465000000"
#: LUMI-AI-Guide, 05-multi-gpu-and-node/run_ddp_srun_4.sh (2026-05), without leading zeros.
LUMI_MASKS = "0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000"


def script(target: str, *command: str, **request: Any) -> str:
    recipe = load_recipe(target, ROOT)
    return render(plan_job(recipe, JobRequest(command=command or ("python", "train.py"), **request)))


def directives(text: str) -> set[str]:
    return set(re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE))


def printed_command(target: str, *command: str, **request: Any) -> str:
    """Returns the command line that runs a command on the target's site."""
    recipe = load_recipe(target, ROOT)
    image = image_reference(recipe)
    return command_line(site_command(recipe, ContainerRequest(image, command, **request)).words)


def test_perlmutter() -> None:
    """BLAST-AI-ML/synapse: docs/source/ml-training.md (2026-07) and ml/training_pm.sbatch (2026-03)."""
    words = printed_command(
        "perlmutter",
        *("python", "-u", "/app/ml/train_model.py"),
        interactive=True,
        binds=("/home/me/config.yaml:/app/ml/config.yaml",),
        env_file="/home/me/db-podman.profile",
    )
    assert words == (
        "podman-hpc run --rm -it --gpu "
        "-v /etc/localtime:/etc/localtime -v /home/me/config.yaml:/app/ml/config.yaml "
        "--env-file /home/me/db-podman.profile "
        "registry.nersc.gov/m558/superfacility/synapse-ml:latest python -u /app/ml/train_model.py"
    )
    # QOS as of 2026-09: one or two GPUs in shared, whole nodes in regular; no partition, no memory.
    asked = directives(script("perlmutter", account="m558"))
    assert {"--qos=shared", "--constraint=gpu", "--gpus-per-node=1", "--account=m558"} <= asked
    assert not any(option.startswith(("--partition", "--mem")) for option in asked)
    assert "--qos=regular" in directives(script("perlmutter", account="m558", gpus=4))
    realtime = SlurmRequest(qos="realtime", constraint="gpu&hbm80g")
    asked = directives(script("perlmutter", account="m558", slurm=realtime))
    assert {"--qos=realtime", "--constraint=gpu&hbm80g"} <= asked


def test_perlmutter_interactive() -> None:
    """One GPU as in Synapse's documentation; four GPUs for four tasks, each of which sees all of them."""
    recipe = load_recipe("perlmutter", ROOT)
    planned = salloc(recipe, JobRequest(account="PROJECT"))
    # salloc -N 1 --ntasks-per-node=1 -t 1:00:00 -q interactive -C gpu --gpu-bind=single:1 -c 32 -G 1 -A
    # PROJECT
    assert set(planned.allocate) == {
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
    assert planned.then[:4] == ["podman-hpc", "run", "--rm", "-it"]
    allocate = salloc(recipe, JobRequest(account="PROJECT", gpus=4)).allocate
    assert {"--ntasks-per-node=4", "--cpus-per-task=32", "--gpus=4"} <= set(allocate)
    assert not any(option.startswith("--gpu-bind") for option in allocate)
    then = salloc(load_recipe("archer2-cpu", ROOT), JobRequest(account="z19")).then
    assert then[:2] == ["srun", "--pty"] and "singularity" in then, (
        "the shell of salloc stays on the login node"
    )


def test_perlmutter_network() -> None:
    """NERSC/podman-hpc etc/modules.d (2026-04): modules for NCCL and MPI set the same variable."""
    nccl, devices = "--nccl-cu12", "--device=/dev/cxi0 --device=/dev/cxi1"
    nodes = " ".join(script("perlmutter", account="m558", nodes=2).replace("\\\n", " ").split())
    assert nccl in nodes and devices in nodes and "--device=/dev/gdrdrv" in nodes
    assert "-e FI_PROVIDER=cxi" in nodes and "--mpi" not in nodes
    assert nccl not in script("perlmutter", account="m558", gpus=4), "a single node has no fabric"
    both = script("perlmutter", account="m558", nodes=2, launcher="mpi")
    path = re.search(r"-e LD_LIBRARY_PATH=(\S+)", both)
    assert "--mpi" in both and nccl in both and path is not None
    folders = path[1].split(":")
    assert folders[:2] == ["/opt/udiImage/modules/mpich", "/opt/udiImage/modules/mpich/dep"]
    assert "/opt/udiImage/modules/nccl-plugin/lib" in folders
    check = script("perlmutter", account="m558", nodes=2, check_fabric=True)
    assert "grep -qiF -e 'NET/OFI Selected provider is cxi'" in check


def test_lumi_g() -> None:
    """Scripts of LUMI-AI-Guide (2026-05 to 2026-09), partitions of LUMI's course in 2026-04."""
    recipe = load_recipe("lumi-g", ROOT)
    # Lumi-supercomputer/LUMI-training-materials, docs/2day-20260422/205-Containers.md (2026-04-17)
    assert recipe.base == (
        "docker://docker.io/lumiaifactory/lumi-multitorch:mpich-u24r64f21m43t29-20260225_144743"
    )
    assert recipe.cotainr.system == "lumi-g"
    one = directives(script("lumi-g", account=LUMI))
    assert {"--partition=small-g", "--gpus-per-node=1", "--cpus-per-task=7", "--mem-per-gpu=60G"} <= one
    whole = script("lumi-g", account=LUMI, nodes=4)
    assert {
        "--partition=standard-g",
        "--nodes=4",
        "--ntasks-per-node=8",
        "--cpus-per-task=7",
        "--gpus-per-node=8",
        "--mem=480G",
    } <= directives(whole)
    assert f"srun --cpu-bind=mask_cpu:{LUMI_MASKS} --mpi=pmi2 --kill-on-bad-exit=1 bash -c task" in whole
    assert '"RANK=$SLURM_PROCID"' in whole and '"LOCAL_RANK=$SLURM_LOCALID"' in whole
    assert '"WORLD_SIZE=$SLURM_NTASKS"' in whole and "port=$((29500 + " in whole
    assert 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1' in whole
    for name in ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"):
        assert f'"{name}=/tmp/$USER-miopen-cache-$SLURM_JOB_ID"' in whole
    torchrun = script("lumi-g", account=LUMI, nodes=2, launcher="torchrun")
    assert {"--ntasks-per-node=1", "--cpus-per-task=56"} <= directives(torchrun)
    assert "torchrun --nnodes=2 --nproc-per-node=8" in torchrun and "--cpu-bind" not in torchrun
    # Exercise of the AI workshop, 2026-06: srun --mem=60G --cpus-per-task=32 --partition=debug cotainr build
    assert recipe.site.slurm is not None
    build = recipe.site.slurm.queues["build"]
    assert (build.partition, build.memory, build.cpus_per_task) == ("debug", "60G", 32)
    assert recipe.site.slurm.partitions["debug"].max_time == build.time == "00:30:00"


def test_lumi_g_container() -> None:
    """Binds of the module lumi-aif-singularity-bindings, and nothing of the host's network or ROCm."""
    binds = "/var/spool/slurmd,/pfs,/scratch,/projappl,/project,/flash,/appl"
    printed = printed_command("lumi-g", "python", "t.py")
    assert printed.startswith(f"singularity exec --cleanenv --no-eval --bind {binds} ")
    whole = script("lumi-g", account=LUMI, nodes=4)
    assert f'"{binds},$SLURM_SUBMIT_DIR"' in whole
    for gone in ("--rocm", "/opt/cray", "libcxi", "NCCL_NET_GDR_LEVEL"):
        assert gone not in printed + whole, gone
    # laifs-container-recipes issues 18, 30, 44; LUMI-AI-Guide pull requests 97, 118
    fabric = ("NCCL_SOCKET_IFNAME=hsn ", "FI_MR_CACHE_MONITOR=userfaultfd", "librccl.so.1")
    one_node = script("lumi-g", account=LUMI, gpus=8)
    assert all(text in whole and text not in one_node for text in fabric)
    assert 'bash -c "task warm-up"' in whole and '"$BUILDER_IMAGE" rocm-smi' in whole
    check = script("lumi-g", account=LUMI, nodes=2, check_fabric=True).replace("\\\n       ", "")
    assert "--env NCCL_DEBUG=INFO --env NCCL_DEBUG_SUBSYS=INIT,COLL" in check
    assert "grep -qiF -e 'NET/OFI Selected provider is cxi'" in check


@pytest.mark.parametrize(
    ("request_", "partition"),
    [
        ({"gpus": 2, "time": "60:00:00"}, "small-g"),
        ({"gpus": 8}, "standard-g"),
        ({"gpus": 8, "time": "60:00:00", "slurm": SlurmRequest(partition="small-g")}, "small-g"),
        ({"nodes": 2, "gpus": 4}, "standard-g"),
        ({"nodes": 1024}, "standard-g"),
    ],
)
def test_lumi_g_partitions(request_: dict[str, Any], partition: str) -> None:
    """More than one node counts first; small-g allows three days, standard-g two."""
    assert f"--partition={partition}" in directives(script("lumi-g", account=LUMI, **request_))


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
    assert {"/opt/cray", "/var/spool", "/opt/xpmem/lib64/libxpmem.so.0"} <= set(bound)
    assert 'export HOME="/work/z19/z19/$USER"' in deepcam, "compute nodes do not mount /home"
    # ARCHER2-HPC/archer2-docs, docs/user-guide/containers.md (2026-05-14)
    for library in ("munge", "libnl-3", "librdmacm", "libjansson", "libyaml", "liblustreapi", "libkeyutils"):
        assert any(library in b for b in bound), library
    assert {"/etc/host.conf", "/etc/resolv.conf", "/etc/libnl/classid"} <= set(bound)
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
    """Returns the services of the compose file in a script."""
    found = re.search(r"compose.yaml\" <<'EOF'\n(.*?)^EOF$", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    services = yaml.safe_load(found[1])["services"]
    assert isinstance(services, dict)
    return services


def test_chameleon() -> None:
    amd = printed_command("chameleon-mi100", "x")
    assert "--device=/dev/kfd --device=/dev/dri --group-add video --shm-size=12g" in amd
    assert "--device=/dev/kfd --device=/dev/dri/renderD128 --group" in printed_command(
        "chameleon-mi100", "x", gpus=1
    )
    assert "docker run --rm --gpus=all" in printed_command("chameleon-a100", "x")
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
        assert worker["environment"]["HIP_VISIBLE_DEVICES"] == "0"
        assert worker["environment"]["MLFLOW_TRACKING_URI"] == "http://m:8000"
        assert worker["environment"]["BUILDER_CHECKPOINT_DIR"] == "s3://ray"
        assert worker["environment"]["AWS_SECRET_ACCESS_KEY"] is None, "the value comes from the shell"
    assert first["devices"] == ["/dev/kfd", "/dev/dri/renderD128"] and second["devices"] == [
        "/dev/kfd",
        "/dev/dri/renderD129",
    ]
    odd = compose(script("chameleon-a100", "x", env={"A": 'b$c "${d}"'}))
    assert odd["ray-worker-0"]["environment"]["A"] == 'b$$c "$${d}"', "compose reads two dollar signs as one"
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
def test_alliance(name: str, memory: str) -> None:
    text = script(f"alliance-{name}", account="def-someuser")
    assert {"--account=def-someuser", "--gres=gpu:1", f"--mem={memory}", "--time=0-03:00"} <= directives(text)
    assert "module load apptainer" in text and "apptainer exec" in text and " --nv" in text
    cpus = re.search(r"--cpus-per-task=(\d+)", text)
    assert cpus is not None and 3 <= int(cpus[1]) <= 6


@pytest.mark.parametrize(
    ("name", "gpus", "cores", "memory"),
    [
        ("fir", "h100:1", 12, "280G"),
        ("nibi", "h100:1", 14, "250G"),
        ("rorqual", "h100:1", 16, "124G"),
        ("narval", "a100:1", 12, "124G"),
    ],
)
def test_alliance_today(name: str, gpus: str, cores: int, memory: str) -> None:
    """docs.alliancecan.ca: Using GPUs with Slurm (2026-04-03), Ratios in bundles (2025-09-26)."""
    recipe = f"alliance-{name}"
    text = script(recipe, account="def-someuser", data="set.tar", chain=7)
    assert {
        f"--gpus-per-node={gpus}",
        f"--cpus-per-task={cores}",
        f"--mem={memory}",
        "--array=1-7%1",
        "--time=24:00:00",
    } <= directives(text)
    assert 'BUILDER_DATA="$SLURM_TMPDIR/data"' in text and '"$BUILDER_CHECKPOINT_DIR"/{*.pt,' in text
    assert "rm -rf" not in text, "Slurm removes $SLURM_TMPDIR"
    # Apptainer (2026-02-06): bind /project and /scratch; work on the node's disk, since /tmp is memory
    assert 'for path in /project /scratch "$SLURM_TMPDIR"; do' in text
    assert 'export APPTAINERENV_TMPDIR="${SLURM_TMPDIR:-/tmp}"' in text
    # Job scheduling policies (2026-04-03): 7 days; an account is chosen for members of one
    assert "--time=7-00:00" in directives(script(recipe, time="7-00:00"))
    error = request_error(recipe, time="7-00:01")
    assert "exceeds the limit of the site (7-00:00)" in error.message and "--chain 2" in error.hint


def request_error(target: str, **request: Any) -> UsageError:
    """Plans an invalid job and returns the error."""
    account = LUMI if target == "lumi-g" else "z19"
    with pytest.raises(UsageError) as caught:
        script(target, **{"account": account, **request})
    return caught.value


@pytest.mark.parametrize(
    ("target", "request_", "message", "hint"),
    [
        (
            "lumi-g",
            {"gpus": 8, "time": "60:00:00"},
            "--time 60:00:00 exceeds the limit of partition standard-g (2-00:00:00)",
            "--partition small-g allows it",
        ),
        (
            "lumi-g",
            {"nodes": 1025},
            "--nodes 1025: partition standard-g allows at most 1024",
            "no partition of LUMI-G allows it",
        ),
        ("perlmutter", {"gpus": 3}, "3 GPUs: QOS shared allows at most 2", "--qos regular allows it; or"),
        ("archer2-gpu", {"nodes": 3}, "--nodes 3: QOS gpu-exc allows at most 2", "request less"),
        ("archer2-gpu", {"time": "24:00:00"}, "the limit of partition gpu with QOS gpu-shd (12:00:00)", ""),
        (
            "lumi-g",
            {"gpus": 9},
            "9 GPUs requested, but a node of LUMI-G has 8",
            "at most 8 GPUs per node; use --nodes for more",
        ),
        (
            "chameleon-a100",
            {"gpus": 3},
            "3 GPUs requested, but a node of Chameleon compute_liqid has 2",
            "request at most 2",
        ),
        ("archer2-cpu", {"gpus": 1}, "--gpus 1: a node of ARCHER2 (CPU) has no GPUs", "leave --gpus out"),
        ("lumi-g", {"gpus": -1}, "--gpus must be at least 0, not -1", "--gpus 0"),
        ("lumi-g", {"nodes": 0}, "--nodes must be at least 1, not 0", "number of nodes"),
        ("lumi-g", {"chain": 0}, "--chain must be at least 1, not 0", "leave it out for a single job"),
        ("lumi-g", {"chain": -3}, "--chain must be at least 1, not -3", "number of segments"),
        (
            "lumi-g",
            {"account": ""},
            "jobs on LUMI-G require an account",
            "--account NAME, such as project_465000000",
        ),
        ("lumi-g", {"account": "z19"}, "LUMI-G has no account of this form", "such as project_465000000"),
        (
            "lumi-g",
            {"account": "a\n#SBATCH --x"},
            "--account 'a\\n#SBATCH --x' contains characters",
            "letters, digits",
        ),
        ("lumi-g", {"name": "a b"}, "--name 'a b' contains characters", "letters, digits"),
        ("lumi-g", {"time": "3h"}, "--time: '3h' is not a time", "HH:MM:SS"),
        ("lumi-g", {"time": "0:0"}, "--time: '0:0' is zero", "HH:MM:SS"),
        (
            "lumi-g",
            {"time": "7-0"},
            "--time 7-0 exceeds the limit of partition small-g (3-00:00:00)",
            "--time 3-00:00:00 --chain 3",
        ),
        ("lumi-g", {"launcher": "mpi"}, "LUMI-G: the recipe has no 'mpi:'", "--launcher srun"),
        ("lumi-g", {"launcher": "ray"}, "LUMI-G: the recipe has no 'ray:'", "srun or torchrun"),
        ("lumi-g", {"tasks": 2}, "--tasks cannot be used with GPUs", "--gpus N"),
        ("archer2-cpu", {"tasks": 0}, "--tasks must be at least 1, not 0", "processes per node"),
        ("lumi-g", {"check_fabric": True}, "--check-fabric needs more than one node", "--nodes 2"),
        (
            "archer2-gpu",
            {"check_fabric": True, "nodes": 2},
            "does not define how to check the network plugin",
            "site.fabric.check",
        ),
        ("chameleon-a100", {"nodes": 2}, "a Ray cluster runs on one machine", "leave them out"),
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
            "contains a user name or password",
            "MLFLOW_TRACKING_PASSWORD",
        ),
        ("lumi-g", {"binds": ("/a:b",)}, "--bind /a:b: the target 'b' is not an", "write --bind /a:/b"),
        (
            "lumi-g",
            {"env": {"A": '"x"'}},
            "A: apptainer and singularity do not accept values that start or end",
            "remove the quotes",
        ),
    ],
)
def test_invalid_requests(target: str, request_: dict[str, Any], message: str, hint: str) -> None:
    """The error names the option, the hint says what to write."""
    error = request_error(target, **request_)
    assert message in error.message and hint in error.hint
    assert "secret" not in str(error)


def test_job_without_command() -> None:
    """The image's own command starts in the folder of the submission, too: what it writes stays."""
    recipe = load_recipe("perlmutter", ROOT)
    text = render(plan_job(recipe, JobRequest(account="m558")))
    assert '-v "$SLURM_SUBMIT_DIR:$SLURM_SUBMIT_DIR"' in text and '-w "$SLURM_SUBMIT_DIR"' in text
    copied = (Files(source="builder", target="/app/builder"),)
    below = recipe.model_copy(update={"workdir": "/app/builder", "files": copied})
    assert '-w "$SLURM_SUBMIT_DIR/builder"' in render(plan_job(below, JobRequest(account="m558")))
    elsewhere = recipe.model_copy(update={"workdir": "/srv"})
    assert " -w " not in render(plan_job(elsewhere, JobRequest(account="m558"))), "the image's own"


def test_ray_job_without_command() -> None:
    with pytest.raises(UsageError, match="a Ray job needs a command"):
        plan_job(load_recipe("chameleon-a100", ROOT), JobRequest())


def test_data_must_be_a_tar(tmp_path: Path) -> None:
    """A file that exists on this machine must be a tar."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.tar").write_text("no tar\n" * 400)
    (tmp_path / "empty.tar").touch()
    (tmp_path / "text.tar.zst").write_bytes(zstandard.compress(b"no tar\n" * 400))
    (tmp_path / "cut.tar.zst").write_bytes(zstandard.compress(b"no tar\n" * 400)[:20])
    assert "is a folder, not a tar" in request_error("lumi-g", data=str(tmp_path / "folder")).message
    assert "tar -cf folder.tar -C" in request_error("lumi-g", data=str(tmp_path / "folder")).hint
    for name in ("text.tar", "empty.tar", "text.tar.zst", "cut.tar.zst"):
        assert "is not a tar" in request_error("lumi-g", data=str(tmp_path / name)).message, name
    (tmp_path / "a").write_text("a")
    for name, mode in (("good.tar", "w"), ("good.tgz", "w:gz"), ("good.tar.xz", "w:xz")):
        with tarfile.open(tmp_path / name, mode) as tar:  # type: ignore[call-overload]
            tar.add(tmp_path / "a", "a")
        assert str(tmp_path / name) in script("lumi-g", account=LUMI, data=str(tmp_path / name))
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 40  # tarfile would read all of it
    (tmp_path / "large.tar").write_bytes(header.tobuf() + b"x" * 512)
    assert "large.tar" in script("lumi-g", account=LUMI, data=str(tmp_path / "large.tar"))
    (tmp_path / "good.tar.zst").write_bytes(zstandard.compress((tmp_path / "good.tar").read_bytes()))
    assert "good.tar.zst" in script("lumi-g", account=LUMI, data=str(tmp_path / "good.tar.zst"))


def test_fast_network() -> None:
    """Wrappers run in the container, outermost first; ranks meet at the node's name in the fast network."""
    site = Site(
        slurm=Slurm(account="none"),
        node=Node(gpus=4, cores=64),
        proxy=Proxy(url="http://p:1"),
        runtime=Runtime(kind="apptainer", wrapper=("/host/adapt.sh",)),
        fabric=Fabric(master_address="{host}i", wrapper=("env", "A=$B"), srun=("--mpi=pmi2",)),
    )
    text = render(plan_job(made_recipe(site=site), JobRequest(command=("python", "t.py"), nodes=2)))
    assert 'MASTER_ADDR="${MASTER_ADDR}i"' in text
    assert '/host/adapt.sh env "A=$B" python t.py' in text
    assert re.search(r"^srun .*--mpi=pmi2 --kill-on-bad-exit=1 bash -c task", text, re.MULTILINE)
    assert "export HTTPS_PROXY=http://p:1" in text and "--env https_proxy=http://p:1" in text
    one = render(plan_job(made_recipe(site=site), JobRequest(command=("python", "t.py"))))
    assert "MASTER_ADDR}i" not in one and "/host/adapt.sh python t.py" in one and "pmi2" not in one
