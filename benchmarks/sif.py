"""SIFs of a workload, by builder and by ``apptainer build`` from the same OCI image.

The layers of the OCI image are in builder's cache and no partition of a SIF is. builder's time is that of the
whole ``builder build``: start, check of the lock, OCI image, SIF.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Cgroup, Meter
from benchmarks.project import Project, measured, output_of
from tests.support import parts

#: Options of ``apptainer build``; its default is gzip.
ZSTD = ("--mksquashfs-args", "-comp zstd -Xcompression-level 3")
#: How ``apptainer build`` is called.
_APPTAINER = {"apptainer build": (), "apptainer build, zstd 3": ZSTD}


def builder_sifs(
    project: Project,
    layouts: tuple[str, ...],
    runs: int,
    group: Cgroup,
    updated: Callable[[], None] | None,
) -> dict[str, list[dict[str, Any]]]:
    """SIFs of each layout: cold; of the last layout also with nothing changed and after a bump.

    Args:
        project: the lock of the workload is in use, and its layers are in the cache.
        layouts: ``flat``, ``layered``.
        runs: repetitions.
        group: the cgroup of what is measured.
        updated: puts the lock with one updated package to use; None: this is not measured.
    """
    out: dict[str, list[dict[str, Any]]] = {}

    def build(way: str, layout: str) -> None:
        meter = Meter(group)
        with meter.measure():
            meter.run(project.command("build", layout), project.env, project.root)
        assert meter.figures
        size = (project.root / f"dist/{layout}.sif").stat().st_size
        out.setdefault(way, []).append({**measured(meter.figures), "size": size})

    for layout in layouts:
        for _ in range(runs):
            project.forget_sifs()
            build(f"builder, {layout}", layout)
    for _ in range(runs):
        build(f"builder, {layouts[-1]}, nothing changed", layouts[-1])
    if updated is not None:
        updated()
        build(f"builder, {layouts[-1]}, one small package bumped", layouts[-1])
    return out


def apptainer_sifs(project: Project, work: Path, group: Cgroup) -> dict[str, list[dict[str, Any]]]:
    """``apptainer build`` of the target bench, once with each compression."""
    project.builder("build", "bench")
    layout = work / "oci"  # apptainer reads layouts with one image only
    out = {}
    with parts.apptainer() as apptainer:
        copy = ["skopeo", "copy", f"oci:{project.root}/dist:bench", f"oci:{layout}"]
        output_of(copy, apptainer.env, work)
        for way, options in _APPTAINER.items():
            sif, meter = work / "apptainer.sif", Meter(group)
            command: list[str | Path] = [
                apptainer.path,
                "build",
                "--force",
                *options,
                sif,
                f"oci:{layout}",
            ]
            with meter.measure():
                meter.run(command, apptainer.env, work)
            assert meter.figures
            out[way] = [{**measured(meter.figures), "size": sif.stat().st_size}]
            sif.unlink()
    return out
