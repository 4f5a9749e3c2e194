"""The documentation is a site: ``mkdocs build --strict`` finds no fault, and its pages load nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Strict: a link to a page or section that does not exist is an error."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_loads_nothing_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture of another host: the site works on a host without network."""
    loaded = re.compile(r'<(?:script|img|link rel="(?:stylesheet|preconnect)")[^>]*(?:src|href)="?(?:https?:)?//')
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if loaded.search(page.read_text())] == []


def test_links_out_of_docs(site: Path) -> None:
    """A file of the repository that a page links to is a page of the site."""
    assert "repository/ARCHITECTURE.html" in (site / "style.html").read_text()
    assert "def main" in (site / "repository/examples/train_digits.py.html").read_text()


def test_all_kinds_of_pages(site: Path) -> None:
    """Tutorial, how-tos, sites, reference, explanation and development are in the navigation."""
    text = (site / "index.html").read_text()
    titles = [title.strip() for title in re.findall(r'<span class="md-ellipsis">\s*([^<]+)', text)]
    wanted = {"Tutorial", "How-to", "Sites", "Reference", "Explanation", "For developers"}
    assert wanted - set(titles) == set()
