"""What changed between two published images: packages, layers, downloads, and measured figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from builder.core.model import Image
from builder.deliver.smoke.changes import ReportComparison, compare
from builder.deliver.smoke.reports import ReportError, StoredReport, parse_report
from builder.formats.oci.image import image_blobs
from builder.lock.changes import LockChanges, compare_locks

from .published import PublishedImage, layers_by_name
from .release import SMOKE_REPORT


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A layer, or several of one name, whose content differs."""

    name: str
    old: int | None
    """Bytes in the registry. None: the layer is new."""
    new: int | None
    """The same of the newer image. None: the layer is gone."""


@dataclass(frozen=True, slots=True)
class ReleaseChanges:
    """Everything that differs between two published images."""

    old: Image
    new: Image
    locks: LockChanges
    layers: tuple[LayerChange, ...]
    """From the bottom up; those that are gone at the end."""
    download: int
    """Bytes that a user of the old image downloads for the new one."""
    reports: tuple[StoredReport | None, StoredReport | None]
    """The newest attached ones, old and new; None: none is attached."""

    def __bool__(self) -> bool:
        return self.old.digest != self.new.digest

    @property
    def figures(self) -> ReportComparison | None:
        """The measured figures side by side; None: one image has no report."""
        old, new = self.reports
        return compare([new], [old]) if old and new else None

    def to_json(self) -> dict[str, Any]:
        """Return the changes for ``--json``."""
        figures, sides = self.figures, {"old": self.old, "new": self.new}
        return {
            **self.locks.to_json(),
            "images": {k: {"digest": v.digest, "size": v.size} for k, v in sides.items()},
            "layers": [asdict(layer) for layer in self.layers],
            "download": self.download,
            "verdicts": [report and report.report["verdict"] for report in self.reports],
            "figures": figures and figures.to_json(),
        }


def compare_published(old: PublishedImage, new: PublishedImage) -> ReleaseChanges:
    """Return the differences between two published images.

    Raises:
        LockError: an image has no attached lock, or a damaged one.
        RegistryError, ImageError: what is attached is damaged, or cannot be read.
    """
    before, after = layers_by_name(old.image), layers_by_name(new.image)
    here = {blob.digest for blob in image_blobs(old.image)}
    return ReleaseChanges(
        old.image,
        new.image,
        compare_locks(old.lock(), new.lock()),
        tuple(
            LayerChange(name, _bytes(before, name), _bytes(after, name))
            for name in dict.fromkeys([*after, *before])
            if before.get(name) != after.get(name)
        ),
        sum(blob.size for blob in image_blobs(new.image) if blob.digest not in here),
        (_report(old), _report(new)),
    )


def _bytes(layers: Mapping[str, Mapping[str, int]], name: str) -> int | None:
    return sum(layers[name].values()) if name in layers else None


def _report(published: PublishedImage) -> StoredReport | None:
    """Return the newest attached report; None, with a warning, for one that cannot be read."""
    data = published.attached(SMOKE_REPORT)
    try:
        return parse_report(data, published.reference) if data else None
    except ReportError as e:
        published.work.reporter.warn(e.message)
        return None
