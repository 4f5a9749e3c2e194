"""``builder smoke``: exit codes, options, comparison and Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.core.errors import RegistryError
from builder.core.store.blobs import Store
from builder.deliver.publishing.release import SMOKE_REPORT
from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.options import SmokeOptions
from builder.deliver.smoke.schema import could_not_run
from builder.formats.oci.layout import write_layout
from builder.formats.registry.referrers import (
    Artifact,
    AttachedFile,
    attach_in_layout,
    layout_referrers,
)
from builder.lock.config.recipe import load_recipe
from tests.support import image_kit
from tests.support.fake_slurm import leave_pass, put_fake_slurm, ran
from tests.support.reports import A100_40, a100, ranked, report
from tests.support.smoke_project import IMAGE_LOCK, NEW, OLD, RECIPE, SLURM, SmokeProject, write_recipe


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the state of the fake Slurm that is in PATH. Nothing waits for it."""
    monkeypatch.setattr("builder.deliver.site.scheduler.POLL_S", 0.0)
    return put_fake_slurm(tmp_path, monkeypatch)


def test_pass(project: SmokeProject) -> None:
    """A pass is printed with its grade, and recorded for the next publish."""
    out, _ = project("smoke", "gpu", "--devices", "1", "--timeout", "99")
    assert "smoke test: pass" in out and "101% of the reference" in out
    assert project.asked == [SmokeOptions(timeout_s=99.0, devices=1)]
    assert SmokeRecord(project.root / "cache").passed(NEW) == "pass"


def test_untested(project: SmokeProject) -> None:
    """A recipe can say that its image is not tested; that is no failure, and no pass."""
    write_recipe(project.root, RECIPE + 'smoke: {none: "needs a licence"}\n')
    out, err = project("smoke", "gpu")
    assert "gpu is not smoke-tested: needs a licence" in err and "published all the same" in err
    result = project.json("smoke", "gpu")
    assert result["verdict"] == "none" and result["report"]["test"] == {"none": "needs a licence"}
    assert SmokeRecord(project.root / "cache").passed(NEW) is None and not project.asked


def test_slow_gpu(project: SmokeProject) -> None:
    """A GPU far below the reference fails the test, which is not recorded as passed."""
    project.answers = [a100({"matmul.bf16": 0.3})]
    out, _ = project("smoke", "gpu", code=11)
    assert "smoke test: fail" in out and "30% of 246 TFLOP/s" in out and "clock, power and heat" in out
    assert SmokeRecord(project.root / "cache").passed(NEW) is None
    result = project.json("smoke", "gpu", code=11)
    assert result["verdict"] == "fail" and result["report"]["grade"]["verdict"] == "fail"


def test_fail_after_a_pass(project: SmokeProject) -> None:
    """A test that fails takes back an earlier pass: the next publish tests the image again."""
    project("smoke", "gpu")
    project.answers = [a100({"matmul.bf16": 0.3})]
    project("smoke", "gpu", code=11)
    assert SmokeRecord(project.root / "cache").passed(NEW) is None


def test_error(project: SmokeProject) -> None:
    """A test that could not be run has its own exit code."""
    project.answers = [
        could_not_run(
            load_recipe("gpu", project.root), "watchdog", "the container did not end in time", "a hung GPU"
        )
    ]
    out, _ = project("smoke", "gpu", code=14)
    assert "smoke test: error" in out and "did not end in time" in out


def test_all_gpus(project: SmokeProject) -> None:
    """A GPU slower than its peers is reported."""
    devices = [{**A100_40, "rank": i} for i in range(4)]
    project.answers = [
        report([ranked("matmul.bf16", (248e3, 249e3, 150e3, 247e3))], devices=devices, ranks=4)
    ]
    out, _ = project("smoke", "gpu", "--all-gpus", code=11)
    assert project.asked[0].all_gpus is True
    assert "150 TFLOP/s: 61% of 248 TFLOP/s (4 x NVIDIA A100-SXM4-40GB typically reach it)" in out


def test_changes_fail_nothing(project: SmokeProject) -> None:
    """A slower figure is shown with the packages and the advice to use --ab; the test passes."""
    project.before(runs=2, packages={"torch": "2.12.1", "zlib": "1.3"})
    project.answers = [a100({"matmul.bf16": 0.88})]
    out, _ = project("smoke", "gpu", "--compare", "26.10")
    assert len(project.asked) == 1 and "smoke test: pass" in out and "exit code 0" in out
    text = " ".join(out.split())
    assert "1 changed beyond what is usual" in text and "torch 2.12.1 -> 2.13.0" in text and "--ab" in text
    assert SmokeRecord(project.root / "cache").passed(NEW) == "pass"


def test_earlier_runs_here(project: SmokeProject) -> None:
    """Without --compare, what changed since earlier runs on such GPUs is shown, and nothing else."""
    project.before(runs=3)
    out, _ = project("smoke", "gpu")
    assert "earlier runs" not in out and "torch.build" not in out
    assert "torch.build" in project("smoke", "gpu", "--all")[0]
    project.answers = [a100({"matmul.bf16": 0.85})]
    assert "earlier runs on GPUs of the same model" in " ".join(project("smoke", "gpu")[0].split())


def test_nothing_to_compare_with(project: SmokeProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or invalid report is an error before anything runs."""

    def nothing(reference: str, kind: str, *args: Any, **more: Any) -> list[Any]:
        raise RegistryError(f"registry.example has no {reference}", "correct the repository and the tag")

    monkeypatch.setattr("builder.deliver.launch.smoke.find_attached", nothing)
    _, err = project("smoke", "gpu", "--compare", "25.01", code=9)
    assert "has no registry.example/team/gpu:25.01" in err and not project.asked
    _, err = project("smoke", "gpu", "--compare", "previous", code=1)
    assert "no report of 'previous'" in err and "it has none" in err and not project.asked
    (project.root / "x.json").write_text('{"schema_version": 1}')
    _, err = project("smoke", "gpu", "--compare", str(project.root / "x.json"), code=1)
    assert "schema version 1, not 2" in err and not project.asked


def test_compare_with_registry(project: SmokeProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports and packages of the earlier image come from the registry."""
    asked = []
    packages = {"torch": "2.9.0"}

    def attached(reference: str, kind: str, *args: Any, **more: Any) -> list[Any]:
        asked.append((reference, kind))
        data = json.dumps(a100(digest=OLD, packages=packages)).encode()
        return [SimpleNamespace(files=(SimpleNamespace(name="x", data=data),))]

    monkeypatch.setattr("builder.deliver.launch.smoke.find_attached", attached)
    project.answers = [a100({"matmul.fp16": 0.85})]
    out, _ = project("smoke", "gpu", "--compare", "26.01")
    assert "torch 2.9.0 -> 2.13.0" in out
    assert asked == [("registry.example/team/gpu:26.01", SMOKE_REPORT)]
    project("smoke", "gpu", "--compare", "oci:dist:gpu")
    assert asked[1][0] == "oci:dist:gpu"


def test_compare_with_layout(project: SmokeProject) -> None:
    """Reports and packages of the earlier image come from an OCI layout."""
    store = Store(project.root / "cache")
    made = image_kit.image(store, image_kit.layer(store, image_kit.member("a", b"1")))
    layout = project.root / "published"
    write_layout(made, layout, "26.02", store)
    for seed in (1, 2):
        data = json.dumps(a100(digest=made.digest, seed=seed, packages={"torch": "2.9.0"})).encode()
        artifact = Artifact(SMOKE_REPORT, [AttachedFile(f"{seed}.json", SMOKE_REPORT, data)])
        attach_in_layout(layout, store, made.manifest_descriptor, artifact)
    assert len(layout_referrers(layout, made.digest, SMOKE_REPORT)) == 2
    project.answers = [a100({"matmul.fp16": 0.85})]
    result = project.json("smoke", "gpu", "--compare", f"oci:{layout}:26.02")
    slower = [c["id"] for c in result["comparison"]["changes"] if c["outcome"] == "slower"]
    assert slower == ["matmul.fp16"] and result["comparison"]["old"]["runs"] == 2
    assert result["comparison"]["packages"] == ["torch 2.9.0 -> 2.13.0"]
    _, err = project("smoke", "gpu", "--compare", f"oci:{layout}:25.12", code=9)
    assert f"there is no oci:{layout}:25.12" in err
    write_layout(made, project.root / "bare", "1", store)
    _, err = project("smoke", "gpu", "--compare", f"oci:{project.root}/bare:1", code=1)
    assert "no report of" in err


def test_on_slurm(project: SmokeProject, fake_slurm: Path) -> None:
    """The job has the options of the command."""
    leave_pass(fake_slurm, ranks=4)
    result = project.json(
        "smoke",
        "gpu",
        "--on",
        "slurm",
        "--all-gpus",
        "--account",
        "me",
        "--time",
        "0:09:00",
        "--image",
        "/x.sif",
    )
    assert result["verdict"] == "pass" and result["runner"] == "slurm (apptainer)" and not project.asked
    script = (fake_slurm / "script").read_text()
    assert "--time=0:09:00" in script and "/x.sif" in script and "4" in script.split("gpus")[1][:20]
    assert SmokeRecord(project.root / "cache").passed(NEW) is None, "the verdict of /x.sif is not the build's"


def test_job_runs_the_build(project: SmokeProject, fake_slurm: Path) -> None:
    """Where the runtime takes no SIF, the job runs the image by its digest, and only that is recorded."""
    write_recipe(project.root, RECIPE + SLURM.replace("apptainer", "podman-hpc"))
    record = SmokeRecord(project.root / "cache")
    leave_pass(fake_slurm)
    ran(fake_slurm, "", OLD)
    out, err = project("smoke", "gpu", "--on", "slurm", code=14)
    script = (fake_slurm / "script").read_text()
    assert f"export BUILDER_IMAGE=registry.example/team/gpu@{NEW}\n" in script and ":latest" not in script
    assert "push it first: builder publish gpu --no-tags" in err
    assert "the job ran another image" in " ".join(out.split()) and record.passed(NEW) is None
    leave_pass(fake_slurm)
    ran(fake_slurm, "", IMAGE_LOCK)
    assert project.json("smoke", "gpu", "--on", "slurm")["digest"] == NEW
    assert record.passed(NEW) == "pass"


def test_image_of_the_same_digest(project: SmokeProject, fake_slurm: Path) -> None:
    """``--image`` may name another copy of the build: its verdict counts. One of a tag does not."""
    write_recipe(project.root, RECIPE + SLURM.replace("apptainer", "docker"))
    record = SmokeRecord(project.root / "cache")
    ran(fake_slurm, "", IMAGE_LOCK)
    cases = [("x/y:latest", "", None), (f"x/y@{OLD}", OLD, None), (f"x/y@{NEW}", NEW, "pass")]
    for image, digest, verdict in cases:
        leave_pass(fake_slurm)
        result = project.json("smoke", "gpu", "--on", "slurm", "--image", image)
        assert (result["verdict"], result["digest"], record.passed(NEW)) == ("pass", digest, verdict)
        assert record.passed(OLD) is None


def test_builds_that_no_job_can_run(project: SmokeProject) -> None:
    """A SIF runtime cannot run an OCI image; builder's own runtime runs nothing but the build."""
    _, err = project("smoke", "gpu", "--on", "slurm", code=2)
    assert "gpu is an OCI image: no job can test this build" in err and "--image FILE" in err
    write_recipe(project.root, RECIPE + SLURM.replace("apptainer", "userns"))
    _, err = project("smoke", "gpu", "--on", "slurm", "--image", "x", code=2)
    assert "--image has no effect" in err
