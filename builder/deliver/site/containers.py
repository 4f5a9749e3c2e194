"""Containers as values: what to run, merged with the site's settings, and its command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from builder.lock.config.site import Additions

from .arguments import BindMount
from .shell import ShellText, join
from .srun import EDF, WITH_FILE, SrunContainer


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """A container to run. Words can be :class:`~builder.deliver.site.shell.ShellText`."""

    image: str
    """A reference or a SIF, see :meth:`ContainerRuntime.image`. For ``userns``, which finds the
    image by the target: the digest that it must have, or anything else for any digest."""
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
    may_build: bool = True
    """Whether ``userns`` may build the image. False in jobs: it must be in ``dist/``."""
    edf: str = EDF
    """The file that describes the container, for ``srun --environment``."""


@dataclass(frozen=True, slots=True)
class Container:
    """The input of a container's command line: values of the recipe and of the request, merged."""

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
        return [ShellText(option) for part in self.request.additions for option in part.options]

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

    def inside(self, env: Mapping[str, str]) -> tuple[Container, list[str]]:
        """Return the container with the file of variables bound, and words that set variables in it.

        The words come before the command.

        There, nothing changes a value: Apptainer's and Singularity's own options read a file as a
        shell script, split a value as CSV, evaluate it like a shell, and refuse HOME.

        Args:
            env: variables that win over those of the file.
        """
        binds, words = list(self.binds), []
        if file := self.request.env_file:
            path = file if file.startswith(("/", "$")) else join(ShellText("$PWD/"), file)
            binds.append(BindMount(path, path, "ro"))
            words += [*WITH_FILE, path]
        if env:
            words += ["env", *(join(name, "=", value) for name, value in env.items())]
        return replace(self, binds=tuple(dict.fromkeys(binds))), words


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command line of a container runtime, in parts."""

    program: tuple[str, ...]
    """The program and its command: ``docker run``. Empty: srun is the program."""
    options: tuple[str, ...]
    """Of the program; with srun, words before the command."""
    image: str
    """Empty if the command line does not name it: for ``userns``, ``builder run TARGET`` finds it
    by the target; else options of srun or their file name it."""
    command: tuple[str, ...]
    """The command in the container; empty: the image's own command."""
    srun: SrunContainer | None = None
    """The container, if a plugin of srun starts it."""
    separator: tuple[str, ...] = ()
    """Before the image; see :attr:`ContainerRuntime.separator`."""
    env_file: str = ""
    """The file with variables for the container; empty: none."""

    @property
    def tail(self) -> list[str]:
        """The image, if the command line names it, and the command."""
        return [*self.separator, *filter(None, [self.image]), *self.command]

    @property
    def words(self) -> list[str]:
        """The whole command line."""
        head = [*self.program, *self.options]
        return [*head, *self.tail] if self.image or self.command else head
