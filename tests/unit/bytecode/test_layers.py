"""Layers of compiled modules. This Python compiles, in place of one in a container."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import builder.bytecode.layers as layers_module
from builder.bases.image import BaseImage
from builder.bytecode import compile as compile_module
from builder.bytecode.layers import SHARE, BytecodeRequest, bytecode_layers, in_order, layers_for_packages
from builder.config.recipe import Layers, Recipe
from builder.errors import LayerError
from builder.layers.build import LayersResult, build_layers
from builder.layers.entry import LinkContext
from builder.layers.files import PackageFiles
from builder.layers.packages import Packages
from builder.model import Descriptor, Fetched, Layer
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support import condapackage
from tests.support.condapackage import Member, symlink
from tests.support.packagefiles import files_of
from tests.support.thispython import ThisPython
from tests.support.wheels import CONTEXT, fetched, make_wheel, noise, tar_bytes, tree

SITE = "opt/conda/lib/python3.11/site-packages"
LIB = "opt/conda/lib/python3.11"
RECIPE = Recipe(
    name="demo",
    base="docker://example.org/base",
    environment="environment.yml",
    layers=Layers(groups=2),
)
BASE = BaseImage("docker://example.org/base", f"sha256:{'1' * 64}", {}, ())
#: A layer of a group, of which only the number counts.
LAYER = Layer(Descriptor("", "", 0), "", title="pip group 1: x", packages=("x",))


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
    **changes: object,
) -> Made:
    """Makes the layers of packages as the engine does. ``changes`` are fields of the request."""
    settings = Settings(folder / "cache", folder / "tmp", jobs)
    store = Store(settings.cache)
    files = files_of(packages, settings, context)
    built = build_layers(files, recipe.layers, settings, store, budget=60)
    request = BytecodeRequest(
        files,
        **{"wanted": None, "base": BASE, "recipe": recipe, "settings": settings, "store": store} | changes,
        total=90,
        below=built.layers,
    )  # type: ignore[arg-type]
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


def test_records(tmp_path: Path, packages: list[Fetched], compiler: ThisPython) -> None:
    """RECORD and conda-meta are replaced: all that they had, and the .pyc files."""
    made = make(tmp_path, packages)
    below = tree(made.packages)
    path = f"{SITE}/six-1.0.dist-info/RECORD"
    before, after = below[path][2], made.data(path)
    assert isinstance(before, bytes)
    assert after == before + b"__pycache__/six.cpython-311.pyc,,\n"
    record = json.loads(made.data("opt/conda/conda-meta/python-1.0-0.json"))
    assert record["files"] == [
        "lib/python3.11/os.py",
        "bin/x.py",
        "lib/python3.11/__pycache__/os.cpython-311.pyc",
    ]
    assert record["paths_data"]["paths"][-1] == {"_path": record["files"][-1], "path_type": "pyc_file"}
    others = set(made.tree) - made.pycs
    assert others == {p for p in below if p.endswith(("/RECORD", "python-1.0-0.json"))}


def test_same_bytes_everywhere(tmp_path: Path, packages: list[Fetched], compiler: ThisPython) -> None:
    """Neither the number of jobs nor what was compiled before changes a layer, or the packages' layers."""
    first = make(tmp_path / "1", packages, jobs=1)
    folder = tmp_path / "2"
    for package in reversed(packages):
        make(folder, [package], jobs=3)
    second = make(folder, packages, jobs=3)
    assert first.digests() == second.digests() and len(first.digests()) >= 2
    without = build_layers(
        files_of(packages, Settings(tmp_path / "3", tmp_path / "3", 1)),
        RECIPE.layers,
        Settings(tmp_path / "3", tmp_path / "3", 1),
        Store(tmp_path / "3"),
        budget=60,
    )
    assert [x.descriptor for x in without.layers] == [x.descriptor for x in first.packages]


def test_unchanged_build_reads_nothing(
    tmp_path: Path, packages: list[Fetched], compiler: ThisPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unchanged build takes the set of layers from the cache: it reads and compiles nothing."""
    first = make(tmp_path, packages)

    def fail(*args: object) -> None:
        raise AssertionError("it reads a package")

    for name in ("index", "entries", "record"):
        monkeypatch.setattr(Packages, name, fail)
    monkeypatch.setattr(PackageFiles, "resolution", property(fail))
    assert make(tmp_path, packages).digests() == first.digests()


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


def test_record_that_the_cache_lost(tmp_path: Path, packages: list[Fetched], compiler: ThisPython) -> None:
    """A package is read again if its record is no longer in the cache."""
    first = make(tmp_path, packages)
    for path in [
        *(tmp_path / "cache/index").glob("*-record.json"),
        *(tmp_path / "cache/layers").glob("byte*"),
    ]:
        path.unlink()
    assert make(tmp_path, packages).digests() == first.digests()


def test_large_package(tmp_path: Path, compiler: ThisPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with many bytes of modules has a layer of its own, if its files have one, too."""
    monkeypatch.setattr(layers_module, "_OWN_LAYER_FROM", 1000)
    text = "x = 1\n" * 200
    large = wheel(tmp_path, "large", large__py=text, data__bin=noise("large", 20_000))
    recipe = RECIPE.model_copy(update={"layers": Layers.model_construct(groups=2, own_layer_from=10_000)})
    made = make(tmp_path, [large, wheel(tmp_path, "a", a__py=text), wheel(tmp_path, "b")], recipe=recipe)
    titles = [layer.title for layer in in_order(made.packages, made.bytecode)]
    assert titles[:2] == ["pip large 1.0", "bytecode of pip large 1.0"]
    groups = [title for title in titles[2:] if not title.startswith("bytecode of ")]
    assert titles[2:] == [*groups, *(f"bytecode of {title}" for title in groups)]


def test_losing_module(tmp_path: Path, compiler: ThisPython) -> None:
    """A module that another package's file replaces is not compiled; the winner's is."""
    a = wheel(tmp_path, "a", **{"ns/x__py": "x = 'a'\n", "ns/a__py": ""})
    b = wheel(tmp_path, "b", **{"ns/x__py": "x = 'bb'\n", "ns/b__py": ""})
    made = make(tmp_path, [a, b])
    assert made.pycs == {f"{SITE}/ns/__pycache__/{name}.cpython-311.pyc" for name in ("a", "b", "x")}
    assert b"bb" not in made.data(f"{SITE}/ns/__pycache__/x.cpython-311.pyc")
    assert b"/x." not in made.data(f"{SITE}/b-1.0.dist-info/RECORD").replace(b"ns/x.py", b"")
    assert b"ns/__pycache__/x.cpython-311.pyc,," in made.data(f"{SITE}/a-1.0.dist-info/RECORD")


def test_losing_record(tmp_path: Path, compiler: ThisPython) -> None:
    """A RECORD that is not in the image is not replaced."""
    record = "lib/python3.11/site-packages/a-1.0.dist-info/RECORD"
    package = conda(
        tmp_path, "a", Member("lib/python3.11/site-packages/c.py", b"1\n"), Member(record, b"c\n")
    )
    made = make(tmp_path, [package, wheel(tmp_path, "a")])
    assert b"__pycache__/a." in made.data(f"opt/conda/{record}")
    reader = make(tmp_path / "2", [package])
    assert f"opt/conda/{record}" not in reader.tree


def test_moved_module(tmp_path: Path, compiler: ThisPython) -> None:
    """The .pyc of a module below another package's symlink is where the link points."""
    link = conda(tmp_path, "a", symlink("lib/python3.11/site-packages/old", "new"))
    below = conda(tmp_path, "b", Member("lib/python3.11/site-packages/old/m.py", b"x = 1\n"))
    made = make(tmp_path, [link, below])
    assert made.pycs == {f"{SITE}/new/__pycache__/m.cpython-311.pyc"}
    assert f"/{SITE}/old/m.py".encode() in made.data(f"{SITE}/new/__pycache__/m.cpython-311.pyc")
    files = json.loads(made.data("opt/conda/conda-meta/b-1.0-0.json"))["files"]
    assert files[-1] == "lib/python3.11/site-packages/old/__pycache__/m.cpython-311.pyc"


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


def test_wanted_modules(tmp_path: Path, packages: list[Fetched], compiler: ThisPython) -> None:
    """Only wanted modules are compiled, and only packages that have some; the records list these."""
    wanted = frozenset({f"{SITE}/six.py", f"{SITE}/unknown.py"})
    made = make(tmp_path, packages, wanted=wanted)
    assert made.pycs == {f"{SITE}/__pycache__/six.cpython-311.pyc"}
    assert set(made.tree) - made.pycs == {f"{SITE}/six-1.0.dist-info/RECORD"}
    assert len(make(tmp_path, packages).pycs) == 5, "a set for each list"


@pytest.mark.parametrize("case", ["none wanted", "no python", "no modules", "old python", "pypy", "graalpy"])
def test_nothing_to_compile(
    tmp_path: Path, compiler: ThisPython, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Without modules nothing is started, and there is no layer."""
    monkeypatch.setattr(
        compile_module, "compile_packages", lambda request: pytest.fail("it starts a compiler")
    )
    package = conda(tmp_path, "a", Member("share/x.py", b"1\n"), Member("lib/python3.11/x.txt", b"1\n"))
    if case == "no python":
        assert make(tmp_path, [package], context=replace(CONTEXT, python="")).bytecode == ()
    elif case == "none wanted":
        assert make(tmp_path, [wheel(tmp_path, "a")], wanted=frozenset()).bytecode == ()
    elif case == "old python":  # 3.6 has no .pyc without a time
        context = replace(CONTEXT, python="3.6", site_packages="lib/python3.6/site-packages")
        assert make(tmp_path, [wheel(tmp_path, "a")], context=context).bytecode == ()
    elif case in ("pypy", "graalpy"):
        build = {"pypy": "0_73_pypy", "graalpy": "3_graalpy310_native"}[case]
        python = conda(tmp_path, "python", Member("share/x.txt", b"1\n"), build=build)
        assert make(tmp_path, [python, wheel(tmp_path, "a")]).bytecode == ()
    else:
        assert make(tmp_path, [package]).bytecode == ()


def test_failure_names_the_package(
    tmp_path: Path, packages: list[Fetched], compiler: ThisPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage that appears while a layer is written is reported with its package."""
    real = compile_module.compile_packages

    def damaged(request: compile_module.CompileRequest) -> object:
        found = real(request)
        for bytecode in found.values():
            data = bytearray(bytecode.blob.read_bytes())
            data[-1] ^= 1
            bytecode.blob.write_bytes(data)
        return found

    monkeypatch.setattr(compile_module, "compile_packages", damaged)
    with pytest.raises(LayerError, match=r"^(python|attrs|idna|six|zipp)-1\.0"):
        make(tmp_path, packages)


@pytest.mark.parametrize(
    ("total", "packages"), [(97, 97 - SHARE), (72, 72 - SHARE), (40, 30), (13, 10), (3, 3), (-5, -5)]
)
def test_budget(total: int, packages: int) -> None:
    """The packages' budget depends on the base and the steps alone."""
    assert layers_for_packages(total) == packages


def test_groups_do_not_depend_on_the_number_of_packages(tmp_path: Path) -> None:
    """As long as packages keep to their budget, the number of groups and the layers for them are the same."""
    settings = Settings(tmp_path, tmp_path, 1)
    files = files_of([], settings)
    recipe = RECIPE.model_copy(update={"layers": Layers()})
    for total in (97, 60, 40, 20):
        requests = [
            BytecodeRequest(files, None, BASE, recipe, settings, Store(tmp_path), total, (LAYER,) * used)
            for used in range(layers_for_packages(total) + 1)
        ]
        assert len({request.options.groups for request in requests}) == 1
        assert all(request.budget >= 3 * request.options.groups for request in requests)


def test_parents_are_folders(tmp_path: Path, packages: list[Fetched], compiler: ThisPython) -> None:
    """Each layer lists the folders of its files, with the mode that the packages' layers have."""
    for layer in make(tmp_path, packages).bytecode:
        with tarfile.open(fileobj=io.BytesIO(tar_bytes(layer))) as archive:
            folders = {m.name: m.mode for m in archive if m.isdir()}
        assert set(folders.values()) == {0o755} and any(p.endswith("/__pycache__") for p in folders)
