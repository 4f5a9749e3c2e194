"""A real smoke test of target cpu: measured, graded, stored and compared; and as a job on two nodes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from builder.bench.machine import processor
from tests.integration.conftest import Builder, new_project
from tests.support import reports
from tests.support.parts import Apptainer
from tests.support.schema import check_report
from tests.support.slurm import Slurm

#: Seconds for all measurements: enough for a few repeats of each.


@pytest.fixture(scope="module")
def project(torch_cpu: Builder, tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """Target cpu in its own project, with the same cache."""
    root = new_project(tmp_path_factory.mktemp("smoke"), "cpu", torch=True)
    shutil.copy(torch_cpu.root / "environments" / "cpu.cpu.lock.yml", root / "environments")
    return Builder(root, torch_cpu.cache)


def fast_report(folder: Path) -> Path:
    """The report of an older image that was a thousand times as fast on this machine, with another numpy."""
    made = reports.cpu(
        dict.fromkeys(("matmul.fp32", "cpu.peak", "memory.copy"), 1000.0),
        cpu=processor.cpu_model(),
        cores=processor.usable_cores(),
        packages={"numpy": "1.0", "zlib-ng": "9"},
        tag="20.01",
        digest="sha256:" + "0" * 64,
        started="2020-01-02T03:04:05Z",
    )
    made["facts"]["cpu"]["quota_cores"] = processor.quota()
    path = folder / "past.json"
    path.write_text(json.dumps(made))
    return path


@pytest.fixture(scope="module")
def first(project: Builder, tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A real test, compared with that report."""
    past = fast_report(tmp_path_factory.mktemp("past"))
    return project.run(
        "smoke",
        "cpu",
        "--runner",
        "userns",
        "--compare",
        past,
        "--json",
        check=False,
    )


def test_real_run(first: subprocess.CompletedProcess[str], project: Builder) -> None:
    """A real run is stored with its packages; the figures of a CPU are not graded."""
    out = json.loads(first.stdout)
    report = out["report"]
    assert out["verdict"] in ("pass", "warn"), report["probes"]
    check_report(report)
    path = out["file"]
    assert (
        json.loads(Path(path).read_text()) == report and Path(path).parent == project.root / "reports" / "cpu"
    )
    assert report["image"]["packages"]["torch"] and report["image"]["packages"]["python"].startswith("3.11")
    assert report["image"]["digest"] == out["digest"]
    assert report["grade"]["verdict"] == "skip"


def test_changes(first: subprocess.CompletedProcess[str]) -> None:
    """What is slower is shown with the packages that changed, and fails nothing."""
    out = json.loads(first.stdout)
    changes = {c["id"]: c for c in out["comparison"]["changes"]}
    assert changes["matmul.fp32"]["outcome"] == changes["memory.copy"]["outcome"] == "slower"
    assert first.returncode == 0
    packages = out["comparison"]["packages"]
    assert any(p.startswith("numpy 1.0 -> ") for p in packages) and "zlib-ng 9 -> (none)" in packages
    assert out["comparison"]["old"]["tag"] == "20.01"


def test_page(first: subprocess.CompletedProcess[str], project: Builder, tmp_path: Path) -> None:
    """The page of a real run."""
    out = project.json("report", "cpu", "--output", tmp_path / "page.html")
    assert (
        out["targets"]["cpu"]["images"] == 1
        and out["targets"]["cpu"]["verdict"] == json.loads(first.stdout)["verdict"]
    )
    page = (tmp_path / "page.html").read_text()
    assert "matmul.fp32" in page and "http://" not in page
    done = project.run("smoke", "cpu", "--compare", "19.12", check=False)
    assert (
        done.returncode == 1 and "no report of '19.12'" in done.stderr and "it has reports of" in done.stderr
    )


# Slurm ------------------------------------------------------------------------------------------------------

SITE = """\
extends: cpu
description: the tests' Slurm
format: sif
site:
  title: Here
  runtime: {kind: apptainer, clean_env: true}
  node: {cores: 2, tasks: 1}
  slurm:
    account: optional
    queues:
      cpu: {partition: debug}
"""


@pytest.fixture(scope="module")
def site(
    torch_cpu: Builder,
    torch_sif: Path,
    slurm: Slurm,
    apptainer: Apptainer,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Builder, dict[str, str]]:
    root = new_project(tmp_path_factory.mktemp("smoke-slurm"), "cpu", torch=True)
    (root / "recipes" / "here.yaml").write_text(SITE)
    shutil.copy(
        torch_cpu.root / "environments" / "cpu.cpu.lock.yml", root / "environments" / "cpu.here.lock.yml"
    )
    env = {
        **slurm.env,
        **apptainer.env,
        "SLURM_CONF": slurm.env["SLURM_CONF"],
        "USER": "tester",
        "OMP_NUM_THREADS": "1",
    }
    env["APPTAINER_NO_MOUNT"] = (
        "hostfs"  # the job needs a /tmp: the path of its working folder may be too long for sockets
    )
    return Builder(root, torch_cpu.cache), env


def failures(report: dict[str, Any]) -> list[Any]:
    """Every entry of a report with the status fail."""
    grade = (report.get("grade") or {}).get("findings", [])
    return [x for x in (*report["probes"], *report["measurements"], *grade) if x.get("status") == "fail"]


def test_job_on_two_nodes(site: tuple[Builder, dict[str, str]]) -> None:
    """A job on two nodes measures the network between them."""
    builder, env = site
    done = builder.run("smoke", "here", "--on", "slurm", "--nodes", "2", "--json", env=env, check=False)
    out = json.loads(done.stdout)
    assert out["runner"] == "slurm (apptainer)" and "on 2 nodes" in done.stderr
    report = out["report"]
    assert out["verdict"] in ("pass", "warn"), json.dumps(failures(report), indent=1)
    check_report(report)
    assert (report["launch"]["ranks"], report["launch"]["nodes"]) == (2, 2)
    network = next(m for m in report["measurements"] if m["id"] == "allreduce.network")
    assert network["status"] == "pass" and network["median_gb_per_s"] > 0
    assert report["image"]["digest"] == out["digest"] and report["image"]["packages"]["torch"]
    assert len(report["image"]["locks"]) == 1, "both nodes report the same lock file"
    folder = builder.root / "reports" / "here"
    assert [p.name for p in folder.iterdir()] == [Path(out["file"]).name]  # the job's files are removed


def test_failed_job(site: tuple[Builder, dict[str, str]]) -> None:
    """A failed job is an error; its output is stored."""
    builder, env = site
    done = builder.run(
        "smoke", "here", "--on", "slurm", "--image", "/nowhere.sif", "--json", env=env, check=False
    )
    assert done.returncode == 14, done.stderr
    out = json.loads(done.stdout)
    (found,) = out["report"]["probes"]
    assert (
        out["verdict"] == "error"
        and found["id"] == "job"
        and "ended as FAILED" in found["seen"]
        and "/nowhere.sif" in found["seen"]
    )
    assert "/nowhere.sif" in Path(found["advice"].removeprefix("its output: ")).read_text()
