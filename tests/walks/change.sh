#!/bin/sh
# Adds a package to the environment, builds again, and publishes.
set -eu
echo '      - rich' >> environment.yml
builder lock
builder build
builder run -- python -c 'import rich; print("rich is in the image")'
builder publish --to "$REGISTRY/mine" --only latest
