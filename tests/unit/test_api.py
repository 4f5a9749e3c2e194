"""The public Python API: its names, its types, its help, and the program that shows it."""

from __future__ import annotations

import dataclasses
import os
import pydoc
import re
import shutil
import subprocess
import sys
import textwrap
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import builder
from builder.core.errors import UsageError
from tests.support.channel import serve
from tests.support.programs import run_program
from tests.support.project import tiny_channel, tiny_project

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text()
DATACLASSES = [
    found
    for name in builder.__all__
    if isinstance(found := getattr(builder, name), type) and dataclasses.is_dataclass(found)
]
#: Fields with a name that says nothing about the unit, and a number as value.
NUMBER = re.compile(r"\b(int|float)\b")
UNIT = re.compile(r"\b(seconds|bytes|number|time stamp)\b")
#: Ten lines of a user who checks types.
USER = """\
from pathlib import Path

from builder import Project, Published, PublishOptions, SmokeOptions, publish


def release(target: str, to: str = "oci:published") -> Published:
    project = Project.find(Path("x"))
    result = project.build(project.recipe(target))
    options = PublishOptions(to=to, smoke=SmokeOptions(timeout_s=60.0))
    return publish(project, result, options)


print(sum(Project.find().build(Project.find().recipe("cpu")).timings.values()), release("cpu").tags)
"""
#: A wrong line of that user, and the code of mypy's error.
MISTAKES = {
    "PublishOptions(too='oci:x')": "call-arg",
    "Project.find('x')": "arg-type",
    "release('cpu').digst": "attr-defined",
    "from builder import Projct": "attr-defined",
}


def test_names() -> None:
    """Every public name can be imported, and the page explains it; nothing else is public."""
    assert sorted(builder.__all__) == sorted([*builder._MODULES, "__version__"]) == sorted(dir(builder))
    for name in builder.__all__:
        assert getattr(builder, name) is not None
        assert name == "__version__" or f"`{name}`" in PAGE


def test_import_is_cheap() -> None:
    """``import builder`` imports no stage."""
    code = "import sys, builder; print([m for m in sys.modules if m.startswith('builder')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "['builder.core', 'builder.core.version', 'builder']"


def documented(kind: type) -> dict[str, str]:
    """The fields that ``help(kind)`` documents, and their texts."""
    text = pydoc.plain(pydoc.render_doc(kind))
    section = re.search(r"(?m)^ \|  (?:Attributes|Args):\n((?: \|      .*\n)+)", text)
    assert section, f"help({kind.__name__}) has no section of its fields"
    rows = re.findall(r"(?m)^ \|      (\w+): (.+(?:\n \|          .*)*)", section[1])
    return {name: " ".join(row.replace(" | ", " ").split()) for name, row in rows}


@pytest.mark.parametrize("kind", DATACLASSES, ids=lambda kind: kind.__name__)
def test_help_of_fields(kind: type) -> None:
    """help() explains each field of a public dataclass, with the unit of a number and what None means."""
    texts = documented(kind)
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    assert list(texts) == list(fields)
    for name, type_ in fields.items():
        text = texts[name].lower()
        assert not NUMBER.search(type_) or UNIT.search(text), f"{name} has no unit: {text}"
        assert "None" not in type_ or "none" in text, f"{name} does not say what None means: {text}"


def test_help_of_recipes() -> None:
    """The keys of a recipe have their texts in its schema, which help() names."""
    assert "builder help schema recipe" in pydoc.plain(pydoc.render_doc(builder.Recipe))


def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without arguments: the project of the current folder, with the settings of the environment."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "deep").mkdir()
    monkeypatch.setenv("BUILDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "deep")
    project = builder.Project.find()
    assert (project.root, project.work.settings.cache) == (tmp_path, tmp_path / "cache")
    settings = builder.Settings(tmp_path / "other", tmp_path, jobs=1)
    assert builder.Project.find(tmp_path, settings).work.settings is settings
    monkeypatch.setenv("BUILDER_JOBS", "none")
    with pytest.raises(UsageError, match="BUILDER_JOBS"):
        builder.Project.find()


def test_program(tmp_path: Path) -> None:
    """The program of the docstring, which is that of the page, runs on a small project.

    It runs without the smoke test: the image has no torch.
    """
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert textwrap.indent(program, "    ") in (builder.__doc__ or "")
    assert len([line for line in program.splitlines() if line]) <= 10
    program = program.replace('"cpu"', '"tiny"')
    without_smoke_test = 'PublishOptions(to="oci:published", move_tags=False)'
    program = program.replace('PublishOptions(to="oci:published")', without_smoke_test)
    with serve(tiny_channel(tmp_path / "channel")) as server:
        project = tiny_project(tmp_path, server.url)
        environment = {**project.variables(), "PYTHONPATH": str(ROOT)}
        done = run_program([sys.executable, "-c", program], environment, cwd=project.root)
    first, last = done.stdout.splitlines()
    assert first == str(project.root / "dist")
    assert last.startswith("sha256:") and last.endswith(" ()")
    assert (project.root / "published" / "index.json").exists() and os.listdir(project.root / "dist")


# types ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Python of an environment that has builder's wheel, and what this one has."""
    folder = tmp_path_factory.mktemp("typed")
    build = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    name = run_program([sys.executable, "-c", build, str(folder)], os.environ, cwd=ROOT).stdout.split()[-1]
    venv.create(folder / "venv", with_pip=False)
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    with zipfile.ZipFile(folder / name) as wheel:
        wheel.extractall(packages)
    here = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(here))
    yield folder / "venv" / "bin" / "python"
    shutil.rmtree(folder)


def mypy(python: Path, program: str) -> list[str]:
    """The errors of a program as a user of the wheel sees them."""
    folder = python.parents[2]
    (folder / "user.py").write_text(program)
    arguments = ["--strict", "--no-error-summary", "--cache-dir", "cache", "--python-executable", str(python)]
    command = [sys.executable, "-m", "mypy", *arguments, "user.py"]
    done = run_program(command, os.environ, cwd=folder, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_wheel_is_typed(installed: Path) -> None:
    """The wheel has the mark of typed packages (PEP 561) and the stub, and no caches."""
    (packages,) = installed.parents[1].glob("lib/python*/site-packages")
    names = {str(path.relative_to(packages)) for path in packages.rglob("*") if path.is_file()}
    assert {"builder/py.typed", "builder/__init__.pyi", "builder/__init__.py"} <= names
    assert not [name for name in names if name.endswith(".pyc")]


def test_types_of_a_user(installed: Path) -> None:
    """mypy --strict accepts a user's program, and finds a wrong call in each of some others."""
    assert len([line for line in USER.splitlines() if line]) <= 10
    assert mypy(installed, USER) == []
    found = mypy(installed, USER + "".join(f"{mistake}\n" for mistake in MISTAKES))
    first = USER.count("\n") + 1
    for line, code in enumerate(MISTAKES.values(), first):
        errors = [error for error in found if f"user.py:{line}: error:" in error]
        assert [error for error in errors if f"[{code}]" in error], found
