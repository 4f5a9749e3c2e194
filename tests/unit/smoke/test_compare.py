"""Kept reports and comparing them: a planted regression is named with its packages, noise is not."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from builder.model import Lock, LockedPackage
from builder.publishing.attest import sbom
from builder.smoke.history import (
    FLOORS,
    Kept,
    PackageChange,
    ReportError,
    changed_packages,
    compare,
    packages_of_sbom,
    parse_report,
    read_folder,
    read_report,
    resolve,
)
from builder.smoke.run import keep
from builder.smoke.schema import packages_of
from tests.support.image_kit import recipe
from tests.support.reports import A100_40, MI250X, a100, cpu, measured, ranked, report

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def kept(value: dict[str, Any], source: str = "here") -> Kept:
    return Kept(value, source)


def runs(
    count: int, scale: dict[str, float] | None = None, *, digest: str = OLD, make: Any = a100, **more: Any
) -> list[Kept]:
    """Several runs of an image: each with noise of its own, and with what differs from run to run."""
    rng = random.Random(f"{digest} {more}")
    out = []
    for n in range(count):
        drift = {k: v * (1 + rng.gauss(0, 0.006)) for k, v in (scale or {}).items()}
        out.append(
            kept(make(drift, seed=n, digest=digest, started=f"2026-11-2{n}T08:00:00Z", **more), f"run {n}")
        )
    return out


# reading --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["not JSON"]),
        ("{", ["not JSON"]),
        ("\x00\xff", ["not JSON"]),
        ("[" * 100_000, ["not JSON", "nested too deep"]),
        ("[]", ["no smoke report"]),
        ("{}", ["no smoke report"]),
        ('{"schema_version": 2}', ["damaged", "verdict None"]),
        (
            json.dumps({**a100(), "schema_version": 1}),
            ["schema version 1, not 2", "another version of builder"],
        ),
        (json.dumps({**a100(), "schema_version": 99}), ["schema version 99"]),
        (json.dumps({**a100(), "verdict": "great"}), ["verdict 'great'"]),
        (json.dumps({**a100(), "measurements": []}), ["nothing was measured"]),
        (json.dumps({**a100(), "measurements": {}}), ["measurements is no list"]),
        (json.dumps({**a100(), "image": []}), ["image is no mapping"]),
        (json.dumps({**a100(), "started": 5}), ["no time in UTC"]),
        (json.dumps({**a100(), "started": "yesterday"}), ["no time in UTC"]),
        (json.dumps({**a100(), "duration_s": "x"}), ["duration_s"]),
        (json.dumps({**a100(), "grade": {"findings": [{"id": "x"}]}}), ["its grade is none"]),
        (json.dumps({**a100(), "image": {"packages": ["torch"]}}), ["image is no mapping"]),
    ],
)
def test_what_is_no_report_is_said_and_never_a_pass(text: str, words: list[str]) -> None:
    with pytest.raises(ReportError) as e:
        parse_report(text, "old.json")
    assert e.value.message.startswith("old.json: ") and all(w in e.value.message for w in words), (
        e.value.message
    )
    assert "builder smoke" in e.value.hint


def test_a_missing_or_closed_file(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="no such report"):
        read_report(tmp_path / "none.json")
    with pytest.raises(ReportError, match="cannot be read: Is a directory"):
        read_report(tmp_path)


def test_a_folder_is_read_by_time_and_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    keep(a100(started="2026-11-02T00:00:00Z"), tmp_path)
    keep(a100(started="2026-10-02T00:00:00Z", digest=NEW), tmp_path)
    (tmp_path / "0-broken.json").write_text("{")
    found, complaints = read_folder(tmp_path)
    assert [k.started[:7] for k in found] == ["2026-10", "2026-11"]
    (complaint,) = complaints
    assert "0-broken.json: not JSON" in complaint
    assert read_folder(tmp_path / "none") == ([], [])


# what --compare names -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three months of reports, the last image twice."""
    out = tmp_path / "reports" / "a100"
    for month, digest, count in ((9, "9" * 64, 1), (10, "a" * 64, 2), (11, "b" * 64, 2)):
        for n in range(count):
            started = f"2026-{month:02}-0{n + 1}T06:00:00Z"
            keep(a100(started=started, digest=f"sha256:{digest}", tag=f"26.{month:02}"), out)
    return out


@pytest.mark.parametrize(
    ("text", "digest", "count"),
    [
        ("26.10", "a", 2),
        ("26.09", "9", 1),
        ("2026-10", "a", 2),
        ("2026-10-02", "a", 1),
        ("sha256:aaaaaaaaa", "a", 2),
        ("bbbbbbb", "b", 2),
        ("previous", "a", 2),
    ],
)
def test_tags_dates_and_digests_find_all_runs_of_one_image(
    folder: Path, text: str, digest: str, count: int
) -> None:
    found = resolve(text, folder, without="sha256:" + "b" * 64)
    assert {k.digest for k in found} == {"sha256:" + digest * 64} and len(found) == count


def test_a_file_and_a_folder(folder: Path) -> None:
    first = sorted(folder.glob("*.json"))[0]
    assert len(resolve(str(first), folder)) == 1
    assert {k.tag for k in resolve(str(folder), Path("/nonexistent"))} == {"26.11"}  # the newest image in it


def test_runs_that_could_not_be_carried_out_do_not_count(folder: Path) -> None:
    keep(
        report([], verdict="error", digest="sha256:" + "a" * 64, tag="26.10", started="2026-10-03T06:00:00Z"),
        folder,
    )
    assert [k.report["verdict"] for k in resolve("26.10", folder)] == ["pass", "pass"]


def test_the_registry_is_asked_when_nothing_was_kept(folder: Path) -> None:
    asked = []

    def attached(text: str) -> list[tuple[str, bytes]]:
        asked.append(text)
        return (
            [("host/a100:26.01", json.dumps(a100(digest=OLD, started="2026-01-05T00:00:00Z")).encode())]
            if text == "26.01"
            else []
        )

    (found,) = resolve("26.01", folder, attached=attached)
    assert found.digest == OLD and asked == ["26.01"]
    with pytest.raises(ReportError) as e:
        resolve("25.12", folder, attached=attached)
    assert (
        "no report of '25.12'" in e.value.message
        and "26.09, 26.10, 26.11" in e.value.message
        and "previous" in e.value.hint
    )


def test_nothing_to_compare_with(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="it has none"):
        resolve("previous", tmp_path / "none")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ReportError, match="holds no report; .*x.json: no smoke report"):
        resolve(str(tmp_path), tmp_path)
    with pytest.raises(ReportError, match="not readable: .*x.json"):
        resolve("26.10", tmp_path)


# comparing ------------------------------------------------------------------------------------------------------------

PACKAGES = {
    "torch (pip)": "2.12.1",
    "nvidia-cublas-cu12 (pip)": "12.8.4.1",
    "zlib": "1.3.1 h4",
    "numpy": "2.3.0 py311_0",
}
PLANTED = {**PACKAGES, "nvidia-cublas-cu12 (pip)": "12.9.0.2", "zlib": "1.3.2 h1", "rich": "14.0 pyh_0"}


def test_a_planted_regression_is_named_with_the_packages_that_changed() -> None:
    old, new = runs(1, {}, packages=PACKAGES), runs(1, {"matmul.bf16": 0.88}, digest=NEW, packages=PLANTED)
    found = compare(new, old)
    (slower,) = found.regressions
    assert (
        slower.id == "matmul.bf16"
        and slower.ratio == pytest.approx(0.88, abs=0.02)
        and slower.limit == FLOORS["gpu"]
    )
    assert (
        "248 TFLOP/s -> 2" in str(slower) and "% slower (5% counts)" in str(slower) and not found.improvements
    )
    assert found.packages is not None
    assert [str(p) for p in found.packages] == [
        "nvidia-cublas-cu12 (pip) 12.8.4.1 -> 12.9.0.2",
        "rich (none) -> 14.0 pyh_0",
        "zlib 1.3.1 h4 -> 1.3.2 h1",
    ]
    assert [p.likely for p in found.packages] == [True, False, False]
    said = found.to_json()
    assert (
        said["regressions"] == ["matmul.bf16"] and said["packages"][0]["name"] == "nvidia-cublas-cu12 (pip)"
    )
    json.dumps(said, allow_nan=False)


def test_an_improvement_is_no_regression() -> None:
    found = compare(runs(1, {"memory.copy": 1.2}, digest=NEW), runs(1))
    assert [c.id for c in found.improvements] == ["memory.copy"] and not found.regressions


@pytest.mark.parametrize("seed", range(20))
def test_the_same_image_again_is_no_regression(seed: int) -> None:
    """False alarms: run-to-run drift of 0.6 % and noise of 3 % within a run, twenty times."""
    names = (
        "matmul.fp32",
        "matmul.tf32",
        "matmul.fp16",
        "matmul.bf16",
        "memory.copy",
        "memory.triad",
        "transfer.h2d_pinned",
    )
    same = dict.fromkeys(names, 1.0)
    old = runs(3, same, noise=0.03, target=f"old{seed}")
    new = runs(3, same, noise=0.03, digest=NEW, target=f"new{seed}")
    assert not compare(new, old).regressions and not compare(new[:1], old[:1]).regressions


@pytest.mark.parametrize("seed", range(20))
def test_a_tenth_slower_is_found_in_three_runs_each(seed: int) -> None:
    old = runs(3, {"matmul.bf16": 1.0}, noise=0.02, target=f"old{seed}")
    new = runs(3, {"matmul.bf16": 0.90}, noise=0.02, digest=NEW, target=f"new{seed}")
    assert [c.id for c in compare(new, old).regressions] == ["matmul.bf16"]


def test_noisy_runs_widen_what_counts() -> None:
    quiet = compare(runs(1, {"memory.copy": 0.90}, digest=NEW), runs(1))
    noisy = compare(runs(1, {"memory.copy": 0.90}, digest=NEW, noise=0.25), runs(1, noise=0.25))
    assert [c.id for c in quiet.regressions] == ["memory.copy"] and not noisy.regressions
    assert next(c.limit for c in noisy.changes if c.id == "memory.copy") > 0.15


def test_runs_that_differ_among_themselves_widen_it_too() -> None:
    def spread(values: list[float], digest: str) -> list[Kept]:
        return [kept(a100({"matmul.fp16": v}, digest=digest, seed=i)) for i, v in enumerate(values)]

    found = compare(spread([0.9, 0.8, 0.95], NEW), spread([1.0, 0.85, 1.1], OLD))
    change = next(c for c in found.changes if c.id == "matmul.fp16")
    assert change.outcome == "same" and change.limit > 0.2 and change.runs == (3, 3)


def test_times_get_worse_when_they_grow_and_files_need_more() -> None:
    def imported(seconds: float, digest: str) -> Kept:
        measurements = [
            measured("torch.import_time", seconds, "s", device="", noise=0.01),
            measured("training", seconds, "ms"),
        ]
        return kept(report(measurements, devices=[A100_40], digest=digest))

    found = compare([imported(1.2, NEW)], [imported(1.0, OLD)])
    assert [(c.id, round(c.ratio, 2)) for c in found.regressions] == [("training", 0.83)]
    assert {c.id for c in compare([imported(2.0, NEW)], [imported(1.0, OLD)]).regressions} == {
        "torch.import_time",
        "training",
    }


def test_another_machine_is_shown_and_not_judged() -> None:
    found = compare([kept(a100({"matmul.fp32": 0.5}, digest=NEW, devices=[MI250X]))], runs(1))
    assert {c.outcome for c in found.changes} == {"other"} and not found.regressions
    assert "on another machine: NVIDIA A100-SXM4-40GB, now AMD Instinct MI250X" in str(found.changes[0])
    slow = [kept(cpu({"matmul.fp32": 0.5}, cores=4))]
    assert {c.outcome for c in compare(slow, [kept(cpu(cores=8))]).changes} == {"other"}
    assert [c.id for c in compare([kept(cpu({"matmul.fp32": 0.5}))], [kept(cpu())]).regressions] == [
        "matmul.fp32"
    ]


def test_figures_of_a_busy_machine_are_shown_and_not_judged() -> None:
    busy = (("torch.import", "pass"), ("machine.steady", "warn"))
    found = compare([kept(cpu({"matmul.fp32": 0.3}, probes=busy))], [kept(cpu())])
    assert not found.regressions and {c.outcome for c in found.changes} == {"busy"}
    assert any("other work took much of the machine" in n and "matmul.fp32" in n for n in found.notes)
    assert "on a busy machine" in str(found.changes[0])
    # one quiet run among them is enough, and it alone counts
    found = compare(
        [kept(cpu({"matmul.fp32": 0.3}, probes=busy)), kept(cpu({"matmul.fp32": 0.7}))], [kept(cpu())]
    )
    (slower,) = found.regressions
    assert slower.id == "matmul.fp32" and slower.ratio == pytest.approx(0.7, abs=0.03)
    # a GPU does not mind
    assert compare([kept(a100({"matmul.bf16": 0.5}, probes=busy))], runs(1)).regressions
    lost = cpu({"matmul.fp32": 0.3})
    lost["measurements"][1]["lost_fraction"] = 0.5
    found = compare([kept(lost)], [kept(cpu())])
    assert [c.id for c in found.changes if c.outcome == "busy"] == ["matmul.fp32"] and not found.regressions


def test_each_device_is_compared_with_itself() -> None:
    def four(values: list[float], digest: str) -> Kept:
        devices = [{**A100_40, "rank": i} for i in range(4)]
        return kept(report([ranked("matmul.bf16", values)], devices=devices, ranks=4, digest=digest))

    found = compare([four([250e3, 248e3, 180e3, 249e3], NEW)], [four([249e3, 248e3, 250e3, 247e3], OLD)])
    (slower,) = found.regressions
    assert slower.device == "rank 2" and "(rank 2)" in str(slower)


def test_what_failed_then_or_now_is_not_compared_and_what_is_gone_is_told() -> None:
    new = a100({"matmul.bf16": 0.1}, digest=NEW, verdict="fail")
    next(m for m in new["measurements"] if m["id"] == "matmul.bf16")["status"] = "fail"
    found = compare([kept(new)], runs(1))
    assert (
        "matmul.bf16" not in {c.id for c in found.changes}
        and "measured then and not now: matmul.bf16" in found.notes
    )


def test_probes_that_got_worse_are_named() -> None:
    new = a100(
        digest=NEW,
        verdict="warn",
        probes=(("torch.import", "pass"), ("torch.build", "warn"), ("memory.shm", "warn")),
    )
    assert compare([kept(new)], runs(1)).probes == (("torch.build", "pass", "warn"),)


def test_reports_without_packages_say_so_unless_they_come_from_elsewhere() -> None:
    found = compare(runs(1, digest=NEW, packages=PLANTED), runs(1))
    assert found.packages is None and any("older image does not tell its packages" in n for n in found.notes)
    found = compare(runs(1, digest=NEW, packages=PLANTED), runs(1), old_packages=PACKAGES)
    assert found.packages is not None and len(found.packages) == 3


def test_neither_side_is_changed() -> None:
    old, new = runs(2), runs(2, digest=NEW)
    before = copy.deepcopy([k.report for k in (*old, *new)])
    compare(new, old)
    assert [k.report for k in (*old, *new)] == before


# packages -------------------------------------------------------------------------------------------------------------


def test_packages_of_a_lock_and_of_its_bill_of_material_agree() -> None:
    lock = Lock(
        (
            LockedPackage(
                "numpy",
                "2.3.1",
                "conda",
                "linux-64",
                "https://c.example/linux-64/numpy-2.3.1-py311h0_0.conda",
                "0" * 64,
            ),
            LockedPackage(
                "numpy",
                "2.3.0",
                "pip",
                "linux-64",
                "https://p.example/numpy-2.3.0-cp311-cp311-linux_x86_64.whl",
                "1" * 64,
            ),
            LockedPackage(
                "torch",
                "2.13.0",
                "pip",
                "linux-64",
                "https://p.example/torch-2.13.0-py3-none-any.whl",
                "2" * 64,
            ),
        ),
        ("linux-64",),
    )
    own = packages_of(lock, "linux-64")
    assert own == {"numpy": "2.3.1 py311h0_0", "numpy (pip)": "2.3.0", "torch": "2.13.0"}
    listed = packages_of_sbom(sbom(recipe(), lock, None), "host/x:1")
    assert listed == {"numpy": "2.3.1", "numpy (pip)": "2.3.0", "torch": "2.13.0"}
    assert changed_packages(listed, own) == [] == changed_packages(own, listed)  # one side tells no builds
    assert changed_packages(own, {**own, "numpy": "2.3.1 py311h0_1"}) == [
        PackageChange("numpy", "2.3.1 py311h0_0", "2.3.1 py311h0_1")
    ]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"components": [{"type": "library"}]}', b"\xff"])
def test_what_is_no_bill_of_material_is_said(data: bytes) -> None:
    with pytest.raises(ReportError, match="host/x:1: no CycloneDX"):
        packages_of_sbom(data, "host/x:1")


def test_likely_causes_come_first() -> None:
    names = [
        "zlib",
        "pytorch",
        "libopenblas",
        "rich",
        "rocm-core",
        "nvidia-cudnn-cu12 (pip)",
        "pyyaml",
        "mkl",
    ]
    changes = changed_packages({}, dict.fromkeys(names, "1"))
    assert [c.name for c in changes] == [
        "libopenblas",
        "mkl",
        "nvidia-cudnn-cu12 (pip)",
        "pytorch",
        "rocm-core",
        "pyyaml",
        "rich",
        "zlib",
    ]
