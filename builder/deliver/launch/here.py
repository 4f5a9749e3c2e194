"""Runs a command in an image on this machine: in that of a target, or in one that a user names."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.build.run.base import Mount, RunOptions
from builder.build.run.gpu import gpu_devices
from builder.build.run.select import find_runner
from builder.build.run.userns import UsernsRunner
from builder.core.errors import UsageError
from builder.core.workspace import Workspace
from builder.deliver.publishing.pull import pull_reference
from builder.deliver.site.arguments import read_bind, read_env_file
from builder.deliver.site.containers import ContainerRequest, Invocation
from builder.deliver.site.job_plan import edf_name
from builder.deliver.site.paths import command_folder
from builder.deliver.site.runtimes.runtime import ContainerRuntime, is_job
from builder.deliver.site.shell import expand
from builder.formats.oci.reference import is_digest
from builder.lock.config.site import GpuVendor, Runtime

from .images import OwnImages, TargetImages
from .scripts import check_script

#: Folders of an image, in its root or the root itself, that a bound folder would hide.
_SYSTEM = ("", "bin", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "usr")


def printed_command(
    images: TargetImages, request: ContainerRequest, image: str = ""
) -> dict[str, Any]:
    """Return the document of ``builder run --print --json``; nothing is loaded or run.

    ``command`` has the words, and ``shell`` the line for a shell of the site, or the lines that
    write the file for ``srun --environment`` and call srun. ``edf`` is that file, if there is one.

    Args:
        images: of the target.
        request: what to run.
        image: the image that the user names; empty: that of the target.

    Raises:
        UsageError: the node has fewer GPUs, or a bind or variable is not valid.
    """
    recipe, runtime = images.recipe, images.runtime
    request = replace(request, image=image or images.to_print(), edf=edf_name(recipe))
    made = runtime.command(request)
    if runtime.is_own:
        own = f"builder's own runner runs {recipe.name}: no other program is called"
        images.project.work.reporter.note(own)
    words = _with_srun(request, made).words
    shell = runtime.shell_line(words, made.srun)
    printed = {"target": recipe.name, "command": words, "shell": shell}
    return printed | ({"edf": "\n".join(made.srun.edf)} if made.srun and made.srun.edf else {})


def run_target(
    images: TargetImages, request: ContainerRequest, image: str = "", *, bind: bool = True
) -> int:
    """Run a command in the target's image with the site's runtime; return its exit code.

    Args:
        images: of the target.
        request: what to run.
        image: the image that the user names; empty: see :meth:`TargetImages.to_run`.
        bind: whether the project folder is bound, see :func:`bind_folder`.

    Raises:
        UsageError: the request is not valid on the site, or there is no image.
        RunnerError: the runtime does not work, or the image does not exist.
        VerifyError: the policy of the project refuses the image.
    """
    project, recipe, runtime = images.project, images.recipe, images.runtime
    if request.env_file and not runtime.is_own:  # which reads it itself, once: it may be a pipe
        file = Path(expand(request.env_file, os.environ)).absolute()
        if not file.is_fifo():
            read_env_file(file)  # the runtime may read wrong lines, too
        request = replace(request, env_file=str(file))
    if bind:
        prefix, own = recipe.conda.prefix, command_folder(recipe)
        request = bind_folder(request, project.root, prefix, own)
    made = runtime.command(request)  # what is wrong is reported before an image is loaded or built
    may_build = request.may_build
    name, origin = (images.accepted(image), "") if image else images.to_run(may_build=may_build)
    request = replace(request, image=name)
    if isinstance(images, OwnImages):
        return _run_userns(images, request)
    if made.srun:
        return _run_srun(runtime, request)
    runtime.check_file(request.image, os.environ)
    if origin:
        project.work.reporter.note(f"running {recipe.name}{_where(request)}: {origin}")
    names = [name for name, value in request.env.items() if value is None]
    return runtime.run(runtime.command(request), names=names).returncode


def _run_userns(images: OwnImages, request: ContainerRequest) -> int:
    """Run a command in the target's image without a container engine; return its exit code."""
    project, recipe = images.project, images.recipe
    # A wrong bind is reported before anything is built.
    container = images.runtime.container(request)
    binds = tuple(bind.word for bind in container.binds)
    request = replace(request, binds=binds, env=container.env)
    vendor = "none" if request.gpus == 0 else recipe.gpu.vendor
    options = _options(request, vendor, recipe.site.runtime)
    wanted = request.image if is_digest(request.image) else ""
    artifact, origin = images.own(wanted, may_build=request.may_build)
    project.work.reporter.note(f"running {recipe.name}{_where(request)}: {origin}")
    runner = UsernsRunner(project.work)
    return runner.run(artifact, request.command, options).returncode


def _run_srun(runtime: ContainerRuntime, request: ContainerRequest) -> int:
    """Run a command with srun in the allocation of this shell; return its exit code.

    Raises:
        UsageError: this shell has no allocation.
        RunnerError: srun is not installed, cannot start containers, or the image does not exist.
    """
    environ = {**os.environ, "PWD": str(Path.cwd())}
    # The current folder: the nodes must see the file.
    file = Path.cwd() / f".builder-{secrets.token_hex(4)}.toml"
    made, recipe = runtime.command(replace(request, edf=str(file))), runtime.recipe
    assert made.srun is not None
    made.srun.require_plugin(environ)
    if "SLURM_JOB_ID" not in environ:
        raise UsageError(
            f"{recipe.site_title} runs containers with srun, and this shell has no allocation",
            f"builder job {recipe.name} --interactive prints the commands; "
            f"builder run {recipe.name} --print prints this one",
        )
    runtime.check_file(request.image, environ)
    environ |= {name: expand(value, environ) for name, value in made.srun.env.items()}
    try:
        if made.srun.edf:
            file.write_text("\n".join([*made.srun.edf, ""]))
            file.chmod(0o644)  # root of a node has no rights on some file systems
        return runtime.run(_with_srun(request, made), environ=environ).returncode
    finally:
        file.unlink(missing_ok=True)


def _with_srun(request: ContainerRequest, made: Invocation) -> Invocation:
    """Return the command line, with srun if a plugin of it starts the container."""
    if made.srun is None:
        return made
    options = ["--pty"] if request.interactive else []
    if cores := os.environ.get("SLURM_CPUS_PER_TASK"):  # before Slurm 24.11, srun does not take it
        options.append(f"--cpus-per-task={cores}")
    return replace(made, program=("srun", *options, *made.srun.options))


def run_reference(
    reference: str,
    request: ContainerRequest,
    work: Workspace,
    *,
    bind: bool = True,
    root: Path | None = None,
) -> int:
    """Pull an image by its name into the cache, and run a command in it; return its exit code.

    If ``root`` is a project with a policy, the policy must accept the image.

    The first runner that works runs it. The current folder is bound if ``bind`` is set and it is
    not the home folder or one above it: others may have made the image.

    Raises:
        UsageError: a bind mount is not valid.
        RegistryError, ImageError: see :func:`builder.deliver.publishing.pull.pull_reference`.
        RunnerError: no runner works.
    """
    folder, home = Path.cwd().resolve(), os.environ.get("HOME")
    if bind and home and Path(home).resolve().is_relative_to(folder):
        work.reporter.note(
            "the home folder is not mounted: start in a folder of the project, or --bind"
        )
    elif bind:
        request = bind_folder(request, folder)
    vendor = _vendor(request)
    # A wrong bind is reported before anything is downloaded.
    options = _options(request, vendor, Runtime())
    pulled, artifact = pull_reference(reference, work, root)
    runner = find_runner(work, None, gpu=vendor, image=artifact)
    image = f"{pulled.digest[:19]}, with {runner.name}"
    work.reporter.note(f"running {pulled.reference}{_where(request)}: {image}")
    return runner.run(artifact, request.command, options).returncode


def bind_folder(
    request: ContainerRequest, root: Path, prefix: str = "/opt/conda", own: str | None = None
) -> ContainerRequest:
    """Return the request with a folder bound at its own path; the command starts in it.

    So an edited file is seen at once, and what the command writes stays. A bind mount or
    ``--workdir`` of the request takes precedence.

    Args:
        request: what to run.
        root: the project folder.
        prefix: the environment's folder in the image, which must not be hidden.
        own: where the image's own command starts: a folder below ``root``; None: the folder that
            the image names.

    Raises:
        UsageError: the command's script is not in the folder where it starts.
    """
    folder = str(root.resolve())
    hides = folder[1:] in _SYSTEM or f"{prefix}/".startswith(f"{folder}/")
    if hides or set(folder) & set(':,\\"\n'):
        return request
    targets = [str(read_bind(bind).target) for bind in request.binds]
    binds = request.binds if folder in targets else (f"{folder}:{folder}", *request.binds)
    if request.command:
        here = str(Path.cwd().resolve())
        own = here if Path(here).is_relative_to(folder) else "."
        if not request.workdir and not any(target.startswith(folder) for target in targets):
            check_script(request.command, Path(folder, own))
    workdir = request.workdir or (None if own is None else str(Path(folder, own)))
    return replace(request, binds=binds, workdir=workdir)


def _vendor(request: ContainerRequest) -> GpuVendor:
    """Return the vendor of this host's GPUs, if the request wants any."""
    vendors: tuple[GpuVendor, ...] = () if request.gpus == 0 else ("nvidia", "amd")
    return next((vendor for vendor in vendors if gpu_devices(vendor)), "none")


def _options(request: ContainerRequest, gpu: GpuVendor, runtime: Runtime) -> RunOptions:
    """Return the runner's options; a variable without a value gets this process's own.

    In a job the container gets the variables of ``runtime.pass_env``, too.

    Raises:
        UsageError: a bind mount is not valid.
    """
    passed = runtime.pass_env if is_job(os.environ) else ()
    env = {name: value for name, value in os.environ.items() if name.startswith(passed)}
    if file := request.env_file:
        env |= read_env_file(Path(expand(file, os.environ)))
    for name, value in request.env.items():
        if value is not None:
            env[name] = expand(value, os.environ)
        elif name in os.environ:
            env[name] = os.environ[name]
    return RunOptions(
        env=env,
        mounts=[_mount(expand(bind, os.environ)) for bind in request.binds],
        workdir=request.workdir,
        gpu=gpu,
        network="host",
        keep_root=bool(request.binds),  # the user's own files
        capture=False,
    )


def _mount(bind: str) -> Mount:
    """Return the mount of a bind. Raises UsageError: its source does not exist on this machine."""
    mount = read_bind(bind)
    source = Path(mount.source)
    if not source.exists():
        hint = f"make it: mkdir -p {source}"
        raise UsageError(f"--bind {mount.word}: {source} does not exist", hint)
    return Mount(source, mount.target, readonly=mount.mode == "ro")


def _where(request: ContainerRequest) -> str:
    """Return the folder in which the command starts, for a note, and whether it is read-only."""
    folder = request.workdir
    if folder is None:
        return " in the folder of the image, where changes are lost"
    is_bound = any(Path(folder).is_relative_to(read_bind(bind).target) for bind in request.binds)
    is_readonly = is_bound and Path(folder).exists() and not os.access(folder, os.W_OK)
    return f" in {folder}{', which you cannot write to' if is_readonly else ''}"
