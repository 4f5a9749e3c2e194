"""What a user may type wrongly about a site: each error says what is wrong, and what to type instead."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from builder.cli import cli, run
from builder.cli.joboptions import ACCOUNT_VARIABLES

LUMI = "--account project_465000000"
RECIPE = (
    "site: {site}\nenvironment: environments/e.yml\nregistry: {{host: registry.example, repository: p/x}}\n"
)
SITES = ("lumi-g", "perlmutter", "leonardo", "marenostrum5", "archer2-gpu", "alliance-fir", "chameleon-a100")


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
        pytest.param(
            f"job lumi-g {LUMI} --partition smal-g -- python x.py",
            "--partition smal-g: LUMI-G has no such partition",
            "did you mean small-g",
            id="partition",
        ),
        pytest.param(
            "job leonardo --account EUHPC_D01 --qos boost_qos_lprd -- python x.py",
            "--qos boost_qos_lprd: Leonardo Booster has no such qos",
            "did you mean boost_qos_lprod",
            id="qos",
        ),
        pytest.param(
            "job marenostrum5 --account ehpc01 --mem 64G -- python x.py",
            "--mem: MareNostrum 5 ACC does not accept it",
            "memory comes with the cores",
            id="refused-option",
        ),
        pytest.param(
            f"job lumi-g {LUMI} --partiton small-g -- python x.py",
            "No such option: --partiton",
            "did you mean --partition",
            id="no-such-option",
        ),
        pytest.param(
            "job chameleon-a100 --qos high -- python x.py",
            "has no scheduler, which --qos needs",
            "leave it out",
            id="no-scheduler",
        ),
        pytest.param(
            "job perlmutter --account m558 --mem lots -- python x.py",
            "--mem 'lots' is not a size",
            "--mem 64G",
            id="memory",
        ),
        pytest.param(
            f"job lumi-g {LUMI} --gpus 8 --time 2-12:00:00 -- python x.py",
            "--time 2-12:00:00 exceeds the limit of partition standard-g (2-00:00:00)",
            "--partition small-g allows it; or --time 2-00:00:00 --chain 2",
            id="time-another-partition",
        ),
        pytest.param(
            "job leonardo --account EUHPC_D01 --time 30:00:00 -- python x.py",
            "--time 30:00:00 exceeds the limit of partition boost_usr_prod with QOS normal (24:00:00)",
            "--partition boost_usr_prod --qos boost_qos_lprod allows it",
            id="time-another-qos",
        ),
        pytest.param(
            "job perlmutter --account m558 --time 3-00:00:00 -- python x.py",
            "--time 3-00:00:00 exceeds the limit of QOS shared (2-00:00:00)",
            "--time 2-00:00:00 --chain 2 splits it into segments that resume",
            id="time-nowhere",
        ),
        pytest.param(
            f"job lumi-g {LUMI} --time tomorrow -- python x.py",
            "--time: 'tomorrow' is not a time",
            "HH:MM:SS",
            id="time-form",
        ),
        pytest.param(
            f"job lumi-g {LUMI} --gpus 4 --partition small-g --nodes 8 -- python x.py",
            "--nodes 8: partition small-g allows at most 4",
            "--partition standard-g allows it",
            id="nodes",
        ),
        pytest.param(
            "job perlmutter --account m558 --qos shared --gpus 2 --nodes 3 -- python x.py",
            "--nodes 3: QOS shared allows at most 1",
            "--qos interactive allows it",
            id="nodes-another-qos",
        ),
        pytest.param(
            "job leonardo --account EUHPC_D01 --nodes 300 -- python x.py",
            "--nodes 300: partition boost_usr_prod allows at most 256",
            "no partition of Leonardo Booster allows it: request less",
            id="nodes-nowhere",
        ),
        pytest.param(
            f"job lumi-g {LUMI} --partition debug --gpus 1 -- python x.py",
            "--gpus 1: the nodes of partition debug have no GPUs",
            "--partition",
            id="gpus",
        ),
        pytest.param(
            "job lumi-g --account 465000000 -- python x.py",
            "--account 465000000: LUMI-G has no account of this form",
            "pass one such as project_465000000",
            id="account-form",
        ),
        pytest.param(
            "job lumi-g -- python x.py",
            "jobs on LUMI-G require an account",
            "pass --account NAME, such as project_465000000",
            id="account-missing",
        ),
        pytest.param(
            "job marenostrum5 --account ehpc123 --time 90:00:00 -- python x.py",
            "--time 90:00:00 exceeds the limit of partition acc with QOS acc_ehpc (3-00:00:00)",
            "--time 3-00:00:00 --chain 2",
            id="time-qos-without-gpus",
        ),
        pytest.param(
            "job archer2-gpu --account z19 --submit -- python x.py",
            "ARCHER2 (GPU) was switched off on 2026-11-21",
            "write site: isambard-ai in archer2-gpu.yaml",
            id="retired-job",
        ),
        pytest.param(
            "build archer2-gpu --on slurm --account z19",
            "ARCHER2 (GPU) was switched off on 2026-11-21",
            "write site: isambard-ai",
            id="retired-build",
        ),
        pytest.param(
            "smoke archer2-gpu --on slurm --account z19",
            "ARCHER2 (GPU) was switched off on 2026-11-21",
            "write site: isambard-ai",
            id="retired-smoke",
        ),
        pytest.param(
            "publish archer2-gpu --on slurm --account z19",
            "ARCHER2 (GPU) was switched off on 2026-11-21",
            "write site: isambard-ai",
            id="retired-publish",
        ),
        pytest.param(
            f"build lumi-g --on slurm {LUMI} --time 02:00:00",
            "--time 02:00:00 exceeds the limit of partition debug (00:30:00)",
            "--partition largemem allows it",
            id="time-build",
        ),
        pytest.param(
            "build lumi-g --on slurm --account me",
            "--account me: LUMI-G has no account of this form",
            "pass one such as project_465000000",
            id="account-build",
        ),
        pytest.param(
            f"smoke lumi-g --on slurm {LUMI} --nodes 2000",
            "--nodes 2000: partition standard-g allows at most 1024",
            "no partition of LUMI-G allows it",
            id="nodes-smoke",
        ),
        pytest.param(
            f"publish lumi-g --on slurm {LUMI} --partition debug",
            "--gpus 1: the nodes of partition debug have no GPUs",
            "--partition",
            id="gpus-publish",
        ),
        pytest.param(
            "smoke lumi-g --qos x", "--qos requires --on slurm", "add --on slurm", id="not-on-smoke"
        ),
        pytest.param(
            "build lumi-g --reservation x",
            "--reservation requires --on slurm",
            "add --on slurm",
            id="not-on-build",
        ),
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


@pytest.mark.parametrize(
    ("url", "error"),
    [
        (
            "proxy.example.org:3128",
            "'proxy.example.org:3128' has no scheme: write http://proxy.example.org:3128",
        ),
        (
            "http://me:secret@proxy.example.org:3128",
            "the address of the proxy contains a user name or password",
        ),
    ],
)
def test_proxy(url: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recipe's file, line and key are named; exit code 3."""
    for name in ("recipes", "environments"):
        (tmp_path / name).mkdir()
    (tmp_path / "environments/e.yml").write_text("dependencies: [python]\n")
    recipe = tmp_path / "recipes/mine.yaml"
    recipe.write_text(f"environment: environments/e.yml\nsite:\n  name: lumi-g\n  proxy:\n    url: {url}\n")
    code, found, _, out = type_in(tmp_path, f"job mine {LUMI} -- python x.py", capsys)
    assert (code, out) == (3, "")
    assert f"{recipe}:5: site.proxy.url: {error}" in found
    assert "me:secret" not in found


def test_retired_lock(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands that still work say that the system is switched off."""
    places = ["--project", str(project), "--cache", str(project / "cache")]
    run(cli, [*places, "lock", "archer2-gpu", "--check"])
    assert "ARCHER2 (GPU) was switched off on 2026-11-21" in capsys.readouterr().err


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
