#!/bin/bash
# Chameleon compute_liqid: target chameleon-a100 on this machine, 2 GPUs.
# Written by builder VERSION on 2026-11-29, with the site's settings of 2026-11-22; run it with: bash FILE
# Image: builder/chameleon-a100:latest

main() {
    set -euo pipefail

    BUILDER_JOB_ID=$(date +%Y%m%dT%H%M%S)-$$
    export BUILDER_JOB_ID
    export BUILDER_IMAGE=builder/chameleon-a100:latest
    get_image

    export MASTER_ADDR=127.0.0.1
    free_port

    options=() # what only this machine knows
    # The container gets no variable of the host but those that are named.
    for name in \
        "${!SLURM_@}" "${!CUDA_VISIBLE_DEVICES@}" "${!ROCR_VISIBLE_DEVICES@}" "${!HIP_VISIBLE_DEVICES@}" \
        "${!NCCL_@}" "${!RCCL_@}" "${!FI_@}" "${!HSA_@}" \
        "${!MIOPEN_@}" "${!MPICH_@}" "${!PMI_@}" "${!PMI2_@}" \
        "${!PMIX_@}" "${!MLFLOW_@}" "${!AWS_@}"; do
        options+=(-e "$name")
    done
    docker run "${options[@]}" --rm --gpus=all --network=host --ipc=host -v "$PWD:$PWD" \
        -e MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=true -e "MASTER_ADDR=$MASTER_ADDR" \
        -e "MASTER_PORT=$MASTER_PORT" -w "$PWD" \
        "$BUILDER_IMAGE" torchrun --nnodes=1 --nproc-per-node=2 "--master-addr=$MASTER_ADDR" "--master-port=$MASTER_PORT" --no-python python train.py --note "it's \"100 \$\" & more"
}

# ---------------------------------------------------------------------------------------------------------
# Standard functions of builder VERSION. What belongs to this job and its site is above.

stored_image() {
    local found
    found=$(docker image inspect --format '{{range .RepoDigests}}{{.}} {{end}}{{.Id}}' "$BUILDER_IMAGE" 2>/dev/null) || return
    echo "image: $BUILDER_IMAGE, $found"
}
# Finds the image, or ends the job.
get_image() {
    stored_image || {
        echo "no image $BUILDER_IMAGE; builder build chameleon-a100 --load docker" >&2
        exit 1
    }
}
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

main
