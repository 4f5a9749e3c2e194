"""scripts/compare_sites.py: its parsers, and the comparison. The tables are excerpts of published pages."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from builder.config.queues import Partition, Qos, Queue, Slurm
from builder.config.site import Node, Site

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data/compare_sites"
REFRAME = """
import not_installed
base = {
    "partitions": [
        {"name": "login", "scheduler": "local", "launcher": "local"},
        {
            "name": "normal",
            "scheduler": "slurm",
            "access": [f"--account=a-{not_installed.group()}"],
            "devices": [{"type": "gpu", "arch": "sm_90", "num_devices": 4}],
        },
    ]
}
"""
CIME = """
<config_batch>
  <batch_system MACH="frontier" type="slurm">
    <queues>
      <queue nodemin="1" nodemax="91" walltimemax="2:00:00">batch</queue>
      <queue nodemin="92" nodemax="200" walltimemax="6:00:00">batch</queue>
      <queue nodemax="4" walltimemax="2:00:00">debug</queue>
    </queues>
  </batch_system>
  <batch_system MACH="other" type="slurm">
    <queues><queue walltimemax="02:00">other</queue></queues>
  </batch_system>
</config_batch>
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "scripts/compare_sites.py"
    spec = importlib.util.spec_from_file_location("compare_sites", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_table_of_partitions(script: ModuleType) -> None:
    """Limits that are no time or no number are left out."""
    facts = script.limit_tables((DATA / "clariden.md").read_text())
    assert [(fact.kind, fact.name, fact.time_s, fact.nodes) for fact in facts] == [
        ("partition", "normal", 12 * 3600, None),
        ("partition", "debug", None, 4),
        ("partition", "low", 24 * 3600, None),
        ("partition", "xfer", 24 * 3600, 1),
    ]


def test_table_of_qos(script: ModuleType) -> None:
    """Tables without times are passed over."""
    facts = script.limit_tables((DATA / "cirrus.md").read_text())
    assert [(fact.kind, fact.name, fact.time_s, fact.nodes) for fact in facts] == [
        ("qos", "standard", 48 * 3600, 128),
        ("qos", "largescale", 212 * 3600, 640),
        ("qos", "reservation", None, None),
    ]


def test_reframe(script: ModuleType) -> None:
    """Partitions of Slurm with their GPUs; login nodes are passed over. Nothing is executed."""
    [fact] = script.reframe_partitions(REFRAME)
    assert (fact.name, fact.gpus, fact.memory_mib) == ("normal", 4, None)


def test_reframe_access(script: ModuleType) -> None:
    """The name in the options of sbatch wins over ReFrame's own, also in EESSI's form."""
    text = (
        "x = [{'name': 'gpu_A100', 'scheduler': 'slurm', 'access': ['-p gpu_a100', f'-A {account}'], "
        "'devices': [{'num_devices': 4}], 'extras': {EXTRAS.MEM_PER_NODE: 491520}}]"
    )
    [fact] = script.reframe_partitions(text)
    assert (fact.name, fact.gpus, fact.memory_mib) == ("gpu_a100", 4, 491520)


def test_cime(script: ModuleType) -> None:
    """Rows of one queue become one: its largest limits."""
    facts = script.cime_queues("frontier")(CIME)
    assert [(fact.name, fact.time_s, fact.nodes) for fact in facts] == [
        ("batch", 6 * 3600, 200),
        ("debug", 2 * 3600, 4),
    ]


def test_compare(script: ModuleType) -> None:
    """What one of the two does not say is no row; neither is a kind of names that the site file lacks."""
    slurm = Slurm(
        partitions={"normal": Partition(max_time="24:00:00", max_nodes=8), "debug": Partition()},
        queues={"gpu": Queue(partition="normal")},
    )
    site = Site(slurm=slurm, node=Node(gpus=4, cores=64, memory="480G"))
    facts = [
        script.Fact("normal", time_s=12 * 3600, gpus=4, memory_mib=480 * 1024),
        script.Fact("debug", time_s=1800),
        script.Fact("low", time_s=3600),
        script.Fact("standard", "qos", time_s=3600),
    ]
    rows = list(script.compare("here", site, facts, "docs"))
    assert [(row.what, row.ours, row.theirs) for row in rows] == [
        ("partition normal: minutes", "1440", "720"),
        ("partition normal: GPUs of a node", "4", "4"),
        ("partition normal: memory of a node, MiB", "491520", "491520"),
        ("partition low", "", "exists"),
    ]
    assert [row.differs for row in rows] == [True, False, False, True]
    slurm = Slurm(qos={"standard": Qos(time_by_nodes={4: "02:00:00", 9: "01:00:00"})})
    [row] = script.compare("here", Site(slurm=slurm), facts[3:], "docs")
    assert (row.ours, row.theirs) == ("120", "60")


@pytest.mark.parametrize("bare", [True, False])
def test_checkout(bare: bool, script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A clone is read, bare or not; a file that is not there is an error that names it."""
    work = tmp_path / "cscs-docs"
    (work / "docs/clusters").mkdir(parents=True)
    (work / "docs/clusters/clariden.md").write_text((DATA / "clariden.md").read_text())
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(work), *words], check=True)
    if bare:
        place = tmp_path / "mirror/eth-cscs+cscs-docs/repo"
        subprocess.run(["git", "clone", "-q", "--bare", str(work), str(place)], check=True)
    folder = tmp_path / "mirror" if bare else tmp_path
    assert script.main(["alps-clariden", "--all", "--checkout", str(folder)]) == 2
    out, err = capsys.readouterr()
    assert "alps-clariden: partition normal: minutes: ours 720, theirs 720 (eth-cscs/cscs-docs:" in out
    assert "eth-cscs/cscs-reframe-tests:config/systems/clariden.py: no clone of" in err


def test_other_forms(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of another form is an error that names it, and no character of it is obeyed by a terminal."""
    table = (
        "| Name | Max nodes | Time limit |\n|--|--|--|\n| \x1b[2J | , | . days |\n| a | 1,0 | 1.5 hours |\n"
    )
    facts = script.limit_tables(table)
    assert [(fact.time_s, fact.nodes) for fact in facts] == [(None, None), (5400, 10)]
    texts = iter((table, "[" * 150 + "]" * 150, "x = [{'scheduler': 'slurm'}]", "\0"))
    monkeypatch.setattr(script, "read", lambda source, checkout: next(texts, ""))
    assert script.main(["alps-clariden", "cirrus"]) == 2
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err and "eth-cscs/cscs-reframe-tests:config/systems/clariden.py: " in err
