"""Writes a commented recipe for a new site (``builder init-site``)."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path

from builder.config.recipe import GpuVendor, load_recipe, recipe_files
from builder.config.site import RuntimeKind
from builder.errors import UsageError
from builder.site.render import templates
from builder.store.files import write_atomic

_ENVIRONMENT = """\
# Packages of target {name}.
name: {name}
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python=3.11
  - numpy
{torch}  - pip
"""
_TORCH = {
    "nvidia": "  - pytorch\n  - pytorch =*=cuda*\n  - cuda-version=12.4\n",
    "none": "  - pytorch =*=cpu*\n",
    "amd": "",
}
_ROCM = """\
  - pip:
      - --extra-index-url https://download.pytorch.org/whl/rocm6.3
      - torch==2.7.1+rocm6.3
"""


def new_site(
    root: Path, name: str, runtime: RuntimeKind, gpu: GpuVendor, today: date | None = None
) -> list[Path]:
    """Writes ``recipes/NAME.yaml``, and ``environments/NAME.yml`` if it does not exist.

    Args:
        root: the project folder.
        name: the new target.
        runtime: the site's container runtime.
        gpu: the vendor of the site's GPUs.
        today: the date for ``conda.exclude_newer``; None: the current date (UTC).

    Returns:
        The written files.

    Raises:
        UsageError: the name is not valid, or a target of that name exists.
    """
    _check_name(name, root)
    today = today or datetime.now(UTC).date()
    recipe = root / "recipes" / f"{name}.yaml"
    write_atomic(recipe, _recipe_text(name, runtime, gpu, today).encode())
    load_recipe(name, root)

    environment = root / "environments" / f"{name}.yml"
    if environment.exists():
        return [recipe]
    write_atomic(environment, _environment_text(name, gpu).encode())
    return [recipe, environment]


def _check_name(name: str, root: Path) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise UsageError(
            f"{name!r} is not a valid target name",
            "use lower-case letters, digits, - and .; start with a letter or a digit",
        )
    existing = recipe_files(root)
    if name in existing:
        raise UsageError(
            f"target {name} exists already: {existing[name]}", "choose another name, or edit that file"
        )


def _recipe_text(name: str, runtime: RuntimeKind, gpu: GpuVendor, today: date) -> str:
    template = templates().get_template("recipe.yaml.j2")
    sif = runtime in ("singularity", "apptainer")
    return template.render(name=name, runtime=runtime, gpu=gpu, sif=sif, today=today.isoformat())


def _environment_text(name: str, gpu: GpuVendor) -> str:
    text = _ENVIRONMENT.format(name=name, torch=_TORCH[gpu])
    return text + _ROCM if gpu == "amd" else text
