"""Environment definition files (EDF) of CSCS's Container Engine, for ``srun --environment``.

The Container Engine fills in ``${NAME}`` in every value, from the variables of srun's host, and
reads ``$$`` as a dollar sign: https://docs.cscs.ch/software/container-engine/edf (2025-09-24).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from builder.config.fields import VARIABLE
from builder.errors import RunnerError
from builder.site.shell import ShellText, join

#: What NVIDIA's container hook reads. Without, it mounts no driver; the default capability has no
#: libcuda.
NVIDIA = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
NO_ENGINE = "this Slurm has no option --environment: the Container Engine is not installed"
#: Words that run a command with the variables of a file of ``NAME=VALUE`` lines. The values are on
#: no command line.
WITH_FILE = (
    "bash",
    "-c",
    "while IFS= read -r line || [[ -n $line ]]; do "
    'if [[ $line =~ ^[A-Za-z_][A-Za-z0-9_]*= ]]; then export "$line"; fi; '
    'done <"$0" || exit 1; exec "$@"',
)
#: A login shell in the container would replace the image's PATH with Debian's:
#: https://docs.cscs.ch/software/container-engine/known-issue (2026-06-17).
LOGIN_SHELL = "ENROOT_LOGIN_SHELL"
_SCHEME = "docker://"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def edf_lines(
    image: str,
    mounts: Sequence[tuple[str, str, bool]],
    workdir: str,
    env: Mapping[str, str],
    annotations: Mapping[str, str],
) -> tuple[str, ...]:
    """Return the lines of a file. Texts can be :class:`~builder.site.shell.ShellText`.

    Args:
        image: see :func:`engine_image`.
        mounts: source and target of each, and whether it is read-only.
        workdir: the folder to start in; empty: the image's.
        env: variables in the container; an empty value removes a variable.
        annotations: by dotted names.
    """
    lines = [f"image = {toml(engine_image(image))}"]
    if workdir:
        lines.append(f"workdir = {toml(workdir)}")
    lines += ["entrypoint = false", "writable = true"]
    if mounts:
        lines.append("mounts = [")
        for source, target, readonly in mounts:
            lines.append(f"    {toml(join(source, ':', target, ':ro' if readonly else ''))},")
        lines.append("]")
    if env:
        lines += ["", "[env]", *(f"{_key(name)} = {toml(value)}" for name, value in env.items())]
    if annotations:
        lines += ["", "[annotations]"]
        lines += [f"{_key(name)} = {toml(value)}" for name, value in annotations.items()]
    return tuple(lines)


def engine_image(text: str) -> str:
    """Return a path, or ``HOST#REPOSITORY:TAG`` for ``docker://HOST/REPOSITORY:TAG``."""
    if text.startswith(_SCHEME):
        host, _, repository = text.removeprefix(_SCHEME).partition("/")
        has_host = "." in host or ":" in host or host == "localhost"
        return f"{host}#{repository}" if has_host else text.removeprefix(_SCHEME)
    is_path = text.startswith(("/", "./", "$")) or "#" in text
    return text if is_path else join("./", text)


def toml(text: str) -> str:
    """Return a text as a TOML string, with variables as the Container Engine reads them."""
    if not isinstance(text, ShellText):
        return _string(text.replace("$", "$$"))

    def variable(found: re.Match[str]) -> str:
        return "$$" if found["dollar"] else f"${{{found['name'] or found['braced']}}}"

    return _string(VARIABLE.sub(variable, text))


def with_edf(lines: Sequence[str], path: str, command: str) -> str:
    """Return shell lines that write a file, and the command that uses it.

    Args:
        lines: of the file.
        path: where it is written, quoted for the shell.
        command: a line of shell.
    """
    return "\n".join([f"cat >{path} <<'EOF'", *lines, "EOF", f"{LOGIN_SHELL}=no {command}"])


def require_engine(environ: Mapping[str, str]) -> None:
    """Check that srun of this machine can start containers.

    Args:
        environ: the variables, with PATH.

    Raises:
        RunnerError: there is no srun, or it has no option ``--environment``.
    """
    srun = shutil.which("srun", path=environ.get("PATH"))
    if srun is None:
        message = "srun is not installed on this machine"
        raise RunnerError(message, "run this on a login node of the site")
    command = [srun, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environ)
    if "--environment" not in done.stdout + done.stderr:
        raise RunnerError(NO_ENGINE, "run this on a login node of the site, or ask its support")


def _key(name: str) -> str:
    """Return a dotted key."""
    parts = name.split(".")
    return ".".join(part if _BARE_KEY.fullmatch(part) else _string(part) for part in parts)


def _string(text: str) -> str:
    # A JSON string is a basic string of TOML, except that TOML escapes DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
