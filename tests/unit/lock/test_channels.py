"""Channels that do not answer, and those with terms of use."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.progress import Reporter
from builder.core.settings import Settings
from builder.lock import channels
from builder.lock.channels import named_channels, probe_channels, terms_note, unreadable
from builder.lock.config.recipe import Recipe
from builder.lock.environment import read_environment
from builder.lock.request import SolveRequest

NETWORK = "failed\n  Caused by: failed to lookup address information: {url}"


class Notes(Reporter):
    """Records notes."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, message: str) -> None:
        self.texts.append(message)


def request(folder: Path, names: str, of_recipe: str = "") -> SolveRequest:
    """A request with channels of an environment file, or of a recipe."""
    path, source = folder / "environment.yml", folder / "mine.yaml"
    path.write_text(f"channels:\n{names}dependencies: [python=3.11]\n")
    data = {"base": "debian:bookworm", "environment": "environment.yml"}
    source.write_text(f"base: debian:bookworm\nenvironment: environment.yml\n{of_recipe}\n")
    own = {"conda": {"channels": ["defaults"]}} if of_recipe else {}
    recipe = Recipe.model_validate({**data, **own, "name": "mine", "root": folder, "source": source})
    settings = Settings.from_environment({"HOME": str(folder)}, cache=folder / "cache")
    return SolveRequest(recipe, read_environment(path, "linux-64"), settings, reporter=Notes())


def test_defaults(tmp_path: Path) -> None:
    """The message has file, line and the word that is there, not only where conda means it to be."""
    made = request(tmp_path, "  - nodefaults\n  - defaults\n")
    found = named_channels(made)
    error = RuntimeError(NETWORK.format(url=found[1].actual))
    assert unreadable(error, found, made).startswith(
        f"{tmp_path}/environment.yml:3: channel defaults ({found[1].name}) does not answer (unknown host"
    )


def test_channel_of_the_recipe(tmp_path: Path) -> None:
    """The recipe's channels count, and the line is that of the recipe."""
    made = request(tmp_path, "  - forge\n", "conda: {channels: [defaults]}")
    found = named_channels(made)
    text = unreadable(RuntimeError(found[0].actual), found, made)
    assert text.startswith(f"{tmp_path}/mine.yaml:3: channel defaults ({found[0].name}) does not answer")


def test_two_channels(tmp_path: Path) -> None:
    """No line is named where it may be either of two."""
    made = request(tmp_path, "  - forge\n  - other\n")
    assert unreadable(RuntimeError("x"), named_channels(made), made) == (
        "channel forge, other does not answer (x)"
    )


@pytest.mark.parametrize(
    ("name", "is_named"),
    [
        ("defaults", True),
        ("pkgs/main", True),
        ("anaconda", True),
        (f"{channels._ANACONDA}/pkgs/r/", True),
        ("conda-forge", False),
        ("https://host.example/my-defaults", False),
        ("anaconda-forge", False),
    ],
)
def test_terms(tmp_path: Path, name: str, is_named: bool) -> None:
    """A lock and builder init say once that a channel has terms, and no more than they say."""
    note = terms_note(["conda-forge", name])
    assert bool(note) == is_named
    made = request(tmp_path, f"  - {name}\n")
    named_channels(made)
    assert isinstance(made.reporter, Notes) and len(made.reporter.texts) == is_named
    if is_named:
        assert made.reporter.texts[0].startswith(f"channel {name} is Anaconda's: ")
        assert "more than 200 employees or contractors may need a paid licence" in note


def test_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of this machine is not that of a channel."""

    def refused(settings: Settings) -> None:
        raise OSError(30, "Read-only file system", "/cache")

    monkeypatch.setattr(channels, "gateway", refused)
    with pytest.raises(OSError, match="Read-only file system"):
        probe_channels(request(tmp_path, "  - forge\n"))
