"""Layers of real wheels: installer's files, working imports, and other gzip readers."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from isal import igzip

from builder.core.model import Fetched, LayerOptions
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import LayersResult, build_layers, make_layer
from builder.formats.layers.entry import Deflated, Entry, Inline, LinkContext
from tests.support.packagefiles import files_of
from tests.support.wheels import fetched

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
CONTEXT = LinkContext(
    "/opt/conda", VERSION, f"lib/python{VERSION}/site-packages", requested=frozenset({"numpy"})
)
#: They have a program among the scripts, entry points, compiled modules with libraries, headers, data files,
#: plain Python.
PACKAGES = ("numpy", "ninja", "rich", "pyyaml", "jsonschema", "greenlet", "jupyterlab-widgets")


@pytest.fixture(scope="session")
def real_wheels(
    tmp_path_factory: pytest.TempPathFactory, part_missing: Callable[[str], NoReturn]
) -> list[Path]:
    folder = tmp_path_factory.mktemp("real-wheels")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "-d",
        str(folder),
        *PACKAGES,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        part_missing(f"wheels cannot be downloaded: {done.stderr.strip().splitlines()[-1]}")
    return sorted(folder.glob("*.whl"))


def build(packages: list[Fetched], folder: Path, jobs: int = 2) -> LayersResult:
    where = Settings(folder / "cache", folder / "tmp", jobs)
    return build_layers(
        files_of(packages, where, CONTEXT),
        LayerOptions(groups=3),
        budget=90,
    )


@pytest.mark.network
def test_unpacked_layers_work(real_wheels: list[Path], tmp_path: Path) -> None:
    """Unpacked layers can be imported, and every RECORD is right and complete."""
    result = build([fetched(w) for w in real_wheels], tmp_path)
    root = tmp_path / "root"
    root.mkdir()
    for layer in result.layers:
        assert layer.path is not None
        subprocess.run(["tar", "-xzf", layer.path, "-C", root], check=True)
    site = root / "opt/conda" / CONTEXT.site_packages
    code = (
        "import numpy, rich, yaml._yaml, greenlet; "
        "print(numpy.__file__, numpy.linalg.inv(numpy.eye(3)).sum(), yaml.__file__)"
    )
    env = {
        "PYTHONPATH": str(site),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    numpy_file, total, yaml_file = done.stdout.split()
    assert numpy_file.startswith(str(site)) and yaml_file.startswith(str(site)) and total == "3.0"
    ninja = subprocess.run([root / "opt/conda/bin/ninja", "--version"], capture_output=True, text=True)
    assert ninja.returncode == 0 and ninja.stdout[0].isdigit()
    # Every line of every RECORD is right, and every file is in one.
    recorded: set[Path] = set()
    for distribution in importlib.metadata.distributions(path=[str(site)]):
        assert distribution.read_text("INSTALLER") == "builder\n"
        for file in distribution.files or ():
            path = Path(os.path.normpath(site / file))
            recorded.add(path)
            if file.hash:
                digest = (
                    base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")
                )
                assert (file.hash.value, file.size) == (digest, path.stat().st_size), file
    assert recorded == {p for p in root.rglob("*") if not p.is_dir()}
    assert (site / next(site.glob("numpy-*.dist-info")).name / "REQUESTED").exists()


def test_file_over_4_gib(tmp_path: Path) -> None:
    """A file's size exceeds the 32 bits of gzip's trailer. Its stream is 4097 MiB of zeros."""
    chunk = bytes(1 << 20)
    count = 4097
    compressor = zlib.compressobj(9, wbits=-15)
    segment = compressor.compress(chunk) + compressor.flush(zlib.Z_FULL_FLUSH)
    last = zlib.compressobj(9, wbits=-15)
    raw = segment * (count - 1) + last.compress(chunk) + last.flush()
    crc = 0
    for _ in range(count):
        crc = zlib.crc32(chunk, crc)
    source = tmp_path / "source"
    source.write_bytes(raw)
    entries = [
        Entry("big", "file", 0o644, count << 20, content=Deflated(source, 0, len(raw), crc)),
        Entry("after", "file", 0o644, 2, content=Inline(b"ok")),
    ]
    own = Settings(tmp_path, tmp_path, 1)
    layer = make_layer(entries, "", Workspace(own, Store(tmp_path / "store")))
    assert layer.unpacked > 4 << 30 and layer.descriptor.size < 10 << 20
    assert layer.path is not None
    with igzip.open(layer.path) as f:  # it compares the trailer
        assert sum(len(block) for block in iter(lambda: f.read(1 << 20), b"")) == layer.unpacked
