"""``builder smoke`` and ``builder report``: options, exit codes, comparison, trackers, Slurm."""

from __future__ import annotations

import importlib
import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.cli import cli, run
from builder.config.recipe import load_recipe
from builder.errors import RegistryError, RunnerError, UsageError
from builder.model import Lock, LockedPackage
from builder.oci.layout import write_layout
from builder.project import Project
from builder.publishing.attest import SBOM, SMOKE_REPORT, sbom
from builder.registry.referrers import AttachedFile, attach_in_layout, fetch_attached
from builder.settings import Settings
from builder.site.slurm import wait
from builder.smoke.options import DEFAULTS, SlurmOptions, SmokeOptions
from builder.smoke.reports import store_report
from builder.smoke.run import SmokeReport, complete
from builder.smoke.schema import could_not_run
from builder.smoke.slurm import smoke_on_slurm
from builder.smoke.track import TrackError, check, metrics, to_mlflow, to_tensorboard
from builder.store.blobs import Store
from tests.support import image_kit
from tests.support.reports import A100_40, a100, ranked, report

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
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


class Here:
    """A project whose build is pretended, and whose smoke tests give what they are told to."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.root, self.capsys, self.asked = root, capsys, []
        (root / "recipes").mkdir()
        (root / "recipes" / "gpu.yaml").write_text(RECIPE + SLURM)
        self.answers: list[dict[str, Any]] = []
        self.digest = NEW
        here = self

        def build(project: Project, recipe: Any, **options: Any) -> Any:
            return SimpleNamespace(
                recipe=recipe, digest=here.digest, lock=LOCK, sif=None, image=None, artifact=None
            )

        def smoke(project: Project, result: Any, options: SmokeOptions) -> SmokeReport:
            here.asked.append(options)
            answer = here.answers.pop(0) if len(here.answers) > 1 else here.answers[0]
            whole = complete(
                answer, result.recipe, result.digest, "docker", devices=options.devices, lock=result.lock
            )
            path = store_report(whole, project.reports / result.recipe.name)
            return SmokeReport(whole["verdict"], whole, "docker", result.digest, 41.5, path)

        monkeypatch.setattr(Project, "build", build)
        monkeypatch.setattr(Project, "place", lambda self, result: root / "dist")
        monkeypatch.setattr(Project, "smoke", smoke)

    def __call__(self, *args: str, code: int = 0) -> tuple[str, str]:
        """Output and messages of a command, which must end with this code."""
        self.capsys.readouterr()
        got = run(cli, ["--project", str(self.root), "--cache", str(self.root / "cache"), *args])
        out, err = self.capsys.readouterr()
        assert got == code, (got, out, err)
        assert "Traceback" not in out + err
        return out, err

    def json(self, *args: str, code: int = 0) -> Any:
        return json.loads(self(*args, "--json", code=code)[0])

    def before(
        self,
        scale: dict[str, float] | None = None,
        *,
        digest: str = OLD,
        tag: str = "26.10",
        runs: int = 1,
        **more: Any,
    ) -> None:
        """Keeps earlier reports."""
        for n in range(runs):
            made = a100(scale, seed=n, digest=digest, started=f"2026-10-0{n + 1}T00:00:00Z", tag=tag, **more)
            store_report(made, self.root / "reports" / "gpu")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    made = Here(tmp_path, monkeypatch, capsys)
    made.answers = [a100(seed=7)]
    return made


# verdicts and exit codes ------------------------------------------------------------------------------------


def test_a_pass_is_told_graded_and_remembered(here: Here) -> None:
    out, _ = here("smoke", "gpu", "--devices", "1", "--timeout", "99")
    assert "smoke test: pass" in out and "101% of the reference" in out
    assert here.asked == [SmokeOptions(timeout_s=99.0, devices=1)]
    from builder.publishing.publish import SmokeRecord

    assert SmokeRecord(here.root / "cache").passed(NEW) == "pass"


def test_a_slow_gpu_fails_and_is_not_remembered(here: Here) -> None:
    here.answers = [a100({"matmul.bf16": 0.3})]
    out, _ = here("smoke", "gpu", code=11)
    assert "smoke test: fail" in out and "30% of 246 TFLOP/s" in out and "clock, power and heat" in out
    from builder.publishing.publish import SmokeRecord

    assert SmokeRecord(here.root / "cache").passed(NEW) is None
    said = here.json("smoke", "gpu", code=11)
    assert said["verdict"] == "fail" and said["report"]["grade"]["verdict"] == "fail"


def test_what_could_not_be_carried_out_has_a_code_of_its_own(here: Here) -> None:
    here.answers = [
        could_not_run(
            load_recipe("gpu", here.root), "watchdog", "the container did not end in time", "a hung GPU"
        )
    ]
    out, _ = here("smoke", "gpu", code=14)
    assert "smoke test: error" in out and "did not end in time" in out


def test_several_runs_are_all_kept_and_the_worst_counts(here: Here) -> None:
    here.answers = [a100(seed=1), a100({"matmul.bf16": 0.7}), a100(seed=2)]
    said = here.json("smoke", "gpu", "--repeat", "3")
    assert said["verdict"] == "warn" and len(set(said["runs"])) == 3 and len(here.asked) == 3


def test_all_gpus_are_asked_for_and_the_slow_one_is_named(here: Here) -> None:
    devices = [{**A100_40, "rank": i} for i in range(4)]
    here.answers = [report([ranked("matmul.bf16", (248e3, 249e3, 150e3, 247e3))], devices=devices, ranks=4)]
    out, _ = here("smoke", "gpu", "--all-gpus", code=11)
    assert here.asked[0].all_gpus is True
    assert (
        "rank 2 on n017 (cuda:2): 150 TFLOP/s; 4 x NVIDIA A100-SXM4-40GB typically reach 248 TFLOP/s" in out
    )


# comparing --------------------------------------------------------------------------------------------------


def test_a_regression_is_confirmed_by_two_more_runs_and_named_with_packages(here: Here) -> None:
    here.before(runs=2, packages={"torch": "2.12.1", "zlib": "1.3"})
    here.answers = [a100({"matmul.bf16": 0.88}, seed=n) for n in (1, 2, 3)]
    out, err = here("smoke", "gpu", "--compare", "26.10", code=11)
    assert len(here.asked) == 3 and "slower: matmul.bf16; running the test 2 more times to confirm" in err
    assert "1 slower; 3 against 2 runs" in out and "12% slower" in out and "torch 2.12.1 -> 2.13.0" in out
    assert "smoke test: pass" in out  # by itself it is fast enough
    from builder.publishing.publish import SmokeRecord

    assert SmokeRecord(here.root / "cache").passed(NEW) is None


def test_a_single_slow_run_is_forgiven_when_the_next_two_are_not(here: Here) -> None:
    here.before(runs=3)
    here.answers = [a100({"matmul.bf16": 0.9}, seed=1), a100(seed=2), a100(seed=3)]
    said = here.json("smoke", "gpu", "--compare", "previous")
    assert (
        len(here.asked) == 3
        and said["comparison"]["regressions"] == []
        and said["comparison"]["new"]["runs"] == 3
    )


def test_no_further_runs_when_their_number_was_given(here: Here) -> None:
    here.before()
    here.answers = [a100({"memory.copy": 0.8})]
    said = here.json("smoke", "gpu", "--compare", "2026-10", "--repeat", "1", code=11)
    assert len(here.asked) == 1 and said["comparison"]["regressions"] == ["memory.copy"]


def test_what_to_compare_with_is_looked_up_before_anything_runs(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(reference: str, kind: str, *args: Any, **more: Any) -> list[Any]:
        raise RegistryError(f"registry.example has no {reference}", "correct the repository and the tag")

    monkeypatch.setattr("builder.registry.referrers.fetch_attached", nothing)
    _, err = here("smoke", "gpu", "--compare", "25.01", code=9)
    assert "has no registry.example/team/gpu:25.01" in err and not here.asked
    _, err = here("smoke", "gpu", "--compare", "previous", code=1)
    assert "no report of 'previous'" in err and "it has none" in err and not here.asked
    (here.root / "x.json").write_text('{"schema_version": 1}')
    _, err = here("smoke", "gpu", "--compare", str(here.root / "x.json"), code=1)
    assert "schema version 1, not 2" in err and not here.asked


def test_the_registrys_reports_and_bill_of_material_are_used(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = replace(LOCK, packages=(replace(LOCK.packages[0], version="2.9.0"),))
    asked = []

    def attached(reference: str, kind: str, *args: Any, **more: Any) -> list[Any]:
        asked.append((reference, kind))
        data = {
            SMOKE_REPORT: json.dumps(a100(digest=OLD)).encode(),
            SBOM: sbom(load_recipe("gpu", here.root), older, None),
        }[kind]
        return [SimpleNamespace(files=(SimpleNamespace(name="x", data=data),))]

    monkeypatch.setattr("builder.registry.referrers.fetch_attached", attached)
    here.answers = [a100({"matmul.fp16": 0.85})]
    out, _ = here("smoke", "gpu", "--compare", "26.01", "--repeat", "1", code=11)
    assert "torch 2.9.0 -> 2.13.0" in out
    assert asked == [
        ("registry.example/team/gpu:26.01", SMOKE_REPORT),
        ("registry.example/team/gpu:26.01", SBOM),
    ]
    here("smoke", "gpu", "--compare", "oci:dist:gpu", "--repeat", "1", code=11)
    assert asked[2][0] == "oci:dist:gpu"


def test_a_run_that_could_not_be_carried_out_is_compared_with_nothing(here: Here) -> None:
    here.before()
    here.answers = [could_not_run(load_recipe("gpu", here.root), "runner", "docker: no", "x")]
    assert here.json("smoke", "gpu", "--compare", "26.10", code=14)["comparison"] is None


# options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--nodes", "2"], "--nodes requires --on slurm"),
        (["--account", "x"], "add --on slurm"),
        (["--image", "x.sif"], "--image requires --on slurm"),
        (["--on", "slurm", "--runner", "docker"], "cannot be combined"),
        (["--devices", "0"], "Invalid value"),
        (["--repeat", "0"], "Invalid value"),
        (["--on", "pbs"], "Invalid value"),
        (["--mlflow", "http://u:p@host"], "contains a user name or password"),
    ],
)
def test_options_that_do_not_fit(
    here: Here, monkeypatch: pytest.MonkeyPatch, args: list[str], words: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    out, err = here("smoke", "gpu", *args, code=2)
    assert words in err and "u:p" not in out + err and not here.asked


def test_trackers_that_are_not_installed_are_said_before_anything_runs(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    _, err = here("smoke", "gpu", "--mlflow", "file:x", code=2)
    assert "mlflow is not installed" in err and "pip install mlflow-skinny" in err
    _, err = here("smoke", "gpu", "--tensorboard", "x", code=2)
    assert "tensorboardX" in err and not here.asked


# builder report ---------------------------------------------------------------------------------------------


def test_the_page_is_written_and_regressions_are_told(here: Here, tmp_path: Path) -> None:
    here.before(packages={"torch": "2.12.1"})
    here.answers = [a100({"matmul.bf16": 0.85}, started="2026-11-21T08:00:00Z")]
    here("smoke", "gpu")
    (here.root / "reports" / "gpu" / "broken.json").write_text("{")
    out, err = here("report")
    assert "gpu is slower: matmul.bf16" in out and "broken.json: not JSON" in err
    page = (here.root / "reports" / "index.html").read_text()
    assert "1 slower than 26.10" in page and "torch 2.12.1 -&gt; 2.13.0" in page and "broken.json" in page
    said = here.json("report", "gpu", "--output", str(tmp_path / "x.html"))
    assert said["targets"]["gpu"] == {"verdict": "pass", "images": 2, "regressions": ["matmul.bf16"]}
    assert (tmp_path / "x.html").stat().st_size > 10_000


def test_a_page_of_nothing(here: Here) -> None:
    _, err = here("report", code=3)
    assert "no smoke test has been run yet" in err and "builder smoke TARGET" in err
    _, err = here("report", "cpuu", code=3)
    assert "no target named 'cpuu'" in err
    here("report", "gpu", "--output", str(here.root / "x.html"))
    assert "Not tested yet" in (here.root / "x.html").read_text()
    _, err = here("report", "gpu", "--output", str(here.root / "none" / "x.html"), code=2)
    assert "does not exist" in err


# Slurm ------------------------------------------------------------------------------------------------------

FAKE = """\
#!{python}
import json, os, pathlib, re, sys
state = pathlib.Path({state!r})
name = pathlib.Path(sys.argv[0]).name
(state / "calls").open("a").write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if name == "sbatch":
    script = sys.stdin.read()
    (state / "script").write_text(script)
    (state / "cwd").write_text(os.getcwd())
    if (state / "output").exists() and (state / "output").read_text():
        pathlib.Path("smoke-gpu-4711.out").write_text((state / "output").read_text())
    print("4711")
elif name == "scontrol":
    states = (state / "states").read_text().split()
    if states[0] == "silence":
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller")
    if states[0] == "forgotten":
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    print(f"JobId=4711 JobState={{states[0]}} Reason=Priority Dependency=(null)")
    if len(states) > 1:
        (state / "states").write_text(" ".join(states[1:]))
    else:
        report = re.search(r"--json (\\S+)", (state / "script").read_text())
        if report and (state / "report").exists():
            (state / "report").rename(pathlib.Path((state / "cwd").read_text()) / report[1])
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands named like Slurm's that do as ``states`` and ``report`` in the returned folder say."""
    folder, state = tmp_path / "bin", tmp_path / "slurm"
    folder.mkdir()
    state.mkdir()
    for name in ("sbatch", "scontrol", "scancel"):
        (folder / name).write_text(FAKE.format(python=sys.executable, state=str(state)))
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    (state / "states").write_text("PENDING RUNNING COMPLETED")
    return state


def smoked(slurm: Path, here: Here, options: SmokeOptions = DEFAULTS, **job: Any) -> SmokeReport:
    return smoke_on_slurm(
        load_recipe("gpu", here.root),
        NEW,
        here.root / "reports" / "gpu",
        slurm=SlurmOptions("/work/x.sif", **job),
        options=options,
        lock=LOCK,
        sleep=lambda s: None,
    )


def test_a_job_runs_the_benchmark_on_the_sites_nodes_and_its_report_is_graded(
    slurm: Path, here: Here
) -> None:
    devices = [{**A100_40, "rank": i} for i in range(8)]
    (slurm / "report").write_text(
        json.dumps(report([ranked("matmul.bf16", [248e3] * 8)], devices=devices, ranks=8))
    )
    got = smoked(slurm, here, SmokeOptions(devices=4, timeout_s=120), nodes=2, account="me")
    assert (
        got.verdict == "pass"
        and got.runner == "slurm (apptainer)"
        and got.report["image"]["packages"] == {"torch": "2.13.0"}
    )
    script = (slurm / "script").read_text()
    assert (
        "#SBATCH --nodes=2" in script
        and "#SBATCH --time=00:07:00" in script
        and "#SBATCH --account=me" in script
    )
    assert (
        "/opt/builder/smoke.py --json report.json" in " ".join(script.split())
        and "--devices 4" in script
        and "/work/x.sif" in script
    )
    assert Path((slurm / "cwd").read_text()).parent == here.root / "reports" / "gpu"
    (kept,) = (here.root / "reports" / "gpu").iterdir()  # no job's own file is left
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
def test_a_job_without_a_report_is_an_error_that_says_why(
    slurm: Path, here: Here, states: str, output: str, probe: str, words: list[str]
) -> None:
    (slurm / "states").write_text(states)
    (slurm / "output").write_text(output)
    got = smoked(slurm, here)
    (found,) = got.report["probes"]
    assert got.verdict == "error" and found["id"] == probe and all(w in found["seen"] for w in words), found
    kept = sorted(p.name for p in (here.root / "reports" / "gpu").iterdir())
    assert kept[1:] == (["job-4711.out"] if output else []) and kept[0].endswith(
        ".json"
    )  # what explains it stays
    assert not output or str(here.root / "reports" / "gpu" / "job-4711.out") in found["advice"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "damaged report"), ('{"schema_version": 1}', "schema version 1"), ("[]", "not a smoke report")],
)
def test_a_damaged_report_of_a_job_is_no_pass(slurm: Path, here: Here, text: str, words: str) -> None:
    (slurm / "report").write_text(text)
    got = smoked(slurm, here)
    assert got.verdict == "error" and words in got.report["probes"][0]["seen"]


def test_an_interrupted_wait_cancels_the_job(slurm: Path, here: Here) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        smoke_on_slurm(
            load_recipe("gpu", here.root),
            NEW,
            here.root / "reports" / "gpu",
            slurm=SlurmOptions("/x.sif"),
            sleep=interrupt,
        )
    assert '["scancel", "4711"]' in (slurm / "calls").read_text()
    assert not list((here.root / "reports" / "gpu").iterdir())


def test_a_slurm_that_does_not_answer(slurm: Path) -> None:
    (slurm / "states").write_text("silence")
    with pytest.raises(RunnerError, match="does not answer about job 4711: .*Unable to contact"):
        wait("4711", sleep=lambda s: None)


def test_a_site_without_slurm(here: Here) -> None:
    (here.root / "recipes" / "gpu.yaml").write_text(RECIPE)
    with pytest.raises(UsageError, match="has no scheduler") as e:
        smoke_on_slurm(
            load_recipe("gpu", here.root), NEW, here.root / "reports" / "gpu", slurm=SlurmOptions()
        )
    assert "builder smoke gpu" in e.value.hint


def test_the_command_hands_a_job_what_it_was_given(
    here: Here, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.site.slurm.POLL_S", 0.0)
    devices = [{**A100_40, "rank": i} for i in range(4)]
    (slurm / "report").write_text(
        json.dumps(report([ranked("matmul.bf16", [248e3] * 4)], devices=devices, ranks=4))
    )
    said = here.json(
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
    assert said["verdict"] == "pass" and said["runner"] == "slurm (apptainer)" and not here.asked
    script = (slurm / "script").read_text()
    assert "--time=0:09:00" in script and "/x.sif" in script and "4" in script.split("gpus")[1][:20]


# trackers ---------------------------------------------------------------------------------------------------


def test_figures_of_a_report() -> None:
    devices = [{**A100_40, "rank": i} for i in range(2)]
    made = report([ranked("matmul.bf16", (248e3, 240e3))], devices=devices, ranks=2)
    made["grade"] = {
        "findings": [
            {"id": "matmul.bf16", "device": "rank 1 on n017 (cuda:1)", "basis": "achieved", "fraction": 0.97}
        ]
    }
    assert metrics(made) == {
        "matmul.bf16.gflop_per_s.rank0": 248e3,
        "matmul.bf16.gflop_per_s.rank1": 240e3,
        "matmul.bf16.fraction.rank1": 0.97,
    }


def test_mlflow_receives_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # since 3.x it wants to be asked
    mlflow = _tracker("mlflow")
    made = complete(a100(), load_recipe("gpu", _project(tmp_path)), NEW, "docker", lock=LOCK)
    path, uri = store_report(made, tmp_path / "kept"), f"file://{tmp_path}/runs"
    check(uri, None)
    number = to_mlflow(uri, made, path)
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.get_run(number)
    assert run.data.metrics["matmul.bf16.gflop_per_s"] == pytest.approx(248e3, rel=0.02)
    assert run.data.metrics["matmul.bf16.fraction"] == pytest.approx(1.0, abs=0.03)
    assert (run.data.tags["verdict"], run.data.tags["digest"], run.info.status) == ("pass", NEW, "FINISHED")
    assert [a.path for a in client.list_artifacts(number)] == [path.name]
    assert (
        to_mlflow(uri, {**made, "verdict": "fail"}, None) != number
    )  # a run of its own in the same experiment
    assert len(client.search_runs([run.info.experiment_id])) == 2


def test_an_mlflow_that_says_no_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tracker("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackError, match="MLflow at http://127.0.0.1:9/: ") as e:
        to_mlflow("http://127.0.0.1:9/", a100(), None)
    assert "\n" not in e.value.message and "the report itself is stored" in e.value.hint


def _tracker(name: str) -> Any:
    """A package of the dev extra: in CI it has to be there."""
    return importlib.import_module(name) if os.environ.get("CI") else pytest.importorskip(name)


def _project(folder: Path) -> Path:
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes" / "gpu.yaml").write_text(RECIPE)
    return folder


def test_tensorboard_receives_the_run(tmp_path: Path) -> None:
    _tracker("tensorboardX")
    check(None, tmp_path)
    place = to_tensorboard(
        tmp_path / "tb", complete(a100(), load_recipe("gpu", _project(tmp_path)), NEW, "docker")
    )
    (events,) = place.iterdir()
    data = events.read_bytes()
    assert b"smoke/matmul.bf16.gflop_per_s" in data and b"smoke/matmul.bf16.fraction" in data
    assert place.name == "gpu-20261121T080000Z"


# reports attached to an image in a real OCI layout ----------------------------------------------------------


def test_reports_attached_to_an_image_of_a_layout_are_compared_with(here: Here) -> None:
    store = Store(here.root / "cache")
    made = image_kit.image(store, image_kit.layer(store, image_kit.member("a", b"1")))
    layout, settings = (
        here.root / "published",
        Settings(cache=here.root / "cache", tmpdir=here.root / "cache" / "tmp", jobs=1),
    )
    write_layout(made, layout, "26.02", store)
    older = replace(LOCK, packages=(replace(LOCK.packages[0], version="2.9.0"),))
    for n, kind, data in (
        (1, SMOKE_REPORT, json.dumps(a100(digest=made.digest, seed=1)).encode()),
        (2, SMOKE_REPORT, json.dumps(a100(digest=made.digest, seed=2)).encode()),
        (3, SBOM, sbom(load_recipe("gpu", here.root), older, None)),
    ):
        attach_in_layout(
            layout, store, made.manifest_descriptor, kind, [AttachedFile(f"{n}.json", kind, data)]
        )
    assert len(fetch_attached(f"oci:{layout}:26.02", SMOKE_REPORT, settings)) == 2
    here.answers = [a100({"matmul.fp16": 0.85})]
    said = here.json("smoke", "gpu", "--compare", f"oci:{layout}:26.02", "--repeat", "1", code=11)
    assert said["comparison"]["regressions"] == ["matmul.fp16"] and said["comparison"]["old"]["runs"] == 2
    assert said["comparison"]["packages"] == [{"name": "torch", "old": "2.9.0", "new": "2.13.0"}]
    _, err = here("smoke", "gpu", "--compare", f"oci:{layout}:25.12", code=8)
    assert "holds no image '25.12'" in err and "26.02" in err
    write_layout(made, here.root / "bare", "1", store)
    _, err = here("smoke", "gpu", "--compare", f"oci:{here.root}/bare:1", code=1)
    assert "no report of" in err
