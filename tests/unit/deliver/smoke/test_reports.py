"""Stored reports: reading them, and finding the ones that --compare names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from builder.deliver.smoke.page import group_by_image
from builder.deliver.smoke.reports import (
    RUNS,
    ReportError,
    earlier_runs,
    find_reports,
    parse_report,
    read_folder,
    read_report,
    store_report,
)
from tests.support.reports import H200, a100, cpu, report

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["not JSON"]),
        ("{", ["not JSON"]),
        ("\x00\xff", ["not JSON"]),
        ("[" * 100_000, ["not JSON", "nested too deep"]),
        ("[]", ["not a smoke report"]),
        ("{}", ["not a smoke report"]),
        ('{"schema_version": 2}', ["damaged", "verdict: field required"]),
        (
            json.dumps({**a100(), "schema_version": 1}),
            ["schema version 1, not 2", "another version of builder"],
        ),
        (json.dumps({**a100(), "schema_version": 99}), ["schema version 99"]),
        (json.dumps({**a100(), "verdict": "great"}), ["verdict: input should be"]),
        (json.dumps({**a100(), "measurements": []}), ["nothing was measured"]),
        (json.dumps({**a100(), "measurements": {}}), ["measurements: input should be"]),
        (json.dumps({**a100(), "image": []}), ["image: input should be"]),
        (json.dumps({**a100(), "started": 5}), ["started: "]),
        (json.dumps({**a100(), "started": "yesterday"}), ["started: "]),
        (json.dumps({**a100(), "duration_s": "x"}), ["duration_s"]),
        (json.dumps({**a100(), "grade": {"findings": [{"id": "x"}]}}), ["grade.findings.0"]),
        (json.dumps({**a100(), "image": {"packages": ["torch"]}}), ["image.packages: input should be"]),
    ],
)
def test_invalid_report(text: str, words: list[str]) -> None:
    """Anything but a valid report raises an error that says what is wrong."""
    with pytest.raises(ReportError) as e:
        parse_report(text, "old.json")
    assert e.value.message.startswith("old.json: ") and all(w in e.value.message for w in words), (
        e.value.message
    )
    assert "builder smoke" in e.value.hint


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="no such report"):
        read_report(tmp_path / "none.json")
    with pytest.raises(ReportError, match="not an ordinary file"):
        read_report(tmp_path)


def test_read_folder(tmp_path: Path) -> None:
    """Reports are in order of time; a message names each file that is not one."""
    store_report(a100(started="2026-11-02T00:00:00Z"), tmp_path)
    store_report(a100(started="2026-10-02T00:00:00Z", digest=NEW), tmp_path)
    (tmp_path / "0-broken.json").write_text("{")
    found, complaints = read_folder(tmp_path)
    assert [k.started[:7] for k in found] == ["2026-10", "2026-11"]
    (complaint,) = complaints
    assert "0-broken.json: not JSON" in complaint
    assert read_folder(tmp_path / "none") == ([], [])


def test_folder_with_other_things(tmp_path: Path) -> None:
    """A pipe without a writer is not read: that would wait for ever. Nor are devices and folders."""
    os.mkfifo(tmp_path / "1.json")
    (tmp_path / "2.json").symlink_to("/dev/zero")
    (tmp_path / "3.json").mkdir()
    (tmp_path / "4.json").symlink_to(tmp_path / "none")
    found, complaints = read_folder(tmp_path)
    assert found == [] and ["not an ordinary file" in c for c in complaints] == [True] * 3 + [False]
    assert "no such report" in complaints[3]


# finding -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three months of reports, the last image twice."""
    out = tmp_path / "reports" / "a100"
    for month, digest, count in ((9, "9" * 64, 1), (10, "a" * 64, 2), (11, "b" * 64, 2)):
        for n in range(count):
            started = f"2026-{month:02}-0{n + 1}T06:00:00Z"
            store_report(a100(started=started, digest=f"sha256:{digest}", tag=f"26.{month:02}"), out)
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
def test_find_by_name(folder: Path, text: str, digest: str, count: int) -> None:
    """A tag, a date, a digest and "previous" lead to all runs of one image."""
    found = find_reports(text, folder, without="sha256:" + "b" * 64)
    assert {k.digest for k in found} == {"sha256:" + digest * 64} and len(found) == count


def test_only_this_image(folder: Path) -> None:
    """Without an image tested before this one, the message says why there is none, and what to type."""
    for path in folder.glob("*.json"):
        if not path.name.startswith("a"):
            path.unlink()
    with pytest.raises(ReportError) as e:
        find_reports("previous", folder, without="sha256:" + "a" * 64)
    assert "are of the image that is tested now" in e.value.message
    assert e.value.hint.endswith(f"--compare {folder}")
    assert len(find_reports(str(folder), folder)) == 2


def test_find_by_path(folder: Path) -> None:
    """A file is one run; of a folder the newest image counts."""
    first = sorted(folder.glob("*.json"))[0]
    assert len(find_reports(str(first), folder)) == 1
    assert {k.tag for k in find_reports(str(folder), Path("/nonexistent"))} == {
        "26.11"
    }  # the newest image in it


def test_find_completed_runs(folder: Path) -> None:
    """Runs with the verdict "error" do not count if there are others."""
    store_report(
        report([], verdict="error", digest="sha256:" + "a" * 64, tag="26.10", started="2026-10-03T06:00:00Z"),
        folder,
    )
    assert [k.report["verdict"] for k in find_reports("26.10", folder)] == ["pass", "pass"]


def test_rounds_of_ab(folder: Path) -> None:
    """Runs that measured the device only come first, so that the newest run has all figures."""
    for day in range(10, 10 + RUNS):
        made = a100(started=f"2026-11-{day}T06:00:00Z", digest="sha256:" + "b" * 64, tag="26.11")
        store_report({**made, "device_only": True}, folder)
    found = find_reports("26.11", folder)
    assert [run.is_whole for run in found] == [False] * (RUNS - 2) + [True] * 2
    (image,) = group_by_image(found)
    assert image.latest == found[-1].report


def test_find_in_registry(folder: Path) -> None:
    """The registry is used if the project has no such report."""
    asked = []

    def attached(text: str) -> list[tuple[str, bytes]]:
        asked.append(text)
        made = json.dumps(a100(digest=OLD, started="2026-01-05T00:00:00Z")).encode()
        return [("host/a100:26.01", made)] if text == "26.01" else []

    (found,) = find_reports("26.01", folder, attached=attached)
    assert found.digest == OLD and asked == ["26.01"]
    with pytest.raises(ReportError) as e:
        find_reports("25.12", folder, attached=attached)
    assert "no report of '25.12'" in e.value.message
    assert "26.09, 26.10, 26.11" in e.value.message and "previous" in e.value.hint


def test_find_nothing(tmp_path: Path) -> None:
    """The error says what the folder contains."""
    with pytest.raises(ReportError, match="it has none"):
        find_reports("previous", tmp_path / "none")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ReportError, match="it has none; .*x.json: not a smoke report"):
        find_reports(str(tmp_path), tmp_path)
    with pytest.raises(ReportError, match="x.json: not a smoke report"):
        find_reports("26.10", tmp_path)


def test_earlier_runs(tmp_path: Path) -> None:
    """Earlier runs are those of any target on GPUs of the same model; a clock that is ahead counts not."""
    for day, more in enumerate(
        ({}, {"verdict": "fail"}, {"devices": [H200]}, {"started": "2999-01-01T00:00:00Z"})
    ):
        made: dict[str, Any] = {"started": f"2026-11-0{day + 1}T00:00:00Z", **more}
        store_report(a100(**made), tmp_path / f"target{day}")
    (found,) = earlier_runs(a100(), tmp_path)
    assert found.started == "2026-11-01T00:00:00Z"
    assert earlier_runs(found.report, tmp_path) == [] == earlier_runs(cpu(), tmp_path)
