#!/usr/bin/env bash
# The SBOM in a wheel of cryptography names a random temporary folder, so no second build has the same bytes.
#
# Versions: cryptography 50.0.2, whose SBOM is of cargo-cyclonedx 0.5.9 by maturin (CycloneDX 1.5, PEP 770).
# Behaviour: a crate of the project's own has the absolute path of its folder on the build machine as bom-ref. pip and
# uv build in a folder with a random name, and the path gets into the wheel with it. The purl of such a crate is
# relative instead (download_url=file://.), so it leads nowhere.
# Output seen:
#   path+file:///__w/cryptography/cryptography/tmpwheelhouse/.tmpH1ktpR/cryptography-50.0.2/src/rust#...@0.50.2
#   pkg:cargo/cryptography-rust@0.50.2?download_url=file://.
# Who is hurt: whoever rebuilds wheels to compare their hashes; merges SBOMs by bom-ref (the same crate in two
# builds has two names); or hands out wheels whose paths nobody outside should see.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 \
    --platform manylinux_2_28_x86_64 --dest "$work" cryptography==50.0.2
python3 - "$work"/*.whl <<'END'
import json, re, sys, zipfile

wheel = zipfile.ZipFile(sys.argv[1])
(name,) = (name for name in wheel.namelist() if name.endswith("cryptography-rust.cyclonedx.json"))
crate = json.loads(wheel.read(name))["metadata"]["component"]
print(crate["bom-ref"], crate["purl"], sep="\n")
if not re.match(r"path\+file:///.*/\.tmp\w{6}/", crate["bom-ref"]) or not crate["purl"].endswith("=file://."):
    sys.exit("changed: the SBOM has another reference")
END
