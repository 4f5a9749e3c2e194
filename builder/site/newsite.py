"""Writes a commented site file, and a target for it (``builder init-site``)."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

from builder.config.inside import own_path
from builder.config.recipe import GpuVendor
from builder.config.site import RuntimeKind
from builder.config.sitefile import read_site
from builder.config.sites import NAME_HINT, all_site_files, is_site_name
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
    "nvidia": "  - pytorch\n  - pytorch =*=cuda*\n  - cuda-version=12.9\n",
    "none": "  - pytorch =*=cpu*\n",
    "amd": "",
}
_ROCM = """\
  - pip:
      - --extra-index-url https://download.pytorch.org/whl/rocm6.4
      - torch==2.9.1+rocm6.4
"""


def new_site(
    root: Path, name: str, runtime: RuntimeKind, gpu: GpuVendor, today: date | None = None
) -> list[Path]:
    """Writes ``sites/NAME.yaml``, and target NAME with its environment unless the project has it.

    Args:
        root: the project folder; missing folders are created.
        name: the new site.
        runtime: the site's container runtime.
        gpu: the vendor of the site's GPUs.
        today: the date for ``conda.exclude_newer``; None: the current date (UTC).

    Returns:
        The written files: the site file first.

    Raises:
        UsageError: the name is not valid, or a site of that name exists.
    """
    _check_name(name, root)
    today = today or datetime.now(UTC).date()
    sif = runtime in ("singularity", "apptainer")
    files = {
        root / "sites" / f"{name}.yaml": _text("site", name=name, runtime=runtime, gpu=gpu, sif=sif),
        own_path(root, "recipes") / f"{name}.yaml": _text("recipe", name=name, today=today.isoformat()),
        own_path(root, "environments") / f"{name}.yml": _environment_text(name, gpu),
    }
    written = [path for path in files if not path.exists()]
    for path in written:
        write_atomic(path, files[path].encode())
    read_site(name, all_site_files(root))
    return written


def _check_name(name: str, root: Path) -> None:
    if not is_site_name(name) or name.startswith("_"):
        raise UsageError(
            f"{name!r} is not a valid name of a site",
            NAME_HINT,
        )
    existing = all_site_files(root).get(name)
    if existing is not None:
        raise UsageError(
            f"site {name} exists already: {existing}",
            f"choose another name, or change some of its keys in a recipe: site: {{name: {name}, ...}}",
        )


def _text(kind: str, **values: object) -> str:
    return templates().get_template(f"{kind}.yaml.j2").render(**values)


def _environment_text(name: str, gpu: GpuVendor) -> str:
    text = _ENVIRONMENT.format(name=name, torch=_TORCH[gpu])
    return text + _ROCM if gpu == "amd" else text
