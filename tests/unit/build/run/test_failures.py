"""Known failures of runners, and what to type."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.build.run import failures
from builder.build.run.failures import hint_for, namespace_hint
from builder.core.datafiles import table

RLIMIT = "Error: runc: error during container init: error setting rlimit type 7: operation not permitted"


@pytest.mark.parametrize(
    ("runner", "text", "hint"),
    [
        ("podman", RLIMIT, "default_ulimits = ["),
        ("podman-hpc", RLIMIT, "default_ulimits = ["),
        ("podman", "Error: crun: controller `pids` is not available: cgroup", 'cgroup_manager = "cgroupfs"'),
        ("podman", "Error: no subuid ranges found for user me in /etc/subuid", "usermod --add-subuids"),
        ("podman", 'Error: default OCI runtime "crun" not found: invalid argument', "apt-get install crun"),
        ("podman", "Error: unresolvable CDI devices nvidia.com/gpu=all", "nvidia-ctk cdi generate"),
        ("docker", "no engine answers at the default address", "systemctl start docker"),
        ("docker", "no engine answers at x: permission denied", "usermod -aG docker"),
        ("docker", "could not select device driver with capabilities: [[gpu]]", "nvidia-container-toolkit"),
        ("apptainer", "FATAL: fusermount3: fuse device not found, try 'modprobe fuse'", "modprobe fuse"),
        (
            "apptainer",
            "setting capabilities: operation not permitted",
            "root default capabilities = no",
        ),
        ("docker", 'exec: "train": executable file not found: permission denied', ""),
        ("podman", "OCI runtime attempted to invoke a command that was not found", ""),
    ],
)
def test_hints(runner: str, text: str, hint: str) -> None:
    found = hint_for(runner, text)
    assert hint in found and bool(hint) == bool(found)


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ],
)
def test_namespaces(
    name: str, value: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting that forbids user namespaces is named."""
    monkeypatch.setattr(failures, "_SYSCTL", tmp_path)
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(f"{value}\n")
    assert hint in namespace_hint()
    assert hint in hint_for("userns", "new namespaces: Operation not permitted")
    assert hint in hint_for("apptainer", "FATAL: Failed to create user namespace: not allowed")


def test_facts() -> None:
    """The hints name facts about this host that are known."""
    named = re.findall(r"\{(\w+)\}", str(table(failures.__file__, "hints.yaml")))
    assert set(named) == failures._FACTS.keys()
