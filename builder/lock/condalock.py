"""Solves an environment with conda-lock, which runs conda, mamba or micromamba (``builder lock
--solver``).

conda-lock runs as a program of its own: it takes half a second to import, and replaces parts of
other modules. It receives what builder's own solvers receive: the channels that answer (or their
mirrors), the target's virtual packages, and builder's names of PyPI projects.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from builder.core.datafiles import read_beside
from builder.core.errors import FetchError, LockError, SolveError, UsageError
from builder.core.limits import run_tool
from builder.core.model import MAIN, Lock, LockedPackage, LockRecord
from builder.core.progress import working
from builder.core.redact import redact
from builder.core.store.temporary import temporary_folder
from builder.formats.net.trust import network_variables

from .channels import SolverChannel, named_channels, stored_url
from .file import read_lock
from .indexes import named_indexes
from .inputs import recorded_inputs, virtual_packages
from .names import conda_mapping
from .request import LockRequest, SolveRequest
from .solve import finish_lock, request_for_solver

#: Programs that solve for conda-lock, the fastest first, and the variables that name one.
PROGRAMS = ("micromamba", "mamba", "conda")
_VARIABLES = ("MAMBA_EXE", "CONDA_EXE")
#: Seconds that conda-lock may take. Large environments take conda minutes.
_LIMIT_S = 1800
_OMIT = "leave out --solver conda-lock"
#: Lines of conda-lock's output that an error shows.
_SHOWN_LINES = 30


def conda_lock_target(request: LockRequest) -> Lock:
    """Return the lock of a target whose environment conda-lock solves. Writes nothing.

    ``previous`` and ``wheel_builder`` are not used.

    Raises:
        UsageError: conda-lock cannot do this: ``update`` or a date is set, or a channel's URL has a
            variable.
        SolveError: no program that solves is installed, or it found no solution; the message has
            its output.
        FetchError: there is no result in time.
    """
    environment = request.inputs.environment
    to_solve = request_for_solver(request, environment)
    channels = named_channels(to_solve)
    if problem := next(_unsupported(request, channels), ""):
        raise UsageError(problem, _OMIT)
    program = _program()
    with working(request.reporter, f"solving with conda-lock and {program.name}"):
        solved = _solve(to_solve, channels, program)
    packages = [replace(p, url=stored_url(p.url, channels, request.settings)) for p in solved]
    names = [channel.name for channel in channels]
    record = LockRecord(recorded_inputs(request.inputs))
    return finish_lock(request, packages, names, environment.path, record)


def _unsupported(request: LockRequest, channels: Sequence[SolverChannel]) -> Iterator[str]:
    """Yield a problem for each thing that only builder's own solvers do."""
    recipe, options, own = request.inputs.recipe, request.options, request.inputs.environment
    if options.update:
        yield "--solver conda-lock cannot update single packages"
    if any((options.exclude_newer, recipe.conda.exclude_newer, recipe.pip.exclude_newer)):
        yield "--solver conda-lock cannot exclude_newer"
    for source in own.sources:
        yield f"{source.where}: conda-lock cannot lock {redact(source.text)}"
    if any((own.pins, own.limits, own.uv, own.constraints, own.exclude_newer)):
        yield f"{own.path} has settings that only builder's own solvers follow"
    for channel in channels:
        if "$" in channel.name or redact(channel.actual) != channel.actual:
            problem = "conda-lock would put its password on the command line of conda"
            yield f"channel {channel.name}: {problem}"


def _program() -> Path:
    """Return the program that solves; builder never downloads one."""
    if find_spec("conda_lock") is None:
        problem = "--solver conda-lock: conda-lock is not installed beside builder"
        raise SolveError(problem, f"install it: pip install 'conda-lock>=4,<5', or {_OMIT}")
    for program in (*PROGRAMS, *map(os.environ.get, _VARIABLES)):
        if program and (path := shutil.which(program)):
            return Path(path).absolute()
    problem = "--solver conda-lock needs conda, mamba or micromamba, and none is installed"
    raise SolveError(problem, f"install micromamba, or {_OMIT}: builder solves without conda")


def _solve(
    request: SolveRequest, channels: Sequence[SolverChannel], program: Path
) -> tuple[LockedPackage, ...]:
    """Return the packages of the lock that conda-lock writes."""
    recipe = request.recipe
    with temporary_folder(request.settings.tmpdir, 0o700) as work:
        _write_inputs(work, request, channels)
        _run(_command(recipe.platform, program), work, request)
        try:
            lock = read_lock(work / "conda-lock.yml")
        except LockError as e:
            problem = f"conda-lock made no valid lock: {e.message}"
            raise SolveError(problem, "leave out --solver") from None
    return tuple(replace(p, category=MAIN) for p in lock.packages if p.platform == recipe.platform)


def _command(platform: str, program: Path) -> list[str]:
    options = read_beside(__file__, "conda_lock_options.txt").split()
    command = [sys.executable, "-m", "conda_lock", "lock", *options]
    return [*command, "--conda", str(program), "--platform", platform]


def _run(command: Sequence[str], work: Path, request: SolveRequest) -> None:
    path = request.environment.path
    env = {name: value for name, value in os.environ.items() if not name.startswith("BUILDER_")}
    env |= network_variables(work)
    late = FetchError(f"{path}: conda-lock found no solution within {_LIMIT_S} s", _OMIT)
    done = run_tool(command, work, env, _LIMIT_S, late)
    if done.returncode:
        # conda-lock prints conda's reason, the command and its output, and then a traceback of its
        # own
        text = redact(done.stderr or done.stdout).replace(f"{work}/", "")
        reason = "\n".join(text.partition("    Command: ")[0].strip().splitlines()[-_SHOWN_LINES:])
        problem = f"{path}: conda-lock found no solution for {request.recipe.platform}:\n{reason}"
        raise SolveError(problem, f"change the versions of the environment file, or {_OMIT}")


def _write_inputs(work: Path, request: SolveRequest, channels: Sequence[SolverChannel]) -> None:
    """Write what builder read and knows, in files for conda-lock."""
    recipe, own = request.recipe, request.environment
    dependencies: list[Any] = [spec.text for spec in own.conda]
    if own.pip:
        dependencies.append({"pip": [spec.text for spec in own.pip]})
    environment = {
        "channels": [channel.actual.rstrip("/") for channel in channels],
        "dependencies": dependencies,
        "platforms": [recipe.platform],
        "pip-repositories": [url for url in named_indexes(request) if url],
    }
    # conda-lock puts a blank before the build string
    virtual = {name: value.replace("=", " ") for name, value in virtual_packages(recipe).items()}
    mapping = conda_mapping(request.settings)
    files = {
        "environment.yml": {key: value for key, value in environment.items() if value},
        "virtual.yml": {"subdirs": {recipe.platform: {"packages": virtual}}},
        "names.json": {pypi: {"conda_name": c, "pypi_name": pypi} for c, pypi in mapping.items()},
    }
    for name, data in files.items():
        path = work / name
        path.touch(mode=0o600)  # URLs of indexes may have passwords
        path.write_text(json.dumps(data))  # which is YAML too
