#!/bin/bash
# Chameleon compute_liqid: target chameleon-a100 on this machine, 2 GPUs.
# Written by builder job; run it with: bash FILE

set -euo pipefail

BUILDER_JOB_ID=$(date +%Y%m%dT%H%M%S)-$$
export BUILDER_JOB_ID
export BUILDER_IMAGE=builder/chameleon-a100:latest

export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500

docker run --rm --gpus=all --shm-size=12g --network=host --ipc=host -v "$PWD:$PWD" \
    -e MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=true -e "MASTER_ADDR=$MASTER_ADDR" -e "MASTER_PORT=$MASTER_PORT" \
    -w "$PWD" \
    "$BUILDER_IMAGE" torchrun --nnodes=1 --nproc-per-node=2 "--master-addr=$MASTER_ADDR" "--master-port=$MASTER_PORT" --no-python python train.py --note "it's \"100 \$\" & more"
