"""Folders of find-links that variables name: which variables, and what messages and logs show."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.cli.logs import log_path, start_logging, stop_logging
from builder.core.errors import BuilderError, ConfigError
from builder.core.model import LockedPackage
from builder.core.settings import Settings
from builder.formats.net.urlvariables import as_written
from builder.lock.config.recipe import Recipe
from builder.lock.inputs import Inputs, recorded_inputs
from builder.lock.pip import solve_pip
from builder.lock.request import SolveRequest
from tests.support.wheels import make_wheel

SECRET = "S3CRET+value"
PYTHON = LockedPackage("python", "3.11.2", "conda", "linux-64", "https://h/python-3.11.2-0.conda", "0" * 64)


@pytest.fixture(autouse=True)
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("DEPLOY_KEY", SECRET)
    monkeypatch.setenv("REGISTRY_PASSWORD", SECRET)
    start_logging(tmp_path / "logs of this test")
    yield
    stop_logging()


def log_text() -> str:
    path = log_path()
    assert path is not None
    return path.read_text()


def recipe(root: Path, link: str, requirement: str = "absent") -> Recipe:
    text = f"channels: [c]\ndependencies:\n- python\n- pip: ['--find-links {link}', {requirement}]\n"
    (root / "environment.yml").write_text(text)
    values = {"name": "t", "base": "debian:bookworm", "environment": "environment.yml", "root": root}
    return Recipe.model_validate(values)


def solve(root: Path, link: str, requirement: str = "absent") -> list[LockedPackage]:
    asking = recipe(root, link, requirement)
    settings = Settings.from_environment({"HOME": str(root), "BUILDER_CACHE": str(root / "cache")})
    return solve_pip(SolveRequest(asking, Inputs.read(asking).environment, settings), [PYTHON])


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("/nowhere/$DEPLOY_KEY", "--find-links /nowhere/$DEPLOY_KEY does not exist"),
        ("/nowhere/" + "x${DEPLOY_KEY}" * 30, "does not exist"),  # the name is too long for a file
        ("~$DEPLOY_KEY", "~$DEPLOY_KEY: its home folder is not known"),
        ("/nowhere/$REGISTRY_PASSWORD", "REGISTRY_PASSWORD is builder's own variable"),
        ("/nowhere/$NOT_SET", "the environment variable NOT_SET is not set"),
    ],
)
def test_refused(tmp_path: Path, link: str, problem: str) -> None:
    """The error has the link as it is written, and never the value of a variable."""
    with pytest.raises(BuilderError) as error:
        solve(tmp_path, link)
    said = f"{error.value} {log_text()}"
    assert problem in error.value.message and SECRET not in said


@pytest.mark.parametrize("link", ["$DEPLOY_KEY/sub", "in-${DEPLOY_KEY}s/sub"])
def test_found(tmp_path: Path, link: str) -> None:
    """uv reads the folder. Lock, record, log and uv's errors do not show it."""
    folder = tmp_path / link.replace("${DEPLOY_KEY}", SECRET).replace("$DEPLOY_KEY", SECRET)
    make_wheel(folder, "there", "1.0")
    [package] = solve(tmp_path, link, "there")
    assert package.url == "builder://find-links/there-1.0-py3-none-any.whl"
    (folder / "there-1.0-py3-none-any.whl").write_bytes(b"no wheel")
    with pytest.raises(BuilderError) as error:
        solve(tmp_path, link, "there")
    assert "there" in error.value.message
    record = recorded_inputs(Inputs.read(recipe(tmp_path, link)))
    logging.getLogger("builder").info("reads %s and %s", folder, folder.as_uri())
    said = f"{error.value} {record} {log_text()}"
    assert SECRET not in said and "S3CRET" not in said and f"{link} and " in said


def test_build(tmp_path: Path) -> None:
    """A build looks in the folder too, never in one that builder's own variables name."""
    (found,) = Inputs.read(recipe(tmp_path, "$DEPLOY_KEY/$NOT_SET/x")).find_links
    assert found == f"{tmp_path}/{SECRET}/$NOT_SET/x"
    (found,) = Inputs.read(recipe(tmp_path, "$REGISTRY_PASSWORD/x")).find_links
    assert found == f"{tmp_path}/$REGISTRY_PASSWORD/x"


def test_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a word, a slash, or the beginning of another name stays as it is."""
    monkeypatch.setenv("ROOT", "/")
    monkeypatch.setenv("FOLDER", "wheels")
    monkeypatch.setenv("PLACE", "/srv/place")
    (tmp_path / "wheels").mkdir()
    for link in ("$ROOT", "$FOLDER", "$PLACE"):
        with pytest.raises(BuilderError):
            solve(tmp_path, link)
    assert as_written("no wheels in /tmp, /srv/place/x, /srv/places") == (
        "no wheels in /tmp, $PLACE/x, /srv/places"
    )


def test_pip_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere/$DEPLOY_KEY")
    with pytest.raises(ConfigError, match=r"pip's configuration: --find-links /nowhere/\$DEPLOY_KEY") as e:
        solve(tmp_path, "https://host.example/x")
    assert SECRET not in str(e.value)
