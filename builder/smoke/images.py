"""Reports grouped by image, for the HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from builder.smoke.reports import StoredReport, completed_runs

#: The number of images that the page shows, the newest ones.
IMAGES = 12


@dataclass(frozen=True, slots=True)
class ImageRuns:
    """All runs of one image."""

    digest: str
    """The digest; the source of the report if the report does not name the image."""
    label: str
    """The dated tag, otherwise the day of the first run."""
    runs: tuple[StoredReport, ...]
    """The newest one last."""

    @property
    def latest(self) -> StoredReport:
        """The newest run; one that measured everything, if there is one."""
        return sorted(self.runs, key=lambda run: run.is_whole)[-1]

    @property
    def completed(self) -> tuple[StoredReport, ...]:
        """The runs that were not aborted, see :func:`builder.smoke.reports.completed_runs`."""
        return tuple(completed_runs(self.runs))


def group_by_image(stored: Sequence[StoredReport]) -> list[ImageRuns]:
    """The newest :data:`IMAGES` images, in the order in which they were first tested. Labels are unique."""
    groups: dict[str, list[StoredReport]] = {}
    for report in stored:
        groups.setdefault(report.digest or report.source, []).append(report)
    images = [
        ImageRuns(digest, runs[0].tag or runs[0].started[:10], tuple(runs)) for digest, runs in groups.items()
    ]
    images = images[-IMAGES:]
    labels = [image.label for image in images]
    return [_with_digest(image) if labels.count(image.label) > 1 else image for image in images]


def _with_digest(image: ImageRuns) -> ImageRuns:
    return replace(image, label=f"{image.label} {image.digest.removeprefix('sha256:')[:4]}")
