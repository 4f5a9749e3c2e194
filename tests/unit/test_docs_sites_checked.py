"""Pages of the systems: the day of the check, and the site files that each is about."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from builder.config.sitefile import read_site
from builder.config.sites import PACKAGE_FOLDER, yaml_files

ROOT = Path(__file__).parents[2]
#: Pages that are not about one system.
_GENERAL = {"README.md", "install.md", "keeping.md", "pbs.md"}
PAGES = [page for page in sorted((ROOT / "docs/sites").glob("*.md")) if page.name not in _GENERAL]
#: The two lines are at the top of a page.
_TOP = 6


def top(page: Path) -> list[str]:
    return page.read_text().splitlines()[:_TOP]


def values(page: Path, key: str) -> list[str]:
    """The values of a line ``KEY: VALUE, VALUE`` at the top of a page."""
    found = [line.removeprefix(f"{key}: ") for line in top(page) if line.startswith(f"{key}: ")]
    assert len(found) == 1, f"docs/sites/{page.name}: one of the first {_TOP} lines is '{key}: ...'"
    return re.findall(r"[\w.-]+", found[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_checked(page: Path) -> None:
    """A page and the site files that it names were compared with the site's documents on the same day."""
    (checked,) = values(page, "Checked")
    files = yaml_files(PACKAGE_FOLDER)
    for name in values(page, "Site files"):
        assert name in files, f"docs/sites/{page.name}: no site file {name}"
        of_file = read_site(name, files).site.checked
        assert str(of_file) == str(date.fromisoformat(checked)), f"{name}: checked {of_file}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_retired_systems(page: Path) -> None:
    """A page about systems that are all switched off says so above everything else."""
    files = yaml_files(PACKAGE_FOLDER)
    sites = [read_site(name, files).site for name in values(page, "Site files")]
    if all(site.status == "retired" for site in sites):
        beginning = page.read_text().split("\n## ")[0]
        assert "switched off" in beginning
        assert all(str(site.retired) in beginning for site in sites)


def test_every_site_has_a_page() -> None:
    """Each site file of the package is named by one page."""
    named = [name for page in PAGES for name in values(page, "Site files")]
    sites = {path.stem for path in PACKAGE_FOLDER.glob("*.yaml") if not path.name.startswith("_")}
    assert sorted(named) == sorted(sites)
