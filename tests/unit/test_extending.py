"""The pages of ``docs/extending``, followed literally in a copy of builder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.channel import serve
from tests.support.doccommands import ROOT, apply
from tests.support.project import edit, tiny_channel, tiny_project

PAGES = ROOT / "docs" / "extending"
REPORT = {
    "version": "1",
    "pip_version": "24.0",
    "environment": {"python_version": "3.11"},
    "install": [
        {
            "metadata": {"name": "Rich", "version": "13.0"},
            "download_info": {
                "url": "https://files.example/rich-13.0-py3-none-any.whl",
                "archive_info": {"hashes": {"sha256": "a" * 64}},
            },
        }
    ],
}
#: Stands for bubblewrap: executes the program in the folder that it would mount at /.
BWRAP = """\
#!/bin/sh
while [ "$1" != -- ]; do
    [ "$1" = --overlay-src ] && root=$2
    shift
done
exec "$root$2"
"""
#: Prints the file that ``builder init`` takes, and its format.
FIND = """\
from pathlib import Path
from builder.cli.start.found import candidates
print(*(f"{found.path} {found.lock}" for found in candidates(Path())))
"""
#: Prints the names of the runners in both orders, and what is wrong with the new one, as an ordinary user.
TRY_RUNNER = """\
import json, os
os.geteuid = lambda: 1000
from builder.build.run import RUNNER_NAMES
from builder.build.run.select import runner_classes
from builder.build.run.trial import try_runner
problem = try_runner(runner_classes()[-1])
print(json.dumps([RUNNER_NAMES, [kind.name for kind in runner_classes()], problem and problem.reason]))
"""


@dataclass(frozen=True)
class Changed:
    """A copy of builder and its project with the changes of a page."""

    root: Path

    def python(self, *words: str, cwd: Path | None = None, **env: str) -> str:
        """Runs Python with this copy of builder; returns the output."""
        done = subprocess.run(
            [sys.executable, *words],
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.root), "PYTHONPATH": str(self.root), **env},
            cwd=cwd or self.root,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def follow(tmp_path: Path) -> Callable[[str], Changed]:
    """``follow("site")`` makes the changes of a page in a copy."""

    def follow(name: str) -> Changed:
        root = tmp_path / "clone"
        for folder in ("builder", "recipes", "environments"):
            shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
        apply(PAGES / f"{name}.md", root)
        return Changed(root)

    return follow


def test_lock_format(follow: Callable[[str], Changed], tmp_path: Path) -> None:
    """``builder init`` finds such a lock, and ``builder lock`` imports it with a Python from the channel."""
    changed = follow("lock-format")
    with serve(tiny_channel(tmp_path / "channel")) as server:
        project = tiny_project(tmp_path, server.url)
        (project.root / "pip-report.json").write_text(json.dumps(REPORT, indent=2))
        found = changed.python("-c", FIND, cwd=project.root)
        assert found == "pip-report.json pipreport\n"
        edit(
            project.recipe,
            lock="pip-report.json",
            environment="",
            conda={"channels": [server.url]},
            bytecode="none",
        )
        changed.python("-m", "builder", "lock", "tiny", cwd=project.root, **project.variables())
    [lock] = project.root.glob("*.lock.yml")
    assert "name: rich\n" in lock.read_text() and "python-3.11.9" in lock.read_text()


def test_site(follow: Callable[[str], Changed]) -> None:
    """The target has a job, and ``make schemas`` has something to write."""
    changed = follow("site")
    job = changed.python("-m", "builder", "job", "lab", "--", "python", "train.py")
    assert "#SBATCH --gpus-per-node=1" in job and "apptainer exec" in job
    schema = changed.python("-m", "builder", "help", "schema", "recipe")
    assert '"lab"' in schema and '"lab"' not in (ROOT / "docs/schemas/recipe.schema.json").read_text()


def test_runner(follow: Callable[[str], Changed], tmp_path: Path) -> None:
    """It is among the runners, and runs the container of ``builder doctor``."""
    program = tmp_path / "bwrap"
    program.write_text(BWRAP)
    program.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    names, classes, problem = json.loads(follow("runner").python("-c", TRY_RUNNER, PATH=path))
    assert names[-1] == "bwrap" and sorted(names) == sorted(classes)
    assert problem is None


def test_runtime(follow: Callable[[str], Changed]) -> None:
    changed = follow("runtime")
    edit(changed.root / "recipes" / "cpu.yaml", site={"launcher": "torchrun", "runtime": {"kind": "nerdctl"}})
    line = changed.python("-m", "builder", "run", "cpu", "--print", "--", "true")
    assert line.startswith("nerdctl run --rm ") and line.endswith(" true\n")


def test_probe(follow: Callable[[str], Changed], tmp_path: Path) -> None:
    """The report has it, with a limit of this process."""
    report = tmp_path / "report.json"
    bench = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)); "
    bench += f"sys.argv[1:] = ['--framework', 'none', '--json', {str(report)!r}]; "
    bench += "runpy.run_module('builder.bench', run_name='__main__')"
    follow("probe").python("-c", bench)
    [found] = [probe for probe in json.loads(report.read_text())["probes"] if probe["id"] == "system.files"]
    assert (found["status"], found["seen"]) == ("warn", "512 open files")
