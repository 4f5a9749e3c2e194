#!/bin/sh
# An example, copied and run: torch from requirements, and a job that resumes.
set -eu
cp -r builder-clone/examples/torch-slurm line
cd line
builder build laptop
builder run laptop
test -s checkpoints/line-0019.pt
builder run laptop --env BUILDER_RESUME=checkpoints/line-0009.pt \
    -- python train.py >resumed.txt
grep 'epoch 10:' resumed.txt
test "$(grep -c epoch resumed.txt)" = 10
builder job cluster --account m0000 --gpus 4 --chain 3 \
    --output job.sh -- python train.py
bash -n job.sh
