"""Site files: where they come from, how a recipe uses one, and the errors of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.lock.config.recipe import Recipe, load_recipe
from builder.lock.config.sites import PACKAGE_FOLDER, all_site_files, origin, site_files

SITE = """\
base: oci:site
gpu: {vendor: amd, architectures: [gfx90a]}
virtual_packages: {__glibc: "2.31"}
site:
  title: Mine
  launcher: torchrun
  node: {gpus: 4, cores: 32}
"""
RECIPE = "environment: environments/e.yml\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the site ``mine``, and an empty folder of the user."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for folder in ("recipes", "sites", "config/builder/sites"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "sites/mine.yaml").write_text(SITE)
    return tmp_path


def load(project: Path, text: str, name: str = "one") -> Recipe:
    (project / f"recipes/{name}.yaml").write_text(text)
    return load_recipe(name, project)


def load_error(project: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(project, text)
    return caught.value


def test_site_by_name(project: Path) -> None:
    """A recipe is its site's file and its own keys; it knows the site's name."""
    recipe = load(project, RECIPE + "site: mine\n")
    assert (recipe.base, recipe.gpu.vendor, recipe.site.title) == ("oci:site", "amd", "Mine")
    assert recipe.site.name == "mine"
    assert load(project, RECIPE + "base: oci:b\nsite: {title: T}\n").site.name == ""


def test_precedence(project: Path) -> None:
    """The site file, then what the recipe extends, then the recipe."""
    (project / "recipes/_base.yaml").write_text(
        "base: oci:extended\nsite: {name: mine, title: Extended, node: {cores: 256}}\n"
    )
    recipe = load(project, RECIPE + "extends: _base\nsite: {title: Own}\n")
    assert (recipe.base, recipe.gpu.vendor) == ("oci:extended", "amd")
    assert (recipe.site.title, recipe.site.node.cores, recipe.site.node.gpus) == ("Own", 256, 4)
    other = load(project, RECIPE + "extends: _base\nsite: perlmutter\n")
    assert other.site.name == "perlmutter" and other.site.runtime.kind == "podman-hpc"
    assert other.site.title == "Extended"


def test_places(project: Path) -> None:
    """The project's file wins over the package's."""
    assert site_files(None)["lumi-g"] == PACKAGE_FOLDER / "lumi-g.yaml"
    assert "_alliance" not in site_files(None) and "_alliance" in all_site_files(None)
    text = "extends: _singularity\nsite: {title: own, slurm: {}}\n"
    (project / "sites" / "lumi-g.yaml").write_text(text)
    assert load(project, RECIPE + "site: lumi-g\n").site.title == "own"
    assert origin(site_files(project)["lumi-g"]) == "project"
    assert origin(site_files(project)["perlmutter"]) == "package"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("site: min\n", "one.yaml:2: site: no site named 'min'", "did you mean mine?"),
        (
            "site: chameleon\n",
            "no site named 'chameleon'",
            "chameleon-h100, chameleon-h100-vm",
        ),
        ("site: alliance-cedar\n", "alliance-cedar was switched off on 2025-09-12", "site: alliance-fir"),
        ("site: _alliance\n", "one.yaml:2: site: no site named '_alliance'", "did you mean alliance-"),
        ("site: {name: 5}\n", "one.yaml:2: site: neither a name", "write site: NAME"),
        ("extends: lumi-g\n", "one.yaml:2: target one extends 'lumi-g'", "known targets: "),
    ],
)
def test_errors_in_recipes(project: Path, text: str, message: str, hint: str) -> None:
    error = load_error(project, RECIPE + text)
    assert message in error.message and hint in error.hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("environment: e.yml\n", "mine.yaml:8: environment: not a key of a site file", "its keys: extends"),
        ("virtual_package: {}\n", "mine.yaml:8: virtual_package: not a key", "mean virtual_packages?"),
        ("slurm: {}\n", "mine.yaml:8: slurm: not a key of a site file", "write it below site:"),
        ("format: rpm\n", "mine.yaml:8: format: ", ""),
        ("extends: nothing\n", "mine.yaml:8: site mine extends 'nothing', which does not exist", "known"),
        ("extends: mine\n", "mine.yaml:8: site mine extends itself", ""),
    ],
)
def test_errors_in_site_files(project: Path, text: str, message: str, hint: str) -> None:
    """Errors of a site file name its line, not the recipe's."""
    site = SITE.replace("base: oci:site\n", "#\n")
    (project / "sites/mine.yaml").write_text(site + text)
    error = load_error(project, RECIPE + "base: oci:b\nsite: mine\n")
    assert f"{project / 'sites'}/{message}" in error.message and hint in error.hint


def test_site_in_a_site_file(project: Path) -> None:
    """A site file has no name of its own and names no other site."""
    for text, message in (("site: lumi-g\n", ":1: site: not a map"), ("site: {name: x}\n", ":1: site.name")):
        (project / "sites/mine.yaml").write_text(text)
        assert f"mine.yaml{message}" in load_error(project, RECIPE + "site: mine\n").message


@pytest.mark.parametrize("name", site_files(None))
def test_package_sites(name: str, project: Path) -> None:
    """With each of the package's sites, a recipe needs nothing but an environment."""
    recipe = load(project, f"{RECIPE}site: {name}\n")
    assert recipe.site.name == name and recipe.site.title
