"""Git repositories: from a URL and a revision to one commit in the cache.

Each repository is a bare one in the cache folder ``git``, named by the hash of its URL. It has the
commits that were asked for, each fetched alone where the server allows it, and without history.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from builder.core.datafiles import read_beside, search
from builder.core.errors import FetchError
from builder.core.git import REMOTE, Git, GitError
from builder.core.redact import redact, without_userinfo
from builder.core.settings import Settings
from builder.core.store.files import mark_used
from builder.core.store.folders import CacheFolders
from builder.core.workspace import Workspace
from builder.formats.net.findlinks import as_path
from builder.formats.net.mirrors import mirrors_of
from builder.formats.net.proxies import exclusions
from builder.formats.net.trust import authorities, network_hint, network_variables
from builder.lock.sourcerecords import GIT_HASH

#: Of several programs in settings, git runs the first one it reads; an option is stronger.
_FETCH = ("--quiet", "--no-write-fetch-head", "--force", "--upload-pack=git-upload-pack")
_TAGS = "+refs/tags/*:refs/tags/*"
_SHORT = re.compile(r"[0-9a-f]{4,39}")


class Repository:
    """One repository; use :func:`open_repository`."""

    def __init__(self, folder: Path, url: str, settings: Settings) -> None:
        self._folder = folder
        self._url = url
        self._settings = settings
        self.shown = redact(url)
        """The URL for messages."""
        self.git = Git(folder)
        """Reads objects; it has no remote."""

    def commit_of(self, revision: str) -> str:
        """Return the commit that a branch, tag or hash names now; it is in the cache afterwards.

        Raises:
            FetchError: the repository or the revision is not available, or builder is offline.
        """
        if GIT_HASH.fullmatch(revision) and self._has(revision):
            return self._peeled(revision)
        self._require_network(revision or "its default branch")
        if (commit := self._fetched(revision or "HEAD")) is not None:
            return commit
        raise FetchError(
            f"{self.shown} has no branch, tag or commit {revision!r}",
            "write all 40 digits of the commit"
            if _SHORT.fullmatch(revision)
            else f"list what it has: git ls-remote {self.shown}",
        )

    def require(self, commit: str) -> None:
        """Make sure that a commit of a lock is in the cache, wherever its branch is now.

        Args:
            commit: the whole hash.

        Raises:
            FetchError: the commit is gone, the repository is not available, or builder is offline.
        """
        if self._has(commit):
            return
        self._require_network(f"commit {commit[:12]}")
        if self._fetched(commit) is not None:
            return
        raise FetchError(
            f"{self.shown} no longer has commit {commit} of the lock",
            "lock again: builder lock; or name a repository that has the commit (BUILDER_MIRRORS='FROM=TO')",
        )

    def history(self, commit: str) -> Git:
        """Return a repository with a commit, its history and all tags, without files.

        Args:
            commit: the whole hash.

        Raises:
            FetchError: the repository is not available, or builder is offline.
        """
        folder = self._folder / "history"
        wanted = ("--prune", "--no-tags", "--", REMOTE, _TAGS, f"{commit}:refs/fetched")
        try:
            if self._settings.offline:
                Git(folder).run("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
                return Git(folder)
            # a server may refuse the filter; one that does not know it ignores it
            with suppress(GitError):
                self._fetch(folder, "--filter=tree:0", *wanted)
                return Git(folder)
            self._fetch(folder, "--no-filter", *wanted)
            return Git(folder)
        except GitError as e:
            self._require_network(f"the history of {commit[:12]}")
            raise self._failure(str(e)) from None

    # the cache

    def _has(self, name: str) -> bool:
        """Return whether a commit and its files are in the cache."""
        with suppress(GitError):
            commit = self._peeled(name)
            self.git.run("rev-parse", "--verify", "--quiet", f"refs/commits/{commit}")
            return True
        return False

    def _peeled(self, name: str) -> str:
        """Return the commit that a name means, which may be that of an annotated tag."""
        return self.git.text("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")

    # the network

    def _remotes(self, folder: Path) -> Iterator[Git]:
        """Yield the repository's mirrors (``BUILDER_MIRRORS``), then the repository itself."""
        for place in [*mirrors_of(self._settings, without_userinfo(self._url)), self._url]:
            path = as_path(place)
            # git trusts the system's by itself, and those of the user's settings of git
            own = len(authorities()) > 1
            env = network_variables(self._folder) if own else exclusions()
            yield Git(folder, path.as_uri() if path is not None else place, env)

    def _fetched(self, revision: str) -> str | None:
        """Fetch one revision without its history and return its commit, None if there is none.

        The commit is recorded when all its files are there: an interrupted fetch leaves no record.

        Raises:
            FetchError: the repository is not available.
        """
        wanted = ("--depth=1", "--no-tags", "--", REMOTE, f"{revision}:refs/fetched")
        try:
            self._fetch(self._folder, *wanted)
            commit = self._peeled("refs/fetched")
            self.git.run("update-ref", f"refs/commits/{commit}", commit)
        except GitError as e:
            if not search(read_beside(__file__, "git_unknown.txt"), str(e), re.IGNORECASE):
                raise self._failure(str(e)) from None
            return None
        return commit

    def _fetch(self, folder: Path, *arguments: str) -> None:
        """Run ``git fetch`` in a folder, from the first place that has what it asks for.

        Raises:
            GitError: no place has it; the reason is that of the last one.
        """
        problem = GitError("no place is named")
        for git in self._remotes(folder):
            try:
                git.run("fetch", *_FETCH, *arguments)
                return
            except GitError as e:
                problem = e
        raise problem

    def _require_network(self, what: str) -> None:
        if self._settings.offline:
            raise FetchError(
                f"{self.shown}: {what} is not in the cache, and builder is offline",
                "run once online to fill the cache",
            )

    def _failure(self, reason: str) -> FetchError:
        if search(read_beside(__file__, "git_denied.txt"), reason):
            return FetchError(
                f"{self.shown}: access denied, or no such repository: {reason}",
                "check the address; write user and token into ~/.netrc or a credential helper of git",
            )
        return FetchError(f"{self.shown} cannot be fetched: {reason}", network_hint(reason))


@contextmanager
def open_repository(url: str, work: Workspace) -> Iterator[Repository]:
    """Yield the repository of a URL in the cache, which no other process uses meanwhile.

    Raises:
        FetchError: the URL is not one.
        UsageError: git is not installed.
    """
    name = hashlib.sha256(without_userinfo(url).encode()).hexdigest()[:32]
    folder = CacheFolders(work.settings.cache).git / name
    with work.store.lock(f"git {name}"):
        try:
            repository = Repository(folder, url, work.settings)
        except GitError as e:
            raise FetchError(f"{folder}: {e}", f"remove the folder: rm -r {folder}") from None
        mark_used(folder)
        yield repository
