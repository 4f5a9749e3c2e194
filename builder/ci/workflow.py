"""What a generated workflow does, as plain values; the templates in this folder write it as YAML."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from builder.config.recipe import Recipe
from builder.errors import UsageError

if TYPE_CHECKING:
    from jinja2 import Environment

Service = Literal["github", "gitlab"]
SmokePlace = Literal["runner", "slurm"]

#: Where each service looks for the file.
FILES: dict[Service, str] = {"github": ".github/workflows/images.yml", "gitlab": ".gitlab-ci.yml"}
#: The first day of the month, 03:00 UTC.
MONTHLY = "0 3 1 * *"
#: The runner that a service hosts.
HOSTED = "ubuntu-latest"
#: Debian packages that a container needs to install builder and open a pull request.
_PACKAGES = ("ca-certificates", "git", "python3-venv")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:/_-]*")
_WORD = re.compile(r"[A-Za-z0-9._/:-]*")
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_FIELD = r"[0-9*/,-]+"
_CRON = re.compile(rf"{_FIELD}( {_FIELD}){{4}}")


@dataclass(frozen=True)
class Options:
    """What the user chose; see the help of ``builder ci``."""

    service: Service
    command: str
    """The command line that wrote the file, for its first line."""
    setup: str
    """The shell command that puts builder into ``.venv``."""
    registry: str = ""
    """``HOST[/PROJECT]``; empty: the recipes' hosts if all name one, else the service's own registry."""
    runner: tuple[str, ...] = ()
    """Labels (GitHub) or tags (GitLab) of the runner that tests and publishes; empty: the hosted one."""
    smoke: SmokePlace = "runner"
    account: str = ""
    """The Slurm account of the smoke test."""
    schedule: str = MONTHLY
    """When locks are updated, as cron writes it, in UTC."""

    def check(self) -> None:
        """Raises UsageError: a value is not what a workflow can contain, or two contradict each other."""
        for option, text, pattern in (
            ("--registry", self.registry, _REGISTRY),
            ("--account", self.account, _ACCOUNT),
            ("--schedule", self.schedule, _CRON),
            *(("--runner", label, _LABEL) for label in self.runner),
        ):
            if text and not pattern.fullmatch(text):
                raise UsageError(f"{option} {text!r} is not valid", f"builder ci {self.service} --help")
        if self.smoke == "slurm" and not self.is_own_runner:
            raise UsageError(
                "--smoke slurm needs a runner of yours that can submit jobs", "add --runner self-hosted,LABEL"
            )
        if self.account and self.smoke != "slurm":
            raise UsageError("--account is for --smoke slurm", "add --smoke slurm, or omit --account")

    @property
    def is_own_runner(self) -> bool:
        """Whether the smoke test and the publish run on a machine of the user."""
        return bool(self.runner) and self.runner != (HOSTED,)


@dataclass(frozen=True)
class Workflow:
    """The values that a template writes."""

    options: Options
    targets: tuple[str, ...]
    updated: tuple[str, ...]
    """The targets with a lock that builder makes and updates."""
    locks: tuple[str, ...]
    """The lock files of ``updated``, relative to the project."""
    debian: str
    """The Debian suite of the job's container, for ``debian:`` bases; empty: none needs one."""
    own_registry: bool
    """The image goes into the registry of the service itself."""
    registry: str
    """``HOST[/PROJECT]`` for ``--registry``; empty: the service's, or the recipes' own."""
    host: str
    """The registry's host, which alone gets the password; empty: the recipes name several."""

    @classmethod
    def of(cls, recipes: Sequence[Recipe], options: Options) -> Workflow:
        """The workflow of some targets.

        Raises:
            UsageError: the options are not valid, or a target needs a GPU that the runner does not have.
        """
        options.check()
        for recipe in recipes:
            if recipe.gpu.vendor != "none" and not options.is_own_runner:
                raise UsageError(
                    f"{recipe.name} is tested on a GPU ({recipe.gpu.vendor}), and hosted runners have none",
                    "name a runner of yours: --runner self-hosted,gpu (with a scheduler: --smoke slurm)",
                )
        updated = [recipe for recipe in recipes if not recipe.uses_lock_unchanged]
        suites = sorted({r.base.partition(":")[2] for r in recipes if r.base.startswith("debian:")})
        hosts = {recipe.registry.host for recipe in recipes}
        if options.registry:
            hosts = {options.registry.partition("/")[0]}
        locks = tuple(sorted({os.path.relpath(r.lock_path, r.root) for r in updated}))
        for text in (*locks, *suites, *hosts):
            if not _WORD.fullmatch(text):
                raise UsageError(
                    f"{text!r} cannot be part of a workflow", "use letters, digits and ._-/: only"
                )
        return cls(
            options=options,
            targets=tuple(recipe.name for recipe in recipes),
            updated=tuple(recipe.name for recipe in updated),
            locks=locks,
            debian=suites[0] if suites else "",
            own_registry="" in hosts,
            registry=options.registry,
            host=next(iter(hosts)) if len(hosts) == 1 else "",
        )

    @property
    def packages(self) -> str:
        """Debian packages for a job in a container, as words of a command."""
        more = ("mmdebstrap", "uidmap") if self.debian else ()
        hub = ("gh",) if self.options.service == "github" else ()
        return " ".join(sorted({*_PACKAGES, *more, *hub}))

    @property
    def publish(self) -> str:
        """The options of ``builder publish`` that are the same for all targets."""
        words = ["--on", "slurm"] if self.options.smoke == "slurm" else []
        words += ["--account", self.options.account] if self.options.account else []
        words += ["--registry", self.registry] if self.registry else []
        return "".join(f" {shlex.quote(word)}" for word in words)


def render(workflow: Workflow) -> str:
    """Returns the workflow as YAML, ending with a newline."""
    return _templates().get_template(f"{workflow.options.service}.yml.j2").render(w=workflow)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("builder.ci"),
        undefined=StrictUndefined,
        variable_start_string="[[",  # {{ }} is GitHub's
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
        comment_start_string="[#",
        comment_end_string="#]",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  YAML, not HTML: Options.check and recipes admit no special characters
    )
