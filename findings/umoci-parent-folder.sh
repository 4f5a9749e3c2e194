#!/usr/bin/env bash
# umoci unpacks no image into a folder whose path has "..".
#
# Versions: umoci 0.6.0+ds-1+b1 (Debian sid).
# Behaviour: "umoci unpack --image LAYOUT ../bundle" and "umoci raw unpack" end with an error of a library. The
# path is the caller's own, not one of the image. The same folder by its absolute path works.
# Output seen:
#   relative: unpack entry: file: sanitise symlinks in root: root path provided to SecureJoin contains '..' components
#   absolute: fine
# Who is hurt: scripts that unpack into a folder beside the current one; with umoci 0.4.7 of Debian 12 they run.
set -euo pipefail
[[ $EUID == 0 ]] || { echo "run it as root: files of the image belong to root" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$')
mkdir -p apt/lists/partial apt/cache/archives/partial root inner
: >apt/status
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >apt/list
own=(-qq -o "Dir::Etc::SourceList=$work/apt/list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State=$work/apt"
    -o "Dir::State::status=$work/apt/status" -o "Dir::Cache=$work/apt/cache" -o Acquire::Languages=none
    -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root)
apt-get "${own[@]}" update
apt-get "${own[@]}" download umoci=0.6.0+ds-1+b1
dpkg -x umoci_*.deb root
umoci=$work/root/usr/bin/umoci

echo content >file
tar -cf layer.tar file
"$umoci" init --layout image >/dev/null
"$umoci" new --image image:tag >/dev/null
"$umoci" raw add-layer --image image:tag layer.tar >/dev/null

unpacked() { # BUNDLE: "fine", or the error
    if (cd inner && "$umoci" unpack --image ../image:tag "$1") >log 2>&1; then
        echo fine
    else
        grep -o 'unpack entry: .*' log
    fi
}

relative=$(unpacked ../bundle)
absolute=$(unpacked "$work/other")
echo "relative: $relative"
echo "absolute: $absolute"
[[ $relative == *"contains '..' components"* && $absolute == fine ]]
cmp file other/rootfs/file
