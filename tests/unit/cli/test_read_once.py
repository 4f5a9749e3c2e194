"""A command reads the files of a target once: what it calls up to date is what it builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.core.settings import Settings
from builder.deliver import project as project_module
from builder.deliver.launch.images import OwnImages, target_images
from builder.deliver.project import Project
from builder.lock import environment
from tests.support.cli import Cli, pass_smoke
from tests.support.project import TinyProject, edit


def test_one_read(do: Cli, copy: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these reads the environment file once; so does a build that locks first."""
    reads: list[Path] = []
    read = environment.read_environment
    monkeypatch.setattr(environment, "read_environment", lambda *args: reads.append(args[0]) or read(*args))
    pass_smoke(copy, do("build", "tiny", "--json").json["digest"])
    assert reads == [copy.environment]
    assert do("publish", "tiny", "--to", f"oci:{tmp_path / 'there'}").code == 0
    assert reads == [copy.environment] * 2
    project = Project.find(copy.root, Settings.from_environment())
    images = target_images(project, project.recipe("tiny"))
    assert isinstance(images, OwnImages)
    images.own()
    assert reads == [copy.environment] * 3
    assert do("lock", "tiny").code == 0
    assert reads == [copy.environment] * 4
    copy.lock.unlink()
    assert do("build", "tiny", "--rebuild").code == 0 and copy.lock.exists()
    assert reads == [copy.environment] * 5


def test_changed_meanwhile(do: Cli, copy: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment and lock change after they were compared: the image is made from what was compared."""
    expected = do("build", "tiny", "--json").json["digest"]
    compare = project_module.stale_reasons

    def change(*args: Any) -> list[str]:
        reasons = compare(*args)
        copy.lock.write_bytes(copy.lock.read_bytes() + b"# edited\n")
        edit(copy.environment, dependencies=["python=3.11", "greeter", "small1", {"pip": ["pure"]}])
        return reasons

    with monkeypatch.context() as patched:
        patched.setattr(project_module, "stale_reasons", change)
        assert do("build", "tiny", "--rebuild", "--json").json["digest"] == expected
    result = do("build", "tiny")
    assert result.code == 4 and "conda specs changed: now with small1, without bulky" in result.err
