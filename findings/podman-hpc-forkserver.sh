#!/usr/bin/env bash
# podman-hpc run --mpi starts no container under Python 3.14, where a process is no longer made by fork.
#
# Versions: podman-hpc 1.2.2; Python 3.11 with the start method that is the default since Python 3.14.
# Behaviour: with a module that has shared_run (--mpi, --cuda-mpi, --openmpi-pmi2) podman-hpc starts a helper process
# and hands it its configuration, which holds os.environ. By fork nothing is copied. forkserver pickles what it hands
# over, and os.environ cannot be pickled. The metadata of the package name no upper bound of Python.
# Output seen: fork: started; forkserver: cannot pickle (AttributeError in 3.11, PicklingError in 3.14)
# Who is hurt: a site that updates the Python of podman-hpc: every job with the host's MPI ends with a traceback, and
# jobs without such a module still work.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet podman-hpc==1.2.2 click==8.5.1 pyyaml==6.0.4 toml==0.10.2
cat >"$work/start.py" <<'PYTHON'
import multiprocessing
import pickle
import sys

from podman_hpc.siteconfig import SiteConfig

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    config = SiteConfig()
    config.config_env(True)
    try:
        process = context.Process(target=repr, args=(config,))
        process.start()
        process.join()
    except (AttributeError, pickle.PicklingError):
        print("cannot pickle")
    else:
        print("started")
PYTHON
method() { HOME=$work USER=user PATH=$work/venv/bin:$PATH "$work/venv/bin/python" "$work/start.py" "$1"; }
for name in fork forkserver; do echo "$name: $(method $name)"; done
[[ $(method fork) == started ]]
if [[ $(method forkserver) != "cannot pickle" ]]; then
    echo "changed: podman-hpc hands over what can be pickled" >&2
    exit 1
fi
