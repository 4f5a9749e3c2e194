#!/usr/bin/env bash
# The hash in an SBOM of auditwheel is that of a path on the build machine, not of the library that it copied.
#
# Versions: auditwheel 6.7.0 in the wheel of scikit-learn 1.9.1 and 6.8.2 in that of pillow 13.0.0; CycloneDX 1.4.
# Behaviour: auditwheel lists the distribution's packages that it copied libraries of. Each bom-ref ends in # and
# 64 hex digits. They look like the sha256 of the library, and are that of the path from which it was copied. So no
# entry leads to a file in NAME.libs: neither the hash, nor the name (keyutils-libs for libkeyutils.so), nor the
# count (one package for several files). The component of the wheel itself is in the list of its own components.
# Output seen:
#   libgomp: bom-ref #c61017c9..., file scikit_learn.libs/libgomp-e985bcbb.so.1.0.0 has a43904e4...
#   components of the wheel: scikit_learn, libgomp
#   sha256 of the text /lib64/libgomp.so.1.0.0: c61017c9...
# Who is hurt: tools that verify the files of a wheel against its SBOM, or look for libraries that no SBOM names.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --dest "$work" scikit-learn==1.9.1
python3 - "$work"/*.whl <<'END'
import hashlib, json, sys, zipfile

wheel = zipfile.ZipFile(sys.argv[1])
(sbom,) = (name for name in wheel.namelist() if name.endswith("sboms/auditwheel.cdx.json"))
(library,) = (name for name in wheel.namelist() if ".libs/libgomp" in name)
components = json.loads(wheel.read(sbom))["components"]
said = components[-1]["bom-ref"].rpartition("#")[2]
real = hashlib.sha256(wheel.read(library)).hexdigest()
print(f"{components[-1]['name']}: bom-ref #{said[:8]}..., file {library} has {real[:8]}...")
print("components of the wheel:", ", ".join(c["name"] for c in components))
paths = [f"{folder}/libgomp.so.1{end}" for folder in ("/usr/lib64", "/lib64") for end in ("", ".0.0")]
hashes = {hashlib.sha256(path.encode()).hexdigest(): path for path in paths}
print(f"sha256 of the text {hashes.get(said)}: {said[:8]}...")
if said == real or said not in hashes or components[0]["name"] != "scikit_learn":
    sys.exit("changed: the SBOM of auditwheel is about files, or about other paths")
END
