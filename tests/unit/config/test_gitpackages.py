"""Packages of git in a lock file of conda-lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.config.gitpackages import has_git_packages
from builder.config.recipe import Recipe

GIT = "git+https://host.example/tool.git@" + "c" * 40
HEAD = "version: 1\nmetadata:\n  channels:\n  - url: conda-forge\n  platforms:\n  - linux-64\npackage:\n"
#: In the order of conda-lock 2 and later, and in that of conda-lock 1.
NEW = """\
- name: tool
  version: '1'
  manager: pip
  platform: linux-64
  dependencies: {}
  url: %s
  hash:
    sha256: cccc
"""
OLD = """\
- category: main
  dependencies: {}
  manager: pip
  name: tool
  platform: linux-64
  url: %s
  version: '1'
"""


@pytest.mark.parametrize("item", [NEW, OLD])
def test_platforms(tmp_path: Path, item: str) -> None:
    path = tmp_path / "conda-lock.yml"
    assert not has_git_packages(path, "linux-64")
    indented = "".join(f"  {line}\n" for line in item.splitlines())
    for text in (item % GIT, indented % GIT, item % f"'{GIT}'"):
        path.write_text(HEAD + text)
        assert has_git_packages(path, "linux-64") and not has_git_packages(path, "linux-aarch64")
    other = item.replace("linux-64", "osx-64") % GIT
    path.write_text(HEAD + other + item % "https://host.example/tool-1-py3-none-any.whl")
    assert not has_git_packages(path, "linux-64")


def test_recipe(tmp_path: Path) -> None:
    """builder makes its own lock beside a file with git packages, and uses one without unchanged."""
    path = tmp_path / "conda-lock.yml"
    path.write_text(HEAD + NEW % "https://host.example/tool-1-py3-none-any.whl")
    recipe = Recipe.model_validate(
        {"name": "t", "base": "debian:bookworm", "root": tmp_path, "lock": "conda-lock.yml"}
    )
    assert recipe.uses_lock_unchanged and recipe.lock_path == path
    path.write_text(HEAD + NEW % GIT)
    assert not recipe.uses_lock_unchanged and recipe.imported_lock == path
    assert recipe.lock_path == tmp_path / "conda-lock.t.lock.yml"
