"""The runs of ``builder smoke --ab``: their order on this host, and the one job that runs them all."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.build.image.files import smoke_program
from builder.core.errors import UsageError
from builder.core.model import SifImage
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.deliver.smoke import abrun
from builder.deliver.smoke.ab import ROUND
from builder.deliver.smoke.abrun import AbRuns, AbTest, Side, ab_here, ab_on_slurm, ab_options
from builder.deliver.smoke.options import SlurmOptions, SmokeOptions
from builder.deliver.smoke.run import SmokeReport
from builder.deliver.smoke.suggested import TORCH, SmokePlan
from builder.lock.config.recipe import Recipe, load_recipe
from tests.support.reports import a100
from tests.support.smoke_project import NEW, OLD, RECIPE, SLURM, write_recipe

SIDES = {
    "old": Side("26.10", OLD, SifImage(Path("/images/old.sif"), OLD, 1), "/images/old.sif"),
    "new": Side("build", NEW, SifImage(Path("/images/new.sif"), NEW, 1), "/images/new.sif"),
}


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_recipe("gpu", write_recipe(tmp_path, RECIPE + SLURM))


def test_options() -> None:
    """Of what the recipe tests, the framework remains; without one there is nothing to compare."""
    plan = SmokePlan("torch", ("a",), (), ("true",), 60)
    assert ab_options(plan, SmokeOptions(timeout_s=99)).plan == SmokePlan("torch")
    for other in (SmokePlan(imports=("a",)), SmokePlan("jax")):
        with pytest.raises(UsageError, match=f"this image is tested for: {other.title}"):
            ab_options(other, SmokeOptions())


# on this host ------------------------------------------------------------------------------------


def here(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str = ""
) -> tuple[AbRuns, list[tuple[str, SmokeOptions]]]:
    """Runs two rounds; returns their reports, and the digest and options of each test."""
    asked: list[tuple[str, SmokeOptions]] = []

    def smoke(image: SifImage, *args: Any, options: SmokeOptions, **more: Any) -> SmokeReport:
        assert options.program is not None and options.program.read_bytes() == smoke_program()
        assert options.program.stat().st_mode & 0o777 == 0o644
        asked.append((image.digest, replace(options, program=None)))
        verdict = "error" if image.digest == failing else "pass"
        return SmokeReport(verdict, a100(), "podman", image.digest, 1.0)

    monkeypatch.setattr(abrun, "smoke", smoke)
    settings = Settings.from_environment({"HOME": str(tmp_path)}, cache=tmp_path / "cache")
    test = AbTest(SIDES, recipe, SmokeOptions(plan=TORCH), rounds=2)
    work = Workspace(settings, Store(settings.cache))
    return ab_here(test, work, tmp_path / "reports"), asked


def test_order(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole test of each image, then rounds on the device only, all by the runner of the first."""
    found, asked = here(recipe, tmp_path, monkeypatch)
    digests = {"old": OLD, "new": NEW}
    assert [digest for digest, _ in asked] == [OLD, NEW, *[digests[side] for side in ROUND] * 2]
    assert [options.device_only for _, options in asked] == [False] * 2 + [True] * 8
    assert [options.runner for _, options in asked] == [None] + ["podman"] * 9
    assert len(found.all) == 10 and [len(runs) for runs in found.rounds] == [4, 4]


def test_untestable_image(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that cannot be tested ends the comparison before any round."""
    found, asked = here(recipe, tmp_path, monkeypatch, failing=OLD)
    assert len(asked) == 1 and not found.rounds and found.first["old"].verdict == "error"


# in one job --------------------------------------------------------------------------------------


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs the script of the job with bash; the scripts in it only copy a report. Holds each script."""
    scripts: list[Any] = []

    def run_script(script: str, recipe: Recipe, work: Path, *more: Any) -> tuple[str, str]:
        scripts.append({"job": script, **{path.name: path.read_text() for path in work.glob("*.sh")}})
        (work.parent / "report").write_text(json.dumps(a100()))
        for path in work.glob("*.sh"):
            subprocess.run(["bash", "-n", path], check=True)
            hashes = [line for line in path.read_text().splitlines() if "sha256sum" in line]
            lines = [*hashes, '[[ $PWD == "$SLURM_SUBMIT_DIR" && -f smoke.py ]] || exit', "echo said"]
            lines += ["cp ../../report report.json", "exit 1"]
            path.write_text("\n".join(lines))
        environment = {"SLURM_SUBMIT_DIR": str(work), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(["bash", "-c", script], cwd=work, env=environment, check=False)
        assert done.returncode == 0, "a run that fails does not end the job"
        return "4711", "COMPLETED"

    monkeypatch.setattr(abrun, "run_script", run_script)
    return scripts


def in_job(recipe: Recipe, tmp_path: Path, sides: Any = SIDES, **options: Any) -> AbRuns:
    test = AbTest(sides, recipe, SmokeOptions(devices=1), rounds=2)
    slurm = SlurmOptions(account="me", **options)
    return ab_on_slurm(test, slurm, tmp_path / "reports" / "gpu")


@pytest.mark.usefixtures("submitted")
def test_reports_of_a_job(recipe: Recipe, tmp_path: Path) -> None:
    """Each run has its folder; reports are stored, and nothing else is left."""
    found = in_job(recipe, tmp_path)
    assert [run.image_digest for run in found.rounds[1]] == [OLD, NEW, NEW, OLD]
    assert {run.verdict for run in found.all} == {"pass"} and len(found.all) == 10
    kept = {path for path in (tmp_path / "reports" / "gpu").iterdir() if path.name != "report"}
    assert kept == {run.path for run in found.all}


def test_one_job(recipe: Recipe, tmp_path: Path, submitted: list[Any]) -> None:
    """One job runs the script of each run, in the time of all."""
    in_job(recipe, tmp_path)
    (scripts,) = submitted
    assert set(scripts) == {"job", "old.sh", "new.sh", "old-first.sh", "new-first.sh"}
    job = scripts["job"]
    assert "#SBATCH --account=me" in job
    assert "".join(scripts.values()).count("sha256sum") == 2, "each image once, before its first run"
    assert "#SBATCH --time=01:10:00" in job, "half of ten runs and a start, one whole run, 5 minutes"
    assert "/images/old.sif" in scripts["old.sh"]
    assert "/images/new.sif" in scripts["new.sh"]
    assert [n for n in ("new.sh", "new-first.sh") if "--device-only" in scripts[n]] == ["new.sh"]
    words = " ".join(scripts["old.sh"].split())
    assert "bin/python smoke.py --json report.json" in words and "--devices 1" in words


def test_image_with_a_hostile_name(recipe: Recipe, tmp_path: Path, submitted: list[Any]) -> None:
    """No part of a file's name is run by a shell, or read as an option of the job."""
    name = f"{tmp_path}/a b'\"$(touch {tmp_path}/1)`touch {tmp_path}/2`;\n#SBATCH --reservation=x\n.sif"
    in_job(recipe, tmp_path, {**SIDES, "old": replace(SIDES["old"], reference=name)})
    assert not (tmp_path / "1").exists() and not (tmp_path / "2").exists()
    head = submitted[0]["job"].partition("\nfolder=")[0]
    assert "--time=" in head and "reservation" not in head


def test_runs_without_a_report(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of each run is kept; of a run that did not begin, that of the job."""

    def run_script(script: str, recipe: Recipe, work: Path, *more: Any) -> tuple[str, str]:
        (work / "00-old" / "job.out").write_text("the first image")
        (work / "01-new" / "job.out").write_text("the second image")
        (work / "smoke-gpu-4711.out").write_text("the node has died")
        return "4711", "NODE_FAIL"

    monkeypatch.setattr(abrun, "run_script", run_script)
    found = in_job(recipe, tmp_path)
    assert "the second image" in found.first["new"].report["probes"][0]["seen"]
    kept = {path.name: path.read_text() for path in (tmp_path / "reports" / "gpu").iterdir()}
    assert kept == {
        "job-4711-00-old.out": "the first image",
        "job-4711-01-new.out": "the second image",
        "job-4711-02-old.out": "the node has died",
    }


def test_own_time_limit(recipe: Recipe, tmp_path: Path, submitted: list[Any]) -> None:
    in_job(recipe, tmp_path, time="01:00:00")
    assert "#SBATCH --time=01:00:00" in submitted[0]["job"]


def test_changed_file(recipe: Recipe, tmp_path: Path, submitted: list[Any]) -> None:
    """A SIF that another build replaced while the job waited is an error, not a verdict."""
    file = tmp_path / "new.sif"
    file.write_text("another")
    sides = {**SIDES, "new": replace(SIDES["new"], reference=str(file))}
    found = in_job(recipe, tmp_path, sides)
    (probe,) = found.first["new"].report["probes"]
    assert not found.rounds and f"not {NEW}" in probe["seen"]


def test_own_runner(tmp_path: Path, submitted: list[Any]) -> None:
    """Where jobs run builder itself, it runs each image by its name in a layout, and builds nothing."""
    site = SLURM.replace("apptainer", "userns")
    recipe = load_recipe("gpu", write_recipe(tmp_path, RECIPE + site))
    sides = {name: replace(side, reference=f"oci:/p/dist@{side.digest}") for name, side in SIDES.items()}
    in_job(recipe, tmp_path, sides)
    words = " ".join(submitted[0]["old.sh"].replace("\\\n", " ").split())
    assert f"builder run oci:/p/dist@{OLD} --bind" in words and "--no-build" not in words
