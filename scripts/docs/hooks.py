"""Hooks of mkdocs: pages made while the site is built, and links that lead out of ``docs/``."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import outside  # noqa: E402
import reference  # noqa: E402


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the reference, and a page for each file of the repository that pages link to."""
    made = reference.pages(ROOT)
    pages = {file.src_uri: Path(file.abs_src_path or "") for file in files.documentation_pages()}
    made |= outside.pages(ROOT, pages)
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links out of ``docs/`` to the pages made from these files."""
    uri = page.file.src_uri
    if page.file.generated_by:
        return markdown
    return outside.rewrite(markdown, Path("docs") / uri, ROOT)
