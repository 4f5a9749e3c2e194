"""The libraries of a layer, found while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import LayerError
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.cache import layer_record, recorded_layer
from builder.formats.layers.conda import conda_entries
from builder.formats.layers.entry import Entry, Inline
from builder.formats.layers.libraries import Libraries, is_library, library_record, recorded_libraries
from builder.formats.layers.wheel import wheel_entries
from tests.support import condapackage
from tests.support.condapackage import Member, pack, symlink
from tests.support.elf import elf
from tests.support.wheels import CONTEXT, fetched, make_wheel

SITE = "opt/conda/lib/python3.11/site-packages"


def found(entries: list[Entry], settings: Settings) -> Libraries:
    """Return what is recorded of a layer of these entries."""
    store = Store(settings.cache)
    layer = make_layer(entries, "t", Workspace(settings, store))
    return recorded_libraries(layer.descriptor.digest, store)


@pytest.mark.parametrize(
    "path", ["a/libz.so", "libz.so.1", "x.cpython-311-x86_64-linux-gnu.so", "l.so.1.2-a"]
)
def test_names(path: str) -> None:
    assert (
        is_library(path) and not is_library(f"{path}/x") and not is_library("x.sol") and not is_library("so")
    )


@pytest.mark.parametrize("strings_last", [False, True])
def test_wheel(tmp_path: Path, settings: Settings, strings_last: bool) -> None:
    """Spliced members, small ones and stored ones; programs, but no other files."""
    small = elf(["libsmall.so.1"], strings_last=strings_last)
    large = elf(["liblarge.so.1"], strings_last=strings_last, middle=3 << 20)
    files = {
        "a/small.so": small,
        "a/large.so": large,
        "a/stored.so": large,
        "a/bin/run": small,
        "a/data": small,
    }
    wheel = make_wheel(tmp_path, "a", files=files, stored=["a/stored.so"], executable=["a/bin/run"])
    assert found(list(wheel_entries(fetched(wheel), CONTEXT)), settings) == {
        f"{SITE}/a/small.so": ("libsmall.so.1",),
        f"{SITE}/a/large.so": ("liblarge.so.1",),
        f"{SITE}/a/stored.so": ("liblarge.so.1",),
        f"{SITE}/a/bin/run": ("libsmall.so.1",),
    }


def test_conda(tmp_path: Path, settings: Settings) -> None:
    """A link needs its target; a linker script needs nothing."""
    members = [
        Member("lib/libx.so.1.2", elf(["/usr/lib/liby.so.1"])),
        symlink("lib/libx.so.1", "../lib/libx.so.1.2"),
        Member("lib/libz.so", b"INPUT(-lz)"),
    ]
    package = condapackage.fetched(pack(tmp_path, "x", members))
    store = Store(settings.cache)
    layer = make_layer(conda_entries(package, CONTEXT, settings.tmpdir), "t", Workspace(settings, store))
    assert recorded_libraries(layer.descriptor.digest, store) == {
        "opt/conda/lib/libx.so.1.2": ("liby.so.1",),
        "opt/conda/lib/libx.so.1": ("libx.so.1.2",),
        "opt/conda/lib/libz.so": (),
    }


def test_damaged_content(tmp_path: Path, settings: Settings) -> None:
    """A damaged member ends the build, as without the search for libraries."""
    wheel = make_wheel(tmp_path, "a", files={"a/x.so": elf(["libx.so.1"], middle=1 << 20)})
    data = bytearray(wheel.read_bytes())
    at = data.index(b"a/x.so") + 200
    data[at : at + 4] = b"\xff" * 4
    wheel.write_bytes(data)
    with pytest.raises(LayerError, match="damaged in its archive"):
        found(list(wheel_entries(fetched(wheel), CONTEXT)), settings)


def test_lost_record(settings: Settings) -> None:
    """A layer of packages without the record of its libraries is made again, others are not."""
    store = Store(settings.cache)
    content = elf(["liba.so.1"])
    layer = make_layer(
        [Entry("a.so", "file", size=len(content), content=Inline(content))], "t", Workspace(settings, store)
    )
    record = layer_record(layer) | {"packages": ["a"]}
    assert recorded_layer(record, store) is not None
    library_record(layer.descriptor.digest, store).path.unlink()
    assert recorded_layer(record, store) is None
    assert recorded_layer(record | {"packages": []}, store) is not None
