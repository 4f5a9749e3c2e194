"""Runs a command in a container that options of srun describe: OPTIONS -- COMMAND...

A stand-in for CSCS's Container Engine and for pyxis; needs root. The image is unpacked, folders are bound
into it, and the command runs there. As with both, host variables pass unless the image sets them, no
entrypoint runs, and nothing else of the host is visible. Functions that bash exported do not arrive.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Description:
    """A container. ``env`` are its variables beside those of image and host; empty ones are removed."""

    image: str
    mounts: Sequence[str]
    workdir: str
    env: Mapping[str, str]
    writable: bool


def of_file(file: str, host: Mapping[str, str]) -> Description:
    """Reads a file of the Container Engine, which fills in ``${NAME}``; ``$$`` is a dollar sign.

    A variable that is not set is an error.
    """

    def filled(text: str) -> str:
        return re.sub(r"\$(?:\$|\{(\w+)\})", lambda m: host[m[1]] if m[1] else "$", text)

    edf = tomllib.loads(Path(file).read_text())
    env = {name: filled(value) for name, value in edf.get("env", {}).items()}
    mounts = [filled(mount) for mount in edf.get("mounts", [])]
    assert not edf["entrypoint"]
    return Description(filled(edf["image"]), mounts, filled(edf.get("workdir", "")), env, edf["writable"])


def of_options(options: Mapping[str, str], host: Mapping[str, str]) -> Description:
    """Reads options of pyxis 0.24 (args.c, pyxis_slurmstepd.c): named host variables win over the image's."""
    image, workdir = options["container-image"], options.get("container-workdir", "")
    assert image[0] in "/.", f"pyxis: importing docker image: {image}"
    assert "no-container-mount-home" in options and "no-container-entrypoint" in options
    mounts = [mount for mount in options.get("container-mounts", "").split(",") if mount]
    for mount in mounts:
        source = mount.partition(":")[0]
        assert not re.search(r'["$`\\]', mount), f"pyxis: not valid in a script of bash: {mount}"
        assert Path(source).exists(), f"pyxis: --container-mounts: source path does not exist: {source}"
    named = [name for name in options.get("container-env", "").split(",") if name in host]
    env = {name: host[name] for name in named}
    return Description(image, [*mounts], workdir, env, "container-writable" in options)


def mount_lines(mount: str, root: Path) -> list[str]:
    """Makes the place of a mount in the container; returns the lines of shell that mount it."""
    source, target, *flags = mount.split(":") if ":" in mount else (mount, mount)
    place = root / target.lstrip("/")
    if Path(source).is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    lines = [f"mount --rbind {shlex.quote(source)} {shlex.quote(str(place))}"]
    return lines + [f"mount -o remount,bind,ro {shlex.quote(str(place))}"] * (flags == ["ro"])


def main(*words: str) -> None:
    """Runs a command in a container; does not return."""
    host, split = dict(os.environ), words.index("--")
    options = dict(word.removeprefix("--").split("=", 1) for word in words[:split])
    file = options.get("environment")
    made = of_file(file, host) if file else of_options(options, host)
    root = Path(tempfile.mkdtemp(prefix="container-", dir=Path(os.environ["SLURM_CONF"]).parent))
    subprocess.run(["unsquashfs", "-no-progress", "-force", "-dest", root, made.image], check=True, stdout=2)

    env = {name: value for name, value in host.items() if not name.startswith("BASH_FUNC_")}
    lines = (root / "etc/environment").read_text().splitlines()
    env |= {**dict(line.split("=", 1) for line in lines), **made.env}
    env = {name: value for name, value in env.items() if value or name not in made.env}
    (root / "etc/rc.local").write_text('exec "$@"\n')  # as pyxis does

    script = [f"mount --bind {root} {root}"]
    for mount in ["/proc:/proc", "/dev:/dev", *made.mounts]:
        script += mount_lines(mount, root)
    if not made.writable:
        script.append(f"mount -o remount,bind,ro {root}")
    start = ["/bin/sh", "/etc/rc", *words[split + 1 :]]
    if made.workdir:
        start = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', made.workdir, *words[split + 1 :]]
    script.append(f"exec chroot {shlex.join([str(root), *start])}")
    command = ["unshare", "--mount", "--propagation=private", "sh", "-ec", "\n".join(script)]
    os.execvpe(command[0], command, env | {"PATH": env["PATH"] + ":" + host["PATH"]})


if __name__ == "__main__":
    main(*sys.argv[1:])
