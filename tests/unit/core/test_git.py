"""What git may print and take, and where it may go. git is real."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from builder.core import git as module
from builder.core.git import REMOTE, Git, GitError
from builder.core.limits import MAX_MEMORY
from tests.support.gitserver import GitServer, Repo

#: Prints 300 MiB.
SPAM = "!head -c 314572800 /dev/zero"


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = Git(tmp_path / "git")
    with pytest.raises(GitError, match="or 128 MiB"):
        git.run("-c", f"alias.spam={SPAM}", "spam")
    with pytest.raises(GitError, match="a path has more than 65536 bytes"):
        list(git.records("-c", "alias.spam=!head -c 99999999 /dev/zero | tr '\\0' x", "spam"))
    monkeypatch.setattr(module, "TIME_LIMIT_S", 0)
    with pytest.raises(GitError, match="no end after 0 s"):
        git.run("-c", "alias.wait=!sleep 600", "wait")


def test_error_output(tmp_path: Path) -> None:
    """Of a server that prints remote: lines all the time, the end is held."""
    git = Git(tmp_path / "git")
    tracemalloc.start()
    try:
        with pytest.raises(GitError, match="why$"):
            git.run("-c", f"alias.spam={SPAM} >&2; echo why >&2; exit 1;:", "spam")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_memory(tmp_path: Path) -> None:
    """A server decides what git's own processes take. Those that they start are limited too."""
    code = f"{sys.executable} -c 'x = bytearray({MAX_MEMORY + (1 << 30)})'"
    with pytest.raises(GitError, match="MemoryError"):
        Git(tmp_path / "git").run("-c", f"alias.large=!{code}", "large")


def encrypt(server: GitServer, folder: Path) -> None:
    """Gives a server a certificate of its own: ``cert.pem``."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=t"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    server.httpd.socket = context.wrap_socket(server.httpd.socket, server_side=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_no_downgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git follows a redirect from http to http, and none from https to http."""
    repo = Repo(tmp_path / "served/tool")
    repo.commit(a_py="")
    target, first = GitServer(tmp_path / "served"), GitServer(tmp_path / "served")
    first.redirect = target.url
    try:
        assert "HEAD" in Git(tmp_path / "git", f"{first.url}/tool").text("ls-remote", REMOTE)
        target.requests.clear()
        encrypt(first, tmp_path)
        monkeypatch.setenv("GIT_SSL_CAINFO", str(tmp_path / "cert.pem"))
        with pytest.raises(GitError, match='Protocol "http" (not supported or |is )?disabled'):
            Git(tmp_path / "git", f"https://{first.host}/tool").text("ls-remote", REMOTE)
        assert first.requests and not target.requests
    finally:
        first.close()
        target.close()


def test_transports(tmp_path: Path) -> None:
    """A URL that names a command is refused."""
    with pytest.raises(GitError, match="transport 'ext' not allowed"):
        Git(tmp_path / "git", f"ext::touch {tmp_path}/mark").run("ls-remote", REMOTE)
    assert not (tmp_path / "mark").exists()


def test_only_place() -> None:
    """No other module starts git."""
    root = Path(module.__file__).parent
    paths = [path for path in root.rglob("*.py") if re.search(r"[\[(]\s*[\"']git[\"'],", path.read_text())]
    assert paths == [root / "git.py"] and 'limited("git",' in paths[0].read_text()
