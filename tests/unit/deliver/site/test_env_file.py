"""``--env-file``: variables whose values are on no command line and in no script."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from builder.core.errors import UsageError
from builder.deliver.site.arguments import read_env_file
from builder.deliver.site.job_plan import plan_job, salloc
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.deliver.site.shell import command_line
from builder.deliver.site.srun import WITH_FILE
from builder.lock.config.queues import Slurm
from builder.lock.config.site import NodeHardware, Runtime, RuntimeKind, Site
from tests.support.image_kit import recipe


def test_read(tmp_path: Path) -> None:
    file = tmp_path / "x.env"
    file.write_bytes('# comment\n\nA=1\nB="q" \n \tC=a=b\nD=\nE=a\u2028b\x0bc\rd\nF=dos\r\n\r\n'.encode())
    odd = "a\u2028b\x0bc\rd"
    assert read_env_file(file) == {"A": "1", "B": '"q" ', "C": "a=b", "D": "", "E": odd, "F": "dos"}


@pytest.mark.parametrize(
    "text",
    ["TOKEN hunter2\n", "TOKEN =hunter2\n", "A=1\nmy-TOKEN=hunter2\n", "É=hunter2", "hunter2*", b"\xff\xfe"],
    ids=["blank", "blank before", "name", "letter", "no value", "bytes"],
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
    """The file is read on the site; a relative path begins where the job is submitted. For a SIF, a shell in
    the container reads it.
    """
    site = Site(slurm=Slurm(account="none"), runtime=Runtime(kind=kind), node=NodeHardware(cores=4))
    target = recipe(site=site, registry={"host": "h", "repository": "r"})
    reader = command_line(WITH_FILE) if kind in ("apptainer", "singularity") else "--env-file"
    for given, expected in (("my.env", '"$SLURM_SUBMIT_DIR/my.env"'), ("~/my.env", '"$HOME/my.env"')):
        request = JobRequest(command=("x",), env_file=given)
        for text in (render(plan_job(target, request)), salloc(target, request)[1]):
            assert f"{reader} {expected}" in re.sub(r" \\\n +", " ", text)


@pytest.mark.parametrize("shell", ["dash", "bash", "bash --posix"])
def test_reader_in_containers(shell: str, tmp_path: Path) -> None:
    """A shell reads the same values as builder, also of names that the shell or the script itself uses."""
    file = tmp_path / "x.env"
    lines = [
        *("A=two words", " \tB=$HOME `id` 'x' \"y\" \\ \\n", "C=", "D==a=", "# E=1", "", "F=x y\r", "\r")
    ]
    lines += [
        *("HOME=/h", "PATH=/usr/bin:/bin:/odd x", "IFS=x", "UID=7", "GID=8", "__l=l", "__n=n", "G= last ")
    ]
    file.write_bytes("\n".join(lines).encode())
    command = [*shell.split(), *WITH_FILE[1:], str(file), "env", "-0"]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    seen = dict(word.split("=", 1) for word in done.stdout.split("\0") if word)
    expected = {name: value for name, value in read_env_file(file).items() if not name.startswith("__")}
    assert len(expected) == 11 and expected.items() <= seen.items(), done.stderr
    missing = subprocess.run([*command[:-3], "/none", "env"], capture_output=True, check=False)
    assert missing.returncode != 0 and missing.stdout == b""
