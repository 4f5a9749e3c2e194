"""Programs that run SIFs: Singularity and Apptainer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from builder.core.errors import UsageError

from ..arguments import BindMount
from ..containers import Container, Invocation
from ..shell import ShellText, comma_separated, command_line, join, map_literal
from ..srun import SrunContainer
from .runtime import ContainerRuntime

#: Where the program mounts the host's drivers; it adds the folder to LD_LIBRARY_PATH that it sets.
_DRIVERS = "/.singularity.d/libs"
#: A mount that ``--bind`` reads as it is.
_PLAIN = re.compile(r"[\w/.:+@=-]+")


class SifRuntime(ContainerRuntime):
    """Singularity or Apptainer."""

    suffix = ".sif"
    runs_sif = True

    @property
    def prefix(self) -> str:
        return self.name.upper()

    def image_of_build(self, digest: str, sif: Path | None, reference: str) -> str:
        if sif is None:
            message = f"{self.name} runs SIFs, and {self.recipe.name} is an OCI image: "
            hint = "write 'format: sif' into the recipe, or pass --image FILE to test another image"
            raise UsageError(message + "no job can test this build", hint)
        return str(sif.absolute())

    def _invocation(self, container: Container) -> Invocation:
        """Return the command line; variables without a value come from the process's own."""
        request, settings = container.request, self.settings
        words = ["--cleanenv"] if settings.clean_env else []
        words += [ShellText(option) for option in settings.options]
        words += [*self.gpu_options(request.gpus), *container.options]
        inner, before = container.inside(self._variables(container))
        words += _mounts(inner.binds)
        workdir = request.workdir
        if workdir is None and not container.command and self.recipe.workdir != "/":
            workdir = self.recipe.workdir  # a SIF names none
        if workdir:
            words += ["--pwd", workdir]
        words += [request.image, *before]
        command = container.command or self.recipe.cmd
        return Invocation((settings.command, "exec"), tuple(words), "", command)

    def _variables(self, container: Container) -> dict[str, str]:
        """Return the variables with values; the program itself never passes HOME of the host."""
        env = {name: value for name, value in container.env.items() if value is not None}
        if "HOME" in container.env:
            env.setdefault("HOME", ShellText("$HOME"))
        if libraries := env.get("LD_LIBRARY_PATH"):
            env["LD_LIBRARY_PATH"] = join(libraries, ":", _DRIVERS)
        return env

    def shell_line(self, words: Sequence[str], srun: SrunContainer | None = None) -> str:
        """Return the line, in a subshell behind the folders that the container gets if they exist."""
        line, paths = command_line(words), map(ShellText, self.settings.optional_binds)
        if not self.settings.optional_binds:
            return line
        name = f"{self.prefix}_BIND"
        further = f'export {name}="${{{name}:+${name},}}$path"'
        listed = command_line(paths)
        return f'(for path in {listed}; do if [ -e "$path" ]; then {further}; fi; done; {line})'


def _mounts(binds: Iterable[BindMount]) -> list[str]:
    """Return the options for mounts: ``--bind`` for plain paths, ``--mount`` for all others.

    ``--bind`` splits a path at a caret, and has no escape for a backslash and a blank at an end
    (Apptainer 1.4 and SingularityCE 4.5). A variable may contain any of them.
    """
    plain, words = list[str](), list[str]()
    for bind in binds:
        if _PLAIN.fullmatch(bind.word):
            plain.append(bind.short_word)
            continue
        paths = (join("source=", bind.source), join("destination=", bind.target))
        fields = [join('"', map_literal(path, _double_quotes), '"') for path in paths]
        readonly = ["ro"] if bind.mode == "ro" else []
        words += ["--mount", comma_separated(["type=bind", *fields, *readonly])]
    return ["--bind", ",".join(plain), *words] if plain else words


def _double_quotes(text: str) -> str:
    return text.replace('"', '""')
