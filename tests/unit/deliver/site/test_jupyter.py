"""Jobs with a Jupyter server: requests that are refused, and the lines that start it.

tests/integration/test_jupyter.py runs them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import UsageError
from builder.deliver.site.job import BatchJob
from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.lock.config.recipe import load_recipe
from builder.lock.config.site import Runtime, Site
from tests.support.image_kit import recipe as made_recipe

ROOT = Path(__file__).parents[4]


def plan(target: str, **request: Any) -> BatchJob:
    return plan_job(load_recipe(target, ROOT), JobRequest(jupyter=True, account="z19", **request))


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        ({"nodes": 2}, "--nodes"),
        ({"chain": 2}, "--chain"),
        ({"launcher": "torchrun"}, "--launcher"),
        ({"tasks": 2, "gpus": 0}, "--tasks"),
        ({"command": ("bash",)}, "a command"),
    ],
)
def test_refused(request_: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=f"one server on one node, without {name}\\n") as caught:
        plan("perlmutter", **request_)
    assert caught.value.hint == f"leave out {name}"


def test_no_host_network() -> None:
    """A server in a network of the container's own is refused: nobody would reach it."""
    site = Site(launcher="torchrun", runtime=Runtime(kind="podman"))
    with pytest.raises(UsageError, match="no browser reaches a server in the container") as caught:
        plan_job(made_recipe(site=site), JobRequest(jupyter=True))
    assert "--network=host" in (caught.value.hint or "")


def test_one_process() -> None:
    """One process has all GPUs of the job, and the host's network."""
    job = plan("perlmutter", gpus=4)
    assert (job.resources.tasks, job.resources.gpus) == (1, 4) and "--cpus-per-task=128" in job.directives
    assert "--network=host" in job.container.options and "--gpus-per-node=4" in job.directives
    assert "WORLD_SIZE" not in render(job)


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("perlmutter", "$SLURMD_NODENAME"),
        ("jupiter", "${SLURMD_NODENAME}-interconnect-1.jupiter.internal"),
        ("chameleon-a100", "127.0.0.1"),
    ],
)
def test_host(target: str, host: str) -> None:
    """The server listens on the node's name in the fast network, if it has one, or on this machine alone."""
    assert plan(target).container.command[4] == host


def test_no_jupyter_in_the_image(tmp_path: Path) -> None:
    """The job says what to add, and removes the token."""
    text = render(plan("chameleon-a100"))
    text = text[text.index("# The token of the server") : text.index("    docker run")]
    text += '\nenv PATH=/nowhere "$BASH" -c "$BUILDER_START" jupyter h 1 "$BUILDER_TOKEN"'
    env = {**os.environ, "BUILDER_IMAGE": "i", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "the image has no Jupyter: add jupyterlab" in done.stderr
    assert not list(tmp_path.iterdir())
