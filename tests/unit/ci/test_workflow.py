"""Workflows of GitHub and GitLab: their schema, their scripts, and what they refuse."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema

from builder.ci.workflow import Options, Service, Workflow, render
from builder.config.recipe import Recipe
from builder.errors import UsageError

ROOT = Path(__file__).parents[3]
HERE = sorted((ROOT / ".github/workflows").glob("*.yml"))
SETUP = "python3 -m venv .venv && .venv/bin/pip install --quiet 'git+https://git.example/o/builder@v1'"
SCHEMAS = {"github": "vendor.github-workflows", "gitlab": "vendor.gitlab-ci"}
TIMEOUTS = "custom.github-workflows-require-timeout"


def recipe(name: str = "cpu", **values: Any) -> Recipe:
    known = {"base": "debian:bookworm", "environment": f"environments/{name}.yml", "root": Path("/p")}
    return Recipe.model_validate({"name": name, **known, **values})


def options(service: Service = "github", **values: Any) -> Options:
    return replace(Options(service, "builder ci x", SETUP), **values)


GPU = {"gpu": {"vendor": "nvidia"}, "base": "docker://docker.io/library/debian:12"}
#: Workflows that differ in what they contain.
CASES = {
    "debian": ([recipe()], {}),
    "several": ([recipe("a", base="oci:b"), recipe("b", base="oci:b")], {}),
    "gpu": ([recipe(**GPU)], {"runner": ("self-hosted", "gpu")}),
    "slurm": ([recipe(**GPU)], {"runner": ("login",), "smoke": "slurm", "account": "m0000"}),
    "registry": ([recipe()], {"registry": "quay.io/team"}),
    "hosts": ([recipe("a", registry={"host": "a.example"}), recipe("b", registry={"host": "b.example"})], {}),
    "foreign": ([recipe(lock="conda-lock.yml")], {}),
}


def rendered(case: str, service: Service) -> str:
    recipes, values = CASES[case]
    return render(Workflow.of(recipes, options(service, **values)))


def check_schema(schema: str, text: str) -> None:
    """Validates with a schema that check-jsonschema brings along."""
    data = yaml.safe_load(text.replace("\non:", '\n"on":'))  # to YAML 1.1, on is true
    errors = jsonschema.Draft7Validator(get_builtin_schema(schema)).iter_errors(data)
    assert [f"{error.json_path}: {error.message}" for error in errors] == []


@pytest.mark.parametrize("service", ["github", "gitlab"])
@pytest.mark.parametrize("case", CASES)
def test_schema(case: str, service: Service) -> None:
    """All of them follow the published schema, and jobs of GitHub have a time limit."""
    check_schema(SCHEMAS[service], rendered(case, service))
    if service == "github":
        check_schema(TIMEOUTS, rendered(case, service))


def test_schema_finds_mistakes() -> None:
    for service, wrong in (("github", "timeout-minutes: soon"), ("gitlab", "timeout: 4")):
        text = re.sub(r"timeout[\w-]*: \w+", wrong, rendered("debian", service))  # type: ignore[arg-type]
        with pytest.raises(AssertionError, match="is not valid|is not of type"):
            check_schema(SCHEMAS[service], text)


@pytest.mark.parametrize("path", HERE, ids=lambda path: path.stem)
def test_workflows_here(path: Path) -> None:
    """The workflows of this repository follow the schema too."""
    check_schema(SCHEMAS["github"], path.read_text())
    check_schema(TIMEOUTS, path.read_text())


@pytest.mark.skipif(not shutil.which("actionlint"), reason="actionlint is not on this machine")
def test_actionlint(tmp_path: Path) -> None:
    files = []
    for case in CASES:
        files.append(tmp_path / f"{case}.yml")
        files[-1].write_text(rendered(case, "github"))
    ignored = ("-ignore", 'label ".+" is unknown')  # labels of self-hosted runners
    subprocess.run(["actionlint", *ignored, *files, *HERE], check=True)


def scripts(text: str) -> Iterator[str]:
    """The shell scripts of a workflow."""
    data = yaml.safe_load(text)
    for job in (data.get("jobs") or data).values():
        if not isinstance(job, dict):
            continue
        yield from (step["run"] for step in job.get("steps", []) if "run" in step)
        yield from (*job.get("before_script", []), *job.get("script", []))


@pytest.mark.parametrize("service", ["github", "gitlab"])
@pytest.mark.parametrize("case", CASES)
def test_scripts(case: str, service: Service) -> None:
    """bash parses every script, and shellcheck finds nothing where it is installed."""
    found = list(scripts(rendered(case, service)))
    assert len(found) >= 3
    for script in found:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    if shutil.which("shellcheck"):
        whole = "#!/bin/bash\n" + "\n".join(found).replace("${{", "{{")
        done = subprocess.run(
            ["shellcheck", "-e", "SC2154,SC2016", "-"], input=whole, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_names_are_text(service: Service) -> None:
    """YAML reads no number, time or boolean where a name is meant: 26.10 is not 26.1."""
    names = ("26.10", "1e3", "null", "on", "007")
    recipes = [recipe(name, registry={"host": "10:30"}) for name in names]
    data = yaml.safe_load(
        render(Workflow.of(recipes, options(service, runner=("1.10", "true")))).replace("\non:", '\n"on":')
    )
    if service == "github":
        publish, paths = data["jobs"]["publish"], data["on"]["push"]["paths"]
        found, labels = publish["strategy"]["matrix"]["target"], publish["runs-on"]
        host = publish["steps"][-2]["env"]["REGISTRY_HOST"]
    else:
        publish, paths = data["publish"], data["publish"]["rules"][1]["changes"]
        found, labels = publish["parallel"]["matrix"][0]["TARGET"], data[".builder"]["tags"]
        host = publish["variables"]["REGISTRY_HOST"]
    assert found == list(names) and labels == ["1.10", "true"] and host == "10:30"
    assert all(isinstance(path, str) for path in paths)


def test_permissions() -> None:
    """Each job has the least permissions that it needs."""
    data = yaml.safe_load(rendered("debian", "github"))
    assert data["permissions"] == {}
    assert data["jobs"]["update"]["permissions"] == {"contents": "write", "pull-requests": "write"}
    assert data["jobs"]["publish"]["permissions"] == {"contents": "read", "packages": "write"}
    own = yaml.safe_load(rendered("registry", "github"))["jobs"]["publish"]
    assert own["permissions"] == {"contents": "read"}
    assert own["steps"][-2]["env"]["REGISTRY_HOST"] == "quay.io"
    assert "--registry quay.io/team" in own["steps"][-2]["run"]


def test_debian() -> None:
    """Only a ``debian:`` base needs mmdebstrap, and a container that has Debian's keys."""
    for service in ("github", "gitlab"):
        assert "mmdebstrap" in rendered("debian", service)
        assert "mmdebstrap" not in rendered("several", service) + rendered("gpu", service)
    assert "container:" not in rendered("several", "github")


def test_runner() -> None:
    data = yaml.safe_load(rendered("slurm", "github"))["jobs"]
    assert data["publish"]["runs-on"] == ["login"] and data["update"]["runs-on"] == "ubuntu-latest"
    assert '"$TARGET" --on slurm --account m0000' in rendered("slurm", "github")
    assert "actions/cache" not in rendered("gpu", "github") and "actions/cache" in rendered(
        "several", "github"
    )
    assert yaml.safe_load(rendered("gpu", "gitlab"))[".builder"]["tags"] == ["self-hosted", "gpu"]


def test_foreign_lock() -> None:
    """A lock of another tool is not updated: the schedule publishes."""
    data = yaml.safe_load(rendered("foreign", "github"))
    assert list(data["jobs"]) == ["publish"] and "if" not in data["jobs"]["publish"]
    assert "update" not in yaml.safe_load(rendered("foreign", "gitlab"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schedule": "monthly"}, "--schedule 'monthly' is not valid"),
        ({"registry": "a b"}, "--registry 'a b' is not valid"),
        ({"runner": ("gpu", "${{ x }}")}, "--runner .* is not valid"),
        ({"smoke": "slurm"}, "--smoke slurm needs a runner of yours"),
        ({"account": "m1"}, "--account is for --smoke slurm"),
        ({"account": "m1;x", "smoke": "slurm", "runner": ("a",)}, "--account 'm1;x' is not valid"),
    ],
)
def test_invalid_options(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Workflow.of([recipe()], options(**values))


@pytest.mark.parametrize(
    "values",
    [{"environment": "my env.yml"}, {"base": "debian:a${{b}}"}, {"registry": {"host": "a\u00e9"}}],
)
def test_invalid_recipes(values: dict[str, Any]) -> None:
    """No text of a recipe becomes a part of a script."""
    with pytest.raises(UsageError, match="cannot be part of a workflow"):
        Workflow.of([recipe(**values)], options())


def test_gpu_needs_a_runner() -> None:
    with pytest.raises(UsageError, match="cpu is tested on a GPU") as caught:
        Workflow.of([recipe(**GPU)], options())
    assert "--runner self-hosted,gpu" in caught.value.hint


# the scripts that open a request ----------------------------------------------------------------------------

LOCK = "environments/cpu.cpu.lock.yml"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with a commit, its origin, and programs ``gh`` and ``builder`` that write down their calls."""
    if not shutil.which("git"):
        pytest.skip("no git")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    origin, work = tmp_path / "origin.git", tmp_path / "work"
    run(tmp_path, "git", "init", "-q", "--bare", str(origin))
    run(origin, "git", "config", "receive.advertisePushOptions", "true")
    run(tmp_path, "git", "clone", "-q", str(origin), str(work))
    (work / LOCK).parent.mkdir()
    (work / LOCK).write_text("one\n")
    (work / ".gitignore").write_text("changes.md\nmessage.txt\n")
    run(work, "git", "add", ".")
    run(work, "git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    run(work, "git", "push", "-q", "origin", "HEAD")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gh").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/gh.log\n')
    (programs / "gh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return work


def run(folder: Path, *command: str, **env: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pull_request(clone: Path, tmp_path: Path) -> None:
    """The script pushes a branch with the changed locks and opens a pull request; without changes it does
    nothing.
    """
    jobs = yaml.safe_load(rendered("debian", "github"))["jobs"]
    script = jobs["update"]["steps"][-1]["run"]
    (tmp_path / "changes.md").write_text("## `cpu`\n")
    env = {"RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "BASE": "main"}
    env["GITHUB_WORKSPACE"] = str(clone)
    run(clone, "bash", "-e", "-c", script, **env)
    assert not (tmp_path / "gh.log").exists() and (tmp_path / "summary").read_text() == "## `cpu`\n"
    (clone / LOCK).write_text("two\n")
    (clone / "other").write_text("not a lock")
    run(clone, "bash", "-e", "-c", script, **env)
    log = (tmp_path / "gh.log").read_text()
    assert (
        "pr create --base main --head builder/locks-" in log and f"--body-file {tmp_path}/changes.md" in log
    )
    branches = run(tmp_path / "origin.git", "git", "branch", "--list", "builder/*").split()
    changed = run(tmp_path / "origin.git", "git", "show", "--format=", "--name-only", branches[0])
    assert changed.split() == [LOCK]


def test_merge_request(clone: Path, tmp_path: Path) -> None:
    """The commit's message is the text of the merge request: push options have no newlines."""
    script = yaml.safe_load(rendered("debian", "gitlab"))["update"]["script"][-1]
    (clone / "changes.md").write_text("## `cpu`\n\n| a |\n")
    env = {
        "CI_PROJECT_URL": str(tmp_path / "origin"),
        "CI_DEFAULT_BRANCH": "main",
        "CI_SERVER_HOST": "x.example",
    }
    assert "## `cpu`" in run(clone, "bash", "-e", "-c", script, **env)
    (clone / LOCK).write_text("two\n")
    run(clone, "bash", "-e", "-c", script, LOCK_TOKEN="t", **env)
    branches = run(tmp_path / "origin.git", "git", "branch", "--list", "builder/*").split()
    message = run(tmp_path / "origin.git", "git", "log", "-1", "--format=%B", branches[0])
    assert message.startswith("Update the locks of 2") and "\n## `cpu`\n\n| a |" in message
