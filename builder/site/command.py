"""Runs a command in an image with the site's own container runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.config.recipe import Recipe
from builder.config.site import Additions, Site
from builder.errors import RunnerError, UsageError
from builder.run.process import Completed, execute
from builder.site.arguments import VARIABLE_NAME, BindMount, read_bind
from builder.site.containers import (
    BIND_VARIABLE,
    PASS_PREFIX,
    Container,
    Invocation,
    escape_value,
    evaluates_values,
    gpu_options,
    invocation,
)
from builder.site.shell import ShellText, command_line, expand


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What to run in a container. Words can be :class:`~builder.site.shell.ShellText`."""

    image: str
    """A reference or a SIF, see :func:`builder.site.images.image_reference`. For ``userns``, which finds the
    image by the target: the digest that it must have, or anything else for any digest."""
    command: tuple[str, ...] = ()
    """Empty: the recipe's command."""
    gpus: int | None = None
    """Number of GPUs; None: all of the node."""
    binds: tuple[str, ...] = ()
    """``SOURCE[:TARGET[:MODE]]``, in addition to the site's."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Variables in addition to the site's; None: pass the host's value, but not on the command line."""
    env_file: str = ""
    """A file with ``NAME=VALUE`` lines; its content is not on the command line. Empty: none."""
    interactive: bool = False
    """Whether the container gets a terminal."""
    workdir: str | None = None
    """The folder to start in; None: the image's. A folder of the host must be among the binds."""
    ranks: bool = False
    """Whether several such containers communicate with each other."""
    additions: tuple[Additions, ...] = ()
    """Extra settings of the recipe: for the network, for MPI."""
    options: tuple[str, ...] = ()
    """Additional options of the runtime."""
    may_build: bool = True
    """Whether ``userns`` may build the image. False in jobs: it must be in ``dist/``."""


def site_command(recipe: Recipe, request: ContainerRequest) -> Invocation:
    """Returns the command line with which the site's runtime runs a command in an image.

    Raises:
        UsageError: the node has fewer GPUs, or a bind or variable is not valid.
    """
    check_gpus(recipe, request.gpus)
    additional_options = [ShellText(option) for added in request.additions for option in added.options]
    site_env = _site_variables(recipe, request)
    return invocation(
        Container(
            recipe=recipe,
            image=request.image,
            command=_wrapped(recipe, request),
            devices=gpu_options(recipe, request.gpus),
            options=(*additional_options, *request.options),
            binds=_binds(recipe, request),
            env=_variables(site_env, request),
            env_file=request.env_file,
            workdir=request.workdir,
            interactive=request.interactive,
            ranks=request.ranks,
            site_env={name: value for name, value in site_env.items() if name not in request.env},
            may_build=request.may_build,
        )
    )


def _wrapped(recipe: Recipe, request: ContainerRequest) -> tuple[str, ...]:
    """Returns the command behind the wrappers of the additions, if there are any."""
    # The wrapper of the network may be that of MPI too.
    different = dict.fromkeys(added.wrapper for added in request.additions)
    words = tuple(ShellText(word) for wrapper in different for word in wrapper)
    if not words:
        return request.command
    return (*words, *(request.command or recipe.cmd))


def _site_variables(recipe: Recipe, request: ContainerRequest) -> dict[str, str]:
    """Returns the variables of runtime and additions; the last one of a name wins."""
    variables: dict[str, str] = {}
    for env in (recipe.site.runtime.env, *(added.env for added in request.additions)):
        variables |= {name: ShellText(value) for name, value in env.items()}
    return variables


def _variables(site_env: Mapping[str, str], request: ContainerRequest) -> dict[str, str | None]:
    """Variables of the site and of the request, which wins."""
    variables = {**site_env, **request.env}
    for name in variables:
        if not VARIABLE_NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not a valid variable name", "write --env NAME=VALUE")
    return variables


def _binds(recipe: Recipe, request: ContainerRequest) -> tuple[BindMount, ...]:
    """Binds of the runtime, of the additions and of the request, without duplicates."""
    of_recipe = list(recipe.site.runtime.binds)
    for added in request.additions:
        of_recipe += added.binds
    binds = [read_bind(ShellText(bind)) for bind in of_recipe]
    binds += [read_bind(bind) for bind in request.binds]
    return tuple(dict.fromkeys(binds))


def check_gpus(recipe: Recipe, gpus: int | None) -> None:
    """Checks a number of GPUs per node.

    Raises:
        UsageError: it is negative, or more than a node of the site has.
    """
    available = recipe.site.node.gpus
    if gpus is None:
        return
    if gpus > available:
        if not available:
            raise UsageError(f"--gpus {gpus}: a node of {recipe.site_title} has no GPUs", "leave --gpus out")
        more_nodes = "; use --nodes for more" if recipe.site.slurm else ""
        raise UsageError(
            f"{gpus} GPUs requested, but a node of {recipe.site_title} has {available}",
            f"request at most {available} GPUs per node{more_nodes}",
        )


def pass_through(site: Site, names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns variables for the runtime's own process, which pass host variables into a clean environment.

    Args:
        site: its ``runtime.pass_env`` lists the beginnings of names to pass.
        names: further names.
        environ: the host's variables.
    """
    prefix = PASS_PREFIX.get(site.runtime.kind)
    if prefix is None or not site.runtime.clean_env:
        return {}
    wanted = (*site.runtime.pass_env, *names)
    already_prefixed = tuple(PASS_PREFIX.values())
    passed = {}
    for name, value in environ.items():
        if name.startswith(wanted) and not name.startswith(already_prefixed):
            passed[f"{prefix}{name}"] = escape_value(value) if evaluates_values(site) else value
    return passed


def _further_binds(site: Site, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the runtime's variable for further binds, with the optional ones that are there."""
    variable = BIND_VARIABLE.get(site.runtime.kind, "")
    found = [environ[variable]] if environ.get(variable) else []
    for bind in site.runtime.optional_binds:
        try:
            path = expand(ShellText(bind), environ)
        except RunnerError:  # a variable is not set
            continue
        if path and Path(path).exists():
            found.append(path)
    return {variable: ",".join(found)} if variable and found else {}


def shell_line(recipe: Recipe, words: Sequence[str]) -> str:
    """Returns a command line of :func:`site_command` for a shell on the site.

    Folders that the container gets only if they are there come first, in a subshell.
    """
    line, binds = command_line(words), recipe.site.runtime.optional_binds
    name = BIND_VARIABLE.get(recipe.site.runtime.kind)
    if not binds or name is None:
        return line
    paths = command_line(ShellText(bind) for bind in binds)
    further = f'export {name}="${{{name}:+${name},}}$path"'
    return f'(for path in {paths}; do if [ -e "$path" ]; then {further}; fi; done; {line})'


def run_site(
    recipe: Recipe,
    words: Sequence[str],
    *,
    names: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Completed:
    """Runs a command line of :func:`site_command` on this machine, with this process's standard streams.

    Args:
        recipe: the target.
        words: the command line.
        names: host variables to pass into the container.
        environ: the host's variables; None: those of this process.

    Raises:
        RunnerError: the runtime is not installed, or a variable of the recipe is not set.
    """
    environ = os.environ if environ is None else environ
    runtime = recipe.site.runtime
    expanded = [expand(word, environ) for word in words]
    if shutil.which(expanded[0], path=environ.get("PATH")) is None:
        raise RunnerError(
            f"{expanded[0]} is not installed on this machine, but {recipe.site_title} runs images with it",
            "print the command with --print and run it on the site, or test the image with builder smoke",
        )
    if runtime.folders:
        _make_folders([expand(ShellText(folder), environ) for folder in runtime.folders], environ)
    env = {**environ, **pass_through(recipe.site, names, environ), **_further_binds(recipe.site, environ)}
    return execute(expanded, env=env, capture=False)


def _make_folders(folders: Sequence[str], environ: Mapping[str, str]) -> None:
    """Makes folders as a job script does: in a shared folder it takes none that another user can change."""
    from builder.site.render import templates

    script = templates().get_template("folder.j2").render()
    script += 'for folder; do private_folder "$folder" || exit; done\n'
    done = subprocess.run(
        ["/bin/bash", "-c", script, "bash", *folders], env=environ, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise RunnerError(done.stderr.strip(), "set site.runtime.folders in the recipe to folders of yours")
