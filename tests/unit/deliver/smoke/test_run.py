"""Running the smoke test: the benchmark's command, its output, its report, and runners that do not work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.build.run.base import RunOptions
from builder.build.run.process import Completed
from builder.core.errors import ImageError, RunnerError
from builder.core.model import Lock, LockedPackage, SifImage
from builder.core.progress import QUIET
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.store.files import write_atomic
from builder.core.workspace import Workspace
from builder.deliver.smoke.options import SmokeOptions
from builder.deliver.smoke.run import interpret, smoke
from builder.deliver.smoke.schema import find_report
from builder.deliver.smoke.suggested import SmokePlan
from builder.formats.sif.read import sif_digest
from tests.support.image_kit import image, layer, member, recipe
from tests.support.reports import SMALL
from tests.support.schema import check_report

RECIPE = recipe(gpu={"vendor": "nvidia", "architectures": ["sm_80", "sm_90"]})
FAILED = {"id": "x", "status": "fail", "seen": "", "advice": ""}


def printed(report: Any, code: int = 0, **more: Any) -> Completed:
    return Completed(
        code,
        report if isinstance(report, str) else json.dumps(report, indent=1),
        more.pop("stderr", ""),
        **more,
    )


def test_valid_report() -> None:
    """A valid report is used unchanged."""
    check_report(SMALL)
    assert interpret(printed(SMALL), RECIPE) == SMALL
    assert interpret(printed({**SMALL, "verdict": "warn"}), RECIPE)["verdict"] == "warn"
    assert interpret(printed({**SMALL, "verdict": "fail"}, 1), RECIPE)["verdict"] == "fail"
    untested = interpret(printed({**SMALL, "verdict": "none"}), RECIPE)
    assert untested["verdict"] == "error", "only the recipe says that an image is not tested"


def test_other_output() -> None:
    """The output may contain other text."""
    noise = f'starting {{"up"}}\n{{"schema": 3}}\n{{broken\n{json.dumps(SMALL, indent=1)}\nbye {{}}\n'
    assert interpret(printed(noise), RECIPE) == SMALL
    assert (
        find_report("") is None
        and find_report("no JSON { here }") is None
        and find_report("{" * 100_000) is None
        and find_report('{"a":[\n' * 2_000_000) is None
    )


@pytest.mark.parametrize(
    ("done", "probe", "words"),
    [
        (printed("", 127, stderr="exec: python: not found"), "report", ["exit code 127", "not found"]),
        (printed("", 137, stderr=""), "report", ["137", "no output"]),
        (printed(json.dumps(SMALL)[:-40], 0), "report", ["no report"]),
        (printed("[1, 2]"), "report", ["no report"]),
        (printed({**SMALL, "schema_version": 0}), "report", ["schema version 0"]),
        (printed({**SMALL, "schema_version": None}), "report", ["schema version None"]),
        (printed({**SMALL, "verdict": "great"}), "report", ["verdict: input should be"]),
        (printed({**SMALL, "verdict": ["pass"]}), "report", ["verdict: input should be"]),
        (printed({k: v for k, v in SMALL.items() if k != "probes"}), "report", ["probes"]),
        (printed({**SMALL, "facts": []}), "report", ["facts"]),
        (
            printed({**SMALL, "probes": [{"id": "x", "status": "pass"}]}),
            "report",
            ["probes.0.seen: field required"],
        ),
        (printed({**SMALL, "probes": ["x"]}), "report", ["probes.0: input should be"]),
        (printed({**SMALL, "probes": [FAILED]}), "report", ["contains status 'fail'"]),
        (
            printed({**SMALL, "verdict": "warn", "measurements": [FAILED]}),
            "report",
            ["contains status 'fail'"],
        ),
        (printed(SMALL, 1), "report", ["'pass'", "exit code is 1"]),
        (printed({**SMALL, "verdict": "fail"}, 0), "report", ["'fail'", "exit code is 0"]),
        (printed(SMALL, 124, timed_out=True), "watchdog", ["did not end in time"]),
        (printed("\0\ufffd", 1, stderr="Traceback\n  ...\nKeyError: 1"), "report", ["KeyError"]),
    ],
)
def test_invalid_output(done: Completed, probe: str, words: list[str]) -> None:
    """Any other output is an error that says what is wrong."""
    report = interpret(done, RECIPE)
    check_report(report)
    assert report["verdict"] == "error"
    (found,) = report["probes"]
    assert found["id"] == probe and found["status"] == "fail" and found["advice"]
    assert all(word in found["seen"] for word in words), found["seen"]
    assert report["expect"]["architectures"] == ["sm_80", "sm_90"]


class FakeRunner:
    """Returns a given result, and records how it was called."""

    def __init__(self, name: str, answer: Completed | Exception) -> None:
        self.name, self.answer = name, answer
        self.asked: list[tuple[list[str], RunOptions]] = []

    def available(self) -> str | None:
        return None

    def run(self, image: Any, command: Sequence[str], options: RunOptions) -> Completed:
        self.asked.append((list(command), options))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Messages:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self, task: str, *a: Any, **more: Any) -> None:
        self.lines.append(f"begin {task}")

    def finish(self, task: str, *a: Any) -> None:
        self.lines.append(f"end {task}")

    def advance(self, *a: Any) -> None: ...

    def doing(self, task: str, what: str) -> None:
        self.lines.append(f"{task}: {what}")

    def note(self, message: str) -> None:
        self.lines.append(message)

    warn = note


def smoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *runners: FakeRunner, **options: Any) -> Any:
    monkeypatch.setattr("builder.build.run.select.runners", lambda *a, **more: list(runners))
    store = Store(tmp_path / "cache")
    made = image(store, layer(store, member("a", b"1")))
    settings = Settings(cache=tmp_path / "cache", tmpdir=tmp_path / "tmp", jobs=1)
    reporter = options.pop("reporter", QUIET)
    return made, smoke(made, RECIPE, Workspace(settings, store, reporter), **options)


def test_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step that the benchmark announces is reported; other output is not."""

    class Talking(FakeRunner):
        def run(self, image: Any, command: Sequence[str], options: RunOptions) -> Completed:
            for line in ("warming up", "smoke: begin a.b", "smoke: begin \033[2J", "smoke: begin c"):
                assert options.on_line is not None
                options.on_line(line)
            return super().run(image, command, options)

    messages = Messages()
    smoked(tmp_path, monkeypatch, Talking("userns", printed(SMALL)), reporter=messages)
    task = "smoke test of tiny"
    assert messages.lines[1:] == [f"begin {task}", f"{task}: a.b", f"{task}: c", f"end {task}"]


def test_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is part of the command; the recipe's own test has its time in addition."""
    runner = FakeRunner("userns", printed(SMALL))
    plan = SmokePlan(imports=("a",), command=("x",), timeout_s=50)
    smoked(tmp_path, monkeypatch, runner, options=SmokeOptions(timeout_s=100, plan=plan))
    ((command, ran),) = runner.asked
    assert command[4:12] == [*plan.arguments()] and command[command.index("--timeout") + 1] == "150"
    assert ran.timeout_s is not None and ran.timeout_s > 150


def test_untested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that the recipe does not test gets a report that says so, and nothing runs."""
    runner = FakeRunner("userns", RunnerError("no", ""))
    options = SmokeOptions(plan=SmokePlan(none="why"))
    made, done = smoked(tmp_path, monkeypatch, runner, options=options, folder=tmp_path / "reports")
    check_report(done.report)
    assert (done.verdict, done.report["test"], done.path) == ("none", {"none": "why"}, None)
    assert not runner.asked and not (tmp_path / "reports").exists()


def test_image_without_python() -> None:
    """The hint names the key of the recipe."""
    report = interpret(printed("", 127, stderr="exec: /opt/conda/bin/python: not found"), RECIPE)
    assert 'smoke: {none: "it has no Python"}' in report["probes"][0]["advice"]


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image's Python runs the benchmark through builder's entry point."""
    four = {**SMALL, "facts": {"devices": SMALL["facts"]["devices"] * 4}}
    runner = FakeRunner("docker", printed(four))
    options, folder = SmokeOptions(timeout_s=77, devices=4), tmp_path / "reports"
    made, report = smoked(tmp_path, monkeypatch, runner, options=options, folder=folder)
    ((command, ran),) = runner.asked
    assert " ".join(command) == (
        "/opt/conda/bin/python /opt/builder/smoke.py --json - --framework torch --expect nvidia --timeout 77 "
        "--architectures sm_80,sm_90 --devices 4 --progress"
    )
    assert ran.entrypoint == ["/opt/builder/entrypoint"] and ran.gpu == "nvidia"
    assert ran.timeout_s is not None and ran.timeout_s > 77  # the benchmark's own watchdog acts first
    assert (report.verdict, report.runner, report.image_digest) == ("pass", "docker", made.digest)
    about = {"digest": made.digest, "target": "tiny", "runner": "docker", "tag": "26.01"}
    assert report.report["image"] == about
    assert report.path.parent == tmp_path / "reports" / "tiny"
    assert report.path.name.startswith(made.digest[7:19])
    kept = json.loads(report.path.read_text())
    check_report(kept)
    assert kept == report.report and kept["grade"]["verdict"] == "skip"


def test_worse_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict is the worse of the benchmark and the grade."""
    slow = {**SMALL["facts"]["devices"][0], "name": "NVIDIA A100-SXM4-40GB"}  # this GPU is faster
    runner = FakeRunner("docker", printed({**SMALL, "facts": {"devices": [slow]}}))
    _, report = smoked(tmp_path, monkeypatch, runner)
    assert report.verdict == "fail" == report.report["verdict"]
    (found,) = [f for f in report.report["grade"]["findings"] if f["status"] == "fail"]
    assert found["id"] == "matmul.fp32" and "0% of 18.1 TFLOP/s" in found["seen"]


def test_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report lists the packages; two runs in one second are two files."""
    url = "https://c.example/linux-64/numpy-2.3.1-py311h0_0.conda"
    packages = tuple(
        LockedPackage("numpy", "2.3.1", "conda", platform, url.replace("linux-64", platform), "0" * 64)
        for platform in ("linux-64", "linux-aarch64")
    )
    lock = Lock(packages, ("linux-64",))
    runner = FakeRunner("docker", printed(SMALL))
    _, one = smoked(tmp_path, monkeypatch, runner, folder=tmp_path / "reports", lock=lock)
    _, two = smoked(tmp_path, monkeypatch, runner, folder=tmp_path / "reports", lock=lock)
    assert one.report["image"]["packages"] == {"numpy": "2.3.1 py311h0_0"}
    assert one.path != two.path and one.path.read_text() == two.path.read_text()
    check_report(one.report)


def test_nothing_measured() -> None:
    """A report without measurements is an error."""
    report = interpret(printed({**SMALL, "measurements": []}), RECIPE)
    assert report["verdict"] == "error" and "nothing was measured" in report["probes"][0]["seen"]


def test_next_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a runner cannot start the image, the next one is tried."""
    broken, works, heard = (
        FakeRunner("docker", RunnerError("no cgroups here", "hint")),
        FakeRunner("userns", printed(SMALL)),
        Messages(),
    )
    _, report = smoked(tmp_path, monkeypatch, broken, works, reporter=heard)
    assert (report.verdict, report.runner) == ("pass", "userns")
    assert any("no cgroups here" in line and "userns" in line for line in heard.lines)


def test_sif_replaced_while_it_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict of another SIF, which a second build wrote to the same place, does not count."""
    path = tmp_path / "t.sif"
    path.write_bytes(b"first")
    store = Store(tmp_path / "cache")
    sif = SifImage(path, sif_digest(path, store), 5, "amd64")

    class Replacing(FakeRunner):
        def run(self, image: Any, command: Sequence[str], options: RunOptions) -> Completed:
            write_atomic(path, b"other")
            return super().run(image, command, options)

    settings = Settings(cache=tmp_path / "cache", tmpdir=tmp_path / "tmp", jobs=1)
    for runner, verdict in ((FakeRunner, "pass"), (Replacing, "error")):
        monkeypatch.setattr(
            "builder.build.run.select.runners", lambda *a, r=runner, **more: [r("userns", printed(SMALL))]
        )
        report = smoke(sif, RECIPE, Workspace(settings, store))
        assert report.verdict == verdict
    assert "another build replaced" in report.report["probes"][0]["seen"]


def test_requested_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a requested runner fails, no other one is tried."""
    broken, works = (
        FakeRunner("docker", RunnerError("no cgroups here", "a hint")),
        FakeRunner("userns", printed(SMALL)),
    )
    _, report = smoked(tmp_path, monkeypatch, broken, works, options=SmokeOptions(runner="docker"))
    assert report.verdict == "error" and not works.asked
    (found,) = report.report["probes"]
    assert found == {"id": "runner", "status": "fail", "seen": "docker: no cgroups here", "advice": "a hint"}


def test_no_runner_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no runner works, the report contains the last reason."""
    both = [FakeRunner(n, RunnerError(f"{n} is broken", "hint")) for n in ("docker", "userns")]
    _, report = smoked(tmp_path, monkeypatch, *both)
    assert report.verdict == "error" and "userns is broken" in report.report["probes"][0]["seen"]


def test_damaged_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that cannot be unpacked is an error; no other runner is tried."""
    runner, other = (
        FakeRunner("userns", ImageError("the layer is damaged", "build again")),
        FakeRunner("docker", printed(SMALL)),
    )
    _, report = smoked(tmp_path, monkeypatch, runner, other)
    assert report.verdict == "error" and "damaged" in report.report["probes"][0]["seen"] and not other.asked
