"""``builder build`` warns of shared libraries that the image lacks."""

from __future__ import annotations

import pytest

from builder.core.store.blobs import Store
from builder.formats.oci.layout import write_layout
from tests.support.cli import Cli
from tests.support.elf import elf
from tests.support.image_kit import image, layer, member
from tests.support.project import TinyProject, edit
from tests.support.wheels import make_wheel


@pytest.fixture
def lacking(tiny: TinyProject) -> TinyProject:
    """A project with a wheel that needs libraries, over a base with apt."""
    files = {
        "pure/x.abi3.so": elf(["libGL.so.1", "libnowhere.so"]),
        "pure/plugins/liby.so": elf(["libpq.so.5"]),
    }
    make_wheel(tiny.root / "wheels", "pure", "1.1", files=files)
    store = Store(tiny.root.parent / "base-store")
    apt = layer(store, member("usr/lib/libapt-pkg.so.6.0", b"x"))
    write_layout(image(store, apt), tiny.root / "base", "latest", store)
    return tiny


def test_warnings(do: Cli, lacking: TinyProject) -> None:
    """A warning for each library, also when nothing changed; the last line can be typed into the recipe."""
    for _ in range(2):
        result = do("build", "tiny")
        assert result.code == 0
        assert "warning: missing libGL.so.1 (OS package libgl1), needed by pure\n" in result.err
        assert "warning: missing libnowhere.so, needed by pure\n" in result.err
        hint = f"{lacking.recipe}: base_packages: [libgl1]; then: builder lock tiny\n"
        assert f"to add them: {hint}" in result.err
        assert "libpq" not in result.err


def test_json(do: Cli, lacking: TinyProject) -> None:
    """Optional ones, too."""
    missing = do("build", "tiny", "--json").json["missing_libraries"]
    assert [(one["name"], one["optional"]) for one in missing] == [
        ("libGL.so.1", False),
        ("libnowhere.so", False),
        ("libpq.so.5", True),
    ]
    assert missing[2]["packages"] == ["pure"] and missing[2]["os_package"] == "libpq5"


def test_sif(do: Cli, lacking: TinyProject) -> None:
    edit(lacking.recipe, format="sif")
    assert "missing libGL.so.1 (OS package libgl1)" in do("build", "tiny").err


def test_nothing_missing(do: Cli, tiny: TinyProject) -> None:
    assert "missing" not in do("build", "tiny").err
