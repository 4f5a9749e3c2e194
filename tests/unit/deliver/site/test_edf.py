"""The runtime ``edf``: the files for ``srun --environment``, and the scripts that use them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.core.errors import ConfigError
from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.deliver.site.shell import ShellText
from builder.deliver.site.srun import toml
from builder.lock.config.recipe import Recipe, load_recipe

SITE: dict[str, Any] = {
    "title": "Engine",
    "images": "$SCRATCH/ce-images",
    "runtime": {
        "kind": "edf",
        "binds": ["/store", "/data:/input:ro"],
        "env": {"CACHE": "$SCRATCH/cache", "PRICE": "5 $$"},
        "annotations": {"com.hooks.nccl.enabled": "true", "odd key": 'a "b" \\ $c'},
    },
    "node": {"gpus": 4, "cores": 16},
    "slurm": {"account": "none", "salloc_on_node": False, "queues": {"node": {}, "gpu": {}}},
}


def make_recipe(folder: Path, format: str = "oci", **site: Any) -> Recipe:
    """A target ``engine`` of a site with the Container Engine. ``site`` replaces keys of the site."""
    values = {
        "format": format,
        "base": "docker://debian:bookworm-slim",
        "environment": "environment.yml",
        "gpu": {"vendor": "nvidia", "architectures": ["sm_90"]},
        "registry": {"host": "ghcr.io", "repository": "me/engine"},
        "cmd": ["python", "-V"],
        "site": SITE | site,
    }
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes/engine.yaml").write_text(yaml.safe_dump(values))
    return load_recipe("engine", folder)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return make_recipe(tmp_path)


def job_script(recipe: Recipe, *command: str, **request: Any) -> str:
    return render(plan_job(recipe, JobRequest(command=command, **request)))


def written(script: str) -> dict[str, Any]:
    """The file that a script writes."""
    found = re.search(r"<<'EOF'\n(.*?)\nEOF\n", script, re.DOTALL)
    assert found
    return tomllib.loads(found[1])


# files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ['a "b"', "back\\slash", "tab\t, new\nline", "del\x7f", "ü 🦀", "'", "#", "\x01"]
)
def test_strings(text: str) -> None:
    """A literal text arrives unchanged."""
    assert tomllib.loads(f"a = {toml(text)}") == {"a": text}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$HOME/x", "$$HOME/x"),
        (ShellText("$HOME/x"), "${HOME}/x"),
        (ShellText('${A}b "c" 5 $$ \\'), '${A}b "c" 5 $$ \\'),
    ],
)
def test_variables(text: str, expected: str) -> None:
    """The Container Engine fills in ${NAME}; it reads $$ as a dollar sign."""
    assert tomllib.loads(f"a = {toml(text)}") == {"a": expected}


# jobs -------------------------------------------------------------------------------------------------------


def test_job(recipe: Recipe) -> None:
    """The script writes the file; values that differ between processes precede the command."""
    script = job_script(recipe, "python", "t.py", env={"MINE": "a 'b' $c", "CACHE": "/c"}, gpus=4)
    assert written(script) == {
        "image": "${BUILDER_IMAGE}",
        "workdir": "${SLURM_SUBMIT_DIR}",
        "entrypoint": False,
        "writable": True,
        "mounts": ["/store:/store", "/data:/input:ro", "${SLURM_SUBMIT_DIR}:${SLURM_SUBMIT_DIR}"],
        "env": {
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            "PRICE": "5 $$",
        },
        "annotations": {"com": {"hooks": {"nccl": {"enabled": "true"}}}, "odd key": 'a "b" \\ $$c'},
    }
    assert 'BUILDER_IMAGE="$SCRATCH/ce-images/engine.sqsh"' in script
    assert re.search(r'exec env .*"RANK=\$SLURM_PROCID"', script, re.DOTALL) and "CACHE=/c" in script
    assert 'container=("--environment=$BUILDER_EDF")\n' in script
    assert '"${container[@]}" bash -c "$(declare -f task); task"' in script
    assert "export -f task" not in script, "a function in the environment may not reach the container"


def test_image(recipe: Recipe) -> None:
    """An image of a registry is no file on the site."""
    script = job_script(recipe, "true", image="docker://ghcr.io/me/x:1")
    assert "BUILDER_IMAGE='ghcr.io#me/x:1'" in script and "-r $BUILDER_IMAGE" not in script
    digest = "@sha256:" + "0" * 64
    assert f"BUILDER_IMAGE='ghcr.io#me/x{digest}'" in job_script(
        recipe, "true", image=f"ghcr.io/me/x{digest}"
    )
    assert 'BUILDER_IMAGE="$SLURM_SUBMIT_DIR/x.sqsh"' in job_script(recipe, "true", image="x.sqsh")


# site files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("program", "srun"),
        ("options", ["--x"]),
        ("gpu", ["--nv"]),
        ("ranks", ["--x"]),
    ],
)
def test_useless_keys(tmp_path: Path, key: str, value: object) -> None:
    """Keys of a command line are refused by name."""
    with pytest.raises(ConfigError, match=rf"engine.yaml:\d+: .*runtime.*{key} does not apply"):
        make_recipe(tmp_path, runtime={"kind": "edf", key: value})


def test_useless_parts(tmp_path: Path) -> None:
    """A site with edf has Slurm and OCI images."""
    with pytest.raises(ConfigError, match="edf needs 'slurm:'"):
        make_recipe(tmp_path, slurm=None)
    with pytest.raises(ConfigError, match="made of an OCI image; write 'oci'"):
        make_recipe(tmp_path, format="sif")
