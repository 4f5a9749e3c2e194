#!/usr/bin/env bash
# podman-hpc run --mpi reads the words of the command, too, and some commands end with a traceback.
#
# Versions: podman-hpc 1.2.2, podman 4.3.1, Python 3.11.
# Behaviour: a module with shared_run (--mpi, --cuda-mpi, --openmpi-pmi2) starts one container for each node and runs
# the processes in it. To separate the options of "podman run" from those of "podman exec", all words of the command
# line are read by an option parser, also those behind the image: an option of podman without a value, or one behind
# "--", is an error of that parser. Without such a module, "--" before the image keeps the words apart (builder
# writes it).
# Output seen: the last line of each traceback.
#   -e: argparse.ArgumentError: argument -e/--env: expected one argument
#   --tty=5: argparse.ArgumentError: argument -t/--tty: ignored explicit argument '5'
#   -- -e x: IndexError: list index out of range
#   --epochs 3: fine
# Who is hurt: a program whose own options are named like podman's, in a job with the host's MPI. It does not start;
# "bash -c" with the command in one word helps.
set -euo pipefail
work=$(mktemp -d)
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet podman-hpc==1.2.2
cat >"$work/read.py" <<'PYTHON'
import sys
from podman_hpc.click_passthrough import filterValidOptions

filterValidOptions(["--rm", "image", "program", *sys.argv[1:]], ["podman", "run", "--help"])
print("fine")
PYTHON
read_words() {
    "$work/venv/bin/python" "$work/read.py" "$@" 2>&1 | tail -n 1
}
[[ $(read_words -e) == *"expected one argument"* ]]
[[ $(read_words --tty=5) == *"ignored explicit argument '5'"* ]]
[[ $(read_words -- -e x) == "IndexError: list index out of range" ]]
[[ $(read_words --epochs 3) == fine ]]
rm -rf "$work"
