"""requirements/*.txt lock builder's own dependencies: every package by version and hash, no address."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUN = PROJECT["dependencies"]
DEV = RUN + PROJECT["optional-dependencies"]["dev"]


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def locked(name: str) -> dict[str, str]:
    """The version of each package in ``requirements/NAME.txt``."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    found = re.findall(r"^([\w.-]+)==(\S+)", text, re.M)
    return {canonicalize_name(name): version for name, version in found}


@pytest.mark.parametrize(("name", "wanted"), [("run", RUN), ("dev", DEV)])
def test_covers_pyproject(name: str, wanted: list[str]) -> None:
    """Each requirement of pyproject.toml is locked to a version that satisfies it."""
    versions = locked(name)
    for requirement in map(Requirement, wanted):
        assert versions.get(canonicalize_name(requirement.name), "none") in requirement.specifier, requirement


@pytest.mark.parametrize("name", ["run", "dev"])
def test_hashes(name: str) -> None:
    """Each package has a sha256, and no line names a registry or another address."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text
    blocks = re.split(r"^(?=\S)", text, flags=re.M)[1:]
    assert [block for block in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}", block)] == []


def test_same_versions() -> None:
    """What a user installs is what the tests ran with."""
    run, dev = locked("run"), locked("dev")
    assert {name: dev.get(name) for name in run} == run


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_pins(path: Path) -> None:
    """Workflows name their permissions, and actions by commit."""
    text = path.read_text()
    assert re.search(r"^permissions:", text, re.M)
    used = re.findall(r"uses: (\S+)", text)
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []
