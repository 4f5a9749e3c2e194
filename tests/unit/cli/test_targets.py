"""``builder targets``: names, invalid recipes and the resolved recipe."""

from __future__ import annotations

import pytest

from tests.support.cli import Cli
from tests.support.project import TinyProject


def test_unknown_target(do: Cli, tiny: TinyProject) -> None:
    """The message names similar targets, or all."""
    result = do("build", "tinny")
    assert result.code == 3 and "no target named 'tinny'" in result.err and "did you mean tiny?" in result.err
    result = do("targets", "quite-another")
    assert result.code == 3 and "known targets: tiny" in result.err


def test_unreadable_recipe(do: Cli, tiny: TinyProject) -> None:
    (tiny.root / "recipes" / "folder.yaml").mkdir()
    result = do("targets", "folder")
    assert (
        result.code == 3 and f"{tiny.root / 'recipes' / 'folder.yaml'} is not an ordinary file" in result.err
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("base: ]", ":2: not valid YAML"),
        ("bsae: debian:bookworm", ":2: bsae: unknown key; did you mean base?"),
        ("gpu: {vendor: intel}", ":2: gpu.vendor:"),
        ("base: oci:other", ":4: key 'base' appears twice (first on line 2)"),
    ],
)
def test_invalid_recipe(do: Cli, tiny: TinyProject, line: str, words: str) -> None:
    """Every command reports the file, the line and the key."""
    first, rest = tiny.recipe.read_text().split("\n", 1)
    tiny.recipe.write_text(f"{first}\n{line}\n{rest}")
    for command in (["build", "tiny"], ["targets"], ["targets", "tiny"], ["lock", "--check"]):
        result = do(*command)
        assert result.code == 3 and f"{tiny.recipe}{words}" in result.err and "hint:" in result.err


def test_show_prints_a_recipe(do: Cli, tiny: TinyProject) -> None:
    """What ``targets TARGET`` prints is a recipe with the same meaning."""
    shown = do("targets", "tiny")
    resolved = do("targets", "tiny", "--json").json
    (tiny.root / "recipes" / "again.yaml").write_text(shown.out)
    again = do("targets", "again", "--json").json
    assert again == resolved and resolved["name"] == "tiny" and resolved["conda"]["prefix"] == "/opt/conda"


def test_list(do: Cli, tiny: TinyProject) -> None:
    """One row for each target."""
    (tiny.root / "recipes" / "away.yaml").write_text("extends: tiny\ndescription: '[/x]'\n")
    lines = do("targets").out.splitlines()
    assert [line.split()[0] for line in lines] == ["target", "away", "tiny"]
    assert "[/x]" in lines[1], "a description is no markup"
    assert [row["name"] for row in do("targets", "--json").json] == ["away", "tiny"]
