"""Runs the jobs of the templates in ``examples/ci`` as GitHub and GitLab do, in folders of this machine.

A job gets a new checkout of a bare repository, with as much history as the service fetches, and the shell
that the service uses. Steps that install something are not run: the checkout's ``.venv/bin/builder`` is a
script of the test. Conditions (``if:``, ``rules:``) are not evaluated.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, ClassVar

import yaml

from tests.support.programs import run_program

TEMPLATES = Path(__file__).parents[2] / "examples" / "ci"
#: The user and password of the service's registry.
USER, PASSWORD = "me", "secret"
_INSTALLS = re.compile(r"apt-get|pip install")
#: What a checkout has of installed programs and caches: two files that look like locks.
_LEFTOVERS = (".venv/lib/other.lock.yml", ".cache/other.lock.yml")
_GLOBS = {"**/": "(?:.*/)?", "*": "[^/]*"}


def matches(pattern: str, path: str) -> bool:
    """Return whether a changed file starts a pipeline, as both services document their patterns.

    ``*`` matches anything but a slash, ``**/`` any number of folders, also none. GitHub: "Filter pattern
    cheat sheet". GitLab: Ruby's ``File.fnmatch`` with FNM_PATHNAME, FNM_DOTMATCH and FNM_EXTGLOB.
    """
    assert not re.search(r"\*\*(?!/)|[?+!{}\[\]\\]", pattern), "the services read it differently"
    words = re.split(r"(\*\*/|\*)", pattern)
    return bool(re.fullmatch("".join(_GLOBS.get(word) or re.escape(word) for word in words), path))


def publishes(template: str, paths: Sequence[str]) -> bool:
    """Return whether a push that changes these files starts the job ``publish`` of a template."""
    text = yaml.safe_load((TEMPLATES / template).read_text())
    if template == GitHub.file:
        patterns = text[True]["push"]["paths"]  # YAML reads "on" as a truth value
    else:
        patterns = [pattern for rule in text["publish"]["rules"] for pattern in rule.get("changes", ())]
    return any(matches(pattern, path) for pattern in patterns for path in paths)


def git(folder: Path, *words: str) -> str:
    """Run git in a folder; return what it prints."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    identity = ["-c", "user.name=me", "-c", "user.email=me@host.example"]
    return run_program(["git", *identity, *words], env, cwd=folder).stdout


@dataclass
class Service(ABC):
    """A CI service of one repository."""

    file: ClassVar[str]
    """The name of its template."""
    folder: Path
    """Gets the checkouts, and the file ``calls`` with the arguments of ``gh`` and ``curl``."""
    origin: Path
    """A bare repository; its name ends with ``.git``."""
    name: str
    """Its name at the service, ``OWNER/NAME``."""
    registry: str
    """Host and port of the service's registry."""
    env: Mapping[str, str]
    """The variables of this machine."""
    builder: str
    """The script that is ``.venv/bin/builder``."""
    cache: Path | None = None
    """What the service restores as ``.cache/builder``."""
    jobs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        git(self.origin, "config", "receive.advertisePushOptions", "true")
        programs = self.folder / "programs"
        programs.mkdir(parents=True)
        for name in ("gh", "curl"):
            script = f'#!/bin/sh\nprintf "{name} %s\\n" "$*" >> {self.calls}\n'
            if name == "gh":  # a pull request may be open already
                script += f'[ "$1 $2" != "pr create" ] || [ ! -e {self.folder}/open ]\n'
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
        self.env = {**self.env, "PATH": f"{programs}:{self.env['PATH']}"}

    @property
    def calls(self) -> Path:
        return self.folder / "calls"

    @abstractmethod
    def run(self, job: str) -> Path:
        """Run the steps of a job; return its checkout."""

    @abstractmethod
    def report(self, made: Path) -> str:
        """Return the text of the pull request that an update opened."""

    def template(self) -> Any:
        """Return the template, with this registry in place of GitHub's."""
        return yaml.safe_load((TEMPLATES / self.file).read_text().replace("ghcr.io", self.registry))

    def checkout(self, depth: int) -> Path:
        """Return a new checkout of the main branch: of all history and tags, or of ``depth`` commits."""
        self.jobs += 1
        made = self.folder / str(self.jobs) / "mine"
        history = [f"--depth={depth}", "--no-tags"] if depth else []
        git(self.origin, "clone", "--quiet", "--branch=main", *history, self.origin.as_uri(), str(made))
        program = made / ".venv/bin/builder"
        program.parent.mkdir(parents=True)
        program.write_text(self.builder)
        program.chmod(0o755)
        (made / ".cache").mkdir()
        if self.cache is not None:
            (made / ".cache/builder").symlink_to(self.cache)
        for name in _LEFTOVERS:
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).touch()
        return made


class GitHub(Service):
    """GitHub Actions."""

    file = "github.yml"

    def run(self, job: str) -> Path:
        workflow = self.template()
        steps = workflow["jobs"][job]["steps"]
        (checkout,) = (step for step in steps if "actions/checkout@" in step.get("uses", ""))
        made = self.checkout(checkout["with"].get("fetch-depth", 1))
        env = {**self.env, **workflow["env"], **self._variables(made)}
        for step in steps:
            if "run" in step and not _INSTALLS.search(step["run"]):
                own = {name: self._value(text, made) for name, text in step.get("env", {}).items()}
                # the shell of a container is sh, if the step names none
                bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]
                shell = bash if step.get("shell") == "bash" else ["sh", "-ec"]
                run_program([*shell, step["run"]], {**env, **own}, cwd=made)
                lines = (made.parent / "env").read_text().splitlines()
                env |= dict(line.split("=", 1) for line in lines)
        return made

    def report(self, made: Path) -> str:
        (call,) = (c for c in self.calls.read_text().splitlines() if c.startswith("gh pr create"))
        return Path(call.rpartition("--body-file ")[2]).read_text()

    def _variables(self, made: Path) -> dict[str, str]:
        """Return the variables of a job, and make its files."""
        files = {"GITHUB_ENV": "env", "GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary"}
        for name in files.values():
            (made.parent / name).touch()
        paths = {variable: made.parent / name for variable, name in files.items()}
        paths |= {"GITHUB_WORKSPACE": made, "RUNNER_TEMP": made.parent}
        return {"GITHUB_REPOSITORY": self.name, **{name: str(path) for name, path in paths.items()}}

    def _value(self, text: str, made: Path) -> str:
        """Return a text with the values of its expressions."""
        values = {
            "github.token": PASSWORD,
            "secrets.GITHUB_TOKEN": PASSWORD,
            "github.actor": USER,
            "github.ref_name": "main",
            "github.repository": self.name,
            "github.server_url": "https://host.example",
            "github.sha": git(made, "rev-parse", "HEAD").strip(),
            "inputs.only": "",
        }
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: values[found[1]], text)


class GitLab(Service):
    """GitLab CI."""

    file = "gitlab.yml"

    def run(self, job: str) -> Path:
        template = self.template()
        below, own = template[template[job]["extends"]], template[job]
        assert all(_INSTALLS.search(line) for line in below["before_script"])
        variables = {**below["variables"], **own.get("variables", {})}
        made = self.checkout(int(variables.get("GIT_DEPTH", 20)))
        git(made, "checkout", "--quiet", "--detach")
        given = self._variables(made)
        env = {name: Template(str(text)).substitute(given) for name, text in variables.items()}
        script = "\n".join(own["script"])
        run_program(["bash", "-eo", "pipefail", "-c", script], {**self.env, **given, **env}, cwd=made)
        return made

    def report(self, made: Path) -> str:
        return git(made, "log", "-1", "--format=%b")  # GitLab takes the commit's text

    def _variables(self, made: Path) -> dict[str, str]:
        """Return the variables that GitLab sets."""
        return {
            "CI_PROJECT_DIR": str(made),
            "CI_PROJECT_ID": "1",
            "CI_PROJECT_URL": self.origin.with_suffix("").as_uri(),
            "CI_API_V4_URL": "https://host.example/api/v4",
            "CI_SERVER_HOST": "host.example",
            "CI_DEFAULT_BRANCH": "main",
            "CI_COMMIT_SHA": git(made, "rev-parse", "HEAD").strip(),
            "CI_JOB_TOKEN": PASSWORD,
            "CI_REGISTRY": self.registry,
            "CI_REGISTRY_IMAGE": f"{self.registry}/{self.name.lower()}",
            "CI_REGISTRY_USER": USER,
            "CI_REGISTRY_PASSWORD": PASSWORD,
            "LOCK_TOKEN": PASSWORD,
        }
