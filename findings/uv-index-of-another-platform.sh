#!/usr/bin/env bash
# The index that a requirement for Windows names decides what Linux gets: with "uv lock", not with "uv pip compile".
#
# Versions: uv 0.13.9, Python 3.11.
# Behaviour: a package has an explicit index of its own in [tool.uv.sources], and its only line in dependencies has
# a marker that is false on this machine. Another package needs it here, too. "uv lock" takes it from that index on
# every platform, "uv pip compile" of the same pyproject.toml from the default index. Neither says a word.
# Output seen, of "uv export" and of "uv pip compile", on Linux:
#   thing==1.0
#   thing==2.0
# Who is hurt: whoever has a private build of a package for one platform, and pins the environment of a cluster with
# uv pip compile: the public package of that name is installed there.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet uv==0.13.9
export UV_CACHE_DIR="$work/cache" UV_PYTHON="$work/venv/bin/python"

cat >"$work/wheel.py" <<'PYTHON'
import sys, zipfile

folder, name, version, *requires = sys.argv[1:]
info = f"{name}-{version}.dist-info"
with zipfile.ZipFile(f"{folder}/{name}-{version}-py3-none-any.whl", "w") as wheel:
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    lines += [f"Requires-Dist: {requirement}\n" for requirement in requires]
    wheel.writestr(f"{info}/METADATA", "".join(lines))
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", "")
PYTHON
mkdir "$work/own" "$work/public" "$work/project"
python3 "$work/wheel.py" "$work/own" thing 1.0
python3 "$work/wheel.py" "$work/public" thing 2.0
python3 "$work/wheel.py" "$work/public" model 1.0 thing
cat >"$work/project/pyproject.toml" <<TOML
[project]
name = "app"
version = "1"
requires-python = ">=3.11"
dependencies = ["model", "thing ; sys_platform == 'win32'"]
[tool.uv.sources]
thing = {index = "own"}
[[tool.uv.index]]
name = "own"
url = "file://$work/own"
format = "flat"
explicit = true
[[tool.uv.index]]
name = "public"
url = "file://$work/public"
format = "flat"
default = true
TOML

cd "$work/project"
"$work/venv/bin/uv" lock --quiet
locked=$("$work/venv/bin/uv" export --quiet --frozen --no-hashes --no-annotate --no-header | grep '^thing')
compiled=$("$work/venv/bin/uv" pip compile --quiet --no-annotate --no-header pyproject.toml | grep '^thing')
echo "$locked"
echo "$compiled"
[ "$locked" = "thing==1.0" ] && [ "$compiled" = "thing==2.0" ]
