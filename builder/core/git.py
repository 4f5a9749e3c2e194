"""Runs the git program: the only module that does.

git reads the settings of the repository that it works in, and many of them name programs: hooks,
filters, file-system monitors, credential helpers, the other end of a lazy fetch. So git never works
in a repository that others made. It works in a bare one of builder's own, with the settings in
``git_settings.txt`` and those of the user.

* No command line contains a URL with a password: a remote is set in git's environment
  (``GIT_CONFIG_*``), and the password comes from a credential helper, which git asks for this
  scheme, host and port only: a redirect takes it nowhere else. Passwords may also come from the
  user's credential helpers and from ``~/.netrc``.
* No hook, no remote helper (``ext::``), no file-system monitor is run, and git asks no questions.
  Settings of the repository that others have written are an error.
* Nothing is checked out: :mod:`builder.build.sources.objects` reads the objects.
* What git prints is bounded, and so is its memory: a server decides about both.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from .datafiles import any_of, read_beside
from .errors import FetchError, UsageError
from .limits import limited
from .redact import redact
from .store.reading import text_of

#: Seconds for one command of git.
TIME_LIMIT_S = 1800
#: Bytes that a command may print. The files of Chromium take 50 MB.
MAX_OUTPUT = 128 << 20
#: Bytes of a path that git lists.
MAX_RECORD = 64 << 10
#: The last bytes of the error output, which contain the reason of a failure.
_MAX_ERRORS = 64 << 10
#: The remote's name in the settings that git gets.
REMOTE = "builder"
#: Variables that concern access and the user's own settings. All others of git would redirect it.
_KEPT = any_of(__file__, "git_variables.txt")
#: One KEY=VALUE in each line.
_SETTINGS: dict[str, str] = dict(
    re.findall(r"(?m)^([\w.]+)=(.*)$", read_beside(__file__, "git_settings.txt"))
)
#: A credential helper that answers from the environment. The shell's own printf is no process, so no command
#: line has the password.
_HELPER = '!f() { printf \'username=%s\\npassword=%s\\n\' "$_BUILDER_GIT_USER" "$_BUILDER_GIT_PASSWORD"; }; f'
#: A line of a repository's own settings that git writes for builder.
_OWN = re.compile(read_beside(__file__, "git_lines.txt"), re.VERBOSE | re.IGNORECASE)
#: Lines of git that are no reason for a failure.
_NOISE = re.compile(r"(?i)^(hint:|remote: *$|warning:|From |error: failed to push|Cloning )")


class GitError(Exception):
    """A command of git failed; the text is the reason, without credentials."""


class Git:
    """The git program in one bare repository of builder's own.

    Args:
        folder: the repository; it is created if it does not exist.
        url: the remote; may contain a user and password. No redirect leads from https to http.
        env: further variables; SSL_CERT_FILE has those whom git trusts in place of the system's.

    Raises:
        UsageError: git is not installed.
        FetchError: the URL is not valid.
        GitError: the repository cannot be created, or somebody has changed its settings.
    """

    def __init__(self, folder: Path, url: str = "", env: Mapping[str, str] | None = None) -> None:
        if shutil.which("git") is None:
            hint = "install it (apt install git), or name an archive instead"
            raise UsageError("git is not installed", hint)
        self._folder = folder.resolve()  # git takes a path through a symlink for another folder
        http = ("protocol.http.allow", "always" if url.startswith("http:") else "user")
        remote, secrets = _remote(url) if url else ([], {})
        if env and "SSL_CERT_FILE" in env:
            remote.append(("http.sslCAInfo", env["SSL_CERT_FILE"]))
        variables = _environment([*_SETTINGS.items(), http, *remote])
        self._env = {**variables, **secrets, **(env or {})}
        if not (folder / "HEAD").exists():
            folder.mkdir(parents=True, exist_ok=True)
            self.run("init", "--quiet", "--bare", "--template=", ".")
        lines = text_of(folder / "config").splitlines()
        if (folder / "commondir").exists() or not all(map(_OWN.fullmatch, lines)):
            raise GitError(f"its settings are not those that builder made: rm -r {folder}")

    def run(self, *arguments: str) -> bytes:
        """Run a command and return what it prints.

        Raises:
            GitError: the command fails, takes longer than :data:`TIME_LIMIT_S`, or prints more than
                :data:`MAX_OUTPUT` bytes.
        """
        return b"".join(self._output(arguments))

    def text(self, *arguments: str) -> str:
        """Return the output of a command as text, without the last line break."""
        return self.run(*arguments).decode("utf-8", "surrogateescape").rstrip("\n")

    def records(self, *arguments: str) -> Iterator[str]:
        """Yield the records that a command prints, a zero byte after each (``-z``).

        Raises as :meth:`run`.
        """
        rest = b""
        for block in self._output(arguments):
            *whole, rest = (rest + block).split(b"\0")
            yield from map(os.fsdecode, whole)
            if len(rest) > MAX_RECORD:
                raise GitError(f"a path has more than {MAX_RECORD} bytes")

    def start(self, *arguments: str, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a command in a new session: ssh then cannot ask for a password."""
        return subprocess.Popen(
            limited("git", "--git-dir", str(self._folder), *arguments),
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )

    def _output(self, arguments: Collection[str]) -> Iterator[bytes]:
        """Run a command and yield its output in blocks. Raises as :meth:`run`."""
        process = self.start(*arguments, stderr=subprocess.PIPE)
        assert process.stdin and process.stdout and process.stderr
        process.stdin.close()
        errors, size, end = b"", 0, time.monotonic() + TIME_LIMIT_S
        try:
            with selectors.DefaultSelector() as pipes:
                pipes.register(process.stdout, selectors.EVENT_READ)
                pipes.register(process.stderr, selectors.EVENT_READ)
                while pipes.get_map():
                    for key, _ in pipes.select(end - time.monotonic()):
                        block = os.read(key.fd, 1 << 16)
                        if not block:
                            pipes.unregister(key.fileobj)
                        elif key.fileobj is process.stderr:
                            errors = (errors + block)[-_MAX_ERRORS:]
                        else:
                            size += len(block)
                            yield block
                    if size > MAX_OUTPUT or time.monotonic() > end:
                        raise GitError(f"no end after {TIME_LIMIT_S} s or {MAX_OUTPUT >> 20} MiB")
            if process.wait():
                raise GitError(_reason(errors))
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a command and the programs that it started, if it still runs."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None and not pipe.closed:
            pipe.close()


def _environment(settings: Collection[tuple[str, str]]) -> dict[str, str]:
    """Return this process's environment with settings for git, added to those that it has."""
    env = {n: v for n, v in os.environ.items() if not n.startswith("GIT_") or _KEPT.fullmatch(n)}
    count = env.get("GIT_CONFIG_COUNT", "")
    first = int(count) if count.isdecimal() else 0
    for number, (key, value) in enumerate(settings, first):
        env[f"GIT_CONFIG_KEY_{number}"], env[f"GIT_CONFIG_VALUE_{number}"] = key, value
    env["GIT_CONFIG_COUNT"] = str(first + len(settings))
    return {**env, "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}


def _remote(url: str) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Return the settings of the remote with a URL, and variables with its user and password.

    Raises:
        FetchError: it is not a valid URL.
    """
    try:
        parts = urlsplit(url)
        user, password = parts.username, parts.password
    except ValueError:
        problem = f"{redact(url)} is not a URL"
        raise FetchError(problem, "write git+https://HOST/OWNER/NAME") from None
    key = f"remote.{REMOTE}.url"
    if user is None:
        return [(key, url)], {}
    host = parts.netloc.rpartition("@")[2]
    # ssh needs the user, and takes no password from a URL
    if parts.scheme not in ("http", "https"):
        return [(key, urlunsplit(parts._replace(netloc=f"{user}@{host}")))], {}
    # with a user in the URL and emptyAuth, git asks the helper first: ~/.netrc may have another user
    helper = f"credential.{parts.scheme}://{host}.helper"
    plain = urlunsplit(parts._replace(netloc=f"{REMOTE}@{host}"))
    settings = [(key, plain), ("http.emptyAuth", "true"), (helper, ""), (helper, _HELPER)]
    secret = unquote(password or "")
    return settings, {"_BUILDER_GIT_USER": unquote(user), "_BUILDER_GIT_PASSWORD": secret}


def _reason(stderr: bytes) -> str:
    """Return git's last lines, the reason of a failure."""
    lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines()]
    useful = [line for line in lines if line and not _NOISE.match(line)]
    text = "; ".join((useful or lines or ["no reason given"])[-3:])
    return redact(re.sub(r"\b(fatal|error|remote): ", "", text))
