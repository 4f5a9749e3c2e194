"""Runs a command in an image with the site's own container runtime."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from builder.build.run.process import Completed, execute
from builder.core.errors import RunnerError, UsageError
from builder.deliver.site import containers
from builder.lock.config.recipe import Recipe
from builder.lock.config.site import Additions, Site

from .arguments import VARIABLE_NAME, BindMount, read_bind
from .containers import Container, ContainerRequest, Invocation
from .job import Start
from .render import templates
from .shell import ShellText, command_line, expand
from .srun import SrunContainer


def site_command(recipe: Recipe, request: ContainerRequest) -> Invocation:
    """Return the command line with which the site's runtime runs a command in an image.

    Raises:
        UsageError: the node has fewer GPUs, or a bind or variable is not valid.
    """
    check_gpus(recipe, request.gpus)
    site_env = _site_variables(recipe, request)
    command, binds = _wrapped(recipe, request), _binds(recipe, request)
    env = {**site_env, **request.env}
    for name in env:
        if not VARIABLE_NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not a valid variable name", "write --env NAME=VALUE")
    kept = {name: value for name, value in site_env.items() if name not in request.env}
    container = Container(recipe, request, command, binds, env, kept)
    return containers.INVOCATIONS[recipe.site.runtime.kind](container)


def _wrapped(recipe: Recipe, request: ContainerRequest) -> tuple[str, ...]:
    """Return the command behind the wrappers of the additions, if there are any."""
    # The wrapper of the network may be that of MPI too.
    different = dict.fromkeys(added.wrapper for added in request.additions)
    words = tuple(ShellText(word) for wrapper in different for word in wrapper)
    if not words:
        return request.command
    return (*words, *(request.command or recipe.cmd))


def _site_variables(recipe: Recipe, request: ContainerRequest) -> dict[str, str]:
    """Return the variables of runtime and additions; the last one of a name wins."""
    variables: dict[str, str] = {}
    for env in (recipe.site.runtime.env, *(added.env for added in request.additions)):
        variables |= {name: ShellText(value) for name, value in env.items()}
    return variables


def _binds(recipe: Recipe, request: ContainerRequest) -> tuple[BindMount, ...]:
    """Return the binds of runtime, additions and request, without duplicates."""
    texts = [ShellText(bind) for bind in recipe.site.runtime.binds]
    texts += [ShellText(bind) for added in request.additions for bind in added.binds]
    return tuple(dict.fromkeys(read_bind(bind) for bind in (*texts, *request.binds)))


def check_gpus(recipe: Recipe, gpus: int | None) -> None:
    """Check a number of GPUs per node.

    Raises:
        UsageError: it is negative, or more than a node of the site has.
    """
    available = recipe.site.node.gpus
    if gpus is None:
        return
    if gpus > available:
        if not available:
            message = f"--gpus {gpus}: a node of {recipe.site_title} has no GPUs"
            raise UsageError(message, "leave --gpus out")
        more_nodes = "; use --nodes for more" if recipe.site.slurm else ""
        message = f"{gpus} GPUs requested, but a node of {recipe.site_title} has {available}"
        raise UsageError(message, f"request at most {available} GPUs per node{more_nodes}")


def start(site: Site, names: Sequence[str] = (), additions: Sequence[Additions] = ()) -> Start:
    """Return the host's tasks before a container starts; ``names`` are host variables to pass."""
    runtime = site.runtime
    devices = (device for added in additions for device in added.optional_devices)
    return Start(
        folders=tuple(dict.fromkeys(map(ShellText, runtime.folders))),
        optional_binds=tuple(map(ShellText, runtime.optional_binds)),
        optional_devices=tuple(map(ShellText, devices)),
        passed=(*runtime.pass_env, *names) if runtime.clean_env else (),
        prefix=runtime.kind.upper(),
        evaluated=containers.evaluates_values(site),
    )


def shell_line(recipe: Recipe, words: Sequence[str], srun: SrunContainer | None) -> str:
    """Return a command line of :func:`site_command` for a shell on the site.

    Folders that the container gets only if they are there come first, in a subshell.

    Args:
        recipe: the target.
        words: the command line, with srun if ``srun`` is given.
        srun: the container that a plugin of srun starts: what the plugin reads comes first.
    """
    line, runtime = command_line(words), recipe.site.runtime
    if srun is not None:
        return srun.shell(line)
    if not runtime.optional_binds:
        return line
    paths = command_line(map(ShellText, runtime.optional_binds))
    name = f"{runtime.kind.upper()}_BIND"
    further = f'export {name}="${{{name}:+${name},}}$path"'
    return f'(for path in {paths}; do if [ -e "$path" ]; then {further}; fi; done; {line})'


def run_site(
    recipe: Recipe,
    words: Sequence[str],
    *,
    names: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Completed:
    """Run a command line of :func:`site_command` on this machine, with this process's streams.

    Args:
        recipe: the target.
        words: the command line.
        names: host variables to pass into the container.
        environ: the host's variables; None: those of this process.

    Raises:
        RunnerError: the runtime is not installed, or a variable of the recipe is not set.
    """
    environ = os.environ if environ is None else environ
    expanded = [expand(word, environ) for word in words]
    if shutil.which(expanded[0], path=environ.get("PATH")) is None:
        raise RunnerError(
            f"{expanded[0]} is not installed on this machine, "
            f"but {recipe.site_title} runs images with it",
            "print the command with --print and run it on the site, "
            "or test the image with builder smoke",
        )
    before = start(recipe.site, names)
    for folder in before.folders:
        expand(folder, environ)  # an error, if a variable is not set
    script = templates().get_template("run.sh.j2").render(words=expanded, start=before)
    return execute(["/bin/bash", "-c", script], env=environ, capture=False)
