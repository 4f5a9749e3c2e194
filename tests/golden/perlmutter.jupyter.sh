#!/bin/bash
# NERSC Perlmutter: target perlmutter on 1 node, 4 GPUs, 1 process per node.
# Written by builder job; submit it with: sbatch FILE
#SBATCH --job-name=perlmutter
#SBATCH --account=m558
#SBATCH --qos=regular
#SBATCH --constraint=gpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=128
#SBATCH --gpus-per-node=4
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out

set -euo pipefail

export BUILDER_JOB_ID=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} # one for all segments of a chain
export BUILDER_IMAGE=registry.nersc.gov/m558/superfacility/synapse-ml:latest
# Takes the image from the storage that all nodes see, by its id: its names there can be old.
find_image() {
    local found
    found=$(podman-hpc images --no-trunc --format '{{.ReadOnly}} {{.ID}} {{.Digest}}' | sed -n "s/^true ${1:-none} //p")
    [[ -n $found ]] || return
    echo "image: $BUILDER_IMAGE, ${found%%$'\n'*}"
    BUILDER_IMAGE=${1#sha256:}
}
stored_image() {
    find_image "$(podman-hpc images --no-trunc --format '{{.ReadOnly}} {{.ID}}' "$BUILDER_IMAGE" | sort -r | sed -n '1s/.* //p')"
}
# This node's own storage has the id of what was pulled. A pull whose migration failed ends with 0.
pulled_image() {
    find_image "sha256:$(podman-hpc image inspect --format '{{.Id}}' "$BUILDER_IMAGE")"
}
# The tag may have moved since the image was stored.
if podman-hpc pull "$BUILDER_IMAGE"; then
    pulled_image
else
    echo "$BUILDER_IMAGE was not pulled: looking for the image of an earlier pull" >&2
    stored_image
fi || {
    echo "no image $BUILDER_IMAGE; on a login node: podman-hpc pull $BUILDER_IMAGE" >&2
    exit 1
}

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

# Runs once: the server has all GPUs of the job.
task() {
    options=() # what only this machine knows
    # The container gets no variable of the host but those that are named.
    for name in "${!SLURM_@}" "${!CUDA_VISIBLE_DEVICES@}" "${!ROCR_VISIBLE_DEVICES@}" "${!HIP_VISIBLE_DEVICES@}" "${!NCCL_@}" "${!RCCL_@}" "${!FI_@}" "${!HSA_@}" "${!MIOPEN_@}" "${!MPICH_@}" "${!PMI_@}" "${!PMI2_@}" "${!PMIX_@}" "${!MLFLOW_@}" "${!AWS_@}"; do
        options+=(-e "$name")
    done
    # The token of the server. Only you can enter its folder, which is removed when the job ends.
    token_folder=$(mktemp -d "$SLURM_SUBMIT_DIR/.builder-jupyter-XXXXXXXX") || exit 1
    trap 'rm -rf "$token_folder"' EXIT
    touch "$token_folder/CACHEDIR.TAG" # builder copies no such folder into an image
    BUILDER_TOKEN=$token_folder/token
    token=$(od -An -v -N 24 -tx1 /dev/urandom | tr -d ' \n')
    [[ -n $token ]] || exit 1
    # The configuration of the user or of the image can have an empty token, with which everybody gets in: this one wins.
    (
        umask 077
        printf '%s' "$token" >"$BUILDER_TOKEN" &&
            printf '{"%s": {"token": "%s"}, "%s": {"token": "%s"}, "%s": {"token": "%s"}}\n' \
                ServerApp "$token" IdentityProvider "$token" PasswordIdentityProvider "$token" \
                >"$token_folder/jupyter_server_config.json"
    ) || exit 1
    # Runs in the container. The server reads the token itself: it is on no command line and in no output.
    # shellcheck disable=SC2317
    jupyter_server() {
        local host=$1 port=$2 server
        export JUPYTER_TOKEN_FILE=$3 JUPYTER_RUNTIME_DIR=${3%/*}
        export JUPYTER_CONFIG_PATH=$JUPYTER_RUNTIME_DIR${JUPYTER_CONFIG_PATH:+:$JUPYTER_CONFIG_PATH}
        unset JUPYTER_TOKEN
        server=$(type -P jupyter-lab jupyter-server | head -n 1)
        if [[ -z $server ]]; then
            echo "the image has no Jupyter: add jupyterlab to the environment, then lock and build again" >&2
            exit 1
        fi
        echo "Jupyter starts on $host. Connect from your computer; LOGIN is the machine to which you log in:"
        echo "    ssh -N -L 8888:$host:$port LOGIN"
        echo "Open http://127.0.0.1:8888 there and enter the token, which this prints until the job ends:"
        echo "    ssh LOGIN cat $JUPYTER_TOKEN_FILE"
        # </dev/null: with a terminal, Ctrl-C would ask whether to end.
        exec "$server" --no-browser --allow-root --ip="$host" --port="$port" --port-retries=0 </dev/null
    }
    BUILDER_START="$(declare -f jupyter_server); jupyter_server \"\$@\""
    podman-hpc run "${options[@]}" --rm --gpu --network=host --ipc=host -v /etc/localtime:/etc/localtime \
        -v "$SLURM_SUBMIT_DIR:$SLURM_SUBMIT_DIR" -e "MASTER_ADDR=$MASTER_ADDR" -e "MASTER_PORT=$MASTER_PORT" \
        -w "$SLURM_SUBMIT_DIR" \
        "$BUILDER_IMAGE" bash -c "$BUILDER_START" jupyter "$SLURMD_NODENAME" "$MASTER_PORT" "$BUILDER_TOKEN"
}
export -f task

# If a rank fails, end the others too: they would wait for it until the time limit.
srun --kill-on-bad-exit=1 bash -c task
