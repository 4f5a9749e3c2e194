#!/bin/sh
# An example, copied and run: torch from requirements, and a job that resumes.
set -eu
cp -r builder-clone/examples/torch-slurm line
cd line
builder build laptop
builder run laptop
test -s checkpoints/line-0019.pt
builder job cluster --account m0000 --gpus 4 --chain 3 \
    --output job.sh -- python train.py
bash -n job.sh
