"""The compose file: what runs, where it listens, and that it holds no secret."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.cli import cli, run
from builder.config.recipe import load_recipe
from builder.services.compose import compose_file, named_volumes
from builder.services.plan import UpOptions, planned
from builder.services.state import State

NOTHING = UpOptions("", "", "", None, None, (), (), (), (), "", "", "builder", "us-east-1")


def composed(project: Path, target: str, options: UpOptions = NOTHING) -> dict[str, Any]:
    recipe = load_recipe(target, project)
    stack = planned(recipe, options, "services", None)
    found: dict[str, Any] = yaml.safe_load(compose_file(stack, recipe, State.of("services", None)))
    return found


def test_services(project: Path) -> None:
    """Everything restarts, listens on loopback only, and has a name of its own."""
    file = composed(project, "trained")
    services = file["services"]
    assert list(services) == ["postgres", "s3", "mlflow", "ray-head", "ray-worker-0", "prometheus"]
    for name, service in services.items():
        assert service["restart"] == "unless-stopped"
        assert service["container_name"].endswith(f"-{name}")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert "ports" not in services["postgres"]
    assert sorted(file["volumes"]) == ["postgres", "prometheus", "s3-data", "s3-meta"]


def test_mlflow(project: Path) -> None:
    """MLflow answers to the names of the compose network, and its address names the driver."""
    env = composed(project, "trained")["services"]["mlflow"]["environment"]
    assert env["MLFLOW_SERVER_ALLOWED_HOSTS"] == "mlflow:*,localhost:*,127.0.0.1:*"
    assert env["MLFLOW_BACKEND_STORE_URI"] == "postgresql+psycopg2://mlflow@postgres/mlflow"
    assert env["MLFLOW_ARTIFACTS_DESTINATION"] == "s3://builder/mlflow"


def test_ray(project: Path) -> None:
    """A worker per GPU, with a token; the head has no resources, and jobs may wait for a week."""
    services = composed(project, "a100")["services"]
    head, workers = services["ray-head"], [services[f"ray-worker-{index}"] for index in range(2)]
    assert {"--num-cpus=0", "--num-gpus=0"} <= set(head["command"])
    assert head["environment"]["RAY_JOB_START_TIMEOUT_SECONDS"] == "604800"
    for index, worker in enumerate(workers):
        assert {"--num-gpus=1", "--num-cpus=32"} <= set(worker["command"])
        (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"] == [str(index)]
        assert worker["shm_size"] == "12g"
    for service in (head, *workers):
        assert service["environment"]["RAY_AUTH_MODE"] == "token"
        assert service["environment"]["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray-token"


def test_amd_devices(project: Path) -> None:
    (project / "recipes/mi100.yaml").write_text("extends: _base\nsite: chameleon-mi100\n")
    workers = composed(project, "mi100")["services"]
    assert "/dev/dri/renderD129" in workers["ray-worker-1"]["devices"]


def test_volumes(project: Path) -> None:
    """A name is a volume of docker, which exists outside of the stack; a dollar sign stays one."""
    options = UpOptions(
        "", "", "", None, None, (), ("food11:/mnt", "./a$b$$:/data:ro"), (), (), "", "", "", ""
    )
    file = composed(project, "trained", options)
    assert file["volumes"]["food11"] == {"external": True}
    assert "food11:/mnt" in file["services"]["ray-worker-0"]["volumes"]
    assert named_volumes(["food11:/mnt", "/a:/b"]) == ["food11"]


def test_external_store(project: Path, tmp_path: Path) -> None:
    """A store that is there already takes the place of the stack's own."""
    keys = tmp_path / "keys"
    keys.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = geheim\n")
    keys.chmod(0o600)
    url = "https://chi.tacc.chameleoncloud.org:7480"
    options = replace(NOTHING, s3=f"{url}/", s3_keys=str(keys), s3_bucket="mine")
    services = composed(project, "trained", options)["services"]
    assert "s3" not in services
    assert services["mlflow"]["environment"]["MLFLOW_S3_ENDPOINT_URL"] == url
    assert services["mlflow"]["environment"]["MLFLOW_ARTIFACTS_DESTINATION"] == "s3://mine/mlflow"
    assert f"{keys}:/run/secrets/aws:ro" in services["ray-worker-0"]["volumes"]


def test_print_and_output(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--print`` writes nothing; ``--output`` writes the files, with the secrets beside the compose file."""
    assert run(cli, ["services", "up", "trained", "--print"]) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["services"]["mlflow"] and not (tmp_path / "state").exists()
    folder = tmp_path / "written"
    assert run(cli, ["services", "up", "trained", "--output", str(folder)]) == 0
    text = (folder / "compose.yaml").read_text()
    for name in ("ray-token", "pgpass", "aws", "garage.env", "garage.toml"):
        path = folder / name
        assert path.stat().st_mode & 0o777 == 0o600, name
        found = re.findall(r"[0-9a-f]{24,}", path.read_text())
        assert found and not [secret for secret in found if secret in text]
    assert str(folder / "pgpass") in text


def test_new_image(project: Path) -> None:
    """A new image with the old name changes the compose file. Python reads the image's compiled modules."""
    recipe, state = load_recipe("trained", project), State.of("services", None)
    stack = replace(planned(recipe, NOTHING, "services", None), image_id="sha256:1", servers_id="sha256:2")
    text = compose_file(stack, recipe, state)
    ids = {
        name: service["labels"]["org.builder.image-id"]
        for name, service in yaml.safe_load(text)["services"].items()
        if "labels" in service
    }
    cluster, servers = ["ray-head", "ray-worker-0"], ["postgres", "mlflow", "prometheus"]
    assert ids == {**dict.fromkeys(cluster, "sha256:1"), **dict.fromkeys(servers, "sha256:2")}
    assert "PYTHONPYCACHEPREFIX" not in text and "bytecode" not in text
