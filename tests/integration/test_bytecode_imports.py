"""The modules that a real image imports, listed in its lock."""

from __future__ import annotations

from pathlib import Path

from builder.lock.file import read_lock
from builder.lock.modules import listed_modules
from tests.integration.conftest import Builder, keep_base
from tests.support.project import edit

RECIPE = """\
base: debian:bookworm
environment: environments/own.yml
virtual_packages: {__glibc: "2.36"}
conda: {fallback: debian, exclude_newer: 2026-11-01}
pip: {fallback: pip}
bytecode: imported
"""
ENVIRONMENT = """\
name: own
channels: [conda-forge, nodefaults]
dependencies: [python=3.11, pip, {pip: [pyyaml, more-itertools]}]
"""


def test_list_of_imports(base_cache: Path, tmp_path: Path) -> None:
    """One command from nothing: it locks, builds, imports in a container, and lists what was read."""
    own = Builder(tmp_path / "project", keep_base(base_cache, tmp_path / "cache"))
    for name, text in (("recipes/own.yaml", RECIPE), ("environments/own.yml", ENVIRONMENT)):
        (own.root / name).parent.mkdir(parents=True)
        (own.root / name).write_text(text)
    (made,) = own.json("lock", "own", "--imports")
    assert set(made["imports"]) == {"yaml", "more_itertools"} and not made["failed"]
    lock = own.root / "environments/own.own.lock.yml"
    listed = listed_modules(read_lock(lock)) or frozenset()
    assert {
        "site-packages/yaml/loader.py",
        "site-packages/more_itertools/recipes.py",
        "re/_parser.py",
    } <= listed
    assert not any(path.startswith(("json/", "subprocess", "site-packages/pip/")) for path in listed)

    before = lock.read_bytes()
    edit(own.root / "recipes/own.yaml", smoke={"imports": ["yaml", "nosuch"]})
    done = own.run("lock", "--imports")
    assert "nosuch: ModuleNotFoundError" in done.stderr
    fewer = listed_modules(read_lock(lock)) or frozenset()
    assert fewer < listed and lock.read_bytes() != before
    own.run("lock", "own", "--check")
