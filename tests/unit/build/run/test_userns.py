"""The plan of the user-namespace runner: who root is, and which devices it sees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from builder.build.run import identity, userns
from builder.build.run.base import RunOptions
from builder.build.run.identity import STRANGER, Identity
from builder.build.run.process import Completed
from builder.core.progress import Reporter
from builder.core.settings import Settings
from builder.core.store import folders
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from tests.support.images import make_layer, make_test_image


def plan_of(options: RunOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The plan that would be run, and the owner of the unpacked image."""
    seen: dict[str, Any] = {}

    def unpacked(*args: Any, owner: Identity) -> Path:
        seen["owner"] = owner.uid, owner.gid
        return tmp_path

    def start(plan: Any, options: Any) -> Completed:
        seen["plan"] = plan
        return Completed(0, "", "")

    monkeypatch.setattr(userns, "cached_rootfs", unpacked)
    monkeypatch.setattr(userns, "_start", start)
    settings = Settings.from_environment(cache=tmp_path / "cache")
    runner = userns.UsernsRunner(Workspace(settings, Store(settings.cache)))
    runner.run(make_test_image([make_layer(tmp_path, "a")]), ["true"], options)
    return seen["plan"], seen["owner"]


def test_root_is_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where builder runs as root, the container's root is nobody on the host, unless the options say so."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(folders, "is_trusted", lambda *paths: True)  # of a user who only seems to be root
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(os, "getgid", lambda: 0)
    monkeypatch.setattr(identity, "_contains", lambda text, number: True)
    stranger = (STRANGER, STRANGER)
    plan, owner = plan_of(RunOptions(), tmp_path, monkeypatch)
    assert (plan.uid, plan.gid) == owner == stranger
    plan, owner = plan_of(RunOptions(keep_root=True), tmp_path, monkeypatch)
    assert (plan.uid, plan.gid) == owner == (0, 0)
    monkeypatch.setattr(identity, "_contains", lambda text, number: False)  # root of a rootless container
    plan, owner = plan_of(RunOptions(), tmp_path, monkeypatch)
    assert (plan.uid, plan.gid) == owner == (0, 0)


def test_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container sees the GPUs' devices and has their groups; nothing else of /dev is in the plan."""
    devices = [Path("/dev/dri"), Path("/dev/kfd")]
    monkeypatch.setattr(userns, "gpu_devices", lambda vendor: devices if vendor == "amd" else [])
    monkeypatch.setattr(userns, "device_groups", lambda found: [44, 110] if found else [])
    plan, _ = plan_of(RunOptions(gpu="amd"), tmp_path, monkeypatch)
    assert plan.devices == ["dri", "kfd"] and plan.groups == [44, 110]
    plan, _ = plan_of(RunOptions(), tmp_path, monkeypatch)
    assert plan.devices == [] and plan.groups == []


def test_without_libseccomp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user learns that system calls are not filtered."""
    monkeypatch.setattr(userns, "seccomp_library", lambda: None)
    warnings: list[str] = []
    monkeypatch.setattr(Reporter, "warn", lambda self, message: warnings.append(message))
    plan_of(RunOptions(), tmp_path, monkeypatch)
    assert warnings == ["libseccomp is not installed: the image's system calls are not filtered"]
