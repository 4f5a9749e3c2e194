"""What ``builder run`` does on this machine: the folder that it binds, and runs without a site's
runtime.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.oci.reference import is_digest

if TYPE_CHECKING:
    from builder.cli.context import Context
    from builder.config.recipe import GpuVendor, Recipe
    from builder.run.base import Mount, RunOptions
    from builder.site.containers import ContainerRequest

#: Folders of an image that a bound folder would hide.
_SYSTEM = (
    "/",
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/opt",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
)


def bind_folder(
    request: ContainerRequest, root: Path, prefix: str = "/opt/conda", own: str | None = None
) -> ContainerRequest:
    """Return the request with the project folder bound at its own path, as the folder in which the
    command starts.

    So an edited file is seen at once, and what the command writes stays. A bind mount or
    ``--workdir`` of the request takes precedence.

    Args:
        request: what to run.
        root: the project folder.
        prefix: the environment's folder in the image, which must not be hidden.
        own: where the image's own command starts: a folder below ``root``; None: where the image
            says.
    """
    from builder.site.arguments import read_bind

    folder = str(root.resolve())
    hides = folder in _SYSTEM or f"{prefix}/".startswith(f"{folder}/")
    if hides or set(folder) & set(':,\\"\n'):
        return request
    targets = [str(read_bind(bind).target) for bind in request.binds]
    binds = request.binds if folder in targets else (f"{folder}:{folder}", *request.binds)
    if request.command:
        here = str(Path.cwd().resolve())
        own = here if Path(here).is_relative_to(folder) else "."
    workdir = request.workdir or (None if own is None else str(Path(folder, own)))
    return replace(request, binds=binds, workdir=workdir)


def bind_here(context: Context, request: ContainerRequest) -> ContainerRequest:
    """Return the request with the current folder bound, for an image that others may have made.

    The home folder and those above it are not bound.
    """
    folder = Path.cwd().resolve()
    if is_home(folder):
        context.output.note(
            "the home folder is not mounted: start in a folder of the project, or --bind"
        )
        return request
    return bind_folder(request, folder)


def is_home(folder: Path) -> bool:
    """Return whether a folder is the home folder or above it."""
    home = os.environ.get("HOME")
    return bool(home) and Path(str(home)).resolve().is_relative_to(folder)


def run_userns(context: Context, recipe: Recipe, request: ContainerRequest) -> int:
    """Run a command in the target's image without a container engine; returns its exit code.

    For the image see :func:`builder.cli.run_image.own_image`.
    """
    from builder.cli.run_image import own_image
    from builder.run.userns import UsernsRunner

    options = _options(
        request, recipe.gpu.vendor
    )  # a wrong bind is reported before anything is built
    wanted = request.image if is_digest(request.image) else ""
    artifact, origin = own_image(context, recipe, wanted, may_build=request.may_build)
    context.output.note(f"running {recipe.name}{where(request)}: {origin}")
    runner = UsernsRunner(context.settings, context.project.store, context.output)
    return runner.run(artifact, request.command, options).returncode


def run_reference(context: Context, reference: str, request: ContainerRequest) -> int:
    """Pull an image by its name into the cache, and runs a command in it; returns its exit code.

    The first runner that works runs it.
    """
    from builder.model import SifImage
    from builder.publishing.pull import pull_reference
    from builder.run.select import ENGINE_NAMES, find_runner
    from builder.store.blobs import Store

    store, vendor = Store(context.settings.cache), _vendor(request)
    options = _options(request, vendor)  # a wrong bind is reported before anything is downloaded
    pulled = pull_reference(reference, context.settings, store, reporter=context.output)
    unfit = ENGINE_NAMES if isinstance(pulled.artifact, SifImage) else ()
    runner = find_runner(context.settings, store, None, context.output, gpu=vendor, without=unfit)
    context.output.note(
        f"running {pulled.reference}{where(request)}: {pulled.digest[:19]}, with {runner.name}"
    )
    return runner.run(pulled.artifact, request.command, options).returncode


def _vendor(request: ContainerRequest) -> GpuVendor:
    """Return the vendor of this host's GPUs, if the request wants any."""
    from builder.run.gpu import gpu_devices

    vendors: tuple[GpuVendor, ...] = () if request.gpus == 0 else ("nvidia", "amd")
    return next((vendor for vendor in vendors if gpu_devices(vendor)), "none")


def _options(request: ContainerRequest, gpu: GpuVendor) -> RunOptions:
    """Return the runner's options. Variables without a value get this process's own, if it has
    them.

    Raises:
        UsageError: a bind mount is not valid.
    """
    from builder.run.base import RunOptions
    from builder.site.arguments import read_env_file
    from builder.site.shell import expand

    of_file = read_env_file(Path(expand(request.env_file, os.environ))) if request.env_file else {}
    values = of_file | {
        name: os.environ.get(name) if v is None else v for name, v in request.env.items()
    }
    return RunOptions(
        env={name: value for name, value in values.items() if value is not None},
        mounts=[_mount(expand(bind, os.environ)) for bind in request.binds],
        workdir=request.workdir,
        gpu=gpu,
        network="host",
        keep_root=bool(request.binds),  # the user's own files
        capture=False,
    )


def _mount(bind: str) -> Mount:
    from builder.run.base import Mount
    from builder.site.arguments import read_bind, require_source

    mount = read_bind(bind)
    require_source(mount)
    return Mount(Path(mount.source), mount.target, readonly=mount.mode == "ro")


def where(request: ContainerRequest) -> str:
    """Return the folder in which the command starts, for a note, and whether what it writes there
    stays.
    """
    from builder.site.arguments import read_bind

    folder = request.workdir
    if folder is None:
        return " in the folder of the image, where changes are lost"
    is_bound = any(Path(folder).is_relative_to(read_bind(bind).target) for bind in request.binds)
    is_readonly = is_bound and Path(folder).exists() and not os.access(folder, os.W_OK)
    return f" in {folder}{', which you cannot write to' if is_readonly else ''}"
