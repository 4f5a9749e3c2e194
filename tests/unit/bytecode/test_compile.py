"""The compiled modules of packages, and their cache. This Python compiles, in place of one in a container."""

from __future__ import annotations

import hashlib
import marshal
from dataclasses import replace
from pathlib import Path

import pytest

from builder.bases.image import BaseImage
from builder.bytecode import compile as compile_module
from builder.bytecode.compile import PackageBytecode
from builder.bytecode.inputs import BytecodeRequest, modules_of
from builder.config.recipe import Recipe
from builder.layers.entry import LinkContext
from builder.layers.packages import Packages
from builder.model import Fetched
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support import condapackage
from tests.support.condapackage import Member
from tests.support.thispython import ThisPython
from tests.support.wheels import CONTEXT, fetched, make_wheel

SITE = "opt/conda/lib/python3.11/site-packages"
RECIPE = Recipe(name="demo", base="docker://example.org/base", environment="environment.yml")
BASE = BaseImage("docker://example.org/base", f"sha256:{'1' * 64}", {}, ())
MODULES = {
    "demo/__init__.py": "x = 1\n",
    "demo/bad.py": "def f(:\n",
    "demo/data.txt": "",
    "demo/__main__.py": "1",
}


def request(
    folder: Path, *packages: Fetched, base: BaseImage = BASE, context: LinkContext = CONTEXT
) -> BytecodeRequest:
    settings = Settings(folder / "cache", folder / "tmp", 2)
    store = Store(settings.cache)
    made = Packages(packages, context, store, settings)
    return BytecodeRequest(made, base, RECIPE, settings, store, 90, ())


def compile_packages(asked: BytecodeRequest) -> dict[str, PackageBytecode]:
    chosen = [p for p in asked.packages.locked if modules_of(asked.packages, p)]
    return compile_module.compile_packages(asked, chosen)


def python(folder: Path) -> Fetched:
    files = {"bin/python3.11": b"", "lib/python3.11/os.py": b"import sys\n", "bin/tool.py": b"1\n"}
    path = condapackage.pack(folder, "python", [Member(name, data) for name, data in files.items()])
    return condapackage.fetched(path)


def content(bytecode: PackageBytecode, pyc: str) -> bytes:
    [file] = [f for f in bytecode.files if f.pyc == pyc]
    data = bytecode.blob.read_bytes()[file.offset : file.offset + file.size]
    assert hashlib.sha256(data).hexdigest() == file.sha256
    return data


def test_modules(tmp_path: Path, compiler: ThisPython) -> None:
    """Every module of a wheel that compiles, with the path that it has in the image."""
    wheel = fetched(make_wheel(tmp_path, files=MODULES))
    result = compile_packages(request(tmp_path, wheel))
    found = result[wheel.package.key]
    assert [(f.source, f.pyc) for f in found.files] == [
        (f"{SITE}/demo/__init__.py", f"{SITE}/demo/__pycache__/__init__.cpython-311.pyc"),
        (f"{SITE}/demo/__main__.py", f"{SITE}/demo/__pycache__/__main__.cpython-311.pyc"),
    ]
    code = marshal.loads(content(found, f"{SITE}/demo/__pycache__/__init__.cpython-311.pyc")[16:])
    assert code.co_filename == f"/{SITE}/demo/__init__.py"
    assert compiler.runs == 1


def test_cached(tmp_path: Path, compiler: ThisPython) -> None:
    """A package is compiled once; a new one is compiled alone. A damaged cache is made again."""
    one, two = (fetched(make_wheel(tmp_path, name, files={f"{name}.py": "x = 1\n"})) for name in ("a", "b"))
    first = compile_packages(request(tmp_path, one))
    again = compile_packages(request(tmp_path, one, two))
    assert (compiler.runs, compiler.modules) == (2, 2)
    assert again[one.package.key] == first[one.package.key]
    assert compile_packages(request(tmp_path, one, two)) == again and compiler.runs == 2

    first[one.package.key].blob.unlink()
    assert compile_packages(request(tmp_path, one, two)) == again
    assert (compiler.runs, compiler.modules) == (3, 3)


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
    assert all(b.files for b in result.values())


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
