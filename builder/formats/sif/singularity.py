"""Writes and reads ``/.singularity.d``, where Singularity and Apptainer look for scripts.

The runtimes source ``/.singularity.d/env/*.sh``, sorted by name, before every command, and ``run``
executes ``/.singularity.d/runscript``. ``apptainer inspect`` reads a JSON object of the SIF
instead.

The scripts and texts are part of the bytes of every SIF: another wording changes all digests.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from builder.core.datafiles import script, table
from builder.formats.oci.image import DEFAULT_PATH, SERVES_BASE, config_environment
from builder.formats.trees.member import Kind, Member
from builder.formats.trees.merge import Merge
from builder.formats.trees.sources import Source

FOLDER = ".singularity.d"
#: The script with the image's variables. It comes after those that Apptainer writes (90, 91) and
#: before those that add the host's driver libraries (99). A SIF on a base SIF takes the next one
#: that is free.
_ENVIRONMENTS = [f"{FOLDER}/env/9{n}-environment.sh" for n in (4, 5, 6, 7, 8)]
#: In a primary partition that is incomplete without its overlays: a runtime whose configuration has
#: "enable overlay = no" starts such a container without any message.
GUARD = f"{FOLDER}/env/93-overlays.sh"
#: What the guard prints.
NOT_MOUNTED = "This runtime did not mount the overlay partitions of this SIF."
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: A script that does nothing.
_EMPTY = "#!/bin/sh\n"
#: What is read of /.singularity.d: not the libraries of a host.
_READ_FILES = re.compile(rf"{re.escape(FOLDER)}/(?!libs/).*", re.DOTALL)
#: In bytes: all of these together. Apptainer writes about 10 kB.
_MOST_SCRIPTS = 16 << 20
#: In characters: the kernel passes no longer variable to a program (MAX_ARG_STRLEN). Scripts that
#: double a variable in each line would fill the memory.
_LONGEST_VARIABLE = 1 << 17

# writing ------------------------------------------------------------------------------------------


def environment_script(env: Mapping[str, str], base: Mapping[str, str] | None = None) -> str:
    """Return a shell script that sets the image's variables.

    Args:
        env: the variables. Those that no shell can set are left out.
        base: the variables of a base SIF, whose own scripts run before this one. A variable that
            they set to the same value is left out, a PATH that ends in the base's one is added in
            front of it, and :data:`SERVES_BASE` is unset.
    """
    served = sorted(filter(SERVES_BASE.fullmatch, base or ()))
    unset = (f"unset {name}" for name in served if name not in env)
    lines = ["#!/bin/sh", "# Written by builder.", *unset]
    base_path = None if base is None else ":" + base.get("PATH", DEFAULT_PATH)
    for name, value in env.items():
        is_set = base is not None and base.get(name) == value
        if is_set or not _VARIABLE_NAME.fullmatch(name) or "\0" in value:
            continue
        if base_path is not None and name == "PATH" and value.endswith(base_path):
            lines.append(f'export PATH={shlex.quote(value.removesuffix(base_path))}:"$PATH"')
        else:
            lines.append(f"export {name}={shlex.quote(value)}")
    return "\n".join(lines) + "\n"


def run_script(entrypoint: Sequence[str], command: Sequence[str]) -> str:
    """Return a runscript with the OCI's meaning: arguments replace the command."""
    lines = ["#!/bin/sh", "# Written by builder."]
    if command or not entrypoint:
        lines.append(f'[ "$#" -gt 0 ] || set -- {shlex.join(command or ["/bin/sh"])}')
    lines.append(f'exec {shlex.join(entrypoint)} "$@"' if entrypoint else 'exec "$@"')
    return "\n".join(lines) + "\n"


class Metadata:
    """An OCI config in a SIF: files in ``/.singularity.d``, and an object for ``inspect``.

    Args:
        config: the image's config.
        digest: the image's digest.
        base: the files in ``/.singularity.d`` of a base SIF, by path.
    """

    def __init__(
        self, config: Mapping[str, Any], digest: str, base: Mapping[str, str] | None = None
    ) -> None:
        taken = base or {}
        self._place = next((path for path in _ENVIRONMENTS if path not in taken), _ENVIRONMENTS[-1])
        inner = config.get("config") or {}
        self.labels: dict[str, str] = {**(inner.get("Labels") or {}), "org.builder.image": digest}
        base_environment = None if base is None else container_environment(base)
        self.environment = environment_script(config_environment(config), base_environment)
        self.runscript = run_script(inner.get("Entrypoint") or [], inner.get("Cmd") or [])
        self.definition = _definition(self.labels, digest)

    def inspect(self) -> dict[str, Any]:
        """Return the JSON object that ``apptainer inspect`` reads."""
        attributes = {
            "deffile": self.definition,
            "environment": {f"/{self._place}": self.environment},
            "labels": self.labels,
            "runscript": self.runscript,
            "startscript": _EMPTY,
        }
        return {"data": {"attributes": attributes}, "type": "container"}

    def files(self, time: int) -> list[tuple[Member, bytes]]:
        """Return the files that depend on the image; they replace those of a base SIF.

        Args:
            time: of the files, in seconds since 1970.
        """
        texts = {
            self._place: self.environment,
            f"{FOLDER}/runscript": self.runscript,
            f"{FOLDER}/labels.json": json.dumps(self.labels, indent=1, sort_keys=True) + "\n",
            f"{FOLDER}/Singularity": self.definition,
        }
        return _files(texts, time)


def common_files(time: int) -> list[tuple[Member, bytes]]:
    """Return the scripts and mount points of each container; the image's files replace them.

    Args:
        time: of the files, in seconds since 1970.
    """
    common = table(__file__, "common_files.yaml")
    empty = [
        (Member(path, Kind[kind], mode, mtime=time), b"")
        for path, (kind, mode) in common["empty"].items()
    ]
    links = [
        (Member(name, Kind.SYMLINK, 0o777, mtime=time, target=target), b"")
        for name, target in common["links"].items()
    ]
    texts = {
        f"{FOLDER}/env/90-environment.sh": f"{_EMPTY}# Custom environment shell code should follow\n",
        f"{FOLDER}/env/99-base.sh": script(__file__, "host_libraries.sh"),
        f"{FOLDER}/env/99-runtimevars.sh": script(__file__, "user_paths.sh"),
        f"{FOLDER}/startscript": _EMPTY,
    }
    return [*empty, *_files(texts, time), *links]


def guard_files(time: int) -> list[tuple[Member, bytes]]:
    """Return the script that stops a container whose overlay partitions are not mounted.

    Args:
        time: of the file, in seconds since 1970.
    """
    guard = script(__file__, "overlay_guard.sh", script=_ENVIRONMENTS[0], message=NOT_MOUNTED)
    return _files({GUARD: guard}, time)


def _files(texts: Mapping[str, str], time: int) -> list[tuple[Member, bytes]]:
    found = []
    for path, text in texts.items():
        mode = 0o644 if path.endswith((".json", "Singularity")) else 0o755
        found.append(text_file(path, text, mode, time))
    return found


def text_file(path: str, text: str, mode: int, time: int) -> tuple[Member, bytes]:
    """Return a file with its content; ``time`` is in seconds since 1970."""
    data = text.encode()
    return Member(path, Kind.FILE, mode, size=len(data), mtime=time), data


def _definition(labels: Mapping[str, str], digest: str) -> str:
    """Return a text in the form of a definition file, with the origin of the SIF."""
    name = labels.get("org.opencontainers.image.base.name", "")
    lock = labels.get("org.builder.lock")
    return script(
        __file__,
        "definition.txt",
        bootstrap=_bootstrap(name),
        base=name or labels.get("org.opencontainers.image.base.digest", "unknown"),
        digest=digest,
        lock=f"# The lock file: {lock}\n" if lock else "",
    )


def _bootstrap(base_name: str) -> str:
    if base_name.startswith("debian:"):
        return "debootstrap"
    return "docker" if base_name else "localimage"


# reading ------------------------------------------------------------------------------------------


def container_files(sources: Iterable[Source]) -> dict[str, str]:
    """Return the texts in ``/.singularity.d``, by path.

    Args:
        sources: that folder of each partition, from the bottom up.

    Raises:
        ImageError: a partition is damaged, or the texts are too large.
    """
    merge = Merge(list(sources))
    return dict(merge.read(_READ_FILES, _MOST_SCRIPTS, f"the files in /{FOLDER}"))


#: The scripts that set the image's variables. 99-*.sh are for the host's libraries, and Apptainer's
#: 95-apps.sh sets PATH and LD_LIBRARY_PATH only while one of the image's apps runs.
_READ_SCRIPTS = re.compile(rf"{re.escape(FOLDER)}/env/(?!95-apps)(0|1|9[0-8]).*\.sh")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_SERVED = re.compile(rf"(?<![\w$-])({SERVES_BASE.pattern})=(?=(.{{0,200}}))")
#: "${NAME:-default}"
_DEFAULTED = re.compile(r'"\$\{[A-Za-z_]\w*:?-(.*)\}"')
#: $NAME, ${NAME} and ${NAME:-...}; with a bound, as a line may have thousands without an end
_REFERENCE = re.compile(r"\$(?:\{(\w+)(?::?[-+][^}]{0,500})?\}|(\w+))")
_PATH = re.compile(r"\$(PATH)()")


def container_environment(files: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a container's scripts export, as far as that is readable.

    PATH is always there, and :data:`SERVES_BASE` also with a value that only a shell can know.

    Args:
        files: the texts in ``/.singularity.d``, by path.
    """
    env = {"PATH": DEFAULT_PATH}
    for path in sorted(files):
        if not _READ_SCRIPTS.fullmatch(path):
            continue
        for line in files[path].splitlines():
            match = _ASSIGNMENT.fullmatch(line)
            value = _value(match[2], env) if match else None
            if match and value is not None:
                env[match[1]] = value
        env = dict(_SERVED.findall(files[path])) | env
    return env


def _value(text: str, env: Mapping[str, str]) -> str | None:
    """Return the value of an assignment's right-hand side; None if only a shell can know it."""
    text = text.strip().rstrip(";")
    if len(text) > _LONGEST_VARIABLE or "\0" in text:
        return None
    if match := _DEFAULTED.fullmatch(text):
        default = match[1]
        text = default if default.startswith(('"', "'")) else f'"{default}"'
    value = _word(text)
    if value and "'" not in text:
        return _substituted(_REFERENCE, value, env)
    if value and '"$PATH"' in text:  # as environment_script() writes it
        return _substituted(_PATH, value, env)
    return value


def _substituted(pattern: re.Pattern[str], value: str, env: Mapping[str, str]) -> str | None:
    """Return a value with the variables that a pattern finds; None if it becomes too long."""
    names = [match[1] or match[2] for match in pattern.finditer(value)]
    if len(value) + sum(len(env.get(name, "")) for name in names) > _LONGEST_VARIABLE:
        return None
    return pattern.sub(lambda match: env.get(match[1] or match[2], ""), value)


def _word(text: str) -> str | None:
    """Return the one word that a shell reads; None if there are more, or commands."""
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if len(words) > 1 or (words and ("`" in text or "$(" in text)):
        return None
    return words[0] if words else ""
