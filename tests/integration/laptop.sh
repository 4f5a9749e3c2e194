#!/bin/sh
# The packages of a lock on this machine, without a container: docs/locking.md has these lines.
set -eu
sed "s|builder://wheels/|file://$PWD/wheels/|" \
    environment.mine.lock.yml >mine.conda-lock.yml
conda-lock install --micromamba --name mine mine.conda-lock.yml
conda-lock render --platform linux-64 mine.conda-lock.yml
sed -n 's/^# pip //p' conda-linux-64.lock >mine.txt
uv venv --python 3.11 mine-env
uv pip sync --python mine-env mine.txt
