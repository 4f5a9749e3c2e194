"""What git describes a commit by, for build backends that make the version from it.

setuptools-scm, its successor vcs-versioning, and hatch-vcs run ``git describe``, and make a version
of its text by the rules of the project: ``v1.2.0-3-g0123456789`` becomes ``1.2.1.dev3+g012345678``.
A source reaches its build without its history. So builder runs ``git describe``, the lock records
the text, and the copy that is built has it in the file of :func:`write_archival`, where these tools
look if there is no repository.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import ConfigError, UsageError
from builder.core.git import Git, GitError
from builder.core.store.temporary import temporary_folder
from builder.core.store.walk import remove_tree
from builder.core.workspace import Workspace
from builder.formats.trees.ignore import checkout_of
from builder.formats.trees.inside import is_inside
from builder.formats.trees.tracked import git_folder, git_line
from builder.lock.sourcerecords import TEXT
from builder.lock.spec import SourceSpec

from .repository import open_repository
from .tree import SourceTree, url_of

_ARCHIVAL = ".git_archival.txt"


@dataclass(frozen=True, slots=True)
class Scm:
    """How a package makes its version from git."""

    command: tuple[str, ...]
    """What describes the commit: ``git describe`` with options, or a program of the project."""
    untagged: str
    """The tag that stands for the first commit where no tag fits."""
    root: str
    """The top of the repository, relative to the package."""
    searches: bool
    """Whether the top may also be a folder above ``root``."""

    def tops(self, package: Path) -> tuple[Path, ...]:
        """Return the folders that may be the top of the repository."""
        start = Path(os.path.normpath(package.absolute() / self.root))
        return (start, *start.parents) if self.searches else (start,)


def describe(spec: SourceSpec, tree: SourceTree, scm: Scm, root: Path, work: Workspace) -> str:
    """Return the text of ``git describe``; empty for archives and for what is in no repository.

    Args:
        spec: the source; its name is for messages.
        tree: what was opened for it.
        scm: how its package makes the version.
        root: the project folder.

    Raises:
        FetchError: the history is not available.
        ConfigError: git cannot describe the commit.
        UsageError: git is not installed.
    """
    title = f"{spec.where}: {spec.shown}: its version comes from git"
    env = '{env: {SETUPTOOLS_SCM_PRETEND_VERSION: "1.2.0"}}'
    setting = f"set the version in the recipe: pip: {{build: {{{spec.name or 'NAME'}: {env}}}}}"
    try:
        if spec.kind == "git" and tree.root in scm.tops(tree.path):
            with open_repository(url_of(spec), work) as repository:
                commit = tree.locked.commit
                return _described(repository.history(commit), commit, scm, title)
        if spec.kind == "local":
            for top in scm.tops(root / spec.url / spec.subdirectory):
                if checkout_of(top) == top:
                    with temporary_folder(work.settings.tmpdir, 0o700) as folder:
                        return _described(_linked(folder / "git", top), "HEAD", scm, title)
    except UsageError as e:
        hint = f"install it (apt install git); or {setting}"
        raise UsageError(f"{title}: {e.message}", hint) from None
    except (GitError, ValueError) as e:
        raise ConfigError(f"{title}: {e}", setting) from None
    return ""


def write_archival(tree: SourceTree) -> None:
    """Write the text of ``git describe`` into an unpacked source that has one."""
    if tree.locked.describe:
        path = tree.path / _ARCHIVAL
        remove_tree(path)  # the project's own, which may be a symlink
        path.write_text(f"describe-name: {tree.locked.describe}\n", encoding="utf-8")


def _described(git: Git, commit: str, scm: Scm, title: str) -> str:
    """Return what a repository describes a commit by."""
    if scm.command[:2] != ("git", "describe"):
        raise GitError(f"builder does not run the project's own command: {' '.join(scm.command)!r}")
    options = [word for word in scm.command[2:] if not word.startswith(("--dirty", "--broken"))]
    try:
        text = git.text("describe", *options, commit)
    except GitError:
        if git.text("rev-parse", "--is-shallow-repository") == "true":
            message = f"{title}, and its clone is shallow and has no tag that fits"
            raise ConfigError(message, "git fetch --tags --unshallow") from None
        node = git.text("rev-parse", "--verify", f"{commit}^{{commit}}")
        text = f"{scm.untagged}-{git.text('rev-list', '--count', commit)}-g{node[:10]}"
    if not TEXT.fullmatch(text):
        raise GitError(f"git describe printed {text[:80]!r}")
    return text


def _linked(folder: Path, top: Path) -> Git:
    """Return a new repository with the commits and tags of a checkout, and without its settings.

    Nothing is linked that a symlink leads elsewhere: git's messages show lines of wrong files.

    Args:
        folder: the new repository.
        top: the checkout, also one that ``git worktree`` made, or a submodule: its ``.git`` is a
            file then.
    """
    own = git_folder(top)
    shared = own / (git_line(own / "commondir") or ".")
    if (shared / "reftable").is_dir():
        hint = "git refs migrate --ref-format=files"
        raise ConfigError(f"{shared}: builder does not read reftables", hint)
    if not (shared / "objects").is_dir():
        raise GitError(f"{shared} is not a repository")
    folder.mkdir()
    inside = [own, *(shared / name for name in ("objects", "refs", "packed-refs", "shallow"))]
    for path in inside:
        if not is_inside(path, shared):
            raise GitError(f"{path} leads out of the repository {shared}")
        if path != own and path.exists():
            (folder / path.name).symlink_to(path)
    (folder / "HEAD").write_text(git_line(own / "HEAD") + "\n", encoding="utf-8")
    return Git(folder)
