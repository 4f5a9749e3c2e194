#!/usr/bin/env bash
# docker load of one archive gives another id with containerd's image store: that of a manifest which docker load makes.
#
# Versions: Docker 28.5.2 with containerd 2.1.9 (Debian sid); containerd's store is the default of Docker 29.
# Behaviour: with graph drivers (overlay2) the id of an image is the digest of its config, whatever the archive looks
# like. With containerd's store it is the digest of a manifest. An archive with manifest.json alone has no manifest, so
# docker load makes one of the layers as they are: with gzip and without, one image has two ids. Of an archive that is
# an OCI layout, too, the manifest is kept, if index.json has the annotation io.containerd.image.name.
# Output seen:
#   overlay2: plain config, gzip config, layout config
#   containerd: plain neither, gzip neither, layout manifest
# Who is hurt: programs that look for an image by its config's digest before they load it: they load it again each time.
# Needs root, mmdebstrap and curl.
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
    echo "{\"features\": {\"containerd-snapshotter\": $1}}" >"$tree/state/daemon.json"
    # shellcheck disable=SC2016
    unshare --mount --propagation private sh -euc '
        mount --bind "$1" "$1"
        for folder in sys dev; do mount --rbind "/$folder" "$1/$folder"; done
        mount -t proc proc "$1/proc"
        mount -t tmpfs tmpfs "$1/run"
        cd "$1"
        pivot_root . host
        umount --lazy /host
        exec dockerd --config-file /state/daemon.json --host unix:///state/socket --data-root "/state/data-$2" \
            --iptables=false --ip6tables=false --bridge=none' start "$tree" "$1" >"$work/log" 2>&1 &
    holder=$!
    for _ in $(seq 300); do
        if ask _ping >/dev/null 2>&1; then break; fi
        sleep 0.2
    done
}
stop_docker() {
    kill "$holder"
    wait "$holder" || true
    rm -f "$tree/state/socket"
    holder=
}
ask() {
    curl --silent --fail --unix-socket "$tree/state/socket" "http://docker/$1" "${@:2}"
}
cat >"$work/archive.py" <<'PYTHON'
import gzip, hashlib, io, json, sys, tarfile

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

def describe(kind, data):
    name = blob(data).rpartition("/")[2]
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{name}", "size": len(data)}

kind, folder = sys.argv[1:]
content = tar({"hello": b"hello\n"})
layer = content if kind == "plain" else gzip.compress(content, mtime=0)
rootfs = {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(content).hexdigest()]}
config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
listing = json.dumps([{"Config": blob(config), "RepoTags": ["seen:1"], "Layers": [blob(layer)]}]).encode()
manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"}
manifest |= {"config": describe("config.v1+json", config), "layers": [describe("layer.v1.tar+gzip", layer)]}
manifest = json.dumps(manifest).encode()
notes = {"io.containerd.image.name": "docker.io/library/seen:1"}
entry = describe("manifest.v1+json", manifest) | {"annotations": notes}
files = {"manifest.json": listing, blob(config): config, blob(layer): layer}
if kind == "layout":
    files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    files[blob(manifest)] = manifest
with open(f"{folder}/{kind}.tar", "wb") as out:
    out.write(tar(files))
print(blob(config).rpartition("/")[2], blob(manifest).rpartition("/")[2])
PYTHON
show() {
    local kind config manifest id what text=
    for kind in plain gzip layout; do
        read -r config manifest <<<"$(python3 "$work/archive.py" "$kind" "$work")"
        ask images/load --header 'Content-Type: application/x-tar' --data-binary "@$work/$kind.tar" >/dev/null
        id=$(ask images/seen:1/json | python3 -c 'import json, sys; print(json.load(sys.stdin)["Id"])')
        what=neither
        [[ $id != "sha256:$config" ]] || what=config
        [[ $id != "sha256:$manifest" ]] || what=manifest
        text+=", $kind $what"
        ask images/seen:1 --request DELETE >/dev/null
    done
    echo "${text#, }"
}
start_docker false
graph=$(show)
stop_docker
start_docker true
containerd=$(show)
stop_docker
echo "overlay2: $graph"
echo "containerd: $containerd"
[[ $graph == "plain config, gzip config, layout config" ]]
if [[ $containerd != "plain neither, gzip neither, layout manifest" ]]; then
    echo "changed: ids in containerd's store are now: $containerd" >&2
    exit 1
fi
