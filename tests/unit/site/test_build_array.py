"""Builds of several targets in a job array, with commands in the place of Slurm's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from builder.config.recipe import Recipe
from builder.errors import RunnerError, UsageError
from builder.progress import NullReporter
from builder.site.build_array import (
    BuildTask,
    Outcome,
    array_script,
    build_options,
    build_task,
    run_build_array,
)
from builder.site.request import SlurmRequest

#: Runs the tasks of the array one after another; a task whose state is not its own is killed before.
SBATCH = """\
#!/bin/bash
cat > script
[[ -e $STATE/refuse ]] && { echo "sbatch: error: invalid partition" >&2; exit 1; }
last=$(sed -n 's/^#SBATCH --array=0-//p' script)
for task in $(seq 0 "$last"); do
    grep -qx "$task TIMEOUT" "$STATE/states" && continue
    SLURM_ARRAY_TASK_ID=$task bash script > "$task.log" 2>&1
done
echo 7
"""
#: First all tasks wait; then each has the state that ``states`` says.
SCONTROL = """\
#!/bin/bash
if [[ -e $STATE/asked ]]; then
    [[ -s $STATE/states ]] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
    while read -r task state; do
        printf 'JobId=1%s ArrayJobId=7 ArrayTaskId=%s JobName=x\\n   JobState=%s Reason=None\\n\\n' \\
            "$task" "$task" "$state"
    done < "$STATE/states"
    exit
fi
touch "$STATE/asked"
printf 'JobId=7 ArrayJobId=7 ArrayTaskId=0-9%%2 JobName=x\\n   JobState=PENDING Reason=Priority\\n'
"""
SCANCEL = '#!/bin/bash\necho "$@" >> "$STATE/cancelled"\n'


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the commands find what to do, and write what they did."""
    folder = tmp_path / "state"
    (folder / "bin").mkdir(parents=True)
    for name, text in (("sbatch", SBATCH), ("scontrol", SCONTROL), ("scancel", SCANCEL)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("STATE", str(folder))
    return folder


def task(name: str, script: str, *, options: tuple[str, ...] = (), setup: tuple[str, ...] = ()) -> BuildTask:
    return BuildTask(name, ("bash", "-c", script), options, setup)


def built(target: str) -> str:
    return f"""echo '{json.dumps({"target": target, "digest": "d"})}'"""


def run(tasks: list[BuildTask], folder: Path) -> list[Outcome]:
    return run_build_array(tasks, folder, NullReporter(), sleep=lambda seconds: None)


SITE: dict[str, Any] = {
    "title": "Site",
    "launcher": "torchrun",
    "modules": ["LUMI"],
    "slurm": {
        "account_example": "project_465000000",
        "account_form": r"project_\d{9}",
        "partitions": {"debug": {"max_time": "00:30:00"}, "small": {"max_time": "1-00:00:00"}},
        "queues": {
            "build": {
                "partition": "debug",
                "memory": "64G",
                "cpus_per_task": 32,
                "time": "00:30:00",
                "options": ["--exclusive"],
            }
        },
    },
}
ACCOUNT = "project_465000000"


def recipe(**values: Any) -> Recipe:
    data = {"name": "t", "base": "debian:bookworm", "environment": "t.yml", "site": SITE}
    return Recipe.model_validate({**data, "source": Path("recipes/t.yaml"), **values})


def test_script() -> None:
    """The site's queue for builds, its set-up lines, and one build for each task."""
    options = build_options(recipe(), account=ACCOUNT)
    tasks = [build_task(recipe(name=name), ["builder", "a b"], options) for name in ("one", "two")]
    lines = array_script(tasks).splitlines()
    assert lines[0] == "#!/bin/bash -l"
    assert [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")] == [
        "--job-name=builder-build",
        f"--account={ACCOUNT}",
        "--partition=debug",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=32",
        "--mem=64G",
        "--time=00:30:00",
        "--exclusive",
        "--array=0-1",
        "--output=%a.log",
    ]
    assert lines.index("module load LUMI") < lines.index("1) # two")
    assert lines.count("    run builder 'a b'") == 2


def test_asked() -> None:
    """Options of the user take the place of the recipe's."""
    asked = SlurmRequest("small", "high", ("--reservation=course", "--constraint=cpu"))
    options = build_options(recipe(), account=ACCOUNT, time="02:00:00", asked=asked)
    assert {"--partition=small", "--qos=high", "--reservation=course", "--constraint=cpu"} <= set(options)
    assert "--time=02:00:00" in options and "--partition=debug" not in options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"time": "01:00:00"}, r"exceeds the limit of partition debug \(00:30:00\)\n.*--partition small"),
        ({"time": "soon"}, "--time: 'soon' is not a time"),
        ({"account": ""}, r"Site require an account(.|\n)*such as project_465000000"),
        ({"asked": SlurmRequest(partition="smal")}, "no such partition\n.*did you mean small"),
    ],
)
def test_refused(given: dict[str, Any], message: str) -> None:
    """What Slurm would refuse is refused before, with the place that takes it."""
    with pytest.raises(UsageError, match=message):
        build_options(recipe(), **{"account": ACCOUNT, **given})
    with pytest.raises(UsageError, match=r"site.slurm is not set: target t has no compute nodes"):
        build_options(recipe(site={}))


def test_outcomes(state: Path, tmp_path: Path) -> None:
    """Each target has a row: built, failed with the build's error, ended by Slurm, or without a result."""
    error = {"error": "no space\nleft", "hint": "free some", "code": 13}
    tasks = [
        task("good", built("good")),
        task("bad", f"echo note >&2; echo '{json.dumps(error)}'; exit 13"),
        task("slow", built("slow")),
        task("odd", "echo Loading; echo broken >&2; exit 0"),
    ]
    (state / "states").write_text("0 COMPLETED\n1 FAILED\n2 TIMEOUT\n3 COMPLETED\n")
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "good.log").write_text("an earlier failure")
    good, bad, slow, odd = run(tasks, dist)
    assert good == Outcome("good", "built", {"target": "good", "digest": "d"})
    assert bad == Outcome("bad", "failed", {}, "no space\nleft", "free some", 13, dist / "bad.log")
    assert (slow.state, slow.code) == ("timeout", RunnerError.exit_code)
    assert slow.error == "job 7_2 ended as TIMEOUT and left no result: no output"
    assert odd.state == "failed" and odd.error.endswith("left no result: broken")
    assert (dist / "bad.log").read_text() == "note\n"
    assert {path.name for path in dist.iterdir()} == {"bad.log", "odd.log"}
    assert not (state / "cancelled").exists()


def test_other_options(state: Path, tmp_path: Path) -> None:
    """Targets of another site have an array of their own; if Slurm forgot it, the files count."""
    (state / "states").write_text("")
    tasks = [task(name, built(name), options=(f"--partition={name[0]}",)) for name in ("a1", "b1", "a2")]
    assert [(o.target, o.state) for o in run(tasks, tmp_path)] == [(n, "built") for n in ("a1", "b1", "a2")]


def test_rejected(state: Path, tmp_path: Path) -> None:
    (state / "refuse").touch()
    (outcome,) = run([task("a", built("a"))], tmp_path)
    assert outcome.state == "rejected" and "invalid partition" in outcome.error
    assert outcome.code == RunnerError.exit_code and outcome.log is None


def test_interrupt(state: Path, tmp_path: Path) -> None:
    """Ctrl-C cancels all arrays and leaves no folder."""
    (state / "states").write_text("0 RUNNING\n")

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    tasks = [task(name, built(name), options=(f"--partition={name}",)) for name in ("a", "b")]
    with pytest.raises(KeyboardInterrupt):
        run_build_array(tasks, tmp_path / "dist", NullReporter(), sleep=interrupt)
    assert (state / "cancelled").read_text() == "7\n7\n" and list((tmp_path / "dist").iterdir()) == []
