#!/bin/bash
# cpu: target cpu on this machine.
# Written by builder VERSION on 2026-11-29; run it with: bash FILE
# Image: that of target cpu in dist/ on this machine.

main() {
    set -euo pipefail

    BUILDER_JOB_ID=$(date +%Y%m%dT%H%M%S)-$$
    export BUILDER_JOB_ID
    export MASTER_ADDR=127.0.0.1
    free_port

    export BUILDER_CHECKPOINT_DIR="$PWD/checkpoints"
    export BUILDER_RESUME=
    find_checkpoint

    builder run cpu --no-build --bind "$PWD:$PWD" \
        --bind "$BUILDER_CHECKPOINT_DIR:$BUILDER_CHECKPOINT_DIR" --env "MASTER_ADDR=$MASTER_ADDR" \
        --env "MASTER_PORT=$MASTER_PORT" --env "BUILDER_CHECKPOINT_DIR=$BUILDER_CHECKPOINT_DIR" \
        --env "BUILDER_RESUME=$BUILDER_RESUME" --workdir "$PWD" \
        -- torchrun --nnodes=1 --nproc-per-node=2 "--master-addr=$MASTER_ADDR" "--master-port=$MASTER_PORT" --no-python python train.py --note "it's \"100 \$\" & more"
}

# ---------------------------------------------------------------------------------------------------------
# Standard functions of builder VERSION. What belongs to this job and its site is above.

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
        port=$((29500 + ($$ + try) % 1000 * 2))
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
# Finds what a training resumes from.
find_checkpoint() {
    mkdir -p "$BUILDER_CHECKPOINT_DIR"
    # Resume from the newest checkpoint, a file or a folder that is not empty; start from the beginning if there is none.
    for file in "$BUILDER_CHECKPOINT_DIR"/{*.pt,*.pth,*.ckpt,*.safetensors,*.keras,*.h5,checkpoint-*/,step_*/,global_step*/}; do
        file=${file%/}
        if [[ -s $file && (-f $file || -n $(ls -A "$file")) && (-z $BUILDER_RESUME || $file -nt $BUILDER_RESUME) ]]; then
            BUILDER_RESUME=$file
        fi
    done
    echo "checkpoint: ${BUILDER_RESUME:-none, starting from the beginning}"
}

main
