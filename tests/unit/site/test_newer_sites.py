"""Jobs on the sites that came in 2026, compared with the sites' own scripts.

``SCRIPTS`` and ``INTERACTIVE`` are part of the golden files of test_render.py.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from builder.cli import cli, run
from builder.config.recipe import load_recipe

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"

#: Golden file -> target and options of builder job: the job of the script that is named above it.
SCRIPTS = {
    # docs.cscs.ch, software/ml/pytorch, 2026-02-23: "dist-train-ddp", with its environment definition file
    "alps-clariden.nodes.sh": ("alps-clariden", "--account g123 --nodes 2 --check-fabric"),
    # docs.cscs.ch, tutorials/ml/llm-nanotron-training, 2025-08-22: "pretrain-nanotron"
    "alps-daint.torchrun.sh": (
        "alps-daint",
        "--account g123 --nodes 2 --launcher torchrun --time 00:45:00",
    ),
    # docs.cscs.ch, running/slurm, 2026-06-24: one rank per GPU of a GH200 node
    "alps-santis.node.sh": ("alps-santis", "--gpus 4 --checkpoint $SCRATCH/run"),
    # docs.cirrus.ac.uk, user-guide/containers, 2025-11-15: "apptainer_parallel", with 8 processes a node
    "cirrus.mpi.sh": ("cirrus", "--account t01 --nodes 2 --time 0:10:0"),
    # olcf_containers_examples 032b962, 2026-03-24: frontier/.../apptainer_wrappers_lammps/gpu/submit.slurm;
    # docs.olcf.ornl.gov, software/analytics/pytorch_frontier, 2026-07-07, for --network and the variables
    "frontier.nodes.sh": ("frontier", "--account stf007 --nodes 2 --time 00:20:00 --check-fabric"),
    # docs.olcf.ornl.gov, systems/frontier_user_guide, 2026-07-07: -q debug, 8 GPUs with 7 cores each
    "frontier.node.sh": ("frontier", "--account abc123 --gpus 8 --qos debug --constraint nvme"),
    # skills.isambard.ac.uk 11af726, 2026: skill slurm, one GPU
    "isambard-ai.gpu.sh": ("isambard-ai", "--time 00:05:00"),
    # skills.isambard.ac.uk edf303b (slurm, two nodes) and e3a757b (containers, adapt.sh)
    "isambard-ai.nodes.sh": ("isambard-ai", "--account brics.u6ef --nodes 2"),
    # the same, skill mpi: pmi2
    "isambard-ai.mpi.sh": ("isambard-ai", "--nodes 2 --launcher mpi"),
    # apps.fz-juelich.de/jsc/hps/jupiter, 2026-09-02: page gpu-computing, example 1
    "jupiter.nodes.sh": ("jupiter", "--account e-dev-2026d09-128 --nodes 4 --time 00:15:00"),
    # titan-oellm d999abe, 2026-07-09: slurm/jupiter.sh, one node with torchrun
    "jupiter.torchrun.sh": ("jupiter", "--account jureap59 --launcher torchrun --time 1:00:00"),
    # trustllm-envs 4d93afb, 2025-08: torchtitan-env/jsc/run_training_jwb.sbatch
    "juwels-booster.torchrun.sh": (
        "juwels-booster",
        "--account trustllm-eu --nodes 2 --launcher torchrun --partition develbooster --time 00:20:00",
    ),
    # autoresearch-jsc 26919fb, 2026-03-16: submit_template.sbatch
    "juwels-booster.node.sh": ("juwels-booster", "--account hai_1259 --time 0:10:00"),
    # ai-at.eu/hpc-onboarding, chapter 6, 2026-05: one GPU in a container
    "leonardo.gpu.sh": ("leonardo", "--account EUHPC_D01_040 --qos boost_qos_dbg --time 0:30:00"),
    # CINECA's course of 2026-06: four processes on a node
    "leonardo.node.sh": ("leonardo", "--account tra26_polimi_0 --gpus 4 --time 00:30:00"),
    # MN5-Distributed-PyTorch 1131254, 2024-05-22: slurm/submit_multinode.sh
    "marenostrum5.torchrun.sh": (
        "marenostrum5",
        "--account bsc98 --qos acc_bsccs --nodes 2 --launcher torchrun --time 00:02:00",
    ),
    # NNCV_0941451 1503747 (a course of TU/e): Final_assignment/jobscript_slurm.sh
    "snellius-a100.gpu.sh": ("snellius-a100", "--time 00:30:00"),
    # the same course's form for H100; servicedesk.surf.nl, Snellius filesystems, for the constraint
    "snellius-h100.gpu.sh": (
        "snellius-h100",
        "--time 10:00:00 --constraint scratch-node --data /gpfs/work2/0/prjs1879/set.tar",
    ),
    # docs.alliancecan.ca, Trillium Quickstart, 2026-05-08: the examples for one GPU and for several nodes
    "alliance-trillium.gpu.sh": ("alliance-trillium", "--time 00:30:00"),
    "alliance-trillium.nodes.sh": ("alliance-trillium", "--nodes 2 --time 04:00:00"),
    # Vector Institute, Introduction to Vector Compute, 2025-09, with the site's --gpus-per-node for --gres
    "alliance-killarney.gpu.sh": (
        "alliance-killarney",
        "--account aip-x-ksupport --cpus 4 --mem 32G --time 1:00:00",
    ),
    # docs.alliancecan.ca, Using GPUs with Slurm, 2026-04-03: model names of the clusters
    "alliance-killarney-h100.node.sh": ("alliance-killarney-h100", "--account aip-someprof --gpus 8"),
    # docs.alliancecan.ca, TamIA, 2026-08-14: whole nodes of h100:4 and h200:8
    "alliance-tamia.nodes.sh": ("alliance-tamia", "--account aip-someprof --nodes 2"),
    "alliance-tamia-h200.node.sh": ("alliance-tamia-h200", "--account aip-someprof"),
    # docs.alliancecan.ca, Vulcan, 2026-03-27
    "alliance-vulcan.gpu.sh": ("alliance-vulcan", "--account aip-someprof --time 7-00:00"),
}

INTERACTIVE = {
    # docs.cscs.ch, clusters/clariden, 2026-06-09: partition debug; software/container-engine/run: srun --pty
    "alps-clariden.salloc.txt": ("alps-clariden", "--interactive --gpus 4"),
    # docs.olcf.ornl.gov, containers on Frontier: salloc -t 00:50:00 -A gen107 -N2 -qdebug
    "frontier.salloc.txt": ("frontier", "--account gen107 --interactive --time 00:50:00"),
    # skills.isambard.ac.uk, slurm: salloc stays on the login node; users: partition and reservation
    "isambard-ai.salloc.txt": ("isambard-ai", "--interactive --time 00:10:00"),
    # apps.fz-juelich.de/jsc/hps/jupiter, batch system, 2026-09-02: salloc stays on the login node
    "jupiter.salloc.txt": ("jupiter", "--account e-dev-2026d09-128 --interactive"),
    # CINECA's course of 2026-06: -q boost_qos_dbg, salloc stays on the login node
    "leonardo.salloc.txt": ("leonardo", "--account tra26_polimi_0 --interactive --gpus 4"),
}

#: Golden file -> what the site's script has, in the words of builder job. Left out: other programs, and
#: options that say the same (-N 2 and --nodes=2; --gpus=8 of two nodes and --gpus-per-node=4).
OF_THE_SITE = {
    "alps-clariden.nodes.sh": (
        "--account=g123", "--time=01:00:00", "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=72",
        'image = "${', '"/capstor:/capstor"', '"/iopsstor:/iopsstor"', 'workdir = "${SLURM_SUBMIT_DIR}"',
        '[annotations]\ncom.hooks.aws_ofi_nccl.enabled = "true"\ncom.hooks.aws_ofi_nccl.variant = "cuda-dl"',
        'CUDA_CACHE_DISABLE = "1"', 'TORCH_NCCL_ASYNC_ERROR_HANDLING = "1"',
        'MPICH_GPU_SUPPORT_ENABLED = "0"', 'NVIDIA_VISIBLE_DEVICES = "all"', "NCCL_DEBUG=INFO",
        "Using network AWS Libfabric", "--environment=",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    ),
    "alps-daint.torchrun.sh": (
        "--account=g123", "--time=00:45:00", "--nodes=2", "--ntasks-per-node=1", "--environment=",
        "torchrun --nnodes=2 --nproc-per-node=4", "--master-addr=",
    ),
    "alps-santis.node.sh": ("--ntasks-per-node=4", "--gpus-per-node=4", "--cpus-per-task=72"),
    "alps-clariden.salloc.txt": ("--partition=debug", "srun --pty --environment="),
    "cirrus.mpi.sh": (
        "--time=0:10:0", "--exclusive", "--nodes=2", "--partition=standard", "--qos=standard",
        "module load cray-mpich-abi/8.1.32", "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        "LD_LIBRARY_PATH=/opt/cray/pe/mpich/8.1.32/ofi/gnu/11.2/lib-abi-mpich:/opt/cray/libfabric/1.22.0/lib64:"
        "/opt/cray/pals/1.6/lib:/opt/cray/pe/lib64:/opt/xpmem/lib64:/lib64",
        "/opt/cray,/var/spool,",
        "/etc/host.conf,/etc/libibverbs.d/mlx5.driver,/etc/libnl/classid,/etc/resolv.conf,",
        "/lib64/libatomic.so.1,/lib64/libgcc_s.so.1,/lib64/libgfortran.so.5,/lib64/libquadmath.so.0,",
        "/opt/xpmem/lib64/libxpmem.so.0,/run/munge/munge.socket.2,/lib64/libmunge.so.2,/lib64/libnl-3.so.200,"
        "/lib64/libnl-genl-3.so.200,/lib64/libnl-route-3.so.200,/lib64/librdmacm.so.1,/lib64/libcxi.so.1,"
        "/lib64/libm.so.6",
        "srun --hint=nomultithread --distribution=block:block",
    ),
    "frontier.nodes.sh": (
        "--account=stf007", "--nodes=2", "--ntasks-per-node=8", "--cpus-per-task=7", "--time=00:20:00",
        "--network=disable_rdzv_get", "--partition=batch",
        "module load olcf-container-tools\nmodule load apptainer-enable-mpi\n",
        "module load apptainer-enable-gpu\n",
        "apptainer exec", "--rocm", "NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3", "NCCL_NET_GDR_LEVEL=PHB",
        "FI_MR_CACHE_MONITOR=kdreg2", "FI_CXI_RDZV_PROTO=alt_read", "FI_CXI_RX_MATCH_MODE=hybrid",
        "FI_CXI_DEFAULT_TX_SIZE=2048", "MIOPEN_USER_DB_PATH=/tmp/", "MIOPEN_CUSTOM_CACHE_DIR=/tmp/",
        "http_proxy=http://proxy.ccs.ornl.gov:3128",
    ),
    "frontier.node.sh": ("--qos=debug", "--constraint=nvme", "--cpus-per-task=7", "mask_cpu:0xfe0000000000"),
    "isambard-ai.gpu.sh": ("--nodes=1", "--gpus-per-node=1", "--time=00:05:00"),
    "isambard-ai.nodes.sh": (
        "--nodes=2", "--gpus-per-node=4", "--ntasks-per-node=4", "--cpus-per-task=72", "--time=01:00:00",
        "module load brics/apptainer-multi-node", "apptainer exec --cleanenv --nv", "/host/adapt.sh python",
    ),
    "isambard-ai.mpi.sh": ("srun --mpi=pmi2", '"$BUILDER_IMAGE" /host/adapt.sh python'),
    "jupiter.nodes.sh": (
        "--nodes=4", "--ntasks-per-node=4", "--time=00:15:00", "--partition=booster", "--gres=gpu:4",
        "--cpus-per-task=72", "export CUDA_VISIBLE_DEVICES=0,1,2,3", "-interconnect-1.jupiter.internal",
        "srun --mpi=none",
    ),
    "jupiter.torchrun.sh": (
        "--nodes=1", "--gres=gpu:4", "--ntasks-per-node=1", "--partition=booster", "--time=1:00:00",
        "MASTER_ADDR=127.0.0.1", "apptainer exec", "--nv", "torchrun --nnodes=1 --nproc-per-node=4",
    ),
    "juwels-booster.torchrun.sh": (
        "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=48", "--threads-per-core=1", "--gres=gpu:4",
        "--time=00:20:00", "--account=trustllm-eu", "--partition=develbooster",
        'MASTER_ADDR="${MASTER_ADDR}i"',
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", "GLOO_SOCKET_IFNAME=ib0", "NCCL_IB_TIMEOUT=20",
    ),
    "juwels-booster.node.sh": ("--nodes=1", "--gres=gpu:4", "export CUDA_VISIBLE_DEVICES=0,1,2,3"),
    "leonardo.gpu.sh": (
        "--partition=boost_usr_prod", "--qos=boost_qos_dbg", "--time=0:30:00", "--nodes=1",
        "--ntasks-per-node=1", "--mem=120G", "--cpus-per-task=8", "singularity exec --cleanenv --nv",
        "/leonardo_work,/leonardo_scratch",
    ),
    "leonardo.node.sh": ("--ntasks-per-node=4", "--cpus-per-task=8", "--gres=gpu:4", "--mem=480G"),
    "marenostrum5.torchrun.sh": (
        "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4", "--cpus-per-task=80", "--time=00:02:00",
        "--account=bsc98", "--qos=acc_bsccs", "module load singularity", "singularity exec", "--nv",
        "torchrun --nnodes=2 --nproc-per-node=4",
    ),
    "snellius-a100.gpu.sh": ("--nodes=1", "--cpus-per-task=18", "--partition=gpu_a100", "--time=00:30:00"),
    "snellius-h100.gpu.sh": ("--cpus-per-task=16", "--partition=gpu_h100", "--time=10:00:00", "$TMPDIR"),
    "alliance-trillium.gpu.sh": (
        "--nodes=1", "--gpus-per-node=1", "--time=00:30:00", "module load StdEnv/2023",
    ),
    "alliance-trillium.nodes.sh": (
        "--nodes=2", "--gpus-per-node=4", "--ntasks-per-node=4", "--time=04:00:00",
    ),
    "alliance-killarney.gpu.sh": (
        "--gpus-per-node=l40s:1", "--time=1:00:00", "--cpus-per-task=4", "--mem=32G",
    ),
    "alliance-killarney-h100.node.sh": ("--gpus-per-node=h100:8",),
    "alliance-tamia.nodes.sh": ("--gpus-per-node=h100:4",),
    "alliance-tamia-h200.node.sh": ("--gpus-per-node=h200:8",),
    "alliance-vulcan.gpu.sh": ("--gpus-per-node=l40s:1", "--time=7-00:00"),
    "frontier.salloc.txt": ("--time=00:50:00", "--account=gen107", "--qos=debug"),
    "isambard-ai.salloc.txt": ("--partition=interactive", "--reservation=interactive", "srun --pty"),
    "jupiter.salloc.txt": ("--partition=booster", "srun --pty"),
    "leonardo.salloc.txt": ("--qos=boost_qos_dbg", "--gres=gpu:4", "srun --pty"),
}  # fmt: skip
#: What a script must not have: the site refuses it, or its documents warn of it.
NOT_OF_THE_SITE = {
    "cirrus.mpi.sh": ("--mem",),
    "marenostrum5.torchrun.sh": ("--mem",),
    "alliance-trillium.gpu.sh": ("--mem", "--partition"),
    "alliance-trillium.nodes.sh": ("--mem", "--partition"),
    "alps-clariden.nodes.sh": ("--mem", "--gres", "--mpi="),
    "isambard-ai.gpu.sh": ("--partition", "adapt.sh", "--mpi="),
    "isambard-ai.nodes.sh": ("--partition", "--mpi="),
    "leonardo.gpu.sh": ("--exclusive",),
    "jupiter.nodes.sh": ("/p/",),
}


@pytest.mark.parametrize("name", sorted({*SCRIPTS, *INTERACTIVE}))
def test_scripts_of_the_sites(name: str) -> None:
    """The golden file has what the site's own script has."""
    text = (GOLDEN / name).read_text()
    assert [part for part in OF_THE_SITE[name] if part not in text] == []
    assert [part for part in NOT_OF_THE_SITE.get(name, ()) if part in text] == []


def refused(capsys: pytest.CaptureFixture[str], options: str) -> str:
    """Runs builder job, which must fail, and returns its message and hint."""
    assert run(cli, ["--project", str(ROOT), "job", *shlex.split(options), "--", "python", "t.py"]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("alps-clariden --time 13:00:00", "partition normal (12:00:00)", "--chain 2"),
        ("alps-clariden --partition debug --nodes 4 --time 0:30:00", "partition debug (00:22:30)", ""),
        ("alps-santis --partition debug --nodes 3 --time 0:30:00", "at most 2", "--partition normal"),
        ("cirrus --account t01 --mem 4G", "memory comes with the cores", ""),
        ("cirrus --account t01 --time 72:00:00", "standard with QOS standard", "--qos long"),
        ("cirrus --account t01 --nodes 200", "QOS standard allows at most 128", "--qos largescale"),
        ("frontier --account abc123 --nodes 2 --time 3:00:00", "batch (02:00:00)", "--partition extended"),
        ("frontier --account abc123 --nodes 100 --time 7:00:00", "batch (06:00:00)", "--chain 2"),
        ("isambard-ai --time 24:00:00", "exceeds the limit of the site (23:59:00)", "--chain 2"),
        ("jupiter --account a --time 13:00:00", "partition booster (12:00:00)", "--chain 2"),
        ("jupiter --account a --gpus 1", "allows only 4 GPUs per node", "--gpus 4"),
        ("juwels-booster --account a --partition develbooster --nodes 5", "at most 4", "--partition booster"),
        ("leonardo --account a --time 48:00:00", "exceeds the limit", "--qos boost_qos_lprod"),
        ("leonardo --account a --nodes 100", "QOS normal allows at most 64", "--qos boost_qos_bprod"),
        ("marenostrum5 --account bsc98 --mem 10G", "memory comes with the cores", ""),
        ("marenostrum5 --account bsc98 --qos acc_debug --nodes 9", "QOS acc_debug allows at most 8", "--qos"),
        ("snellius-h100 --partition gpu", "has no such partition", "gpu_h100"),
        ("alliance-trillium --gpus 2", "allows only 1 or 4 GPUs", "--gpus 1; or --gpus 4"),
        ("alliance-trillium --time 00:10:00", "requires at least 00:15:00", ""),
        ("alliance-killarney --account def-me", "has no account of this form", "aip-someprof"),
        ("alliance-tamia --account aip-me --time 25:00:00", "(24:00:00)", "--chain 2"),
    ],
)  # fmt: skip
def test_refused(options: str, message: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the site does not allow is refused before it is submitted, with a way that it does allow."""
    printed = " ".join(refused(capsys, options).split())
    assert message in printed and hint in printed, printed


def test_whole_nodes_are_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Where a partition gives whole nodes only, a job without --gpus gets one."""
    whole = {"jupiter": 4, "juwels-booster": 4, "alliance-tamia": 4, "alliance-tamia-h200": 8}
    for target, gpus in whole.items():
        assert run(cli, ["--project", str(ROOT), "job", target, "--account", "aip-x", "--", "true"]) == 0
        assert f"--ntasks-per-node={gpus}\n" in capsys.readouterr().out


def test_processors() -> None:
    """Systems with GH200 take images for arm64."""
    arm = {name for name, _ in SCRIPTS.values() if load_recipe(name, ROOT).platform == "linux-aarch64"}
    assert arm == {"alps-clariden", "alps-daint", "alps-santis", "isambard-ai", "jupiter"}
