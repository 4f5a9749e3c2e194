"""What changed between two published images: packages, layers, downloads, and measured figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from builder.core.model import Image, Manager
from builder.deliver.history import layers_by_name
from builder.deliver.smoke.changes import ReportComparison, compare
from builder.deliver.smoke.reports import ReportError, StoredReport, parse_report
from builder.deliver.smoke.values import mapping, mappings
from builder.formats.oci.documents import load_json
from builder.formats.oci.image import image_blobs
from builder.formats.registry.answer import MAX_SMALL_BLOB
from builder.lock.changes import LockChange, LockChanges, compare_locks

from .published import PublishedImage
from .release import SBOM, SMOKE_REPORT
from .sbom import INSIDE


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
    """Also what changed inside of packages, such as OpenSSL in a wheel that was built again."""
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
    before, after = layers_by_name(old.image.layers), layers_by_name(new.image.layers)
    here = {blob.digest for blob in image_blobs(old.image)}
    locks = compare_locks(old.lock(), new.lock())
    return ReleaseChanges(
        old.image,
        new.image,
        replace(locks, packages=(*locks.packages, *_changed_parts(old, new))),
        tuple(
            LayerChange(name, _bytes(before, name), _bytes(after, name))
            for name in dict.fromkeys([*after, *before])
            if before.get(name) != after.get(name)
        ),
        sum(blob.size for blob in image_blobs(new.image) if blob.digest not in here),
        (_report(old), _report(new)),
    )


def _changed_parts(old: PublishedImage, new: PublishedImage) -> Iterator[LockChange]:
    """Yield what differs inside of packages of which both attached SBOMs list something inside."""
    before, after = _parts(old), _parts(new)
    both = {package for package, _ in before} & {package for package, _ in after}
    for package, name in sorted(before.keys() | after.keys()):
        versions = [", ".join(sorted(side.get((package, name), ()))) for side in (before, after)]
        if package in both and versions[0] != versions[1]:
            manager, _, of = package.partition("/")
            where: Manager = "pip" if manager == "pkg:pypi" else "conda"
            yield LockChange(f"{name} in {of}", where, "", versions[0] or None, versions[1] or None)


def _parts(published: PublishedImage) -> dict[tuple[str, str], set[str]]:
    """Return versions, or hashes of libraries, by the purl of a package and a name inside of it."""
    data = published.attached(SBOM) or b"{}"
    sbom = mapping(load_json(data, f"the SBOM of {published.reference}", MAX_SMALL_BLOB))
    found: dict[tuple[str, str], set[str]] = {}
    for part in mappings(sbom.get("components")):
        package, inside, _ = str(part.get("bom-ref")).partition(INSIDE)
        hashes = [str(one.get("content"))[:12] for one in mappings(part.get("hashes"))]
        if inside:
            names = found.setdefault((package.partition("@")[0], str(part.get("name"))), set())
            names.add(str(part.get("version") or " ".join(hashes) or "?"))
    return found


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
