"""Where a workflow installs builder from."""

from __future__ import annotations

from pathlib import Path

import pytest

import builder.ci.install
from builder.ci.install import installed_from, repository, setup_command
from builder.errors import UsageError
from builder.version import __version__


def git(url: str, commit: str = "c" * 40) -> dict[str, object]:
    return {"url": url, "vcs_info": {"vcs": "git", "commit_id": commit}}


@pytest.mark.parametrize(
    ("direct_url", "expected"),
    [
        (git("https://git.example/o/builder"), f"git+https://git.example/o/builder@{'c' * 40}"),
        (git("ssh://git@git.example/o/builder"), f"git+ssh://git@git.example/o/builder@{'c' * 40}"),
        (git("https://u:secret@git.example/b"), f"git+https://git.example/b@{'c' * 40}"),
        ({"url": "https://h.example/b.whl", "archive_info": {}}, "builder-images @ https://h.example/b.whl"),
        ({"url": "file:///home/me/builder", "dir_info": {}}, f"git+https://a.example/b@v{__version__}"),
        ({}, f"git+https://a.example/b@v{__version__}"),
    ],
)
def test_installed_from(direct_url: dict[str, object], expected: str) -> None:
    """The commit that this installation was made from, without credentials; else the tag of this version."""
    assert installed_from(direct_url, "https://a.example/b") == expected


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("", ""),
        (
            "Project-URL: Issues, https://a.example/i\nProject-URL: Repository, https://a.example/b\n",
            "https://a.example/b",
        ),
    ],
)
def test_repository(lines: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is in the metadata of the installation, from ``[project.urls]``."""
    folder = tmp_path / "builder_images-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: builder-images\nVersion: 1\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert repository() == found


@pytest.mark.parametrize(
    "direct_url", [{"url": "file:///home/me/builder", "dir_info": {}}, git("file:///home/me/builder"), {}]
)
def test_installed_from_a_folder(direct_url: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of this machine or an index is never written into a workflow: the error names what to set."""
    monkeypatch.setattr(builder.ci.install, "_direct_url", lambda: direct_url)
    monkeypatch.setattr(builder.ci.install, "repository", lambda: "")
    with pytest.raises(UsageError, match=r"does not set Repository below \[project.urls\]") as caught:
        setup_command(None, None)
    assert "--install 'git+https://" in caught.value.hint
    assert setup_command("./b.whl", None).endswith("--quiet ./b.whl")
    assert setup_command(None, "make setup") == "make setup"


@pytest.mark.parametrize(
    ("install", "setup", "message"),
    [
        ("a", "b", "exclude each other"),
        ("a\nb", None, "--install: .* is not a line"),
        (None, "echo ${{ secrets.X }}", "--setup: .* is not a line"),
        ("git+https://me:S3CR3T@h.example/b", None, "--install git.https://h.example/b: contains a password"),
        (None, "pip install -i https://S3CR3T@h.example/ b", "--setup pip install .*: contains a password"),
    ],
)
def test_invalid(install: str | None, setup: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        setup_command(install, setup)
    assert "S3CR3T" not in str(caught.value)


def test_quoted() -> None:
    assert setup_command("a b; c", None).endswith("--quiet 'a b; c'")
    for text in ("git+ssh://git@h.example/b@v1", "git+https://$TOKEN@h.example/b"):
        assert text in setup_command(None, text), "no password"
