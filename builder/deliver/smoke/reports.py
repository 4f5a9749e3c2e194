"""Writes and reads stored smoke reports, and finds those that ``--compare`` names.

Reports are plain files, ``reports/TARGET/DIGEST-TIME.json``. ``builder publish`` also attaches them
to the published image.
"""

from __future__ import annotations

import datetime
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.core.errors import BuilderError
from builder.core.settings import expand_home
from builder.core.store.files import write_atomic
from builder.core.store.reading import Reader

from .schema import TIME, report_problem
from .values import Report, devices_of, mapping, model_of

log = logging.getLogger(__name__)

#: The number of runs that a comparison uses, the newest ones.
RUNS = 10
#: Bytes of a report.
_MOST = 64 << 20
#: The newest files that are read for the earlier runs of a site.
_FILES = 200


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
        """The start of the test in UTC, ``2026-11-21T08:00:00Z``. Sorts by time."""
        return str(self.report.get("started", ""))

    @property
    def packages(self) -> dict[str, str] | None:
        """Names and versions of the packages in the image; None if they are not listed."""
        packages = self._image.get("packages")
        return {str(k): str(v) for k, v in packages.items()} if isinstance(packages, dict) else None

    @property
    def is_whole(self) -> bool:
        """Whether everything was measured; the rounds of ``--ab`` measure the device only."""
        return not self.report.get("device_only")

    @property
    def _image(self) -> dict[str, Any]:
        return mapping(self.report.get("image"))


def store_report(report: Report, folder: Path) -> Path:
    """Write a report to a new file in a folder and return its path.

    Raises:
        SpaceError: there is no space for it.
    """
    digest = str(report.get("image", {}).get("digest", ""))
    short = digest.partition(":")[2][:12] or "report"
    time = re.sub(r"[-:]", "", report["started"])
    names = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    paths = (folder / f"{short}-{time}{name}.json" for name in names)
    path = next(path for path in paths if not path.exists())
    log.info("report: %s", path)
    write_atomic(path, json.dumps(report, indent=1, sort_keys=True).encode() + b"\n")
    return path


def parse_report(text: str | bytes, source: str) -> StoredReport:
    """Read a report from JSON; ``source`` appears in messages.

    Raises:
        ReportError: it is not JSON, not a report, of another schema version, or damaged.
    """
    hint = "use another report, or run builder smoke again"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        is_text = isinstance(e, json.JSONDecodeError)
        reason = e.args[0] if is_text else "not text, or nested too deep"
        raise ReportError(f"{source}: not JSON: {reason}", hint) from None
    problem = report_problem(value)
    if problem:
        raise ReportError(f"{source}: {problem}", hint)
    return StoredReport(value, source)


def read_report(path: Path) -> StoredReport:
    """Read a report from a file. Pipes and devices are not read: they may never end.

    Raises:
        ReportError: there is no such file, it cannot be read, or it is not a valid report.
    """
    reader = Reader(ReportError, "check the path and its permissions", _MOST, "report")
    missing = "builder smoke TARGET writes reports to reports/TARGET"
    return parse_report(reader.read(path, missing), str(path))


def read_folder(folder: Path) -> tuple[list[StoredReport], list[str]]:
    """Return all valid reports of a folder, the newest last, and a message for each other file."""
    return _read_files(sorted(folder.glob("*.json")))


def _read_files(paths: Iterable[Path]) -> tuple[list[StoredReport], list[str]]:
    found, problems = [], []
    for path in paths:
        try:
            found.append(read_report(path))
        except ReportError as e:
            problems.append(e.message)
    return sorted(found, key=lambda stored: (stored.started, stored.source)), problems


def earlier_runs(report: Report, folder: Path) -> list[StoredReport]:
    """Return the newest runs of any target on GPUs of the same models; none for a CPU.

    Reports of a clock that is ahead are skipped: they would stay the newest for years.

    Args:
        report: the run that they are compared with.
        folder: ``reports``, with a folder for each target.
    """
    if not devices_of(report):
        return []
    paths = sorted(folder.glob("*/*.json"), key=lambda path: path.stem.partition("-")[2])[-_FILES:]
    now = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)).strftime(TIME)
    runs = [run for run in _read_files(paths)[0] if run.report["verdict"] in ("pass", "warn")]
    alike = [run for run in runs if model_of(run.report) == model_of(report)]
    return [run for run in alike if run.started <= now and run.report != report][-RUNS:]


Attached = Callable[[str], Sequence[tuple[str, bytes]]]
"""Returns source and JSON of the reports that are attached to a published image."""


def find_reports(
    text: str, folder: Path, *, without: str = "", attached: Attached | None = None
) -> list[StoredReport]:
    """Return the runs that ``--compare`` names, of one image: at most :data:`RUNS`, newest last.

    Args:
        text: a report's file, a folder of reports, ``previous``, a dated tag, a date (``2026-10``
            or ``2026-10-03``), a digest or its beginning, a tag of the registry, or
            ``host/repository:tag``.
        folder: ``reports/TARGET``.
        without: the digest that ``previous`` skips.
        attached: finds the reports of published images; None: they are not searched.

    Raises:
        ReportError: there is no such report, or it cannot be read.
        RegistryError: the registry cannot be reached.
    """
    path = expand_home(text)
    if path.is_dir():
        stored, problems = read_folder(path)
        named = stored
    elif path.suffix == ".json" or path.is_file():
        return [read_report(path)]
    else:
        stored, problems = read_folder(folder)
        named = [run for run in stored if _is_named(run, text, without)]
        named = named or _published_runs(text, attached)
    if not named:
        raise _no_reports(text, folder, stored, problems)
    log.info("compared with %s: %s", text, named[-1].source)
    return completed_runs([run for run in named if run.digest == named[-1].digest])[-RUNS:]


def _published_runs(text: str, attached: Attached | None) -> list[StoredReport]:
    """Return the runs that are attached to a published image, the newest last."""
    if attached is None or text == "previous":
        return []
    runs = [parse_report(data, source) for source, data in attached(text)]
    tested = [run for run in runs if run.report["verdict"] != "none"]
    return sorted(tested, key=lambda run: run.started)


def _no_reports(
    text: str, folder: Path, stored: Sequence[StoredReport], problems: Sequence[str]
) -> ReportError:
    """Return the error about reports that do not exist, with what there is instead."""
    if text == "previous" and stored:
        message = f"all reports in {folder} are of the image that is tested now"
        hint = f"compare after the next change of the image, or with these runs: --compare {folder}"
        return ReportError("; ".join([message, *problems]), hint)
    tags = ", ".join(sorted({run.tag for run in stored if run.tag}))
    available = [f"it has reports of {tags}"] if tags else [] if stored else ["it has none"]
    hint = "name a report's file, a tag, a date, a digest or 'previous'; "
    message = "; ".join([f"no report of {text!r} in {folder}", *available, *problems])
    return ReportError(message, hint + "builder smoke TARGET writes reports")


def _is_named(stored: StoredReport, text: str, without: str) -> bool:
    if text == "previous":
        return stored.digest != without
    is_date = re.fullmatch(r"\d{4}-\d\d(-\d\d)?", text) is not None
    if stored.tag == text or (is_date and stored.started.startswith(text)):
        return True
    prefix = text.removeprefix("sha256:")
    is_digest = re.fullmatch(r"[0-9a-f]{7,64}", prefix) is not None
    return is_digest and stored.digest.removeprefix("sha256:").startswith(prefix)


def completed_runs(runs: Sequence[StoredReport]) -> list[StoredReport]:
    """Return the completed runs of an image, those that measured everything last; otherwise all.

    Args:
        runs: of one image, the newest last.
    """
    completed = [report for report in runs if report.report["verdict"] != "error"]
    return sorted(completed or runs, key=lambda report: report.is_whole)
