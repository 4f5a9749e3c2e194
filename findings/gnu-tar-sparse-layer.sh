#!/usr/bin/env bash
# Docker, podman and umoci refuse a layer with a sparse file in GNU tar's default format.
#
# Versions: GNU tar 1.34; umoci 0.6.0+ds-1+b1 (Debian sid) is run here. The layer was also loaded into Docker 28.5.2
# (overlay2 and containerd's store) and podman 5.8.6: "unhandled tar header type 83".
# Behaviour: tar --sparse writes members of type S unless --format=pax is given. Engines are written in Go, whose
# archive/tar documents both formats, but their lists of known types do not have S. With --format=pax a sparse file is an
# ordinary member with records, and all of them unpack it in each of its versions (0.0, 0.1, 1.0).
# docker load into containerd's store prints "Loaded image", then "Error unpacking image", and ends with exit code 0.
# Output seen:
#   gnu: unpack entry: hole: unknown typeflag '\x53'
#   pax: fine
# Who is hurt: who packs a root file system as a layer with "tar -cS", which tar and Python's tarfile unpack.
set -euo pipefail
[[ $EUID == 0 ]] || { echo "run it as root: files of the image belong to root" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$')
mkdir -p apt/lists/partial apt/cache/archives/partial root
: >apt/status
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >apt/list
own=(-qq -o "Dir::Etc::SourceList=$work/apt/list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State=$work/apt"
    -o "Dir::State::status=$work/apt/status" -o "Dir::Cache=$work/apt/cache" -o Acquire::Languages=none
    -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root)
apt-get "${own[@]}" update
apt-get "${own[@]}" download umoci=0.6.0+ds-1+b1
dpkg -x umoci_*.deb root
umoci=$work/root/usr/bin/umoci

truncate --size=1M hole
"$umoci" init --layout image >/dev/null

unpacked() { # FORMAT of tar: "fine", or the error
    tar --format="$1" --sparse -cf layer.tar hole
    "$umoci" new --image "image:$1" >/dev/null
    "$umoci" raw add-layer --image "image:$1" layer.tar >/dev/null
    if "$umoci" unpack --image "image:$1" "$work/$1" >log 2>&1; then
        echo fine
    else
        grep -o 'unpack entry: hole: unknown .*' log
    fi
}

default=$(tar --show-defaults)
gnu=$(unpacked gnu)
pax=$(unpacked pax)
echo "gnu: $gnu"
echo "pax: $pax"
[[ $default == --format=gnu* && $gnu == *"unknown typeflag '\x53'" && $pax == fine ]]
cmp hole pax/rootfs/hole
