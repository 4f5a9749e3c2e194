#!/usr/bin/env bash
# An image of 495 layers starts in a new Docker engine with containerd's store, and not in one that is in use.
#
# Versions: Docker 28.5.2 with containerd 2.1.9 (Debian sid), kernel 6.18; containerd's store is the default of Docker 29.
# Behaviour: the options of an overlay mount fit into one page of memory, 4096 bytes. containerd names each layer there by
# the number of its snapshot, and counts on for as long as the store exists: from snapshot 1000 on, each layer takes one
# byte more. So the number of layers that an engine runs shrinks as it ages. Graph drivers have a fixed limit of 125.
# Output seen:
#   new store: created
#   after 1000 snapshots: mount options is too long
# Who is hurt: builders of images of hundreds of layers, who tested them on a new engine, as CI has one.
# Needs root, mmdebstrap and curl; takes some minutes.
set -euo pipefail
work=$(mktemp -d /var/tmp/finding.XXXXXX)
tree=$work/tree
mirror=$(grep -rhoE 'https?://[^] ]+/debian/?( |$)' /etc/apt/sources.list* | head -n 1)
mmdebstrap --quiet --variant=minbase --include=docker.io=28.5.2+dfsg4-5 \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Check-Valid-Until "false"' \
    sid "$tree" "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror%% *} sid main"
mkdir "$tree/state" "$tree/host"
holder=
trap 'if [[ -n $holder ]]; then kill "$holder"; wait "$holder" || true; fi; rm -rf --one-file-system "$work"' EXIT
start_docker() {
    echo '{"features": {"containerd-snapshotter": true}}' >"$tree/state/daemon.json"
    # shellcheck disable=SC2016
    unshare --mount --propagation private sh -euc '
        mount --bind "$1" "$1"
        for folder in sys dev; do mount --rbind "/$folder" "$1/$folder"; done
        mount -t proc proc "$1/proc"
        mount -t tmpfs tmpfs "$1/run"
        cd "$1"
        pivot_root . host
        umount --lazy /host
        exec dockerd --config-file /state/daemon.json --host unix:///state/socket --data-root /state/data \
            --iptables=false --ip6tables=false --bridge=none' start "$tree" >"$work/log" 2>&1 &
    holder=$!
    for _ in $(seq 300); do
        if ask _ping >/dev/null 2>&1; then break; fi
        sleep 0.2
    done
}
ask() {
    curl --silent --fail --unix-socket "$tree/state/socket" "http://docker/$1" "${@:2}"
}
cat >"$work/archive.py" <<'PYTHON'
import hashlib, io, json, sys, tarfile

def tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()

def blob(data):
    return "blobs/sha256/" + hashlib.sha256(data).hexdigest()

name, count, path = sys.argv[1:]
layers = [tar({f"{name}-{number}": b""}) for number in range(int(count))]
ids = ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]
rootfs = {"type": "layers", "diff_ids": ids}
config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
listing = [{"Config": blob(config), "RepoTags": [f"{name}:1"], "Layers": [blob(layer) for layer in layers]}]
files = {"manifest.json": json.dumps(listing).encode(), blob(config): config}
with open(path, "wb") as out:
    out.write(tar(files | {blob(layer): layer for layer in layers}))
PYTHON
# Loads an image of new layers.
load() {
    python3 "$work/archive.py" "$1" "$2" "$work/image.tar"
    ask images/load --header 'Content-Type: application/x-tar' --data-binary "@$work/image.tar" >/dev/null
}
# Prints what the engine answers to a request for a container of an image.
create() {
    local answer
    answer=$(curl --silent --unix-socket "$tree/state/socket" http://docker/containers/create \
        --header 'Content-Type: application/json' --data "{\"Image\": \"$1:1\", \"Cmd\": [\"/true\"]}")
    case $answer in
    *'"Id"'*) echo created ;;
    *) grep -o 'mount options is too long' <<<"$answer" || echo "$answer" ;;
    esac
}
start_docker
load young 495
young=$(create young)
load between 480
load between-too 100
load old 495
old=$(create old)
echo "new store: $young"
echo "after 1000 snapshots: $old"
[[ $young == created ]]
if [[ $old != "mount options is too long" ]]; then
    echo "changed: the second image is answered with: $old" >&2
    exit 1
fi
