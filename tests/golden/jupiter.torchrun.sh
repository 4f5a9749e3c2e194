#!/bin/bash
# JUPITER Booster: target jupiter on 1 node, 4 GPUs, processes started by torchrun.
# Written by builder VERSION on 2026-11-29, with the site's settings of 2026-11-22; submit it with: sbatch FILE
# Image: the file /e/project1/jureap59/$USER/images/jupiter.sif, whose digest is not known here.
#SBATCH --job-name=jupiter
#SBATCH --account=jureap59
#SBATCH --partition=booster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=288
#SBATCH --gres=gpu:4
#SBATCH --time=1:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append

main() {
    own_variables
    set -eo pipefail
    export CUDA_VISIBLE_DEVICES=0,1,2,3
    set -u

    export BUILDER_JOB_ID=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} # one for all segments of a chain
    export BUILDER_IMAGE="/e/project1/jureap59/$USER/images/jupiter.sif"
    get_image

    # The ranks meet on the first node of the job.
    MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    MASTER_ADDR=127.0.0.1 # all ranks are on one node
    export MASTER_ADDR
    free_port
    # srun of Slurm 22.05 to 24.05 does not take the cores of a task from the job.
    cores=(${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"})

    # Runs on each node; torchrun starts the node's processes.
    task() {
        # The container has a clean environment. Pass these variables of the host into it.
        for name in \
            "${!SLURM_@}" "${!CUDA_VISIBLE_DEVICES@}" "${!ROCR_VISIBLE_DEVICES@}" "${!HIP_VISIBLE_DEVICES@}" \
            "${!NCCL_@}" "${!RCCL_@}" "${!FI_@}" "${!HSA_@}" \
            "${!MIOPEN_@}" "${!MPICH_@}" "${!PMI_@}" "${!PMI2_@}" \
            "${!PMIX_@}" "${!MLFLOW_@}" "${!AWS_@}"; do
            value=${!name//\\/\\\\} value=${value//\$/\\\$} value=${value//\`/\\\`} # the runtime evaluates it like a shell
            export "APPTAINERENV_$name=$value"
        done
        exec apptainer exec --cleanenv --nv --bind /e \
            --mount "type=bind,\"source=$SLURM_SUBMIT_DIR\",\"destination=$SLURM_SUBMIT_DIR\"" \
            --pwd "$SLURM_SUBMIT_DIR" "$BUILDER_IMAGE" env PYTHONNOUSERSITE=1 "MASTER_ADDR=$MASTER_ADDR" \
            "MASTER_PORT=$MASTER_PORT" \
            torchrun --nnodes=1 --nproc-per-node=4 "--master-addr=$MASTER_ADDR" "--master-port=$MASTER_PORT" --no-python python train.py --note "it's \"100 \$\" & more"
    }
    export -f task

    # If a rank fails, end the others too: they would wait for it until the time limit.
    srun "${cores[@]}" --mpi=none --kill-on-bad-exit=1 bash -c task
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
        SLURM_GPUS_PER_NODE SLURM_GPUS_PER_SOCKET SLURM_GPUS_PER_TASK SLURM_GPU_BIND SLURM_GPU_FREQ \
        SLURM_HINT SLURM_JOB_DEPENDENCY SLURM_JOB_LICENSES SLURM_JOB_RESERVATION SLURM_JOB_SEGMENT_SIZE \
        "${!SLURM_MEM_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_NETWORK \
        SLURM_NTASKS_PER_CORE SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_SOCKET SLURM_NTASKS_PER_TRES \
        SLURM_OOMKILLSTEP SLURM_OVERCOMMIT SLURM_PROFILE SLURM_THREADS_PER_CORE SLURM_TRES_BIND \
        SLURM_TRES_PER_TASK
    for name in "${!SLURM_@}"; do
        [[ $name != *_@(HET|PACK)_GROUP_* ]] || unset "$name" # of heterogeneous jobs; salloc sets some for every job
    done
}
# Finds the image, or ends the job.
get_image() {
    if [[ ! -r $BUILDER_IMAGE ]]; then
        echo "no image $BUILDER_IMAGE: download it with builder pull jupiter --output $BUILDER_IMAGE" >&2
        exit 1
    fi
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
