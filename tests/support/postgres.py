"""A private PostgreSQL on a unix socket, which root runs as ``nobody``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534
#: Small, without a network, and without waiting for the disk: its content is thrown away.
OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "jit": "off",
}


def host_programs() -> Path | None:
    """The folder with this machine's PostgreSQL programs; None when there are none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return found[-1].parent if found else None


def give_away(folder: Path) -> None:
    """Makes a folder and all below it belong to the user who runs PostgreSQL."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


class Postgres:
    """Its files are in ``folder``: ``data``, the socket, and ``programs`` when the host has none.

    With a ``host`` it listens at that address and ``port`` too.
    """

    def __init__(self, folder: Path, host: str = "", port: int = 5432) -> None:
        self.folder = folder
        own = sorted(folder.glob("programs/usr/lib/postgresql/*/bin/postgres"))
        bin_folder = own[-1].parent if own else host_programs()
        if bin_folder is None:
            raise FileNotFoundError(f"no PostgreSQL in {folder} or /usr/lib/postgresql")
        self._bin = bin_folder
        self._process: subprocess.Popen[bytes] | None = None
        self._options = {**OPTIONS, "listen_addresses": host, "port": str(port)}
        libraries = [str(p) for p in folder.glob("programs/usr/lib/*-linux-gnu")]
        self._env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PGPORT": str(port)}
        self._env["LD_LIBRARY_PATH"] = ":".join(libraries)

    def initialize(self) -> None:
        """Makes an empty database."""
        options = ["--no-sync", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        self._run("initdb", "-D", self.folder / "data", *options)

    def sql(self, statement: str, database: str) -> None:
        self._run("psql", "-qX", "-h", self.folder, "-U", "postgres", "-d", database, "-c", statement)

    def start(self) -> None:
        """Starts it and waits until it answers."""
        options = [f"-c{k}={v}" for k, v in {**self._options, "unix_socket_directories": self.folder}.items()]
        with (self.folder / "postgres.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user(), str(self._bin / "postgres"), "-D", str(self.folder / "data"), *options],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        self._run("pg_isready", "-q", "-h", self.folder, "-t", "1", patience_s=180)

    def stop(self) -> None:
        """Ends it at once and cleanly, also when clients are connected."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(180)
            self._process = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.stop()

    def _as_user(self) -> list[str]:
        """Runs a command as the ordinary user; it ends when this process does."""
        if os.geteuid() != 0:
            return [shutil.which("setpriv") or "setpriv", "--pdeathsig=INT", "--"]
        user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        return ["setpriv", *user, "--pdeathsig=INT", "--"]

    def _run(self, program: str, *args: str | Path, patience_s: float = 0) -> None:
        command = [*self._as_user(), str(self._bin / program), *(str(a) for a in args)]
        end = time.monotonic() + patience_s
        while True:
            done = subprocess.run(command, env=self._env, cwd=self.folder, capture_output=True, text=True)
            if done.returncode == 0:
                return
            if time.monotonic() >= end:
                done.check_returncode()
            if self._process is not None and self._process.poll() is not None:
                raise OSError(f"PostgreSQL ended: {(self.folder / 'postgres.log').read_text()[-500:]}")
            time.sleep(0.05)
