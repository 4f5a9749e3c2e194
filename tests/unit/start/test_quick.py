"""Projects without recipes: the recipe of a command with ``--env``."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.lock.file import write_lock
from builder.model import Lock, LockedBase
from builder.settings import Settings
from builder.start import quick
from builder.start.quick import Wishes, quick_recipe

ENVIRONMENT = "channels: [conda-forge]\ndependencies: [python=3.11]\n"
LOCK = """\
version: 1
metadata:
  content_hash: {{linux-64: x}}
  channels: []
  platforms: [linux-64]
  sources: [{source}]
package:
  - {{name: python, version: '3.11', manager: conda, platform: linux-64, dependencies: {{}},
     url: 'https://h/linux-64/python-3.11-0.conda', hash: {{sha256: '{hash}'}}}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an environment file and a script; no registry is asked for a base."""
    made = tmp_path / "My Project"
    (made / "envs").mkdir(parents=True)
    for name in ("environment.yml", "envs/gpu.yml"):
        (made / name).write_text(ENVIRONMENT)
    (made / "train.py").touch()
    monkeypatch.chdir(made)
    monkeypatch.setattr(quick, "usual_base", lambda settings: ("debian:bookworm", "Docker Hub is silent"))
    monkeypatch.setattr(quick, "this_platform", lambda: "")
    return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"HOME": str(tmp_path)})


def test_project(folder: Path, settings: Settings) -> None:
    """The project is the current folder; an environment file of another name gives the target its name."""
    root, recipe, note = quick_recipe(Wishes(Path("environment.yml"), add=("train.py",)), folder, settings)
    assert (root, recipe.name, recipe.base) == (folder, "my-project", "debian:bookworm")
    assert recipe.cmd == ("python", "train.py") and recipe.workdir == "/app"
    assert recipe.conda.fallback == "debian" and recipe.pip.fallback == "pip"
    assert note == "Docker Hub is silent: the base is debian:bookworm"
    assert recipe.lock_path == folder / "environment.my-project.lock.yml"
    root, recipe, _ = quick_recipe(Wishes(folder / "envs" / "gpu.yml"), folder, settings)
    assert (root, recipe.name, recipe.environment, recipe.workdir) == (folder, "gpu", "envs/gpu.yml", "/")
    assert recipe.lock_path == folder / "envs" / "gpu.gpu.lock.yml"
    root, _, _ = quick_recipe(Wishes(folder / "envs" / "gpu.yml"), folder.parent / "elsewhere", settings)
    assert root == folder / "envs"


def test_site_and_base(folder: Path, settings: Settings) -> None:
    """A site brings its base; a base that is named wins; no fallback is allowed for another machine."""
    env = Path("environment.yml")
    _, recipe, note = quick_recipe(Wishes(env, site="perlmutter", name="p"), folder, settings)
    assert recipe.name == "p" and recipe.site.name == "perlmutter" and recipe.base.startswith("docker://")
    assert recipe.conda.fallback is None and not note
    _, recipe, _ = quick_recipe(Wishes(env, site="perlmutter", base="debian:trixie"), folder, settings)
    assert recipe.base == "debian:trixie"
    _, recipe, _ = quick_recipe(Wishes(env, base="debian:bullseye"), folder, settings)
    assert recipe.conda.fallback is None  # programs of the Debian channel do not run on it


def test_base_of_the_lock(folder: Path, settings: Settings) -> None:
    """Once there is a lock, its base stays, whatever answers now."""
    base = LockedBase("docker://h/debian:12", f"sha256:{'1' * 64}")
    write_lock(Lock((), ("linux-64",), base=base), folder / "environment.x.lock.yml")
    _, recipe, note = quick_recipe(Wishes(Path("environment.yml"), name="x"), folder, settings)
    assert recipe.base == "docker://h/debian:12" and not note


def test_lock_of_conda(folder: Path, settings: Settings) -> None:
    """A lock of conda-lock is used as it is, with the environment file that it was made from."""
    lock = folder / "conda-lock.yml"
    lock.write_text(LOCK.format(source="envs/gpu.yml", hash="0" * 64))
    _, recipe, _ = quick_recipe(Wishes(lock), folder, settings)
    assert (recipe.lock, recipe.environment) == ("conda-lock.yml", "envs/gpu.yml")
    lock.write_text(LOCK.format(source="gone.yml", hash="0" * 64))
    _, recipe, _ = quick_recipe(Wishes(lock), folder, settings)
    assert recipe.environment == ""


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("requirements.txt", "flask\n", "environment"),
        ("requirements.txt", "flask==3.0 --hash=sha256:00\n", "lock"),
        ("pyproject.toml", "[project]\nname = 'a'\n", "environment"),
        ("pixi.toml", "", "environment"),
        ("uv.lock", "", "lock"),
        ("pylock.dev.toml", "", "lock"),
        ("pixi.lock", "", "lock"),
    ],
)
def test_other_files(folder: Path, settings: Settings, name: str, text: str, key: str) -> None:
    """Files of other tools are named as they are: as the environment, or as the lock."""
    (folder / name).write_text(text)
    _, recipe, _ = quick_recipe(Wishes(Path(name)), folder, settings)
    assert getattr(recipe, key) == name
    assert not (recipe.environment and recipe.lock)
