"""GPUs of a host."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.build.run.gpu import device_groups, gpu_devices, parse_ldconfig


def test_gpu_devices(tmp_path: Path) -> None:
    nvidia = ["nvidia-caps", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"]
    nvidia += ["nvidia0", "nvidia12", "nvidiactl"]
    for name in (*nvidia[1:], "nvme0", "kfd", "sda", "kmsg"):
        (tmp_path / name).touch()
    for name in ("dri", "nvidia-caps"):
        (tmp_path / name).mkdir()
    assert [p.name for p in gpu_devices("amd", tmp_path)] == ["dri", "kfd"]
    assert [p.name for p in gpu_devices("nvidia", tmp_path)] == nvidia
    assert gpu_devices("none", tmp_path) == []
    (tmp_path / "kfd").unlink()
    assert gpu_devices("amd", tmp_path) == []  # a graphics card for a screen


def test_parse_ldconfig() -> None:
    text = """412 libs found in cache `/etc/ld.so.cache'
\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64) => /opt/other/libcuda.so.1
\tlibcuda.so (libc6,AArch64) => /usr/lib/aarch64-linux-gnu/libcuda.so
\tlibcudart.so.12 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcudart.so.12
\tlibcublas.so.12 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcublas.so.12
"""
    assert parse_ldconfig(text) == {
        "libnvidia-ml.so.1": Path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"),
        "libcuda.so.1": Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
        "libcuda.so": Path("/usr/lib/aarch64-linux-gnu/libcuda.so"),
    }
    assert parse_ldconfig("") == {}


def test_device_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups of devices, also of those in folders; root's is left out."""
    groups = {"kfd": 110, "nvidia0": 0, "renderD128": 110, "renderD129": 44, "card0": 7}
    monkeypatch.setattr(
        Path, "stat", lambda path, **more: SimpleNamespace(st_gid=groups.get(path.name, 0), st_mode=0o040755)
    )
    monkeypatch.setattr(Path, "is_dir", lambda path: path.name == "dri")
    (tmp_path / "dri").mkdir()
    for name in ("renderD128", "renderD129", "card0"):
        (tmp_path / "dri" / name).touch()
    assert device_groups([tmp_path / "dri", tmp_path / "kfd", tmp_path / "nvidia0"]) == [44, 110]
    assert device_groups([tmp_path / "nvidia0"]) == device_groups([]) == []
