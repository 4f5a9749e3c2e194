#!/bin/bash
# cpu: target cpu on this machine.
# Written by builder job; run it with: bash FILE

set -euo pipefail

BUILDER_JOB_ID=$(date +%Y%m%dT%H%M%S)-$$
export BUILDER_JOB_ID
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500

export BUILDER_CHECKPOINT_DIR="$PWD/checkpoints"
export BUILDER_RESUME=
mkdir -p "$BUILDER_CHECKPOINT_DIR"
# Resume from the newest checkpoint, a file or a folder that is not empty; start from the beginning if there is none.
for file in "$BUILDER_CHECKPOINT_DIR"/{*.pt,*.pth,*.ckpt,*.safetensors,*.keras,*.h5,checkpoint-*/,step_*/,global_step*/}; do
    file=${file%/}
    if [[ -s $file && (-f $file || -n $(ls -A "$file")) && (-z $BUILDER_RESUME || $file -nt $BUILDER_RESUME) ]]; then
        BUILDER_RESUME=$file
    fi
done
echo "checkpoint: ${BUILDER_RESUME:-none, starting from the beginning}"

builder run cpu --bind "$PWD:$PWD" --bind "$BUILDER_CHECKPOINT_DIR:$BUILDER_CHECKPOINT_DIR" \
    --env "MASTER_ADDR=$MASTER_ADDR" --env "MASTER_PORT=$MASTER_PORT" \
    --env "BUILDER_CHECKPOINT_DIR=$BUILDER_CHECKPOINT_DIR" --env "BUILDER_RESUME=$BUILDER_RESUME" \
    --workdir "$PWD" \
    -- torchrun --nnodes=1 --nproc-per-node=2 "--master-addr=$MASTER_ADDR" "--master-port=$MASTER_PORT" --no-python python train.py --note "it's \"100 \$\" & more"
