#!/bin/sh
# Runs a command in the environment at @PREFIX@; written by builder.
# Works as the image's entry point (docker, podman) and as its runscript (singularity, apptainer); running it twice is harmless.
CONDA_PREFIX=@PREFIX@
CONDA_DEFAULT_ENV=base
CONDA_SHLVL=1
PYTHONNOUSERSITE=1
export CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_SHLVL PYTHONNOUSERSITE
case "$PATH:" in
    "$CONDA_PREFIX/bin:"*) ;;
    *) PATH="$CONDA_PREFIX/bin${PATH:+:$PATH}" ;;
esac
export PATH
[ "$#" -gt 0 ] || set -- @COMMAND@
@ACTIVATION@
exec "$@"
