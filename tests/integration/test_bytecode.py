"""Compiled modules in real images: the same bytes everywhere, and nothing is imported from source."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from builder.build.bytecode import compile as compile_module
from builder.build.bytecode.compile import compile_packages
from builder.build.bytecode.inputs import BytecodeRequest
from builder.build.engines.base import Clock
from builder.build.engines.prepare import prepare_inputs
from builder.build.run.select import runner_classes
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.deliver.project import Project
from builder.lock.inputs import Inputs
from tests.integration.conftest import Builder, keep_base, new_project, runner_environment

RECIPE = """\
base: debian:bookworm
environment: environments/own.yml
virtual_packages: {__glibc: "2.36"}
conda: {exclude_newer: 2026-11-01}
pip: {fallback: pip}
smoke: {none: it has no framework}
"""
ENVIRONMENT = """\
name: own
channels: [conda-forge, nodefaults]
dependencies: [python=3.11, pip, {pip: [pyyaml, rich, six==1.16.0]}]
"""
REQUIREMENTS = "rich\nsix==1.17.0\n"
#: Prints which Python this is, the six that it finds, and whether it sees PyYAML, which only the base has.
WHICH = """
import importlib.util, sys, six
print(sys.executable, sys.base_prefix, six.__version__, importlib.util.find_spec("yaml") is not None)
"""
#: Imports modules of the standard library, of a conda package and of a wheel.
IMPORTS = (
    "import asyncio, ctypes, email.message, json, logging.config, unittest, xml.dom.minidom, pip._internal, "
    "rich.console"
)
_FROM_SOURCE = re.compile(r"^# code object from '?([^'\n]+\.py)'?$", re.MULTILINE)
_FROM_BYTECODE = re.compile(r"^# code object from '?([^'\n]+\.pyc)'?$", re.MULTILINE)
#: Prints what metadata names and the image lacks, and modules that are not compiled.
MISSING = """
import glob, importlib.metadata, importlib.util, json, os, sys
for found in importlib.metadata.distributions():
    print(*(f for f in found.files or () if not f.locate().exists()))
for path in glob.glob(sys.prefix + "/conda-meta/*.json"):
    names = json.load(open(path))["files"]
    print(*(name for name in names if not os.path.lexists(f"{sys.prefix}/{name}")))
for folder, _, names in os.walk(sys.prefix + "/lib/python3.11"):
    if {"test", "tests"} & set(folder.split("/")):
        continue
    paths = [f"{folder}/{name}" for name in names if name.endswith(".py")]
    print(*(path for path in paths if not os.path.exists(importlib.util.cache_from_source(path))))
"""


@pytest.fixture(scope="module")
def own(module_folder: Path, base_cache: Path) -> Builder:
    """A project whose target ``own`` has Python, pip and wheels, built with compiled modules."""
    builder = Builder(new_project(module_folder / "project"), keep_base(base_cache, module_folder / "cache"))
    (builder.root / "recipes" / "own.yaml").write_text(RECIPE)
    (builder.root / "environments" / "own.yml").write_text(ENVIRONMENT)
    builder.run("build", "own")
    return builder


def extend(own: Builder, name: str, keys: str) -> None:
    """Adds a target like ``own``, with the same lock."""
    (own.root / "recipes" / f"{name}.yaml").write_text(f"extends: own\n{keys}")
    locks = own.root / "environments"
    shutil.copy(locks / "own.own.lock.yml", locks / f"own.{name}.lock.yml")


def loaded(builder: Builder, target: str, program: str = IMPORTS) -> tuple[list[str], list[str]]:
    """The modules that a program loads in the image: from source, and compiled."""
    done = builder.run("run", target, "--", "python", "-v", "-c", program)
    return _FROM_SOURCE.findall(done.stderr), _FROM_BYTECODE.findall(done.stderr)


def test_no_source(own: Builder) -> None:
    """No module of the environment is compiled when the image runs, and metadata lists all that there is."""
    source, compiled = loaded(own, "own")
    assert source == []
    assert len(compiled) > 100
    assert own.run("run", "own", "--", "python", "-c", MISSING).stdout.split() == []


def test_none(own: Builder) -> None:
    """With ``bytecode: none`` every module is; the layers of the packages are the same."""
    extend(own, "plain", "bytecode: none\n")
    without = own.json("build", "plain")["layers"]
    source, compiled = loaded(own, "plain")
    assert len(source) > 100 and compiled == []

    made = own.json("build", "own")["layers"]
    packages = [layer for layer in made if not layer["title"].startswith("bytecode of ")]
    assert len(made) > len(packages)
    # but for the topmost one, which holds lock and recipe
    assert [x["digest"] for x in packages[:-1]] == [x["digest"] for x in without[:-1]]


def test_sif(own: Builder) -> None:
    """A SIF has the same compiled modules and metadata."""
    extend(own, "layered", "format: sif\nsif: {layout: layered}\n")
    own.run("build", "layered")
    source, compiled = loaded(own, "layered")
    assert source == [] and len(compiled) > 100
    assert own.run("run", "layered", "--", "python", "-c", MISSING).stdout.split() == []


@pytest.mark.parametrize("python", ["base", "base-with-packages"])
def test_base_python(own: Builder, python: str) -> None:
    """The packages above the base's Python are compiled by it, and win over those of the base.

    The target sees the base's packages if the recipe says so.
    """
    (own.root / "environments" / "requirements.txt").write_text(REQUIREMENTS)
    (own.root / "recipes" / f"{python}.yaml").write_text(
        f"base: oci:dist:own\nenvironment: environments/requirements.txt\npython: {python}\n"
        "pip: {fallback: pip}\nsmoke: {none: it has no framework}\n"
    )
    own.run("lock", python)
    built = own.json("build", python)
    assert any(layer["title"].startswith("bytecode of pip") for layer in built["layers"])
    source, compiled = loaded(own, python, IMPORTS.replace("pip._internal, ", ""))
    assert source == [] and len(compiled) > 100
    seen = own.run("run", python, "--", "python", "-c", WHICH).stdout.split()
    assert seen == ["/opt/env/bin/python", "/opt/conda", "1.17.0", str(python == "base-with-packages")]
    lock = (own.root / "environments" / f"requirements.{python}.lock.yml").read_text()
    assert "url: builder://base/opt/conda/bin/python3.11/linux-64/python-3.11.2-" in lock


@pytest.mark.parametrize("name", ["docker", "podman", "apptainer"])
def test_runners(
    own: Builder, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where user namespaces are not allowed, an engine compiles, to the same bytes."""
    for variable, value in runner_environment(name, request).items():
        monkeypatch.setenv(variable, value)
    settings = Settings.from_environment(cache=own.cache)
    store = Store(settings.cache)
    project = Project(own.root, Workspace(settings, store))
    recipe = project.recipe("own")
    base, packages = prepare_inputs(project.request(Inputs.read(recipe)), Clock())
    chosen = tuple(p for p in packages.locked if p.name in ("rich", "pip"))
    compile_request = BytecodeRequest(packages, base, recipe, Workspace(settings, store), 90, ())
    expected = compile_packages(compile_request, chosen)
    assert len(expected) == 2 and all(expected.values())

    records = sorted(store.folders.bytecode.glob("*.json"))
    saved = {path: path.read_bytes() for path in records if not path.name.startswith("python-")}
    [runner] = [runner(Workspace(settings, store)) for runner in runner_classes() if runner.name == name]
    used = []
    monkeypatch.setattr(compile_module, "find_runner", lambda *args, **more: used.append(1) or runner)
    try:
        for path in saved:
            path.unlink()
        assert compile_packages(compile_request, chosen) == expected
    finally:
        for path, data in saved.items():
            path.write_bytes(data)
    assert used == [1]
