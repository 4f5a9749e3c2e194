#!/bin/sh
# From your own environment.yml and train.py to a running image.
set -eu
builder init -y
builder build
builder run
