"""Builds of several targets in jobs, with commands in the place of Slurm's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import RunnerError, UsageError
from builder.core.progress import Reporter
from builder.deliver.site import scheduler
from builder.deliver.site.build_jobs import BuildOutcome, build_script, run_builds
from builder.deliver.site.request import JobRequest, SlurmRequest
from builder.lock.config.recipe import Recipe

#: Runs the job at once; one whose state is TIMEOUT is killed before. The number is that of the submission.
SBATCH = """\
#!/bin/bash
cat > script
[[ -e $STATE/refuse ]] && { echo "sbatch: error: invalid partition" >&2; exit 1; }
echo >> "$STATE/submitted"
number=$(wc -l < "$STATE/submitted")
grep -qx "$number TIMEOUT" "$STATE/states" || bash script > log 2>&1
echo "$number"
"""
#: Each job has the state that ``states`` says; Slurm has forgotten the others.
SCONTROL = """\
#!/bin/bash
state=$(sed -n "s/^$3 //p" "$STATE/states")
[[ -n $state ]] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
printf 'JobId=%s JobName=x\\n   JobState=%s Reason=None\\n\\n' "$3" "$state"
"""
SCANCEL = '#!/bin/bash\necho "$@" >> "$STATE/cancelled"\n'


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the commands find what to do, and write what they did. Nothing waits."""
    monkeypatch.setattr(scheduler.time, "sleep", lambda seconds: None)
    folder = tmp_path / "state"
    (folder / "bin").mkdir(parents=True)
    for name, text in (("sbatch", SBATCH), ("scontrol", SCONTROL), ("scancel", SCANCEL)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("STATE", str(folder))
    (folder / "states").touch()
    return folder


def build(command: str) -> str:
    """The script of a job that leaves the output of a command."""
    return f"({command}\n) > result.json"


def built(target: str) -> str:
    return f"""echo '{json.dumps({"target": target, "digest": "d"})}'"""


def run(scripts: dict[str, str], folder: Path) -> list[BuildOutcome]:
    return run_builds(scripts, folder, Reporter())


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
    """The site's queue for builds, its set-up lines, and the build."""
    lines = build_script(recipe(), ["builder", "a b"], JobRequest(account=ACCOUNT)).splitlines()
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
        "--open-mode=append",
        "--output=log",
    ]
    assert lines.index("module load LUMI") < lines.index("exec builder 'a b' > result.json")


def test_asked() -> None:
    """Options of the user take the place of the recipe's."""
    asked = SlurmRequest("small", "high", ("--reservation=course", "--constraint=cpu"))
    script = build_script(recipe(), ["x"], JobRequest(account=ACCOUNT, time="02:00:00", slurm=asked))
    options = [line.removeprefix("#SBATCH ") for line in script.splitlines()]
    assert {"--partition=small", "--qos=high", "--reservation=course", "--constraint=cpu"} <= set(options)
    assert "--time=02:00:00" in options and "--partition=debug" not in options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"time": "01:00:00"}, r"exceeds the limit of partition debug \(00:30:00\)\n.*--partition small"),
        ({"time": "soon"}, "--time: 'soon' is not a time"),
        ({"account": ""}, r"Site require an account(.|\n)*such as project_465000000"),
        ({"slurm": SlurmRequest(partition="smal")}, "no such partition\n.*did you mean small"),
    ],
)
def test_refused(given: dict[str, Any], message: str) -> None:
    """What Slurm would refuse is refused before, with the place that takes it."""
    with pytest.raises(UsageError, match=message):
        build_script(recipe(), ["x"], JobRequest(**{"account": ACCOUNT, **given}))
    with pytest.raises(UsageError, match=r"site.slurm is not set: target t has no compute nodes"):
        build_script(recipe(site={}), ["x"], JobRequest())


def test_outcomes(state: Path, tmp_path: Path) -> None:
    """Each target has a row: built, failed with the build's error, ended by Slurm, or without a result."""
    error = {"error": "no space\nleft", "hint": "free some", "code": 13}
    scripts = {
        "good": build(built("good")),
        "bad": build(f"echo note >&2; echo '{json.dumps(error)}'; exit 13"),
        "slow": build(built("slow")),
        "odd": build("echo Loading; echo broken >&2; exit 0"),
    }
    (state / "states").write_text("1 COMPLETED\n2 FAILED\n3 TIMEOUT\n4 COMPLETED\n")
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "good.log").write_text("an earlier failure")
    good, bad, slow, odd = run(scripts, dist)
    assert good == BuildOutcome("good", "built", {"target": "good", "digest": "d"})
    assert bad == BuildOutcome("bad", "failed", {}, "no space\nleft", "free some", 13, dist / "bad.log")
    assert (slow.state, slow.code) == ("timeout", RunnerError.exit_code)
    assert slow.error == "job 3 ended as TIMEOUT and left no result: no output"
    assert odd.state == "failed" and odd.error.endswith("left no result: broken")
    assert (dist / "bad.log").read_text() == "note\n"
    assert {path.name for path in dist.iterdir()} == {"bad.log", "odd.log"}
    assert not (state / "cancelled").exists()


def test_forgotten(state: Path, tmp_path: Path) -> None:
    """If Slurm has forgotten a job, its result counts."""
    (outcome,) = run({"a": build(built("a"))}, tmp_path)
    assert outcome.state == "built"


def test_rejected(state: Path, tmp_path: Path) -> None:
    (state / "refuse").touch()
    (outcome,) = run({"a": build(built("a"))}, tmp_path)
    assert outcome.state == "rejected" and "invalid partition" in outcome.error
    assert outcome.code == RunnerError.exit_code and outcome.log is None


def test_interrupt(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C cancels all jobs and leaves no folder."""
    (state / "states").write_text("1 RUNNING\n")

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    scripts = {name: build(built(name)) for name in ("a", "b")}
    monkeypatch.setattr(scheduler.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(scripts, tmp_path / "dist")
    assert (state / "cancelled").read_text() == "1\n2\n" and list((tmp_path / "dist").iterdir()) == []
