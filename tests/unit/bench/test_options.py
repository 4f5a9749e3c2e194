"""The command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.bench.options import parse

DOCS = Path(__file__).parents[3] / "docs" / "smoke.md"


def test_documented(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    words = capsys.readouterr().out.split()
    options = {word.strip("[],") for word in words if word.lstrip("[").startswith("--")} - {"--help"}
    documented = DOCS.read_text()
    assert options and all(option in documented for option in options)


@pytest.mark.parametrize("value", ["0", "-1", "many", "5000"])
def test_number_of_ranks(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--ranks", value])
    assert "--ranks" in capsys.readouterr().err


def test_architectures() -> None:
    assert parse([]).architectures == []
    assert parse(["--architectures", "sm_80,sm_90,"]).architectures == ["sm_80", "sm_90"]
