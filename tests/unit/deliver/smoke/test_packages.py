"""The packages of an image, and what differs between two images."""

from __future__ import annotations

from builder.core.model import Lock, LockedPackage
from builder.deliver.smoke.packages import PackageChange, changed_packages, packages_of_lock


def test_lock() -> None:
    """Builds are compared only if both sides have them."""
    numpy = "https://c.example/linux-64/numpy-2.3.1-py311h0_0.conda"
    wheels = [
        LockedPackage(name, version, "pip", "linux-64", f"https://p.example/{name}-{version}.whl", "1" * 64)
        for name, version in (("numpy", "2.3.0"), ("torch", "2.13.0"))
    ]
    conda = LockedPackage("numpy", "2.3.1", "conda", "linux-64", numpy, "0" * 64)
    lock = Lock((conda, *wheels), ("linux-64",))
    own = packages_of_lock(lock, "linux-64")
    assert own == {"numpy": "2.3.1 py311h0_0", "numpy (pip)": "2.3.0", "torch": "2.13.0"}
    listed = {"numpy": "2.3.1", "numpy (pip)": "2.3.0", "torch": "2.13.0"}
    assert changed_packages(listed, own) == [] == changed_packages(own, listed)  # one side has no builds
    assert changed_packages(own, {**own, "numpy": "2.3.1 py311h0_1"}) == [
        PackageChange("numpy 2.3.1 py311h0_0 -> 2.3.1 py311h0_1", likely=True)
    ]


def test_likely_causes() -> None:
    """Packages that determine the speed come first."""
    names = ["zlib", "pytorch", "libopenblas", "rich", "rocm-core", "nvidia-cudnn-cu12 (pip)", "mkl"]
    changes = changed_packages({}, dict.fromkeys(names, "1"))
    likely = ["libopenblas", "mkl", "nvidia-cudnn-cu12 (pip)", "pytorch", "rocm-core"]
    assert [c.text for c in changes] == [f"{name} (none) -> 1" for name in (*likely, "rich", "zlib")]
