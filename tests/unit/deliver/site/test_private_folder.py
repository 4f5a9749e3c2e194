"""The shell function of job scripts that makes folders below ``/tmp``, and scripts whose folders another user
made first. The attacks need root, to be two ordinary users."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.render import render, templates
from builder.deliver.site.request import JobRequest
from builder.deliver.site.runtimes.table import runtime_of
from builder.lock.config.recipe import load_recipe
from tests.support.parts import need_root

ROOT = Path(__file__).parents[4]
FUNCTION = templates().get_template("folder.j2").render()
ALICE, MALLORY = 54321, 54322


@pytest.fixture
def only_root() -> None:
    need_root()


def make(*folders: Path | str, cwd: Path | str = "/", user: int | None = None) -> str:
    """Makes folders with the function; returns its error, empty if there is none."""
    script = f'set -euo pipefail\n{FUNCTION}\nfor f; do private_folder "$f"; done'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *folders],
        cwd=cwd,
        user=user,
        capture_output=True,
        text=True,
    )
    assert bool(done.returncode) == bool(done.stderr), done
    return done.stderr


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like ``/tmp``."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_made(shared: Path) -> None:
    """Only its owner can use a folder that was made in a shared one; below it, the umask decides."""
    before = os.umask(0o002)
    try:
        assert not make(shared / "me" / "a b" / "data")
    finally:
        os.umask(before)
    assert mode(shared / "me") == 0o700 and mode(shared / "me" / "a b" / "data") == 0o775
    assert not make(shared / "me" / "a b" / "data", shared / "me"), "mine already"
    assert not make("cache", f"{shared}//other/", cwd=shared / "me")
    assert (shared / "me" / "cache").is_dir() and mode(shared / "other") == 0o700


@pytest.mark.parametrize("kind", ["link", "dangling", "file", "group", "others"])
@pytest.mark.parametrize("below", ["", "data"])
def test_refused(shared: Path, tmp_path: Path, kind: str, below: str) -> None:
    """What another user can have made or can change is not taken, neither for the folder nor above it."""
    (tmp_path / "target").mkdir()
    place = shared / "me"
    if kind in ("link", "dangling"):
        place.symlink_to(tmp_path / ("target" if kind == "link" else "nowhere"))
    elif kind == "file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o770 if kind == "group" else 0o707)
    error = make(place / below)
    assert f"{place}" in error and "File exists; it must be yours" in error
    assert list((tmp_path / "target").iterdir()) == [] and not (tmp_path / "nowhere").exists()


def test_not_shared(shared: Path, tmp_path: Path) -> None:
    """Links and folders of groups are as good as ever where others cannot write, and where the job works."""
    (tmp_path / "group").mkdir()
    (tmp_path / "group").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "group")
    assert not make(tmp_path / "link" / "cache", tmp_path / "new" / "cache")
    assert (tmp_path / "group" / "cache").is_dir()
    project = shared / "project"
    project.mkdir()
    project.chmod(0o777)
    assert make(project / "cache") and not make(project / "cache", "other", cwd=project)
    assert "cannot create" in make("/proc/nobody/can")


@pytest.mark.root
@pytest.mark.usefixtures("only_root")
def test_owner() -> None:
    """A folder of another user is refused, whatever its mode; root's is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "shared"
        folder.mkdir()
        folder.chmod(0o1777)
        for user, path in ((MALLORY, folder / "theirs"), (0, folder / "roots")):
            path.mkdir()
            os.chown(path, user, user)
        assert "theirs" in make(folder / "theirs" / "data", user=ALICE)
        assert not make(folder / "roots", folder / "mine" / "data", user=ALICE)
        assert (folder / "mine").stat().st_uid == ALICE


SRUN = """\
#!/bin/bash
# Two nodes with one /tmp, whose tasks start one after the other.
while [[ $1 == --* ]]; do shift; done
for SLURM_PROCID in 0 1; do
    export SLURM_PROCID SLURM_LOCALID=0 SLURM_NODEID=0
    "$@" || exit
done
"""
#: What a container sees of the data and of the cache of compiled kernels.
RUNTIME = """\
#!/bin/bash
caches="/tmp/$USER-miopen-cache-$SLURM_JOB_ID"
[[ "$*" == *"image inspect"* ]] || cat "$BUILDER_DATA/model.pkl" "$caches"/* 2>/dev/null
exit 0
"""


class Node:
    """A machine of two users: alice runs jobs in ``work``, and mallory knows what they will be named."""

    def __init__(self, folder: Path) -> None:
        self.user = f"a{secrets.token_hex(8)}"
        self.bin, self.work = folder / "bin", folder / "work"
        self.theirs = folder / "mallory"
        for path, owner in ((self.bin, 0), (self.work, ALICE), (self.theirs, MALLORY)):
            path.mkdir()
            os.chown(path, owner, owner)
        for name, text in (
            ("srun", SRUN),
            ("scontrol", "#!/bin/sh\necho node\n"),
            *((name, RUNTIME) for name in ("singularity", "docker", "apptainer")),
        ):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        for name, text in (("model.pkl", "ALICE "), ("alice.sif", "")):
            (self.work / name).write_text(text)
        with tarfile.open(self.work / "set.tar", "w") as tar:
            tar.add(self.work / "model.pkl", "model.pkl")

    def folder(self, name: str) -> Path:
        """One of alice's folders in ``/tmp``."""
        return Path("/tmp") / name.replace("USER", self.user)

    def run(self, target: str, **request: Any) -> subprocess.CompletedProcess[str]:
        """Runs a script of ``builder job`` as alice."""
        image = str(self.work / "alice.sif") if runtime_of(load_recipe(target, ROOT)).suffix else ""
        account = "project_465000000" if target == "lumi-g" else "acc"
        data = f"{self.work}/set.tar"
        job = JobRequest(command=("true",), account=account, image=image, data=data, **request)
        return subprocess.run(
            ["bash", "-s"],
            input=render(plan_job(load_recipe(target, ROOT), job)),
            env={
                "PATH": f"{self.bin}:/usr/bin:/bin",
                "HOME": str(self.work),
                "USER": self.user,
                "SLURM_JOB_ID": "4711",
                "SLURM_JOB_NODELIST": "node",
                "SLURM_NTASKS": "2",
                "SLURM_NNODES": "2",
                "SLURM_CPUS_PER_TASK": "1",
                "SLURM_SUBMIT_DIR": str(self.work),
                "BASH_FUNC_module%%": "() { :; }",
            },
            cwd=self.work,
            user=ALICE,
            group=ALICE,
            extra_groups=[],
            capture_output=True,
            text=True,
        )


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        node = Node(Path(name))
        yield node
        for path in (*Path("/tmp").glob(f"{node.user}*"), *Path("/tmp").glob(f"builder-ports-{ALICE}")):
            path.unlink() if path.is_symlink() else shutil.rmtree(path)


#: Targets, options, and the folders that their scripts make in /tmp.
JOBS = [
    ("lumi-g", {"nodes": 2}, "USER-4711"),
    ("lumi-g", {"nodes": 2}, "USER-miopen-cache-4711"),
    ("lumi-g", {"gpus": 1}, "USER-miopen-cache-4711"),
    ("frontier", {"nodes": 1}, "USER-4711"),
    ("chameleon-a100", {}, "USER-builder"),
]


@pytest.mark.root
@pytest.mark.usefixtures("only_root")
@pytest.mark.parametrize(("target", "options", "folder"), JOBS)
@pytest.mark.parametrize("is_link", [False, True])
def test_planted(node: Node, target: str, options: Mapping[str, Any], folder: str, is_link: bool) -> None:
    """A job that finds its folder made by another user ends with the path, before a container starts. It
    removes nothing through a link either."""
    place, data = node.folder(folder), node.work / "data"
    data.mkdir()
    (data / "precious").write_text("x")
    os.chown(data, ALICE, ALICE)
    if is_link:
        place.symlink_to(node.work)
        os.lchown(place, MALLORY, MALLORY)
    else:
        for path in (place, place / "data"):
            path.mkdir()
            path.chmod(0o777)
            os.chown(path, MALLORY, MALLORY)
            (path / "kernels").write_text("MALLORY ")
    done = node.run(target, **options)
    assert done.returncode and f"{place}" in done.stderr and "it must be yours" in done.stderr, done
    assert "ALICE" not in done.stdout and "MALLORY" not in done.stdout
    assert (data / "precious").read_text() == "x"


@pytest.mark.root
@pytest.mark.usefixtures("only_root")
@pytest.mark.parametrize(("target", "options", "folder"), JOBS)
def test_not_planted(node: Node, target: str, options: Mapping[str, Any], folder: str) -> None:
    """The same jobs with nothing there: only alice can use the folders, and the data is removed."""
    done = node.run(target, **options)
    assert done.returncode == 0 and "ALICE" in done.stdout, done
    place = node.folder(folder)
    assert mode(place) == 0o700 and place.stat().st_uid == ALICE and list(place.iterdir()) == []
