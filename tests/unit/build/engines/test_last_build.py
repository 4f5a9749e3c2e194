"""The stored build of an engine whose builds differ each time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.build.engines.base import BuildRequest, BuildResult, cached_sif
from builder.build.engines.cotainr import PREFIX, with_cotainr_prefix
from builder.build.engines.dispatch import run_engine
from builder.core.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, Layer, LockedBase, SifImage
from builder.core.stages import BuildOptions
from builder.core.store.files import sha256_file
from builder.formats.layers.libraries import RecordedLibraries, library_record
from builder.lock.config.recipe import Registry
from tests.support.engines import package, request


class DifferentEachTime:
    """An engine whose builds differ each time."""

    name = "different"
    formats = frozenset({"oci", "sif"})
    repeatable = False

    def __init__(self) -> None:
        self.builds = 0

    def available(self) -> str | None:
        return None

    def build(self, request: BuildRequest) -> BuildResult:
        self.builds += 1
        return BuildResult(
            with_cotainr_prefix(request).recipe,
            request.lock,
            LockedBase("b", "sha256:b"),
            self._artifact(request, f"build {self.builds}".encode()),
            engine=self.name,
            notes=("by hand",),
            definition=("def", "x"),
        )

    def _artifact(self, request: BuildRequest, data: bytes) -> Image | SifImage:
        if request.recipe.format == "sif":
            path = cached_sif(request, self.name)
            path.write_bytes(data)
            return SifImage(path, sha256_file(path), len(data))
        digest = request.work.store.add(data)
        library_record(digest, request.work.store).write(RecordedLibraries(digest, {}))
        layer = Layer(
            Descriptor("application/x", digest, len(data)),
            "sha256:d",
            request.work.store.path(digest),
            title="one",
            packages=("a",),
            unpacked=7,
        )
        config, manifest = Descriptor.of(OCI_CONFIG, b"{}"), Descriptor.of(OCI_MANIFEST, data)
        return Image((layer,), b"{}", config, data, manifest)


@pytest.mark.parametrize("format", ["oci", "sif"])
def test_unchanged_inputs(tmp_path: Path, format: str) -> None:
    """The last build is returned, also if only its destination changed; not with --rebuild."""
    engine, asked = DifferentEachTime(), request(tmp_path, [package("zlib")], format=format)
    first = run_engine(engine, asked)
    again = run_engine(engine, asked)
    assert engine.builds == 1 and again.artifact == first.artifact and again.base == first.base
    assert again.recipe == first.recipe and again.definition == ("def", "x")
    assert again.recipe.conda.prefix == PREFIX and again.notes[0] == "by hand"
    assert "unchanged since the build at" in again.notes[1] and "--rebuild" in again.notes[1]
    assert (
        run_engine(engine, replace(asked, options=BuildOptions(rebuild=True))).digest != first.digest
        and engine.builds == 2
    )
    moved = replace(
        asked, recipe=asked.recipe.model_copy(update={"registry": Registry(repository="else/where")})
    )
    assert run_engine(engine, moved).digest != first.digest
    assert engine.builds == 2, "its destination is no input"


def test_damaged_sif(tmp_path: Path) -> None:
    """A damaged or missing SIF or record leads to a new build."""
    engine, asked = DifferentEachTime(), request(tmp_path, [package("zlib")], format="sif")
    sif = run_engine(engine, asked).sif
    assert sif is not None
    sif.path.write_bytes(b"cut")
    assert run_engine(engine, asked).digest != sif.digest and engine.builds == 2
    cached_sif(asked, engine.name).with_suffix(".json").write_text("{}")
    run_engine(engine, asked)
    assert engine.builds == 3
    cached_sif(asked, engine.name).unlink()
    run_engine(engine, asked)
    assert engine.builds == 4


def test_missing_layer(tmp_path: Path) -> None:
    """A missing layer leads to a new build."""
    engine, asked = DifferentEachTime(), request(tmp_path, [package("zlib")], format="oci")
    layer = run_engine(engine, asked).image.layers[0]  # type: ignore[union-attr]
    assert layer.path is not None
    layer.path.unlink()
    run_engine(engine, asked)
    assert engine.builds == 2


@pytest.mark.parametrize(
    "change",
    [
        {"text": b"version: 1 # another\n"},
        {"options": BuildOptions(annotations={"org.opencontainers.image.revision": "2"})},
        {"requested": frozenset({"zlib"})},
        {"file": "changed"},
        {"recipe": {"labels": {"a": "b"}}},
    ],
)
def test_changed_inputs(tmp_path: Path, change: dict[str, Any]) -> None:
    """Every input that changes leads to a new build."""
    (tmp_path / "train.py").write_text("one")
    files = [{"source": "train.py", "target": "/app/train.py"}]
    recipe = change.pop("recipe", {})
    changed = request(tmp_path, [package("zlib")], format="sif", files=files, **recipe)
    changed = replace(changed, lock=replace(changed.lock, text=change.pop("text", changed.lock.text)))
    engine = DifferentEachTime()
    run_engine(engine, request(tmp_path, [package("zlib")], format="sif", files=files))
    (tmp_path / "train.py").write_text(change.pop("file", "one"))
    run_engine(engine, replace(changed, **change))
    run_engine(engine, replace(changed, **change))
    assert engine.builds == 2
