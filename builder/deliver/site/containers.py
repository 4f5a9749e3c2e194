"""Command lines of the container runtimes, from docker to pyxis and ``userns``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from builder.core.errors import UsageError
from builder.formats.oci.reference import is_digest
from builder.lock.config.recipe import Recipe
from builder.lock.config.site import Additions, RuntimeKind, Site

from .arguments import BindMount
from .shell import ShellText, comma_separated, join, map_literal
from .srun import (
    EDF,
    HOOK_VARIABLES,
    LOGIN_SHELL,
    NVIDIA,
    WITH_FILE,
    SrunContainer,
    edf_lines,
    engine_image,
    pyxis_options,
)

_CSV_SPECIAL = re.compile(r'[",\n]')


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """A container to run. Words can be :class:`~builder.deliver.site.shell.ShellText`."""

    image: str
    """A reference or a SIF, see :func:`builder.deliver.site.images.image_reference`. For
    ``userns``, which finds the image by the target: the digest that it must have, or anything else
    for any digest."""
    command: tuple[str, ...] = ()
    """Empty: the recipe's command."""
    gpus: int | None = None
    """Number of GPUs; None: all of the node."""
    binds: tuple[str, ...] = ()
    """``SOURCE[:TARGET[:MODE]]``, in addition to the site's."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Variables in addition to the site's; None: the host's value, not on the command line."""
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
    edf: str = EDF
    """The file that describes the container, for ``srun --environment``."""


@dataclass(frozen=True, slots=True)
class Container:
    """The input of a container's command line: values of the recipe and of the request, merged."""

    recipe: Recipe
    request: ContainerRequest
    command: tuple[str, ...]
    """Behind the wrappers of the site; empty: the image's own command."""
    binds: tuple[BindMount, ...]
    env: Mapping[str, str | None]
    """None as a value: pass the variable of the host, without its value on the command line."""
    site_env: Mapping[str, str]
    """Those variables of ``env`` that come from the site: all processes have the same values."""

    @property
    def options(self) -> list[str]:
        """Further options of the runtime."""
        added = [ShellText(option) for part in self.request.additions for option in part.options]
        return [*added, *self.request.options]

    def words(self, bind: str, env: str, workdir: str) -> list[str]:
        """Return binds, variables and the folder to start in, as options with the given names."""
        words = [word for one in self.binds for word in (bind, one.word)]
        if self.request.env_file:
            words += ["--env-file", self.request.env_file]
        for name, value in self.env.items():
            words += [env, name if value is None else join(name, "=", value)]
        if self.request.workdir:
            words += [workdir, self.request.workdir]
        return words


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command line of a container runtime, in three parts."""

    prefix: tuple[str, ...]
    """The program and its options."""
    image: str
    """Empty if the command line does not name it: for ``userns``, ``builder run TARGET`` finds it
    by the target; else options of srun or their file name it."""
    command: tuple[str, ...]
    """The command in the container; empty: the image's own command."""
    srun: SrunContainer | None = None
    """The container, if a plugin of srun starts it."""

    @property
    def tail(self) -> list[str]:
        """The image (``--`` for ``userns``) and the command."""
        if self.srun:
            return list(self.command)
        return [self.image or "--", *self.command]

    @property
    def words(self) -> list[str]:
        """The whole command line."""
        if not self.image and not self.command:
            return list(self.prefix)
        return [*self.prefix, *self.tail]


def gpu_options(recipe: Recipe, gpus: int | None) -> tuple[str, ...]:
    """Return the runtime's options that make GPUs available in a container.

    Args:
        recipe: the target.
        gpus: number of GPUs; None: all of the node.
    """
    site, runtime = recipe.site, recipe.site.runtime
    if not _has_gpus(recipe, gpus):
        return ()
    count = "all" if gpus is None or gpus >= site.node.gpus else str(gpus)
    return tuple(ShellText(word.replace("{count}", count)) for word in runtime.gpu)


def _has_gpus(recipe: Recipe, gpus: int | None) -> bool:
    return recipe.gpu.vendor != "none" and gpus != 0 and recipe.site.node.gpus > 0


def evaluates_values(site: Site) -> bool:
    """Return whether the runtime evaluates ``$``, ``\\`` and backquotes in values, like a shell."""
    return site.runtime.takes_sif and "--no-eval" not in site.runtime.options


def escape_value(text: str) -> str:
    """Escape a literal value for a runtime that evaluates values."""
    return re.sub(r"[\\$`]", r"\\\g<0>", text)


def pass_through_options(site: Site) -> tuple[str, ...]:
    """Return podman's options that pass the job's variables (``runtime.pass_env``).

    podman passes no host variable unless it is named; a name may end with an asterisk.
    """
    if site.runtime.kind not in ("podman", "podman-hpc"):
        return ()
    words: list[str] = []
    for name in site.runtime.pass_env:
        words += ["-e", f"{name}*" if name.endswith("_") else name]
    return tuple(words)


def _oci_invocation(container: Container) -> Invocation:
    """Return the command line of docker, podman or podman-hpc."""
    request, runtime = container.request, container.recipe.site.runtime
    words = [runtime.command, "run", "--rm"]
    if request.interactive:
        words.append("-it")
    words += [ShellText(option) for option in runtime.options]
    words += gpu_options(container.recipe, request.gpus)
    if request.ranks:
        words += [ShellText(option) for option in runtime.ranks]
    words += [*container.options, *container.words("-v", "-e", "-w")]
    return Invocation(tuple(words), request.image, container.command)


def _sif_invocation(container: Container) -> Invocation:
    """Return the command line of singularity or apptainer.

    Variables without a value come from the process's own environment.
    """
    recipe, request, runtime = container.recipe, container.request, container.recipe.site.runtime
    words = [runtime.command, "exec"]
    if runtime.clean_env:
        words.append("--cleanenv")
    words += [ShellText(option) for option in runtime.options]
    words += [*gpu_options(recipe, request.gpus), *container.options]
    if container.binds:
        words += ["--bind", comma_separated(bind.short_word for bind in container.binds)]
    if request.env_file:
        words += ["--env-file", request.env_file]
    for name, value in container.env.items():
        if value is not None:
            words += ["--env", _env_word(name, value, evaluates_values(recipe.site))]
    if workdir := _sif_workdir(container):
        words += ["--pwd", workdir]
    return Invocation(tuple(words), request.image, container.command or recipe.cmd)


def _sif_workdir(container: Container) -> str | None:
    """Return the working directory: a SIF has none, so that of the recipe's command is passed."""
    recipe, workdir = container.recipe, container.request.workdir
    if workdir is None and not container.command and recipe.workdir != "/":
        return recipe.workdir
    return workdir


def _env_word(name: str, value: str, evaluated: bool) -> str:
    """Return ``NAME=VALUE`` for ``--env``.

    Apptainer and Singularity read a value that contains ``=`` as CSV, and evaluate values like a
    shell unless ``--no-eval`` is set (Apptainer 1.4 and SingularityCE 4).
    """
    if evaluated:
        value = map_literal(value, escape_value)
    if "=" in value and _CSV_SPECIAL.search(value):
        doubled = map_literal(value, lambda text: text.replace('"', '""'))
        return join('"', name, "=", doubled, '"')
    if value.startswith('"') or value.endswith('"'):
        raise UsageError(
            f"{name}: apptainer and singularity do not accept values that start or end "
            "with a double quote",
            "remove the quotes, or write the value to a file",
        )
    return join(name, "=", value)


def _userns_invocation(container: Container) -> Invocation:
    """Return the command line of builder's own user-namespace runner."""
    request = container.request
    words = ["builder", "run", container.recipe.name]
    if is_digest(request.image):
        words += ["--digest", request.image]
    if not request.may_build:
        words.append("--no-build")
    words += container.words("--bind", "--env", "--workdir")
    return Invocation(tuple(words), "", container.command)


def _srun_invocation(container: Container) -> Invocation:
    """Return the command in a container that srun starts."""
    recipe, request, runtime = container.recipe, container.request, container.recipe.site.runtime
    binds, words = list(container.binds), []
    if file := request.env_file:
        path = file if file.startswith(("/", "$")) else join(ShellText("$PWD/"), file)
        binds.append(BindMount(path, path, "ro"))
        words += [*WITH_FILE, path]
    early, own = _early_variables(container)
    # env also where there are no variables: some Slurms look for the first word on the host
    # (LaunchParameters=test_exec, https://github.com/NVIDIA/pyxis/issues/104).
    words += ["env", *(join(name, "=", value) for name, value in own.items())]
    image, mounts = engine_image(request.image), tuple(dict.fromkeys(binds))
    workdir = request.workdir or ""
    if runtime.kind == "edf":
        lines = edf_lines(image, mounts, workdir, early, runtime.annotations)
        option, plugin = join("--environment=", request.edf), "the Container Engine"
        srun = SrunContainer(plugin, (option,), LOGIN_SHELL, request.edf, lines)
    else:
        passed = [name for name, value in container.env.items() if value is None]
        options = pyxis_options(image, mounts, workdir, [*early, *passed])
        srun = SrunContainer("pyxis", options, LOGIN_SHELL | early)
    return Invocation(tuple(words), "", container.command or recipe.cmd, srun)


def _early_variables(container: Container) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that are set before srun starts the container, and the others.

    The others precede the command, so that each process fills in its own values. Those of hooks are
    early; with the Container Engine also those of the site, for its file. Host variables pass into
    the container, unless the image sets them.
    """
    recipe, own = container.recipe, dict[str, str]()
    is_nvidia = recipe.gpu.vendor == "nvidia" and _has_gpus(recipe, container.request.gpus)
    early = dict(NVIDIA) if is_nvidia else {}
    of_file = container.site_env if recipe.site.runtime.kind == "edf" else {}
    for name, value in container.env.items():
        if value is not None:
            is_early = name in of_file or name.startswith(HOOK_VARIABLES)
            (early if is_early else own)[name] = value
    return early, own


#: What makes the command line, by the runtime of the container's site.
INVOCATIONS: Mapping[RuntimeKind, Callable[[Container], Invocation]] = {
    "docker": _oci_invocation,
    "podman": _oci_invocation,
    "podman-hpc": _oci_invocation,
    "singularity": _sif_invocation,
    "apptainer": _sif_invocation,
    "edf": _srun_invocation,
    "pyxis": _srun_invocation,
    "userns": _userns_invocation,
}
