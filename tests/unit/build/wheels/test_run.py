"""One build in a container, by a runner that plays the container."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.build.run.base import RunOptions
from builder.build.run.process import Completed
from builder.build.sources import SourceTree
from builder.build.wheels import driver
from builder.build.wheels.backend import Backend
from builder.build.wheels.run import WheelJob, built
from builder.core.errors import WheelError
from builder.core.model import LockedSource
from builder.core.settings import Settings
from builder.core.workspace import Workspace
from builder.lock.config.recipe import Recipe, load_recipe
from builder.lock.config.steps import WheelBuild
from builder.lock.spec import SourceSpec
from tests.support.wheels import fetched, make_wheel

IMAGE: Any = None


class Container:
    """Runs a function in place of a container; it receives the folder that is mounted at /build."""

    def __init__(self, work: Callable[[Path], int], log: str = "") -> None:
        self.work, self.log = work, log

    def run(self, image: object, command: Sequence[str], options: RunOptions) -> Completed:
        self.options, self.command = options, command
        folder = next(mount.source for mount in options.mounts if mount.target == "/build")
        assert options.on_line is not None
        for line in self.log.splitlines():
            options.on_line(line)
        return Completed(self.work(folder), "", self.log)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"HOME": str(tmp_path)}, cache=tmp_path / "cache")


@pytest.fixture
def job(tmp_path: Path) -> WheelJob:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "setup.py").write_text("x")
    wheel = fetched(make_wheel(tmp_path, "ninja"))
    options = WheelBuild(env={"OPS": "0"}, config_settings={"a": "b"})
    backend = Backend("own", (), (".",))
    root, spec = tmp_path / "tree", SourceSpec("local", "demo", ".", subdirectory="sub")
    tree = SourceTree(root / "sub", LockedSource("local", "."), root)
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml"}
    recipe = Recipe.model_validate({**values, "source": tmp_path / "recipes" / "t.yaml"})
    parts = recipe, tree, backend, ["ninja"], options, [wheel]
    return WheelJob("demo", "demo", spec, *parts, Path("/usr/bin/uv"))


def test_built(job: WheelJob, settings: Settings) -> None:
    def work(folder: Path) -> int:
        plan = json.loads((folder / "plan.json").read_text())
        assert plan["wheels"] == ["ninja-1.0-py3-none-any.whl"] and plan["source"] == "sub"
        assert plan["config_settings"] == {"a": "b"} and plan["backend_path"] == ["."]
        assert (folder / "source" / "sub" / "setup.py").read_text() == "x"
        assert (folder / "wheels" / "ninja-1.0-py3-none-any.whl").is_file()
        (folder / "out" / "w.whl").write_text("wheel")
        return 0

    container = Container(work)
    with built(job, IMAGE, container, Workspace.of(settings)) as out:
        assert [path.name for path in out.iterdir()] == ["w.whl"]
    assert not out.exists()
    env = container.options.env
    assert env["OPS"] == "0" and env["PYTHONHASHSEED"] == "0" and env["LC_ALL"] == "C.UTF-8"
    assert env["SOURCE_DATE_EPOCH"] == "315532800" and container.options.network == "none"
    assert list(container.command) == ["/opt/conda/bin/python", "-I", "/build/driver.py"]


@pytest.mark.parametrize(
    "text", ["{", "{}", "[1]", "", '["--index-url=http://evil.example"]', '["-r /etc/x"]']
)
def test_damaged_requirements(job: WheelJob, settings: Settings, text: str) -> None:
    """What comes from the container may be anything."""

    def work(folder: Path) -> int:
        (folder / "requires.json").write_text(text)
        return driver.NEEDS_MORE

    with (
        pytest.raises(WheelError, match="no list of texts"),
        built(job, IMAGE, Container(work), Workspace.of(settings)),
    ):
        pass


def test_files_that_are_none(job: WheelJob, settings: Settings, tmp_path: Path) -> None:
    """A pipe does not stop builder, and a symlink leads to no file of the host."""
    host = tmp_path / "host"
    host.mkdir()
    (host / "names.json").write_text('["hidden"]')

    def pipes(folder: Path) -> int:
        os.mkfifo(folder / "requires.json")
        return driver.NEEDS_MORE

    def links(folder: Path) -> int:
        (folder / "requires.json").symlink_to(host / "names.json")
        return driver.NEEDS_MORE

    def replaced(folder: Path) -> int:
        (folder / "out").rmdir()
        (folder / "out").symlink_to(host)
        return 0

    for work, message in ((pipes, "no list"), (links, "no list"), (replaced, "removed the folder")):
        with (
            pytest.raises(WheelError, match=message),
            built(job, IMAGE, Container(work), Workspace.of(settings)),
        ):
            pass
    assert host.is_dir()


def failure(job: WheelJob, settings: Settings, log: str, code: int = 1) -> WheelError:
    container = Container(lambda folder: code, log)
    with pytest.raises(WheelError) as e, built(job, IMAGE, container, Workspace.of(settings)):
        pass
    return e.value


def test_failed(job: WheelJob, settings: Settings) -> None:
    """The message has the end of the log, and names the file with all of it."""
    error = failure(
        job, settings, "".join(f"line {i}\n" for i in range(100)) + "https://me:secret@host/x \x1b]0;\x07\n"
    )
    assert "building the wheel of demo failed (exit code 1)\n    line 71\n" in error.message
    [kept] = (settings.cache / "logs").glob("*-wheel.log")
    assert f"the whole log: {kept}" in error.message and kept.read_text().startswith("line 0\n")
    assert "\x1b" not in error.message and "secret" not in error.message and "secret" not in kept.read_text()


BUILD = "pip: {build: {demo: "


@pytest.mark.parametrize(
    ("log", "hint"),
    [
        ("[Errno -3] Temporary failure in name resolution", f"or allow it: {BUILD}{{network: true}}"),
        ("x.c:1: fatal error: odd.h: No such file or directory", "odd.h is missing: name the Debian"),
        ('../meson.build:1: ERROR: Dependency "cairo" not found, tried pkgconfig', '"cairo" is missing'),
        (
            'Exception: You tried to install "pytorch". The package named for PyTorch is "torch"',
            "write torch, pip's name of pytorch",
        ),
        ("ModuleNotFoundError: No module named 'torch.utils'", f"{BUILD}{{needs: [torch]}}"),
        (
            "ModuleNotFoundError: No module named 'distutils.core'",
            "its build is for an older Python, which has distutils: use a newer version",
        ),
        (
            "ModuleNotFoundError: No module named 'pkg_resources'",
            f'which setuptools 82 no longer has: {BUILD}{{needs: ["setuptools<82"]}}}}}} (in ',
        ),
        (
            "Segmentation fault",
            f"read the log; settings of the build: {BUILD}{{env: {{NAME: VALUE}}, needs: [NAME]}}",
        ),
    ],
)
def test_hints(job: WheelJob, settings: Settings, log: str, hint: str) -> None:
    assert hint in failure(job, settings, log).hint


def test_no_traceback(job: WheelJob, settings: Settings) -> None:
    """A module that is missing needs no traceback: the log has it."""
    log = "Traceback (most recent call last):\n  File 'x'\nModuleNotFoundError: No module named 'distutils'"
    message = failure(job, settings, log).message
    assert "Traceback" not in message and "    ModuleNotFoundError: No module named 'distutils'\n" in message


CC = ["gcc", "g++", "libc6-dev"]


def test_headers_of_debian(job: WheelJob, settings: Settings, tmp_path: Path) -> None:
    """With Debian's Python the first hint has its headers too, and names the recipe."""
    job = replace(job, recipe=job.recipe.model_copy(update={"base_packages": ("python3",)}))
    hint = failure(job, settings, "error: command 'gcc' failed: No such file or directory").hint
    assert typed_packages(hint, tmp_path) == (*CC, "python3-dev")
    assert hint.endswith(f" (in {tmp_path}/recipes/t.yaml)")
    assert "python3-dev" not in failure(job, settings, "make: command not found").hint


@pytest.mark.parametrize(
    ("log", "packages"),
    [
        ("error: [Errno 2] No such file or directory: 'x86_64-linux-gnu-gcc'", CC),
        ("error: [Errno 2] No such file or directory: 'cpp'", CC),
        ("error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory", CC),
        ("ERROR: Unknown compiler(s): [['cc'], ['gcc'], ['clang']]", CC),
        ("Exception: you need a C compiler to build uWSGI", CC),
        (
            'build program corresponding to "Unix Makefiles".  CMAKE_MAKE_PROGRAM is not set.\n'
            "CMake Error: CMAKE_C_COMPILER not set, after EnableLanguage",
            [*CC, "make"],
        ),
        (
            "error: Cannot compile MPI programs. Check your configuration!!!",
            ["gcc", "libc6-dev", "libmpich-dev"],
        ),
        (
            "/bin/sh: 1: pkg-config: not found\nTrying pkg-config --exists mysqlclient",
            ["default-libmysqlclient-dev", "gcc", "libc6-dev", "pkg-config"],
        ),
        (
            "Did not find CMake 'cmake'\nfailed: Pkg-config for machine host machine not found. Giving up.",
            ["pkg-config"],
        ),
        ("Error: pg_config executable not found.", ["libpq-dev", "gcc", "libc6-dev"]),
        ("error: command 'swig' failed: No such file or directory", ["swig"]),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'git'", ["git"]),
        ("CMake Error: Could not find git executable", ["git"]),
        ("error: could not find git for clone of libcint", ["git"]),
        ("-- Could NOT find BLAS (missing: BLAS_LIBRARIES)", ["libopenblas-dev"]),
        ("make: command not found", ["make"]),
        ("[Errno -3] Temporary failure in name resolution\nRust not found, installing into", ["cargo"]),
        ("error: can't find Rust compiler", ["cargo"]),
        ("meson.build:3:0: ERROR: Unknown compiler(s): [['gfortran'], ['flang']]", ["gfortran"]),
        ("x.h:4: fatal error: Python.h: No such file or directory", ["python3-dev"]),
    ],
)
def test_typed_hints(
    job: WheelJob, settings: Settings, tmp_path: Path, log: str, packages: list[str]
) -> None:
    """The hint is a line of a recipe. With its packages the same log results in another hint."""
    job = replace(job, settings=WheelBuild(base_packages=("xz-utils",)))
    typed = typed_packages(failure(job, settings, log).hint, tmp_path)
    assert typed == ("xz-utils", *packages)
    job = replace(job, settings=WheelBuild(base_packages=typed))
    assert "lacks OS packages" not in failure(job, settings, log).hint


def typed_packages(hint: str, root: Path) -> tuple[str, ...]:
    """The packages of the build in a recipe to which the line of a hint was added."""
    (root / "recipes").mkdir(exist_ok=True)
    line = hint.partition(": ")[2].partition(" (in ")[0]
    (root / "recipes/t.yaml").write_text(f"base: debian:bookworm\nenvironment: e.yml\n{line}\n")
    return load_recipe("t", root).pip.build["demo"].base_packages


def test_unknown_header(job: WheelJob, settings: Settings) -> None:
    """The line keeps the packages that the recipe names already."""
    job = replace(job, settings=WheelBuild(base_packages=("gcc", "g++", "libc6-dev")))
    hint = failure(job, settings, "x.c:1: fatal error: odd.h: No such file or directory").hint
    assert f"{BUILD}{{base_packages: [gcc, g++, libc6-dev, NAME-dev]}}" in hint
