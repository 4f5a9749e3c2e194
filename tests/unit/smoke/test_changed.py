"""What differs between the runs of two images."""

from __future__ import annotations

from typing import Any

from builder.smoke.changed import differences
from builder.smoke.packages import PackageChange
from builder.smoke.reports import StoredReport
from tests.support.reports import A100_40, A100_80, a100, cpu, rich

OTHER = "sha256:" + "2" * 64


def run(*uuids: str, driver: str = "580.82", name: str = "", **more: Any) -> StoredReport:
    devices = [{**A100_40, **({"name": name} if name else {}), "uuid": u, "driver": driver} for u in uuids]
    return StoredReport(a100(devices=devices, **more), "x.json")


def texts(old: list[StoredReport], new: list[StoredReport]) -> dict[str, tuple[bool | None, str]]:
    return {d.what: (d.changed, d.text) for d in differences(old, new, ())}


def test_gpus() -> None:
    """The same GPU, another one, some others, another model, and an unknown one."""
    one = run("GPU-1234abcd-1")
    assert texts([one], [run("GPU-1234abcd-1")])["GPU"] == (False, "the same")
    expected = (True, "another one of the same model (1234abcd → 2)")
    assert texts([one], [run("GPU-2")])["GPU"] == expected
    assert texts([run("1", "2", "3")], [run("1", "2", "4")])["GPU"] == (True, "1 of 3 are others")
    assert texts([run("1", "2")], [run("3", "4")])["GPU"] == (True, "others of the same model")
    assert texts([run("1", "2")], [run("2", "1")])["GPU"] == (False, "the same 2")
    found = texts([one], [run("2", name=A100_80["name"])])["GPU"]
    assert found == (True, "NVIDIA A100-SXM4-40GB → NVIDIA A100-SXM4-80GB")
    assert texts([StoredReport(a100(), "old")], [one])["GPU"][0] is None


def test_driver_and_power() -> None:
    """The driver; a power limit where it is known."""
    found = texts([run("1", driver="570.86")], [run("1")])
    assert found["driver"] == (True, "570.86 → 580.82") and "power limit" not in found
    limited, normal = StoredReport(rich(), "x"), StoredReport(rich(), "y")
    limited.report["facts"]["devices"][0]["power_limit_w"] = 300.0
    assert texts([normal], [limited])["power limit"] == (True, "400 W → 300 W, 400 W")
    old = StoredReport(a100(), "old")
    old.report["facts"]["driver"] = "580.82"
    assert texts([old], [run("1")])["driver"] == (False, "the same (580.82)")


def test_image_and_packages() -> None:
    """Packages differ only between two images; a CPU has no GPU and no driver."""
    one, other = StoredReport(cpu(), "x"), StoredReport(cpu(digest=OTHER), "y")
    assert [d.what for d in differences([one], [one], None)] == ["image"]
    assert [str(d) for d in differences([one], [other], None)] == ["image another one", "packages not known"]
    changed = [PackageChange("torch", "2.12.0", "2.13.0"), PackageChange("zlib", "1", "2")]
    assert str(differences([one], [other], changed)[-1]) == "packages 2 changed"
    assert str(differences([one], [other], [])[-1]) == "packages the same"
