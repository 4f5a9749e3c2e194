"""What git tracks, read from its index: the same files that ``git ls-files`` lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.formats.trees.project import project_tree
from builder.formats.trees.tracked import tracked_files
from tests.support.gitserver import Repo

FILES = ("setup.py", "a/b.py", "a/b/c/d.py", "a-b.py", "é.py", f"long/{'n' * 200}.py", "x y.py")


def repository(folder: Path) -> Repo:
    repo = Repo(folder)
    for name in FILES:
        repo.write(name, name)
    repo.commit()
    return repo


def listed(repo: Repo, folder: str = ".") -> set[str]:
    """What git itself lists below a folder, with the folders that hold the files."""
    names = repo.git("-C", folder, "ls-files", "-z", "--recurse-submodules").split("\0")
    files = {name for name in names if name}
    return files | {str(parent) for name in files for parent in Path(name).parents} - {"."}


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_versions(tmp_path: Path, version: str) -> None:
    """A file that is only meant to be added needs version 3 of the index."""
    repo = repository(tmp_path)
    if version == "3":
        repo.write("later.py", "")
        repo.git("add", "--intent-to-add", "later.py")
    else:
        repo.git("update-index", "--index-version", version)
    assert (tmp_path / ".git/index").read_bytes()[7] == int(version)
    assert tracked_files(tmp_path) == listed(repo)
    assert tracked_files(tmp_path / "a") == listed(repo, "a") == {"b.py", "b", "b/c", "b/c/d.py"}
    assert tracked_files(tmp_path / "nothing") == set()


def test_damaged(tmp_path: Path) -> None:
    """An index that is cut off anywhere is no error. Nothing invented comes from it."""
    repo = repository(tmp_path)
    index, names = tmp_path / ".git/index", listed(repo)
    whole = index.read_bytes()
    unreadable = 0
    for size in range(0, len(whole), 7):
        index.write_bytes(whole[:size])
        found = tracked_files(tmp_path)
        unreadable += found is None
        assert found is None or found <= names
    assert unreadable > 50
    index.unlink()
    assert tracked_files(tmp_path) is None


def test_worktree_and_submodule(tmp_path: Path) -> None:
    """Their ``.git`` is a file. A submodule that was not fetched has no files."""
    inner = Repo(tmp_path / "inner")
    inner.commit(lib__c_py="", setup_py="")
    repo = repository(tmp_path / "repo")
    repo.git("submodule", "--quiet", "add", inner.url, "third/inner")
    repo.commit()
    assert tracked_files(repo.folder) == listed(repo)
    assert {"third/inner/lib/c.py", "third/inner"} < listed(repo)
    repo.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "other"))
    found = tracked_files(tmp_path / "other")
    assert found is not None and "third/inner" in found and "third/inner/setup.py" not in found


@pytest.mark.parametrize("form", ["split", "sparse", "sha256"])
def test_other_forms(tmp_path: Path, form: str) -> None:
    """What builder does not read counts as no checkout: then .gitignore decides."""
    repo = Repo(tmp_path)
    if form == "sha256":
        (tmp_path / ".git").rename(tmp_path.parent / f"{tmp_path.name}.old")
        repo.git("init", "--quiet", "--object-format=sha256")
    repo.write(".gitignore", "*.log\n")
    repo.commit(setup_py="", a__b_py="", c__d_py="")
    if form == "split":
        repo.git("update-index", "--split-index")
    if form == "sparse":
        repo.git("sparse-checkout", "set", "--cone", "--sparse-index", "a")
    repo.write("new.py", "")
    repo.write("x.log", "")
    names = project_tree(tmp_path, tmp_path).files
    assert "new.py" in names and "x.log" not in names


def test_project(tmp_path: Path) -> None:
    """Own code is what git tracks; a module that git does not know is named, for a note."""
    repo = Repo(tmp_path)
    repo.write(".gitignore", "*.log\nbuild/\n")
    repo.write("pkg/__init__.py", "")
    repo.commit(setup_py="", pkg__model_py="", notes_log="tracked")
    before = project_tree(tmp_path, tmp_path)
    assert before.files == (".gitignore", "notes.log", "pkg/__init__.py", "pkg/model.py", "setup.py")
    for name in ("train.log", "model.txt", "pkg/new.py", "outputs/run/x.py", "build/y.py", "top.py"):
        repo.write(name, "")
    after = project_tree(tmp_path, tmp_path)
    assert (after.files, after.digest) == (before.files, before.digest)
    assert (before.untracked, after.untracked) == ((), ("pkg/new.py",))
    (tmp_path / "pkg/model.py").write_text("x = 1\n")
    assert project_tree(tmp_path, tmp_path).digest != before.digest
    (tmp_path / "pkg/model.py").unlink()
    assert "pkg/model.py" not in project_tree(tmp_path, tmp_path).files


def test_symlink(tmp_path: Path) -> None:
    """A folder that git tracks and that is a symlink by now is not followed."""
    repo = Repo(tmp_path / "repo")
    repo.commit(setup_py="", data__secret_py="")
    (repo.folder / "data").rename(tmp_path / "elsewhere")
    (repo.folder / "data").symlink_to(tmp_path / "elsewhere")
    assert project_tree(repo.folder, repo.folder).files == ("data", "setup.py")


def test_hostile(tmp_path: Path) -> None:
    """Neither a path that leads back nor a symlink in the place of a submodule is followed."""
    repo = Repo(tmp_path)
    commit = repo.commit(setup_py="", one__py_py="")
    for name in ("aa", "bb", "cc"):
        repo.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{name}")
        (tmp_path / name).symlink_to(".")
    found = tracked_files(tmp_path)
    assert found is not None and "aa" in found and not [name for name in found if name.startswith("aa/")]
    index = tmp_path / ".git/index"
    whole = index.read_bytes()
    for name in (b"..", b"./", b"/a"):
        index.write_bytes(whole.replace(b"aa\0", name + b"\0", 1))
        assert tracked_files(tmp_path) is None


def test_hidden_folder(tmp_path: Path) -> None:
    repo = Repo(tmp_path)
    repo.write(".lib/setup.py", "")
    repo.commit(lib__other_py="")
    assert tracked_files(tmp_path / ".lib") == {"setup.py"}
