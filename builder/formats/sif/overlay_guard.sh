#!/bin/sh
if [ ! -e /@SCRIPT@ ]; then
    echo "@MESSAGE@ Build it with 'sif: {layout: flat}' in the recipe." >&2
    exit 1
fi
