"""Programs that run SIFs: Singularity and Apptainer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from builder.core.errors import UsageError

from ..containers import Container, Invocation
from ..shell import ShellText, comma_separated, command_line, join, map_literal
from ..srun import SrunContainer
from .runtime import ContainerRuntime

_CSV_SPECIAL = re.compile(r'[",\n]')


class SifRuntime(ContainerRuntime):
    """Singularity or Apptainer."""

    suffix = ".sif"
    runs_sif = True

    @property
    def prefix(self) -> str:
        return self.name.upper()

    @property
    def evaluates(self) -> bool:
        return "--no-eval" not in self.settings.options

    def image_of_build(self, digest: str, sif: Path | None, reference: str) -> str:
        if sif is None:
            message = f"{self.name} runs SIFs, and {self.recipe.name} is an OCI image: "
            hint = "write 'format: sif' into the recipe, or pass --image FILE to test another image"
            raise UsageError(message + "no job can test this build", hint)
        return str(sif.absolute())

    def own_workdir(self) -> str | None:
        return self.recipe.workdir  # a SIF names none

    def _invocation(self, container: Container) -> Invocation:
        """Return the command line; variables without a value come from the process's own."""
        request, settings = container.request, self.settings
        words = ["--cleanenv"] if settings.clean_env else []
        words += [ShellText(option) for option in settings.options]
        words += [*self.gpu_options(request.gpus), *container.options]
        if container.binds:
            words += ["--bind", comma_separated(bind.short_word for bind in container.binds)]
        if request.env_file:
            words += ["--env-file", request.env_file]
        for name, value in container.env.items():
            if value is not None:
                words += ["--env", _env_word(name, value, self.evaluates)]
        workdir = request.workdir
        if workdir is None and not container.command and self.recipe.workdir != "/":
            workdir = self.own_workdir()
        if workdir:
            words += ["--pwd", workdir]
        command = container.command or self.recipe.cmd
        return Invocation((settings.command, "exec"), tuple(words), request.image, command)

    def _home_lines(self) -> list[str]:
        # they do not read HOME: Apptainer 1.4 takes that of passwd
        return [f'export {self.prefix}_HOME="$HOME"']

    def shell_line(self, words: Sequence[str], srun: SrunContainer | None = None) -> str:
        """Return the line, in a subshell behind the folders that the container gets if they exist."""
        line, paths = command_line(words), map(ShellText, self.settings.optional_binds)
        if not self.settings.optional_binds:
            return line
        name = f"{self.prefix}_BIND"
        further = f'export {name}="${{{name}:+${name},}}$path"'
        listed = command_line(paths)
        return f'(for path in {listed}; do if [ -e "$path" ]; then {further}; fi; done; {line})'


def _env_word(name: str, value: str, evaluated: bool) -> str:
    """Return ``NAME=VALUE`` for ``--env``.

    Apptainer and Singularity read a value that contains ``=`` as CSV, and evaluate values like a
    shell unless ``--no-eval`` is set (Apptainer 1.4 and SingularityCE 4).
    """
    if evaluated:
        value = map_literal(value, _escape)
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


def _escape(text: str) -> str:
    """Escape a literal value for a program that evaluates values."""
    return re.sub(r"[\\$`]", r"\\\g<0>", text)
