"""``builder run``: which image it runs."""

from __future__ import annotations

import tarfile

from builder.oci.digest import sha256
from builder.project import Project
from builder.settings import Settings
from tests.support.cli import Cli
from tests.support.project import TinyProject


def test_digest(do: Cli, copy: TinyProject) -> None:
    """With ``--digest`` no other image runs."""
    other = "sha256:" + "0" * 64
    built = do("build", "tiny", "--json").json["digest"]
    refused = do("run", "tiny", "--digest", other, "--", "true")
    assert refused.code == 8 and f"tiny is {built} on this machine, not {other}" in refused.err
    assert "not a digest" in do("run", "tiny", "--digest", "26.11", "--", "true").err
    elsewhere = do("run", "tiny", "--digest", other, "--image", "x", "--", "true")
    assert elsewhere.code == 2 and "--image REPOSITORY@sha256:" in elsewhere.err


def test_lock_in_image(copy: TinyProject) -> None:
    """A build reports the sha256 of the lock file as it is in the image."""
    project = Project.find(copy.root, Settings.from_environment({}, cache=copy.cache))
    result = project.build(project.recipe("tiny"))
    assert result.image is not None
    path = result.image.layers[-1].path
    assert path is not None
    with tarfile.open(path) as tar:
        member = tar.extractfile("opt/builder/conda-lock.yml")
        assert member is not None and sha256(member.read()) == result.image_lock


def test_print(do: Cli, copy: TinyProject) -> None:
    """Without a site's runtime there is no other command line to print: a note says so."""
    done = do("run", "tiny", "--print", "--", "true")
    assert done.out == "builder run tiny -- true\n"
    assert done.err == "builder's own runner runs tiny: no other program is called\n"
