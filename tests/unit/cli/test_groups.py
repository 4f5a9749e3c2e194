"""``publish.py``: it asks before each step, for the groups that recipes declare."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from builder.cli import run
from builder.cli.groups import command as publish_command
from builder.core.errors import UsageError
from tests.support.cli import Cli, ask, pass_smoke, tags
from tests.support.project import TinyProject, edit

CLONE = Path(__file__).parents[3]


def test_questions(copy: TinyProject, tmp_path: Path) -> None:
    """The script asks before each step; after a no the step is left out."""
    to = ["--ml", "--to", f"oci:{tmp_path / 'there'}", "--tag", "26.11"]
    result = ask(copy, to, "n\nn\n")
    assert (
        "Prune what the cache has not used for 30 days? [y/N]" in result.output
        and "Build tiny? [Y/n]" in result.output
    )
    assert "publish it to" not in result.output
    result = ask(copy, to, "n\ny\nn\n")
    assert f"publish it to oci:{tmp_path / 'there'} as 26.11, latest? [Y/n]" in result.output
    assert "is built, not published" in result.output and not (tmp_path / "there").exists()


def test_nobody_answers(copy: TinyProject) -> None:
    """In CI, without ``-y``: an error that names it, and not an interrupt."""
    with pytest.raises(UsageError, match="there is no terminal to ask at") as caught:
        ask(copy, ["--ml", "--to", "oci:there"])
    assert "-y" in caught.value.hint


def test_yes(copy: TinyProject, do: Cli, tmp_path: Path) -> None:
    """With ``-y`` the script asks nothing."""
    pass_smoke(copy, do("build", "tiny", "--json").json["digest"])
    result = ask(copy, ["--ml", "-y", "--to", f"oci:{tmp_path / 'there'}", "--tag", "26.11"])
    assert result.exit_code == 0 and "?" not in result.output, "nobody is asked"
    assert "freed" not in result.output, "nothing was"
    assert set(tags(tmp_path / "there")) == {"26.11", "latest"}
    dry = ask(copy, ["--ml", "--dry-run", "--to", f"oci:{tmp_path / 'other'}"])
    assert dry.exit_code == 0 and "would be" in dry.output and not (tmp_path / "other").exists()


def test_groups_of_recipes(copy: TinyProject, capsys: pytest.CaptureFixture[str]) -> None:
    """Each group that a recipe declares is an option."""
    script = [sys.executable, str(CLONE / "publish.py")]
    none = subprocess.run(
        script, capture_output=True, text=True, env={**copy.variables(), "PYTHONPATH": str(CLONE)}
    )
    assert none.returncode == 2 and "name a group:" in none.stderr
    assert "--gui" in none.stderr and "--ml" in none.stderr
    assert run(publish_command(CLONE), ["--gui", "-y"]) == 3
    assert "no recipe declares the group 'gui'" in capsys.readouterr().err
    edit(copy.recipe, group=["own-one"])
    result = ask(copy, ["--help"])
    assert "--own-one" in result.output and "--ml" in result.output


@pytest.mark.parametrize(
    ("group", "code", "words"),
    [
        ("[ml", 3, "not valid YAML"),
        ("5", 3, "group: must be"),
        ("[5, '--x', 'a b', ml]", 3, "group.0: must be text"),
    ],
)
def test_invalid_recipe(tiny: TinyProject, group: str, code: int, words: str) -> None:
    """A recipe that is wrong ends in one message, also while publish.py looks for groups."""
    tiny.recipe.write_text(tiny.recipe.read_text().replace("group: [ml]", f"group: {group}"))
    program = f"from pathlib import Path\nfrom builder.cli.groups import main\nmain(Path({str(tiny.root)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program, "--ml", "-y"],
        env={**tiny.variables(), "PYTHONPATH": str(CLONE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr, done.stderr
