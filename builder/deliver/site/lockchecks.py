"""Checks of a target's lock against its site: the driver, MPI, and the network between nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from builder.build.image.config import versions
from builder.core.datafiles import table
from builder.core.model import Lock, LockedPackage
from builder.lock.config.recipe import Recipe

from .request import JobRequest

#: Debian packages with which NCCL uses InfiniBand: library, drivers, connection manager.
INFINIBAND_PACKAGES = ("libibverbs1", "ibverbs-providers", "librdmacm1")
#: Packages of libibverbs.
_VERBS = {"rdma-core", "libibverbs1"}
#: Packages of Jupyter's server.
_JUPYTER = {"jupyter_server", "jupyter-server", "jupyterlab"}
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


def job_warnings(recipe: Recipe, lock: Lock, request: JobRequest) -> Iterator[str]:
    """Yield warnings about a job without GPUs or Jupyter, with lone processes or a slow network.

    Args:
        recipe: the target.
        lock: the lock of its image.
        request: the job.
    """
    cuda = versions(lock, recipe.platform).get("org.builder.cuda", "")
    yield from _driver_warning(recipe, cuda)
    yield from _nccl_module_warning(recipe, cuda, request)
    packages = lock.for_platform(recipe.platform)
    for package in packages:
        if _hides_host_mpi(recipe, package, request):
            yield _mpi_warning(recipe, package)
    if not recipe.steps and is_plain_base(recipe):  # else the image may have more than the lock
        os_packages = (package.name for package in lock.record.os_packages or ())
        names = {*recipe.base_packages, *os_packages, *(package.name for package in packages)}
        yield from _infiniband_warning(recipe, names, request)
        if request.jupyter and not names & _JUPYTER:
            yield _warning("jupyter", recipe=recipe, place=recipe.environment or recipe.lock)


def _driver_warning(recipe: Recipe, cuda: str) -> Iterator[str]:
    """Return a warning about packages for a newer CUDA: pip's solver does not ask for the driver.

    A driver runs all minor versions.
    """
    driver = recipe.virtual_packages.get("__cuda", "")
    if _major(cuda) > _major(driver) > 0:
        yield _warning("driver", recipe=recipe, cuda=cuda, driver=driver, major=_major(driver))


def _nccl_module_warning(recipe: Recipe, cuda: str, request: JobRequest) -> Iterator[str]:
    """Return a warning about podman-hpc's module for NCCL, if it is for another CUDA."""
    modules = [one for one in recipe.site.fabric.options if one.startswith("--nccl-cu")]
    wanted = f"--nccl-cu{_major(cuda)}"
    if request.nodes > 1 and cuda and modules and wanted not in modules:
        yield _warning("nccl_module", recipe=recipe, cuda=cuda, module=modules[0], wanted=wanted)


def _major(version: str) -> int:
    """Return the first number of a version; 0: there is none."""
    number = re.match(r"\d+", version)
    return int(number[0]) if number else 0


def _hides_host_mpi(recipe: Recipe, package: LockedPackage, request: JobRequest) -> bool:
    """Return whether a package has an MPI library that is loaded instead of the host's.

    conda's files find it by DT_RPATH, which comes before LD_LIBRARY_PATH.
    """
    mpi, launcher = recipe.site.mpi, request.launcher or recipe.site.launcher
    if mpi is None or not mpi.abi or launcher != "mpi" or request.jupyter:
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
    return _warning("mpi", recipe=recipe, package=package, mpi=mpi, advice=advice)


def _infiniband_warning(recipe: Recipe, names: Set[str], request: JobRequest) -> Iterator[str]:
    """Return a warning about an image with NCCL and without libibverbs.

    Args:
        recipe: the target.
        names: those of the packages in the image.
        request: the job.
    """
    has_nccl = any(name == "nccl" or name.startswith("nvidia-nccl") for name in names)
    uses_infiniband = request.nodes > 1 and recipe.site.fabric.infiniband
    if uses_infiniband and has_nccl and not names & _VERBS:
        packages = ", ".join((*recipe.base_packages, *INFINIBAND_PACKAGES))
        yield _warning("infiniband", recipe=recipe, packages=packages)


def _warning(name: str, **values: object) -> str:
    """Return a text of warnings.yaml."""
    text: str = table(__file__, "warnings.yaml")[name]
    return text.format(**values)


def is_plain_base(recipe: Recipe) -> bool:
    """Return whether the base is Debian or Ubuntu as such, without added packages."""
    return re.fullmatch(_PLAIN_BASE, recipe.base) is not None
