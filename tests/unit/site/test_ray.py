"""Ray jobs: clusters of containers that do not meet each other."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.config.recipe import load_recipe
from builder.errors import UsageError
from builder.site.job import RayJob, RayService
from builder.site.plan import plan_job
from builder.site.render import render
from builder.site.request import JobRequest

ROOT = Path(__file__).parents[3]
#: Records the arguments and the project of each call, as docker with its compose plugin.
DOCKER = '#!/bin/sh\necho "$@" >>"$RECORD"\ncase "$*" in *" port "*) echo 127.0.0.1:40000 ;; esac\necho x\n'


def script(target: str = "chameleon-a100", **request: Any) -> str:
    return render(plan_job(load_recipe(target, ROOT), JobRequest(command=("python", "train.py"), **request)))


def services(text: str) -> dict[str, Any]:
    compose = yaml.safe_load(text.partition("<<'EOF'\n")[2].partition("\nEOF\n")[0])
    return dict(compose["services"])


def test_two_scripts(tmp_path: Path) -> None:
    """Two runs of a script have clusters and tokens of their own, and end only these."""
    docker, record = tmp_path / "docker", tmp_path / "record"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "RECORD": str(record)}
    names = []
    for _ in range(2):
        done = subprocess.run(["bash"], input=script(), env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "dashboard: http://127.0.0.1:40000" in done.stderr
        lines = [line.split() for line in record.read_text().splitlines() if "--project-name" in line]
        record.unlink()
        found = {line[line.index("--project-name") + 1] for line in lines}
        assert len(found) == 1 and lines[-1][-1] == "down"
        names += found
    assert names[0] != names[1] and all(name.startswith("builder-chameleon-a100-") for name in names)


def test_local_image(tmp_path: Path) -> None:
    """A build that Docker does not have is not looked for in a registry; another image is."""
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\ncase "$*" in "image inspect"*) exit 1 ;; esac\n')
    docker.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash"], input=script(), env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "no image builder/chameleon-a100:latest: builder build chameleon-a100 --load\n"
    assert "image inspect" not in script(image="h.example/a:latest")


def test_ports() -> None:
    """The engine chooses the ports of the machine, on loopback only."""
    head, worker = services(script()).values()
    assert head["ports"] == ["127.0.0.1::8265", "127.0.0.1::8080"] and "ports" not in worker
    data = script(data="set.tar")
    assert "builder/data-$BUILDER_JOB_ID" in data


def test_token() -> None:
    """All containers know Ray's token, and the script does not contain it."""
    for service in services(script()).values():
        assert service["environment"]["RAY_AUTH_TOKEN_PATH"] == "/builder/ray-token"
        assert service["environment"]["RAY_AUTH_MODE"] == "token"
        assert "$BUILDER_FOLDER:/builder:ro" in service["volumes"]
    assert "RAY_AUTH_TOKEN:" not in script()


def test_reserved_resources() -> None:
    """With several GPUs the command runs on the head, which survives the end of a worker."""
    assert "--entrypoint-num-gpus 1 --entrypoint-num-cpus 8" in script()
    assert "--entrypoint" not in script(gpus=2)
    found = services(script(gpus=2))
    assert [found[name]["restart"] for name in ("ray-head", "ray-worker-1")] == [
        "on-failure:3",
        "unless-stopped",
    ]


def test_checkpoints() -> None:
    """A folder is found by the script; an address by the training."""
    folder = script(checkpoint="ck")
    worker = services(folder)["ray-worker-0"]
    assert worker["environment"]["BUILDER_RESUME"] == "$BUILDER_RESUME"
    assert "$BUILDER_CHECKPOINT_DIR:$BUILDER_CHECKPOINT_DIR" in worker["volumes"]
    assert 'mkdir -p "$BUILDER_CHECKPOINT_DIR"' in folder
    address = services(script(checkpoint="s3://ray/run"))["ray-worker-0"]["environment"]
    assert address["BUILDER_CHECKPOINT_DIR"] == "s3://ray/run" and "BUILDER_RESUME" not in address
    assert address["AWS_SECRET_ACCESS_KEY"] is None, "the value comes from the shell"


def test_environment_file() -> None:
    """Compose reads the file, so that its values are in no script."""
    for service in services(script(env_file="my.env")).values():
        assert service["env_file"] == ["$PWD/my.env"]


@pytest.mark.parametrize(
    ("request_values", "option"),
    [({"resume_args": "--resume x", "checkpoint": "ck"}, "--resume-args"), ({"warmup": ("x",)}, "--warmup")],
)
def test_refused_options(request_values: dict[str, Any], option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} is not for Ray jobs") as raised:
        script(**request_values)
    assert raised.value.hint == "leave it out, or use --launcher torchrun"


def test_project_name() -> None:
    """The name of a target becomes one that compose allows."""
    service = RayService("ray-head", (), {})
    job = plan_job(load_recipe("chameleon-a100", ROOT), JobRequest(command=("x",)))
    assert isinstance(job, RayJob) and job.project == "builder-chameleon-a100"
    assert RayJob("My.Target", "", 0, "docker", "", service, (), (), (), (), {}, 1, job.files).project == (
        "builder-my-target"
    )
