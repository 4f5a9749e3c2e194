#!/bin/sh
# Plays a Python of the target's ABI for the program that uv runs in it, which is the last argument.
exec @PYTHON@ -I -c 'import sys, sysconfig
sysconfig.get_config_vars()["Py_GIL_DISABLED"] = @GIL_DISABLED@
exec(sys.argv[-1])' "$@"
