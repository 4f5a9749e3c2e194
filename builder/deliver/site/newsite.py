"""Writes a commented site file (``builder sites new``)."""

from __future__ import annotations

import re
from pathlib import Path

from builder.core.errors import UsageError
from builder.core.store.files import write_atomic
from builder.lock.config.site import GpuVendor, Runtime, RuntimeKind
from builder.lock.config.sites import all_site_files, read_site

from .render import templates


def new_site(root: Path, name: str, runtime: RuntimeKind, gpu: GpuVendor) -> Path:
    """Write ``sites/NAME.yaml`` and return its path.

    Args:
        root: the project folder; missing folders are created.
        name: the new site.
        runtime: the site's container runtime.
        gpu: the vendor of the site's GPUs.

    Raises:
        UsageError: the name is not valid, or a site of that name exists.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        hint = "use lower-case letters, digits, - and .; start with a letter or a digit"
        raise UsageError(f"{name!r} is not a valid name of a site", hint)
    existing = all_site_files(root).get(name)
    if existing is not None:
        raise UsageError(
            f"site {name} exists already: {existing}",
            "choose another name, or change some of its keys in a recipe: "
            f"site: {{name: {name}, ...}}",
        )
    path = root / "sites" / f"{name}.yaml"
    (root / "recipes").mkdir(parents=True, exist_ok=True)  # the folder is a project then
    template, family = templates().get_template("site.yaml.j2"), Runtime(kind=runtime).family
    sif, by_srun = family == "sif", family == "plugin"
    text = template.render(name=name, runtime=runtime, gpu=gpu, sif=sif, by_srun=by_srun)
    write_atomic(path, text.encode())
    read_site(name, all_site_files(root))
    return path
