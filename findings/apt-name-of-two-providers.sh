#!/usr/bin/env bash
# apt of Debian sid installs libglib2.0-0, which no package is called any more, and refuses libasound2.
#
# Versions: apt 2.6.1 with the lists of Debian sid of 2026-11 (libasound2t64 1.2.16, liboss4-salsa-asound2 4.2).
# Behaviour: since the change to 64-bit time_t a package such as libglib2.0-0t64 provides its name from before, and
# apt-get takes the only provider of a name. libasound2 has two: the package of ALSA, and one that emulates it.
# Output seen: libglib2.0-0: installs libglib2.0-0t64; libasound2: has no installation candidate
# Who is hurt: Dockerfiles and hints of tools with libasound2 (browsers, Electron, audio for Python) end on sid and on
# Ubuntu 24.04, while all their other names from before still work; so "the old names do" is wrong for this one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2016  # apt's own placeholder
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$')
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
: >"$work/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$work/list"
apt() {
    LC_ALL=C apt-get -qq -o Dir::Etc::SourceList="$work/list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State="$work" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" \
        -o Acquire::Languages=none -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root "$@"
}
apt update

installs() {
    local out
    out=$(apt install --simulate --no-install-recommends "$1" 2>&1) || true
    grep -oE "^Inst $1\S*|no installation candidate" <<<"$out" | head -n 1
}

for name in libglib2.0-0 libasound2; do
    echo "$name: $(installs "$name")"
done
if [[ $(installs libglib2.0-0) != "Inst libglib2.0-0t64" || $(installs libasound2) != "no installation candidate" ]]; then
    echo "changed: apt takes both names, or neither" >&2
    exit 1
fi
