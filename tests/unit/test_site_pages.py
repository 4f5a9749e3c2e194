"""The pages of docs/sites: each site file is on one, whose first lines say when somebody read its sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.lock.config.recipe import load_recipe
from builder.lock.config.sites import PACKAGE_FOLDER, all_site_files, read_site

FOLDER = Path(__file__).parents[2] / "docs" / "sites"
FILES = all_site_files(None)
NAMES = sorted(path.stem for path in PACKAGE_FOLDER.glob("[!_]*.yaml"))


def headed() -> dict[str, tuple[str, str]]:
    """Site file -> the page that names it in its first lines, and the date there."""
    found: dict[str, tuple[str, str]] = {}
    for page in sorted(FOLDER.glob("*.md")):
        head = "\n".join(page.read_text().splitlines()[:8])
        names = re.search(r"^Site files?: (.+)$", head, re.MULTILINE)
        date = re.search(r"^Checked: (\d{4}-\d\d-\d\d)$", head, re.MULTILINE)
        if names:
            assert date, f"{page.name} has no line 'Checked: DATE'"
            found |= {name: (page.name, date[1]) for name in names[1].replace("`", "").split(", ")}
    return found


@pytest.mark.parametrize("name", NAMES)
def test_page_of_a_site(name: str) -> None:
    """A page names the site file, and has its date."""
    page, date = headed().get(name, ("", ""))
    assert page, f"no page of docs/sites has {name} in its line 'Site files:'"
    assert date == read_site(name, FILES).site.checked, page


def test_table_of_systems() -> None:
    """The table links every page of a system, with its date."""
    rows = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("| ")]
    for page, date in headed().values():
        linked = [row for row in rows if re.search(rf"\]\({re.escape(page)}[#)]", row)]
        assert linked and all(f"| {date} |" in row for row in linked), page


def test_no_other_names() -> None:
    """The pages name site files that exist."""
    assert set(headed()) <= set(NAMES)


def rocm(base: str) -> str:
    """Returns the ROCm of a tag of LUMI's AI Factory: ``7.0`` for ``u24r70``."""
    (digits,) = re.findall(r"-u\d+r(\d\d)", base)
    return f"{digits[0]}.{digits[1]}"


def test_bases_of_lumi() -> None:
    """The page names the target's base and the other one; each environment file is for its base's ROCm."""
    recipe = load_recipe("lumi-g", FOLDER.parents[1])
    page = (FOLDER / "lumi-g.md").read_text()
    row = re.search(r"^\| ROCm 6\.4 \| `base: (\S+)` \| `(\S+)` \|$", page, re.MULTILINE)
    assert row and recipe.base.removeprefix("docker://") in page
    for base, file in ((recipe.base, recipe.environment), row.groups()):
        text = (FOLDER.parents[1] / file).read_text()
        assert set(re.findall(r"\+rocm([\d.]+)", text)) == {rocm(base)}, (base, file)
