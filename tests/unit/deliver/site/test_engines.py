"""Options of docker, podman and podman-hpc: each once, and none that another one replaces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.newsite import new_site
from builder.deliver.site.request import JobRequest
from builder.deliver.site.runtimes.engines import once
from builder.lock.config.recipe import load_recipe
from builder.lock.config.site import Launcher, RuntimeKind

BRINGS = {"--mpi": ("--network=", "--privileged"), "--ipc=host": ("--shm-size=",)}


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("--network=host --mpi", "--mpi"),
        ("--mpi --network=none --privileged", "--mpi"),
        ("--network host --mpi --x", "--mpi --x"),
        ("--shm-size=8g --ipc=host", "--ipc=host"),
        ("--shm-size=8g --ipc=private", "--shm-size=8g --ipc=private"),
        ("--network=host --gpu --network=host", "--network=host --gpu"),
        ("-v /a:/a -v /a:/a --mount x --mount x", "-v /a:/a -v /a:/a --mount x --mount x"),
        ("--network-alias=x --mpi", "--network-alias=x --mpi"),
    ],
)
def test_once(words: str, left: str) -> None:
    assert once(words.split(), BRINGS) == left.split()


@pytest.mark.parametrize("module", ["--mpi", "--cuda-mpi", "--openmpi-pmi2", "--openmpi-pmix"])
def test_modules_of_perlmutter(module: str, tmp_path: Path) -> None:
    """podman-hpc 1.2.2: each module for MPI brings the network, and podman takes one."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/t.yaml").write_text(
        "site:\n  name: perlmutter\n  runtime: {options: [--net=host, --network=host, --shm-size=8g]}\n"
        f"  mpi: {{options: [{module}]}}\nenvironment: e.yml\nregistry: {{repository: p/x}}\n"
    )
    recipe = load_recipe("t", tmp_path)
    kinds: list[tuple[Launcher, list[str]]] = [("mpi", []), ("srun", ["--network=host", "--ipc=host"])]
    for launcher, network in kinds:
        request = JobRequest(command=("x",), nodes=2, launcher=launcher, account="m1")
        options = plan_job(recipe, request).container.options
        found = [word for word in options if re.match("--(net|network|ipc|shm-size|pid|privileged)\\b", word)]
        assert (found, module in options) == (network, launcher == "mpi")


@pytest.mark.parametrize("runtime", ["docker", "podman", "podman-hpc"])
def test_new_site(runtime: RuntimeKind, tmp_path: Path) -> None:
    """A new site has a size for /dev/shm, and ranks with the host's: podman (4.3.1, 5.8.6) refuses both."""
    new_site(tmp_path, "mine", runtime, "nvidia")
    (tmp_path / "recipes/t.yaml").write_text(
        "site: mine\nenvironment: e.yml\nregistry: {host: h.example, repository: p/x}\n"
    )
    recipe = load_recipe("t", tmp_path)
    for nodes in (1, 2):
        options = plan_job(recipe, JobRequest(command=("x",), nodes=nodes, gpus=1)).container.options
        assert ("--shm-size=8g" in options, "--ipc=host" in options) == (nodes == 1, nodes == 2)
    assert ("--mpi" in recipe.site.runtime.replaces) == (runtime == "podman-hpc")
