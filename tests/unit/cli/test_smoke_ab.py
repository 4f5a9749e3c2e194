"""``builder smoke --ab`` and ``builder publish --ab``: options, output and exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.deliver.launch import pair as pair_module
from builder.deliver.publishing import sides
from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.ab import ROUND
from builder.deliver.smoke.abrun import AbRuns, AbTest, Side
from builder.deliver.smoke.run import SmokeReport
from tests.support.reports import a100
from tests.support.smoke_project import NEW, OLD, SmokeProject


class Project(SmokeProject):
    """A project whose images are ``speed`` times as fast as the old one."""

    speed = 1.0
    verdicts: tuple[str, str] = ("pass", "pass")
    rounds = 3
    named: list[Any]
    ran: dict[str, Any]

    def runs(self, project: Any, test: AbTest, slurm: Any) -> AbRuns:
        self.ran = {"rounds": test.rounds, "options": test.options, "slurm": slurm}
        kinds = dict(zip(("old", "new"), self.verdicts, strict=True))
        first = [self._report(side, 0, kind) for side, kind in kinds.items()]
        if "error" in self.verdicts:
            return AbRuns(first)
        made = [self._report(side, i, kinds[side]) for i in range(self.rounds) for side in ROUND]
        return AbRuns([*first, *made])

    def _report(self, side: str, number: int, verdict: str) -> SmokeReport:
        scale = {"matmul.bf16": self.speed} if side == "new" else {}
        made = a100(scale, seed=number, verdict=verdict)
        made["grade"] = None
        digest = NEW if side == "new" else OLD
        return SmokeReport(verdict, made, "podman", digest, 1.0, self.root / f"{side}.json")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Project:
    made = Project(tmp_path, monkeypatch, capsys)
    made.named = []

    def named_side(text: str, recipe: Any, owner: Any, slurm: Any) -> Side:
        made.named.append((text, sides._repository(recipe), slurm))
        return Side(text, OLD)

    monkeypatch.setattr(pair_module, "named_side", named_side)
    monkeypatch.setattr(pair_module, "run_sides", made.runs)
    return made


def test_not_slower(project: Project) -> None:
    out, _ = project("smoke", "gpu", "--ab", "26.10", "build")
    assert "build (sha256:bbbbbbbbbbbb) against 26.10 (sha256:aaaaaaaaaaaa): not slower; 3 rounds" in out
    assert "exit code 0" in out
    assert project.named == [("26.10", "registry.example/team/gpu", None)]
    assert project.ran["rounds"] == 3 and project.ran["options"].plan.framework == "torch"


def test_slower(project: Project) -> None:
    """A slower image is exit code 11, and all figures are in the JSON."""
    project.speed = 0.95
    out, _ = project("smoke", "gpu", "--ab", "26.10", "build", "--rounds", "4", code=11)
    assert "exit code 11: the new image is slower" in out
    assert "slower matmul.bf16 (cuda:0) 248 TFLOP/s 236 TFLOP/s -4.9 % 2.0 %" in " ".join(out.split())
    found = project.json("smoke", "gpu", "--ab", "26.10", "build", code=11)
    assert found["verdict"] == "slower" and found["old"] == {"name": "26.10", "digest": OLD}
    by_id = {figure["id"]: figure for figure in found["figures"]}
    assert by_id["matmul.bf16"]["outcome"] == "slower" and by_id["matmul.bf16"]["limit"] == 0.02
    assert by_id["matmul.bf16"]["ratio"] == pytest.approx(0.95, abs=0.002) and len(found["runs"]) == 14


@pytest.mark.parametrize(
    ("verdicts", "rounds", "code", "words"),
    [
        (("pass", "fail"), 3, 11, "the smoke test of the new image failed"),
        (("fail", "pass"), 3, 0, "exit code 0"),
        (("error", "pass"), 3, 14, "no verdict"),
        (("pass", "pass"), 2, 14, "no verdict"),
    ],
)
def test_exit_code(project: Project, verdicts: tuple[str, str], rounds: int, code: int, words: str) -> None:
    project.verdicts, project.rounds = verdicts, rounds
    record = SmokeRecord(project.root / "cache")
    record.update(SmokeReport("pass", {}, "podman", NEW, 0.0))
    out, _ = project("smoke", "gpu", "--ab", "26.10", "build", code=code)
    assert words in out
    assert record.passed(NEW) == (None if verdicts[1] == "fail" else "pass")


def test_nothing_is_built_for_two_names(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.deliver.project.Project.build", lambda *a, **k: 1 / 0)
    _, err = project("smoke", "gpu", "--ab", "26.09", "26.10")
    assert "both images are the same" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rounds", "3"), "--rounds requires --ab"),
        (("--ab", "a", "b", "--compare", "previous"), "--compare cannot be combined with --ab"),
        (("--ab", "a", "b", "--rounds", "2"), "not in the range"),
    ],
)
def test_wrong_options(project: Project, options: tuple[str, ...], words: str) -> None:
    _, err = project("smoke", "gpu", *options, code=2)
    assert words in " ".join(err.split())


def test_names_come_before_the_build(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong name is reported before anything is built."""
    monkeypatch.setattr("builder.deliver.project.Project.build", lambda *a, **k: 1 / 0)
    recipe = project.root / "recipes" / "gpu.yaml"
    recipe.write_text(recipe.read_text().replace("host: registry.example, ", ""))
    _, err = project("smoke", "gpu", "--ab", "26.10", "build", code=2)
    assert "registry.host is not set, so a tag or digest names no image" in " ".join(err.split())


def test_site_without_scheduler(project: Project) -> None:
    """Refused before anything is built or downloaded."""
    recipe = project.root / "recipes" / "gpu.yaml"
    recipe.write_text(recipe.read_text().partition("site:")[0])
    _, err = project("smoke", "gpu", "--ab", "a", "b", "--on", "slurm", code=2)
    assert "has no scheduler" in err and not project.named
