"""Build steps in a project: when they run, where their layers are, and what says that they ran."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from builder.build.steps import run
from builder.build.steps.run import StepRun
from builder.core.model import Image, Layer
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.entry import Entry, Inline
from builder.formats.oci.layout import read_layout
from tests.support.cli import Cli
from tests.support.project import TinyProject, edit


@dataclass
class Runs:
    """Stands for the runner: what ran, and over which layers."""

    steps: list[StepRun] = field(default_factory=list)
    below: list[tuple[str, ...]] = field(default_factory=list)

    def run_step(self, image: Image, step: StepRun, work: Workspace, *_: object, **__: object) -> Layer:
        self.steps.append(step)
        self.below.append(tuple(layer.title for layer in image.layers))
        random = str(len(self.steps)) if "random" in step.commands else "same"
        data = f"{step.commands} {random}".encode()
        entry = Entry(f"opt/{step.name}", "file", 0o644, len(data), content=Inline(data))
        return make_layer([entry], f"step: {step.name}", work)

    @property
    def names(self) -> list[str]:
        names = [step.name for step in self.steps]
        self.steps.clear()
        return names


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(run, "run_step", made.run_step)
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


def test_check_reproducible(do: Cli, tiny: TinyProject, runs: Runs) -> None:
    """Each step runs a second time, cached or not; a difference ends with 8, and the image is there."""
    edit(tiny.recipe, steps=[{"run": "same"}])
    done = do("build", "tiny", "--check-reproducible")
    assert done.code == 0 and "1 steps ran twice, with equal results" in done.err
    assert runs.names == ["same", "same"]
    edit(tiny.recipe, steps=[{"run": "same"}, {"run": "random"}])
    done = do("build", "tiny", "--check-reproducible")
    assert done.code == 8 and "random: /opt/random: content" in done.err
    assert "1 files of target tiny differ between two runs of its steps" in done.err
    assert "step: random" in titles(tiny)
