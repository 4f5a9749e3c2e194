"""Recipes: inheritance, defaults, and the errors of invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.core.version import __version__
from builder.lock.config.recipe import Recipe, load_recipe, recipe_files

ROOT = Path(__file__).parents[4]


GOOD = """\
description: a test
group: [ml]
base: oci:base
environment: environments/e.yml
gpu:
  vendor: nvidia
  architectures: [sm_80]
virtual_packages:
  __cuda: "12.4"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "environments").mkdir()
    write(tmp_path, "one", GOOD)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / "recipes" / f"{name}.yaml").write_text(text)


def load_error(root: Path, name: str) -> ConfigError:
    """Loads an invalid recipe and returns the error."""
    with pytest.raises(ConfigError) as caught:
        load_recipe(name, root)
    return caught.value


def test_version(project: Path) -> None:
    """``version: 1`` changes nothing, also not for a recipe that extends the file."""
    before = load_recipe("one", project)
    write(project, "one", f"version: 1\n{GOOD}")
    write(project, "two", "extends: one\n")
    assert load_recipe("one", project) == before
    assert load_recipe("two", project).gpu == before.gpu


@pytest.mark.parametrize("version", ["2", "true"])
def test_newer_version(project: Path, version: str) -> None:
    """A recipe in another format names builder's version, and none of the keys that this builder lacks."""
    write(project, "one", f"{GOOD}a_key_of_2030: 1\nversion: {version}\n")
    write(project, "two", "extends: one\n")
    for name in ("one", "two"):
        error = load_error(project, name)
        assert "one.yaml:11: version: " in error.message and "reads version 1" in error.message
        assert f"upgrade builder (this is {__version__})" in error.hint


def test_extends(project: Path) -> None:
    """Mappings are merged, all other values are replaced."""
    write(
        project, "two", "extends: one\ngpu: {architectures: [sm_90]}\nvirtual_packages: {__glibc: '2.28'}\n"
    )
    recipe = load_recipe("two", project)
    assert recipe.name == "two"
    assert recipe.gpu.vendor == "nvidia" and recipe.gpu.architectures == ("sm_90",)
    assert recipe.virtual_packages == {"__cuda": "12.4", "__glibc": "2.28"}
    assert recipe.group == (), "groups are not inherited"


def test_unknown_target(project: Path) -> None:
    """The hint names similar targets."""
    error = load_error(project, "ome")
    assert "no target named 'ome'" in error.message
    assert error.hint == "did you mean one?"


def test_invalid_extends(project: Path) -> None:
    """A recipe extends a missing one, or itself."""
    write(project, "two", "extends: nothing\n")
    assert (
        "two.yaml:1: target two extends 'nothing', which does not exist" in load_error(project, "two").message
    )
    write(project, "two", "extends: three\n")
    write(project, "three", "extends: two\n")
    assert "extends itself" in load_error(project, "two").message


def test_underscore_files(project: Path) -> None:
    """A file whose name starts with an underscore is not a target, but can be extended."""
    (project / "recipes" / "_base.yaml").write_text(GOOD + "site: {title: T}\n")
    (project / "recipes" / "two.yaml").write_text("extends: _base\n")
    assert list(recipe_files(project)) == ["one", "two"]
    assert load_recipe("two", project).site.title == "T"
    with pytest.raises(ConfigError, match="no target named '_base'"):
        load_recipe("_base", project)


def test_shipped_recipes() -> None:
    """Every shipped recipe loads, and its environment file exists."""
    assert {"cpu", "perlmutter"} <= set(recipe_files(ROOT))
    for name in recipe_files(ROOT):
        recipe = load_recipe(name, ROOT)
        assert recipe.environment_path.is_file(), recipe.environment_path
        assert recipe.description


def test_docs_list_every_key() -> None:
    """docs/recipes.md names every key of a recipe."""
    text = (ROOT / "docs" / "recipes.md").read_text()
    for key in Recipe.model_fields:
        if key not in ("source", "root"):
            assert f"`{key}`" in text, key


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('name: "x\\nBootstrap: scratch"', "one.yaml:10: name: 'x\\nBootstrap: scratch' is not a name"),
        ('env: {"A\\nRUN id": x}', "one.yaml:10: env.A\nRUN id: 'A\\nRUN id' is not a valid variable name"),
        ('env:\n  A: "x\\e[2J"', "one.yaml:11: env.A: must be one line without control characters"),
        ('conda: {prefix: "/opt/x\\nRUN id"}', "one.yaml:10: conda.prefix: must be one line"),
        ('description: "a\\nb"', ""),
    ],
)
def test_injection(project: Path, line: str, message: str) -> None:
    """No value of a recipe becomes a line of its own in a Dockerfile or definition file."""
    write(project, "one", GOOD.replace("description: a test\n", "") + "#\n" + line + "\n")
    if message:
        assert message in load_error(project, "one").message
    else:
        assert load_recipe("one", project).description == "a\nb"


@pytest.mark.parametrize(
    ("keys", "lock", "imported"),
    [
        ({"lock": "conda-lock.yml"}, "conda-lock.yml", False),
        ({"lock": "uv.lock"}, "uv.t.lock.yml", True),
        ({"lock": "pylock.dev.toml"}, "pylock.dev.t.lock.yml", True),
        ({"lock": "pixi.lock", "environment": "environment.yml"}, "pixi.t.lock.yml", True),
    ],
)
def test_lock_path(keys: dict[str, str], lock: str, imported: bool) -> None:
    """A lock of conda-lock is used unchanged; from others builder makes its own, beside them."""
    recipe = Recipe.model_validate({"name": "t", "base": "debian:bookworm", "root": Path("/p"), **keys})
    assert recipe.lock_path == Path("/p") / lock
    assert (recipe.imported_lock is not None) == imported
    assert recipe.uses_lock_unchanged == ("lock" in keys and not imported)
