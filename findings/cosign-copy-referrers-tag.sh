#!/usr/bin/env bash
# "cosign copy" puts the image under the tag that the OCI reserves for the list of its referrers.
#
# Versions: cosign 3.1.1, crane 0.20.7, oras 1.3.3 (Debian sid).
# Behaviour: in registries without the referrers API (docker-registry 2.8, "crane registry serve" by default) the
# list of attached artifacts is an index under the tag sha256-HEX. cosign copy treats this tag as it treats those
# with .sig: it writes it at the target, but with the image's own manifest, and exits with 0 (its warning names
# bundles and recommends oras copy -r). oras copy -r of the same image writes the list over it.
# Output seen: the media type under the tag.
#   source: application/vnd.oci.image.index.v1+json
#   after cosign copy: application/vnd.oci.image.manifest.v1+json
#   after oras copy -r: application/vnd.oci.image.index.v1+json
# Who is hurt: users of the copy. Readers of the list find a manifest instead of an index, and docker-registry
# answers 404 to those that accept an index only. Deleting what the tag names would delete the image.
# Needs apt-get with a mirror of Debian that has sid, amd64.
set -euo pipefail
work=$(mktemp -d)
cd "$work"
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/$')
echo "deb $mirror sid main" >sid.list
mkdir -p lists/partial cache/archives/partial
apt=(apt-get -qq -oDir::Etc::SourceList="$work/sid.list" -oDir::Etc::SourceParts=- -oDir::State::Lists="$work/lists"
    -oDir::Cache="$work/cache" -oAcquire::Check-Valid-Until=false -oAPT::Sandbox::User=root)
"${apt[@]}" update
"${apt[@]}" download cosign crane oras >/dev/null
for deb in ./*.deb; do dpkg -x "$deb" root; done
export PATH=$work/root/usr/bin:$PATH HOME=$work
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
crane registry serve --address "127.0.0.1:$port" >log 2>&1 &
server=$!
trap 'kill "$server"; rm -rf "$work"' EXIT
host=127.0.0.1:$port
until crane catalog "$host" >/dev/null 2>&1; do sleep 0.1; done
echo x >file
tar -cf layer.tar file
crane append --oci-empty-base -f layer.tar -t "$host/source:1" >/dev/null 2>&1
digest=$(crane digest "$host/source:1")
oras attach --plain-http --distribution-spec v1.1-referrers-tag --artifact-type application/x "$host/source@$digest" \
    file >>log 2>&1
media_type() { # REPOSITORY
    crane manifest "$host/$1:${digest/:/-}" | python3 -c 'import json, sys; print(json.load(sys.stdin)["mediaType"])'
}
source=$(media_type source)
cosign copy --allow-http-registry "$host/source:1" "$host/copy:1" >>log 2>&1
copied=$(media_type copy)
oras copy -r --from-plain-http --to-plain-http "$host/source:1" "$host/copy:1" >>log 2>&1
again=$(media_type copy)
echo "source: $source"
echo "after cosign copy: $copied"
echo "after oras copy -r: $again"
[[ $source == *index* && $copied == *manifest* && $again == *index* ]]
