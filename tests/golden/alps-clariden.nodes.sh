#!/bin/bash
# Alps Clariden: target alps-clariden on 2 nodes, 4 GPUs per node, 4 processes per node.
# Written by builder job; submit it with: sbatch FILE
#SBATCH --job-name=alps-clariden
#SBATCH --account=g123
#SBATCH --partition=normal
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=72
#SBATCH --gpus-per-node=4
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out

set -euo pipefail

export BUILDER_JOB_ID=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} # one for all segments of a chain
export BUILDER_IMAGE="$SCRATCH/ce-images/alps-clariden.sqsh"
if [[ ! -r $BUILDER_IMAGE ]]; then
    echo "no image $BUILDER_IMAGE: download it with builder pull alps-clariden --output $BUILDER_IMAGE" >&2
    exit 1
fi
if [[ $(srun --help 2>&1) != *--environment* ]]; then
    echo 'this Slurm has no option --environment: the Container Engine is not installed' >&2
    exit 1
fi

# The ranks meet on the first node of the job.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR
# Makes a folder. In one that users share, such as /tmp, it must be mine alone: others could exchange its files.
private_folder() {
    local path=${1%/} parent error
    [[ $PWD/ != "$path"/* ]] || return 0 # the job works in or below it
    [[ $path == /* ]] || path=$PWD/$path
    parent=${path%/*}
    private_folder "$parent" || return
    if [[ ! -k ${parent:-/} ]]; then # not shared: no sticky bit
        [[ -d $path ]] || mkdir -p "$path"
    elif ! error=$(mkdir -m 700 "$path" 2>&1) && [[ $(stat -c "%u %A" "$path") != @(0|"$EUID")\ d????-??-? ]]; then
        echo "$error; it must be yours and closed to others: remove it, or change the site's local and folders" >&2
        return 1
    fi
}
# A port that no other job of yours on this node has, and the next one: the lock lives as long as this script.
free_port() {
    local try port locks
    locks=/tmp/builder-ports-$(id -u)
    private_folder "$locks" 2>/dev/null || locks=/nonexistent # somebody else's
    for ((try = 0; try < 1000; try++)); do
        port=$((29500 + (SLURM_JOB_ID + try) % 1000 * 2))
        { exec {port_lock}>"$locks/$port"; } 2>/dev/null || exec {port_lock}< <(:) # no lock: /tmp is full
        if flock --nonblock "$port_lock" && ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            export MASTER_PORT=$port
            return
        fi
        exec {port_lock}>&-
    done
    echo "no port from 29500 on is free" >&2
    exit 1
}
free_port
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # since Slurm 22.05, srun does not inherit it from sbatch

# For enroot, which starts the container. A login shell would replace the image's PATH.
export ENROOT_LOGIN_SHELL=no
# The container, for srun. The Container Engine fills in the variables.
BUILDER_EDF=$SLURM_SUBMIT_DIR/.builder-$SLURM_JOB_ID.toml
trap 'rm -f "$BUILDER_EDF"' EXIT
cat >"$BUILDER_EDF" <<'EOF'
image = "${BUILDER_IMAGE}"
workdir = "${SLURM_SUBMIT_DIR}"
entrypoint = false
writable = true
mounts = [
    "/capstor:/capstor",
    "/iopsstor:/iopsstor",
    "${SLURM_SUBMIT_DIR}:${SLURM_SUBMIT_DIR}",
]

[env]
NVIDIA_VISIBLE_DEVICES = "all"
NVIDIA_DRIVER_CAPABILITIES = "compute,utility"
CUDA_CACHE_DISABLE = "1"
TORCH_NCCL_ASYNC_ERROR_HANDLING = "1"
MPICH_GPU_SUPPORT_ENABLED = "0"

[annotations]
com.hooks.aws_ofi_nccl.enabled = "true"
com.hooks.aws_ofi_nccl.variant = "cuda-dl"
EOF
container=("--environment=$BUILDER_EDF")

# Runs once per process, with one GPU. Slurm sets the rank; torch expects it under other names.
task() {
    exec env "RANK=$SLURM_PROCID" "LOCAL_RANK=$SLURM_LOCALID" "WORLD_SIZE=$SLURM_NTASKS" \
        "MASTER_ADDR=$MASTER_ADDR" "MASTER_PORT=$MASTER_PORT" \
        python train.py --note "it's \"100 \$\" & more"
}

# If a rank fails, end the others too: they would wait for it until the time limit.
srun --kill-on-bad-exit=1 "${container[@]}" bash -c "$(declare -f task); task"
