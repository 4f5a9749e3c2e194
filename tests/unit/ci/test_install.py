"""Where a workflow installs builder from."""

from __future__ import annotations

import pytest

import builder.ci.install
from builder.ci.install import installed_from, setup_command
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
        (None, f"builder-images=={__version__}"),
    ],
)
def test_installed_from(direct_url: dict[str, object] | None, expected: str) -> None:
    """The commit that this installation was made from, without credentials."""
    assert installed_from(direct_url) == expected


@pytest.mark.parametrize(
    "direct_url", [{"url": "file:///home/me/builder", "dir_info": {}}, git("file:///home/me/builder"), {}]
)
def test_installed_from_a_folder(direct_url: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of this machine is never written into a workflow: the user is asked."""
    monkeypatch.setattr(builder.ci.install, "_direct_url", lambda: direct_url)
    with pytest.raises(UsageError, match="installed from a folder of this machine") as caught:
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
