"""The compiled modules of packages, and their cache. This Python compiles, in place of one in a container."""

from __future__ import annotations

import marshal
import os
import posixpath
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.build.bases.image import BaseImage
from builder.build.bytecode import compile as compile_module
from builder.build.bytecode import worker
from builder.build.bytecode.compile import Bytecode, CompileJob
from builder.build.bytecode.inputs import BytecodeRequest, modules_of
from builder.build.run.process import Completed
from builder.core.errors import LayerError
from builder.core.model import Fetched, LockedPackage
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.content import read_whole
from builder.formats.layers.entry import LinkContext
from builder.formats.oci.image import image_of
from builder.lock.config.recipe import Recipe
from tests.support import condapackage
from tests.support.condapackage import Member
from tests.support.packagefiles import files_of
from tests.support.thispython import ThisPython
from tests.support.wheels import CONTEXT, fetched, make_wheel

RECIPE = Recipe(name="demo", base="docker://example.org/base", environment="environment.yml")
BASE = BaseImage("docker://example.org/base", f"sha256:{'1' * 64}", {}, ())
MODULES = {
    "demo/__init__.py": "x = 1\n",
    "demo/bad.py": "def f(:\n",
    "demo/data.txt": "",
    "demo/__main__.py": "1",
}


def request(folder: Path, *packages: Fetched, context: LinkContext = CONTEXT) -> BytecodeRequest:
    settings = Settings(folder / "cache", folder / "tmp", 2)
    store = Store(settings.cache)
    made = files_of(packages, settings, context)
    return BytecodeRequest(made, BASE, RECIPE, Workspace(settings, store), 90, ())


def compile_packages(asked: BytecodeRequest) -> dict[str, Bytecode]:
    chosen = [p for p in asked.packages.locked if modules_of(asked.packages, p)]
    return compile_module.compile_packages(asked, chosen)


def python(folder: Path) -> Fetched:
    files = {"bin/python3.11": b"", "lib/python3.11/os.py": b"import sys\n", "bin/tool.py": b"1\n"}
    path = condapackage.pack(folder, "python", [Member(name, data) for name, data in files.items()])
    return condapackage.fetched(path)


def test_cached(tmp_path: Path, compiler: ThisPython) -> None:
    """A package is compiled once; a new one is compiled alone. A damaged cache is made again."""
    one, two = (fetched(make_wheel(tmp_path, name, files={f"{name}.py": "x = 1\n"})) for name in ("a", "b"))
    first = compile_packages(request(tmp_path, one))
    both = request(tmp_path, one, two)
    again = compile_packages(both)
    assert both.packages._fetched.keys() == {two.package.key}, "no other archive is needed"
    assert (compiler.runs, compiler.modules) == (2, 2)
    assert again[one.package.key] == first[one.package.key]
    assert compile_packages(request(tmp_path, one, two)) == again and compiler.runs == 2

    [(_, entry)] = first[one.package.key]
    entry.content.source.unlink()  # type: ignore[union-attr]
    assert compile_packages(request(tmp_path, one, two)) == again
    assert (compiler.runs, compiler.modules) == (3, 3)


def test_order(tmp_path: Path, compiler: ThisPython) -> None:
    """Modules are stored as they come, and are listed by path."""
    files = {f"{name}.py": f"{name} = 1\n" for name in "cab"}
    wheel = fetched(make_wheel(tmp_path, files=files))
    [found] = compile_packages(request(tmp_path, wheel)).values()
    assert [posixpath.basename(path) for path, _ in found] == ["a.py", "b.py", "c.py"]
    for path, entry in found:
        assert marshal.loads(read_whole(entry)[16:]).co_names == (posixpath.basename(path)[:1],)


@pytest.mark.parametrize("change", ["prefix", "python", "wheel"])
def test_key(tmp_path: Path, compiler: ThisPython, change: str) -> None:
    """Another prefix, another Python or another archive: compiled again."""
    wheel = fetched(make_wheel(tmp_path, files=MODULES))
    conda = python(tmp_path / "one")
    compile_packages(request(tmp_path, conda, wheel))
    other = request(tmp_path, conda, wheel)
    if change == "wheel":
        wheel = fetched(make_wheel(tmp_path / "new", files=MODULES, executable=["demo/data.txt"]))
        other = request(tmp_path, conda, wheel)
    elif change == "python":
        key = replace(conda.package, sha256="2" * 64)
        other = request(tmp_path, replace(conda, package=key), wheel)
    else:
        other = request(tmp_path, conda, wheel, context=replace(CONTEXT, prefix="/opt/env"))
    result = compile_packages(other)
    assert compiler.runs == 2
    assert all(result.values())


def test_library_of_python(tmp_path: Path, compiler: ThisPython) -> None:
    """So are those of a Python with another library, and not those with another package."""
    wheel = fetched(make_wheel(tmp_path, files=MODULES))
    found = python(tmp_path / "one")
    conda = replace(found, package=replace(found.package, dependencies={"openssl": ""}))
    for number, name in enumerate(["openssl", "other"], start=1):
        for build in ("0", "1"):
            path = condapackage.pack(tmp_path / build, name, build=build)
            compile_packages(request(tmp_path, condapackage.fetched(path), conda, wheel))
        assert compiler.runs == number + 1


# the folder that the compiler's container shares with builder

PACKAGE = LockedPackage("demo", "1.0", "pip", "linux-64", "https://x.example/demo-1.0.whl", "0" * 64)


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
    monkeypatch.setattr(compile_module, "find_runner", lambda *args, **more: made)
    return made


@pytest.fixture
def job(tmp_path: Path) -> CompileJob:
    folder = tmp_path / "job"
    folder.mkdir()
    return CompileJob(folder)


def start(job: CompileJob, folder: Path) -> str:
    settings = Settings(folder / "cache", folder / "tmp", 2)
    request: Any = SimpleNamespace(work=Workspace.of(settings))
    return job.run(image_of((), {}), "/opt/conda/bin/python3.11", request)


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


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tag": 3}', '{"tag": "../x"}'])
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
