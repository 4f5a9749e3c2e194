"""What becomes of what the benchmark said, or did not say."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

import builder.smoke.run as smoke_module
from builder.errors import ImageError, RunnerError
from builder.model import Lock, LockedPackage
from builder.run.base import Completed
from builder.settings import Settings
from builder.smoke.run import interpret, smoke
from builder.smoke.schema import could_not_run, find_report
from builder.smoke.table import figures, render
from builder.store.blobs import Store
from tests.support.image_kit import image, layer, member, recipe

SCHEMA = json.loads((Path(smoke_module.__file__).parent / "report.schema.json").read_text())
RECIPE = recipe(gpu={"vendor": "nvidia", "architectures": ["sm_80", "sm_90"]})
FAILED = {"id": "x", "status": "fail", "seen": "", "advice": ""}
GOOD: dict[str, Any] = {
    "schema_version": 2,
    "verdict": "pass",
    "started": "2026-01-01T00:00:00Z",
    "duration_s": 3.5,
    "expect": {"gpu": "nvidia", "architectures": [], "devices": None},
    "facts": {"devices": [{"name": "Some GPU", "architecture": "sm_80", "memory_bytes": 42297786368}]},
    "probes": [
        {"id": "torch.build", "status": "pass", "seen": "CUDA build", "advice": ""},
        {"id": "gpu.x", "status": "skip", "seen": "not [here]", "advice": ""},
    ],
    "measurements": [
        {
            "id": "matmul.fp32",
            "status": "pass",
            "seen": "",
            "advice": "",
            "device": "cuda:0",
            "median_gflop_per_s": 83.81,
            "mad_gflop_per_s": 6.6,
            "samples_gflop_per_s": [83.81],
            "repeats": 5,
            "size": 2048,
            "correctness": {"check": "c", "value": 0.0, "limit": 1.0, "ok": True},
        }
    ],
}


def said(report: Any, code: int = 0, **more: Any) -> Completed:
    return Completed(
        code,
        report if isinstance(report, str) else json.dumps(report, indent=1),
        more.pop("stderr", ""),
        **more,
    )


def test_a_good_report_is_taken_as_it_is() -> None:
    jsonschema.validate(GOOD, SCHEMA)
    assert interpret(said(GOOD), RECIPE) == GOOD
    assert interpret(said({**GOOD, "verdict": "warn"}), RECIPE)["verdict"] == "warn"
    assert interpret(said({**GOOD, "verdict": "fail"}, 1), RECIPE)["verdict"] == "fail"


def test_noise_around_the_report_does_no_harm() -> None:
    noise = f'starting {{"up"}}\n{{"schema": 3}}\n{{broken\n{json.dumps(GOOD, indent=1)}\nbye {{}}\n'
    assert interpret(said(noise), RECIPE) == GOOD
    assert (
        find_report("") is None
        and find_report("no JSON { here }") is None
        and find_report("{" * 100_000) is None
    )


@pytest.mark.parametrize(
    ("done", "probe", "words"),
    [
        (said("", 127, stderr="exec: python: not found"), "report", ["exit code 127", "not found"]),
        (said("", 137, stderr=""), "report", ["137", "nothing was said"]),
        (said(json.dumps(GOOD)[:-40], 0), "report", ["no report"]),
        (said("[1, 2]"), "report", ["no report"]),
        (said({**GOOD, "schema_version": 0}), "report", ["schema version 0"]),
        (said({**GOOD, "schema_version": None}), "report", ["schema version None"]),
        (said({**GOOD, "verdict": "great"}), "report", ["verdict 'great'"]),
        (said({**GOOD, "verdict": ["pass"]}), "report", ["verdict ['pass']"]),
        (said({k: v for k, v in GOOD.items() if k != "probes"}), "report", ["probes"]),
        (said({**GOOD, "facts": []}), "report", ["facts"]),
        (said({**GOOD, "probes": [{"id": "x", "status": "pass"}]}), "report", ["without id, seen or advice"]),
        (said({**GOOD, "probes": ["x"]}), "report", ["without a status"]),
        (said({**GOOD, "probes": [FAILED]}), "report", ["something in it says 'fail'"]),
        (said({**GOOD, "verdict": "warn", "measurements": [FAILED]}), "report", ["says 'fail'"]),
        (said(GOOD, 1), "report", ["'pass'", "code 1"]),
        (said({**GOOD, "verdict": "fail"}, 0), "report", ["'fail'", "code 0"]),
        (said(GOOD, 124, timed_out=True), "watchdog", ["did not end in time"]),
        (said("\0\ufffd", 1, stderr="Traceback\n  ...\nKeyError: 1"), "report", ["KeyError"]),
    ],
)
def test_anything_else_is_an_error_that_says_why(done: Completed, probe: str, words: list[str]) -> None:
    report = interpret(done, RECIPE)
    jsonschema.validate(report, SCHEMA)
    assert report["verdict"] == "error"
    (found,) = report["probes"]
    assert found["id"] == probe and found["status"] == "fail" and found["advice"]
    assert all(word in found["seen"] for word in words), found["seen"]
    assert report["expect"]["architectures"] == ["sm_80", "sm_90"]


class FakeRunner:
    """Gives what it was told to, and remembers how it was asked."""

    def __init__(self, name: str, answer: Completed | Exception) -> None:
        self.name, self.answer = name, answer
        self.asked: list[tuple[list[str], dict[str, Any]]] = []

    def available(self) -> str | None:
        return None

    def run(self, image: Any, command: Sequence[str], **options: Any) -> Completed:
        self.asked.append((list(command), options))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self, *a: Any) -> None: ...
    def advance(self, *a: Any) -> None: ...
    def finish(self, *a: Any) -> None: ...
    def note(self, message: str) -> None:
        self.lines.append(message)

    warn = note


def smoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *runners: FakeRunner, **options: Any) -> Any:
    monkeypatch.setattr("builder.run.select.runners", lambda *a: list(runners))
    store = Store(tmp_path / "cache")
    made = image(store, layer(store, member("a", b"1")))
    settings = Settings(cache=tmp_path / "cache", tmpdir=tmp_path / "tmp", jobs=1)
    return made, smoke(made, RECIPE, settings, store, **options)


def test_the_benchmark_is_run_by_the_images_python_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    four = {**GOOD, "facts": {"devices": GOOD["facts"]["devices"] * 4}}
    runner = FakeRunner("docker", said(four))
    made, report = smoked(tmp_path, monkeypatch, runner, timeout_s=77, devices=4, folder=tmp_path / "reports")
    ((command, options),) = runner.asked
    assert command == [
        "/opt/conda/bin/python",
        "/opt/builder/smoke.py",
        "--json",
        "-",
        "--expect",
        "nvidia",
        "--timeout",
        "77",
        "--architectures",
        "sm_80,sm_90",
        "--devices",
        "4",
    ]
    assert options["entrypoint"] == ["/opt/builder/entrypoint"] and options["gpu"] == "nvidia"
    assert options["timeout_s"] > 77  # the benchmark's own watchdog comes first
    assert (report.verdict, report.runner, report.image_digest) == ("pass", "docker", made.digest)
    assert report.report["image"] == {
        "digest": made.digest,
        "target": "tiny",
        "runner": "docker",
        "tag": "26.01",
    }
    assert report.path.parent == tmp_path / "reports" / "tiny" and report.path.name.startswith(
        made.digest[7:19]
    )
    kept = json.loads(report.path.read_text())
    jsonschema.validate(kept, SCHEMA)
    assert kept == report.report and kept["grade"]["verdict"] == "pass"


def test_the_worse_of_verdict_and_grade_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {
        **GOOD["facts"]["devices"][0],
        "name": "NVIDIA A100-SXM4-40GB",
    }  # 83.81 GFLOP/s is no speed for one
    runner = FakeRunner("docker", said({**GOOD, "facts": {"devices": [slow]}}))
    _, report = smoked(tmp_path, monkeypatch, runner)
    assert report.verdict == "fail" == report.report["verdict"]
    (found,) = [f for f in report.report["grade"]["findings"] if f["status"] == "fail"]
    assert found["id"] == "matmul.fp32" and "0% of 18.1 TFLOP/s" in found["seen"]


def test_a_lock_says_what_is_in_the_image_and_two_runs_in_a_second_are_both_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = (
        LockedPackage(
            "numpy",
            "2.3.1",
            "conda",
            "linux-64",
            "https://c.example/linux-64/numpy-2.3.1-py311h0_0.conda",
            "0" * 64,
        ),
        LockedPackage(
            "torch", "2.13.0", "pip", "linux-64", "https://p.example/torch-2.13.0-py3-none-any.whl", "1" * 64
        ),
        LockedPackage(
            "numpy",
            "2.3.1",
            "conda",
            "linux-aarch64",
            "https://c.example/linux-aarch64/numpy-2.3.1-x_0.conda",
            "2" * 64,
        ),
    )
    lock = Lock(packages, ("linux-64",))
    runner = FakeRunner("docker", said(GOOD))
    _, one = smoked(tmp_path, monkeypatch, runner, folder=tmp_path / "reports", lock=lock)
    _, two = smoked(tmp_path, monkeypatch, runner, folder=tmp_path / "reports", lock=lock)
    assert one.report["image"]["packages"] == {"numpy": "2.3.1 py311h0_0", "torch": "2.13.0"}
    assert one.path != two.path and one.path.read_text() == two.path.read_text()
    jsonschema.validate(one.report, SCHEMA, jsonschema.Draft202012Validator)


def test_nothing_measured_is_no_pass() -> None:
    report = interpret(said({**GOOD, "measurements": []}), RECIPE)
    assert report["verdict"] == "error" and "nothing was measured" in report["probes"][0]["seen"]


def test_a_runner_that_starts_nothing_gives_way_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, works, heard = (
        FakeRunner("docker", RunnerError("no cgroups here", "hint")),
        FakeRunner("userns", said(GOOD)),
        Heard(),
    )
    _, report = smoked(tmp_path, monkeypatch, broken, works, reporter=heard)
    assert (report.verdict, report.runner) == ("pass", "userns")
    assert any("no cgroups here" in line and "userns" in line for line in heard.lines)


def test_a_runner_that_was_asked_for_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, works = (
        FakeRunner("docker", RunnerError("no cgroups here", "a hint")),
        FakeRunner("userns", said(GOOD)),
    )
    _, report = smoked(tmp_path, monkeypatch, broken, works, runner="docker")
    assert report.verdict == "error" and not works.asked
    (found,) = report.report["probes"]
    assert found == {"id": "runner", "status": "fail", "seen": "docker: no cgroups here", "advice": "a hint"}


def test_when_no_runner_starts_anything_the_last_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [FakeRunner(n, RunnerError(f"{n} is broken", "hint")) for n in ("docker", "userns")]
    _, report = smoked(tmp_path, monkeypatch, *both)
    assert report.verdict == "error" and "userns is broken" in report.report["probes"][0]["seen"]


def test_an_image_that_cannot_be_unpacked_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, other = (
        FakeRunner("userns", ImageError("the layer is damaged", "build again")),
        FakeRunner("docker", said(GOOD)),
    )
    _, report = smoked(tmp_path, monkeypatch, runner, other)
    assert report.verdict == "error" and "damaged" in report.report["probes"][0]["seen"] and not other.asked


def shown(report: Mapping[str, Any], **options: Any) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    value = smoke_module.SmokeReport(report["verdict"], dict(report), "docker", "sha256:" + "0" * 64, 3.5)
    console.print(render(value, **options))
    return console.export_text()


def test_the_table_shows_what_a_person_needs() -> None:
    text = shown(GOOD)
    assert (
        "pass in 3.5 s (docker)" in text
        and "83.81 gflop/s ± 6.6 (5 times, size 2048)" in text
        and "not [here]" not in text
    )
    assert "not [here]" in shown(GOOD, skipped=True)
    text = shown(could_not_run(RECIPE, "report", "said [bold]nothing[/bold]", "look"))
    assert "error" in text and "said [bold]nothing[/bold]" in text and "-> look" in text


def test_a_figure_without_its_companions_is_shown_as_it_is() -> None:
    assert figures({"median_s": 1.5}) == "1.5 s"
    assert figures({"median_s": None, "repeats": 3}) == "" and figures({}) == ""
