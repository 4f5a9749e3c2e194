"""A new site's recipe, to be filled in."""

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
# What target {name} holds.
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
    """Writes ``recipes/NAME.yaml``, and ``environments/NAME.yml`` unless there is one; gives what was written.

    Raises:
        UsageError: the name cannot be a target's, or is taken.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise UsageError(
            f"{name!r} cannot be a target's name",
            "use small letters, digits, - and ., beginning with one of the first two",
        )
    if name in recipe_files(root):
        raise UsageError(
            f"there is a target {name} already: {recipe_files(root)[name]}",
            "choose another name, or edit that file",
        )
    recipe = root / "recipes" / f"{name}.yaml"
    today = today or datetime.now(UTC).date()
    text = (
        templates()
        .get_template("recipe.yaml.j2")
        .render(
            name=name,
            runtime=runtime,
            gpu=gpu,
            sif=runtime in ("singularity", "apptainer"),
            today=today.isoformat(),
        )
    )
    write_atomic(recipe, text.encode())
    load_recipe(name, root)
    written = [recipe]
    environment = root / "environments" / f"{name}.yml"
    if not environment.exists():
        text = _ENVIRONMENT.format(name=name, torch=_TORCH[gpu]) + (_ROCM if gpu == "amd" else "")
        write_atomic(environment, text.encode())
        written.append(environment)
    return written
