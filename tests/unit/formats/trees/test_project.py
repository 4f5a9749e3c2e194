"""The files of a local package: which they are, and what their hash depends on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.formats.trees.project import project_tree
from tests.support.gitserver import Repo


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_files_without_git(tmp_path: Path) -> None:
    """What builder and tools write is left out, what .builderignore names, and what no build reads."""
    write(
        tmp_path,
        "setup.py",
        "a/b.py",
        "a/__pycache__/b.pyc",
        ".venv/pyvenv.cfg",
        "data/x.csv",
        "env/pyvenv.cfg",
    )
    write(
        tmp_path,
        "env.cpu.lock.yml",
        "env.cpu.lock.yml.unfinished",
        "wheels/a-1.whl",
        "wheels/0123456789ab/a-1.whl",
        "dist/index.json",
        "reports/a.json",
        "recipes/a.yaml",
    )
    write(tmp_path, "tool.egg-info/PKG-INFO", "wheels/__init__.py", "data/x.py")
    (tmp_path / ".builderignore").write_text("/data/\n")
    found = project_tree(tmp_path, tmp_path)
    assert found.files == ("a/b.py", "setup.py", "wheels/__init__.py")
    assert project_tree(tmp_path / "a", tmp_path).files == ("b.py",)


def test_files_of_a_checkout(tmp_path: Path) -> None:
    """Where git does not track the package: all but those that a .gitignore names.

    git is not run, so no setting of the checkout has an effect.
    """
    repo = Repo(tmp_path / "repo")
    repo.write(".gitignore", "*.log\nout/\n")
    repo.commit()
    write(repo.folder, "setup.py", "gone.py", "lib/a.py", "lib/data/x.csv")
    write(repo.folder, "new.py", "x.log", "out/y", "wheels/a-1.whl", "lib/__pycache__/a.pyc")
    (repo.folder / "gone.py").unlink()
    (repo.folder / ".builderignore").write_text("data/\n")
    assert project_tree(repo.folder, repo.folder).files == ("lib/a.py", "new.py", "setup.py")
    assert project_tree(repo.folder / "lib", repo.folder).files == ("a.py",)
    (repo.folder / "lib/.gitignore").write_text("*.tmp\n")
    write(repo.folder, "lib/in/.gitignore", "lib/in/a.log", "lib/in/b.tmp", "lib/in/c.py", "lib/in/d.log")
    (repo.folder / "lib/in/.gitignore").write_text("!a.log\n")
    names = ("a.py", "in/.gitignore", "in/a.log", "in/c.py")
    assert project_tree(repo.folder / "lib", repo.folder).files == names
    write(repo.folder, "out/setup.py", "out/z/x.c", "out/z/data")
    found = project_tree(repo.folder / "out", repo.folder)  # which is ignored as a whole
    assert found.files == ("setup.py", "z/data", "z/x.c")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("model.txt", "", False),
        ("outputs/run/log.txt", "", False),
        ("outputs/a/b/c/x.py", "", True),
        ("csrc/x.cu", "", True),
        ("README.md", "", True),
        ("LICENSE", "", True),
        ("version.txt", "", True),
        ("data/x.csv", "data_files = ['data/x.csv']", True),
        ("data/x.csv", "package_data = {}; my-data; datasets", False),
        ("requirements.txt", "dependencies = {file = 'requirements.txt'}", True),
        (".gitlab-ci.yml", "", False),
    ],
)
def test_what_a_build_reads(tmp_path: Path, name: str, text: str, expected: bool) -> None:
    """Without git: sources, what holds one, and what a file of the build names."""
    write(tmp_path, name)
    (tmp_path / "setup.py").write_text(text)
    assert (name in project_tree(tmp_path, tmp_path).files) is expected


def test_hash(tmp_path: Path) -> None:
    """Neither times nor a umask change it; a content, a name, a link and the exec bit do."""
    one = tmp_path / "one"
    write(one, "setup.py", "a/run", "a/b.py")
    (one / "a/link").symlink_to("run")
    digest = project_tree(one, one).digest
    other = tmp_path / "other"
    shutil.copytree(one, other, symlinks=True)
    for name in ("setup.py", "a/run"):
        os.utime(other / name, (1, 1))
        (other / name).chmod(0o600)
    assert project_tree(other, other).digest == digest
    digests = {digest}
    for number, change in enumerate(
        (
            lambda: (other / "a/run").chmod(0o755),
            lambda: (other / "setup.py").write_text("x"),
            lambda: (other / "a/b.py").rename(other / "a/c.py"),
            lambda: ((other / "a/link").unlink(), (other / "a/link").symlink_to("a")),
            lambda: ((other / "a/link").unlink(), (other / "a/link").write_text("a")),
        ),
        2,
    ):
        change()
        digests.add(project_tree(other, other).digest)
        assert len(digests) == number


def test_copy(tmp_path: Path) -> None:
    write(tmp_path / "p", "setup.py", "a/b.py")
    (tmp_path / "p/a/b.py").chmod(0o700)
    (tmp_path / "p/a/link").symlink_to("/nowhere")
    tree = project_tree(tmp_path / "p", tmp_path)
    tree.copy_to(tmp_path / "copy")
    assert (tmp_path / "copy/a/b.py").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "copy/setup.py").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "copy/a/link").readlink() == Path("/nowhere")
    (tmp_path / "p/setup.py").write_text("changed")
    with pytest.raises(ConfigError, match="files were changed while they were copied"):
        tree.copy_to(tmp_path / "again")
