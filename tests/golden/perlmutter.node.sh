#!/bin/bash
# NERSC Perlmutter: target perlmutter on 1 node, 4 GPUs, 4 processes a node.
# Written by builder job; submit it with: sbatch FILE
#SBATCH --job-name=perlmutter
#SBATCH --account=m558
#SBATCH --qos=regular
#SBATCH --constraint=gpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out

set -euo pipefail

export BUILDER_IMAGE=registry.nersc.gov/m558/superfacility/synapse-ml:latest

# Where the ranks meet: the first node of the job.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=29500
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # srun does not take it over by itself

export BUILDER_CHECKPOINT_DIR="$SCRATCH/run"
export BUILDER_RESUME=
mkdir -p "$BUILDER_CHECKPOINT_DIR"
# Go on from the newest checkpoint; with none, start anew.
for file in "$BUILDER_CHECKPOINT_DIR"/*.pt; do
    if [[ -s $file && (-z $BUILDER_RESUME || $file -nt $BUILDER_RESUME) ]]; then
        BUILDER_RESUME=$file
    fi
done
echo "checkpoint: ${BUILDER_RESUME:-none, starting anew}"

# The data is one tar, unpacked on the node into its own storage: shared storage is poor at many small files.
export BUILDER_DATA="/tmp/$USER-$SLURM_JOB_ID/data"
unpack() {
    mkdir -p "$BUILDER_DATA" && tar --extract --file="$SCRATCH/set.tar" --directory="$BUILDER_DATA"
}
trap 'rm -rf "$BUILDER_DATA"' EXIT
unpack

# One process, with one GPU. Slurm says which of all it is; the program wants to know that by torch's names.
task() {
    exec podman-hpc run --rm --gpu --network=host --ipc=host -e 'SLURM_*' -e CUDA_VISIBLE_DEVICES \
        -e ROCR_VISIBLE_DEVICES -e HIP_VISIBLE_DEVICES -e 'NCCL_*' -e 'RCCL_*' -e 'MLFLOW_*' -e 'AWS_*' \
        -v /etc/localtime:/etc/localtime -v "$SLURM_SUBMIT_DIR:$SLURM_SUBMIT_DIR" \
        -v "$BUILDER_DATA:$BUILDER_DATA" -v "$BUILDER_CHECKPOINT_DIR:$BUILDER_CHECKPOINT_DIR" \
        -e "RANK=$SLURM_PROCID" -e "LOCAL_RANK=$SLURM_LOCALID" -e "WORLD_SIZE=$SLURM_NTASKS" \
        -e "MASTER_ADDR=$MASTER_ADDR" -e "MASTER_PORT=$MASTER_PORT" -e "BUILDER_DATA=$BUILDER_DATA" \
        -e "BUILDER_CHECKPOINT_DIR=$BUILDER_CHECKPOINT_DIR" -e "BUILDER_RESUME=$BUILDER_RESUME" \
        -w "$SLURM_SUBMIT_DIR" \
        "$BUILDER_IMAGE" python train.py --note "it's \"100 \$\" & more"
}
export -f task

# A rank that fails ends the others, which would wait for it until the time is up.
srun --kill-on-bad-exit=1 bash -c task
