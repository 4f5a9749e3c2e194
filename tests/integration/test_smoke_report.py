"""A real smoke test with torch as a job on two nodes of a Slurm."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Builder, new_project
from tests.support.documents import checked
from tests.support.parts import Apptainer
from tests.support.ports import free_ports
from tests.support.ranks import RANKS
from tests.support.schema import check_report
from tests.support.slurm import Slurm
from tests.support.smoke import Modified, Result

SITE = """\
extends: cpu
description: the tests' Slurm
format: sif
site:
  title: Here
  runtime: {{kind: apptainer, clean_env: true, binds: ["{torch}:/torch:ro"], env: {{PYTHONPATH: /torch}}}}
  node: {{cores: 2, tasks: 1}}
  slurm:
    account: optional
    queues:
      cpu: {{partition: debug}}
smoke: {{framework: torch}}
"""


@pytest.fixture(scope="module")
def site(
    cpu: Builder,
    torch: Path,
    slurm: Slurm,
    apptainer: Apptainer,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Builder, dict[str, str]]:
    root = new_project(tmp_path_factory.mktemp("smoke-slurm"), "cpu")
    (root / "recipes" / "here.yaml").write_text(SITE.format(torch=torch))
    lock = cpu.root / "environments" / "cpu.cpu.lock.yml"
    shutil.copy(lock, root / "environments" / "cpu.here.lock.yml")
    env = {**slurm.env, **apptainer.env, "USER": "tester", "OMP_NUM_THREADS": "1"}
    env["APPTAINER_NO_MOUNT"] = (
        "hostfs"  # the job needs a /tmp: the path of its working folder may be too long for sockets
    )
    return Builder(root, cpu.cache), env


def failures(report: dict[str, Any]) -> list[Any]:
    """Every entry of a report with the status fail."""
    grade = (report.get("grade") or {}).get("findings", [])
    return [x for x in (*report["probes"], *report["measurements"], *grade) if x.get("status") == "fail"]


def test_job_on_two_nodes(site: tuple[Builder, dict[str, str]]) -> None:
    """A job on two nodes measures the network between them."""
    builder, env = site
    done = builder.run("smoke", "here", "--on", "slurm", "--nodes", "2", "--json", env=env, check=False)
    out = checked(json.loads(done.stdout))
    assert out["runner"] == "slurm (apptainer)" and "on 2 nodes" in done.stderr
    report = out["report"]
    assert out["verdict"] in ("pass", "warn"), json.dumps(failures(report), indent=1)
    check_report(report)
    assert (report["launch"]["ranks"], report["launch"]["nodes"]) == (2, 2)
    network = next(m for m in report["measurements"] if m["id"] == "allreduce.network")
    assert network["status"] == "pass" and network["median_gb_per_s"] > 0
    assert report["image"]["digest"] == out["digest"] and report["image"]["packages"]["numpy"]
    assert len(report["facts"]["locks"]) == 1, "both nodes report the same lock file"
    folder = builder.root / "reports" / "here"
    assert [p.name for p in folder.iterdir()] == [Path(out["file"]).name]  # the job's files are removed


#: The variables that builder's jobs set in each task of srun.
OF_TASK = (
    "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS "
    'MASTER_ADDR=localhost MASTER_PORT=$PORT; exec "$@"'
)


def test_two_ranks_on_each_node(slurm: Slurm) -> None:
    """A real srun starts two ranks on each of two nodes; their work needs no torch."""
    folder = slurm.folder / "meeting"
    folder.mkdir()
    words = ["bash", "-c", OF_TASK, "-", *Modified(RANKS).command()]
    command = ["srun", "--nodes", "2", "--ntasks-per-node", "2", "--chdir", "/", *words]
    env = {"MEETING": str(folder), "PORT": str(free_ports(3)[0])}
    result = Result(slurm.run(*command, env=env))
    launch = {"ranks": 4, "nodes": 2, "by": "environment"}
    assert result.verdict == "pass" and result.report["launch"] == launch
    hosts = [rank["host"] for rank in result.measurement("work")["ranks"]]
    assert hosts == ["node1", "node1", "node2", "node2"]
    assert {device["host"] for device in result.report["facts"]["devices"]} == {"node1", "node2"}


def test_failed_job(site: tuple[Builder, dict[str, str]]) -> None:
    """A failed job is an error; its output is stored."""
    builder, env = site
    done = builder.run(
        "smoke", "here", "--on", "slurm", "--image", "/nowhere.sif", "--json", env=env, check=False
    )
    assert done.returncode == 14, done.stderr
    out = checked(json.loads(done.stdout))
    (found,) = out["report"]["probes"]
    assert (
        out["verdict"] == "error"
        and found["id"] == "job"
        and "ended as FAILED" in found["seen"]
        and "/nowhere.sif" in found["seen"]
    )
    assert "/nowhere.sif" in Path(found["advice"].removeprefix("its output: ")).read_text()
