"""The documentation is a site: ``mkdocs build --strict`` finds no fault, and pages load nothing remote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.cli import COMMANDS
from builder.core.errors import exit_codes
from builder.lock.config.queues import Queue
from builder.lock.config.recipe import Files, Recipe
from builder.lock.config.site import Site
from tests.support.docsite import ROOT, build_site

#: Variables that a job sets in its container: docs/jobs.md.
JOB_VARIABLES = {f"BUILDER_{name}" for name in ("CHECKPOINT_DIR", "RUN_NAME", "RESUME", "DATA", "JOB_ID")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    return build_site(tmp_path_factory.mktemp("docs") / "site")


def test_loads_nothing_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture of another host: the site works on a host without network."""
    loaded = re.compile(
        r'<(?:script|img|link rel="(?:stylesheet|preconnect)")[^>]*(?:src|href)="?(?:https?:)?//'
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if loaded.search(page.read_text())] == []


def test_links_out_of_docs(site: Path) -> None:
    """A file of the repository that a page links to is a page of the site."""
    assert "repository/ARCHITECTURE.html" in (site / "development.html").read_text()
    assert "train_digits" in (site / "repository/examples/train_digits.py.html").read_text()


def test_all_kinds_of_pages(site: Path) -> None:
    """The navigation has two levels: five sections, and pages."""
    text = (site / "index.html").read_text()
    titles = [title.strip() for title in re.findall(r'<span class="md-ellipsis">\s*([^<]+)', text)]
    wanted = {"Start", "How-to", "Systems", "Reference", "Background", "Tutorial"}
    assert wanted - set(titles) == set()
    assert 'data-md-level="2"' not in text


def codes(page: Path) -> set[str]:
    """The short texts in code type of a page of the site."""
    return set(re.findall(r"<code>([^<]+)</code>", page.read_text()))


def test_reference_of_commands(site: Path) -> None:
    """Every command has a section, with options."""
    text = (site / "reference/commands.html").read_text()
    assert [name for name in COMMANDS if f'<h2 id="builder-{name}">' not in text] == []
    assert "--exclude-newer DATE" in text and "cache prune" in text


def test_reference_of_keys(site: Path) -> None:
    """Every key of a recipe is there with a meaning, those of nested models too."""
    found = codes(site / "reference/keys.html")
    wanted = {*Recipe.model_fields, *Files.model_fields, *Site.model_fields, *Queue.model_fields} - {"root"}
    assert wanted - found == set()
    assert "PydanticUndefined" not in (site / "reference/keys.html").read_text()
    assert "What the target machine runs" in (site / "reference/keys.html").read_text()


def test_reference_of_errors_and_reports(site: Path) -> None:
    errors = (site / "reference/errors.html").read_text()
    assert [text for text in exit_codes().values() if text not in errors] == []
    assert {"verdict", "measurements", "advice"} - codes(site / "reference/report.html") == set()


def test_variables() -> None:
    """docs/cli.md lists what builder reads."""
    sources = "\n".join(
        path.read_text() for path in (ROOT / "builder").rglob("*.py") if "bench" not in path.parts
    )
    read = set(re.findall(r'"((?:BUILDER|REGISTRY)_[A-Z_]+)"', sources))
    page = (ROOT / "docs/cli.md").read_text().split("## Environment variables")[1]
    listed = set(re.findall(r"`([A-Z_]{5,})`", page))
    assert read - listed - JOB_VARIABLES == set()
