"""Writes and reads stored smoke reports, and finds those that ``--compare`` names.

Reports are plain files, ``reports/TARGET/DIGEST-TIME.json``. ``builder publish`` also attaches them to the
published image.
"""

from __future__ import annotations

import itertools
import json
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import BuilderError
from builder.settings import expand_home
from builder.smoke.schema import report_problem
from builder.smoke.values import Report
from builder.store.files import write_atomic

#: The number of runs of an image that a comparison uses, the newest ones.
RUNS = 10


class ReportError(BuilderError):
    """A smoke report does not exist, cannot be read, or is not a valid report."""


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report and where it is from."""

    report: Report
    source: str
    """A path, or the reference of the image that the report is attached to."""

    @property
    def digest(self) -> str:
        """The digest of the tested image; empty if the report does not name it."""
        return str(self._image.get("digest", ""))

    @property
    def tag(self) -> str:
        """The dated tag that the image was tested for (``26.11``); empty if unknown."""
        return str(self._image.get("tag") or "")

    @property
    def started(self) -> str:
        """The start of the test in UTC, for example ``2026-11-21T08:00:00Z``. Sorts by time."""
        return str(self.report.get("started", ""))

    @property
    def packages(self) -> dict[str, str] | None:
        """Names and versions of the packages in the image; None if the report does not list them."""
        packages = self._image.get("packages")
        if not isinstance(packages, dict):
            return None
        return {str(name): str(version) for name, version in packages.items()}

    @property
    def is_whole(self) -> bool:
        """Whether everything was measured; the rounds of ``--ab`` measure the device only."""
        return not self.report.get("device_only")

    @property
    def _image(self) -> dict[str, Any]:
        image = self.report.get("image")
        return image if isinstance(image, dict) else {}


def store_report(report: Report, folder: Path) -> Path:
    """Writes a report to a new file in a folder and returns its path.

    Raises:
        SpaceError: there is no space for it.
    """
    digest = str(report.get("image", {}).get("digest", ""))
    short = digest.partition(":")[2][:12] or "report"
    time = re.sub(r"[-:]", "", report["started"])
    path = folder / f"{short}-{time}.json"
    for number in itertools.count(2):
        if not path.exists():
            break
        path = folder / f"{short}-{time}-{number}.json"
    write_atomic(path, json.dumps(report, indent=1, sort_keys=True).encode() + b"\n")
    return path


def parse_report(text: str | bytes, source: str) -> StoredReport:
    """Reads a report from JSON; ``source`` appears in messages.

    Raises:
        ReportError: it is not JSON, not a report, of another schema version, or damaged.
    """
    hint = "use another report, or run builder smoke again"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        reason = e.args[0] if isinstance(e, json.JSONDecodeError) else "not text, or nested too deep"
        raise ReportError(f"{source}: not JSON: {reason}", hint) from None
    problem = report_problem(value)
    if problem:
        raise ReportError(f"{source}: {problem}", hint)
    return StoredReport(value, source)


def read_report(path: Path) -> StoredReport:
    """Reads a report from a file.

    Raises:
        ReportError: there is no such file, it cannot be read, or it is not a valid report.
    """
    try:
        return parse_report(path.read_bytes(), str(path))
    except FileNotFoundError:
        hint = "builder smoke TARGET writes reports to reports/TARGET"
        raise ReportError(f"{path}: no such report", hint) from None
    except OSError as e:
        hint = "check the path and its permissions"
        raise ReportError(f"{path}: cannot be read: {e.strerror}", hint) from None


def read_folder(folder: Path) -> tuple[list[StoredReport], list[str]]:
    """All valid reports of a folder, the newest last, and a message for each file that is not one."""
    return read_files(sorted(folder.glob("*.json")))


def read_files(paths: Iterable[Path]) -> tuple[list[StoredReport], list[str]]:
    """As :func:`read_folder`, of these files. Pipes and devices are not read: they may never end."""
    found, problems = [], []
    for path in paths:
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                problems.append(f"{path}: not a file")
                continue
        except OSError:
            pass  # read_report says why
        try:
            found.append(read_report(path))
        except ReportError as e:
            problems.append(e.message)
    return sorted(found, key=lambda stored: (stored.started, stored.source)), problems


def find_reports(
    text: str,
    folder: Path,
    *,
    without: str = "",
    attached: Callable[[str], Sequence[tuple[str, bytes]]] | None = None,
) -> list[StoredReport]:
    """The runs that ``--compare`` names: all of one image, the newest last, at most :data:`RUNS`.

    Args:
        text: a report's file, a folder of reports, ``previous``, a dated tag, a date (``2026-10`` or
            ``2026-10-03``), a digest or its beginning, a tag of the registry, or ``host/repository:tag``.
        folder: ``reports/TARGET``.
        without: the digest that ``previous`` skips.
        attached: returns source and JSON of the reports that are attached to a published image.

    Raises:
        ReportError: there is no such report, or it cannot be read.
        RegistryError: the registry cannot be reached.
    """
    path = expand_home(text)
    if path.is_dir():
        return _reports_of_folder(path)
    if path.suffix == ".json" or path.is_file():
        return [read_report(path)]
    stored, problems = read_folder(folder)
    named = [report for report in stored if _is_named(report, text, without)]
    if named:
        return _newest_image(named)
    if attached is not None and text != "previous":
        published = [parse_report(data, source) for source, data in attached(text)]
        tested = [report for report in published if report.report["verdict"] != "none"]
        if tested:
            return _newest_image(sorted(tested, key=lambda report: report.started))
    hint = "name a report's file, a tag, a date, a digest or 'previous'; builder smoke TARGET writes reports"
    available = _available(stored, problems)
    if text == "previous" and stored:
        available = ["all reports there are of the image that is tested now", *_available((), problems)[1:]]
        hint = f"compare after the next change of the image, or with these runs: --compare {folder}"
    raise ReportError("; ".join([f"no report of {text!r} in {folder}", *available]), hint)


def _available(stored: Sequence[StoredReport], problems: Sequence[str]) -> list[str]:
    """What a folder contains, for a message."""
    tags = sorted({report.tag for report in stored if report.tag})
    parts = []
    if tags:
        parts.append(f"it has reports of {', '.join(tags)}")
    elif not stored:
        parts.append("it has none")
    if problems:
        parts.append(f"not readable: {'; '.join(problems)}")
    return parts


def _reports_of_folder(folder: Path) -> list[StoredReport]:
    stored, problems = read_folder(folder)
    if not stored:
        message = "; ".join([f"{folder} contains no report", *problems])
        raise ReportError(message, "builder smoke TARGET writes reports")
    return _newest_image(stored)


def _is_named(stored: StoredReport, text: str, without: str) -> bool:
    if text == "previous":
        return stored.digest != without
    if stored.tag == text:
        return True
    if re.fullmatch(r"\d{4}-\d\d(-\d\d)?", text) and stored.started.startswith(text):
        return True
    prefix = text.removeprefix("sha256:")
    is_digest = re.fullmatch(r"[0-9a-f]{7,64}", prefix) is not None
    return is_digest and stored.digest.removeprefix("sha256:").startswith(prefix)


def _newest_image(stored: Sequence[StoredReport]) -> list[StoredReport]:
    digest = stored[-1].digest
    return completed_runs([report for report in stored if report.digest == digest])[-RUNS:]


def completed_runs(runs: Sequence[StoredReport]) -> list[StoredReport]:
    """The completed runs of an image, those that measured everything last; all runs if none was completed.

    Args:
        runs: of one image, the newest last.
    """
    completed = [report for report in runs if report.report["verdict"] != "error"]
    return sorted(completed or runs, key=lambda report: report.is_whole)
