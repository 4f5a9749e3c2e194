#!/usr/bin/env bash
# An attestation of somebody else makes "cosign verify" overlook the signature of an image.
#
# Versions: cosign 3.1.1, crane 0.20.7 (Debian sid).
# Behaviour: signatures of cosign 2, podman, skopeo and others are an image under the tag sha256-HEX.sig. cosign 3
# attaches bundles (OCI referrers) instead, for attestations and signatures alike. "cosign verify" looks for bundles
# first; if there is any, also one of another key that is no signature but an attestation, it does not look under
# the tag. --new-bundle-format=false reads the tag.
# Output seen: exit codes of cosign verify with the signer's key.
#   signed: 0
#   and attested with another key: 1 (no matching attestations: ... Found: 0, Expected 1)
#   with --new-bundle-format=false: 0
# Who is hurt: whoever signs for podman (5.8.6) and skopeo (1.22.0), which read no bundles, and lets others verify
# with cosign: the check fails from the day on which a scanner of the company attaches its result.
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
"${apt[@]}" download cosign crane >/dev/null
for deb in ./*.deb; do dpkg -x "$deb" root; done
export PATH=$work/root/usr/bin:$PATH COSIGN_PASSWORD=x HOME=$work
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
crane registry serve --address "127.0.0.1:$port" >log 2>&1 &
server=$!
trap 'kill "$server"; rm -rf "$work"' EXIT
until crane catalog "127.0.0.1:$port" >/dev/null 2>&1; do sleep 0.1; done
echo x >file
tar -cf layer.tar file
crane append -f layer.tar -t "127.0.0.1:$port/team/image:1" >/dev/null 2>&1
image=127.0.0.1:$port/team/image@$(crane digest "127.0.0.1:$port/team/image:1")
for name in signer scanner; do cosign generate-key-pair --output-key-prefix "$name" 2>/dev/null; done
offline=(--yes --tlog-upload=false --use-signing-config=false)
cosign sign --key signer.key "${offline[@]}" --new-bundle-format=false "$image" >>log 2>&1
verify() { # OPTION...: prints the exit code
    local code=0
    cosign verify --key signer.pub --insecure-ignore-tlog "$@" "$image" >>log 2>&1 || code=$?
    echo "$code"
}
signed=$(verify)
echo '{}' >predicate.json
cosign attest --key scanner.key "${offline[@]}" --predicate predicate.json --type custom "$image" >>log 2>&1
attested=$(verify)
old=$(verify --new-bundle-format=false)
echo "signed: $signed"
echo "and attested with another key: $attested"
echo "with --new-bundle-format=false: $old"
[ "$signed$old" = 00 ] && [ "$attested" != 0 ]
