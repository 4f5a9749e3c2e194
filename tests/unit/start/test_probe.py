"""Channels that do not answer, and what the Debian channel lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.config.recipe import Recipe
from builder.lock.spec import Environment, Spec
from builder.settings import Settings
from builder.start.draft import Draft
from builder.start.probe import (
    fits_debian_channel,
    not_in_debian_channel,
    silent_channels,
    silent_indexes,
)


def recipe(base: str = "debian:bookworm", platform: str = "") -> Recipe:
    return Draft("t", "environment.yml", base=base, platform=platform).recipe(Path("/p"))


def environment(*specs: str, channel: str = "conda-forge", index: str | None = None) -> Environment:
    conda = tuple(Spec(text, text.split("=")[0].split(" ")[0].rstrip("<>"), "e.yml:1") for text in specs)
    return Environment(Path("e.yml"), "", (channel,), conda, (), index)


@pytest.mark.parametrize(
    ("base", "platform", "fits"),
    [
        ("debian:bookworm", "", True),
        ("docker://docker.io/library/debian:bookworm-slim", "", True),
        ("docker://127.0.0.1:5000/mirror/ubuntu:24.04", "", True),
        ("docker://ubuntu:22.04", "", False),
        ("debian:bullseye", "", False),
        ("oci:base", "", False),
        ("debian:bookworm", "linux-aarch64", True),
    ],
)
def test_fits_debian_channel(base: str, platform: str, fits: bool) -> None:
    """Programs of bookworm run on bases with its glibc or a newer one."""
    assert fits_debian_channel(recipe(base, platform)) == fits


@pytest.mark.parametrize(
    ("spec", "is_there"),
    [
        ("python", True),
        ("python=3.11", True),
        ("python 3.11.*", True),
        ("python>=3.10,<3.13", True),
        ("python >=3.9", True),
        ("python==3.11.2", True),
        ("python=3.12", False),
        ("python 3.12.*", False),
        ("python>=3.12", False),
        ("python=3.11.2=*_cpython", True),
        ("pip", True),
        ("numpy", False),
        ("openssl", True),
    ],
)
def test_not_in_debian_channel(spec: str, is_there: bool) -> None:
    assert [found.text for found in not_in_debian_channel(environment(spec))] == ([] if is_there else [spec])


def test_silent(tmp_path: Path) -> None:
    """A channel or index that refuses connections is named, with the reason."""
    settings = Settings.from_environment({"HOME": str(tmp_path)})
    found = silent_channels(recipe(), environment(channel="http://127.0.0.1:9/x"), settings)
    assert found == "channel http://127.0.0.1:9/x does not answer (it refuses connections)"
    assert silent_indexes(recipe(), environment(), settings) == ""
    wrong = environment(index="http://name:secret@127.0.0.1:9/simple")
    shown = silent_indexes(recipe(), wrong, settings)
    assert "127.0.0.1:9/simple does not answer" in shown and "secret" not in shown
