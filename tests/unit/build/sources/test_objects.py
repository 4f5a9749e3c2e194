"""What is unpacked of a commit: files, submodules, LFS pointers, and what hostile trees contain."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.build.sources import target
from builder.build.sources.objects import submodule_url
from builder.core.errors import FetchError
from tests.support.gitserver import Repo
from tests.unit.build.sources.conftest import Open
from tests.unit.build.sources.test_repository import fails, git


def test_files(repo: Repo, opened: Open) -> None:
    """Byte for byte, whatever .gitattributes says; symlinks and the exec bit stay."""
    repo.write(".gitattributes", "*.txt eol=crlf export-ignore\n*.id ident\n")
    repo.write("a.txt", "one\ntwo\n")
    repo.write("b.id", "$Id$\n")
    repo.write("run", "#!/bin/sh\n", 0o755)
    repo.write("sp ace/\N{LATIN SMALL LETTER A WITH DIAERESIS}", "")
    (repo.folder / "link").symlink_to("sp ace")
    repo.git("config", "core.autocrlf", "input")
    repo.commit()
    with opened(git(repo.url)) as tree:
        assert (tree.path / "a.txt").read_bytes() == b"one\ntwo\n"
        assert (tree.path / "b.id").read_bytes() == b"$Id$\n"
        assert os.access(tree.path / "run", os.X_OK) and not os.access(tree.path / "b.id", os.X_OK)
        assert (tree.path / "link").readlink() == Path("sp ace")
        assert (tree.path / "sp ace/\N{LATIN SMALL LETTER A WITH DIAERESIS}").is_file()


def test_submodules(tmp_path: Path, opened: Open) -> None:
    """Recursively, with relative URLs; the commits are those of the tree, wherever the branches are."""
    leaf, middle, top = (Repo(tmp_path / "served" / name) for name in ("leaf", "middle", "top"))
    leaf.commit(leaf_py="1")
    middle.git("submodule", "--quiet", "add", "../leaf", "deep")
    middle.commit()
    top.git("submodule", "--quiet", "add", "--name", "sub.module", "../middle", "libs/middle")
    top.commit(setup_py="")
    leaf.commit(leaf_py="2")
    with opened(git(top.url)) as tree:
        assert (tree.path / "libs/middle/deep/leaf.py").read_text() == "1"
    top.git("config", "--file", ".gitmodules", "submodule.sub.module.update", "none")
    top.commit()
    with opened(git(top.url)) as tree:
        assert list((tree.path / "libs/middle").iterdir()) == []
    (top.folder / ".gitmodules").write_text("")
    top.commit()
    assert ".gitmodules has no URL for the submodule libs/middle" in fails(opened(git(top.url))).message


def test_submodule_of_itself(tmp_path: Path, opened: Open) -> None:
    """A branch of the repository itself is a submodule: no deadlock."""
    repo = Repo(tmp_path / "self")
    first = repo.commit(setup_py="")
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{first},old")
    repo.write(".gitmodules", '[submodule "old"]\n\tpath = old\n\turl = ./\n')
    repo.git("add", ".gitmodules")
    repo.git("commit", "--quiet", "--message", "x")
    with opened(git(repo.url)) as tree:
        assert (tree.path / "old/setup.py").is_file()


@pytest.mark.parametrize(
    "url", ["file:///etc", "/etc", "ext::sh -c id", "ext::x://y", "ssh://-oProxy=x/y", "https://[x", "x"]
)
def test_bad_submodule_url(url: str) -> None:
    """A repository of the web names no file of this machine, no command and no option."""
    with pytest.raises(FetchError, match="is not an address that is fetched|is no URL"):
        submodule_url("https://h.example/a", url, "x")


def test_lfs(repo: Repo, opened: Open) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    repo.write("model.bin", pointer)
    repo.commit()
    error = fails(opened(git(repo.url)))
    assert "model.bin is in a store of Git LFS, which builder does not read" in error.message
    assert "git lfs pull" in error.hint


def hostile(repo: Repo, *entries: tuple[str, str, bytes]) -> str:
    """A commit whose tree has these entries, which git itself would refuse to add."""
    blob = repo.git("hash-object", "-w", "--stdin", data=b"x")
    tree = b""
    for mode, name, content in entries:
        digest = repo.git("hash-object", "-w", "--stdin", data=content) if content else blob
        tree += f"{mode} {name}\0".encode() + bytes.fromhex(digest)
    digest = repo.git("hash-object", "-t", "tree", "-w", "--stdin", "--literally", data=tree)
    commit = repo.git("commit-tree", digest, "-m", "x")
    repo.git("update-ref", "refs/heads/bad", commit)
    return commit


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("100644", "../escaped", b"")], "'../escaped' is not a path that is unpacked"),
        ([("100644", ".GIT/config", b"")], "is a path of git itself"),
        ([("120000", "link", b"/etc")], "the symlink 'link' leads out of the source, to '/etc'"),
        ([("120000", "a", b"b"), ("100644", "a/escaped", b"")], "lies below a symlink|appears twice"),
        ([("100644", "a", b""), ("100644", "a", b"")], "'a' appears twice"),
    ],
)
def test_hostile_trees(
    tmp_path: Path, repo: Repo, opened: Open, entries: list[tuple[str, str, bytes]], message: str
) -> None:
    """Nothing is written outside of the folder."""
    commit = hostile(repo, *entries)
    with pytest.raises(FetchError, match=message), opened(git(repo.url, commit)):
        pass
    assert not list(tmp_path.rglob("escaped"))


def test_many_paths(repo: Repo, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve objects with 10^10 paths, of files or of submodules: they are counted while git lists them."""
    monkeypatch.setattr(target, "MAX_MEMBERS", 100)
    blob, commit = repo.git("hash-object", "-w", "--stdin", data=b""), repo.git("rev-parse", "HEAD")
    for entry in (f"100644 blob {blob}", f"160000 commit {commit}"):
        for _ in range(10):
            listing = "".join(f"{entry}\t{name}\n" for name in "abcdefghij")
            entry = f"040000 tree {repo.git('mktree', '--missing', data=listing.encode())}"
        hostile = repo.git("commit-tree", "-m", "x", entry.split()[2])
        repo.git("update-ref", "refs/heads/bomb", hostile)
        assert "more than 100 files" in fails(opened(git(repo.url, "bomb"))).message
