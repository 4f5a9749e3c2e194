#!/bin/sh
# The host's driver libraries, which --nv and --rocm bring, come last.
LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
[ -n "${PS1:-}" ] || PS1="Apptainer> "
export LD_LIBRARY_PATH PS1
