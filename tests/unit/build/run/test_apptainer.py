"""The command line of apptainer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.build.run import apptainer
from builder.build.run.identity import Identity


def test_root_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apptainer leaves /proc/sys writable for root, so the container gets another user."""
    monkeypatch.setattr(
        apptainer, "gpu_devices", lambda vendor: [Path("/dev/kfd")] if vendor == "amd" else []
    )
    monkeypatch.setattr(apptainer, "device_groups", lambda devices: [44, 110] if devices else [])
    stranger = Identity(4711, 4712)
    words = apptainer._security(stranger, "amd")
    assert words == ["--security", "uid:4711", "--security", "gid:4712:44:110"]
    assert apptainer._security(stranger, "none")[-1] == "gid:4712"
    assert apptainer._security(Identity(os.getuid(), os.getgid()), "amd") == []


def test_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container's user owns home and the folders for temporary files."""
    given: set[str] = set()
    monkeypatch.setattr(os, "chown", lambda path, *args, **more: given.add(Path(path).name))
    words = apptainer._scratch_binds(tmp_path, Identity(4711, 4711))
    assert words[:2] == ["--workdir", str(tmp_path)] and f"{tmp_path}/builder/var/tmp:/var/tmp" in words
    assert given == {tmp_path.name, "home", "builder", "tmp", "var"}
