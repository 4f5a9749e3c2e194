"""Servers that do not answer when a lock is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.config.recipe import Recipe
from builder.errors import BuilderError, FetchError, RegistryError
from builder.lock.reach import silent_sources, with_all_silent
from builder.settings import Settings

#: Nothing listens on these ports of loopback.
CHANNEL, INDEX = "http://127.0.0.1:1/channel", "http://127.0.0.1:2/simple"
BASE = "docker://registry.example:5000/group/base:1"


@pytest.fixture(autouse=True)
def no_pip_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def recipe(root: Path, pip_line: str = "", **more: object) -> Recipe:
    lines = [f"channels: [{CHANNEL}]", "dependencies:", "- python", pip_line]
    (root / "e.yml").write_text("\n".join(lines))
    values = {"name": "t", "base": BASE, "environment": "e.yml", "source": root / "t.yaml"}
    return Recipe.model_validate({**values, "root": root, **more})


def with_pip(root: Path, **more: object) -> Recipe:
    return recipe(root, f"- pip: [--extra-index-url {INDEX}, six]", **more)


def settings(folder: Path, **variables: str) -> Settings:
    return Settings.from_environment({"HOME": str(folder), **variables})


def test_all(tmp_path: Path) -> None:
    """One error for base, channel and index, with the line to type."""
    error = RegistryError("cannot reach registry.example:5000: unknown host name")
    found = with_all_silent(error, with_pip(tmp_path), settings(tmp_path))
    assert isinstance(found, RegistryError)
    assert found.message.splitlines()[1:] == [
        f"    base {BASE}: cannot reach registry.example:5000: unknown host name",
        f"    channel {CHANNEL}: it refuses connections",
        f"    package index {INDEX}: it refuses connections",
    ]
    assert (
        "export BUILDER_MIRRORS='docker://registry.example:5000=docker://REGISTRY "
        f"{CHANNEL}=URL-OR-FOLDER http://127.0.0.1:2=URL-OR-FOLDER'"
    ) in found.hint


@pytest.mark.parametrize(
    "error",
    [
        RegistryError("no such tag", status=404),
        BuilderError("something else"),
        FetchError(f"channel {CHANNEL} does not answer (it refuses connections)"),
    ],
)
def test_single(error: BuilderError, tmp_path: Path) -> None:
    """An error about one server, or about something else, stays as it is."""
    assert with_all_silent(error, recipe(tmp_path), settings(tmp_path)) is error


def test_source(tmp_path: Path) -> None:
    """The source of a package is named beside the channel."""
    error = FetchError("git.example does not answer")
    found = with_all_silent(error, recipe(tmp_path), settings(tmp_path))
    assert isinstance(found, FetchError)
    assert "    git.example does not answer\n" in found.message and CHANNEL in found.message


def test_fallback(tmp_path: Path) -> None:
    """What has a fallback is not needed."""
    fallbacks = {"conda": {"fallback": "debian"}, "pip": {"fallback": "pip"}}
    assert silent_sources(with_pip(tmp_path, **fallbacks), settings(tmp_path)) == []


def test_mirrors(tmp_path: Path) -> None:
    """A mirror that answers takes a server's place; one that does not is named by its public address."""
    (tmp_path / "channel/noarch").mkdir(parents=True)
    (tmp_path / "channel/noarch/repodata.json").write_text("{}")
    mirrors = f"{CHANNEL}={tmp_path}/channel {INDEX}=http://127.0.0.1:3/copy"
    [found] = silent_sources(with_pip(tmp_path), settings(tmp_path, BUILDER_MIRRORS=mirrors))
    assert found.what == f"package index {INDEX}"


def test_offline(tmp_path: Path) -> None:
    """The hint for BUILDER_OFFLINE is to unset it."""
    error = RegistryError("builder is offline")
    found = with_all_silent(error, recipe(tmp_path), settings(tmp_path, BUILDER_OFFLINE="1"))
    assert found.hint.startswith("unset BUILDER_OFFLINE; ")


def test_password(tmp_path: Path) -> None:
    """No password of an index is printed."""
    secret = recipe(tmp_path, "- pip: [--extra-index-url http://me:secret@127.0.0.1:2/simple, six]")
    [_, found] = silent_sources(secret, settings(tmp_path))
    assert "secret" not in repr(found)
