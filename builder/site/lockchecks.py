"""Checks of a target's lock against its site: the MPI of jobs, and the network between nodes."""

from __future__ import annotations

import re
from collections.abc import Set

from builder.config.recipe import Recipe
from builder.model import Lock, LockedPackage
from builder.site.request import JobRequest

#: Debian packages with which NCCL uses InfiniBand: library, drivers, connection manager.
INFINIBAND_PACKAGES = ("libibverbs1", "ibverbs-providers", "librdmacm1")
#: Packages of libibverbs.
_VERBS = {"rdma-core", "libibverbs1"}
#: Packages of an MPI library.
_MPI = ("impi-rt", "mpich", "mvapich", "openmpi")
#: conda-forge's packages for the host's MPI are empty. They are in this channel since 2026-01-29
#: (conda-forge.org/news/2026/01/29/new-mpi-external-syntax); older ones have ``external`` in the
#: build.
_EXTERNAL = "conda-forge/label/mpi-external"
#: In the URL of such a package, which a mirror can have under another host and channel.
_IS_EXTERNAL = re.compile(r"mpi-external|external[^/]*$")
#: Bases that surely have no libibverbs.
_PLAIN_BASE = r"(debian|docker://(docker\.io/)?(library/)?(debian|ubuntu)):.+"


def job_warnings(recipe: Recipe, lock: Lock, request: JobRequest) -> list[str]:
    """Return warnings about a job whose processes run alone, or over a slow network.

    Args:
        recipe: the target.
        lock: the lock of its image.
        request: the job.
    """
    packages = lock.for_platform(recipe.platform)
    found = []
    if (request.launcher or recipe.site.launcher) == "mpi":
        found += [
            _mpi_warning(recipe, one) for one in packages if _hides_host_mpi(recipe, one, request)
        ]
    if request.nodes > 1 and recipe.site.fabric.infiniband:
        os_packages = {package.name for package in lock.record.os_packages or ()}
        names = {*recipe.base_packages, *os_packages, *(package.name for package in packages)}
        found += [_infiniband_warning(recipe)] if _lacks_infiniband(recipe, names) else []
    return found


def _hides_host_mpi(recipe: Recipe, package: LockedPackage, request: JobRequest) -> bool:
    """Return whether a package has an MPI library that is loaded instead of the host's.

    conda's files find it by DT_RPATH, which comes before LD_LIBRARY_PATH.
    """
    mpi = recipe.site.mpi
    if mpi is None or not mpi.abi or request.jupyter:
        return False
    if package.name.replace("_", "-") not in _MPI:
        return False
    preloaded = {**recipe.site.runtime.env, **mpi.env, **request.env}.get("LD_PRELOAD") or ""
    return not _IS_EXTERNAL.search(package.url) and "libmpi" not in preloaded


def _mpi_warning(recipe: Recipe, package: LockedPackage) -> str:
    mpi, file = recipe.site.mpi, recipe.environment or recipe.lock
    assert mpi is not None
    advice = f"remove {package.name} from {file}"
    if package.manager == "conda":
        other = "" if package.name == mpi.abi else f", and {mpi.abi} instead of {package.name},"
        advice = f"write {_EXTERNAL} first below channels:{other} in {file}"
    return (
        f"the image has its own MPI, {package.name} {package.version}, but jobs on "
        f"{recipe.site_title} use the host's ({mpi.abi}): each process may run alone, as a job of "
        f"size 1. To use the host's, {advice}, then: builder lock {recipe.name}; or set LD_PRELOAD "
        "to its libmpi below site.mpi.env"
    )


def _lacks_infiniband(recipe: Recipe, names: Set[str]) -> bool:
    """Return whether NCCL is in the image, and libibverbs surely is not.

    Args:
        recipe: the target.
        names: those of the packages.
    """
    has_nccl = any(name == "nccl" or name.startswith("nvidia-nccl") for name in names)
    return has_nccl and not names & _VERBS and not recipe.steps and is_plain_base(recipe)


def _infiniband_warning(recipe: Recipe) -> str:
    line = f"base_packages: [{', '.join((*recipe.base_packages, *INFINIBAND_PACKAGES))}]"
    return (
        "the image has no libibverbs, so NCCL uses TCP instead of the InfiniBand of "
        f"{recipe.site_title}: write {line} into {recipe.source}, then: builder lock {recipe.name}"
    )


def is_plain_base(recipe: Recipe) -> bool:
    """Return whether the base is Debian or Ubuntu as such, without added packages."""
    return re.fullmatch(_PLAIN_BASE, recipe.base) is not None
