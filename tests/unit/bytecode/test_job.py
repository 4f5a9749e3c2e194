"""The folder that the compiler's container shares with builder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from builder.bytecode import job as job_module
from builder.bytecode import worker
from builder.bytecode.job import CompileJob, compile_job, source_of
from builder.bytecode.runtime import Runtime
from builder.errors import LayerError, RunnerError
from builder.layers.entry import Deflated, Range
from builder.layers.wheel import WheelReader
from builder.model import LockedPackage
from builder.progress import QUIET
from builder.run.process import Completed
from builder.settings import Settings
from builder.steps.image import image_of
from builder.store.blobs import Store
from tests.support.wheels import CONTEXT, fetched, make_wheel

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


def start(job: CompileJob, folder: Path) -> str:
    settings = settings_in(folder)
    return job.run(RUNTIME, settings, Store(settings.cache), QUIET)


def framed(*pycs: bytes) -> bytes:
    return b"".join(worker.LENGTH.pack(len(pyc)) + pyc for pyc in pycs)


def pyc(text: bytes) -> bytes:
    return b"\xa7\r\r\n" + worker.UNCHECKED + bytes(8) + text


def test_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with many modules, or long ones, is divided, so that several processes compile it."""
    monkeypatch.setattr(job_module, "_MODULES", 3)
    monkeypatch.setattr(job_module, "_SOURCE", 1000)
    modules = [(f"m{i}.py", b"x" * (900 if i == 5 else 200)) for i in range(8)]
    with compile_job(settings_in(tmp_path)) as job:
        shares = job.write(PACKAGE, modules)
        again = job.write(replace(PACKAGE, name="other"), [("o.py", b"")])
        assert [share.paths for share in shares] == [
            ("m0.py", "m1.py", "m2.py"),
            ("m3.py", "m4.py", "m5.py"),
            ("m6.py", "m7.py"),
        ]
        assert [share.paths for share in again] == [("o.py",)]
        texts = [list(worker.modules(s.file.with_suffix(".src").read_bytes())) for s in (*shares, *again)]
        assert [path for share in texts for path, _ in share] == [f"/m{i}.py" for i in range(8)] + ["/o.py"]
        assert texts[1][2] == ("/m5.py", b"x" * 900)
        folder = job.folder
    assert not folder.exists()


def test_results(tmp_path: Path, container: Container) -> None:
    """The compiled modules by path; the tag is that of the image's Python."""
    container.results["000000.pyc"] = framed(pyc(b"one"), b"")
    with compile_job(settings_in(tmp_path)) as job:
        [share] = job.write(PACKAGE, [("a.py", b"1"), ("b.py", b"(")])
        assert start(job, tmp_path) == "cpython-311"
        assert job.result(share) == {"a.py": pyc(b"one"), "b.py": b""}
    assert container.command[0] == "/opt/conda/bin/python3.11" and container.command[-1] == "2"


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
def test_damaged_result(tmp_path: Path, container: Container, data: bytes) -> None:
    """What the container left is checked: as many modules as there are, none with a time in it."""
    container.results["000000.pyc"] = data
    with compile_job(settings_in(tmp_path)) as job:
        [share] = job.write(PACKAGE, [("a.py", b"1"), ("b.py", b"2")])
        start(job, tmp_path)
        with pytest.raises(LayerError, match=r"demo-1\.0\.whl: .*damaged") as error:
            job.result(share)
    assert "bytecode: none" in error.value.hint


@pytest.mark.parametrize("kind", ["symlink", "pipe", "folder"])
def test_no_file_left(tmp_path: Path, container: Container, kind: str) -> None:
    """A container cannot make builder read a file of the host, or wait for a pipe."""
    with compile_job(settings_in(tmp_path)) as job:
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
def test_hostile_tag(tmp_path: Path, container: Container, text: str) -> None:
    """The tag becomes part of paths in the image."""
    container.python = text
    with compile_job(settings_in(tmp_path)) as job:
        job.write(PACKAGE, [("a.py", b"1")])
        with pytest.raises(LayerError, match="names no tag"):
            start(job, tmp_path)


def test_python_died(tmp_path: Path, container: Container) -> None:
    """The error names the package whose modules Python did not survive."""
    container.done = Completed(1, "", "Fatal Python error: Segmentation fault\n")
    container.results["000001.taken"] = b""
    with compile_job(settings_in(tmp_path)) as job:
        job.write(PACKAGE, [("a.py", b"1")])
        job.write(replace(PACKAGE, url="https://example.org/bad-2.0.whl"), [("b.py", b"1")])
        with pytest.raises(LayerError) as error:
            start(job, tmp_path)
    assert error.value.message.startswith("bad-2.0.whl: Python ended")
    assert "Segmentation fault" in error.value.message and "bytecode: none" in error.value.hint


def test_python_does_not_start(tmp_path: Path, container: Container) -> None:
    container.done = Completed(127, "", "libc.so.6: version `GLIBC_2.38' not found\n")
    with compile_job(settings_in(tmp_path)) as job:
        job.write(PACKAGE, [("a.py", b"1")])
        with pytest.raises(LayerError, match=r"does not start.*\n.*GLIBC_2\.38"):
            start(job, tmp_path)


def test_too_slow(tmp_path: Path, container: Container) -> None:
    container.done = Completed(124, "", "", timed_out=True)
    container.results["000000.taken"] = b""
    with compile_job(settings_in(tmp_path)) as job:
        job.write(PACKAGE, [("a.py", b"1")])
        with pytest.raises(LayerError, match=r"demo-1\.0\.whl: its modules were not compiled after 4 hours"):
            start(job, tmp_path)


def test_no_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a runner, the error says what needs one, and how to do without."""

    def none(*args: object, **more: object) -> None:
        raise RunnerError("no runner works on this host", "install one")

    monkeypatch.setattr(job_module, "find_runner", none)
    with compile_job(settings_in(tmp_path)) as job:
        job.write(PACKAGE, [("a.py", b"1")])
        with pytest.raises(RunnerError, match="compiled in a container: no runner works") as error:
            start(job, tmp_path)
    assert error.value.hint == "install one; or write in the recipe: bytecode: none"


def test_source(tmp_path: Path) -> None:
    """The content of a module, from either kind of member of a wheel; a damaged one is an error."""
    text = "x = 1\n" * 500
    wheel = make_wheel(tmp_path, files={"a.py": text, "b.py": text}, stored=["b.py"])
    entries = {e.path.rpartition("/")[2]: e for e in WheelReader().entries(fetched(wheel), CONTEXT)}
    assert isinstance(entries["a.py"].content, Deflated) and isinstance(entries["b.py"].content, Range)
    for name in ("a.py", "b.py"):
        entry = entries[name]
        assert source_of(entry) == text.encode()
        damaged = bytearray(wheel.read_bytes())
        damaged[entry.content.offset + 3] ^= 0xFF
        (tmp_path / "damaged.whl").write_bytes(damaged)
        content = replace(entry.content, source=tmp_path / "damaged.whl")
        with pytest.raises(LayerError, match="damaged"):
            source_of(replace(entry, content=content))
