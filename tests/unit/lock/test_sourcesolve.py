"""Solving with packages that have no wheel: uv, the index and the builder of wheels are played."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from builder.core.errors import ConfigError, SolveError, WheelError
from builder.core.model import LockedPackage, LockedSource
from builder.core.settings import Settings
from builder.core.store.files import sha256_file
from builder.lock import sourcesolve
from builder.lock.config.recipe import Recipe
from builder.lock.indexes import Indexes
from builder.lock.request import BuiltWheel, SolveRequest
from builder.lock.sourcesolve import SourceSolver
from builder.lock.spec import Environment, SourceSpec, Spec
from builder.lock.uv import NoWheels
from builder.lock.wheels import glibc_minor

PYTHON = LockedPackage("python", "3.11.2", "conda", "linux-64", "https://h/python-3.11.2-0.conda", "0" * 64)
Solved = list[dict[str, Any]]


class Wheels:
    """Plays the builder of wheels; ``built`` lists what it built, and which pip packages the build saw."""

    def __init__(self, folder: Path, names: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.names = names or {}
        self.built: list[tuple[str, tuple[str, ...]]] = []

    def name_of(self, source: SourceSpec) -> str | None:
        return self.names.get(source.url)

    def build(self, source: SourceSpec, packages: Sequence[LockedPackage]) -> BuiltWheel:
        seen = tuple(f"{p.name} {p.version}" for p in packages if p.manager == "pip")
        name = source.name or self.names[source.url]
        version = source.text.partition("==")[2] or "1.0"
        self.built.append((source.text, seen))
        path = self.folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("real", " ".join(seen))
        locked = LockedSource(source.kind, source.url, sha256="1" * 64)
        return BuiltWheel(path, path.name, name, version, sha256_file(path), locked)


def solver(tmp_path: Path, build: Mapping[str, Any] | None = None, *sources: SourceSpec) -> SourceSolver:
    recipe = Recipe.model_validate(
        {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "pip": {"build": build or {}}}
    )
    environment = Environment(tmp_path / "e.yml", "", (), (), (), sources=sources)
    request = SolveRequest(recipe, environment, Settings.from_environment({"HOME": str(tmp_path)}))
    tmp_path.mkdir(exist_ok=True)
    wheels = Wheels(tmp_path, {".": "mine"})
    return SourceSolver(request, [PYTHON], Indexes(), tmp_path / "work", wheels)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Versions that have source distributions, by package."""
    versions: dict[str, list[str]] = {}

    def sdist(name: str, version: str) -> SourceSpec:
        text, url = f"{name}=={version}", f"https://h/{version}/{name}-{version}.tar.gz"
        return SourceSpec("sdist", name, url, sha256="2" * 64, text=text, where=text)

    def find(name: str, *_: object) -> dict[Version, SourceSpec]:
        return {Version(version): sdist(name, version) for version in versions[name]}

    monkeypatch.setattr(sourcesolve, "find_sdists", find)
    return versions


def links(folder: Path) -> dict[tuple[str, str], bool]:
    """The wheels of the find-links folder: name and version, and whether each is a real one."""
    found: dict[tuple[str, str], bool] = {}
    for path in folder.iterdir():
        name, version, _, _ = parse_wheel_filename(path.name)
        found[name, str(version)] = zipfile.ZipFile(path).namelist() == ["real"]
    return found


def locked(solved: Solved) -> list[LockedPackage]:
    return [
        LockedPackage(p["name"], p["version"], "pip", "linux-64", "https://h/x", "3" * 64) for p in solved
    ]


def no_wheels(*names: str) -> NoWheels:
    return NoWheels(SolveError("unsolvable", "hint"), names)


def test_stubs(tmp_path: Path, index: dict[str, list[str]]) -> None:
    """uv chooses among stubs of all versions; the chosen one is built and replaced."""
    index["old"] = ["0.3", "0.2"]
    tried: list[dict[tuple[str, str], bool]] = []

    def solve(requirements: Sequence[str], constraints: Sequence[str]) -> Solved:
        there = links(source.links)
        tried.append(there)
        if not there:
            raise no_wheels("old")
        return [{"name": "old", "version": "0.2"}, {"name": "numpy", "version": "2.0"}]

    source = solver(tmp_path)
    solved = source.solve(solve, locked)
    assert [p["name"] for p in solved] == ["old", "numpy"]
    assert tried == [
        {},
        {("old", "0.3"): False, ("old", "0.2"): False},
        {("old", "0.3"): False, ("old", "0.2"): True},
    ]
    package = source.package("old")
    assert package is not None and package.url == "builder://wheels/old-0.2-py3-none-any.whl"
    assert package.source is not None and package.source.kind == "sdist" and source.package("numpy") is None


def test_next_version(tmp_path: Path, index: dict[str, list[str]]) -> None:
    """If the real requirements of the newest version do not fit, an older one is built."""
    index["old"] = ["0.3", "0.2"]

    def solve(requirements: Sequence[str], constraints: Sequence[str]) -> Solved:
        there = links(source.links)
        if not there:
            raise no_wheels("old")
        return [{"name": "old", "version": "0.2" if there["old", "0.3"] else "0.3"}]

    source = solver(tmp_path)
    source.solve(solve, locked)
    assert isinstance(source.builder, Wheels)
    assert [text for text, _ in source.builder.built] == ["old==0.3", "old==0.2"]
    package = source.package("old")
    assert package is not None and package.version == "0.2"


def test_requirement_without_wheel(tmp_path: Path, index: dict[str, list[str]]) -> None:
    """A built wheel needs a package without a wheel: that is built too, and no older version is taken."""
    index.update(old=["0.3", "0.2"], hjson=["3.1"])

    def solve(requirements: Sequence[str], constraints: Sequence[str]) -> Solved:
        there = links(source.links)
        if not there:
            raise no_wheels("old")
        if ("hjson", "3.1") in there:
            return [{"name": "old", "version": "0.3"}, {"name": "hjson", "version": "3.1"}]
        if "old==0.3" in constraints:
            raise no_wheels("hjson")
        return [{"name": "old", "version": "0.2" if there["old", "0.3"] else "0.3"}]

    source = solver(tmp_path)
    source.solve(solve, locked)
    assert isinstance(source.builder, Wheels)
    assert [text for text, _ in source.builder.built] == ["old==0.3", "hjson==3.1"]


def test_never_built(tmp_path: Path, index: dict[str, list[str]]) -> None:
    """Build requirements are wheels, and so is what --only-binary names."""
    index["old"] = ["1"]

    def solve(requirements: Sequence[str], constraints: Sequence[str]) -> Solved:
        raise no_wheels("old")

    source = solver(tmp_path)
    source.builder = None
    with pytest.raises(SolveError, match="unsolvable"):
        source.solve(solve, locked)
    source = solver(tmp_path / "2")
    source.request = replace(
        source.request, environment=replace(source.request.environment, only_binary=("old",))
    )
    with pytest.raises(SolveError, match="unsolvable"):
        source.solve(solve, locked)


def test_direct(tmp_path: Path) -> None:
    """A local project is built first; extras stay, and what its marker excludes is not built."""
    mine = SourceSpec("local", None, ".", extras=("train",), text="-e .", where="e.yml:4")
    other = SourceSpec("local", "other", "x", marker="sys_platform == 'win32'", text="x")
    asked = []

    def solve(requirements: Sequence[str], constraints: Sequence[str]) -> Solved:
        asked.append(requirements)
        return [{"name": "mine", "version": "1.0"}]

    source = solver(tmp_path, None, mine, other)
    source.solve(solve, locked)
    [[line]] = asked
    assert line.startswith("mine[train] @ file://") and line.endswith("/mine-1.0-py3-none-any.whl")


def test_forced(tmp_path: Path, index: dict[str, list[str]]) -> None:
    """A package that the recipe names below build is built, although the index has a wheel of it."""
    index["mpi4py"] = ["4.1", "3.1.5"]
    tried: list[dict[tuple[str, str], bool]] = []

    def solve(requirements: Sequence[str], constraints: Sequence[str]) -> Solved:
        there = links(source.links)
        tried.append(there)
        return [{"name": "mpi4py", "version": "4.1" if there else "0.1"}]

    source = solver(tmp_path, {"MPI4PY": {}})
    source.solve(solve, locked)
    assert [list(there.values()).count(True) for there in tried] == [0, 0, 1]
    package = source.package("mpi4py")
    assert package is not None and package.version == "4.1"


def test_forced_without_sdist(tmp_path: Path, index: dict[str, list[str]]) -> None:
    index["mpi4py"] = []
    with pytest.raises(SolveError, match=r"mpi4py 4\.1 has no source distribution"):
        solver(tmp_path, {"mpi4py": {}}).solve(rounds([{"name": "mpi4py", "version": "4.1"}]), locked)


def test_named_hash(tmp_path: Path, index: dict[str, list[str]]) -> None:
    """The source distribution that is built has one of the requirement's hashes (``--hash``)."""
    index["old"] = ["1.0"]
    for letter, fits in (("2", True), ("4", False)):
        source = solver(tmp_path / letter, {"old": {}})
        spec = Spec("old==1.0", "old", "e.yml:5", hashes=(f"sha256:{letter * 64}",))
        environment = replace(source.request.environment, pip=(spec,))
        source.request = replace(source.request, environment=environment)
        if fits:
            source.solve(rounds([{"name": "old", "version": "1.0"}]), locked)
        else:
            with pytest.raises(SolveError, match=r"e.yml:5: old-1.0.tar.gz has sha256:22.*names others"):
                source.solve(rounds([{"name": "old", "version": "1.0"}]), locked)


def test_unknown_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pip\.build: flash-attn: no package of this name"):
        solver(tmp_path, {"flash_attn": {}}).solve(lambda *_: [], locked)


def rounds(*answers: Solved) -> Callable[[Sequence[str], Sequence[str]], Solved]:
    left = list(answers)
    return lambda *_: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize("name", [None])
def test_no_isolation(tmp_path: Path, index: dict[str, list[str]], name: str | None) -> None:
    """A build that sees the image's packages comes after the first solve of all others.

    A folder named without its name (``-e .``) declares it.
    """
    index["ops"] = ["1.0"]
    torch, ops = {"name": "torch", "version": "2.0"}, {"name": "ops", "version": "1.0"}
    mine = SourceSpec("local", name, ".", text=".", where="e.yml:4")
    source = solver(tmp_path, {"ops": {"no_isolation": True}, "mine": {"no_isolation": True}}, mine)
    later = [torch, ops, {"name": "mine", "version": "1.0"}, {"name": "needed", "version": "1"}]
    source.solve(rounds([torch, ops], [torch, ops], later), locked)
    assert isinstance(source.builder, Wheels)
    assert source.builder.built == [("ops==1.0", ("torch 2.0",)), (".", ("torch 2.0",))]


def test_built_again(tmp_path: Path) -> None:
    """If what the build saw has another version in the end, the wheel is built again."""
    mine = SourceSpec("local", "mine", ".", text=".", where="e.yml:4")
    source = solver(tmp_path, {"mine": {"no_isolation": True}}, mine)
    made = {"name": "mine", "version": "1.0"}
    new = {"name": "torch", "version": "1.9"}
    source.solve(rounds([{"name": "torch", "version": "2.0"}], [made, new]), locked)
    assert isinstance(source.builder, Wheels)
    assert [seen for _, seen in source.builder.built] == [("torch 2.0",), ("torch 1.9",)]


def test_old_version(tmp_path: Path, index: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """If a build fails, the hint names the first newer version, and the newest Python, that has a wheel."""
    newer = {Version("1.23.2"), Version("1.24"), Version("1.20rc1"), Version("0.9")}
    old = {"3.8": {Version("1.21.0")}, "3.9": {Version("1.21.0")}, "3.10": newer, "3.11.2": newer}
    monkeypatch.setattr(sourcesolve, "find_wheels", lambda *_: lambda recipe, python: old[python])
    index["numpy"] = ["1.21.0"]
    made = solver(tmp_path)
    made.builder = Failing(tmp_path)
    solve = first_stubs("numpy", "1.21.0")
    with pytest.raises(WheelError) as caught:
        made.solve(solve, locked)
    problem, other = "numpy 1.21.0 has no wheel for Python 3.11.2", "python=3.9 (or 3.9 into .python-version)"
    assert caught.value.hint == f"{problem}: write numpy>=1.23.2 or {other}; read the log"


def test_newer_glibc(tmp_path: Path, index: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the build of a version fails that has a wheel for a newer glibc, the hint names glibc."""

    def wheels(recipe: Recipe, _: str) -> set[Version]:
        return {Version("1.0")} if glibc_minor(recipe) > 36 else set()

    monkeypatch.setattr(sourcesolve, "find_wheels", lambda *_: wheels)
    index["rusty"] = ["1.0"]
    made = solver(tmp_path)
    made.builder = Failing(tmp_path)
    with pytest.raises(WheelError) as caught:
        made.solve(first_stubs("rusty", "1.0"), locked)
    assert caught.value.hint.startswith(
        "rusty 1.0 has a wheel for a newer glibc than the target's 2.36: name"
    )


class Failing(Wheels):
    """Builds nothing."""

    def build(self, *_: object) -> BuiltWheel:
        raise WheelError("Broken toolchain", "read the log")


def first_stubs(name: str, version: str) -> Callable[[Sequence[str], Sequence[str]], Solved]:
    """Return a uv that finds no wheel, and then the stub of this version."""
    answers: list[Solved | None] = [None, [{"name": name, "version": version}]]

    def solve(*_: Sequence[str]) -> Solved:
        answer = answers.pop(0)
        if answer is None:
            raise no_wheels(name)
        return answer

    return solve
