#!/bin/sh
# Publishes the image, publishes it again (nothing is sent), and pulls it.
set -eu
builder publish --to "$REGISTRY/mine"
builder publish --to "$REGISTRY/mine"
builder pull --from "$REGISTRY/mine" --output ~/pulled
