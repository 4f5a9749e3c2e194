"""Pulp container with its token server: two web applications and a worker on unix sockets, and PostgreSQL."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

from tests.support import debs, parts
from tests.support.debs import NotInstalled
from tests.support.httpwire import Address
from tests.support.install_registries import fernet_key, install_pulp
from tests.support.postgres import Postgres, give_away
from tests.support.real_registries import RealRegistry

#: The token's life is short, so that a long push meets its end.
SETTINGS = """\
DATABASES = {{"default": {{"HOST": "{folder}/pg", "ENGINE": "django.db.backends.postgresql",
    "NAME": "pulp", "USER": "pulp"}}}}
SECRET_KEY = "{key}"
DB_ENCRYPTION_KEY = "{folder}/fernet"
CONTENT_ORIGIN = "http://{host}"
TOKEN_SERVER = "http://{host}/token/"
TOKEN_AUTH_DISABLED = False
TOKEN_SIGNATURE_ALGORITHM = "ES256"
PUBLIC_KEY_PATH = "{folder}/token.pub"
PRIVATE_KEY_PATH = "{folder}/token.key"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick
DEPLOY_ROOT = "{folder}/disk"
MEDIA_ROOT = "{folder}/disk/media"
WORKING_DIRECTORY = FILE_UPLOAD_TEMP_DIR = "{folder}/disk/tmp"
STATIC_ROOT = "{folder}/static"
CACHE_ENABLED = False
"""


class Pulp(RealRegistry):
    """The proxy takes the place of the web server that stands before Pulp's two applications."""

    name = "pulp"
    user = "admin"
    login = "token"
    keeps_wrong = True
    impossible = frozenset({"lost blobs"})  # it asks its database alone whether it has a blob
    blobs = "^/pulp/container/"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        parts.need("openssl", "setpriv", "tar")
        try:
            installed = install_pulp(parts.CLONE / ".cache/parts/pulp")
        except NotInstalled as e:
            parts.part_missing(str(e))
        self._bin = installed / "venv/bin"
        pg = folder / "pg"
        pg.mkdir()
        debs.call(["tar", "-xf", installed / "database.tar", "-C", pg])
        give_away(pg)
        self._postgres = Postgres(pg)
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in ("disk/media", "disk/tmp", "static", "sockets"):
            (folder / name).mkdir()
        (folder / "fernet").write_bytes(fernet_key())
        debs.call(
            ["openssl", "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "token.key"], folder
        )
        debs.call(["openssl", "ec", "-in", "token.key", "-pubout", "-out", "token.pub"], folder)
        settings = SETTINGS.format(folder=folder, host=self.host, key=secrets.token_hex(16))
        (folder / "settings.py").write_text(settings)

    def address(self, path: str) -> Address:
        app = "content" if path.startswith("/pulp/content") or path.startswith("/pulp/container") else "api"
        return str(self.folder / "sockets" / app)

    def start(self) -> None:
        first = not self._processes
        if first:
            self._postgres.start()
            salt = secrets.token_hex(8)
            digest = hashlib.md5((salt + self.password).encode(), usedforsecurity=False).hexdigest()
            self._postgres.sql(
                f"UPDATE auth_user SET password = 'md5${salt}${digest}' WHERE username = 'admin'", "pulp"
            )
        env = parts.clean_environment(HOME=self.folder, PULP_SETTINGS=self.folder / "settings.py")
        env["DJANGO_SETTINGS_MODULE"] = "pulpcore.app.settings"  # for --preload
        env["PATH"] = f"{self._bin}:{env['PATH']}"
        sockets = self.folder / "sockets"
        web = ["--no-control-socket", "--timeout", "90"]
        commands = [
            [self._bin / "pulpcore-api", "-b", f"unix:{sockets}/api", "-w", "3", "--preload", *web],
            [self._bin / "pulpcore-content", "-b", f"unix:{sockets}/content", "-w", "1", *web],
            [self._bin / "pulpcore-worker"],
        ]
        self._processes = [parts.start(command, self.log, env) for command in commands]
        parts.wait_for(self.answers, self._processes[0], self.log, "pulpcore-api")
        content = sockets / "content"
        parts.wait_for(content.exists, self._processes[1], self.log, "pulpcore-content")

    def kill(self) -> None:
        """Ends the applications and the worker; the database goes on."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        (self.folder / "sockets/content").unlink(missing_ok=True)  # start() waits for a new one

    def stop(self) -> None:
        self.kill()
        self._postgres.stop()

    def forget_blobs(self) -> None:
        """Empties the database: a blob that another repository has whole would hide one that is not."""
        tables = "core_repository, core_content, core_artifact, core_distribution, core_upload"
        self._postgres.sql(f"TRUNCATE {tables} CASCADE", "pulp")
        shutil.rmtree(self.folder / "disk/media", ignore_errors=True)
        (self.folder / "disk/media").mkdir()

    def remove_wrong(self) -> None:
        self.forget_blobs()

    def lose_blobs(self) -> None:
        raise NotImplementedError("Pulp asks its database alone whether it has a blob")
