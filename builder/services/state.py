"""The folder of a stack: its compose file, configuration files and secrets.

Secrets are random and made once: PostgreSQL and the S3 store keep theirs with the data. Each is in a file of
mode 0600 that containers mount; none is in the compose file or on a command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from builder.errors import BuilderError, UsageError
from builder.settings import expand_home
from builder.store.files import write_atomic

DEFAULT_NAME = "services"
BUCKET = "builder"
REGION = "us-east-1"
#: Ports of this machine's loopback address, by the name of their service.
PORTS = {"mlflow": 8000, "ray": 8265, "prometheus": 9090, "s3": 3900}
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
#: What is in the folder of a stack.
_FILES = (
    *("stack.json", "compose.yaml", "postgres.sh", "dashboard.json", "prometheus.yml"),
    *("ray-token", "pgpass", "aws", "garage.env", "garage.toml"),
)
_GARAGE = """\
metadata_dir = "/var/lib/garage/meta"
data_dir = "/var/lib/garage/data"
db_engine = "sqlite"
replication_factor = 1
rpc_bind_addr = "[::]:3901"
rpc_public_addr = "127.0.0.1:3901"
rpc_secret = "{secret}"

[s3_api]
s3_region = "{region}"
api_bind_addr = "[::]:3900"
"""


@dataclass(frozen=True, slots=True)
class ExternalStore:
    """An S3 store that is there already."""

    url: str
    keys: str
    """A credentials file in AWS's format."""
    bucket: str = BUCKET
    region: str = REGION


@dataclass(frozen=True, slots=True)
class Stack:
    """The servers of one name on this machine, as ``builder services up`` started them."""

    name: str
    target: str
    image: str
    """Of the Ray cluster."""
    servers_image: str
    """Of MLflow, PostgreSQL and Prometheus."""
    engine: str
    """The container program."""
    ports: Mapping[str, int]
    workers: int
    gpus: int
    s3: ExternalStore | None = None
    """None: the stack's own store."""
    scrape: tuple[str, ...] = ()
    """``HOST:PORT`` of exporters that Prometheus reads too."""
    hosts: tuple[str, ...] = ()
    """Names by which people reach MLflow, beside localhost."""
    binds: tuple[str, ...] = ()
    """``SOURCE:TARGET[:MODE]`` for the Ray cluster, as shell text."""
    image_id: str = ""
    servers_id: str = ""
    """Of the images in the engine; empty: not known."""
    user: int = 0
    """The user id of its owner, a part of all names in the engine."""

    @property
    def project(self) -> str:
        """Of compose."""
        return f"builder-{self.name}-{self.user}"

    @property
    def bucket(self) -> str:
        return self.s3.bucket if self.s3 else BUCKET

    @property
    def services(self) -> tuple[str, ...]:
        own = () if self.s3 else ("s3",)
        workers = (f"ray-worker-{index}" for index in range(self.workers))
        return ("postgres", *own, "mlflow", "ray-head", *workers, "prometheus")

    def container(self, service: str) -> str:
        return f"{self.project}-{service}"


class State:
    """The folder of a stack.

    Args:
        folder: it is created by :meth:`write`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compose_file = folder / "compose.yaml"
        self.file = folder / "stack.json"
        self.image_folder = folder / "image"

    @classmethod
    def of(cls, name: str, folder: Path | None, environ: Mapping[str, str] = os.environ) -> State:
        """The folder of the stack with this name, or the one that the user names.

        Raises:
            UsageError: the name is not valid.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"--name {name}: not a name for servers",
                "small letters, digits and - (at most 31), beginning with a letter: --name team",
            )
        if folder is not None:
            return cls(folder.absolute())
        state = environ.get("XDG_STATE_HOME") or "~/.local/state"
        return cls(expand_home(state).absolute() / "builder" / "services" / name)

    @property
    def token_file(self) -> Path:
        """Ray's token."""
        return self.folder / "ray-token"

    def token(self) -> str:
        """Ray's token; empty if this user may not read it."""
        try:
            return self.token_file.read_text().strip()
        except OSError:
            return ""

    def keys_file(self, stack: Stack) -> Path:
        """The credentials file of the S3 store."""
        return Path(stack.s3.keys) if stack.s3 else self.folder / "aws"

    def read(self) -> Stack | None:
        """The stack; None if it was not started.

        Raises:
            BuilderError: the file is damaged.
        """
        try:
            found: dict[str, Any] = json.loads(self.file.read_text())
            found |= {name: tuple(found[name]) for name in ("scrape", "hosts", "binds")}
            found["s3"] = ExternalStore(**found["s3"]) if found["s3"] else None
            return Stack(**found)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise BuilderError(
                f"{self.file} is damaged: {e}", "write it again: builder services up TARGET"
            ) from None

    def require(self) -> Stack:
        """The stack.

        Raises:
            UsageError: it was not started.
        """
        stack = self.read()
        if stack is None:
            raise UsageError(
                f"no servers were started here: {self.file} does not exist",
                "start them: builder services up TARGET",
            )
        return stack

    def write(self, stack: Stack, compose: str) -> None:
        """Writes the stack, its compose file, the configuration files, and the secrets that are missing.

        Raises:
            BuilderError: the folder cannot be written to.
            UsageError: it belongs to another user, who could have put known passwords into it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._require_own(self.folder.stat().st_uid)
        self._make_secrets(stack)
        for name in ("postgres.sh", "dashboard.json"):
            if (text := package_file(name)) is not None:
                write_atomic(self.folder / name, text.encode())
        write_atomic(self.folder / "prometheus.yml", prometheus_file(stack).encode())
        write_atomic(self.compose_file, compose.encode())
        write_atomic(self.file, json.dumps(asdict(stack), indent=2).encode() + b"\n")

    def _make_secrets(self, stack: Stack) -> None:
        self._secret("ray-token", lambda: secrets.token_hex(32))
        # of libpq: host, port, database, user, password
        self._secret("pgpass", lambda: f"postgres:5432:mlflow:mlflow:{secrets.token_hex(24)}\n")
        if stack.s3 is not None:
            return
        key, secret = f"GK{secrets.token_hex(16)}", secrets.token_hex(32)
        aws = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
        self._secret("aws", lambda: aws)
        # What is there counts: an interrupted start may have written the first file only.
        key, secret = re.findall(r"(?m)^aws_\w+ = (\S+)", (self.folder / "aws").read_text())[:2]
        env = f"GARAGE_DEFAULT_ACCESS_KEY={key}\nGARAGE_DEFAULT_SECRET_KEY={secret}\n"
        self._secret("garage.env", lambda: env)
        self._secret("garage.toml", lambda: _GARAGE.format(secret=secrets.token_hex(32), region=REGION))

    def _secret(self, name: str, make: Callable[[], str]) -> None:
        """Writes a secret if it is missing."""
        path = self.folder / name
        if not path.exists():
            write_atomic(path, make().encode(), 0o600, durable=True)

    def require_own(self, stack: Stack) -> None:
        """Checks that a stack is this user's; root may do everything.

        Raises:
            UsageError: it is another user's.
        """
        self._require_own(stack.user)

    def _require_own(self, user: int) -> None:
        if os.getuid() not in (0, user):
            raise UsageError(
                f"{self.folder}: the servers are of the user with number {user}",
                "leave out --state and BUILDER_SERVICES for servers of your own",
            )

    def remove(self) -> None:
        """Removes the files of a stack, and the folder if nothing else is in it."""
        for name in _FILES:
            (self.folder / name).unlink(missing_ok=True)
        if (self.image_folder / "recipes" / "services.yaml").exists():
            shutil.rmtree(self.image_folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def package_file(name: str) -> str | None:
    """A file of this package; None if there is none of this name."""
    resource = files("builder.services") / "files" / name
    return resource.read_text() if resource.is_file() else None


def prometheus_file(stack: Stack) -> str:
    """What Prometheus reads: every node of Ray, and the exporters that the user names. YAML."""
    nodes = [f"{service}:8080" for service in stack.services if service.startswith("ray-")]
    jobs: list[dict[str, Any]] = [{"job_name": "ray", "static_configs": [{"targets": nodes}]}]
    if stack.scrape:
        jobs.append({"job_name": "exporters", "static_configs": [{"targets": list(stack.scrape)}]})
    settings = {"global": {"scrape_interval": "10s", "scrape_timeout": "8s"}, "scrape_configs": jobs}
    return json.dumps(settings, indent=2) + "\n"  # JSON is YAML


def check_keys(store: ExternalStore) -> ExternalStore:
    """The store with the absolute path of its keys.

    Raises:
        UsageError: the address or the file of keys is not valid, or others can read the file.
    """
    if not re.fullmatch(r"https?://[\w.\[\]:-]+(/[\w./-]*)?", store.url):
        raise UsageError(
            "--s3: not the address of an S3 store", "write it without keys: --s3 https://HOST:PORT"
        )
    path = expand_home(store.keys).absolute()
    try:
        mode = path.stat().st_mode
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        problem = e.strerror if isinstance(e, OSError) else "it is not text"
        raise UsageError(f"--s3-keys {store.keys}: {problem}", _KEYS_HINT) from None
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(f"--s3-keys {store.keys}: others can read it", f"chmod 600 {store.keys}")
    if not all(re.search(rf"(?m)^\s*{key}\s*=\s*\S", text) for key in _KEYS):
        raise UsageError(f"--s3-keys {store.keys}: {_KEYS[0]} or {_KEYS[1]} is missing", _KEYS_HINT)
    return replace(store, keys=str(path))


_KEYS = ("aws_access_key_id", "aws_secret_access_key")
_KEYS_HINT = f"write a file with three lines: [default], {_KEYS[0]} = ..., {_KEYS[1]} = ..."
