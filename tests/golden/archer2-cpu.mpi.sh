#!/bin/bash
# ARCHER2 (CPU): target archer2-cpu on 32 nodes, 1 process per node.
# Written by builder job; submit it with: sbatch FILE
#SBATCH --job-name=archer2-cpu
#SBATCH --account=z19
#SBATCH --partition=standard
#SBATCH --qos=standard
#SBATCH --nodes=32
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=128
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out

set -eo pipefail
export HOME="/work/z19/z19/$USER"
mkdir -p "$HOME"
export SINGULARITY_HOME="$HOME"
module load cray-mpich-abi
set -u

export BUILDER_JOB_ID=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} # one for all segments of a chain
export BUILDER_IMAGE="/work/z19/z19/$USER/images/archer2-cpu.sif"
if [[ ! -r $BUILDER_IMAGE ]]; then
    echo "no image $BUILDER_IMAGE: download it with builder pull archer2-cpu --output $BUILDER_IMAGE" >&2
    exit 1
fi

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

# Runs once per process. Slurm sets the rank; torch expects it under other names.
task() {
    exec singularity exec \
        --bind "/work,/opt/cray,/var/spool,/etc/host.conf,/etc/libibverbs.d/mlx5.driver,/etc/libnl/classid,/etc/resolv.conf,/opt/xpmem/lib64/libxpmem.so.0,/run/munge/munge.socket.2,/usr/lib64/libibverbs/libmlx5-rdmav34.so,/usr/lib64/libibverbs.so.1,/usr/lib64/libkeyutils.so.1,/usr/lib64/liblnetconfig.so.4,/usr/lib64/liblustreapi.so,/usr/lib64/libmunge.so.2,/usr/lib64/libnl-3.so.200,/usr/lib64/libnl-genl-3.so.200,/usr/lib64/libnl-route-3.so.200,/usr/lib64/librdmacm.so.1,/usr/lib64/libyaml-0.so.2,/usr/lib64/libjansson.so.4,$SLURM_SUBMIT_DIR" \
        --env PYTHONNOUSERSITE=1 --env "OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK" \
        --env LD_LIBRARY_PATH=/opt/cray/pe/mpich/8.1.27/ofi/gnu/9.1/lib-abi-mpich:/opt/cray/pe/mpich/8.1.27/gtl/lib:/opt/cray/libfabric/1.12.1.2.2.0.0/lib64:/opt/cray/pe/gcc-libs:/opt/cray/pe/lib64:/opt/xpmem/lib64:/usr/lib64/libibverbs:/usr/lib64 \
        --env "RANK=$SLURM_PROCID" --env "LOCAL_RANK=$SLURM_LOCALID" --env "WORLD_SIZE=$SLURM_NTASKS" \
        --env "MASTER_ADDR=$MASTER_ADDR" --env "MASTER_PORT=$MASTER_PORT" --pwd "$SLURM_SUBMIT_DIR" \
        "$BUILDER_IMAGE" python train.py --note "it's \"100 \$\" & more"
}
export -f task

# If a rank fails, end the others too: they would wait for it until the time limit.
srun --hint=nomultithread --distribution=block:block --kill-on-bad-exit=1 bash -c task
