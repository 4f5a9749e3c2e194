"""The user's copies of site files."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.config.sites import PACKAGE_FOLDER, site_files, user_folder
from builder.errors import ConfigError
from builder.settings import Settings
from builder.site.update import reset_sites, update_sites

GOOD = "site: {title: Mine, launcher: torchrun}\n"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Settings.from_environment(cache=tmp_path / "cache")


def write(folder: Path, **files: str) -> str:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return str(folder)


def test_update(tmp_path: Path, settings: Settings) -> None:
    """Added, changed and unchanged files; then the package's own again."""
    source = write(tmp_path / "new", mine=GOOD, perlmutter="extends: _linux\n" + GOOD)
    first = update_sites(source, settings)
    assert (first.folder, first.added) == (user_folder(), ("mine", "perlmutter"))
    assert site_files(None)["perlmutter"].parent == user_folder()
    write(tmp_path / "new", mine=GOOD.replace("Mine", "Other"))
    second = update_sites(source, settings)
    assert (second.changed, second.unchanged) == (("mine",), ("perlmutter",))
    assert reset_sites().removed == ("mine", "perlmutter")
    assert site_files(None)["perlmutter"] == PACKAGE_FOLDER / "perlmutter.yaml"
    assert reset_sites().removed == ()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bad", "site: {titel: x}\n", "bad.yaml:1: site.titel: unknown key; did you mean title?"),
        ("bad", "environment: x\n", "bad.yaml:1: environment: not a key of a site file"),
        ("bad", "a: [\n", "bad.yaml:2: not valid YAML"),
        ("bad", "extends: nothing\n", "bad.yaml:1: site bad extends 'nothing', which does not exist"),
        ("_bad", "a: [\n", "_bad.yaml:2: not valid YAML"),
        ("_bad", "environment: x\n", "_bad.yaml:1: environment: not a key of a site file"),
        ("_singularity", "format: rpm\n", "_singularity.yaml:1: format: "),
    ],
)
def test_broken_files(name: str, text: str, message: str, tmp_path: Path, settings: Settings) -> None:
    """Nothing is written, and the message names the source, the file and the line.

    A file that others extend is validated with them: ``_singularity`` with the package's lumi-g.
    """
    source = write(tmp_path / "new", mine=GOOD, **{name: text})
    with pytest.raises(ConfigError) as caught:
        update_sites(source, settings)
    assert f"{source}: {message}" in caught.value.message
    assert caught.value.hint.startswith("nothing was written; ")
    assert not user_folder().exists()
