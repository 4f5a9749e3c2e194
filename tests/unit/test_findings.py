"""The form of findings/: what each script says and installs. Nothing is run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "findings"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
_PARTS = ("Versions", "Behaviour", "Output seen", "Who is hurt")


def _head(script: Path) -> tuple[str, str]:
    """The comment of a script, without its marks, and the code below."""
    first, *lines = script.read_text().splitlines()
    assert first == "#!/usr/bin/env bash"
    end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return "\n".join(line[2:] for line in lines[:end]), "\n".join(lines[end:])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_comment(script: Path) -> None:
    """It has one sentence, then versions, behaviour, output and who is hurt, in this order and not empty."""
    comment, _ = _head(script)
    sentence, _, rest = comment.partition("\n\n")
    assert sentence.endswith("."), sentence
    texts = re.split(rf"(?m)^({'|'.join(_PARTS)})\b[^:]*:", rest)
    assert tuple(texts[1::2]) == _PARTS, "the parts of the comment"
    assert all(text.strip() for text in texts[2::2])
    assert re.search(r"\d+\.\d+", texts[2]), "versions have numbers"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_code(script: Path) -> None:
    """It stops at an error, works in a temporary folder, installs pinned versions, and needs no builder."""
    _, code = _head(script)
    assert script.stat().st_mode & 0o111, "executable"
    assert code.startswith("set -euo pipefail\n")
    assert "mktemp -d" in code
    assert not re.search(r"\bbuilder\b", code), "builder has no part in it"
    for line in re.findall(r"pip\" install .*", code):
        names = [word for word in line.split()[2:] if re.match(r"[A-Za-z]", word) and "-r" not in line]
        assert all("==" in name for name in names), line
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_readme() -> None:
    """The page has five lines, and the folder holds nothing but it and scripts."""
    lines = (FOLDER / "README.md").read_text().splitlines()
    assert len(lines) <= 7
    assert {p.suffix for p in FOLDER.iterdir()} == {".md", ".sh"}
