#!/usr/bin/env bash
# podman takes most options twice, but --network=host once, and no --shm-size beside --ipc=host.
#
# Versions: podman 4.3.1 (Debian 12) and 5.8.6 (Debian sid); docker 20.10.24 for comparison.
# Behaviour: --ipc, --pid, --uts, --userns, --hostname, --entrypoint, --workdir, --privileged and --shm-size may be
# repeated; the last value counts. A second --network (or --net) is an error, although both say "host", and so is
# --shm-size with the host's IPC. docker refuses the second network, too ("specified multiple times"), and accepts
# --shm-size. The check of the network precedes the search for the image.
# Output seen: the last line of podman.
#   --network=host twice: Error: cannot set multiple networks without bridge network mode, selected mode host: ...
#   --ipc=host twice: Error: nosuchimage:1: image not known
# Who is hurt: wrappers whose users add options. podman-hpc 1.2.2 adds --network=host with --mpi, --cuda-mpi,
# --openmpi-pmi2 and --openmpi-pmix: a job that says it, too, prints this error once and ends after 10 s with
# "Timeout waiting for shared-run start". Command lines for docker with --ipc=host --shm-size=8g fail with podman.
# Needs podman on the PATH; no image is downloaded.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
last_line() { # OPTION...: what podman says last
    podman --storage-driver vfs --root "$work/root" --runroot "$work/run" \
        run --pull=never "$@" nosuchimage:1 true 2>&1 | tail -n 1
}
for option in network ipc pid uts userns; do
    seen=$(last_line "--$option=host" "--$option=host" || true)
    echo "--$option=host twice: $seen"
    if [ "$option" = network ]; then
        [[ $seen == *"cannot set multiple networks"* ]]
    else
        [[ $seen == *nosuchimage* ]]
    fi
done
