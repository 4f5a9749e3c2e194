"""The fifteen mistakes of a beginner's first hour: what is typed or written, and the whole message.

``{root}`` in an expected message is the project folder.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import Cli, Result
from tests.support.project import TinyProject, edit


def said(result: Result, project: TinyProject) -> str:
    """What the command printed on stderr, without the note about the log."""
    lines = [line for line in result.err.splitlines() if not line.startswith("  log:  ")]
    lines = [line for line in lines if line != "no lock for tiny yet, locking now"]
    return "\n".join(lines).replace(str(project.root), "{root}")


def write(project: TinyProject, text: str, name: str = "environment.yml") -> None:
    """Writes an environment file, and names it in the recipe."""
    (project.root / name).write_text(text)
    edit(project.recipe, environment=name)


# 1 to 5: the environment file -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "environment.yml",
            "channels: [conda-forge]\ndependancies:\n  - numpy\n",
            "error: {root}/environment.yml:2: unknown key 'dependancies'\n  hint: did you mean "
            "'dependencies:'?",
        ),
        (
            "environment.yml",
            "channels: [conda-forge]\ndependencies:\n\t- numpy\n",
            "error: {root}/environment.yml:3: not valid YAML: a tab\n"
            "  hint: YAML takes no tabs: indent with spaces",
        ),
        (
            "pyproject.toml",
            '[tool.poetry]\nname = "mine"\n',
            "error: {root}/pyproject.toml: no [project] with dependencies, and no package that a build could "
            "ask\n  hint: name a file that lists them: environment: FILE; or let poetry lock it: poetry self "
            "add poetry-plugin-export; poetry export -o requirements.txt; then write into the recipe: "
            "lock: requirements.txt",
        ),
    ],
)
def test_environment_file(do: Cli, tiny: TinyProject, name: str, text: str, expected: str) -> None:
    """These errors come before anything is downloaded, made or written."""
    write(tiny, text, name)
    result = do("build", "tiny")
    assert result.code == 3 and said(result, tiny) == expected
    assert not list(tiny.root.rglob("*.lock.yml")) and not (tiny.root / "dist").exists()
    assert not (tiny.cache / "blobs").exists(), "the base was not read"


def test_requirements_in_the_pip_section(do: Cli, tiny: TinyProject) -> None:
    """conda's idiom works, and the lock is stale when the requirements change."""
    (tiny.environment.parent / "requirements.txt").write_text("pure==1.0\n")
    tiny.environment.write_text(tiny.environment.read_text().replace("- pure", "- -r requirements.txt"))
    assert do("lock", "tiny").code == 0 and "name: pure\n" in tiny.lock.read_text()
    (tiny.environment.parent / "requirements.txt").write_text("pure>=1.0\n")
    result = do("build", "tiny")
    assert result.code == 4 and said(result, tiny) == (
        "error: {root}/environments/tiny.tiny.lock.yml is stale: pip requirements changed: now "
        "with pure>=1.0, "
        "without pure==1.0\n  hint: builder lock tiny"
    )


# 6 and 7: packages that do not exist ------------------------------------------------------------------------


def test_unknown_conda_package(do: Cli, tiny: TinyProject) -> None:
    tiny.environment.write_text(tiny.environment.read_text().replace("- greeter", "- greter"))
    result = do("lock", "tiny")
    channel = tiny.environment.read_text().split("- ")[1].split("\n")[0]
    assert result.code == 5 and said(result, tiny) == (
        "error: {root}/environments/tiny.yml:7: no set of packages satisfies the environment for linux-64:\n"
        "No candidates were found for greter *.\n"
        f"  hint: is the name greter right? {channel} has greeter"
    )


def test_unknown_pip_package(do: Cli, tiny: TinyProject) -> None:
    tiny.environment.write_text(tiny.environment.read_text().replace("- pure", "- tensorflow-gpu"))
    result = do("lock", "tiny")
    assert result.code == 5
    assert said(result, tiny).splitlines()[1] == (
        "error: {root}/environments/tiny.yml:10: no set of wheels satisfies the pip section:"
    )
    assert "is the name tensorflow-gpu right? did you mean tensorflow?" in result.err


# 8 to 10: the recipe ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "cmd: python train.py",
            "error: {root}/recipes/mine.yaml:3: cmd: must be a list, and is text\n"
            "  hint: write cmd: [python, train.py]",
        ),
        (
            "env: {A: 1, B: yes}",
            "error: {root}/recipes/mine.yaml:3: env.A: must be text, and is a number\n"
            "{root}/recipes/mine.yaml:3: env.B: must be text, and is yes or no\n"
            '  hint: put it into quotes: A: "1"; put it into quotes: B: "yes"',
        ),
        (
            "python: 3.12",
            "error: {root}/recipes/mine.yaml:3: python: '3.12' is not one of conda, base, "
            "base-with-packages\n  hint: write python: conda or base or base-with-packages; the version is "
            "a package of the environment file: dependencies: [python=3.12]",
        ),
        (
            "gpu: {vendor: nvidia, architectures: [A100-SXM4-80GB]}",
            "error: {root}/recipes/mine.yaml:3: gpu.architectures.0: 'A100-SXM4-80GB' is not the name of an "
            "architecture: write sm_80\n  hint: correct gpu.architectures:",
        ),
        (
            "files: [{source: trian.py, target: /app/train.py}]",
            "error: {root}/recipes/mine.yaml:3: files[0]: {root}/trian.py does not exist\n"
            "  hint: correct 'source'; it is relative to {root}",
        ),
        (
            "files: [{source: train.py, target: app/train.py}]",
            "error: {root}/recipes/mine.yaml:3: files[0]: target 'app/train.py' is not an "
            "absolute path in the "
            "image\n  hint: write it from the root: target: /app/train.py",
        ),
    ],
)
def test_recipe(do: Cli, tiny: TinyProject, line: str, expected: str) -> None:
    """These errors come before anything is locked."""
    (tiny.root / "train.py").write_text("print('hello')\n")
    recipe = tiny.recipe.with_name("mine.yaml")
    recipe.write_text(f"base: oci:base\nenvironment: environments/tiny.yml\n{line}\n")
    result = do("build", "mine")
    shown = said(result, tiny).removeprefix("no lock for mine yet, locking now\n")
    assert result.code == 3 and shown == expected
    assert not list(tiny.root.rglob("*.lock.yml"))


def test_environment_that_does_not_exist(do: Cli, tiny: TinyProject) -> None:
    edit(tiny.recipe, environment="enviroments/tiny.yml")
    result = do("build", "tiny")
    line = tiny.recipe.read_text().splitlines().index("environment: enviroments/tiny.yml") + 1
    assert result.code == 3 and said(result, tiny) == (
        f"error: {{root}}/recipes/tiny.yaml:{line}: environment: "
        "{root}/enviroments/tiny.yml does not exist\n"
        "  hint: correct the path, or restore the file"
    )


# 11 to 13: the command line ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "build recipes/tiny.yaml",
            "error: no target named 'recipes/tiny.yaml' in {root}/recipes\n"
            "  hint: did you mean tiny or mine?",
        ),
        (
            "build -t tiny:latest .",
            "error: no target named '.' in {root}/recipes\n"
            "  hint: leave out the dot: builder build; known targets: mine, tiny",
        ),
        (
            "build -t tiny:latest",
            "error: no target named 'tiny:latest' in {root}/recipes\n  hint: did you mean tiny?",
        ),
        (
            "run tiny --bind dtaa:/data -- ls",
            "error: --bind {root}/dtaa:/data: {root}/dtaa does not exist\n"
            "  hint: make it: mkdir -p {root}/dtaa",
        ),
        (
            "run tiny -- python -u trian.py --lr 1",
            "error: {root} has no trian.py\n  hint: did you mean train.py?",
        ),
        (
            "run tiny -- train.py --lr=1 x.py",
            "error: train.py is a script, not a program\n  hint: write python train.py --lr=1 x.py",
        ),
    ],
)
def test_command_line(do: Cli, tiny: TinyProject, words: str, expected: str) -> None:
    tiny.recipe.with_name("mine.yaml").write_text("base: oci:base\nenvironment: environments/other.yml\n")
    (tiny.root / "data").mkdir()
    (tiny.root / "train.py").touch()
    result = do(*words.split())
    assert result.code in (2, 3) and not result.out and said(result, tiny) == expected


@pytest.mark.parametrize(
    ("words", "message", "path"),
    [
        ("biuld tiny", "No such command 'biuld'. Did you mean 'build'?", "builder"),
        ("build tiny --rebiuld", "No such option", "builder build"),
        ("cache purne", "No such command 'purne'", "builder cache"),
        ("smoke tiny --runner dokcer", "Invalid value for '--runner': 'dokcer' is not one", "builder smoke"),
    ],
)
def test_usage(do: Cli, tiny: TinyProject, words: str, message: str, path: str) -> None:
    """The message is click's own, which names similar words; the hint is the command's help."""
    result = do(*words.split())
    assert result.code == 2 and said(result, tiny).startswith(f"error: {message}")
    assert result.err.endswith(f"\n  hint: {path} --help lists the options and arguments\n")


def test_ways_to_ask(do: Cli, tiny: TinyProject) -> None:
    """help, -V, and -q and -v after the command."""
    assert do("help").out == do("--help").out
    assert do("help", "cache", "prune").out == do("cache", "prune", "--help").out
    assert do("help", "biuld").err.startswith("error: No such command 'biuld'")
    assert do("-V").out == do("--version").out != ""
    assert " 11  the smoke test failed" in do("help", "exit-codes").out
    assert do("help", "schema", "recipe").out.startswith("{")
    assert "takes one of: recipe, site, report" in do("help", "schema").err
    assert "locking now" in do("build", "tiny").err
    tiny.lock.unlink()
    assert do("build", "tiny", "-q").err == ""
    assert "D builder: command" in do("targets", "-vv").err


# 14 and 15: publishing and the machine ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "--to x",
            "error: --to x: not a repository with its host\n"
            "  hint: write --to oci:x (a folder) or --to docker.io/USER/x",
        ),
        (
            "--to environments",
            "error: --to environments: a folder, not a repository of a registry\n"
            "  hint: for an OCI layout in that folder write --to oci:environments",
        ),
        (
            "--to localhost:15055",
            "error: --to localhost:15055: a registry without a repository\n"
            "  hint: write --to localhost:15055/tests/tiny",
        ),
        (
            "",
            "error: {root}/recipes/tiny.yaml: registry.host is not set, and no --to was given\n"
            "  hint: pass --to HOST/REPOSITORY or --to oci:DIR; or write into the recipe: "
            "registry: {host: HOST, repository: tests/tiny}",
        ),
    ],
)
def test_publish(do: Cli, tiny: TinyProject, words: str, expected: str) -> None:
    """A wrong destination or tag is reported before the build."""
    result = do("publish", "tiny", *words.split())
    assert result.code == 2 and said(result, tiny) == expected and not tiny.lock.exists()


def test_json_errors(do: Cli, tiny: TinyProject) -> None:
    """With --json an error is the one document on stdout, and the message on stderr as ever."""
    for line, code in (("build tyni", 3), ("build --jsom", 2), ("bild", 2), ("build --time 1:00", 2)):
        result = do(*line.split(), "--json")
        assert result.code == code and result.err.startswith("error: ")
        assert result.json.keys() == {"schema", "error", "hint", "code"} and result.json["code"] == code
        assert result.json["error"] in result.err and result.json["hint"] in result.err
    done = json.loads(do("targets", "--json").out)
    assert done[0]["name"] == "tiny"
    assert Path(tiny.root).is_dir()
