"""The copy of reports to send in: what is not listed is not in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builder.deliver.smoke.share import FIELDS, FORMAT, ShareError, contents, share, to_bytes
from tests.support.reports import HOST, USER, a100, report, rich

#: What of the report ``rich`` may identify somebody.
SECRETS = (HOST, USER, "project_465", "165032", "1234abcd", "0000:", "hsn0", "secret-lib", "/users", "26.11")


def test_rich() -> None:
    """Figures, hardware and versions are in the copy; hosts, users, paths, packages and days are not."""
    document = share([rich()])
    text = to_bytes(document).decode()
    assert not [secret for secret in SECRETS if secret in text]
    (run,) = document["runs"]
    assert document["shared_report"] == FORMAT and run["month"] == "2026-11"
    assert run["torch"]["version"] == "2.13.0+cu130" and run["system"]["kernel"] == "5.14.21"
    assert run["devices"][1] == {
        **{"gpu": 2, "name": "NVIDIA A100-SXM4-40GB", "architecture": "sm_80", "driver": "580.82.07"},
        **{"mig": False, "rank": 1, "memory_bytes": 42297786368, "multiprocessors": 108},
        "power_limit_w": 400,
    }
    bf16, reduce = run["measurements"][:2]
    assert bf16["id"] == "matmul.bf16" and bf16["clock_mhz"] == 1755 and len(bf16["ranks"]) == 2
    assert reduce["algorithm"] == "nvls" and "samples_gb_per_s" not in reduce


def test_new_fields() -> None:
    """A field that is not listed is left out, anywhere in a report."""
    made = rich()
    evil = "somebody@example.org"
    for part in (made, made["facts"], made["facts"]["cpu"], *made["facts"]["devices"], *made["measurements"]):
        part["new"] = evil
    assert evil not in to_bytes(share([made])).decode()


@pytest.mark.parametrize(
    "value", ["/home/ada", "n017.site.example", "GPU-1234abcd-0000", "ada@x", None, 7, []]
)
def test_other_forms(value: Any) -> None:
    """A listed field with an unexpected value is left out."""

    def spoil(form: Any, part: Any) -> None:
        for key, inner in form.items():
            if isinstance(inner, dict) and isinstance(part.get(key), dict):
                spoil(inner, part[key])
            elif isinstance(inner, list):
                for item in part.get(key) or ():
                    spoil(inner[0], item)
            elif key in part:
                part[key] = value

    made = rich()
    spoil({k: v for k, v in FIELDS.items() if k not in ("measurements", "month")}, made["facts"])
    for item in made["measurements"]:
        spoil(FIELDS["measurements"][0], item)
    made["verdict"] = "pass"
    text = to_bytes(share([made])).decode()
    assert not isinstance(value, str) or value not in text


def test_contents() -> None:
    """The lines for people name the hardware; the same GPU counts once."""
    made = a100()
    made["facts"]["devices"][0]["uuid"] = "GPU-1"
    lines = contents(share([made, made]))
    assert lines[0] == "2 run(s); 1 x NVIDIA A100-SXM4-40GB; AMD EPYC 7763"
    assert "builder uploads nothing" in lines[-1]


def test_nothing_to_share() -> None:
    with pytest.raises(ShareError, match="no report has a measurement"):
        share([report([])])


def test_long_lists() -> None:
    """Lists are limited, and numbers are finite."""
    made = a100()
    made["measurements"] = made["measurements"] * 2000
    made["measurements"][0]["median_gflop_per_s"] = float("inf")
    (run,) = json.loads(to_bytes(share([made])))["runs"]
    assert len(run["measurements"]) == 4096 and "median_gflop_per_s" not in run["measurements"][0]
