"""Recipes and YAML: what is accepted, and what an error names."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.config.recipe import Recipe, load_recipe, recipe_files
from builder.config.yamlfile import load_yaml
from builder.errors import ConfigError

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


def refusal(root: Path, name: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_recipe(name, root)
    return caught.value


def test_a_recipe_is_resolved_with_defaults(project: Path) -> None:
    recipe = load_recipe("one", project)
    assert recipe.name == "one"
    assert recipe.gpu.architectures == ("sm_80",)
    assert recipe.conda.prefix == "/opt/conda"
    assert recipe.architecture == "amd64"
    assert recipe.lock_path == project / "environments" / "e.one.lock.yml"


def test_extends_merges_mappings_and_replaces_the_rest(project: Path) -> None:
    write(
        project, "two", "extends: one\ngpu: {architectures: [sm_90]}\nvirtual_packages: {__glibc: '2.28'}\n"
    )
    recipe = load_recipe("two", project)
    assert recipe.name == "two"
    assert recipe.gpu.vendor == "nvidia" and recipe.gpu.architectures == ("sm_90",)
    assert recipe.virtual_packages == {"__cuda": "12.4", "__glibc": "2.28"}
    assert recipe.group == (), "a target joins a group by its own word only"


def test_unknown_target_offers_the_nearest(project: Path) -> None:
    error = refusal(project, "ome")
    assert "no target named 'ome'" in error.message
    assert error.hint == "did you mean one?"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("grup: [ml]", "one.yaml:10: grup: unknown key; did you mean group?"),
        ("conda: {prefx: /opt/x}", "one.yaml:10: conda.prefx: unknown key; did you mean prefix?"),
        ("conda:\n  prefix: relative", "one.yaml:11: conda.prefix: must be an absolute path"),
        ("layers: {groups: 0}", "one.yaml:10: layers.groups: Input should be greater than or equal to 1"),
        ("platform: win-64", "one.yaml:10: platform: Input should be 'linux-64' or 'linux-aarch64'"),
    ],
)
def test_a_wrong_key_is_named_with_file_line_and_cure(project: Path, line: str, said: str) -> None:
    write(project, "one", GOOD + line + "\n")
    assert said in refusal(project, "one").message


def test_missing_keys_are_all_named(project: Path) -> None:
    write(project, "bare", "description: nothing else\n")
    message = refusal(project, "bare").message
    assert "base: this key is needed" in message and "environment: this key is needed" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\nb: 2\n", "two.yaml:2: not valid YAML"),
        ("a: 1\na: 2\n", "two.yaml:2: key 'a' stands twice (first on line 1)"),
        ("- a\n", "holds list, not a mapping"),
        ("\tx: 1\n", "two.yaml:1: not valid YAML"),
    ],
)
def test_broken_yaml_is_named_with_its_line(project: Path, text: str, said: str) -> None:
    write(project, "two", text)
    assert said in refusal(project, "two").message


def test_extends_of_nothing_and_of_itself(project: Path) -> None:
    write(project, "two", "extends: nothing\n")
    assert "two.yaml:1: target two extends 'nothing', which does not exist" in refusal(project, "two").message
    write(project, "two", "extends: three\n")
    write(project, "three", "extends: two\n")
    assert "extends itself" in refusal(project, "two").message


def test_every_shipped_recipe_resolves_and_its_environment_exists() -> None:
    root = Path(__file__).parents[3]
    assert {"cpu", "perlmutter"} <= set(recipe_files(root))
    for name in recipe_files(root):
        recipe = load_recipe(name, root)
        assert recipe.environment_path.is_file(), recipe.environment_path
        assert recipe.description


def test_docs_list_every_key_of_a_recipe() -> None:
    text = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text()
    for key in Recipe.model_fields:
        if key not in ("source", "root"):
            assert f"`{key}`" in text, key


def test_lines_of_nested_keys_are_known(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a:\n  b:\n    - c: 1\n    - d: 2\n")
    yaml = load_yaml(path)
    assert yaml.where("a", "b", 1, "d") == f"{path}:4"
    assert yaml.where("a", "nowhere") == f"{path}:1"


def test_the_recipe_in_the_docs_is_one(project: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text()
    block = text.partition("## A recipe in full")[2].partition("```yaml\n")[2].partition("```")[0]
    (project / "recipes" / "documented.yaml").write_text(block)
    recipe = load_recipe("documented", project)
    assert (
        recipe.group == ("ml",)
        and recipe.files[0].target == "/app/ml"
        and recipe.conda.exclude_newer == "2026-11-01"
    )
