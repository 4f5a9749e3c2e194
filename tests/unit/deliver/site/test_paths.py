"""Paths of jobs and of ``builder run``."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.deliver.site.paths import command_folder
from builder.lock.config.recipe import Files, Recipe


@pytest.mark.parametrize(
    ("workdir", "files", "folder"),
    [
        ("/", [], "."),
        ("/app", [(".", "/app")], "."),
        ("/app", [("train.py", "/app/train.py")], "."),
        ("/app/", [("./train.py", "/app/")], "."),
        ("/app", [("src", "/app/src"), ("train.py", "/app/train.py")], "."),
        ("/app/ml", [("ml/train.py", "/app/ml/train.py"), ("data", "/app/data")], "ml"),
        ("/app/ml", [(".", "/app")], "ml"),
        ("/app", [("ml", "/app/")], "ml"),
        ("/app", [("train.py", "/app/main.py")], None),
        ("/app/other", [(".", "/app")], None),
        ("/srv", [(".", "/app")], None),
        ("/srv", [], None),
    ],
)
def test_command_folder(
    workdir: str, files: list[tuple[str, str]], folder: str | None, tmp_path: Path
) -> None:
    """The image's own command starts where its relative names mean the same files of the project."""
    for name in ("src", "ml", "data"):
        (tmp_path / name).mkdir()
    for name in ("train.py", "ml/train.py"):
        (tmp_path / name).touch()
    copied = tuple(Files(source=source, target=target) for source, target in files)
    recipe = Recipe.model_construct(workdir=workdir, files=copied, root=tmp_path)
    assert command_folder(recipe) == folder
