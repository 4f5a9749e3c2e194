"""What a user may type wrongly about a site: each error says what is wrong, and what to type instead."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from builder.cli import cli, run
from builder.cli.slurmoptions import ACCOUNT_VARIABLES

LUMI = "--account project_465000000"
RECIPE = (
    "site: {site}\nenvironment: environments/e.yml\nregistry: {{host: registry.example, repository: p/x}}\n"
)
SITES = ("lumi-g", "perlmutter", "leonardo", "marenostrum5", "alliance-fir", "chameleon-a100")


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ACCOUNT_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a target for each site, named like it."""
    root = tmp_path_factory.mktemp("project")
    for name in ("recipes", "environments"):
        (root / name).mkdir()
    (root / "environments/e.yml").write_text("channels: [conda-forge]\ndependencies: [python]\n")
    for site in SITES:
        (root / f"recipes/{site}.yaml").write_text(RECIPE.format(site=site))
    return root


def type_in(project: Path, line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str, str]:
    """Runs ``builder LINE``; returns exit code, error, hint and standard output."""
    places = ["--project", str(project), "--cache", str(project / "cache")]
    code = run(cli, [*places, *shlex.split(line)])
    out, err = capsys.readouterr()
    _, _, rest = f"\n{err}".partition("\nerror: ")
    error, _, hint = rest.partition("\n  hint: ")
    return code, error, hint, out


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        (
            f"job lumi-g {LUMI} --partition smal-g -- python x.py",
            "--partition smal-g: LUMI-G has no such partition",
            "did you mean small-g",
        ),
        (
            "job marenostrum5 --account ehpc01 --slurm=--mem=64G -- python x.py",
            "--mem: MareNostrum 5 ACC does not accept it",
            "memory comes with the cores",
        ),
        ("job chameleon-a100 --qos high -- python x.py", "no scheduler, which --qos needs", "leave it out"),
        (
            "job perlmutter --account m558 --qos shared --gpus 2 --nodes 3 -- python x.py",
            "--nodes 3: QOS shared allows at most 1",
            "--qos regular allows it",
        ),
        (
            f"build lumi-g --on slurm {LUMI} --time 02:00:00",
            "--time 02:00:00 exceeds the limit of partition debug (00:30:00)",
            "--partition small allows it",
        ),
        (
            "build lumi-g --on slurm --account me",
            "--account me: LUMI-G has no account of this form",
            "pass one such as project_465000000",
        ),
        (
            f"smoke lumi-g --on slurm {LUMI} --nodes 2000",
            "--nodes 2000: partition standard-g allows at most 1024",
            "no partition of LUMI-G allows it",
        ),
        (
            f"publish lumi-g --on slurm {LUMI} --slurm=--partition=debug",
            "--gpus 1: the nodes of partition debug have no GPUs",
            "--partition",
        ),
        ("smoke lumi-g --slurm=--qos=x", "--slurm requires --on slurm", "add --on slurm"),
    ],
)
def test_command_line(
    line: str, error: str, hint: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 before anything is built or written."""
    code, found, advice, out = type_in(project, line, capsys)
    assert (code, out) == (2, "")
    assert error in found, found
    assert hint in advice, advice


@pytest.mark.parametrize("variable", ACCOUNT_VARIABLES)
@pytest.mark.parametrize("line", ["build lumi-g --on slurm", "smoke lumi-g --on slurm", "job lumi-g -- x"])
def test_account_variable(
    variable: str,
    line: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One rule for the account of every command: the option, SBATCH_ACCOUNT, SLURM_ACCOUNT."""
    monkeypatch.setenv(variable, "wrong")
    _, found, _, _ = type_in(project, line, capsys)
    assert "--account wrong: LUMI-G has no account of this form" in found
