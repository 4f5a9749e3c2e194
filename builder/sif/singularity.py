"""What Singularity and Apptainer find in a container beside its files: ``/.singularity.d``, made of an OCI config, and read.

The runtimes source ``/.singularity.d/env/*.sh`` in the order of their names for every command, and ``run`` executes
``/.singularity.d/runscript``. ``apptainer inspect`` reads a JSON object of the SIF instead.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from builder.oci.config import DEFAULT_PATH
from builder.oci.config import config_environment as base_environment
from builder.trees.merge import MOUNT_POINTS, Merge, Source
from builder.trees.rootfs import Member
from builder.trees.squashfs import DIRECTORY, FILE, SYMLINK

FOLDER = ".singularity.d"
#: After those that others write (90, 91), before those that add the host's driver libraries (99). A SIF on a SIF takes the next.
_ENVIRONMENTS = [f"{FOLDER}/env/9{n}-environment.sh" for n in (4, 5, 6, 7, 8)]
#: In a primary partition that is nothing without its overlays: runtimes that are configured not to mount them say nothing.
GUARD = f"{FOLDER}/env/93-overlays.sh"
NOT_MOUNTED = "This runtime did not mount the overlay partitions of this SIF."
_GUARD = f"""\
#!/bin/sh
if [ ! -e /{_ENVIRONMENTS[0]} ]; then
    echo "{NOT_MOUNTED} Build it with 'sif: {{layout: flat}}' in the recipe." >&2
    exit 1
fi
"""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_LIBRARIES = """\
#!/bin/sh
# The host's driver libraries, which --nv and --rocm bring, come last.
LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
[ -n "${PS1:-}" ] || PS1="Apptainer> "
export LD_LIBRARY_PATH PS1
"""
_PATHS = """\
#!/bin/sh
# What --env PATH=, PREPEND_PATH= and APPEND_PATH= ask for.
[ -z "${SING_USER_DEFINED_PREPEND_PATH:-}" ] || PATH="$SING_USER_DEFINED_PREPEND_PATH:$PATH"
[ -z "${SING_USER_DEFINED_APPEND_PATH:-}" ] || PATH="$PATH:$SING_USER_DEFINED_APPEND_PATH"
[ -z "${SING_USER_DEFINED_PATH:-}" ] || PATH="$SING_USER_DEFINED_PATH"
unset SING_USER_DEFINED_PREPEND_PATH SING_USER_DEFINED_APPEND_PATH SING_USER_DEFINED_PATH
export PATH
"""
_COMMON = {
    f"{FOLDER}/env/90-environment.sh": "#!/bin/sh\n# Custom environment shell code should follow\n",
    f"{FOLDER}/env/99-base.sh": _LIBRARIES,
    f"{FOLDER}/env/99-runtimevars.sh": _PATHS,
    f"{FOLDER}/startscript": "#!/bin/sh\n",
}


def environment_script(env: Mapping[str, str], base: Mapping[str, str] | None = None) -> str:
    """A script that sets the image's variables.

    Args:
        env: the variables.
        base: those of a base SIF, whose own scripts run before: what they set already is left alone, and PATH is added to.
    """
    lines = ["#!/bin/sh", "# Written by builder."]
    for name, value in env.items():
        if not _NAME.fullmatch(name) or "\0" in value:
            continue  # no shell can set it
        if base is not None and base.get(name) == value:
            continue
        if (
            name == "PATH"
            and base is not None
            and (tail := ":" + base.get("PATH", DEFAULT_PATH))
            and value.endswith(tail)
        ):
            lines.append(f'export PATH={shlex.quote(value.removesuffix(tail))}:"$PATH"')
        else:
            lines.append(f"export {name}={shlex.quote(value)}")
    return "\n".join(lines) + "\n"


def run_script(entrypoint: Sequence[str], command: Sequence[str]) -> str:
    """A runscript that does what the OCI's entry point and command do: arguments replace the command."""
    lines = ["#!/bin/sh", "# Written by builder."]
    if command or not entrypoint:
        lines.append(f'[ "$#" -gt 0 ] || set -- {shlex.join(command or ["/bin/sh"])}')
    lines.append(f'exec {shlex.join(entrypoint)} "$@"' if entrypoint else 'exec "$@"')
    return "\n".join(lines) + "\n"


class Metadata:
    """What a SIF holds of an OCI config: files of the root file system, and the objects that ``inspect`` reads.

    Args:
        config: the image's.
        digest: the image's.
        base: the files of a base SIF's ``/.singularity.d``.
    """

    def __init__(self, config: Mapping[str, Any], digest: str, base: Mapping[str, str] | None = None) -> None:
        taken = base or {}
        self._place = next((p for p in _ENVIRONMENTS if p not in taken), _ENVIRONMENTS[-1])
        inner = config.get("config") or {}
        self.labels: dict[str, str] = {**(inner.get("Labels") or {}), "org.builder.image": digest}
        self.environment = environment_script(
            base_environment(config), None if base is None else container_environment(base)
        )
        self.runscript = run_script(inner.get("Entrypoint") or [], inner.get("Cmd") or [])
        self.definition = _definition(self.labels, digest)

    def inspect(self) -> dict[str, Any]:
        """``inspect-metadata.json``."""
        attributes = {
            "deffile": self.definition,
            "environment": {f"/{self._place}": self.environment},
            "labels": self.labels,
            "runscript": self.runscript,
            "startscript": _COMMON[f"{FOLDER}/startscript"],
        }
        return {"data": {"attributes": attributes}, "type": "container"}

    def files(self, time: int) -> list[tuple[Member, bytes]]:
        """What the image itself has no say in."""
        texts = {
            self._place: self.environment,
            f"{FOLDER}/runscript": self.runscript,
            f"{FOLDER}/labels.json": json.dumps(self.labels, indent=1, sort_keys=True) + "\n",
            f"{FOLDER}/Singularity": self.definition,
        }
        return _members(texts, time)


def common_files(time: int) -> list[tuple[Member, bytes]]:
    """What every container has, unless the image brings it: scripts, and places to mount over."""
    folders = [
        Member(p, DIRECTORY, 0o755, 0, 0, 0, time, "") for p in (FOLDER, f"{FOLDER}/env", f"{FOLDER}/libs")
    ]
    modes = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700}
    for path, kind in MOUNT_POINTS.items():
        folders.append(
            Member(path, kind, modes.get(path, 0o755 if kind == DIRECTORY else 0o644), 0, 0, 0, time, "")
        )
    links = {"singularity": f"{FOLDER}/runscript", "environment": f"{FOLDER}/env/90-environment.sh"}
    return [
        *((m, b"") for m in folders),
        *_members(_COMMON, time),
        *((Member(name, SYMLINK, 0o777, 0, 0, 0, time, target), b"") for name, target in links.items()),
    ]


def guard_files(time: int) -> list[tuple[Member, bytes]]:
    """What makes a container without its overlay partitions say so."""
    return _members({GUARD: _GUARD}, time)


def _members(texts: Mapping[str, str], time: int) -> list[tuple[Member, bytes]]:
    def mode(path: str) -> int:
        return 0o644 if path.endswith((".json", "Singularity")) else 0o755

    return [
        (Member(path, FILE, mode(path), 0, 0, len(text.encode()), time, ""), text.encode())
        for path, text in texts.items()
    ]


def _definition(labels: Mapping[str, str], digest: str) -> str:
    name = labels.get("org.opencontainers.image.base.name", "")
    kind = "debootstrap" if name.startswith("debian:") else "docker" if name else "localimage"
    lines = [
        f"Bootstrap: {kind}",
        f"From: {name or labels.get('org.opencontainers.image.base.digest', 'unknown')}",
        "",
    ]
    lines.append(
        "# Not built from a definition: builder put this SIF together from locked packages, and nothing was run."
    )
    lines.append(f"# The OCI image of the same lock: {digest}")
    if lock := labels.get("org.builder.lock"):
        lines.append(f"# The lock file: {lock}")
    return "\n".join(lines) + "\n"


# reading --------------------------------------------------------------------------------------------------------------


def container_files(sources: Iterable[Source]) -> dict[str, str]:
    """The texts of ``/.singularity.d`` of a container's partitions (each source of that folder alone), by path."""
    found = {}
    for member, content in Merge(list(sources)):
        if member.kind == FILE and member.size < 1 << 20:
            found[member.path] = b"".join(bytes(c) for c in content).decode(errors="replace")
    return found


def container_environment(files: Mapping[str, str]) -> dict[str, str]:
    """The variables that a container's scripts export, as far as they can be told without running them; PATH in any case."""
    env = {"PATH": DEFAULT_PATH}
    for path in sorted(p for p in files if re.fullmatch(rf"{re.escape(FOLDER)}/env/(0|1|9[0-8]).*\.sh", p)):
        for line in files[path].splitlines():
            if (match := re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)", line)) and (
                value := _value(match[2], env)
            ) is not None:
                env[match[1]] = value
    return env


_DEFAULTED = re.compile(r'"\$\{[A-Za-z_]\w*:?-(.*)\}"')


def _value(text: str, env: Mapping[str, str]) -> str | None:
    """What a word of shell means, or None when only a shell can tell."""
    text = text.strip().rstrip(";")
    if match := _DEFAULTED.fullmatch(text):
        text = match[1] if match[1].startswith(('"', "'")) else f'"{match[1]}"'
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if not words:
        return ""
    if len(words) > 1 or "`" in text or "$(" in text:
        return None
    value = words[0]
    if "'" not in text:
        value = re.sub(r"\$(?:\{(\w+)(?::?[-+][^}]*)?\}|(\w+))", lambda m: env.get(m[1] or m[2], ""), value)
    elif '"$PATH"' in text:
        value = value.replace("$PATH", env.get("PATH", ""))
    return value
