"""The folder that the compiler's container shares with builder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from builder.bytecode import job as job_module
from builder.bytecode import worker
from builder.bytecode.job import CompileJob
from builder.bytecode.runtime import Runtime
from builder.errors import LayerError
from builder.model import LockedPackage
from builder.oci.image import image_of
from builder.progress import QUIET
from builder.run.process import Completed
from builder.settings import Settings
from builder.store.blobs import Store

PACKAGE = LockedPackage("demo", "1.0", "pip", "linux-64", "https://example.org/demo-1.0.whl", "0" * 64)
RUNTIME = Runtime(image_of((), {}), "/opt/conda/bin/python3.11")


def settings_in(folder: Path) -> Settings:
    return Settings(folder / "cache", folder / "tmp", 2)


class Container:
    """A runner whose container leaves what a test says."""

    def __init__(self, returncode: int = 0, stderr: str = "", timed_out: bool = False) -> None:
        self.done = Completed(returncode, "", stderr, timed_out)
        self.python = '{"tag": "cpython-311"}'
        self.results: dict[str, bytes] = {}
        self.command: list[str] = []

    def run(self, image, command, options):
        folder = options.mounts[0].source
        self.command = list(command)
        (folder / "python.json").write_text(self.python)
        for name, data in self.results.items():
            (folder / name).write_bytes(data)
        return self.done


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Container:
    made = Container()
    monkeypatch.setattr(job_module, "find_runner", lambda *args, **more: made)
    return made


@pytest.fixture
def job(tmp_path: Path) -> CompileJob:
    folder = tmp_path / "job"
    folder.mkdir()
    return CompileJob(folder)


def start(job: CompileJob, folder: Path) -> str:
    settings = settings_in(folder)
    return job.run(RUNTIME, settings, Store(settings.cache), QUIET)


def framed(*pycs: bytes) -> bytes:
    return b"".join(worker.LENGTH.pack(len(pyc)) + pyc for pyc in pycs)


def pyc(text: bytes) -> bytes:
    return b"\xa7\r\r\n" + worker.UNCHECKED + bytes(8) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        framed(pyc(b"one")),
        framed(pyc(b"one"), pyc(b"two"), pyc(b"three")),
        framed(pyc(b"one"), pyc(b"two"))[:-1],
        framed(pyc(b"one"), b"\xa7\r\r\n" + bytes(12)),
        framed(pyc(b"one"), b"x"),
    ],
    ids=["none", "few", "many", "cut", "with a time", "short"],
)
def test_damaged_result(job: CompileJob, tmp_path: Path, container: Container, data: bytes) -> None:
    """What the container left is checked: as many modules as there are, none with a time in it."""
    container.results["000000.pyc"] = data
    [share] = job.write(PACKAGE, [("a.py", b"1"), ("b.py", b"2")])
    start(job, tmp_path)
    with pytest.raises(LayerError, match=r"demo-1\.0\.whl: .*damaged") as error:
        job.result(share)
    assert "bytecode: none" in error.value.hint


@pytest.mark.parametrize("kind", ["symlink", "pipe", "folder"])
def test_no_file_left(job: CompileJob, tmp_path: Path, container: Container, kind: str) -> None:
    """A container cannot make builder read a file of the host, or wait for a pipe."""
    [share] = job.write(PACKAGE, [("a.py", b"1")])
    start(job, tmp_path)
    secret = tmp_path / "secret"
    secret.write_bytes(framed(pyc(b"secret")))
    left = share.file.with_suffix(".pyc")
    if kind == "symlink":
        left.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(left)
    else:
        left.mkdir()
    with pytest.raises(LayerError, match="damaged"):
        job.result(share)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tag": 3}', '{"tag": "../x"}', '{"tag": "a/b"}'])
def test_hostile_tag(job: CompileJob, tmp_path: Path, container: Container, text: str) -> None:
    """The tag becomes part of paths in the image."""
    container.python = text
    job.write(PACKAGE, [("a.py", b"1")])
    with pytest.raises(LayerError, match="names no tag"):
        start(job, tmp_path)


def test_python_died(job: CompileJob, tmp_path: Path, container: Container) -> None:
    """The error names the package whose modules Python did not survive."""
    container.done = Completed(1, "", "Fatal Python error: Segmentation fault\n")
    container.results["000001.taken"] = b""
    job.write(PACKAGE, [("a.py", b"1")])
    job.write(replace(PACKAGE, url="https://example.org/bad-2.0.whl"), [("b.py", b"1")])
    with pytest.raises(LayerError) as error:
        start(job, tmp_path)
    assert error.value.message.startswith("bad-2.0.whl: Python ended")
    assert "Segmentation fault" in error.value.message and "bytecode: none" in error.value.hint
