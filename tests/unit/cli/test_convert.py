"""``builder diff``."""

from __future__ import annotations

from tests.support.cli import Cli
from tests.support.project import TinyProject, edit


def test_diff(do: Cli, copy: TinyProject) -> None:
    """Two builds are compared file by file; --files, which older scripts pass, changes nothing."""
    do("build", "tiny", "--oci-archive", "before.tar")
    same = do("diff", "oci-archive:before.tar", "oci:dist:tiny")
    assert same.code == 0 and same.out.startswith("the same ")
    (copy.root / "hello.txt").write_text("hello")
    edit(copy.recipe, files=[{"source": "hello.txt", "target": "/app/hello.txt"}])
    do("build", "tiny")
    differs = do("diff", "--files", "oci-archive:before.tar", "oci:dist:tiny")
    assert differs.code == 1 and "/app/hello.txt: only in oci:dist:tiny\n" in differs.out
