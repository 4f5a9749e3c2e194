"""When a step runs again; its output, and its command line."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.run.process import Completed
from builder.build.run.task import TaskLog
from builder.build.steps import run as run_module
from builder.build.steps.run import StepRun, cached_step, check_step
from builder.core.errors import FetchError, ImageError
from builder.core.model import Image, Layer
from builder.core.progress import QUIET
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.entry import Entry
from builder.formats.oci.image import image_of


class Runs:
    """Stands for the runner: a layer, and how many times it was made."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = Settings(tmp_path / "cache", tmp_path / "tmp", 1)
        self.store = Store(self.settings.cache)
        self.count = 0
        below = make_layer([Entry("opt", "dir", 0o755)], "below", Workspace(self.settings, self.store))
        self.image = image_of([below], {"PATH": "/bin"})
        self.step = StepRun(("make",), env={"A": "1"})
        monkeypatch.setattr(run_module, "run_step", self._run)

    def _run(self, image: Image, step: StepRun, *_: object, **__: object) -> Layer:
        self.count += 1
        name = f"opt/{self.count}"
        return make_layer([Entry(name, "dir", 0o755)], step.name, Workspace(self.settings, self.store))

    def __call__(self, image: Image | None = None, **changed: object) -> Layer:
        step = replace(self.step, **changed)  # type: ignore[arg-type]
        return cached_step(image or self.image, step, Workspace(self.settings, self.store))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, monkeypatch)


def test_same_inputs(runs: Runs) -> None:
    """The step runs once; where it is in the recipe does not matter."""
    first = runs()
    again = runs(where="one.yaml:9: steps[0]")
    assert runs.count == 1 and again == first


def test_base_that_lies(runs: Runs) -> None:
    """A layer with the diff_id of another one, whose blob is different."""
    runs()
    (below,) = runs.image.layers
    other = make_layer([Entry("evil", "dir", 0o755)], "other", Workspace(runs.settings, runs.store))
    runs(image_of([replace(other, diff_id=below.diff_id)], {"PATH": "/bin"}))
    assert runs.count == 2


def test_other_inputs(runs: Runs) -> None:
    """Commands, variables, network, layers below, and the image's variables."""
    runs()
    runs(commands=("make", "make install"))
    runs(env={"A": "2"})
    runs(network=True)
    runs(image_of([*runs.image.layers, *runs.image.layers], {"PATH": "/bin"}))
    runs(image_of(runs.image.layers, {"PATH": "/bin:/sbin"}))
    assert runs.count == 6


def test_offline(runs: Runs) -> None:
    """A step with network is not tried offline, unless the cache has its layer."""
    runs.settings = replace(runs.settings, offline=True)
    with pytest.raises(FetchError, match="'make' needs the network, and builder is offline"):
        runs(network=True)
    runs.settings = replace(runs.settings, offline=False)
    runs(network=True)
    runs.settings = replace(runs.settings, offline=True)
    runs(network=True)
    assert runs.count == 1


def test_failure(settings: Settings) -> None:
    """The message has place, command, exit code and the last 30 lines; the file has all, for this user."""
    step = StepRun(("make", "make test"), title="tests", where="recipes/a.yaml:9: steps[0]")
    with TaskLog(settings, "step tests", QUIET, "step") as output:
        for line in ("+ make", "ok", "+ make test", *(f"line {n}" for n in range(40))):
            output.add(line)
    check_step(Completed(0, "", ""), step, output)
    with pytest.raises(ImageError) as caught:
        check_step(Completed(2, "", ""), step, output)
    assert caught.value.message.startswith(
        "recipes/a.yaml:9: steps[0]: the step 'tests' failed with exit code 2 at 'make test':\n    line 10\n"
    )
    assert caught.value.message.endswith("line 39")
    assert caught.value.hint == f"all lines of the step: {output.path}"
    assert len(output.path.read_text().splitlines()) == 43
    assert stat.S_IMODE(output.path.stat().st_mode) == 0o600


def test_credentials() -> None:
    """They are in no title."""
    step = StepRun(("git clone https://me:secret@host.example/x",))
    assert step.name == "git clone https://host.example/x"
