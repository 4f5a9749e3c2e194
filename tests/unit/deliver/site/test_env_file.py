"""``--env-file``: variables whose values are on no command line and in no script."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import UsageError
from builder.deliver.site.arguments import read_env_file
from builder.deliver.site.job_plan import plan_job, salloc
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.lock.config.queues import Slurm
from builder.lock.config.site import NodeHardware, Runtime, RuntimeKind, Site
from tests.support.image_kit import recipe


def test_read(tmp_path: Path) -> None:
    file = tmp_path / "x.env"
    file.write_text('# comment\n\nA=1\nB="q" \n C =a=b\nD=\nE=a\u2028b\x0bc\n')
    assert read_env_file(file) == {"A": "1", "B": '"q" ', "C": "a=b", "D": "", "E": "a\u2028b\x0bc"}


@pytest.mark.parametrize(
    "text",
    ["TOKEN hunter2\n", "A=1\nmy-TOKEN=hunter2\n", "É=hunter2", b"\xff\xfe"],
    ids=["blank", "name", "letter", "bytes"],
)
def test_invalid(text: str | bytes, tmp_path: Path) -> None:
    """The message names file and line, and does not show the line."""
    file = tmp_path / "x.env"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as raised:
        read_env_file(file)
    assert str(file) in raised.value.message and "hunter2" not in raised.value.message
    with pytest.raises(UsageError, match="no such file"):
        read_env_file(tmp_path / "none")


@pytest.mark.parametrize("kind", ["apptainer", "singularity", "podman-hpc", "docker", "userns"])
def test_jobs(kind: RuntimeKind) -> None:
    """The runtime reads the file on the site; a relative path begins where the job is submitted."""
    site = Site(slurm=Slurm(account="none"), runtime=Runtime(kind=kind), node=NodeHardware(cores=4))
    target = recipe(site=site, registry={"host": "h", "repository": "r"})
    for given, expected in (("my.env", '"$SLURM_SUBMIT_DIR/my.env"'), ("~/my.env", '"$HOME/my.env"')):
        request = JobRequest(command=("x",), env_file=given)
        assert f"--env-file {expected}" in render(plan_job(target, request))
        assert f"--env-file {expected}" in salloc(target, request)[1]
