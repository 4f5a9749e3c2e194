"""What git describes a commit by, for build backends that make the version from it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.sources.scm import Scm, describe, write_archival
from builder.core.errors import BuilderError, FetchError
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.lock.spec import SourceSpec
from tests.support.gitserver import GitServer, Repo
from tests.support.parts import need_root
from tests.unit.build.sources.conftest import Open

COMMAND = ("git", "describe", "--dirty", "--tags", "--long", "--abbrev=10", "--match=*[0-9]*")
SCM = Scm(COMMAND, "0.0", ".", False)
LOCAL = SourceSpec("local", "tool", ".", where="e.yml:1")
#: Describes a source of the project.
Describe = Callable[..., str]


@pytest.fixture
def described(tmp_path: Path, opened: Open, settings: Settings) -> Describe:
    def describe_it(spec: SourceSpec, scm: Scm = SCM, settings: Settings = settings) -> str:
        with opened(spec, settings=settings) as tree:
            return describe(spec, tree, scm, tmp_path / "project", Workspace(settings, Store(settings.cache)))

    return describe_it


@pytest.fixture
def project(tmp_path: Path) -> Repo:
    """A project with a tag, and a commit behind it."""
    project = Repo(tmp_path / "project")
    project.commit(pyproject_toml="")
    project.git("tag", "v1.2")
    project.commit(more_py="")
    return project


def git(url: str, subdirectory: str = "") -> SourceSpec:
    return SourceSpec("git", "tool", url, "main", subdirectory, where="e.yml:5")


def expected(repo: Repo, tag: str, distance: int) -> str:
    return f"{tag}-{distance}-g{repo.git('rev-parse', 'HEAD')[:10]}"


def fails(described: Describe, spec: SourceSpec, message: str, scm: Scm = SCM) -> str:
    """Return the hint of the error."""
    with pytest.raises(BuilderError, match=message) as caught:
        described(spec, scm)
    return caught.value.hint


# the project


@pytest.mark.parametrize("command", [(), ("pack-refs", "--all"), ("checkout", "--quiet", "--detach")])
def test_project(project: Repo, described: Describe, command: tuple[str, ...]) -> None:
    if command:
        project.git(*command)
    assert described(LOCAL) == expected(project, "v1.2", 1)
    project.write("more.py", "not committed")
    assert described(LOCAL) == expected(project, "v1.2", 1)


def test_worktree(project: Repo, tmp_path: Path, described: Describe) -> None:
    """Their .git is a file; each has its own HEAD. So has a submodule, whose repository is elsewhere."""
    project.git("worktree", "add", "--quiet", "../project/trees/one", "v1.2")
    spec = replace(LOCAL, url="trees/one")
    assert described(spec).startswith("v1.2-0-g")
    part = Repo(tmp_path / "part")
    commit = part.commit(setup_py="")
    project.git("submodule", "--quiet", "add", part.url, "part")
    assert described(replace(LOCAL, url="part")) == f"0.0-1-g{commit[:10]}"
    (project.folder / "trees/one/.git").write_text("gitdir: /nowhere\n")
    assert "SETUPTOOLS_SCM_PRETEND_VERSION" in fails(described, spec, "/nowhere is not a repository")


@pytest.mark.parametrize("name", ["packed-refs", "shallow", "refs", "objects"])
def test_links_out_of_the_repository(project: Repo, tmp_path: Path, described: Describe, name: str) -> None:
    """No line of a file of the user is shown, which the .git of an unpacked archive may name."""
    project.git("pack-refs", "--all")
    secret = tmp_path / "secret"
    secret.write_text("marked-secret-line user:hunter2\n")
    path = project.folder / ".git" / name
    if path.exists():
        path.rename(tmp_path / "moved")
    path.symlink_to(secret if name in ("packed-refs", "shallow") else tmp_path / "moved")
    with pytest.raises(BuilderError, match=f"{name} leads out of the repository") as caught:
        described(LOCAL)
    assert "marked" not in str(caught.value) and "SETUPTOOLS_SCM_PRETEND_VERSION" in caught.value.hint


@pytest.mark.parametrize("how", ["file", "link", "commondir", "worktree", "submodule"])
def test_repository_of_another_folder(project: Repo, tmp_path: Path, described: Describe, how: str) -> None:
    """It gives no version: the .git of an unpacked archive may name any repository of the user."""
    private = Repo(tmp_path / "private")
    private.commit(a_py="")
    private.git("tag", "v9.9.9")
    private.git("config", "core.worktree", "..")
    private.git("worktree", "add", "--quiet", "--detach", "../tree")
    private.git("submodule", "--quiet", "add", project.url, "sub")
    git = project.folder / ".git"
    place = {"worktree": "worktrees/tree", "submodule": "modules/sub"}.get(how, "")
    if how == "commondir":
        (git / "commondir").write_text(f"{private.folder}/.git\n")
        fails(described, LOCAL, "leads out of the repository")
        return
    shutil.rmtree(git)
    if how == "link":
        git.symlink_to(private.folder / ".git")
    else:
        git.write_text(f"gitdir: {private.folder}/.git/{place}\n")
    fails(described, LOCAL, "is the repository of another folder")


def test_moved_repository(project: Repo, tmp_path: Path, described: Describe) -> None:
    """The repository of a worktree that was moved, and one that is elsewhere; the line to type helps."""
    project.git("worktree", "add", "--quiet", "trees/one", "v1.2")
    (project.folder / "trees").rename(project.folder / "moved")
    for url in ("moved/one", "."):
        if url == ".":
            project.git("init", "--quiet", "--separate-git-dir", str(tmp_path / "elsewhere"))
        spec = replace(LOCAL, url=url)
        with pytest.raises(BuilderError, match="is the repository of another folder") as caught:
            described(spec)
        line = caught.value.message.partition("if it is this one's: ")[2]
        subprocess.run(shlex.split(line), check=True)
        assert described(spec) == expected(Repo(project.folder / url), "v1.2", int(url == "."))


def test_top(project: Repo, described: Describe) -> None:
    """A package below the top has a version from git only if its settings say so: as with the tools."""
    project.write("py/tool/pyproject.toml", "")
    commits = [SourceSpec("local", "tool", "py", subdirectory="tool", where="e.yml:1")]
    project.commit()
    commits.append(git(project.url, "py/tool"))
    for spec in commits:
        assert described(spec) == described(spec, replace(SCM, root="..")) == ""
        for scm in (replace(SCM, root="../.."), replace(SCM, searches=True)):
            assert described(spec, scm) == expected(project, "v1.2", 2)


@pytest.mark.root
def test_repository_of_another_user(project: Repo, described: Describe) -> None:
    """One in a folder above, as /tmp, gives no version."""
    need_root()
    project.write("py/tool/pyproject.toml", "")
    spec, scm = replace(LOCAL, url="py/tool"), replace(SCM, searches=True)
    assert described(spec, scm) == expected(project, "v1.2", 1)
    os.chown(project.folder / ".git", 12345, 12345)
    assert "v1.2" not in described(spec, scm)  # but perhaps that of a checkout above the test's folder


def test_settings_of_the_repository(project: Repo, tmp_path: Path, described: Describe) -> None:
    """They may name programs."""
    for key in ("core.fsmonitor", "core.sshCommand", "core.pager", "alias.describe", "core.hooksPath"):
        project.git("config", key, f"touch {tmp_path}/ran; true")
    (project.folder / ".git/config").open("a").write(f"[include]\npath = {tmp_path}/fifo\n")
    assert described(LOCAL) == expected(project, "v1.2", 1)
    assert not (tmp_path / "ran").exists()


def test_shallow(project: Repo, tmp_path: Path, described: Describe) -> None:
    """The hint is a command that helps; with a tag the clone is enough."""
    project.folder.rename(tmp_path / "origin")
    clone = ["git", "clone", "--quiet", "--depth=1", (tmp_path / "origin").as_uri(), str(project.folder)]
    subprocess.run(clone, check=True)
    hint = fails(described, LOCAL, "e.yml:1: tool @ .: its version comes from git, and its clone is shallow")
    project.git("tag", "v3")
    assert described(LOCAL) == expected(project, "v3", 0)
    project.git("tag", "--delete", "v3")
    project.git(*hint.split()[1:])
    assert described(LOCAL) == expected(project, "v1.2", 1)


def test_own_command(project: Repo, tmp_path: Path, described: Describe) -> None:
    """Options of git describe are those of the project; another program never runs."""
    project.git("tag", "other-7", "v1.2")
    own = replace(SCM, command=("git", "describe", "--tags", "--dirty=x", "--match", "other-*"))
    assert described(LOCAL, own).startswith("other-7-1-g")
    for command in (("touch", f"{tmp_path}/ran"), ("git", "-c", "x.y=z", "describe"), ()):
        fails(described, LOCAL, "builder does not run the project's own", replace(SCM, command=command))
    fails(described, LOCAL, "null byte", replace(SCM, command=(*COMMAND, "\0")))
    fails(described, LOCAL, "git describe printed", replace(SCM, command=(*COMMAND, "HEAD")))
    assert not (tmp_path / "ran").exists()


def test_reftable(project: Repo, described: Describe) -> None:
    (project.folder / ".git/reftable").mkdir()
    assert fails(described, LOCAL, "does not read reftables") == "git refs migrate --ref-format=files"


def test_nothing_to_describe(project: Repo, described: Describe, monkeypatch: pytest.MonkeyPatch) -> None:
    """No commit, no git program, no repository at all."""
    monkeypatch.setattr("builder.core.git.shutil.which", lambda _: None)
    hint = fails(described, LOCAL, "from git: git is not installed")
    assert hint.startswith(
        "install it (apt install git); or set the version in the recipe: pip: {build: {tool:"
    )
    monkeypatch.undo()
    project.git("update-ref", "-d", "HEAD")
    assert fails(described, LOCAL, "its version comes from git: ")
    (project.folder / ".git").rename(project.folder / "other")
    assert described(LOCAL) == ""


# repositories


def test_repository(repo: Repo, git_server: GitServer, described: Describe, settings: Settings) -> None:
    """The tags are those of today, even if the commit is in the cache; offline, those of the last time."""
    spec = git(f"{git_server.url}/tool")
    assert described(spec) == expected(repo, "0.0", 1)
    repo.git("tag", "--annotate", "--message", "x", "v1.2")
    assert described(spec) == expected(repo, "v1.2", 0)
    repo.git("tag", "--delete", "v1.2")
    repo.git("tag", "v1.1")
    assert described(spec) == expected(repo, "v1.1", 0)
    repo.commit()
    assert described(spec) == expected(repo, "v1.1", 1)
    pinned = replace(spec, revision=repo.git("rev-parse", "HEAD"))
    repo.git("tag", "v2")
    assert described(pinned, settings=replace(settings, offline=True)) == expected(repo, "v1.1", 1)


def test_only_commits(repo: Repo, git_server: GitServer, described: Describe, settings: Settings) -> None:
    """The history has no files, where the server can leave them out."""
    for number in range(3):
        repo.commit(more_py=str(number))
    spec = git(f"{git_server.url}/tool")
    counts = []
    for allowed in ("true", "false"):
        repo.git("config", "uploadpack.allowFilter", allowed)
        used = replace(settings, cache=settings.cache / allowed)
        assert described(spec, settings=used) == expected(repo, "0.0", 4)
        [history] = used.cache.glob("git/*/history")
        shown = subprocess.run(["git", "count-objects", "-v"], cwd=history, capture_output=True, text=True)
        counts.append(sum(int(line.split()[1]) for line in shown.stdout.splitlines()[:3:2]))
    assert counts[0] == 4 < counts[1]


def test_filter_refused(repo: Repo, git_server: GitServer, described: Describe) -> None:
    repo.git("config", "uploadpack.allowFilter", "true")
    repo.git("config", "uploadpackfilter.allow", "false")
    assert described(git(f"{git_server.url}/tool")) == expected(repo, "0.0", 1)


def test_history_missing(repo: Repo, described: Describe, opened: Open, settings: Settings) -> None:
    spec = git(repo.url)
    with opened(spec) as tree:
        pinned = replace(spec, revision=tree.locked.commit)
    with pytest.raises(FetchError, match="the history of .* is not in the cache, and builder is offline"):
        described(pinned, settings=replace(settings, offline=True))


def test_mirror(repo: Repo, described: Describe, settings: Settings) -> None:
    mirrors = (("https://host.invalid/", f"{repo.folder.parent.as_uri()}/"),)
    used = replace(settings, mirrors=mirrors)
    assert described(git("https://host.invalid/tool"), settings=used) == expected(repo, "0.0", 1)


# the copy


def test_archival(repo: Repo, tmp_path: Path, opened: Open) -> None:
    """The file of the project is replaced, never the one that it links to; without a text it stays."""
    (tmp_path / "outside").write_text("mine")
    (repo.folder / ".git_archival.txt").symlink_to("pyproject.toml")
    repo.commit()
    with opened(git(repo.url)) as tree:
        write_archival(tree)
        assert (tree.path / ".git_archival.txt").is_symlink()
        write_archival(replace(tree, locked=replace(tree.locked, describe="v1-0-gabc")))
        assert (tree.path / ".git_archival.txt").read_text() == "describe-name: v1-0-gabc\n"
        assert (tree.path / "pyproject.toml").read_text() == "[project]\nname='tool'\n"
        pinned = replace(tree.locked, describe="v1-0-gabc")
    with opened(git(repo.url), pinned) as tree:
        assert tree.locked == pinned
