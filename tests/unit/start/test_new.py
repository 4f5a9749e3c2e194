"""New projects: what is written, what is reported, and that nothing is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.config.recipe import load_recipe
from builder.errors import ConfigError, UsageError
from builder.settings import Settings
from builder.start import new, quick
from builder.start.found import candidate, candidates
from builder.start.new import Written, new_project
from builder.start.quick import Wishes

ENVIRONMENT = "channels: [conda-forge]\ndependencies:\n  - python=3.12\n  - numpy\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder; all channels and registries answer."""
    monkeypatch.setattr(quick, "usual_base", lambda settings: ("debian:bookworm", ""))
    monkeypatch.setattr(quick, "this_platform", lambda: "")
    monkeypatch.setattr(new, "silent_channels", lambda *given: "")
    monkeypatch.setattr(new, "silent_indexes", lambda *given: "")
    made = tmp_path / "mine"
    made.mkdir()
    return made


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No channel and no index answers."""
    monkeypatch.setattr(new, "silent_channels", lambda *given: "channel conda-forge does not answer (x)")
    monkeypatch.setattr(new, "silent_indexes", lambda *given: "package index i does not answer (x)")


def write(folder: Path, wishes: Wishes | None = None, groups: tuple[str, ...] = ()) -> Written:
    found = candidates(folder)
    settings = Settings.from_environment({"HOME": str(folder)})
    return new_project(folder, found[0] if found else None, wishes or Wishes(), settings, groups)


def names(written: Written, folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in written.files]


def test_environment(folder: Path) -> None:
    """An environment file is used where it is; the project's script is what the image runs."""
    (folder / "environment.yml").write_text(ENVIRONMENT)
    (folder / "train.py").touch()
    written = write(folder)
    assert names(written, folder) == ["recipes/mine.yaml", ".gitignore"] and not written.notes
    recipe = load_recipe("mine", folder)
    assert recipe.environment == "environment.yml" and recipe.cmd == ("python", "train.py")
    assert recipe == written.draft.recipe(folder, recipe.source)
    assert (folder / "environment.yml").read_text() == ENVIRONMENT
    assert [path.name for path in (folder / "recipes").iterdir()] == ["mine.yaml"]


def test_nothing_there(folder: Path) -> None:
    written = write(folder)
    assert names(written, folder) == ["recipes/mine.yaml", "environment.yml", ".gitignore"]
    assert load_recipe("mine", folder).cmd == ("python",)


def test_silent_channel(folder: Path, silent: None) -> None:
    """The recipe allows what takes the place of a silent channel; what that lacks is reported."""
    (folder / "environment.yml").write_text(ENVIRONMENT)
    written = write(folder)
    recipe = load_recipe("mine", folder)
    assert recipe.conda.fallback == "debian" and recipe.pip.fallback == "pip"
    assert "the recipe allows the Debian channel instead" in written.notes[0]
    assert "environment.yml:3: the Debian channel has no python=3.12, numpy" in written.warnings[0]
    assert (folder / "environment.yml").read_text() == ENVIRONMENT


def test_silent_channel_on_a_site(folder: Path, silent: None) -> None:
    """A site's machine is not this one: its recipe allows no fallback."""
    (folder / "environment.yml").write_text(ENVIRONMENT)
    write(folder, Wishes(site="perlmutter"))
    assert load_recipe("mine", folder).conda.fallback is None


def test_requirements(folder: Path, silent: None) -> None:
    """Packages of another tool become an environment file; what cannot be locked is reported."""
    (folder / "requirements.txt").write_text("polars\n-e .\n")
    written = write(folder)
    assert names(written, folder)[1] == "environment.yml"
    text = (folder / "environment.yml").read_text()
    assert "python=3.11" in text and "- polars" in text and "# left out: -e ." in text
    assert "requirements.txt: left out: -e ." in written.warnings[0]
    assert load_recipe("mine", folder).environment == "environment.yml"


def test_second_environment(folder: Path) -> None:
    """An environment file that exists stays; the new one has the target's name."""
    (folder / "environment.yml").write_text(ENVIRONMENT)
    (folder / "requirements.txt").write_text("polars\n--pre\n")
    settings = Settings.from_environment({"HOME": str(folder)})
    for name in ("a", "b"):
        new_project(folder, candidate(folder / "requirements.txt"), Wishes(name=name), settings)
        assert "- polars" in (folder / f"{name}.yml").read_text()
    (folder / "c.yml").touch()
    with pytest.raises(UsageError, match=r"c\.yml exists already"):
        new_project(folder, candidate(folder / "requirements.txt"), Wishes(name="c"), settings)
    assert (folder / "environment.yml").read_text() == ENVIRONMENT


def test_pyproject(folder: Path) -> None:
    """The groups that are named come along, and .python-version decides on Python."""
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "x"\ndependencies = ["polars"]\n[dependency-groups]\ndev = ["rich"]\n'
    )
    (folder / ".python-version").write_text("3.13\n")
    write(folder, groups=("dev",))
    text = (folder / "environment.yml").read_text()
    assert "python=3.13" in text and "- polars" in text and "- rich" in text


def test_package(folder: Path) -> None:
    """A project that is a package is installed, not copied: its commands work in the image."""
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "x"\ndependencies = ["polars"]\n[build-system]\nrequires = []\n'
    )
    (folder / "src" / "x").mkdir(parents=True)
    (folder / "src" / "x" / "__init__.py").touch()
    write(folder)
    assert "      - .\n      - polars\n" in (folder / "environment.yml").read_text()
    assert load_recipe("mine", folder).files == ()


def test_no_channels(folder: Path, silent: None) -> None:
    """The recipe names a channel where the environment file names none."""
    (folder / "environment.yml").write_text("dependencies: [python=3.11]\n")
    written = write(folder)
    recipe = load_recipe("mine", folder)
    assert (recipe.conda.channels, recipe.conda.fallback) == (("conda-forge",), "debian")
    assert "environment.yml names no channels: the recipe names conda-forge" in written.notes
    assert "the Debian channel instead" in written.notes[1]


def test_conda_lock(folder: Path) -> None:
    """A lock of conda-lock is named by the recipe."""
    (folder / "conda-lock.yml").write_text(
        "version: 1\nmetadata: {content_hash: {}, channels: [], platforms: [linux-64], sources: [e.yml]}\n"
        "package: []\n"
    )
    (folder / "e.yml").write_text(ENVIRONMENT)
    written = write(folder)
    recipe = load_recipe("mine", folder)
    assert (recipe.lock, recipe.environment) == ("conda-lock.yml", "e.yml")
    assert written.notes == ["conda-lock.yml is used as it is: builder lock is not needed"]


def test_lock_of_another_tool(folder: Path, silent: None) -> None:
    """The recipe names it, with the groups; no environment file is written."""
    (folder / "uv.lock").write_text('version = 1\nrequires-python = ">=3.10"\n[[package]]\nname = "a"\n')
    (folder / "pyproject.toml").write_text("[project]\nname = 'a'\n")
    written = write(folder, groups=("dev",))
    recipe = load_recipe("mine", folder)
    assert (recipe.lock, recipe.environment, recipe.groups) == ("uv.lock", "", ("main", "dev"))
    assert recipe.conda.fallback == "debian"
    assert not (folder / "environment.yml").exists()
    assert "the packages are those of uv.lock, with its versions" in written.notes


def test_nothing_is_overwritten(folder: Path) -> None:
    (folder / "environment.yml").write_text(ENVIRONMENT)
    write(folder)
    with pytest.raises(UsageError, match=r"recipes/mine\.yaml exists already"):
        write(folder)
    write(folder, Wishes(name="other"))
    assert load_recipe("other", folder).environment == "environment.yml"


def test_outside(folder: Path) -> None:
    other = folder.parent / "environment.yml"
    other.write_text(ENVIRONMENT)
    settings = Settings.from_environment({"HOME": str(folder)})
    with pytest.raises(ConfigError, match="--from: .* is outside of the project"):
        new_project(folder, candidate(other), Wishes(), settings)
    with pytest.raises(ConfigError, match="no site named"):
        new_project(folder, None, Wishes(site="nowhere"), settings)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "dist/\nreports/\n.env\n"),
        ("*.pyc", "*.pyc\ndist/\nreports/\n.env\n"),
        ("/dist\nreports\n.env\n", "/dist\nreports\n.env\n"),
    ],
)
def test_gitignore(folder: Path, before: str | None, after: str) -> None:
    """Only what is missing is added; locks are never ignored."""
    path = folder / ".gitignore"
    if before is not None:
        path.write_text(before)
    written = write(folder)
    assert path.read_text() == after
    assert (path in written.files) == (before != after)
