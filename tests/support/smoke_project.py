"""A project whose build and smoke test are fake, for the commands around the smoke test."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.cli import cli, run
from builder.core.model import Lock, LockedPackage
from builder.deliver.project import Project
from builder.deliver.smoke.options import SmokeOptions
from builder.deliver.smoke.reports import store_report
from builder.deliver.smoke.run import SmokeReport, complete
from tests.support.documents import checked
from tests.support.reports import a100

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
#: The lock file in the image.
IMAGE_LOCK = "sha256:" + "c" * 64
RECIPE = """\
name: gpu
base: debian:bookworm
environment: environments/x.yml
gpu: {vendor: nvidia, architectures: [sm_80]}
registry: {host: registry.example, repository: team/gpu, tags: [latest, "%y.%m"]}
"""
SLURM = """\
site:
  title: Tests
  runtime: {kind: apptainer}
  node: {gpus: 4, cores: 32}
  slurm: {account: optional}
"""
LOCK = Lock(
    (
        LockedPackage(
            "torch", "2.13.0", "pip", "linux-64", "https://p.example/torch-2.13.0-py3-none-any.whl", "1" * 64
        ),
    ),
    ("linux-64",),
)


def write_recipe(root: Path, text: str = RECIPE) -> Path:
    """Writes the recipe ``gpu`` of a project; returns the project's folder."""
    (root / "recipes").mkdir(exist_ok=True)
    (root / "recipes" / "gpu.yaml").write_text(text)
    return root


class SmokeProject:
    """A project with a fake build and a fake smoke test.

    ``answers`` are the reports of the next smoke tests; the last one is used again. ``asked`` holds the
    options of each test.
    """

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.root, self.capsys = root, capsys
        self.asked: list[SmokeOptions] = []
        write_recipe(root, RECIPE + SLURM)
        self.answers: list[dict[str, Any]] = []
        self.digest = NEW
        self.sif: object = None
        """The SIF of the build, which is then in ``dist``."""

        def build(project: Project, recipe: Any, options: Any = None) -> Any:
            return SimpleNamespace(
                recipe=recipe,
                digest=self.digest,
                lock=LOCK,
                sif=self.sif,
                image=None,
                artifact=SimpleNamespace(digest=self.digest),
                image_lock=IMAGE_LOCK,
                requested=frozenset(),
            )

        run_smoke = Project.smoke

        def smoke(project: Project, result: Any, options: SmokeOptions, job: Any = None) -> SmokeReport:
            if job is not None or result.recipe.smoke.none:
                return run_smoke(project, result, options, job)
            self.asked.append(options)
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            whole = complete(answer, result.recipe, result.digest, "docker", options, result.lock)
            path = store_report(whole, project.reports / result.recipe.name)
            return SmokeReport(whole["verdict"], whole, "docker", result.digest, 41.5, path)

        monkeypatch.setattr(Project, "build", build)
        monkeypatch.setattr(Project, "place", lambda project, result: root / "dist")
        monkeypatch.setattr(Project, "smoke", smoke)

    def __call__(self, *args: str, code: int = 0) -> tuple[str, str]:
        """Runs a command that ends with this exit code; returns its output and messages."""
        self.capsys.readouterr()
        got = run(cli, ["--project", str(self.root), "--cache", str(self.root / "cache"), *args])
        out, err = self.capsys.readouterr()
        assert got == code, (got, out, err)
        assert "Traceback" not in out + err
        return out, err

    def json(self, *args: str, code: int = 0) -> Any:
        return checked(json.loads(self(*args, "--json", code=code)[0]))

    def before(
        self,
        scale: dict[str, float] | None = None,
        *,
        digest: str = OLD,
        tag: str = "26.10",
        runs: int = 1,
        **more: Any,
    ) -> None:
        """Stores earlier reports."""
        for n in range(runs):
            made = a100(scale, seed=n, digest=digest, started=f"2026-10-0{n + 1}T00:00:00Z", tag=tag, **more)
            store_report(made, self.root / "reports" / "gpu")
