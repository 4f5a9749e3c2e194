"""What all container runtimes have in common: names of images, command lines, preparations."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from builder.build.run.process import Completed, execute
from builder.core.errors import RunnerError, UsageError
from builder.formats.oci.reference import is_digest, local_name
from builder.lock.config.recipe import Recipe
from builder.lock.config.site import Additions, RuntimeKind, Site

from ..arguments import VARIABLE_NAME, BindMount, read_bind
from ..containers import Container, ContainerRequest, Invocation
from ..job import ImageFile, Start
from ..paths import host_path, start_folder
from ..render import templates
from ..request import JobRequest
from ..shell import ShellText, command_line, expand, from_user, join, quote, with_account
from ..srun import SrunContainer


def is_job(environ: Mapping[str, str]) -> bool:
    """Return whether a process with these variables is part of a job, of builder's or of Slurm."""
    return not {"BUILDER_JOB_ID", "SLURM_JOB_ID"}.isdisjoint(environ)


class ContainerRuntime(ABC):
    """How the site of a target runs containers: one class for each family of runtimes.

    Args:
        recipe: the target, with its site.
    """

    suffix: ClassVar[str] = ""
    """Of images that are files; empty: the runtime runs references or finds images itself."""
    runs_sif: ClassVar[bool] = False
    """Whether images are SIFs instead of OCI images."""
    is_own: ClassVar[bool] = False
    """Whether it is builder's own runtime, which finds the image by the target, in ``dist/``."""
    migrates: ClassVar[bool] = False
    """Whether an image must be pulled on a login node, into a storage that all nodes see."""

    separator: ClassVar[tuple[str, ...]] = ()
    """``--``, where the program would take words of the command for its options."""
    loads: ClassVar[bool] = False
    """Whether jobs run an image that a build loads into the engine of this machine."""
    env_option: ClassVar[str] = ""
    """The option that passes a variable by its name, where a container gets no other."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.site = recipe.site
        self.settings = recipe.site.runtime

    @property
    def name(self) -> RuntimeKind:
        """The name of the runtime in recipes."""
        return self.settings.kind

    @property
    def prefix(self) -> str:
        """What variables for the program begin with; empty: it reads none."""
        return ""

    # images ---------------------------------------------------------------------------------------

    def image(self, account: str = "") -> str:
        """Return the image of the target: a file in the site's folder, or a reference.

        Args:
            account: replaces ``{account}`` in ``site.images``; empty: the variable
                ``SLURM_JOB_ACCOUNT``.

        Returns:
            The path of a SIF or squashfs as :class:`~builder.deliver.site.shell.ShellText`, or a
            reference with the first tag that is not dated.

        Raises:
            UsageError: the recipe names no repository.
        """
        if self.suffix:
            folder = with_account(self.site.images, account)
            separator = "/" if folder and not folder.endswith("/") else ""
            return join(folder, f"{separator}{self.recipe.name}{self.suffix}")
        tag = next((tag for tag in self.recipe.registry.tags if "%" not in tag), "latest")
        return f"{self.repository()}:{tag}"

    def repository(self) -> str:
        """Return ``HOST/REPOSITORY`` or ``REPOSITORY`` of the target, as the runtime pulls it.

        Raises:
            UsageError: the recipe names none.
        """
        recipe = self.recipe
        if not recipe.registry.repository:
            unknown = f"registry.repository is not set, so the image of {recipe.name} is unknown"
            hint = "write registry: {host: ghcr.io, repository: ME/NAME}, or pass --image REFERENCE"
            if self.loads:
                made = f"builder build {recipe.name} --load {self.name}"
                hint += f": {made} makes {local_name(recipe.name)} on this machine"
            raise UsageError(f"{recipe.source}: {unknown}", hint)
        return "/".join(filter(None, (recipe.registry.host, recipe.registry.repository)))

    def site_file(self, account: str, environ: Mapping[str, str]) -> Path | None:
        """Return the SIF or squashfs that jobs of the site run, if this machine belongs to the site.

        That is so if the site's folder of images exists here, or can be created because its parent
        exists.

        Args:
            account: replaces ``{account}`` in ``site.images``.
            environ: values of the variables in ``site.images``.

        Returns:
            The file's path; None on any other machine.
        """
        if not self.suffix or not self.site.images:
            return None
        try:
            path = Path(expand(self.image(account), environ))
        except RunnerError:  # a variable of the site is not set
            return None
        folder = path.parent
        below_root = len(folder.parts) <= 2  # "/images": a variable in the path is empty
        can_be_created = folder.parent.is_dir() and not below_root
        if path.is_absolute() and (folder.is_dir() or can_be_created):
            return path
        return None

    def check_file(self, image: str, environ: Mapping[str, str]) -> None:
        """Check that an image that is a file (or a sandbox folder) exists.

        Raises:
            RunnerError: it does not exist, or a variable in its path is not set.
        """
        if not self.suffix or "://" in image:
            return
        path = Path(expand(image, environ))
        if not path.exists():
            hint = f"download it with builder pull TARGET --output {path}, or pass --image FILE"
            raise RunnerError(f"{path}: no such image", hint)

    def job_image(self, request: JobRequest) -> str:
        """Return the image of a job: a reference, or a path on the site."""
        if not request.image:
            return self.image(request.account)
        if not self.suffix or "://" in request.image:
            return request.image
        return host_path(request.image, start_folder(self.site))

    def image_of_job(self, request: JobRequest) -> ImageFile:
        """Return the image of a job, as its script checks it."""
        reference = self.job_image(request)
        is_file = bool(self.suffix) and "://" not in reference
        engine = "" if self.suffix else self.settings.command
        return ImageFile(reference, is_file, engine, self.migrates, request.image_id)

    def downloaded(self, image: str) -> tuple[str, str]:
        """Return the scheme of an image that the runtime downloads (``docker``) and its name."""
        scheme, _, name = image.partition(":")
        return scheme, name.removeprefix("//")

    def image_of_build(self, digest: str, sif: Path | None, reference: str) -> str:
        """Return the name by which a job runs a build.

        Args:
            digest: of the image.
            sif: the SIF, at a place that the nodes see; None: the build is an OCI image.
            reference: where the image was pushed to, with its digest; empty: in the recipe's
                repository.

        Raises:
            UsageError: the runtime cannot run it.
        """
        return reference or f"{self.repository()}@{digest}"

    def named_image(self, image: str, digest: str) -> str:
        """Return the image that ``--image`` or ``--digest`` names; empty if neither is given.

        Raises:
            UsageError: ``--digest`` has another form, or is not for this runtime.
        """
        if digest and (image or not self.is_own):
            raise UsageError(
                f"--digest is for builder's own runtime; {self.recipe.name} runs with {self.name}",
                "name the image: --image REPOSITORY@sha256:...",
            )
        if digest and not is_digest(digest):
            raise UsageError(f"--digest {digest}: not a digest", "write --digest sha256:...")
        return digest or from_user(image)

    # command lines --------------------------------------------------------------------------------

    def command(self, request: ContainerRequest) -> Invocation:
        """Return the command line that runs a command in an image.

        Raises:
            UsageError: the node has fewer GPUs, or a bind or variable is not valid.
        """
        self.check_gpus(request.gpus)
        made = self._invocation(self.container(request))
        return replace(made, separator=self.separator, env_file=request.env_file)

    def container(self, request: ContainerRequest) -> Container:
        """Return a container with the settings of the site and of the request.

        Raises:
            UsageError: a bind or variable is not valid.
        """
        site_env = self._site_variables(request)
        env = {**site_env, **request.env}
        for name in env:
            if not VARIABLE_NAME.fullmatch(name):
                message = f"{name!r} is not a valid variable name"
                raise UsageError(message, "write --env NAME=VALUE")
        kept = {name: value for name, value in site_env.items() if name not in request.env}
        command, binds = self._wrapped(request), self._binds(request)
        return Container(request, command, binds, env, kept)

    @abstractmethod
    def _invocation(self, container: Container) -> Invocation:
        """Return the command line of a container."""

    def check_gpus(self, gpus: int | None) -> None:
        """Check a number of GPUs per node.

        Raises:
            UsageError: it is negative, or more than a node of the site has.
        """
        available, title = self.site.node.gpus, self.recipe.site_title
        if gpus is None or gpus <= available:
            return
        if not available:
            message = f"--gpus {gpus}: a node of {title} has no GPUs"
            raise UsageError(message, "leave --gpus out")
        more_nodes = "; use --nodes for more" if self.site.slurm else ""
        message = f"{gpus} GPUs requested, but a node of {title} has {available}"
        raise UsageError(message, f"request at most {available} GPUs per node{more_nodes}")

    def has_gpus(self, gpus: int | None) -> bool:
        """Return whether a container for this number of GPUs (None: all) gets any."""
        return self.recipe.gpu.vendor != "none" and gpus != 0 and self.site.node.gpus > 0

    def gpu_options(self, gpus: int | None) -> tuple[str, ...]:
        """Return the options that make GPUs available in a container; None: all of the node."""
        if not self.has_gpus(gpus):
            return ()
        count = "all" if gpus is None or gpus >= self.site.node.gpus else str(gpus)
        return tuple(ShellText(word.replace("{count}", count)) for word in self.settings.gpu)

    def _wrapped(self, request: ContainerRequest) -> tuple[str, ...]:
        """Return the command behind the wrappers of the additions, if there are any."""
        # The wrapper of the network may be that of MPI too.
        different = dict.fromkeys(added.wrapper for added in request.additions)
        words = tuple(ShellText(word) for wrapper in different for word in wrapper)
        return (*words, *(request.command or self.recipe.cmd)) if words else request.command

    def _site_variables(self, request: ContainerRequest) -> dict[str, str]:
        """Return the variables of runtime and additions; the last one of a name wins."""
        variables: dict[str, str] = {}
        for env in (self.settings.env, *(added.env for added in request.additions)):
            variables |= {name: ShellText(value) for name, value in env.items()}
        return variables

    def _binds(self, request: ContainerRequest) -> tuple[BindMount, ...]:
        """Return the binds of runtime, additions and request, without duplicates."""
        texts = [ShellText(bind) for bind in self.settings.binds]
        texts += [ShellText(bind) for added in request.additions for bind in added.binds]
        return tuple(dict.fromkeys(read_bind(bind) for bind in (*texts, *request.binds)))

    # preparations ---------------------------------------------------------------------------------

    def host_setup(self, additions: Sequence[Additions] = (), *, account: str = "") -> list[str]:
        """Return the lines that a job of the site runs first: its HOME, modules and own lines.

        Args:
            additions: further modules and lines: of the network, of MPI.
            account: replaces ``{account}`` in ``runtime.home``; empty: the variable
                ``SLURM_JOB_ACCOUNT``.
        """
        lines = []
        if self.settings.home:
            home = with_account(self.settings.home, account)
            lines += [f"export HOME={quote(home)}", 'mkdir -p "$HOME"']
            if self.prefix:  # such programs do not read HOME: Apptainer 1.4 takes that of passwd
                lines.append(f'export {self.prefix}_HOME="$HOME"')
        parts: list[Site | Additions] = [self.site, *additions]
        modules = dict.fromkeys(module for part in parts for module in part.modules)
        lines += [f"module load {quote(module)}" for module in modules]
        return [*lines, *(line for part in parts for line in part.setup)]

    def start(self, names: Sequence[str] = (), additions: Sequence[Additions] = ()) -> Start:
        """Return the host's tasks before a container of a job starts.

        Args:
            names: host variables to pass.
            additions: extra settings of the job.
        """
        settings, is_clean = self.settings, self.settings.clean_env
        devices = (device for added in additions for device in added.optional_devices)
        return Start(
            folders=tuple(dict.fromkeys(map(ShellText, settings.folders))),
            optional_binds=tuple(map(ShellText, settings.optional_binds)),
            optional_devices=tuple(map(ShellText, devices)),
            passed=settings.pass_env if self.env_option or is_clean else (),
            names=tuple(names) if self.prefix else (),
            option=self.env_option,
            prefix=self.prefix,
            evaluated=bool(self.prefix) and "--no-eval" not in settings.options,
        )

    def shell_line(self, words: Sequence[str], srun: SrunContainer | None = None) -> str:
        """Return a command line of :meth:`command` for a shell on the site.

        Args:
            words: the command line, with srun if ``srun`` is given.
            srun: the container that a plugin of srun starts: what the plugin reads comes first.
        """
        return srun.shell(command_line(words)) if srun else command_line(words)

    def check_server(self) -> None:
        """Check that a browser reaches a server in a container of a job.

        Raises:
            UsageError: the containers have a network of their own.
        """
        return

    def run(
        self,
        made: Invocation,
        *,
        names: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a command line of :meth:`command` on this machine, with this process's streams.

        Args:
            made: the command line.
            names: host variables to pass into the container.
            environ: the host's variables; None: those of this process.

        Raises:
            RunnerError: the runtime is not installed, or a variable of the recipe is not set.
        """
        environ = os.environ if environ is None else environ
        words = [expand(word, environ) for word in made.words]
        if shutil.which(words[0], path=environ.get("PATH")) is None:
            raise RunnerError(
                f"{words[0]} is not installed on this machine, "
                f"but {self.recipe.site_title} runs images with it",
                "print the command with --print and run it on the site, "
                "or test the image with builder smoke",
            )
        before = self.start(names)
        if before.option and not is_job(environ):
            before = replace(before, passed=())
        for folder in before.folders:
            expand(folder, environ)  # an error, if a variable is not set
        at = len(made.program)
        words = [*words[:at], *before.found, *words[at:]]
        template = templates().get_template("run.sh.j2")
        script = template.render(words=words, start=before, env_file=made.env_file)
        return execute(["/bin/bash", "-c", script], env=environ, capture=False)
