"""The workflows of ``examples/ci`` and our own: valid YAML, valid shell, and commands that builder has."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.ciservice import publishes
from tests.support.doccommands import parse
from tests.support.parts import part_missing

ROOT = Path(__file__).parents[2]
FILES = ("examples/ci/github.yml", "examples/ci/gitlab.yml", ".github/workflows/publish.yml")


def scripts(node: Any) -> Iterator[str]:
    """Find the shell scripts of a workflow: ``run:`` of GitHub, ``script:`` of GitLab."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if key in ("run", "script", "before_script"):
            yield value if isinstance(value, str) else "\n".join(value)
        elif isinstance(value, dict | list):
            yield from scripts(value)


@pytest.mark.parametrize("name", FILES)
def test_workflow(name: str) -> None:
    text = (ROOT / name).read_text()
    found = list(scripts(yaml.safe_load(text)))
    assert any("lock --changes" in s or "lock perlmutter" in s for s in found)
    for action in re.findall(r"uses: (\S+)", text):
        assert re.search(r"@[0-9a-f]{40}$", action), "actions are pinned by commit"
    for script in found:
        for words in re.findall(r"\.venv/bin/builder ([^|\n)]*)", script):
            check_command(shlex.split(words.replace('${ONLY:+--only "$ONLY"}', "--only latest")))
        if shutil.which("shellcheck"):
            command = ["shellcheck", "--shell=bash", "--exclude=SC2016,SC2086", "-"]
            subprocess.run(command, input=script, text=True, check=True)


@pytest.mark.parametrize("template", ["github.yml", "gitlab.yml"])
def test_watched(template: str) -> None:
    """Locks of builder and conda-lock are found in every folder, wheels that builder built in ``wheels/``."""
    for path in (
        "environment.mine.lock.yml",
        "environments/cpu.cpu.lock.yml",
        "conda-lock.yml",
        "locks/gpu.conda-lock.yml",
        "wheels/mine-1.0-py3-none-any.whl",
        "wheels/0123456789ab/mine-1.0-py3-none-any.whl",
    ):
        assert publishes(template, [path]), path
    assert not publishes(
        template, ["uv.lock", "environment.yml", "recipes/mine.yaml", "src/wheels/notes.txt"]
    )


def check_command(words: list[str]) -> None:
    """Fail if builder has no such command, or the command has no such option."""
    words = words[: words.index(">>")] if ">>" in words else words
    parse(words)


#: What answers in place of builder: of the images of two months one differs, or last month has none.
STUB = """\
#!/bin/sh
[ "$1" = targets ] && echo '[{"name": "tiny"}]' && exit
echo "$2 $3" >> asked
[ "$CODE" = 9 ] || echo "## notes"
[ "$CODE" = 1 ] && yes '| `@all` |' | head -n 20000
exit "$CODE"
"""


@pytest.mark.parametrize("code", [0, 1, 9])
@pytest.mark.parametrize("name", FILES)
def test_release_notes(tmp_path: Path, name: str, code: int) -> None:
    """The step compares this month with the last one, and does not fail if there is none."""
    if name != FILES[2] and shutil.which("jq") is None:
        part_missing("jq is not installed: apt-get install jq")
    (script,) = (s for s in scripts(yaml.safe_load((ROOT / name).read_text())) if "builder diff" in s)
    made = run_step(tmp_path, script[script.index("month=") : script.find(".venv/bin/builder cache")], code)
    old, new = re.findall(r":(\d\d\.\d\d)", (tmp_path / "asked").read_text())
    assert (int(new[:2]) * 12 + int(new[3:])) - (int(old[:2]) * 12 + int(old[3:])) == 1
    assert ("was not compared with" in made) is (code == 9) and ("## notes" in made) is (code != 9)
    output = tmp_path / "github_output"
    lines = output.read_text().splitlines()[2:-1] if output.exists() else []
    assert lines == made.splitlines()[: len(lines)], "no line is cut: nobody is mentioned"


def run_step(folder: Path, script: str, code: int) -> str:
    """Run a step with a builder that exits with ``code``; return the notes."""
    (folder / ".venv/bin").mkdir(parents=True)
    for name, text in {".venv/bin/builder": STUB, "curl": "#!/bin/sh\nexit 7\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    names = ("RUNNER_TEMP", "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT", "CI_REGISTRY_IMAGE", "GITHUB_REPOSITORY")
    env = {**os.environ, **{name: str(folder / name.lower()) for name in names}}
    env |= {
        "RUNNER_TEMP": str(folder),
        "CODE": str(code),
        "TARGET": "tiny",
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=folder, env=env, check=True)
    return (folder / "notes.md").read_text()
