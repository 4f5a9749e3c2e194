#!/usr/bin/env bash
# pipenv writes a pylock.toml that pip installs, and that uv and packaging refuse.
#
# Versions: pipenv 2026.10.3, pip 26.3, uv 0.13.9, packaging 26.4, Python 3.11; six 1.17.0 as the package.
# Behaviour: pipenv pylock --generate writes `environments = []`. PEP 751 says that the key lists the environments
# for which the file is meant. pip takes an empty list as no restriction; packaging (Pylock.select) and uv take it as
# a list without the present environment, and there is no Python that would fit.
# Output seen:
#   pip: installs
#   packaging: refuses
#   uv: refuses
# Who is hurt: projects of pipenv that are installed by another tool than pip, and whoever reads in the message
# that their Python is unsupported, and tries others.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
bin=$work/venv/bin
"$bin/pip" install --quiet pip==26.3 pipenv==2026.10.3 uv==0.13.9 packaging==26.4
export HOME=$work PIPENV_IGNORE_VIRTUALENVS=1
mkdir "$work/project"
cd "$work/project"
printf '[packages]\nsix = "==1.17.0"\n' >Pipfile
"$bin/pipenv" lock >"$work/log" 2>&1
"$bin/pipenv" pylock --generate >>"$work/log" 2>&1
grep -qx 'environments = \[\]' pylock.toml

says() { # COMMAND...: "installs" or "refuses"
    if "$@" >>"$work/log" 2>&1; then echo installs; else echo refuses; fi
}

cat >"$work/select.py" <<'PYTHON'
import tomllib
from packaging.pylock import Pylock

list(Pylock.from_dict(tomllib.load(open("pylock.toml", "rb"))).select())
PYTHON
pip=$(says "$bin/pip" install --target "$work/target" -r pylock.toml)
packaging=$(says "$bin/python" "$work/select.py")
uv=$(says "$bin/uv" pip install --no-config --target "$work/uv" -r pylock.toml)
echo "pip: $pip"
echo "packaging: $packaging"
echo "uv: $uv"
[ "$pip $packaging $uv" = "installs refuses refuses" ]
