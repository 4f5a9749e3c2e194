#!/bin/sh
# Installs builder, into a virtual environment of its own. $BUILDER is what pip installs.
set -eu
python3 -m venv ~/venv
~/venv/bin/pip install "$BUILDER"
~/venv/bin/builder --version
