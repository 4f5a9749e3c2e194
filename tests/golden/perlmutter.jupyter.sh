#!/bin/bash
# NERSC Perlmutter: target perlmutter on 1 node, 4 GPUs, 1 process per node.
# Written by builder VERSION on 2026-11-29, with the site's settings of 2026-11-22; submit it with: sbatch FILE
# Image: registry.nersc.gov/m558/superfacility/synapse-ml:latest, a tag, and no digest is known.
# Each job runs what the tag names when it starts, so two jobs can run two images. To name one image:
# builder job --image registry.nersc.gov/m558/superfacility/synapse-ml@sha256:...
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
#SBATCH --open-mode=append

main() {
    own_variables
    set -euo pipefail

    export BUILDER_JOB_ID=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} # one for all segments of a chain
    export BUILDER_IMAGE=registry.nersc.gov/m558/superfacility/synapse-ml:latest
    get_image

    # The ranks meet on the first node of the job.
    MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    export MASTER_ADDR
    free_port
    # srun of Slurm 22.05 to 24.05 does not take the cores of a task from the job.
    cores=(${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"})

    # Runs once: the server has all GPUs of the job.
    task() {
        options=() # what only this machine knows
        # The container gets no variable of the host but those that are named.
        for name in \
            "${!SLURM_@}" "${!CUDA_VISIBLE_DEVICES@}" "${!ROCR_VISIBLE_DEVICES@}" "${!HIP_VISIBLE_DEVICES@}" \
            "${!NCCL_@}" "${!RCCL_@}" "${!FI_@}" "${!HSA_@}" \
            "${!MIOPEN_@}" "${!MPICH_@}" "${!PMI_@}" "${!PMI2_@}" \
            "${!PMIX_@}" "${!MLFLOW_@}" "${!AWS_@}"; do
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
        podman-hpc run "${options[@]}" --rm --gpu --network=host --ipc=host \
            -v /etc/localtime:/etc/localtime -v "$SLURM_SUBMIT_DIR:$SLURM_SUBMIT_DIR" \
            -e "MASTER_ADDR=$MASTER_ADDR" -e "MASTER_PORT=$MASTER_PORT" -w "$SLURM_SUBMIT_DIR" \
            -- "$BUILDER_IMAGE" bash -c "$BUILDER_START" jupyter "$SLURMD_NODENAME" "$MASTER_PORT" "$BUILDER_TOKEN"
    }
    export -f task

    # If a rank fails, end the others too: they would wait for it until the time limit.
    srun "${cores[@]}" --kill-on-bad-exit=1 bash -c task
}

# ---------------------------------------------------------------------------------------------------------
# Standard functions of builder VERSION. What belongs to this job and its site is above.

# sbatch passes the variables of the shell that submits, which can be part of another job.
own_variables() {
    local shown name
    if [[ -v SLURM_ARRAY_JOB_ID || -v SLURM_RESTART_COUNT ]]; then
        shown=$(scontrol --oneliner show job "$SLURM_JOB_ID") || shown=
        [[ $shown != *" Restarts="* || $shown == *" ArrayJobId="* ]] || unset "${!SLURM_ARRAY_@}"
        [[ $shown != *" Restarts=0 "* ]] || unset SLURM_RESTART_COUNT
    fi
    echo "job $SLURM_JOB_ID, restart ${SLURM_RESTART_COUNT:-0}"
    # srun would obey those of another job or step.
    unset SLURM_ARBITRARY_NODELIST "${!SLURM_BCAST@}" SLURM_BURST_BUFFER SLURM_CLUSTER_CONSTRAINT \
        SLURM_COMPRESS SLURM_CONSOLIDATE_SEGMENTS SLURM_CONSTRAINT SLURM_CORE_SPEC "${!SLURM_CPU_BIND@}" \
        "${!SLURM_DEBUG@}" SLURM_DELAY_BOOT SLURM_DEPENDENCY SLURM_DISABLE_STATUS SLURM_EPILOG \
        SLURM_EXACT SLURM_EXCLUSIVE "${!SLURM_EXIT_@}" SLURM_EXPORT_ENV SLURM_EXTERNAL_LAUNCHER \
        SLURM_GET_USER_ENV "${!SLURM_GRES@}" SLURM_HOSTFILE SLURM_IMMEDIATE SLURM_KILL_BAD_EXIT \
        SLURM_LABELIO SLURM_NCORES_PER_SOCKET SLURM_NO_KILL SLURM_NSOCKETS_PER_NODE SLURM_OVERLAP \
        SLURM_PARTITION SLURM_PMI_KVS_NO_DUP_KEYS SLURM_POWER SLURM_PROLOG SLURM_QOS SLURM_REMOTE_CWD \
        SLURM_REQ_SWITCH SLURM_RESERVATION SLURM_RESV_PORTS SLURM_SEND_LIBS SLURM_SIGNAL \
        SLURM_SPREAD_JOB SLURM_SPREAD_SEGMENTS SLURM_STDERRMODE SLURM_STDINMODE SLURM_STDOUTMODE \
        SLURM_TASK_EPILOG SLURM_TASK_PROLOG SLURM_TEST_EXEC SLURM_THREADS SLURM_THREAD_SPEC \
        SLURM_TIMELIMIT SLURM_TREE_WIDTH SLURM_UMASK SLURM_UNBUFFEREDIO SLURM_USE_MIN_NODES \
        "${!SLURM_WAIT@}" SLURM_WCKEY SLURM_WHOLE SLURM_WORKING_DIR "${!SRUN_CONTAINER@}" \
        SRUN_CPUS_PER_TASK SRUN_DEBUG SRUN_ERROR SRUN_EXPORT_ENV SRUN_INPUT SRUN_OUTPUT \
        SRUN_SEGMENT_SIZE "${!SALLOC_@}" SLURMD_DEBUG "${!SLURMD_TRES_@}" "${!SLURM_HET_@}" \
        SLURM_JOB_GROUP SLURM_JOB_NODES SLURM_LAUNCH_NODE_IPADDR "${!SLURM_PTY_@}" "${!SLURM_SRUN_@}" \
        SLURM_STEPID "${!SLURM_STEP_@}" "${!PALS_@}" PMIX_BFROP_BUFFER_TYPE "${!PMIX_DSTORE@}" \
        PMIX_GDS_MODULE PMIX_HOSTNAME PMIX_ID PMIX_NAMESPACE PMIX_RANK PMIX_SECURITY_MODE \
        "${!PMIX_SERVER_@}" PMIX_SYSTEM_TMPDIR PMIX_VERSION PMI_CONTROL_PORT PMI_FD PMI_JOBID \
        PMI_LOCAL_RANK PMI_LOCAL_SIZE PMI_PORT PMI_RANK PMI_SHARED_SECRET PMI_SIZE PMI_SPAWNED \
        PMI_UNIVERSE_SIZE "${!SLURM_PMI2_@}" "${!SLURM_PMIXP_@}" SLURM_PMIX_MAPPING_SERV \
        "${!SBATCH_MEM_BIND@}" SLURM_ACCTG_FREQ SLURM_CONTAINER SLURM_CONTAINER_ID SLURM_CONTAINER_TYPE \
        SLURM_CPUS_PER_GPU SLURM_CPU_FREQ_REQ SLURM_DISTRIBUTION SLURM_DIST_PLANESIZE SLURM_GPUS \
        SLURM_GPUS_PER_SOCKET SLURM_GPUS_PER_TASK SLURM_GPU_BIND SLURM_GPU_FREQ SLURM_HINT \
        SLURM_JOB_DEPENDENCY SLURM_JOB_LICENSES SLURM_JOB_RESERVATION SLURM_JOB_SEGMENT_SIZE \
        "${!SLURM_MEM_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_NETWORK \
        SLURM_NTASKS_PER_CORE SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_SOCKET SLURM_NTASKS_PER_TRES \
        SLURM_OOMKILLSTEP SLURM_OVERCOMMIT SLURM_PROFILE SLURM_THREADS_PER_CORE SLURM_TRES_BIND \
        SLURM_TRES_PER_TASK
    for name in "${!SLURM_@}"; do
        [[ $name != *_@(HET|PACK)_GROUP_* ]] || unset "$name" # of heterogeneous jobs; salloc sets some for every job
    done
}
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
# Finds the image, or ends the job.
get_image() {
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

main
