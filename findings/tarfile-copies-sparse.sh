#!/usr/bin/env bash
# Python's tarfile damages sparse files when it copies members from one archive into another.
#
# Versions: Python 3.11.7 and 3.13.0 (tarfile of the standard library), GNU tar 1.34.
# Behaviour: for a sparse file in a pax format of GNU tar, tarfile sets the size to the whole one and returns the
# content with its holes as zeros. The pax records that describe the holes stay in TarInfo.pax_headers, and addfile()
# writes them again, before the whole content. So other readers, and tarfile itself, apply the map of the holes to
# content that has none. In the formats 0.0 and 0.1 the file has other bytes and nothing says so; an archive in
# format 1.0, which is GNU tar's default for pax, cannot be read. To leave out the records whose keys begin with
# GNU.sparse. helps.
# Output seen: what GNU tar unpacks from the copy.
#   0.0: exit code 0, other bytes
#   0.1: exit code 0, other bytes
#   1.0: exit code 2, other bytes
#   1.0 without the records: exit code 0, the same bytes
# Who is hurt: programs that filter or rewrite tars member by member, as layers of images. mmtarfilter of mmdebstrap
# 1.6.0 is one: mmdebstrap 1.6.0 writes sparse files into its own tars, and "mmtarfilter --path-exclude=/x" damages
# them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir in
truncate --size=1M in/log
printf here | dd of=in/log bs=1 seek=700000 conv=notrunc status=none

cat >rewrite.py <<'PYTHON'
import sys, tarfile

source, target, drop = sys.argv[1:]
with tarfile.open(source) as old, tarfile.open(target, "w") as new:
    for member in old:
        if drop == "drop":
            kept = {k: v for k, v in member.pax_headers.items() if not k.startswith("GNU.sparse.")}
            member.pax_headers = kept
        new.addfile(member, old.extractfile(member) if member.isfile() else None)
PYTHON

copied() { # VERSION [drop]: what GNU tar unpacks from a copy
    local code=0 same=other
    rm -rf out
    mkdir out
    tar -C in --format=pax --sparse-version="$1" --sparse -cf old.tar log
    python3 rewrite.py old.tar new.tar "${2:-keep}"
    tar -C out -xf new.tar 2>/dev/null || code=$?
    if cmp -s in/log out/log; then same="the same"; fi
    echo "exit code $code, $same bytes"
}

for version in 0.0 0.1 1.0; do
    echo "$version: $(copied "$version")"
done
echo "1.0 without the records: $(copied 1.0 drop)"
[[ $(copied 0.0) == "exit code 0, other bytes" ]]
[[ $(copied 0.1) == "exit code 0, other bytes" ]]
[[ $(copied 1.0) == "exit code 2, other bytes" ]]
[[ $(copied 1.0 drop) == "exit code 0, the same bytes" ]]
