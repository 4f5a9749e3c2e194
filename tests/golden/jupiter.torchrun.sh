#!/bin/bash
# JUPITER Booster: target jupiter on 1 node, 4 GPUs, processes started by torchrun.
# Written by builder job; submit it with: sbatch FILE
#SBATCH --job-name=jupiter
#SBATCH --account=jureap59
#SBATCH --partition=booster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=288
#SBATCH --gres=gpu:4
#SBATCH --time=1:00:00
#SBATCH --output=%x-%j.out

set -eo pipefail
export CUDA_VISIBLE_DEVICES=0,1,2,3
set -u

export BUILDER_JOB_ID=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} # one for all segments of a chain
export BUILDER_IMAGE="/e/project1/jureap59/$USER/images/jupiter.sif"
if [[ ! -r $BUILDER_IMAGE ]]; then
    echo "no image $BUILDER_IMAGE: download it with builder pull jupiter --output $BUILDER_IMAGE" >&2
    exit 1
fi

# The ranks meet on the first node of the job.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_ADDR=127.0.0.1 # all ranks are on one node
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

# Runs on each node; torchrun starts the node's processes.
task() {
    # The container has a clean environment. Pass these variables of the host into it.
    for name in "${!SLURM_@}" "${!CUDA_VISIBLE_DEVICES@}" "${!ROCR_VISIBLE_DEVICES@}" "${!HIP_VISIBLE_DEVICES@}" "${!NCCL_@}" "${!RCCL_@}" "${!FI_@}" "${!HSA_@}" "${!MIOPEN_@}" "${!MPICH_@}" "${!PMI_@}" "${!PMI2_@}" "${!PMIX_@}" "${!MLFLOW_@}" "${!AWS_@}"; do
        value=${!name//\\/\\\\} value=${value//\$/\\\$} value=${value//\`/\\\`} # the runtime evaluates it like a shell
        export "APPTAINERENV_$name=$value"
    done
    exec apptainer exec --cleanenv --nv --bind "/e,$SLURM_SUBMIT_DIR" --env PYTHONNOUSERSITE=1 \
        --env "MASTER_ADDR=$MASTER_ADDR" --env "MASTER_PORT=$MASTER_PORT" --pwd "$SLURM_SUBMIT_DIR" \
        "$BUILDER_IMAGE" torchrun --nnodes=1 --nproc-per-node=4 "--master-addr=$MASTER_ADDR" "--master-port=$MASTER_PORT" --no-python python train.py --note "it's \"100 \$\" & more"
}
export -f task

# If a rank fails, end the others too: they would wait for it until the time limit.
srun --mpi=none --kill-on-bad-exit=1 bash -c task
