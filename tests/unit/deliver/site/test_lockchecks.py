"""Warnings about jobs that the packages of an image do not fit: the driver, the host's MPI, InfiniBand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.model import Lock, LockedPackage, LockRecord, OsPackage
from builder.deliver.site.lockchecks import job_warnings
from builder.deliver.site.request import JobRequest
from builder.lock.config.recipe import Recipe, load_recipe

ROOT = Path(__file__).parents[4]
FORGE = "https://conda.anaconda.org/conda-forge"
EXTERNAL = f"{FORGE}/label/mpi-external/linux-64/mpich-4.3.2-h7063c07_105.conda"
PRELOAD = {"LD_PRELOAD": "/opt/cray/lib-abi-mpich/libmpi.so.12"}


def lock(recipe: Recipe, *names: str, manager: Any = "conda", url: str = "") -> Lock:
    """A lock of packages with these names."""
    packages = [
        LockedPackage(
            name, "1.0", manager, recipe.platform, url or f"{FORGE}/linux-64/{name}-1.0-h1_0.conda", ""
        )
        for name in names
    ]
    return Lock(tuple(packages), (recipe.platform,))


def warnings(target: str, *names: str, manager: Any = "conda", url: str = "", **request: Any) -> list[str]:
    recipe = load_recipe(target, ROOT)
    return list(job_warnings(recipe, lock(recipe, *names, manager=manager, url=url), JobRequest(**request)))


@pytest.mark.parametrize(
    ("target", "package", "manager", "text"),
    [
        (
            "cirrus",
            "mpich",
            "conda",
            "write conda-forge/label/mpi-external first below channels: in environm",
        ),
        (
            "cirrus",
            "openmpi",
            "conda",
            "first below channels:, and mpich instead of openmpi, in environments/",
        ),
        (
            "cirrus",
            "impi_rt",
            "conda",
            "use the host's (mpich): each process may run alone, as a job of size 1",
        ),
        ("cirrus", "mpich", "pip", "remove mpich from environments/cosmoflow.yml, then: builder lock cirrus"),
        (
            "isambard-ai",
            "openmpi",
            "conda",
            "the image has its own MPI, openmpi 1.0, but jobs on Isambard-AI",
        ),
    ],
)
def test_own_mpi(target: str, package: str, manager: str, text: str) -> None:
    """The warning names the package, what happens, and what to write into which file."""
    (warning,) = warnings(target, "python", package, manager=manager, launcher="mpi")
    assert text in warning and "or set LD_PRELOAD to its libmpi below site.mpi.env" in warning


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_other_launchers(launcher: str) -> None:
    """These use no MPI; and without a request the site decides, as after a build."""
    assert not warnings("cirrus", "mpich", launcher=launcher)
    assert warnings("cirrus", "mpich") and not warnings("perlmutter", "mpich")
    assert not warnings("cirrus", "mpich", "jupyterlab", jupyter=True), (
        "a single process, without the launcher"
    )


@pytest.mark.parametrize("url", [EXTERNAL, f"{FORGE}/linux-64/mpich-4.2.0-external_0.conda"])
def test_external(url: str) -> None:
    """conda-forge's packages for the host's MPI are empty; the older ones say so in their build."""
    assert not warnings("cirrus", "mpich", url=url)


@pytest.mark.parametrize("place", ["mirror.external.example", "conda.example/external"])
def test_external_mirror(place: str) -> None:
    """The name of a mirror says nothing about its packages."""
    name = "linux-64/mpich-4.3.2-h7063c07_105.conda"
    assert warnings("cirrus", "mpich", url=f"https://{place}/conda-forge/{name}")
    assert not warnings("cirrus", "mpich", url=f"https://{place}/conda-forge/label/mpi-external/{name}")


def test_preload() -> None:
    """The host's library is loaded first if the recipe or the user preloads it."""
    assert not warnings("cirrus", "mpich", env=PRELOAD)
    assert warnings("cirrus", "mpich", env={"LD_PRELOAD": "/usr/lib/libjemalloc.so"})
    recipe = load_recipe("cirrus", ROOT)
    mpi = recipe.site.mpi and recipe.site.mpi.model_copy(update={"env": PRELOAD})
    changed = recipe.model_copy(update={"site": recipe.site.model_copy(update={"mpi": mpi})})
    assert not list(job_warnings(changed, lock(changed, "mpich"), JobRequest()))


def test_own_mpi_is_used() -> None:
    """JUWELS starts the MPI of the image."""
    assert not warnings("juwels-booster", "openmpi", launcher="mpi")


def cuda_warnings(target: str, version: str, **request: Any) -> list[str]:
    """Warnings about a job with pip's CUDA of this version."""
    recipe = load_recipe(target, ROOT)
    url = "https://pypi.example/nvidia_cuda_runtime-13-py3-none-any.whl"
    package = LockedPackage("nvidia-cuda-runtime", version, "pip", recipe.platform, url, "0" * 64)
    return list(job_warnings(recipe, Lock((package,), (recipe.platform,)), JobRequest(**request)))


@pytest.mark.parametrize(
    ("target", "version", "warned"),
    [("leonardo", "13.2.1", True), ("leonardo", "12.9.1", False), ("perlmutter", "13.2.1", False)],
)
def test_driver(target: str, version: str, warned: bool) -> None:
    """A driver for CUDA 12.2 runs packages for 12.9, and none for 13: pip's solver takes those."""
    expected = "for CUDA 13.2, but Leonardo Booster has a driver for 12.2 (virtual_packages.__cuda)"
    assert [expected in text for text in cuda_warnings(target, version)] == [True] * warned


def test_unknown_driver() -> None:
    """A recipe need not name a driver."""
    assert not cuda_warnings("cpu", "13.2.1")


def test_nccl_module() -> None:
    """Perlmutter's module for NCCL is made for one version of CUDA."""
    (warning,) = cuda_warnings("perlmutter", "13.2.1", nodes=2)
    assert "but NCCL's module is --nccl-cu12: write --nccl-cu13 into site.fabric.options" in warning
    assert not cuda_warnings("perlmutter", "12.9.1", nodes=2)
    assert not cuda_warnings("perlmutter", "13.2.1", nodes=1)


def test_no_jupyter() -> None:
    """A job with a server of Jupyter needs one in the image, or a base that may have it."""
    (warning,) = warnings("leonardo", "ipykernel", jupyter=True)
    assert "no Jupyter: add jupyterlab to environments/pytorch-cuda.yml, then: builder lock" in warning
    assert not warnings("leonardo", "jupyter_server", jupyter=True)
    assert not warnings("lumi-g", "ipykernel", jupyter=True)


def test_no_infiniband() -> None:
    """NCCL's wheel over Debian has no libibverbs: the warning has the line for the recipe."""
    (warning,) = warnings("leonardo", "nvidia-nccl-cu12", manager="pip", nodes=2)
    line = "base_packages: [libibverbs1, ibverbs-providers, librdmacm1]"
    assert f"write {line} into {ROOT}/recipes/leonardo.yaml, then: builder lock leonardo" in warning
    assert "NCCL uses TCP instead of the InfiniBand of Leonardo Booster" in warning


def test_infiniband() -> None:
    """No warning where the image may have libibverbs, does not need it, or the network is another one."""
    assert not warnings("leonardo", "nccl", nodes=1)
    assert not warnings("leonardo", "numpy", nodes=2)
    assert not warnings("leonardo", "nccl", "rdma-core", nodes=2)
    assert not warnings("alliance-nibi", "nccl", nodes=2), "Ethernet"
    recipe = load_recipe("leonardo", ROOT)
    for changes in (
        {"base": "docker://nvcr.io/nvidia/pytorch:26.01-py3"},
        {"base_packages": ("libibverbs1",)},
    ):
        changed = recipe.model_copy(update=changes)
        assert not list(job_warnings(changed, lock(changed, "nccl"), JobRequest(nodes=2))), changes


def test_os_packages() -> None:
    """Another OS package may bring libibverbs."""
    recipe = load_recipe("leonardo", ROOT)
    verbs = OsPackage("libibverbs1", "44.0", "amd64", "https://deb.example/libibverbs1.deb", "0" * 64, 1)
    with_verbs = replace(lock(recipe, "nccl"), record=LockRecord(os_packages=(verbs,)))
    assert not list(job_warnings(recipe, with_verbs, JobRequest(nodes=2)))
