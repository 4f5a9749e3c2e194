"""Resolves the build requirements of a source, on this machine, to wheels for the image's
Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.build.fetch.packages import fetch_for
from builder.core.errors import SolveError, WheelError
from builder.core.model import LockedPackage
from builder.core.store.files import write_atomic
from builder.core.workspace import Workspace
from builder.formats.layers.zips import open_zip
from builder.lock.inputs import Inputs
from builder.lock.pip import solve_pip
from builder.lock.request import SolveRequest
from builder.lock.spec import Spec


def resolve_requirements(
    requirements: Sequence[str],
    name: str,
    packages: Sequence[LockedPackage],
    request: SolveRequest,
    *,
    isolated: bool,
) -> list[LockedPackage]:
    """Return the wheels of build requirements.

    Args:
        requirements: as in ``[build-system] requires``.
        name: the package that is built, for messages.
        packages: those of the image.
        request: the target's environment: indexes, find-links, dates.
        isolated: the build sees no package of the image; else what the image has is not installed
            again.

    Raises:
        WheelError: no set of wheels satisfies the requirements.
        FetchError: an index does not answer.
    """
    specs = tuple(
        Spec(text, canonicalize_name(Requirement(text).name), f"build requirement of {name}")
        for text in requirements
    )
    if not specs:
        return []
    own = replace(request.environment, conda=(), pip=specs, sources=(), constraints=())
    asked = replace(request, environment=own, previous=(), update=frozenset())
    seen = [package for package in packages if not isolated or package.name == "python"]
    conda, installed = ([p for p in seen if p.manager == manager] for manager in ("conda", "pip"))
    try:
        return solve_pip(asked, conda, installed)
    except SolveError as e:
        raise WheelError(
            f"{name}: no set of wheels satisfies its build requirements ({', '.join(requirements)}): "
            f"{e.message.partition(':')[2].strip()}",
            f"a build requirement has to be a wheel: name a version that is one: "
            f"pip: {{build: {{{name}: {{needs: [NAME==VERSION]}}}}}}, or build its wheel into a find-links "
            "folder",
        ) from None


def fetch_uv(packages: Sequence[LockedPackage], request: SolveRequest, work: Workspace) -> Path:
    """Return uv for the platform of the target, from its wheel.

    Raises:
        WheelError: the indexes have no such wheel.
        FetchError, SpaceError: the download failed.
    """
    from importlib.metadata import version

    own = version("uv")
    program = work.store.folders.tools / f"uv-{own}-{request.recipe.architecture}"
    if not program.exists():
        asked = replace(request, newest=None)
        wheels = resolve_requirements([f"uv=={own}"], "uv", packages, asked, isolated=True)
        [fetched] = fetch_for(Inputs(request.recipe, request.environment), wheels, work)
        with open_zip(fetched.path) as archive:
            data = archive.read(f"uv-{own}.data/scripts/uv")
        write_atomic(program, data, mode=0o755, durable=True)
    return program
