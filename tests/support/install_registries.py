"""Puts two registries into private folders: crane (Debian sid) and Pulp (PyPI, with Debian's PostgreSQL).

Nothing of the host is changed. Pulp's database is made once and kept as an archive, because that takes most
of the time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import filelock

from builder.errors import BuilderError
from builder.net.pipconfig import pip_configuration
from tests.support import debs
from tests.support.debs import NotInstalled
from tests.support.parts import part_folder
from tests.support.postgres import Postgres, give_away, host_programs

#: Raise when the folder's content has to be made anew.
CRANE_FORMAT = "1"
PULP_FORMAT = "2"
PULP = ("pulpcore==3.123.1", "pulp-container==2.30.0")
#: What Pulp needs to know to make its database; everything else is the default.
MIGRATION_SETTINGS = """\
DATABASES = {{"default": {{"HOST": "{socket}", "ENGINE": "django.db.backends.postgresql",
    "NAME": "pulp", "USER": "pulp"}}}}
SECRET_KEY = "of the migration"
DB_ENCRYPTION_KEY = "{folder}/fernet"
CONTENT_ORIGIN = "http://localhost"
TOKEN_AUTH_DISABLED = True
WORKING_DIRECTORY = FILE_UPLOAD_TEMP_DIR = MEDIA_ROOT = "{folder}"
CACHE_ENABLED = False
"""


def install_crane(prefix: Path) -> Path:
    """The path of ``crane`` in ``prefix``, installed there (about 6 s) when it is not yet.

    Raises:
        NotInstalled: no Debian mirror, or a tool is missing.
    """

    def fill(work: Path) -> None:
        debs.unpack(debs.download(work, ["crane/sid"], ["sid"]), prefix)

    install("crane", prefix, CRANE_FORMAT, fill)
    return prefix / "usr/bin/crane"


def install_pulp(prefix: Path) -> Path:
    """The folder of Pulp: ``venv`` and ``database.tar``, made (about a minute) when they are not yet there.

    Raises:
        NotInstalled: no Debian mirror, no package index, or a tool is missing.
    """

    prefix = prefix.resolve()  # its programs hold their path

    def fill(work: Path) -> None:
        make_venv(prefix / "venv", PULP)
        _make_database(prefix)

    install("Pulp", prefix, f"{PULP_FORMAT} {' '.join(PULP)} {prefix}", fill)
    return prefix


def install(name: str, prefix: Path, version: str, fill: Callable[[Path], None]) -> None:
    """Lets ``fill`` make a folder, unless it is there in this version; other processes wait for it."""
    marker = prefix / ".complete"
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(prefix.parent / f".{prefix.name}.lock"):
        if marker.exists() and marker.read_text() == version:
            return
        shutil.rmtree(prefix, ignore_errors=True)
        prefix.mkdir()
        try:
            with tempfile.TemporaryDirectory(dir=prefix.parent) as work:
                fill(Path(work))
        except (OSError, BuilderError, subprocess.CalledProcessError) as e:
            raise NotInstalled.because(f"{name} cannot be installed into {prefix}", e) from e
        marker.write_text(version)


def make_venv(venv: Path, packages: Sequence[str]) -> None:
    """A virtual environment with these packages."""
    uv = Path(sys.executable).with_name("uv")
    debs.call([uv, "venv", "--quiet", "--python", sys.executable, venv])
    install_packages(packages, VIRTUAL_ENV=str(venv))


def install_packages(words: Sequence[str | Path], **env: str) -> None:
    """Runs ``uv pip install`` with the settings of this machine's pip."""
    uv = Path(sys.executable).with_name("uv")
    pip = pip_configuration()
    sources: list[str] = []
    if pip.index_url:
        sources += ["--default-index", pip.index_url]
    for url in pip.extra_index_urls:
        sources += ["--index", url]
    for place in pip.find_links:
        sources += ["--find-links", place]
    certificates = {"SSL_CERT_FILE": pip.cert} if pip.cert else {}
    options = ["--quiet", "--compile-bytecode", "--index-strategy", "unsafe-best-match"]
    debs.call([uv, "pip", "install", *options, *sources, *words], **certificates, **env)


def _make_database(prefix: Path) -> None:
    """``database.tar``: PostgreSQL's programs, unless the host has them, and a database with Pulp's tables.

    PostgreSQL runs as an ordinary user, who may not be able to reach ``prefix``.
    """
    with part_folder("pg") as folder:
        if host_programs() is None:
            work = folder / "work"
            work.mkdir()
            debs.unpack(debs.download_with_dependencies(work, ["postgresql"]), folder / "programs")
            shutil.rmtree(work)
            _leave_out(folder / "programs")
        give_away(folder)
        postgres = Postgres(folder)
        postgres.initialize()
        with postgres.running():
            postgres.sql("CREATE ROLE pulp LOGIN SUPERUSER", "postgres")
            postgres.sql("CREATE DATABASE pulp OWNER pulp", "postgres")
            _migrate(prefix, folder)
        kept = [p.name for p in (folder / "programs", folder / "data") if p.exists()]
        debs.call(["tar", "--numeric-owner", "-cf", prefix / "database.tar", *kept], folder)


def _leave_out(programs: Path) -> None:
    """Removes what is large and not used: texts, and LLVM, which compiles queries (PostgreSQL's jit)."""
    for name in ("doc", "locale", "man"):
        shutil.rmtree(programs / "usr/share" / name, ignore_errors=True)
    for library in programs.glob("usr/lib/*/libLLVM*"):
        library.unlink()


def _migrate(prefix: Path, folder: Path) -> None:
    settings = folder / "settings.py"
    settings.write_text(MIGRATION_SETTINGS.format(socket=folder, folder=folder))
    (folder / "fernet").write_bytes(fernet_key())
    manager = prefix / "venv/bin/pulpcore-manager"
    debs.call([manager, "migrate", "--noinput"], folder, PULP_SETTINGS=str(settings))
    debs.call(
        [manager, "reset-admin-password", "--random"], folder, PULP_SETTINGS=str(settings)
    )  # makes the user


def fernet_key() -> bytes:
    import base64

    return base64.urlsafe_b64encode(os.urandom(32)) + b"\n"
