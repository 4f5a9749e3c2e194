"""Checkouts of others: no program of theirs runs, and their index names no file elsewhere. git is real."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from builder.trees.project import project_tree
from tests.support.gitserver import Repo

#: Settings with which git runs a program; the first one is the other end of a lazy fetch.
CONFIG = """\
[core]
\trepositoryformatversion = 1
\tbare = false
\tworktree = WORKTREE
\tfsmonitor = RUN
\thooksPath = HOOKS
\tsshCommand = RUN
\tpager = RUN
\taskPass = RUN
\talternateRefsCommand = RUN
\tgitProxy = RUN
\tattributesFile = HOOKS/attributes
[extensions]
\tpartialClone = o
\tworktreeConfig = true
[remote "o"]
\turl = file:///nowhere
\tpromisor = true
\tuploadpack = RUN
[filter "f"]
\tclean = RUN
\tsmudge = RUN
\tprocess = RUN
\trequired = true
[diff]
\texternal = RUN
[diff "f"]
\ttextconv = RUN
[credential]
\thelper = !RUN
[alias]
\tls-files = !RUN
[uploadpack]
\tpackObjectsHook = RUN
[include]
\tpath = HOOKS/more
"""
HOOKS = ("post-index-change", "fsmonitor-watchman", "reference-transaction", "post-checkout", "pre-auto-gc")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def sparse(folder: Path) -> Repo:
    """A checkout whose index has ``deep/`` as one entry, and whose tree of ``deep/`` is missing."""
    repo = Repo(folder)
    repo.write("deep/a.py", "")
    repo.write("setup.py", "")
    repo.commit()
    tree = repo.git("rev-parse", "HEAD:deep")
    repo.git("sparse-checkout", "set", "--cone", "--sparse-index", "other")
    (repo.folder / ".git/objects" / tree[:2] / tree[2:]).unlink()
    return repo


def arm(git: Path, mark: Path, worktree: str) -> None:
    """Gives a git folder settings and hooks that write ``mark``."""
    program = mark.with_name("program")
    program.write_text(f"#!/bin/sh\necho $0 >>{mark}\nexit 1\n")
    hooks = mark.with_name("hooks")
    hooks.mkdir()
    for path in (program, *(hooks / name for name in HOOKS)):
        shutil.copy(program, path) if path != program else None
        path.chmod(0o755)
    (hooks / "attributes").write_text("* filter=f diff=f\n")
    (hooks / "more").write_text(f"[core]\n\tfsmonitor = {program}\n")
    text = CONFIG.replace("WORKTREE", worktree).replace("RUN", str(program)).replace("HOOKS", str(hooks))
    (git / "config").write_text(text)
    (git / "config.worktree").write_text(f"[core]\n\tfsmonitor = {program}\n")


def test_embedded_bare_repository(tmp_path: Path) -> None:
    """A folder of a plain clone is a bare repository to git: it is a folder to builder."""
    inner = sparse(tmp_path / "inner")
    outer = Repo(tmp_path / "outer")
    package = outer.folder / "pkg"
    shutil.copytree(inner.folder / ".git", package)
    (package / "refs/keep").touch()
    arm(package, tmp_path / "mark", ".")
    outer.write("pkg/setup.py", "")
    outer.commit()
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", outer.folder, clone], check=True)
    found = project_tree(clone / "pkg", clone)
    assert not (tmp_path / "mark").exists()
    assert {"setup.py", "index", "config"} <= set(found.files) and "deep/a.py" not in found.files


def test_settings_of_a_checkout(tmp_path: Path) -> None:
    """The ``.git`` of an unpacked archive names programs, its submodule's too: none runs."""
    repo = sparse(tmp_path / "repo")
    repo.write(".gitattributes", "* filter=f diff=f\n")
    repo.write("new.py", "")
    library = Repo(repo.folder / "library")
    library.commit(a_py="")
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{library.git('rev-parse', 'HEAD')},library")
    arm(repo.folder / ".git", tmp_path / "mark", "..")
    shutil.copy(repo.folder / ".git/config", library.folder / ".git/config")
    os.utime(repo.folder / "setup.py", (1, 1))
    found = project_tree(repo.folder, repo.folder)
    assert not (tmp_path / "mark").exists()
    assert found.files == (".gitattributes", "library/a.py", "new.py", "setup.py")


def rename(index: Path, old: bytes, new: bytes) -> None:
    """Changes a name in an index to one that git refuses to add."""
    data = index.read_bytes()[:-20].replace(old, new)
    index.write_bytes(data + hashlib.sha1(data).digest())


@pytest.mark.parametrize("place", ["../secret", "link/secret", "/ABSOLUTE"])
def test_names_in_an_index(tmp_path: Path, place: str) -> None:
    """An index lists a file outside of the checkout: it is not a part of the package."""
    (tmp_path / "secret").write_text("secret")
    repo = Repo(tmp_path / "repo")
    name = place.replace("/ABSOLUTE", str(tmp_path / "secret"))
    repo.write("setup.py", "")
    repo.write("x" * len(name), "")
    repo.commit()
    (repo.folder / ("x" * len(name))).unlink()
    (repo.folder / "link").symlink_to("..")
    rename(repo.folder / ".git/index", b"x" * len(name), name.encode())
    found = project_tree(repo.folder, repo.folder)
    assert found.files == ("link", "setup.py")
    found.copy_to(tmp_path / "deeper/copy")
    assert sorted(p.name for p in (tmp_path / "deeper").iterdir()) == ["copy"]


def test_kinds_of_checkouts(tmp_path: Path) -> None:
    """A worktree, a split index and patterns in ``info/exclude``: the files are those that git lists."""
    repo = Repo(tmp_path / "repo")
    repo.write(".gitignore", "*.log\n")
    repo.write("a.log", "tracked although it is ignored")
    repo.commit(setup_py="")
    (repo.folder / ".git/info/exclude").write_text("*.tmp\n")
    repo.git("update-index", "--split-index")
    repo.commit(lib__b_py="")
    repo.git("worktree", "add", "--quiet", "../other")
    for folder in (repo.folder, tmp_path / "other"):
        for name in ("new.py", "x.log", "x.tmp"):
            (folder / name).touch()
        found = project_tree(folder, folder)
        assert found.files == (".gitignore", "a.log", "lib/b.py", "new.py", "setup.py")
    assert any((repo.folder / ".git").glob("sharedindex.*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_owner(tmp_path: Path) -> None:
    """A checkout may have any owner; the ``.git`` of a third person in a shared folder does not count."""
    repo = Repo(tmp_path / "repo")
    repo.write(".gitignore", "*.log\n")
    repo.commit(setup_py="")
    (repo.folder / "x.log").touch()
    for path in (repo.folder, *repo.folder.rglob("*")):
        os.chown(path, 12345, 12345)
    assert project_tree(repo.folder, repo.folder).files == (".gitignore", "setup.py")
    os.chown(repo.folder, 0, 0)
    assert project_tree(repo.folder, repo.folder).files == (".gitignore", "setup.py", "x.log")
