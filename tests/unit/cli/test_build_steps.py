"""Build steps in a project: when they run, where their layers are, and what says that they ran."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builder.engines.base import BuildResult
from builder.layers.build import make_layer
from builder.layers.entry import Entry, Inline
from builder.model import Image, Layer, LockedBase
from builder.oci.layout import read_layout
from builder.project import Project
from builder.publishing.attest import provenance
from builder.settings import Settings
from builder.steps import cache, run
from builder.steps.job import StepRun
from builder.store.blobs import Store
from tests.support.channel import index_channel, make_package
from tests.support.cli import Cli
from tests.support.project import TinyProject, edit


@dataclass
class Runs:
    """Stands for the runner: what ran, and over which layers."""

    steps: list[StepRun] = field(default_factory=list)
    below: list[tuple[str, ...]] = field(default_factory=list)

    def run_step(
        self, image: Image, step: StepRun, settings: Settings, store: Store, *_: object, **__: object
    ) -> Layer:
        self.steps.append(step)
        self.below.append(tuple(layer.title for layer in image.layers))
        random = str(len(self.steps)) if "random" in step.commands else "same"
        data = f"{step.commands} {random}".encode()
        entry = Entry(f"opt/{step.name}", "file", 0o644, len(data), content=Inline(data))
        return make_layer([entry], f"step: {step.name}", settings, store)

    @property
    def names(self) -> list[str]:
        names = [step.name for step in self.steps]
        self.steps.clear()
        return names


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    for module in (cache, run):
        monkeypatch.setattr(module, "run_step", made.run_step)
    return made


def titles(project: TinyProject) -> Sequence[str]:
    """The layers of the built image above its base, by the image's history."""
    config = json.loads(read_layout(project.root / "dist", "tiny").config)
    return [item["created_by"].removeprefix("builder: ") for item in config["history"]][1:]


def test_layers(do: Cli, tiny: TinyProject, runs: Runs) -> None:
    """Steps are above the packages; from the first with files on, they are above the files. A file that
    changes runs only these again; a command, the steps from there on.
    """
    (tiny.root / "file").write_text("1")
    steps = [
        {"run": "one", "env": {"A": "b"}},
        {"run": ["two", "more"], "files": True, "network": True},
        {"run": "three"},
    ]
    edit(tiny.recipe, files=[{"source": "file", "target": "/app/file"}], steps=steps)
    first = do("build", "tiny", "--json").json
    assert runs.names == ["one", "two", "three"]
    found = titles(tiny)
    files = "builder: entry point, smoke test, files"
    assert found[0] == "environment prefix"
    assert found[-4:] == ["step: one", files, "step: two", "step: three"]
    assert any(seconds.startswith("step one") for seconds in first["seconds"])

    assert do("build", "tiny", "--json").json["digest"] == first["digest"]
    assert runs.names == []
    (tiny.root / "file").write_text("2")
    do("build", "tiny")
    assert runs.names == ["two", "three"]
    steps[2]["run"] = "four"
    edit(tiny.recipe, steps=steps)
    do("build", "tiny")
    assert runs.names == ["four"]


def test_it_is_said(do: Cli, tiny: TinyProject, runs: Runs) -> None:
    """Plan, annotation, label and provenance."""
    edit(tiny.recipe, steps=[{"run": ["make", "make install"], "network": True, "title": "compile"}])
    planned = do("plan", "tiny")
    assert "step: compile (with network)" in planned.out
    assert do("plan", "tiny", "--json").json["steps"] == [
        {"title": "compile", "commands": ["make", "make install"], "network": True}
    ]
    do("build", "tiny")
    image = read_layout(tiny.root / "dist", "tiny")
    assert json.loads(image.manifest)["annotations"]["org.builder.steps"] == "1"
    assert json.loads(image.config)["config"]["Labels"]["org.builder.steps"] == "1"

    settings = Settings.from_environment({**tiny.variables()})
    project = Project(tiny.root, settings, Store(settings.cache))
    recipe = project.recipe("tiny")
    lock, _ = project.ensure_lock(recipe)
    result = BuildResult(recipe, lock, LockedBase("oci:base", "sha256:" + "0" * 64), image)
    statement = json.loads(provenance(result, image.digest, 0))
    parameters = statement["predicate"]["buildDefinition"]["internalParameters"]
    assert parameters["ran"] == [{"commands": ["make", "make install"], "env": {}, "network": True}]


def test_check_reproducible(do: Cli, tiny: TinyProject, runs: Runs) -> None:
    """Each step runs a second time, cached or not; a difference ends with 8, and the image is there."""
    edit(tiny.recipe, steps=[{"run": "same"}])
    done = do("build", "tiny", "--check-reproducible")
    assert done.code == 0 and "1 steps ran twice, with equal results" in done.err
    assert runs.names == ["same", "same"]
    edit(tiny.recipe, steps=[{"run": "same"}, {"run": "random"}])
    done = do("build", "tiny", "--check-reproducible")
    assert done.code == 8 and "/opt/random  content" in " ".join(done.out.split("\n"))
    assert "1 files of target tiny differ between two runs of its steps" in done.err
    assert "step: random" in titles(tiny)


def test_other_engines(do: Cli, tiny: TinyProject, runs: Runs) -> None:
    """They refuse steps by name, before anything is downloaded."""
    edit(tiny.recipe, steps=[{"run": "make"}])
    done = do("build", "tiny", "--engine", "docker")
    assert done.code == 2 and "the engine docker runs no build steps" in done.err
    assert "--engine layered" in done.err


def test_foreign_platform(do: Cli, tiny: TinyProject, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    do("lock", "tiny")
    edit(tiny.recipe, steps=[{"run": "make"}])
    monkeypatch.setattr("builder.qemu.host_architecture", lambda: "arm64")
    monkeypatch.setattr("builder.qemu.is_registered", lambda architecture: False)
    monkeypatch.setattr("builder.qemu._static_qemu", lambda architecture: "")
    done = do("build", "tiny")
    assert done.code == 10 and ": steps: the image is for amd64, this host is arm64" in done.err
    assert runs.names == []


def test_post_link(do: Cli, tiny: TinyProject, runs: Runs, tmp_path: Path) -> None:
    """A package's script is a step after the packages, where the recipe says so."""
    script = {"bin/.hooked-post-link.sh": "#!/bin/sh\n"}
    make_package(tmp_path / "post", "hooked", "1.0", files=script)
    index_channel(tmp_path / "post")
    edit(tiny.environment, channels=[(tmp_path / "post").as_uri()], dependencies=["hooked"])
    edit(tiny.recipe, conda={"post_link": {"hooked": "run"}}, steps=[{"run": "make"}])
    assert do("build", "tiny").code == 0
    assert runs.names == ["post-link script of hooked", "make"]
    assert titles(tiny)[-3:-1] == ["step: post-link script of hooked", "step: make"]


def test_messages(do: Cli, tiny: TinyProject) -> None:
    """What people write first."""
    text = tiny.recipe.read_text()
    for line, message in (
        ("run: make", "write steps: [{run: COMMAND}]"),
        ("steps: [make install]", 'write steps: [{run: ["make install"]}]'),
        ("steps: [{run: ''}]", "steps.0.run.0: is empty: write a shell command"),
        ("steps: [{run: a, env: {API_KEY: x}}]", "API_KEY looks like a credential"),
        ("steps: [{command: make}]", "unknown key"),
    ):
        tiny.recipe.write_text(f"{text}{line}\n")
        done = do("build", "tiny")
        assert done.code == 3 and message in done.err, done.err
