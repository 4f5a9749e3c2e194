"""Git repositories: revisions, pins, mirrors, and passwords, against real servers."""

from __future__ import annotations

import base64
import subprocess
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.sources.repository import _FETCH, open_repository
from builder.core.errors import FetchError, HashMismatch
from builder.core.git import REMOTE, Git
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.store.folders import CacheFolders
from builder.core.workspace import Workspace
from builder.lock.spec import SourceSpec, spec_of
from tests.support.company import make_server_tls
from tests.support.gitserver import GitServer, Repo
from tests.support.proxy import proxy_to
from tests.support.secretwatch import Secrets
from tests.unit.build.sources.conftest import Open


def git(url: str, revision: str = "", **values: str) -> SourceSpec:
    return SourceSpec("git", "tool", url, revision, where="env.yml:5", text=f"git+{url}", **values)  # type: ignore[arg-type]


def fails(opening: AbstractContextManager[object]) -> FetchError:
    with pytest.raises(FetchError) as caught, opening:
        pass
    assert caught.value.hint
    return caught.value


def test_revisions(repo: Repo, opened: Open) -> None:
    """A branch, a tag, an annotated tag, a commit, none: each is pinned by commit and tree."""
    first = repo.git("rev-parse", "HEAD")
    repo.git("tag", "v1")
    repo.git("tag", "--annotate", "--message", "x", "v1a")
    second = repo.commit(more_py="1")
    repo.git("branch", "side/branch")
    third = repo.commit(more_py="2")
    for revision, commit in {
        "v1": first,
        "v1a": first,
        "side/branch": second,
        "": third,
        "main": third,
        first: first,
    }.items():
        with opened(git(repo.url, revision)) as tree:
            assert tree.locked.commit == commit
            assert tree.locked.tree == repo.git("rev-parse", f"{commit}^{{tree}}")
            assert tree.locked.url == repo.url and (tree.path / "pyproject.toml").is_file()
            assert (tree.path / "more.py").exists() == (commit != first)
            assert not (tree.path / ".git").exists()
    error = fails(opened(git(repo.url, second[:9])))
    assert error.hint == "write all 40 digits of the commit"


def test_moved_branch(repo: Repo, opened: Open, settings: Settings) -> None:
    """The commit of a lock stays, also in an empty cache; offline it comes from the cache."""
    with opened(git(repo.url, "main")) as tree:
        locked = tree.locked
    repo.commit(more_py="1")
    empty = replace(settings, cache=settings.cache / "other")
    for used in (settings, empty, replace(settings, offline=True)):
        for spec in (git(repo.url, "main"), spec_of("tool", locked)):
            with opened(spec, locked, used) as tree:
                assert tree.locked == locked and not (tree.path / "more.py").exists()
    with opened(git(repo.url, "main")) as tree:
        assert tree.locked.commit != locked.commit
    error = fails(opened(git(repo.url, "main"), settings=replace(settings, offline=True)))
    assert "builder is offline" in error.message


def test_commit_that_is_gone(repo: Repo, opened: Open, settings: Settings) -> None:
    """After a forced push the lock's commit is not replaced by that of its branch."""
    repo.commit(more_py="1")
    with opened(git(repo.url, "main")) as tree:
        locked = tree.locked
    repo.git("reset", "--quiet", "--hard", "HEAD~1")
    repo.commit(other_py="1")
    repo.git("reflog", "expire", "--expire=now", "--all")
    repo.git("gc", "--quiet", "--prune=now")
    empty = replace(settings, cache=settings.cache / "other")
    error = fails(opened(git(repo.url, "main"), locked, empty))
    assert error.message == f"{repo.url} no longer has commit {locked.commit} of the lock"
    assert "builder lock" in error.hint
    with opened(git(repo.url, "main"), locked) as tree:  # the cache has it still
        assert tree.locked == locked


def test_no_proxy(repo: Repo, opened: Open, git_server: GitServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """git asks this machine, and the hosts of NO_PROXY, directly, as builder does."""
    with proxy_to("127.0.0.1:9", "502 Bad Gateway") as proxy:
        monkeypatch.setenv("ALL_PROXY", f"http://{proxy.host}")
        with opened(git(f"{git_server.url}/tool")):
            assert not proxy.asked
        monkeypatch.setenv("NO_PROXY", "*.site.invalid git.site:80")
        for host in ("a.site.invalid", "git.site"):
            assert "resolve" in fails(opened(git(f"http://{host}/tool"))).message
        assert not proxy.asked
        assert proxy.host in str(fails(opened(git("https://other.site/tool"))).hint)


def test_web_server(repo: Repo, opened: Open, git_server: GitServer) -> None:
    with opened(git(f"{git_server.url}/tool")) as tree:
        assert tree.locked.commit == repo.git("rev-parse", "HEAD")
    error = fails(opened(git(f"{git_server.url}/nothing")))
    assert "access denied, or no such repository" in error.message and "netrc" in error.hint
    git_server.authorization = "Basic other"
    error = fails(opened(git(f"{git_server.url}/tool", "other")))
    assert "access denied" in error.message


def test_authority(
    repo: Repo, opened: Open, git_server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git trusts whom builder trusts; where it does not, the hint is builder's."""
    authority, context = make_server_tls(tmp_path / "tls")
    git_server.httpd.socket = context.wrap_socket(git_server.httpd.socket, server_side=True)
    spec = git(f"https://{git_server.host}/tool")
    assert "an authority of its own" in str(fails(opened(spec)).hint)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority))
    with opened(spec) as tree:
        assert tree.locked.commit == repo.git("rev-parse", "HEAD")


@pytest.mark.parametrize("form", ["TOKEN", "me:$MY_TOKEN"])
def test_password(
    form: str,
    repo: Repo,
    opened: Open,
    git_server: GitServer,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A password of a URL reaches the server and nothing else: no command line, cache, lock or message."""
    secret = "s3cr3t-4nd-l0ng"
    monkeypatch.setenv("MY_TOKEN", secret)
    pair = f"me:{secret}" if form.startswith("me:") else f"{secret}:"
    git_server.authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    git_server.delay = 0.05
    url = f"http://{form.replace('TOKEN', secret) if '$' not in form else form}@{git_server.host}"
    watch = Secrets()
    watch.PAUSE_S = 0.005
    watch.add(secret, git_server.authorization.split()[1])
    with watch, opened(git(f"{url}/tool")) as tree:
        locked = tree.locked
    error = fails(opened(git(f"{url}/tool", "v9")))
    assert watch.samples > 3 and watch.seen == []
    assert watch.files(settings.cache) == []
    assert secret not in str(error) and secret not in repr(locked)


@pytest.mark.parametrize("has_netrc", [False, True])
@pytest.mark.parametrize("asks", ["first", "second", "both"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_password_and_redirect(
    host: str, asks: str, has_netrc: bool, repo: Repo, opened: Open, git_server: GitServer, tmp_path: Path
) -> None:
    """The password of a URL stays with its host and port, whichever server asks for one, and when."""
    other = GitServer(repo.folder.parent)
    url = f"http://me:s3cr3t@{git_server.host}/tool"
    needed = "Basic " + base64.b64encode(b"me:s3cr3t").decode()
    if has_netrc:  # it is for another user of the first host
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login other password 0th3r\n")
    try:
        git_server.redirect = f"http://{host}:{other.httpd.server_port}"
        git_server.authorization = needed if asks in ("first", "both") else ""
        other.authorization = needed if asks in ("second", "both") else ""
        with suppress(FetchError), opened(git(url)):
            pass
        assert needed not in other.logins and other.requests
        assert (needed in git_server.logins) == (asks != "second")
        git_server.redirect, git_server.authorization = "", needed
        with opened(git(url)) as tree:
            assert tree.locked.url == f"{git_server.url}/tool"
    finally:
        other.close()


def test_variable_of_a_lock(repo: Repo, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a lock names is never replaced by the value of a variable."""
    monkeypatch.setenv("MY_TOKEN", "s3cr3t")
    with opened(git(repo.url)) as tree:
        locked = replace(tree.locked, url="http://$MY_TOKEN@127.0.0.1:9/$MY_TOKEN/tool")
    error = fails(opened(spec_of("tool", replace(locked, commit="0" * 40)), replace(locked, commit="0" * 40)))
    assert "s3cr3t" not in str(error)


def test_environment_of_git(
    repo: Repo, opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Variables of git that would redirect it, as in a hook, have no effect; the user's settings have."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{repo.folder.parent.as_uri()}/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://git.example/")
    with opened(git("https://git.example/tool")) as tree:
        assert tree.locked.commit == repo.git("rev-parse", "HEAD")


def test_revision_that_is_an_option(repo: Repo, opened: Open, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for revision in (f"--upload-pack=touch {mark};:", "-q"):
        fails(opened(git(repo.url, revision)))
        assert not mark.exists()


@pytest.mark.parametrize(
    "settings_of_another",
    [
        '[remote "builder"]\n\tuploadpack = {program}\n',
        "[core]\n\tsshCommand = {program}\n",
        "[include]\n\tpath = {folder}/included\n",
        "[core] alternateRefsCommand = {program}\n",
    ],
)
def test_settings_of_another(
    repo: Repo, opened: Open, settings: Settings, tmp_path: Path, settings_of_another: str
) -> None:
    """Whoever could write to the cache chooses no program: the error names what to remove."""
    with opened(git(repo.url)):
        pass
    (folder,) = CacheFolders(settings.cache).git.iterdir()
    config, whole = folder / "config", (folder / "config").read_text()
    config.write_text(whole + settings_of_another.format(program=f"touch {tmp_path}/ran;", folder=tmp_path))
    repo.commit(more_py="")
    error = fails(opened(git(repo.url)))
    assert "settings are not those that builder made" in error.message and f"rm -r {folder}" in error.hint
    config.write_text(whole)
    (folder / "commondir").write_text(f"{tmp_path}\n")
    fails(opened(git(repo.url)))
    assert not (tmp_path / "ran").exists()
    subprocess.run(error.hint.partition(": ")[2].split(), check=True)
    with opened(git(repo.url)) as tree:
        assert tree.locked.commit == repo.git("rev-parse", "HEAD")


def test_program_of_the_other_end(repo: Repo, settings: Settings, tmp_path: Path) -> None:
    """Settings that change while builder works cannot choose it."""
    git = Git(tmp_path / "git", repo.url)
    git.run("config", f"remote.{REMOTE}.uploadpack", f"touch {tmp_path}/ran; git-upload-pack")
    git.run("fetch", *_FETCH, "--", REMOTE, "main:refs/fetched")
    assert git.text("rev-parse", "refs/fetched") == repo.git("rev-parse", "HEAD")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("shared", [False, True])
def test_settings_of_builder(
    repo: Repo, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """What git itself writes for a new repository and for a filter is accepted."""
    if shared:
        (tmp_path / ".gitconfig").write_text("[core]\n\tsharedRepository = group\n")
    repo.git("config", "uploadpack.allowFilter", "true")
    with open_repository(repo.url, Workspace(settings, Store(settings.cache))) as found:
        commit = found.commit_of("main")
        assert found.history(commit).text("rev-parse", "refs/fetched") == commit
    text = (next(CacheFolders(settings.cache).git.iterdir()) / "history/config").read_text()
    assert "promisor" in text and ("sharedrepository" in text) == shared
    with open_repository(repo.url, Workspace(settings, Store(settings.cache))) as found:
        assert found.history(commit).text("rev-parse", "refs/fetched") == commit


def test_another_tree(repo: Repo, opened: Open) -> None:
    with opened(git(repo.url)) as tree:
        locked = replace(tree.locked, tree="0" * 40)
    with pytest.raises(HashMismatch, match="the lock has 0000"), opened(git(repo.url), locked):
        pass


def test_mirror(repo: Repo, opened: Open, git_server: GitServer, settings: Settings) -> None:
    """A server or a folder stands in for the host; the lock has the public URL."""
    public = "https://git.example/owner/tool"
    for place in (git_server.url, str(repo.folder.parent)):
        mirrors = (("https://git.example/owner", place),)
        mirrored = replace(settings, mirrors=mirrors, cache=settings.cache / place[:4].strip("/"))
        with opened(git(public), settings=mirrored) as tree:
            assert tree.locked.url == public and (tree.path / "pyproject.toml").exists()
