"""``builder build --on slurm`` of several targets, with commands in the place of Slurm's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Cli, tags
from tests.support.project import TinyProject, edit
from tests.unit.deliver.site.test_build_jobs import state  # noqa: F401  a fixture

SITE = {"title": "Here", "slurm": {"account": "none", "queues": {"build": {"partition": "debug"}}}}


@pytest.fixture
def slurm(three: TinyProject, state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """Slurm for the targets ``broken`` and ``tiny``; ``zwei`` has no site."""
    for name in ("broken", "tiny"):
        edit(three.recipe.parent / f"{name}.yaml", site=SITE)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    (state / "states").write_text("1 COMPLETED\n")
    return state


def test_all(do: Cli, three: TinyProject, slurm: Path) -> None:
    """A row for each target, also for those whose build cannot start."""
    made = do("build", "--all", "--on", "slurm")
    assert made.code == 5, made.err  # of the first one that failed
    rows = {line.split()[0]: line for line in made.out.splitlines() if not line.startswith(" ")}
    assert list(rows) == ["target", "broken", "tiny", "zwei"]
    assert "not started" in rows["broken"] and "not started" in rows["zwei"]
    digest = tags(three.root / "dist")["tiny"]
    assert f"built        {digest[:19]} " in rows["tiny"]
    assert "2 of 3 targets failed: broken, zwei" in made.err and "site.slurm is not set" in made.err


def lose(three: TinyProject, state: Path, index: str) -> None:  # noqa: F811
    """Lets the index of the layout be this one after the builds."""
    sbatch = state / "bin" / "sbatch"
    sbatch.write_text(f"{sbatch.read_text()}echo '{index}' > {three.root}/dist/index.json\n")


def test_json(do: Cli, three: TinyProject, slurm: Path) -> None:
    """The build's own answer, or its error; a tag that was lost is there again."""
    lose(three, slurm, '{"schemaVersion": 2, "manifests": []}')
    made = do("build", "tiny", "zwei", "--on", "slurm", "--json")
    tiny, zwei = made.json
    assert tiny["state"] == "built" and tags(three.root / "dist") == {"tiny": tiny["digest"]}
    assert zwei["state"] == "not started" and zwei["code"] == made.code == 2
