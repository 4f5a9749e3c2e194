"""Runs ``uv pip compile`` for a target, and explains why it failed."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.core.datafiles import read_beside, script, search
from builder.core.errors import BuilderError, FetchError, SolveError
from builder.core.limits import run_tool
from builder.core.markers import ARCHITECTURES
from builder.core.redact import redact
from builder.core.store.files import space_errors
from builder.core.store.folders import CacheFolders
from builder.formats.net.trust import network_hint, network_variables
from builder.formats.net.urlvariables import as_written, is_own

from .hints import pip_hint, said
from .indexes import Indexes
from .request import SolveRequest
from .urls import unexpanded
from .wheels import glibc_minor

log = logging.getLogger(__name__)

#: The minor versions of glibc 2 for which uv has a manylinux platform.
_UV_GLIBC = (17, 28, *range(31, 41))
#: uv's settings for network access. All others are ignored: pip's configuration and the recipe
#: decide what to install.
_UV_SETTINGS = tuple(read_beside(__file__, "uv_variables.txt").split())
_LIMIT_S = 900


def run_uv(
    folder: Path, request: SolveRequest, python: str, provided: Mapping[str, str], indexes: Indexes
) -> list[str]:
    """Solve ``requirements.in`` under ``constraints.txt`` and ``overrides.txt`` with ``uv.toml``.

    If there is a ``pyproject.toml``, its requirements count too. Writes ``pylock.toml``. All of
    them are in ``folder``. Returns uv's warnings, such as that of an extra that does not exist.

    Args:
        folder: the working folder, with the four files.
        request: the environment and the target.
        python: the version of the target's Python; ``3.13.1t`` if it is free-threaded.
        provided: names and versions of the packages that conda provides.
        indexes: where it looks; the values of variables in their URLs are removed from messages.

    Raises:
        SolveError: no set of wheels satisfies the requirements, or uv is not installed.
        FetchError: an index cannot be read, or uv takes longer than 15 minutes.
    """
    path = request.environment.path
    env = _environment(folder / "bin")
    command = _command(request, python, _interpreter(folder / "bin" / "python", python))
    if (folder / "pyproject.toml").exists():
        command.append("pyproject.toml")
    problem = f"{path}: uv found no solution within {_LIMIT_S} s"
    late = FetchError(problem, "check the network and the indexes, then run again")
    done = run_tool(command, folder, env, _LIMIT_S, late)
    text = redact(unexpanded(as_written(done.stderr), indexes.urls)).replace(f"{folder}/", "")
    text = text.replace("requirements.in", str(path))
    if done.returncode:
        log.debug("uv ended with exit code %d", done.returncode)
        with space_errors(request.settings.cache):
            raise _explained(said("warning").sub("", text), request, python, provided, indexes)
    warnings = (" ".join(found.split()) for found in said("warning").findall(text))
    return [warning for warning in warnings if not said("warning_of_own").search(warning)]


def _interpreter(path: Path, python: str) -> str:
    """Return a Python whose ABI is the target's: this one, or a script that plays it.

    uv 0.13.9 has options for the version and the platform, but not for free-threaded Pythons
    (``resolution_tags`` in crates/uv/src/commands/pip/mod.rs).
    """
    disabled = str(int(python.endswith("t")))
    if disabled == str(sysconfig.get_config_var("Py_GIL_DISABLED") or 0):
        return sys.executable
    own = shlex.quote(sys.executable)
    path.write_text(script(__file__, "uv_python.sh", python=own, gil_disabled=disabled))
    path.chmod(0o700)
    return str(path)


def _command(request: SolveRequest, python: str, interpreter: str) -> list[str]:
    # besides uv.toml uv reads no configuration: neither the user's, nor one of a folder above
    command = [uv_program(), *read_beside(__file__, "uv_compile.txt").split()]
    command += ["--python", interpreter]
    command += ["--python-version", python.rstrip("t"), "--python-platform", _platform(request)]
    command += ["--cache-dir", str(CacheFolders(request.settings.cache).uv)]
    if request.settings.offline:
        command.append("--offline")
    if request.newest:
        command += ["--exclude-newer", request.newest.strftime("%Y-%m-%dT%H:%M:%SZ")]
    for name in sorted(request.update):
        command += ["--upgrade-package", name]
    return command


def _environment(programs: Path) -> dict[str, str]:
    """Return the environment without settings of uv and builder, and with whom builder trusts.

    A program that fails stands for git: builder fetches repositories itself, and locks their
    commits.
    """
    programs.mkdir()
    (programs / "git").symlink_to(shutil.which("false") or os.devnull)
    env = {name: value for name, value in os.environ.items() if not _is_setting(name)}
    env |= {**network_variables(programs), "NO_COLOR": "1", "UV_NO_WRAP": "1"}
    env["PATH"] = f"{programs}:{env.get('PATH', os.defpath)}"
    env.pop("SSL_CERT_DIR", None)  # the bundle has its authorities
    return env


def _is_setting(name: str) -> bool:
    """Return whether a variable may decide what uv does, or is builder's own."""
    return is_own(name) or (name.startswith("UV_") and not name.startswith(_UV_SETTINGS))


def uv_program() -> str:
    """Return the path of uv.

    Raises:
        SolveError: uv is not installed.
    """
    try:
        import uv

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        hint = "install it beside builder: pip install 'uv>=0.7'"
        raise SolveError("uv is not installed", hint) from None


def _platform(request: SolveRequest) -> str:
    """Return uv's platform for the target: its newest manylinux for the target's glibc."""
    glibc = max(glibc_minor(request.recipe), _UV_GLIBC[0])
    minor = max(minor for minor in _UV_GLIBC if minor <= glibc)
    return f"{ARCHITECTURES[request.recipe.platform]}-manylinux_2_{minor}"


def _explained(
    raw: str, request: SolveRequest, python: str, provided: Mapping[str, str], indexes: Indexes
) -> BuilderError:
    """Return uv's error as one of builder's, with what the user can change.

    uv's hints that name its options are left out.
    """
    path, specs = request.environment.path, request.environment.pip
    text = re.sub(r"(?m)^\s*(error|cause):\s*|^\s*hint:.*--[a-z].*", "", raw).strip()
    if search(read_beside(__file__, "uv_network_errors.txt"), text):
        # of the causes between, each one says less than the last
        if at := said("fetched").search(text):
            text = f"{at[0]} ({text.splitlines()[-1].strip()})"
        hint = "check the network and the indexes; PIP_NO_INDEX=1 uses find-links only"
        return FetchError(f"{path}: pip packages: {text}", network_hint(text, hint))
    named = [s.where for s in specs if re.search(rf"(?<![\w.-]){re.escape(s.name)}(?![\w-])", text)]
    where = named[0] if len(named) == 1 else path
    hint = pip_hint(raw, provided, indexes, request, python)
    error = SolveError(f"{where}: no set of wheels satisfies the pip section:\n{text}", hint)
    names = names_without_wheel(raw)
    return NoWheels(error, names) if names else error


def names_without_wheel(text: str) -> list[str]:
    """Return the names of the packages of which uv found source distributions only."""
    sentences = said("wheels_required").findall(text)
    found = [*said("unusable").findall(text), *re.findall(r"`(.+?)`", " ".join(sentences))]
    return list(dict.fromkeys(map(canonicalize_name, found)))


class NoWheels(SolveError):
    """uv found no solution, and packages have source distributions only."""

    def __init__(self, error: SolveError, names: Sequence[str]) -> None:
        super().__init__(error.message, error.hint)
        self.names = tuple(names)
