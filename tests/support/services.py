"""The real servers behind a training, on loopback and free ports: PostgreSQL, an S3 store, MLflow, Prometheus
and Ray.

PostgreSQL and Prometheus are Debian's; MLflow, Ray and moto are PyPI's, in a virtual environment of their own
(``make parts``; about two minutes). Each server keeps its files in a temporary folder and is ended by its
process id.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.support import parts
from tests.support.debs import NotInstalled
from tests.support.install_registries import install, make_venv
from tests.support.ports import free_ports
from tests.support.postgres import Postgres, give_away, host_programs

FORMAT = "1"
MLFLOW, RAY = "3.17.2", "2.60.0"
PACKAGES = (
    f"mlflow=={MLFLOW}",
    f"ray[default,train]=={RAY}",
    "moto[server]==5.2.5",
    "psycopg2-binary==2.9.13",
    "boto3==1.44.5",
    "pyarrow==25.0.1",
    "psutil",
    "prometheus-client==0.26.0",
)
#: Loopback servers are not asked through a proxy, and nothing is reported to the makers of Ray and MLflow.
QUIET = {
    "no_proxy": "127.0.0.1,localhost",
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
}
BUCKET = "builder"
READY_S = 180


def install_services(prefix: Path) -> Path:
    """The virtual environment of the Python servers in ``prefix``, made there when it is not yet.

    Raises:
        NotInstalled: no package index, or a tool is missing.
    """
    prefix = prefix.resolve()  # its programs hold their path
    version = f"{FORMAT} {' '.join(PACKAGES)} {prefix}"
    install("the servers", prefix, version, lambda work: make_venv(prefix / "venv", PACKAGES))
    return prefix / "venv"


def services_venv() -> Path:
    """The virtual environment with MLflow, Ray, moto and boto3; skips the test if it cannot be made."""
    try:
        return install_services(parts.CLONE / ".cache/parts/services")
    except NotInstalled as e:
        parts.part_missing(str(e))


def _program(name: str) -> Path:
    return services_venv() / "bin" / name


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    return False


@dataclass
class Server:
    """A running server. ``env`` has what its clients need."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid


@contextlib.contextmanager
def _server(
    name: str, command: list[str | Path], url: str, health: str, folder: Path, env: Mapping[str, str]
) -> Iterator[Server]:
    log = folder / f"{name}.log"
    full = parts.clean_environment(HOME=folder, **QUIET, **env)
    process = parts.start(command, log, full)
    try:
        parts.wait_for(lambda: _answers(f"{url}{health}"), process, log, name, READY_S)
        yield Server(url, process, log, dict(env))
    finally:
        end_group(process)


def end_group(process: subprocess.Popen[bytes], patience_s: float = 20) -> None:
    """Ends a server of :func:`parts.start` and the processes that it started, which share its group."""
    parts.stop(process, patience_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def postgres(host: str = "127.0.0.1") -> Iterator[str]:
    """Starts PostgreSQL with an empty database ``mlflow``. Yields its address, as MLflow takes it; with a
    password, which PostgreSQL asks for. The address names the driver: SQLAlchemy 2.1 prefers another one."""
    if host_programs() is None:
        parts.part_missing("not installed: postgresql (make apt-test)")
    with parts.part_folder("pg") as folder:
        (port,) = free_ports(1)
        give_away(folder)
        server = Postgres(folder, host, port)
        server.initialize()
        password = secrets.token_hex(16)
        (folder / "data/pg_hba.conf").write_text(
            "local all postgres trust\nhost all all 0.0.0.0/0 scram-sha-256\n"
        )
        with server.running():
            server.sql(f"CREATE ROLE mlflow LOGIN PASSWORD '{password}'", "postgres")
            server.sql("CREATE DATABASE mlflow OWNER mlflow", "postgres")
            yield f"postgresql+psycopg2://mlflow:{password}@{host}:{port}/mlflow"


@contextlib.contextmanager
def object_store(host: str = "127.0.0.1") -> Iterator[Server]:
    """Starts an S3 store with one bucket, :data:`BUCKET`; ``env`` has its address and keys.

    The server is moto's, which keeps objects in memory and checks no signature. MinIO's images have left the
    public registries and Garage, SeaweedFS and versitygw are in neither Debian nor PyPI, so none of them can
    be had from the same places as the other parts.
    """
    (port,) = free_ports(1)
    url = f"http://{host}:{port}"
    env = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "GKtests",
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
        "AWS_DEFAULT_REGION": "us-east-1",
        "MLFLOW_S3_ENDPOINT_URL": url,
    }
    with parts.part_folder("s3") as folder:
        command = [_program("moto_server"), "-H", host, "-p", str(port)]
        with _server("moto_server", command, url, "/moto-api/", folder, env) as server:
            make = httpx.put(f"{url}/{BUCKET}", headers=_unsigned(env), timeout=120, trust_env=False)
            make.raise_for_status()
            yield server


def _unsigned(env: Mapping[str, str]) -> dict[str, str]:
    """A header that names a key; moto reads the region from it and checks nothing."""
    scope = f"{env['AWS_ACCESS_KEY_ID']}/20260101/us-east-1/s3/aws4_request"
    return {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"}


def objects(store: Server, prefix: str = "") -> list[str]:
    """The keys of the objects in :data:`BUCKET`, by boto3."""
    program = """
        import boto3, sys
        bucket, prefix = sys.argv[1:]
        pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        print("\\n".join(o["Key"] for page in pages for o in page.get("Contents", [])))
    """
    return python(program, BUCKET, prefix, **store.env).split()


def python(program: str, *arguments: str, **env: str) -> str:
    """Runs a Python program with the packages of the servers. Returns what it prints; fails the test when it
    fails."""
    done = subprocess.run(
        [_program("python"), "-c", textwrap.dedent(program), *arguments],
        env=parts.clean_environment(HOME=tempfile.gettempdir(), **QUIET, **env),
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise AssertionError(f"the program ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def mlflow_server(
    backend_uri: str = "",
    artifact_uri: str = "",
    env: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
) -> Iterator[Server]:
    """Starts a tracking server.

    Args:
        backend_uri: the database; an SQLite file when it is empty.
        artifact_uri: where the server keeps artifacts, such as ``s3://builder/mlflow``; a folder when empty.
        env: variables of the server, such as those of the object store.
        host: the address at which it listens.
    """
    (port,) = free_ports(1)
    with parts.part_folder("mlflow") as folder:
        settings = {
            "MLFLOW_BACKEND_STORE_URI": backend_uri or f"sqlite:///{folder}/mlflow.db",
            "MLFLOW_ARTIFACTS_DESTINATION": artifact_uri or f"{folder}/artifacts",
            "MLFLOW_SERVER_ALLOWED_HOSTS": f"{host}:*,localhost:*,127.0.0.1:*",
            **(env or {}),
        }
        command: list[str | Path] = [_program("mlflow"), "server", "--host", host, "--port", str(port)]
        command += ["--workers", "1"]
        with _server("mlflow", command, f"http://{host}:{port}", "/health", folder, settings) as server:
            server.env["MLFLOW_TRACKING_URI"] = server.url
            yield server


@contextlib.contextmanager
def prometheus(config: str) -> Iterator[Server]:
    """Starts Debian's Prometheus with the text of its configuration file."""
    (program,) = parts.need("prometheus")
    (port,) = free_ports(1)
    with parts.part_folder("prom") as folder:
        (folder / "prometheus.yml").write_text(config)
        command: list[str | Path] = [program, f"--config.file={folder}/prometheus.yml"]
        command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
        with _server("prometheus", command, f"http://127.0.0.1:{port}", "/-/ready", folder, {}) as server:
            yield server


@dataclass
class RayCluster:
    """A Ray cluster on this machine: a head without CPUs, and workers, each a node of its own.

    ``env`` has what clients need, the token too; ``metrics`` the ports at which the nodes serve Prometheus.
    """

    url: str
    address: str
    token: str
    env: dict[str, str]
    folder: Path
    metrics: list[int]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def ray(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs the ``ray`` command line as a user of the cluster."""
        env = parts.clean_environment(HOME=self.folder, **QUIET, **self.env)
        done = subprocess.run(
            [_program("ray"), *arguments], env=env, capture_output=True, text=True, timeout=300
        )
        if check and done.returncode:
            raise AssertionError(f"ray {' '.join(arguments)}:\n{done.stdout}{done.stderr}")
        return done

    def start_node(self, name: str, *options: str, **env: str) -> None:
        """Starts ``ray start`` with these options and variables as node ``name``, and waits until it runs.

        Nodes start one after the other: two that start at one address take each other's raylet for their own.
        Ray gives a node 30 s to register, a fixed number that a busy machine exceeds: it then starts again.
        """
        log = self.folder / f"{name}.log"
        full = parts.clean_environment(HOME=self.folder, **QUIET, **self.env, **env)
        for _ in range(6):
            (port,) = free_ports(1)
            command: list[str | Path] = [_program("ray"), "start", "--block", "--disable-usage-stats"]
            command += ["--node-ip-address=127.0.0.1", f"--metrics-export-port={port}"]
            log.unlink(missing_ok=True)
            process = self.processes[name] = parts.start([*command, *options], log, full)
            while process.poll() is None:
                if "Ray runtime started" in log.read_text(errors="replace"):
                    self.metrics.append(port)
                    return
                time.sleep(0.1)
            end_group(process)
        raise AssertionError(f"{name} does not start:\n{log.read_text(errors='replace')[-2000:]}")

    def kill(self, name: str) -> None:
        """Kills a node and all its processes at once, as a machine that loses power."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def nodes(self) -> int:
        """How many nodes are alive, by the dashboard; 0 while it does not answer."""
        with contextlib.suppress(httpx.HTTPError, KeyError, TypeError):
            header = {"Authorization": f"Bearer {self.token}"}
            url = f"{self.url}/nodes?view=summary"
            answer = httpx.get(url, headers=header, timeout=10, trust_env=False).json()
            return sum(n["raylet"].get("state") == "ALIVE" for n in answer["data"]["summary"])
        return 0


@contextlib.contextmanager
def ray_cluster(
    workers: int = 2, cpus: int = 1, env: Mapping[str, str] | None = None
) -> Iterator[RayCluster]:
    """Starts a Ray cluster with a token: a head that takes jobs, and ``workers`` nodes with ``cpus`` each.

    Args:
        workers: how many worker nodes.
        cpus: logical CPUs of each.
        env: variables of all nodes, such as those of the object store and the tracking server.
    """
    services_venv()
    port, dashboard, client, agent = free_ports(4)
    # Ray's sockets have long names: a folder with a short path
    with parts.part_folder("ray") as folder:
        token = secrets.token_hex(32)
        address, url = f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}"
        own = {
            **(env or {}),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_API_SERVER_ADDRESS": url,
            "RAY_JOB_START_TIMEOUT_SECONDS": "604800",
            "RAY_GRAFANA_HOST": "DISABLED",
        }
        cluster = RayCluster(url, address, token, own, folder, [])
        try:
            cluster.start_node(
                "head",
                "--head",
                f"--port={port}",
                "--dashboard-host=127.0.0.1",
                f"--dashboard-port={dashboard}",
                f"--ray-client-server-port={client}",
                f"--dashboard-agent-listen-port={agent}",
                f"--temp-dir={folder}/t",
                "--num-cpus=0",
                "--num-gpus=0",
            )
            head, log = cluster.processes["head"], folder / "head.log"
            parts.wait_for(lambda: cluster.nodes() == 1, head, log, "the Ray head", READY_S)
            for number in range(workers):
                start_worker(cluster, number, cpus)
            parts.wait_for(lambda: cluster.nodes() == workers + 1, head, log, "the Ray cluster", READY_S)
            yield cluster
        finally:
            for process in reversed(cluster.processes.values()):
                end_group(process)


def start_worker(cluster: RayCluster, number: int, cpus: int = 1) -> None:
    """Starts worker ``worker-NUMBER``, also again after it was killed."""
    (agent,) = free_ports(1)
    options = (f"--address={cluster.address}", f"--num-cpus={cpus}", "--num-gpus=0")
    cluster.start_node(f"worker-{number}", *options, f"--dashboard-agent-listen-port={agent}")


if __name__ == "__main__":
    print(install_services(Path(sys.argv[1]).absolute()))
