"""Layers of compiled modules. This Python compiles, in place of one in a container."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.bases.image import BaseImage
from builder.build.bytecode import compile as compile_module
from builder.build.bytecode.inputs import BytecodeRequest
from builder.build.bytecode.layers import bytecode_layers, with_bytecode
from builder.core.model import Fetched, Layer
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import LayersResult, build_layers
from builder.formats.layers.entry import LinkContext
from builder.lock.config.recipe import Layers, Recipe
from tests.support import condapackage
from tests.support.condapackage import Member
from tests.support.packagefiles import files_of
from tests.support.thispython import ThisPython
from tests.support.wheels import CONTEXT, fetched, make_wheel, tree

SITE = "opt/conda/lib/python3.11/site-packages"
LIB = "opt/conda/lib/python3.11"
RECIPE = Recipe(
    name="demo",
    base="docker://example.org/base",
    environment="environment.yml",
    layers=Layers(groups=2),
)
BASE = BaseImage("docker://example.org/base", f"sha256:{'1' * 64}", {}, ())


class Made:
    """The layers of a build."""

    def __init__(self, packages: LayersResult, bytecode: tuple[Layer, ...]) -> None:
        self.packages = packages.layers
        self.bytecode = bytecode
        self.tree = tree(bytecode)

    @property
    def pycs(self) -> set[str]:
        return {path for path in self.tree if path.endswith(".pyc")}

    def data(self, path: str) -> bytes:
        data = self.tree[path][2]
        assert isinstance(data, bytes)
        return data

    def digests(self) -> list[str]:
        return [layer.descriptor.digest for layer in self.bytecode]


def make(
    folder: Path,
    packages: Sequence[Fetched],
    *,
    jobs: int = 2,
    context: LinkContext = CONTEXT,
    recipe: Recipe = RECIPE,
) -> Made:
    """Makes the layers of packages as the engine does."""
    settings = Settings(folder / "cache", folder / "tmp", jobs)
    store = Store(settings.cache)
    files = files_of(packages, settings, context)
    built = build_layers(files, recipe.layers.options, budget=60)
    request = BytecodeRequest(files, BASE, recipe, Workspace(settings, store), 90, built.layers)
    return Made(built, bytecode_layers(request))


def wheel(folder: Path, name: str, version: str = "1.0", **files: str | bytes) -> Fetched:
    """A wheel; ``mod__py`` becomes the file ``mod.py``, ``x__bin`` ``x.bin``."""
    paths = {path.replace("__", "."): text for path, text in files.items()}
    return fetched(make_wheel(folder / version, name, version, files=paths or {f"{name}.py": "x = 1\n"}))


def conda(folder: Path, name: str, *members: Member, **given: object) -> Fetched:
    return condapackage.fetched(condapackage.pack(folder, name, members, **given))  # type: ignore[arg-type]


@pytest.fixture
def packages(tmp_path: Path) -> list[Fetched]:
    """A standard library of one module, and wheels."""
    python = conda(tmp_path, "python", Member("lib/python3.11/os.py", b"y = 2\n"), Member("bin/x.py", b"1\n"))
    return [python, *(wheel(tmp_path, name) for name in ("attrs", "idna", "six", "zipp"))]


def test_layers(tmp_path: Path, packages: list[Fetched], compiler: ThisPython) -> None:
    """Every module below lib/pythonX.Y has a .pyc with mode 0644, in a layer named for its group."""
    made = make(tmp_path, packages)
    names = ("attrs", "idna", "six", "zipp")
    assert made.pycs == {
        f"{LIB}/__pycache__/os.cpython-311.pyc",
        *(f"{SITE}/__pycache__/{name}.cpython-311.pyc" for name in names),
    }
    assert {made.tree[path][1] for path in made.pycs} == {0o644}
    assert [layer.title for layer in made.bytecode] == [f"bytecode of {x.title}" for x in made.packages]
    assert sorted(n for layer in made.bytecode for n in layer.packages) == sorted([*names, "python"])
    assert made.bytecode[0].descriptor.annotations == {"org.builder.packages": "python=1.0"}
    assert made.data(f"{SITE}/__pycache__/six.cpython-311.pyc")[4:8] == b"\1\0\0\0", "unchecked: PEP 552"


def test_new_version_changes_one_layer(tmp_path: Path, packages: list[Fetched], compiler: ThisPython) -> None:
    """A new version changes the layer of its group, and only that one is compiled."""
    first = make(tmp_path, packages)
    compiled = compiler.modules
    new = [
        wheel(tmp_path, "six", "2.0", six__py="x = 2\n") if f.package.name == "six" else f for f in packages
    ]
    second = make(tmp_path, new)
    changed = [i for i, (a, b) in enumerate(zip(first.digests(), second.digests(), strict=True)) if a != b]
    assert [("six" in first.bytecode[i].packages) for i in changed] == [True]
    assert compiler.modules == compiled + 1, "the other modules of the group come from the cache"


def test_losing_module(tmp_path: Path, compiler: ThisPython) -> None:
    """A module that another package's file replaces is not compiled; the winner's is."""
    a = wheel(tmp_path, "a", **{"ns/x__py": "x = 'a'\n", "ns/a__py": ""})
    b = wheel(tmp_path, "b", **{"ns/x__py": "x = 'bb'\n", "ns/b__py": ""})
    made = make(tmp_path, [a, b])
    assert made.pycs == {f"{SITE}/ns/__pycache__/{name}.cpython-311.pyc" for name in ("a", "b", "x")}
    assert b"bb" not in made.data(f"{SITE}/ns/__pycache__/x.cpython-311.pyc")
    assert b"/x." not in made.data(f"{SITE}/b-1.0.dist-info/RECORD").replace(b"ns/x.py", b"")
    assert b"ns/__pycache__/x.cpython-311.pyc,," in made.data(f"{SITE}/a-1.0.dist-info/RECORD")


def test_stale_modules_of_conda(tmp_path: Path, compiler: ThisPython) -> None:
    """A .pyc that conda packed is replaced. One without a module stays, in the package's own layer."""
    members = [
        Member("lib/python3.11/os.py", b"x = 1\n"),
        Member("lib/python3.11/__pycache__/os.cpython-311.pyc", b"stale"),
        Member("lib/python3.11/__pycache__/gone.cpython-311.pyc", b"sourceless"),
    ]
    made = make(tmp_path, [conda(tmp_path, "python", *members)])
    below = tree(made.packages)
    assert f"{LIB}/__pycache__/os.cpython-311.pyc" not in below
    assert below[f"{LIB}/__pycache__/gone.cpython-311.pyc"][2] == b"sourceless"
    assert made.pycs == {f"{LIB}/__pycache__/os.cpython-311.pyc"}
    assert made.data(f"{LIB}/__pycache__/os.cpython-311.pyc") != b"stale"
    files = json.loads(made.data("opt/conda/conda-meta/python-1.0-0.json"))["files"]
    assert len(files) == len(set(files)) == 3


def test_compiled_module_of_another_package(tmp_path: Path, compiler: ThisPython) -> None:
    """A package cannot put a .pyc beside the module of another one: that would run in its place."""
    site = "lib/python3.11/site-packages"
    pyc = f"{site}/__pycache__/six.cpython-311.pyc"
    hostile = conda(tmp_path, "hostile", Member(pyc, b"hostile"), Member(f"{site}/h.py", b"1\n"))
    made = make(tmp_path, [hostile, wheel(tmp_path, "six")])
    assert f"opt/conda/{pyc}" not in tree(made.packages)
    assert made.data(f"opt/conda/{pyc}") != b"hostile"
    alone = make(tmp_path / "2", [hostile])
    assert tree(alone.packages)[f"opt/conda/{pyc}"][2] == b"hostile"


def test_tests(tmp_path: Path, compiler: ThisPython) -> None:
    """The modules of a package's tests are not compiled, and its record does not list any."""
    paths = ("tests/t", "test/t", "core/tests/t", "testing/t", "core/test")
    package = wheel(tmp_path, "a", **{f"a/{path}__py": "x = 1\n" for path in paths})
    made = make(tmp_path, [package])
    assert made.pycs == {
        f"{SITE}/a/testing/__pycache__/t.cpython-311.pyc",
        f"{SITE}/a/core/__pycache__/test.cpython-311.pyc",
    }


@pytest.mark.parametrize("case", ["none", "no python", "old python"])
def test_nothing_to_compile(
    tmp_path: Path, compiler: ThisPython, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Without a Python that compiles, or a wish for it, nothing is started, and there is no layer."""
    monkeypatch.setattr(compile_module, "compile_packages", lambda *args: pytest.fail("it starts a compiler"))
    context, recipe, packages = CONTEXT, RECIPE, [wheel(tmp_path, "a")]
    if case == "no python":
        context = replace(CONTEXT, python="")
        packages = [conda(tmp_path, "a", Member("lib/python3.11/x.py", b"1\n"))]
    elif case == "old python":  # 3.6 has no .pyc without a time
        context = replace(CONTEXT, python="3.6", site_packages="lib/python3.6/site-packages")
    else:
        recipe = RECIPE.model_copy(update={"bytecode": "none"})
    assert make(tmp_path, packages, context=context, recipe=recipe).bytecode == ()


def test_record_of_a_wheel() -> None:
    """The new rows are those that pip 26 writes for the same files, without hash and size."""
    record = b'six.py,sha256=x,3\n"a,b/c.py",sha256=z,1\nsix-1.0.dist-info/RECORD,,\n'
    pycs = [f"{SITE}/six/__pycache__/z.cpython-311.pyc", f"{SITE}/__pycache__/six.cpython-311.pyc"]
    rows = b"__pycache__/six.cpython-311.pyc,,\nsix/__pycache__/z.cpython-311.pyc,,\n"
    assert with_bytecode("pip", record, pycs, CONTEXT) == record + rows


def test_hostile_record() -> None:
    """A wheel can put anything in the place of a hash, more than a parser of rows accepts, too."""
    record = f'six.py,{"x" * 200_000},3\n"a\nb.py",,\n'.encode()
    pycs = [f"{SITE}/__pycache__/a\nb.cpython-311.pyc"]
    rows = b'"__pycache__/a\nb.cpython-311.pyc",,\n'
    assert with_bytecode("pip", record, pycs, CONTEXT) == record + rows
