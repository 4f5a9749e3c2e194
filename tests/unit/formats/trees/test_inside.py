"""Files and folders of a project that lead out of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.formats.trees.inside import is_inside, own_path


def test_own_path(tmp_path: Path) -> None:
    """A project behind a link, links within it, and links that lead nowhere in it are as usual."""
    (tmp_path / "real" / "data").mkdir(parents=True)
    (tmp_path / "real" / "dist").symlink_to("data")
    (tmp_path / "link").symlink_to("real")
    for root in (tmp_path / "real", tmp_path / "link"):
        assert own_path(root, "dist") == root / "dist" and own_path(root, "absent") == root / "absent"
        assert is_inside(root / "dist", root)
    (tmp_path / "real" / "data" / "gone").symlink_to("nowhere")
    assert own_path(tmp_path / "link", "dist")


@pytest.mark.parametrize("name", ["dist", "dist/blobs", "dist/blobs/sha256", "dist/x.sif"])
def test_link_out(tmp_path: Path, name: str) -> None:
    link = tmp_path / "project" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match=f"a symlink: {link} is outside of the project") as error:
        own_path(tmp_path / "project", "dist", "or X")
    assert error.value.hint == f"rm {link}; or move the whole project there, and link to that; or X"
