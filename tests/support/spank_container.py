"""Runs a command in a container that a file for ``srun --environment`` describes: FILE COMMAND...

A stand-in for CSCS's Container Engine; needs root. The image is unpacked, folders are bound into it, and the
command runs there. As in the Container Engine, ``${NAME}`` is filled in, host variables pass unless the image
sets them, and nothing else of the host is visible. Functions that bash exported do not arrive.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path


def expanded(text: str, environ: Mapping[str, str]) -> str:
    """Fills in ``${NAME}``; ``$$`` is a dollar sign. A variable that is not set is an error."""
    return re.sub(r"\$(?:\$|\{(\w+)\})", lambda m: environ[m[1]] if m[1] else "$", text)


def main(file: str, *command: str) -> None:
    """Runs a command in the container of a file; does not return."""
    host = dict(os.environ)
    edf = tomllib.loads(Path(file).read_text())
    root = Path(tempfile.mkdtemp(prefix="container-", dir=Path(os.environ["SLURM_CONF"]).parent))
    image = expanded(edf["image"], host)
    subprocess.run(["unsquashfs", "-no-progress", "-force", "-dest", root, image], check=True, stdout=2)

    env = {name: value for name, value in host.items() if not name.startswith("BASH_FUNC_")}
    lines = (root / "etc/environment").read_text().splitlines()
    env |= dict(line.split("=", 1) for line in lines)
    env |= {name: expanded(value, host) for name, value in edf.get("env", {}).items()}
    env = {name: value for name, value in env.items() if value or name not in edf.get("env", {})}
    if not edf.get("entrypoint", False):
        (root / "etc/rc.local").write_text('exec "$@"\n')  # as pyxis does

    script = []
    for mount in ["/proc:/proc", "/dev:/dev", *edf.get("mounts", [])]:
        source, target, *flags = expanded(mount, host).split(":")
        place = root / target.lstrip("/")
        if Path(source).is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        script.append(f"mount --rbind {shlex.quote(source)} {shlex.quote(str(place))}")
        if flags == ["ro"]:
            script.append(f"mount -o remount,bind,ro {shlex.quote(str(place))}")
    start = ["/bin/sh", "/etc/rc", *command]
    if "workdir" in edf:
        start = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', expanded(edf["workdir"], host), *command]
    script.append(f"exec chroot {shlex.join([str(root), *start])}")
    words = ["unshare", "--mount", "--propagation=private", "sh", "-ec", "\n".join(script)]
    os.execvpe(words[0], words, env | {"PATH": env["PATH"] + ":" + host["PATH"]})


if __name__ == "__main__":
    main(*sys.argv[1:])
