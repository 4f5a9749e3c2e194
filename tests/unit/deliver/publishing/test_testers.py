"""The smoke test before tags move: kinds of tests, no test, and tests in a Slurm job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.build.engines.base import BuildResult
from builder.core.errors import SmokeError, UsageError
from builder.deliver.project import Project
from builder.deliver.publishing import engines, sides
from builder.deliver.publishing.destination import LayoutDestination
from builder.deliver.publishing.publish import Published, PublishOptions, publish
from builder.deliver.publishing.release import PROVENANCE, SMOKE_REPORT
from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.publishing.testers import Release, ReleaseTest
from builder.deliver.smoke.ab import ROUND
from builder.deliver.smoke.abrun import AbRuns, AbTest
from builder.deliver.smoke.options import SlurmOptions, SmokeOptions
from builder.deliver.smoke.run import SmokeReport
from builder.deliver.smoke.suggested import SmokePlan
from builder.formats.oci.layout import list_tags
from tests.support.fake_slurm import put_fake_slurm, ran
from tests.support.fakeregistry import FakeRegistry
from tests.support.images import make_layer, make_test_image
from tests.support.releases import forget_settings
from tests.support.reports import a100, cpu
from tests.unit.deliver.publishing.conftest import IMAGE_LOCK, LOCK, PYTHON, SITE, built


def answer(result: BuildResult, verdict: str, plan: SmokePlan, path: Path | None = None) -> SmokeReport:
    probes = [{"id": "x", "status": "warn", "seen": "odd", "advice": "a"}] if verdict == "warn" else []
    if verdict == "fail":
        probes = [{"id": "imports", "status": "fail", "seen": "nosuch", "advice": "a"}]
    image = {"digest": result.digest, "target": "t"}
    report = {
        "verdict": verdict,
        "probes": probes,
        "measurements": [],
        "image": image,
        "test": plan.to_json(),
    }
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report))
    return SmokeReport(verdict, report, "userns", result.digest, 1.0, path)


def send(project: Project, result: BuildResult, to: str, **more: Any) -> Published:
    return publish(project, result, PublishOptions(to=to, month="26.11", **more))


def test_untested(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that the recipe does not test is published; the reason is printed and attached."""
    monkeypatch.setattr(Project, "smoke", lambda *a, **k: 1 / 0)
    result = built(tmp_path, smoke={"none": "needs a licence"})
    done = send(project, result, f"oci:{tmp_path / 'there'}", policy="always")
    assert (done.smoke, done.untested, done.tags) == ("none", "needs a licence", ("26.11", "latest"))
    assert project.work.reporter.notes[-1] == "t is not smoke-tested: needs a licence"  # type: ignore[attr-defined]
    texts = {kind: "" for kind in done.attached}
    for kind, digest in done.attached.items():
        blobs = tmp_path / "there" / "blobs" / "sha256"
        manifest = json.loads((blobs / digest.partition(":")[2]).read_text())
        texts[kind] = (blobs / manifest["layers"][0]["digest"].partition(":")[2]).read_text()
    report = json.loads(texts[SMOKE_REPORT])
    assert report["verdict"] == "none" and report["test"] == {"none": "needs a licence"}
    assert '"smoke":{"none":"needs a licence"}' in texts[PROVENANCE]


def test_other_test(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the recipe's test, an image that passed the old one is tested again."""
    asked = []
    torch, imports = built(tmp_path, smoke="torch"), built(tmp_path, smoke={"imports": ["a"]})
    assert torch.digest == imports.digest

    def smoke(self: Project, result: BuildResult, *more: Any) -> SmokeReport:
        plan = self.smoke_plan(result)
        asked.append(plan.title)
        return answer(result, "warn", plan, tmp_path / "reports/t" / f"{plan.title}.json")

    monkeypatch.setattr(Project, "smoke", smoke)
    to = f"oci:{tmp_path / 'there'}"
    for result in (torch, torch, imports, imports, torch):
        assert send(project, result, to).smoke == "warn"
    assert asked == ["torch", "imports", "torch"], "each pass is of one test"
    assert "smoke test: warn x: odd" in project.work.reporter.notes  # type: ignore[attr-defined]
    record = SmokeRecord(project.work.settings.cache)
    assert record.passed(torch.digest) == "warn"
    assert record.passed(torch.digest, SmokePlan(imports=("a",))) is None
    assert record.report(torch.digest, SmokePlan(imports=("b",))) is None


def test_reasons(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has what failed."""
    result = built(tmp_path)
    monkeypatch.setattr(Project, "smoke", lambda self, *a: answer(result, "fail", self.smoke_plan(result)))
    with pytest.raises(SmokeError, match="no tag was moved\n  fail imports: nosuch"):
        send(project, result, f"oci:{tmp_path / 'there'}")


def ab_runs(speed: float, rounds: int = 3) -> AbRuns:
    """Rounds of two images; the new one is ``speed`` times as fast in one figure."""

    def run(side: str, seed: int) -> SmokeReport:
        made = a100({"matmul.bf16": speed} if side == "new" else {}, seed=seed)
        return SmokeReport("pass", made, "userns", "sha256:1", 1.0)

    made = [run(side, seed) for seed in range(rounds) for side in ROUND]
    return AbRuns([run("old", 9), run("new", 9), *made])


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (ab_runs(1.0), ""),
        (ab_runs(0.95), r"t is slower than oci:.*@sha256:.*; no tag was moved\n  matmul.bf16 .*limit 2.0%"),
        (ab_runs(1.0, rounds=1), "could not be compared.*no tag was moved: no verdict: 1 of 1 rounds"),
    ],
    ids=["as fast", "slower", "no verdict"],
)
def test_ab(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: AbRuns, words: str
) -> None:
    """The image that latest names is run against the new one, and decides whether tags move."""
    asked: list[Any] = []

    def run_sides(owner: Project, test: AbTest, slurm: SlurmOptions | None) -> AbRuns:
        asked.append((test.sides["old"].digest, test.sides["new"].digest, slurm))
        return runs

    monkeypatch.setattr(sides, "run_sides", run_sides)
    monkeypatch.setattr(Project, "smoke", lambda self, r, *a: answer(r, "pass", self.smoke_plan(r)))
    to = f"oci:{tmp_path / 'there'}"
    first = built(tmp_path, smoke="torch")
    assert send(project, first, to, ab=True).tags and not asked
    assert "not compared with an earlier image: latest names no image yet" in project.work.reporter.notes  # type: ignore[attr-defined]
    second = replace(first, artifact=make_test_image([make_layer(tmp_path / "layers", "two")]))
    if words:
        with pytest.raises(SmokeError, match=words) as e:
            send(project, second, to, ab=True, force=True)
        assert f"builder smoke t --ab {to}@{first.digest} build" in e.value.hint
    else:
        send(project, second, to, ab=True, force=True)
    assert asked == [(first.digest, second.digest, None)]
    named = list_tags(tmp_path / "there")["latest"]
    assert named == (first.digest if words else second.digest)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the state of a fake Slurm."""
    monkeypatch.setattr("builder.deliver.site.scheduler.POLL_S", 0.0)
    forget_settings(monkeypatch, tmp_path)
    return put_fake_slurm(tmp_path, monkeypatch)


def test_in_a_job(project: Project, tmp_path: Path, job: Path, fake: FakeRegistry) -> None:
    """The image is pushed without tags, a job tests it by its digest, and then the tags move."""
    result = built(tmp_path, site=SITE, smoke="torch")
    fake.lists_referrers = True
    to = f"{fake.host}/a/b"
    slurm = SlurmOptions(nodes=2, account="me", time="0:09:00")
    ran(job, "", IMAGE_LOCK)
    (job / "report").write_text(json.dumps(cpu(verdict="fail", probes=[("torch.import", "fail")])))
    with pytest.raises(SmokeError, match="no tag was moved") as e:
        send(project, result, to, job=slurm)
    assert f"the image is at {to}@{result.digest}, without a tag" in e.value.hint
    assert list(fake.manifests["a/b"]) == [result.digest], "pushed, and without a tag"
    script = (job / "script").read_text()
    assert f"{to}@{result.digest}" in script and "--nodes=2" in script and "--account=me" in script

    (job / "states").write_text("RUNNING COMPLETED")
    (job / "report").write_text(json.dumps(cpu()))
    ran(job, "", IMAGE_LOCK)
    done = send(project, result, to, job=slurm)
    assert done.smoke in ("pass", "warn") and SMOKE_REPORT in done.attached
    assert {"26.11", "latest"} < set(fake.manifests["a/b"])
    again = send(project, result, to, job=slurm)
    calls = [json.loads(line)[0] for line in (job / "calls").read_text().splitlines()]
    assert again.smoke == done.smoke and calls.count("sbatch") == 2, "on record now"


def test_podman_hpc(project: Project, tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the nodes run podman-hpc, it pulls the image before the job starts."""
    pulled: list[Any] = []
    monkeypatch.setattr(engines, "pull_into", lambda *words, **more: pulled.append(words))
    site = {**SITE, "runtime": {"kind": "podman-hpc"}}
    result = built(tmp_path, site=site, smoke="torch")
    ran(job, "", IMAGE_LOCK)
    (job / "report").write_text(json.dumps(cpu()))
    with FakeRegistry() as fake:
        fake.lists_referrers = True
        send(project, result, f"{fake.host}/a/b", job=SlurmOptions())
    assert pulled[0][0] == "podman-hpc" and pulled[0][3] == result.digest


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ({}, "has no scheduler"),
        (SITE, "runs no image from oci:"),
        ({**SITE, "runtime": {"kind": "apptainer"}}, "apptainer runs SIFs, and t is an OCI image"),
    ],
)
def test_no_job_possible(project: Project, tmp_path: Path, site: Any, words: str) -> None:
    """What no job can test is refused before anything is pushed."""
    result = built(tmp_path, site=site)
    with pytest.raises(UsageError, match=words):
        send(project, result, f"oci:{tmp_path / 'there'}", job=SlurmOptions(), smoke=SmokeOptions())
    assert not (tmp_path / "there" / "index.json").exists()


def test_plan_of_tensorflow(project: Project, tmp_path: Path) -> None:
    """A lock with TensorFlow is tested with TensorFlow."""
    result = built(tmp_path)
    tensorflow = replace(PYTHON, name="tensorflow-cpu", url="https://c.example/tensorflow-cpu-2-0.conda")
    result = replace(result, lock=replace(LOCK, packages=(PYTHON, tensorflow)))
    assert project.smoke_plan(result) == SmokePlan("tensorflow")


@pytest.mark.parametrize(("job", "when"), [(None, "before"), (SlurmOptions(), "after")])
def test_when_images_are_compared(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: SlurmOptions | None, when: str
) -> None:
    """This host compares before the push, a job after it, when its nodes can pull the image."""
    turns: list[str] = []
    monkeypatch.setattr(ReleaseTest, "_compare", lambda self, release, previous: turns.append(turn))
    there = LayoutDestination(tmp_path / "there", project.work.store)
    test = ReleaseTest(project, there, SmokeOptions(), job, ("not run", None), "sha256:1")
    release = Release(built(tmp_path))
    turn = "before"
    assert test.before_push(release).verdict == "not run"
    turn = "after"
    test.after_push(release)
    assert turns == [when]
