"""The smoke test as a Slurm job."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.core.errors import RunnerError, UsageError
from builder.core.progress import Reporter
from builder.deliver.site import scheduler
from builder.deliver.site.request import SlurmRequest
from builder.deliver.site.scheduler import wait
from builder.deliver.smoke import slurm
from builder.deliver.smoke.evidence import ran_digest
from builder.deliver.smoke.options import DEFAULTS, SlurmOptions, SmokeOptions
from builder.deliver.smoke.run import SmokeReport
from builder.deliver.smoke.slurm import smoke_on_slurm
from builder.formats.oci.digest import sha256
from builder.lock.config.recipe import load_recipe
from tests.support.fake_slurm import leave_pass, put_fake_slurm, ran
from tests.support.schema import check_report
from tests.support.smoke_project import IMAGE_LOCK, LOCK, NEW, OLD, RECIPE, SLURM, write_recipe


def built(root: Path) -> Any:
    """A build of the recipe, as far as a job needs it."""
    recipe = load_recipe("gpu", root)
    return SimpleNamespace(recipe=recipe, digest=NEW, lock=LOCK, image_lock=IMAGE_LOCK)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with the recipe of a site with Slurm."""
    return write_recipe(tmp_path, RECIPE + SLURM)


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the state of the fake Slurm that is in PATH. Nothing waits for it."""
    monkeypatch.setattr(scheduler, "POLL_S", 0)
    monkeypatch.setattr(slurm.time, "sleep", lambda seconds: None)
    return put_fake_slurm(tmp_path, monkeypatch)


def smoked(root: Path, options: SmokeOptions = DEFAULTS, **job: Any) -> SmokeReport:
    return smoke_on_slurm(
        built(root),
        root / "reports" / "gpu",
        slurm=SlurmOptions(image="/images/x.sif", **job),
        options=options,
    )


def test_report_is_graded(fake_slurm: Path, root: Path) -> None:
    """The job has the site's options; its report is graded and stored."""
    leave_pass(fake_slurm, ranks=8)
    ran(fake_slurm, NEW, IMAGE_LOCK, IMAGE_LOCK)
    asked = SlurmRequest(partition="big", options=("--reservation=course",))
    got = smoked(root, SmokeOptions(devices=4, timeout_s=120), nodes=2, account="me", slurm=asked)
    assert (
        got.verdict == "pass"
        and got.runner == "slurm (apptainer)"
        and got.report["image"]["packages"] == {"torch": "2.13.0"}
        and (got.image_digest, got.report["facts"]["locks"]) == (NEW, [IMAGE_LOCK])
    )
    script = (fake_slurm / "script").read_text()
    assert (
        "#SBATCH --nodes=2" in script
        and "#SBATCH --time=00:22:00" in script  # 2 minutes, 15 for the start, 5 for the rest
        and "#SBATCH --account=me" in script
        and "#SBATCH --partition=big" in script
        and "#SBATCH --reservation=course" in script
    )
    assert (
        "/opt/builder/smoke.py --json report.json" in " ".join(script.split())
        and "sha256sum </images/x.sif" in script
        and "--devices 4" in script
        and "/images/x.sif" in script
    )
    assert Path((fake_slurm / "cwd").read_text()).parent == root / "reports" / "gpu"
    (kept,) = (root / "reports" / "gpu").iterdir()  # no job's own file is left
    assert kept == got.path and json.loads(kept.read_text())["grade"]["verdict"] == "pass"


@pytest.mark.parametrize(
    ("states", "output", "probe", "words"),
    [
        ("FAILED", "srun: error: no such image\n", "job", ["ended as FAILED", "no such image"]),
        ("TIMEOUT", "", "watchdog", ["ended as TIMEOUT", "no output"]),
        ("COMPLETED", "", "job", ["left no report"]),
        ("OUT_OF_MEMORY", "", "job", ["OUT_OF_MEMORY"]),
        ("forgotten", "", "job", ["UNKNOWN"]),
    ],
)
def test_no_report(
    fake_slurm: Path, root: Path, states: str, output: str, probe: str, words: list[str]
) -> None:
    """A job without a report is an error with the state and the output of the job."""
    (fake_slurm / "states").write_text(states)
    (fake_slurm / "output").write_text(output)
    got = smoked(root)
    (found,) = got.report["probes"]
    assert got.verdict == "error" and found["id"] == probe and all(w in found["seen"] for w in words), found
    kept = sorted(p.name for p in (root / "reports" / "gpu").iterdir())
    assert kept[1:] == (["job-4711.out"] if output else []) and kept[0].endswith(
        ".json"
    )  # what explains it stays
    assert not output or str(root / "reports" / "gpu" / "job-4711.out") in found["advice"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "damaged report"),
        ("[" * 100_000, "damaged report"),
        ('{"schema_version": 1}', "schema version 1"),
        ("[]", "not a smoke report"),
    ],
)
def test_damaged_report(fake_slurm: Path, root: Path, text: str, words: str) -> None:
    (fake_slurm / "report").write_text(text)
    got = smoked(root)
    assert got.verdict == "error" and words in got.report["probes"][0]["seen"]


@pytest.mark.parametrize(
    ("sif", "locks", "words"),
    [
        (OLD, [IMAGE_LOCK], f"the job ran {OLD}; the image that was built is {NEW}"),
        ("", [IMAGE_LOCK], "the job ran /images/x.sif, whose digest is not known"),
        (NEW, [OLD], f"its /opt/builder/conda-lock.yml is {OLD}, expected {IMAGE_LOCK}"),
        (NEW, [IMAGE_LOCK, OLD], f"is {OLD} and {IMAGE_LOCK}, expected"),
        (NEW, [], "is not reported, expected"),
    ],
    ids=["another file", "no file", "another lock", "another lock on one node", "no lock"],
)
def test_another_image_ran(fake_slurm: Path, root: Path, sif: str, locks: list[str], words: str) -> None:
    """A verdict of another image than the build is none: the error names what ran and what was expected."""
    leave_pass(fake_slurm)
    ran(fake_slurm, sif, *locks)
    got = smoked(root)
    (found,) = got.report["probes"]
    assert got.verdict == "error" and found["id"] == "image" and words in found["seen"], found
    check_report(got.report)


def test_job_script(fake_slurm: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's script, run by bash with stand-ins for srun and Apptainer, reports the SIF."""
    sif, bin = root / "my x.sif", root / "bin"
    sif.write_bytes(b"the SIF")
    smoke_on_slurm(
        built(root),
        root / "reports" / "gpu",
        slurm=SlurmOptions(image=str(sif)),
    )
    for name in ("srun", "apptainer"):
        (bin / name).write_text("#!/bin/sh\n")
        (bin / name).chmod(0o755)
    (bin / "scontrol").write_text("#!/bin/sh\necho node1\n")
    environ = {"PATH": os.environ["PATH"], "SLURM_SUBMIT_DIR": str(root), "SLURM_JOB_NODELIST": "n"}
    environ |= {"SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_ID": "1", "USER": "me"}
    script = (fake_slurm / "script").read_text()
    subprocess.run(["bash"], input=script, env=environ, cwd=root, text=True, check=True)
    assert ran_digest(root, str(sif)) == sha256(b"the SIF")


@pytest.mark.parametrize(("sif", "digest"), [(OLD, OLD), ("", "")], ids=["known", "not known"])
def test_named_image(fake_slurm: Path, root: Path, sif: str, digest: str) -> None:
    """The verdict of an image that the user names is of that image."""
    leave_pass(fake_slurm)
    ran(fake_slurm, sif, OLD)
    got = smoked(root, is_other=True)
    assert (got.verdict, got.image_digest, got.report["image"].get("digest", "")) == ("pass", digest, digest)
    assert "packages" not in got.report["image"], "those of the build say nothing about another image"
    check_report(got.report)


def test_interrupt(fake_slurm: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C cancels the job."""

    def interrupt(number: str, reporter: Reporter) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        smoked(root)
    assert '["scancel", "4711"]' in (fake_slurm / "calls").read_text()
    assert not list((root / "reports" / "gpu").iterdir())


def test_no_answer(fake_slurm: Path) -> None:
    (fake_slurm / "states").write_text("silence")
    with pytest.raises(RunnerError, match="does not answer about job 4711: .*Unable to contact"):
        wait("4711")


def test_site_without_slurm(root: Path) -> None:
    (root / "recipes" / "gpu.yaml").write_text(RECIPE)
    with pytest.raises(UsageError, match="has no scheduler") as e:
        smoke_on_slurm(built(root), root / "reports" / "gpu", slurm=SlurmOptions())
    assert "builder smoke gpu" in e.value.hint
