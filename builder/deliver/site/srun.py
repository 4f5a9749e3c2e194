"""Containers that a plugin of srun starts, with enroot: CSCS's Container Engine, and pyxis.

pyxis: https://github.com/NVIDIA/pyxis, args.c and pyxis_slurmstepd.c of 0.24.0 (2026-05-12);
enroot: https://github.com/NVIDIA/enroot, conf/hooks and enroot.in of 4.1.2 (2026-04-29).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from builder.build.run.process import execute
from builder.core.datafiles import read_beside
from builder.core.errors import RunnerError
from builder.lock.config.fields import VARIABLE

from .shell import ShellText, join, quote

#: What NVIDIA's container hook reads. Without, it mounts no driver; the default capability has no
#: libcuda.
NVIDIA = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
#: Variables that enroot and its hooks read before the container starts begin like these.
HOOK_VARIABLES = ("ENROOT_", "NVIDIA_", "MELLANOX_")
#: A login shell in the container would replace the image's PATH with Debian's:
#: https://docs.cscs.ch/software/container-engine/known-issue (2026-06-17).
LOGIN_SHELL = {"ENROOT_LOGIN_SHELL": "no"}
#: Words that run a command with the variables of a file of ``NAME=VALUE`` lines. The values are on
#: no command line.
WITH_FILE = ("sh", "-c", read_beside(__file__, "with_file.sh").rstrip())
#: The file for ``srun --environment`` in a job.
EDF = ShellText("$BUILDER_EDF")
_SCHEME = "docker://"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class SrunContainer:
    """A container that a plugin of srun starts. Texts can be :class:`ShellText`."""

    plugin: str
    """Its name, for messages."""
    options: tuple[str, ...]
    """Options of srun; the first one names the image, or the file that describes the container."""
    env: Mapping[str, str]
    """Variables of srun itself."""
    file: str = ""
    """Where the lines of ``edf`` are written."""
    edf: tuple[str, ...] = ()
    """Lines of the file for ``srun --environment``; empty: there is no file."""

    @property
    def option(self) -> str:
        """The option that srun has only with the plugin."""
        return self.options[0].partition("=")[0]

    @property
    def missing(self) -> str:
        """The message if srun does not have the option."""
        return f"this Slurm has no option {self.option}: {self.plugin} is not installed"

    def shell(self, line: str) -> str:
        """Return shell lines that prepare what the plugin reads, and call srun.

        Args:
            line: srun with its options and the command.
        """
        written = [f"cat >{quote(self.file)} <<'EOF'", *self.edf, "EOF"] if self.edf else []
        variables = [f"{name}={quote(value)}" for name, value in self.env.items()]
        return "\n".join([*written, " ".join([*variables, line])])

    def require_plugin(self, environ: Mapping[str, str]) -> None:
        """Check that srun of this machine can start containers.

        Args:
            environ: the variables, with PATH.

        Raises:
            RunnerError: there is no srun, or it does not have the plugin's option.
        """
        srun = shutil.which("srun", path=environ.get("PATH"))
        if srun is None:
            message = "srun is not installed on this machine"
            raise RunnerError(message, "run this on a login node of the site")
        done = execute([srun, "--help"], env=environ)
        if self.option not in done.stdout + done.stderr:
            hint = "run this on a login node of the site, or ask its support"
            raise RunnerError(self.missing, hint)


def toml(text: str) -> str:
    """Return a text as a TOML string, with variables as the Container Engine reads them.

    It fills in ``${NAME}`` in every value, from the variables of srun's host, and reads ``$$`` as a
    dollar sign: https://docs.cscs.ch/software/container-engine/edf (2025-09-24).
    """
    if not isinstance(text, ShellText):
        return _string(text.replace("$", "$$"))

    def variable(found: re.Match[str]) -> str:
        return "$$" if found["dollar"] else f"${{{found['name'] or found['braced']}}}"

    return _string(VARIABLE.sub(variable, text))


def toml_key(name: str) -> str:
    """Return a dotted key of TOML."""
    parts = name.split(".")
    return ".".join(part if _BARE_KEY.fullmatch(part) else _string(part) for part in parts)


def _string(text: str) -> str:
    # A JSON string is a basic string of TOML, except that TOML escapes DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def engine_image(text: str) -> str:
    """Return a path, or ``HOST#REPOSITORY:TAG`` for ``docker://HOST/REPOSITORY:TAG``."""
    if text.startswith(_SCHEME):
        host, _, repository = text.removeprefix(_SCHEME).partition("/")
        has_host = "." in host or ":" in host or host == "localhost"
        return f"{host}#{repository}" if has_host else text.removeprefix(_SCHEME)
    is_path = text.startswith(("/", "./", "$")) or "#" in text
    return text if is_path else join("./", text)
