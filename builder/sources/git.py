"""Runs the git program on one bare repository, so that neither the repository nor the user's shell decides
what is run.

* No command line contains a URL with a password: a remote is set in git's environment (``GIT_CONFIG_*``), and
  the password of a URL becomes a header for this URL alone. Passwords may also come from git's credential
  helpers and from ``~/.netrc``.
* No hook, no remote helper (``ext::``), no file-system monitor is run, and git asks no questions.
* Nothing is checked out: :mod:`builder.sources.objects` reads the objects.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from builder.errors import FetchError, UsageError
from builder.redact import redact

#: Seconds for one command of git.
TIME_LIMIT_S = 1800
#: The remote's name in the settings that git gets.
REMOTE = "builder"
#: Variables that concern access and the user's own settings. All others of git would redirect it.
_KEPT = re.compile(
    r"GIT_(ASKPASS|SSH\w*|SSL_\w+|PROXY_\w+|CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|(KEY|VALUE)_\d+))"
)
_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    # remote helpers (ext::COMMAND, and those of other packages) run programs
    "protocol.allow": "never",
    **{f"protocol.{name}.allow": "always" for name in ("file", "git", "http", "https", "ssh")},
    "protocol.ext.allow": "never",
    "fetch.recurseSubmodules": "false",
    "fetch.writeCommitGraph": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    # a server that stops sending
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
}
#: Lines of git that are no reason for a failure.
_NOISE = re.compile(r"^(hint:|remote: *$|warning:|From |error: failed to push|Cloning )", re.IGNORECASE)


class GitError(Exception):
    """A command of git failed; the text is the reason, without credentials."""


class Git:
    """The git program in one bare repository.

    Args:
        folder: the repository; it is created if it does not exist.
        url: the remote; may contain a user and password.

    Raises:
        UsageError: git is not installed.
        GitError: the repository cannot be created.
    """

    def __init__(self, folder: Path, url: str = "") -> None:
        if shutil.which("git") is None:
            raise UsageError(
                "git is not installed", "install it (apt install git), or name an archive instead"
            )
        self._folder = folder
        plain, settings = _remote(url) if url else ("", {})
        if url:
            settings[f"remote.{REMOTE}.url"] = plain
        self._env = _environment({**_SETTINGS, **settings})
        if not (folder / "HEAD").exists():
            folder.mkdir(parents=True, exist_ok=True)
            self.run("init", "--quiet", "--bare", "--template=", ".")

    def run(self, *arguments: str, data: bytes = b"") -> bytes:
        """Runs a command; returns what it prints.

        Raises:
            GitError: the command fails, or takes longer than :data:`TIME_LIMIT_S`.
        """
        process = self.start(*arguments)
        try:
            out, err = process.communicate(data, timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise GitError(f"no end after {TIME_LIMIT_S} s") from None
        finally:
            stop(process)
        if process.returncode:
            raise GitError(_reason(err))
        return out

    def text(self, *arguments: str) -> str:
        """The output of a command as text, without the last line break."""
        return self.run(*arguments).decode("utf-8", "surrogateescape").rstrip("\n")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a command, in a session of its own: ssh then cannot ask for a password."""
        return subprocess.Popen(
            ["git", "--git-dir", ".", *arguments],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a command and the programs that it started, if it still runs."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None and not pipe.closed:
            pipe.close()


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with settings for git, which are added to those that it has."""
    env = {n: v for n, v in os.environ.items() if not n.startswith("GIT_") or _KEPT.fullmatch(n)}
    count = env.get("GIT_CONFIG_COUNT", "")
    number = int(count) if count.isdecimal() else 0
    for key, value in settings.items():
        env[f"GIT_CONFIG_KEY_{number}"], env[f"GIT_CONFIG_VALUE_{number}"] = key, value
        number += 1
    return {**env, "GIT_CONFIG_COUNT": str(number), "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def _remote(url: str) -> tuple[str, dict[str, str]]:
    """A URL as a command line may show it, and the settings that git needs in addition.

    Raises:
        FetchError: it is not a valid URL.
    """
    try:
        parts = urlsplit(url)
        user, password = parts.username, parts.password
    except ValueError:
        raise FetchError(f"{redact(url)} is not a URL", "write git+https://HOST/OWNER/NAME") from None
    if user is None:
        return url, {}
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme not in ("http", "https"):  # ssh needs the user, and takes no password from a URL
        return urlunsplit(parts._replace(netloc=f"{user}@{host}")), {}
    plain = urlunsplit(parts._replace(netloc=host))
    pair = f"{unquote(user)}:{unquote(password or '')}"
    header = "Authorization: Basic " + base64.b64encode(pair.encode()).decode()
    return plain, {f"http.{plain}.extraHeader": header}


def _reason(stderr: bytes) -> str:
    """The last lines of git that say why it failed."""
    lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines()]
    useful = [line for line in lines if line and not _NOISE.match(line)]
    text = "; ".join((useful or lines or ["no reason given"])[-3:])
    return redact(re.sub(r"\b(fatal|error|remote): ", "", text))
