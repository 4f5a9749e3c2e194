"""The command line."""

from __future__ import annotations

import pytest

from builder.bench.options import parse


def test_command() -> None:
    """The watchdog allows for the program's time; what is no list of texts is refused."""
    assert parse(["--command", '["x"]', "--command-timeout", "500"]).stall == 530
    for text in ("x", "[1]"):
        with pytest.raises(SystemExit):
            parse(["--command", text])


def test_architectures() -> None:
    assert parse([]).architectures == []
    assert parse(["--architectures", "sm_80,sm_90,"]).architectures == ["sm_80", "sm_90"]
