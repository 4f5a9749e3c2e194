"""The projects in ``examples/``: their recipes resolve, and the files of the servers fit together."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.lock.config.recipe import load_recipe, recipe_files

EXAMPLES = Path(__file__).parents[2] / "examples"
ARCHER2, CHAMELEON = EXAMPLES / "archer2", EXAMPLES / "chameleon"


@pytest.mark.parametrize("name", sorted(recipe_files(ARCHER2)))
def test_archer2(name: str) -> None:
    """Each recipe has its packages, and a job with the host's MPI or GPUs."""
    recipe = load_recipe(name, ARCHER2)
    environment = yaml.safe_load((ARCHER2 / recipe.environment).read_text())
    assert environment["dependencies"] and recipe.site.title
    script = render(plan_job(recipe, JobRequest(command=("python", "t.py"), account="z19", nodes=2)))
    assert "#SBATCH --nodes=2" in script
    assert ("--rocm" if recipe.gpu.vendor == "amd" else "module load cray-mpich-abi") in script


def test_synapse() -> None:
    recipes = {name: load_recipe(name, EXAMPLES / "synapse") for name in ("synapse-ml", "synapse-gui")}
    assert {name: recipe.group for name, recipe in recipes.items()} == {
        "synapse-ml": ("ml",),
        "synapse-gui": ("gui",),
    }


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("conda-pip", ["digits"]),
        ("torch-slurm", ["cluster", "laptop"]),
        ("c-extension", ["fastsum"]),
    ],
)
def test_to_copy(name: str, targets: list[str]) -> None:
    """Their recipes name what is there or, for ``uv.lock``, what the page makes; a walk builds each."""
    folder = EXAMPLES / name
    recipes = [load_recipe(target, folder) for target in sorted(recipe_files(folder))]
    assert [recipe.name for recipe in recipes] == targets
    for recipe in recipes:
        needed = [recipe.environment, *(entry.source for entry in recipe.files)]
        assert [file for file in needed if file and not (folder / file).exists()] == []
    assert f"examples/{name} " in (EXAMPLES.parent / f"tests/walks/gallery/{name}.sh").read_text()


def test_chameleon() -> None:
    """The compose file mounts what is there or what secrets.sh makes; its ports are on loopback."""
    compose = yaml.safe_load((CHAMELEON / "compose.yaml").read_text())
    made = (CHAMELEON / "secrets.sh").read_text()
    for name, service in compose["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        files = [volume.split(":")[0] for volume in service.get("volumes", ()) if volume.startswith("./")]
        for file in [*files, *service.get("env_file", ())]:
            assert (CHAMELEON / file).exists() or f'"$made/{Path(file).name}"' in made, file
    assert load_recipe("servers", CHAMELEON).base_packages == ("postgresql", "prometheus")


def test_secrets(tmp_path: Path) -> None:
    """Random, made once, and for the user only."""
    script = shutil.copy(CHAMELEON / "secrets.sh", tmp_path)
    for _ in range(2):
        subprocess.run([script], check=True, capture_output=True)
    files = {path.name: path for path in (tmp_path / "secrets").iterdir()}
    assert set(files) == {"ray-token", "pgpass", "aws", "garage.env", "garage.toml"}
    assert all(path.stat().st_mode & 0o077 == 0 and path.read_text() for path in files.values())
    assert len(files["ray-token"].read_text()) == 64
