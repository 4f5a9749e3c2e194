"""``builder convert``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.project import TinyProject


def test_convert(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    """An OCI image becomes a SIF, which convert does not read."""
    made = do("convert", "oci:dist:tiny", tmp_path / "a.sif", "--json")
    assert made.code == 0 and made.json["size"] == (tmp_path / "a.sif").stat().st_size
    refused = do("convert", tmp_path / "a.sif", tmp_path / "b.sqsh")
    assert refused.code == 2 and "is a SIF, and convert reads OCI images" in refused.err


@pytest.mark.parametrize("dest", ["oci:x:y", "docker-archive:x.tar", "docker://host.example/x:1"])
def test_other_destinations(do: Cli, copy: TinyProject, dest: str) -> None:
    """skopeo copies OCI images."""
    refused = do("convert", "oci:dist:tiny", dest)
    assert refused.code == 2 and "skopeo copy" in refused.err
