"""Files of the repository outside ``docs/`` that pages link to: each becomes a page of the site.

``[the training](../examples/train.py)`` works on a code host; in the site the link leads to the page
``repository/examples/train.py.md``. Markdown files stay pages, other files become one code block.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

#: ``](target`` and ``#section)`` of a link that is no URL.
LINK = re.compile(r"(\]\()(?!\w+:)([^)#\s]+)(#[^)\s]+)?(\))")
_LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".sh": "bash",
    ".toml": "toml",
}


def pages(root: Path, known: Mapping[str, Path]) -> dict[str, str]:
    """The pages to add, by their path in the site: the files that pages link to, and that these link to.

    Args:
        root: the repository.
        known: the pages of ``docs/`` by their path in it.
    """
    made: dict[str, str] = {}
    waiting = [
        path.relative_to(root) for path in known.values() if path.is_relative_to(root / "docs")
    ]
    while waiting:
        page = waiting.pop()
        if page.suffix != ".md":
            continue
        for target in targets((root / page).read_text(), page, root):
            uri = site_path(target)
            if target.parts[0] != "docs" and uri not in made:
                made[uri] = content(root, target)
                waiting.append(target)
    return made


def targets(text: str, page: Path, root: Path) -> list[Path]:
    """The files, relative to the repository, that a page links to; a folder stands for its README.md."""
    found = []
    for match in LINK.finditer(text):
        path = Path(os.path.normpath(page.parent / match[2]))
        path = path / "README.md" if (root / path / "README.md").is_file() else path
        if (root / path).is_file() and not match[2].startswith("/"):
            found.append(path)
    return found


def site_path(file: Path) -> str:
    """Where a file of the repository is in the site's sources."""
    if file.parts[0] == "docs":
        return Path(*file.parts[1:]).as_posix()
    name = file if file.suffix == ".md" else file.with_name(file.name + ".md")
    return (Path("repository") / name).as_posix()


def content(root: Path, file: Path) -> str:
    """The page that shows a file."""
    text = (root / file).read_text()
    if file.suffix == ".md":
        return rewrite(text, file, root)
    fence = "~~~~~~~~"
    return f"# {file}\n\n{fence}{_LANGUAGES.get(file.suffix, 'text')}\n{text}\n{fence}\n"


def rewrite(text: str, page: Path, root: Path) -> str:
    """The text of a page with links that lead to places in the site.

    Args:
        text: Markdown.
        page: its file, relative to the repository.
        root: the repository.
    """
    here = Path(site_path(page)).parent

    def lead(match: re.Match[str]) -> str:
        found = targets(match[0], page, root)
        if not found:
            return match[0]
        place = os.path.relpath(site_path(found[0]), here)
        return f"{match[1]}{place}{match[3] or ''}{match[4]}"

    return LINK.sub(lead, text)
