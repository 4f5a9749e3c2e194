"""Records of images that passed their smoke test on this machine, with their reports.

The rule, for ``builder publish`` and ``builder smoke``: a test of the build that ended with
``pass`` or ``warn`` is recorded, one that failed removes the record (:func:`smoke_and_record`).
A record counts for an image of the same digest and for the same test (:func:`known_verdict`).
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core.store.folders import CacheFolders
from builder.core.store.records import read_record, write_record
from builder.deliver.smoke.suggested import TORCH, SmokePlan, plan_of

if TYPE_CHECKING:
    from builder.build.engines.base import BuildResult
    from builder.deliver.project import Project
    from builder.deliver.smoke.options import SlurmOptions, SmokeOptions
    from builder.deliver.smoke.run import SmokeReport

log = logging.getLogger(__name__)

#: Verdicts of a test with which an image may be published.
PASSED = ("pass", "warn")
#: Verdict and report that let tags move without a new test. ``none`` never reaches a run.
Passed = tuple[str, dict[str, Any] | None]


def known_verdict(
    project: Project, result: BuildResult, *, again: bool, signed: bool
) -> Passed | None:
    """Return the verdict of a build and its report; None: the build has to be tested.

    It is the pass on record, or ``none`` if the recipe has no test. A SIF and the image that it was
    made of contain the same files: a test of either counts.

    Args:
        project: of the target.
        result: the build.
        again: a pass on record does not count.
        signed: the release is signed, and needs the report of this very file or image.
    """
    name, plan = result.recipe.name, project.smoke_plan(result)
    if plan.none:
        from builder.deliver.smoke.run import not_tested

        project.work.reporter.note(f"{name} is not smoke-tested: {plan.none}")
        return "none", not_tested(result.digest, result.recipe, plan.none).report
    record = SmokeRecord(project.work.settings.cache)
    digests = [artifact.digest for artifact in (result.sif, result.image) if artifact is not None]
    for digest in digests if not again else ():
        verdict, report = record.passed(digest, plan), record.report(digest, plan)
        is_enough = not signed or (report is not None and digest == result.digest)
        if verdict and is_enough:
            project.work.reporter.note(f"{name}: smoke test {verdict}, on record for {digest[:19]}")
            return verdict, report
    why = "a new test is asked for" if again else f"no pass of {plan.title} is on record"
    log.info("%s has to be tested: %s", name, why)
    return None


def smoke_and_record(
    project: Project,
    result: BuildResult,
    options: SmokeOptions | None = None,
    job: SlurmOptions | None = None,
) -> SmokeReport:
    """Run the smoke test of a build, and record whether it passed.

    The verdict of another image than the build is not recorded: a job may run one.

    Args:
        project: of the target.
        result: the build.
        options, job: see :meth:`builder.deliver.project.Project.smoke`.
    """
    run = project.smoke(result, options, job)
    if run.image_digest == result.digest:
        SmokeRecord(project.work.settings.cache).update(run, project.smoke_plan(result))
    return run


class SmokeRecord:
    """Records of images that passed on this machine, so that an unchanged one is not tested again.

    Args:
        folder: the cache.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = CacheFolders(folder).smoke

    def passed(self, digest: str, plan: SmokePlan = TORCH) -> str | None:
        """Return the recorded verdict (``pass`` or ``warn``) of an image; None: no such pass.

        Args:
            digest: of the image.
            plan: the test. A pass of another test is no pass.
        """
        record = self._read(digest)
        verdict = record.get("verdict")
        return str(verdict) if verdict in PASSED and plan_of(record) == plan.to_json() else None

    def report(self, digest: str, plan: SmokePlan = TORCH) -> dict[str, Any] | None:
        """Return the report of that test; None if the file was removed."""
        try:
            found = json.loads(Path(str(self._read(digest)["report"])).read_text())
            image = found["image"]["digest"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        is_pass = found.get("verdict") in PASSED and plan_of(found) == plan.to_json()
        return found if is_pass and image == digest else None

    def update(self, run: SmokeReport, plan: SmokePlan = TORCH) -> None:
        """Record a test that passed; forget an earlier pass of an image that failed."""
        if run.verdict == "fail":
            self._path(run.image_digest).unlink(missing_ok=True)
        elif run.verdict in PASSED:
            found = {"verdict": run.verdict, "runner": run.runner, "test": plan.to_json()}
            place = {"report": str(run.path.absolute())} if run.path else {}
            digest = run.image_digest
            write_record(self._path(digest), {"digest": digest, **found, **place})

    def _read(self, digest: str) -> dict[str, Any]:
        record = read_record(self._path(digest))
        return record if isinstance(record, dict) and record.get("digest") == digest else {}

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest.replace(':', '-')}.json"
