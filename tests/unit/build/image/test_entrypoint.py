"""The entry point, run by real shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from builder.build.image.files import entrypoint
from tests.support.image_kit import recipe

DASH = shutil.which("dash") or "/bin/sh"


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    folder = tmp_path / "conda with blank"
    (folder / "bin").mkdir(parents=True)
    (folder / "etc/conda/activate.d").mkdir(parents=True)
    return folder


def script(tmp_path: Path, prefix: Path, scripts: dict[str, str] | None = None, **more) -> Path:
    """The entry point as a file, with activation scripts in the prefix."""
    paths = []
    for name, text in (scripts or {}).items():
        path = prefix / "etc/conda/activate.d" / name
        path.write_text(text)
        paths.append(str(path))
    text = entrypoint(recipe(tmp_path, conda={"prefix": str(prefix)}, **more), paths)
    target = tmp_path / "entrypoint"
    target.write_text(
        text.replace("/opt/builder/entrypoint", str(target))
    )  # where it re-runs itself under bash
    target.chmod(0o755)
    return target


def run(shell: list[str], file: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    environ = {"PATH": "/usr/bin:/bin", **(env or {})}
    return subprocess.run(
        [*shell, str(file), *arguments], env=environ, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def no_bash(tmp_path: Path) -> str:
    """A PATH without bash."""
    folder = tmp_path / "no-bash"
    folder.mkdir()
    for tool in ("sh", "env", "printenv"):
        (folder / tool).symlink_to(DASH if tool == "sh" else shutil.which(tool) or "")
    return str(folder)


def test_environment_and_arguments(tmp_path: Path, prefix: Path) -> None:
    """The entry point sets the environment's variables and executes its arguments."""
    file = script(tmp_path, prefix)
    out = run(
        [DASH], file, "sh", "-c", 'echo "$CONDA_PREFIX|$PATH|$PYTHONNOUSERSITE|$1"', "x", "two words; $HOME"
    )
    assert out == f"{prefix}|{prefix}/bin:/usr/bin:/bin|1|two words; $HOME\n"


def test_running_twice(tmp_path: Path, prefix: Path) -> None:
    """Running the entry point twice sources the scripts once."""
    file = script(tmp_path, prefix, {"count.sh": 'export COUNT="${COUNT}x"\n'})
    assert (
        run([DASH], file, str(file), "sh", "-c", 'echo "$COUNT $PATH"') == f"x {prefix}/bin:/usr/bin:/bin\n"
    )


def test_default_command(tmp_path: Path, prefix: Path) -> None:
    """Without arguments the recipe's command runs."""
    assert run([DASH], script(tmp_path, prefix, cmd=["printf", "%s|", "it's $HOME"])) == "it's $HOME|"


def test_without_bash(tmp_path: Path, prefix: Path, no_bash: str) -> None:
    """Without bash, scripts that sh cannot parse are left out."""
    scripts = {
        "a.sh": "arr=(one two)\nexport SECOND=${arr[1]}\n",
        "b.sh": "export PLAIN=1\n",
        "c.sh": "[[ -n x ]] && export NEVER=1\n",
    }
    file = script(tmp_path, prefix, scripts)
    out = run([DASH], file, "sh", "-c", 'echo "<$SECOND> $PLAIN"', env={"PATH": no_bash})
    assert out == "<> 1\n"


def test_recipe_variables_win(tmp_path: Path, prefix: Path, no_bash: str) -> None:
    """The recipe's variables, and their values from docker run -e, override activation scripts."""
    file = script(tmp_path, prefix, {"a.sh": "export MINE=script OTHER=script\n"}, env={"MINE": "recipe"})
    for path in ("/usr/bin:/bin", no_bash):
        assert (
            run([DASH], file, "sh", "-c", 'echo "$MINE $OTHER"', env={"MINE": "docker -e", "PATH": path})
            == "docker -e script\n"
        )


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize(
    "scripts", [(), ("/opt/conda/etc/conda/activate.d/a b.sh", "/opt/conda/etc/conda/activate.d/it's.sh")]
)
def test_shellcheck(tmp_path: Path, scripts: tuple[str, ...]) -> None:
    """shellcheck finds nothing."""
    text = entrypoint(recipe(env={"A_B": "1"}), scripts)
    done = subprocess.run(
        ["shellcheck", "-s", "sh", "-e", "SC1090", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
