#!/bin/sh
# An example, copied and run: a package with a C extension, locked by uv.
set -eu
cp -r builder-clone/examples/c-extension fastsum
cd fastsum
uv lock --quiet
builder build
test "$(builder run -- fastsum 1000)" = 500500
builder run -- fastsum 1000
