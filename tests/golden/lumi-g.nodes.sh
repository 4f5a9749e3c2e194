#!/bin/bash
# LUMI-G: target lumi-g on 4 nodes, 8 GPUs per node, 8 processes per node.
# Written by builder job; submit it with: sbatch FILE
#SBATCH --job-name=lumi-g
#SBATCH --account=project_465000000
#SBATCH --partition=standard-g
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --gpus-per-node=8
#SBATCH --mem=480G
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out

set -euo pipefail

export BUILDER_JOB_ID=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} # one for all segments of a chain
export BUILDER_IMAGE=/scratch/project_465000000/images/lumi-g.sif
if [[ ! -r $BUILDER_IMAGE ]]; then
    echo "no image $BUILDER_IMAGE: download it with builder pull lumi-g --output $BUILDER_IMAGE" >&2
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

# Unpack the data on each node's own storage: shared file systems are slow with many small files.
export BUILDER_DATA="/tmp/$USER-$SLURM_JOB_ID/data"
unpack() {
    private_folder "$BUILDER_DATA" && tar --extract --file=/scratch/project_465000000/set.tar --directory="$BUILDER_DATA"
}
remove_data() {
    private_folder "$BUILDER_DATA" 2>/dev/null && rm -rf "$BUILDER_DATA"
}
export -f private_folder unpack remove_data
trap 'srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 bash -c remove_data' EXIT
srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 bash -c unpack

# Runs once per process, with one GPU. Slurm sets the rank; torch expects it under other names.
task() {
    private_folder "/tmp/$USER-miopen-cache-$SLURM_JOB_ID" || exit 1
    # The container has a clean environment. Pass these variables of the host into it.
    for name in "${!SLURM_@}" "${!CUDA_VISIBLE_DEVICES@}" "${!ROCR_VISIBLE_DEVICES@}" "${!HIP_VISIBLE_DEVICES@}" "${!NCCL_@}" "${!RCCL_@}" "${!FI_@}" "${!HSA_@}" "${!MIOPEN_@}" "${!MPICH_@}" "${!PMI_@}" "${!PMI2_@}" "${!PMIX_@}" "${!MLFLOW_@}" "${!AWS_@}"; do
        export "SINGULARITYENV_$name=${!name}"
    done
    exec singularity exec --cleanenv --no-eval \
        --bind "/var/spool/slurmd,/pfs,/scratch,/projappl,/project,/flash,/appl,$SLURM_SUBMIT_DIR,$BUILDER_DATA" \
        --env PYTHONNOUSERSITE=1 --env "MIOPEN_USER_DB_PATH=/tmp/$USER-miopen-cache-$SLURM_JOB_ID" \
        --env "MIOPEN_CUSTOM_CACHE_DIR=/tmp/$USER-miopen-cache-$SLURM_JOB_ID" --env NCCL_SOCKET_IFNAME=hsn \
        --env FI_MR_CACHE_MONITOR=userfaultfd \
        --env LD_PRELOAD=/usr/lib/libfabric.so.1:/opt/rocm/lib/librccl.so.1 --env "RANK=$SLURM_PROCID" \
        --env "LOCAL_RANK=$SLURM_LOCALID" --env "WORLD_SIZE=$SLURM_NTASKS" --env "MASTER_ADDR=$MASTER_ADDR" \
        --env "MASTER_PORT=$MASTER_PORT" --env "BUILDER_DATA=$BUILDER_DATA" --pwd "$SLURM_SUBMIT_DIR" \
        "$BUILDER_IMAGE" python train.py --note "it's \"100 \$\" & more"
}
export -f private_folder task

# If a rank fails, end the others too: they would wait for it until the time limit.
srun --cpu-bind=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000 --mpi=pmi2 --kill-on-bad-exit=1 bash -c task
