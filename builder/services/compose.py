"""The compose file of the servers, for docker compose version 2 and docker-compose 1.29 alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from builder.config.recipe import Recipe
from builder.config.site import Ray
from builder.services.state import REGION, Stack, State
from builder.site.arguments import is_volume, read_bind
from builder.site.containers import fill_gpu_index
from builder.site.shell import ShellText

#: The S3 store: its public images are named by release. MinIO's are gone from Docker Hub, and unmaintained.
GARAGE_IMAGE = "docker.io/dxflrs/garage:v2.4.1"
_HEADER = """\
# {title}: the servers of builder services ({project}).
# Written by builder services up. Passwords are in files beside this one, not in it.
"""
_SECRETS = "/run/secrets"
#: The id of a container's image. podman-compose replaces a container only if the compose file differs, so
#: without this label it would not notice a new image with the old name.
_IMAGE_LABEL = "org.builder.image-id"
_HEAD = "ray-head"
_RAY_PORT = 6379
#: Seconds that a submitted job may wait for its resources: a week, the longest lease of Chameleon. Ray gives
#: up after 15 minutes.
_PATIENCE_S = 604800


def compose_file(stack: Stack, recipe: Recipe, state: State) -> str:
    """Returns the text of the compose file.

    Args:
        stack: the servers.
        recipe: the target whose image the Ray cluster runs.
        state: the folder with secrets and configuration files.
    """
    services = {"postgres": _postgres(stack, state)}
    if stack.s3 is None:
        services["s3"] = _garage(stack, state)
    services["mlflow"] = _mlflow(stack, state)
    services |= _ray(stack, recipe, state)
    services["prometheus"] = _prometheus(stack, state)
    ids = {stack.image: stack.image_id, stack.servers_image: stack.servers_id}
    for name, service in services.items():
        service["container_name"] = stack.container(name)
        service["restart"] = "unless-stopped"
        if image_id := ids.get(service["image"]):
            service["labels"] = {_IMAGE_LABEL: image_id}
    volumes: dict[str, Any] = {"postgres": {}, "prometheus": {}}
    if stack.s3 is None:
        volumes |= {"s3-meta": {}, "s3-data": {}}
    volumes |= {name: {"external": True} for name in named_volumes(stack.binds)}
    header = _HEADER.format(title=recipe.site_title, project=stack.project)
    return header + yaml.safe_dump(
        _plain({"services": services, "volumes": volumes}), sort_keys=False, width=100, allow_unicode=True
    )


def named_volumes(binds: Sequence[str]) -> list[str]:
    """The volumes among the binds."""
    found = [read_bind(bind) for bind in binds]
    return list(dict.fromkeys(str(bind.source) for bind in found if is_volume(bind)))


def _plain(value: Any) -> Any:
    """The value for YAML. Compose fills in variables, so a literal dollar sign is written twice."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, ShellText):
        return str(value)
    return value.replace("$", "$$") if isinstance(value, str) else value


def _port(stack: Stack, service: str, inside: int) -> list[str]:
    """Published on loopback only: none of the servers has users and TLS."""
    return [f"127.0.0.1:{stack.ports[service]}:{inside}"]


def _healthy(*test: str, every_s: int = 2) -> dict[str, Any]:
    """A health check. A busy machine gets five minutes for the start."""
    return {"test": ["CMD", *test], "interval": f"{every_s}s", "timeout": "10s", "retries": 300 // every_s}


def _postgres(stack: Stack, state: State) -> dict[str, Any]:
    return {
        "image": stack.servers_image,
        "command": ["bash", "/builder/postgres.sh"],
        "volumes": [
            "postgres:/var/lib/builder-postgres",
            f"{state.folder}/postgres.sh:/builder/postgres.sh:ro",
            f"{state.folder}/pgpass:{_SECRETS}/pgpass:ro",
        ],
        "healthcheck": _healthy(
            "bash", "-c", "/usr/lib/postgresql/*/bin/pg_isready -q -h 127.0.0.1 -U mlflow"
        ),
        "stop_signal": "SIGINT",  # ends connections; SIGTERM waits for them
    }


def _garage(stack: Stack, state: State) -> dict[str, Any]:
    return {
        "image": GARAGE_IMAGE,
        "command": ["/garage", "server", "--single-node", "--default-bucket"],
        "environment": {"GARAGE_DEFAULT_BUCKET": stack.bucket, "RUST_LOG": "garage=warn"},
        "env_file": [f"{state.folder}/garage.env"],
        "volumes": [
            f"{state.folder}/garage.toml:/etc/garage.toml:ro",
            "s3-meta:/var/lib/garage/meta",
            "s3-data:/var/lib/garage/data",
        ],
        "ports": _port(stack, "s3", 3900),
    }


def s3_variables(stack: Stack) -> dict[str, str]:
    """The variables by which boto3, MLflow and pyarrow find the S3 store; the keys are in a file."""
    url = stack.s3.url if stack.s3 else "http://s3:3900"
    return {
        "AWS_ENDPOINT_URL": url,
        "MLFLOW_S3_ENDPOINT_URL": url,
        "MLFLOW_BOTO_CLIENT_ADDRESSING_STYLE": "path",
        "AWS_DEFAULT_REGION": stack.s3.region if stack.s3 else REGION,
        "AWS_SHARED_CREDENTIALS_FILE": f"{_SECRETS}/aws",
    }


def _mlflow(stack: Stack, state: State) -> dict[str, Any]:
    hosts = ["mlflow", "localhost", "127.0.0.1", *stack.hosts]
    health = "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=5)"
    return {
        "image": stack.servers_image,
        "command": ["mlflow", "server"],
        "environment": {
            "MLFLOW_HOST": "0.0.0.0",  # noqa: S104  in the container; published on loopback
            "MLFLOW_PORT": "8000",
            "MLFLOW_WORKERS": "2",
            "MLFLOW_BACKEND_STORE_URI": "postgresql+psycopg2://mlflow@postgres/mlflow",
            "PGPASSFILE": f"{_SECRETS}/pgpass",
            "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{stack.bucket}/mlflow",
            "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(f"{host}:*" for host in hosts),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            **s3_variables(stack),
        },
        "volumes": [
            f"{state.folder}/pgpass:{_SECRETS}/pgpass:ro",
            f"{state.keys_file(stack)}:{_SECRETS}/aws:ro",
        ],
        "ports": _port(stack, "mlflow", 8000),
        "healthcheck": _healthy("python", "-c", health, every_s=15),
        "depends_on": {"postgres": {"condition": "service_healthy"}},
    }


def _prometheus(stack: Stack, state: State) -> dict[str, Any]:
    return {
        "image": stack.servers_image,
        "command": [
            "prometheus",
            "--config.file=/etc/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            "--storage.tsdb.retention.time=30d",
            "--web.listen-address=0.0.0.0:9090",
        ],
        "volumes": [f"{state.folder}/prometheus.yml:/etc/prometheus.yml:ro", "prometheus:/prometheus"],
        "ports": _port(stack, "prometheus", 9090),
    }


def _ray(stack: Stack, recipe: Recipe, state: State) -> dict[str, Any]:
    """The head, which runs the submitted commands, and the workers with one GPU each."""
    site = recipe.site
    env = {
        **{name: ShellText(value) for name, value in site.runtime.env.items()},
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": f"{_SECRETS}/ray-token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "MLFLOW_TRACKING_URI": "http://mlflow:8000",
        "GIT_PYTHON_REFRESH": "quiet",  # MLflow's warnings in an image without git
        **s3_variables(stack),
    }
    shared = {
        "image": stack.image,
        "volumes": [
            f"{state.token_file}:{_SECRETS}/ray-token:ro",
            f"{state.keys_file(stack)}:{_SECRETS}/aws:ro",
            *(ShellText(bind) for bind in site.runtime.binds),
            *(ShellText(bind) for bind in stack.binds),
        ],
        "shm_size": site.runtime.shm_size or "2g",
    }
    found = {_HEAD: {**shared, **_head(stack, env)}}
    for index in range(stack.workers):
        own = _worker(stack, site.ray or Ray(), site.runtime.groups, index)
        own["environment"] = {**env, **own["environment"]}
        found[f"ray-worker-{index}"] = {**shared, **own}
    return found


def _head(stack: Stack, env: Mapping[str, str]) -> dict[str, Any]:
    """What is the head's own."""
    return {
        "hostname": _HEAD,
        "command": [
            *("ray", "start", "--head", f"--port={_RAY_PORT}", "--dashboard-host=0.0.0.0"),
            *("--dashboard-port=8265", "--metrics-export-port=8080"),
            *("--num-cpus=0", "--num-gpus=0", "--disable-usage-stats", "--block"),
        ],
        "environment": {
            **env,
            "RAY_API_SERVER_ADDRESS": "http://127.0.0.1:8265",
            "RAY_JOB_START_TIMEOUT_SECONDS": str(_PATIENCE_S),
            "RAY_PROMETHEUS_HOST": "http://prometheus:9090",
            "RAY_GRAFANA_HOST": "DISABLED",
        },
        "ports": _port(stack, "ray", 8265),
        "healthcheck": _healthy("bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{_RAY_PORT}"),
    }


def _worker(stack: Stack, ray: Ray, groups: Sequence[str], index: int) -> dict[str, Any]:
    """What is a worker's own."""
    has_gpu = index < stack.gpus
    service: dict[str, Any] = {
        "hostname": f"ray-worker-{index}",
        "command": [
            *("ray", "start", f"--address={_HEAD}:{_RAY_PORT}", "--metrics-export-port=8080"),
            *(f"--num-cpus={ray.worker_cpus}", f"--num-gpus={int(has_gpu)}"),
            *("--disable-usage-stats", "--block"),
        ],
        "environment": {},
        "depends_on": {_HEAD: {"condition": "service_healthy"}},
    }
    if not has_gpu:
        return service
    service["environment"] = {
        name: ShellText(fill_gpu_index(value, index)) for name, value in ray.worker_env.items()
    }
    if ray.worker_devices:
        service["devices"] = [ShellText(fill_gpu_index(device, index)) for device in ray.worker_devices]
    if groups:
        service["group_add"] = list(groups)
    if ray.nvidia:
        device = {"driver": "nvidia", "device_ids": [str(index)], "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return service
