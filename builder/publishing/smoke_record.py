"""Which images passed their smoke test on this machine, and the reports of these tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.smoke.suggested import TORCH, SmokePlan, plan_of
from builder.store.folders import CacheFolders
from builder.store.records import read_record, write_record

if TYPE_CHECKING:
    from builder.smoke.run import SmokeReport

#: Verdicts with which an image may be published.
PASSED = ("pass", "warn")


class SmokeRecord:
    """Records of images that passed on this machine, so that an unchanged one is not tested again.

    Args:
        folder: the cache.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = CacheFolders(folder).smoke

    def passed(self, digest: str, plan: SmokePlan = TORCH) -> str | None:
        """Return the recorded verdict (``pass`` or ``warn``) of an image; None: it has not passed
        this test.

        Args:
            digest: of the image.
            plan: what is to be tested. A pass of another test is no pass.
        """
        record = self._read(digest)
        verdict = record.get("verdict")
        return str(verdict) if verdict in PASSED and plan_of(record) == plan.to_json() else None

    def report(self, digest: str, plan: SmokePlan = TORCH) -> dict[str, Any] | None:
        """Return the report of that test; None when the file was removed."""
        try:
            found = json.loads(Path(str(self._read(digest)["report"])).read_text())
        except (OSError, ValueError, KeyError):
            return None
        return found if _is_report(found, digest, plan) else None

    def update(self, run: SmokeReport, plan: SmokePlan = TORCH) -> None:
        """Record a test that passed; forget an earlier pass of an image that failed."""
        if run.verdict == "fail":
            self._path(run.image_digest).unlink(missing_ok=True)
        elif run.verdict in PASSED:
            self.store(run.image_digest, run.verdict, run.runner, run.path, plan)

    def store(
        self,
        digest: str,
        verdict: str,
        runner: str,
        report: Path | None = None,
        plan: SmokePlan = TORCH,
    ) -> None:
        """Record a test that passed.

        Args:
            digest: of the image.
            verdict: ``pass`` or ``warn``.
            runner: what ran the test.
            report: the file of its report.
            plan: what was tested.
        """
        data: dict[str, Any] = {
            "digest": digest,
            "verdict": verdict,
            "runner": runner,
            "test": plan.to_json(),
        }
        if report is not None:
            data["report"] = str(report.absolute())
        write_record(self._path(digest), data)

    def _read(self, digest: str) -> dict[str, Any]:
        record = read_record(self._path(digest))
        return record if isinstance(record, dict) and record.get("digest") == digest else {}

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest.replace(':', '-')}.json"


def _is_report(value: Any, digest: str, plan: SmokePlan) -> bool:
    """Return whether this is the report of a passed test of an image, and of this test."""
    if not isinstance(value, dict) or value.get("verdict") not in PASSED:
        return False
    image = value.get("image")
    is_this_image = isinstance(image, dict) and image.get("digest") == digest
    return is_this_image and plan_of(value) == plan.to_json()
