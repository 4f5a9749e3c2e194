"""``builder plan``: the layers and sizes that a build will make."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.layers.plan import likely_parts
from builder.lock.file import read_lock
from tests.support.cli import Cli
from tests.support.project import TinyProject, edit

CLONE = Path(__file__).parents[3]
SYNAPSE = CLONE.parent / "shared/data/synapse-ml"
#: What such packages weigh, in MB; all others of the lock count as half a megabyte.
LARGE = {
    "libtorch": 530,
    "libcublas": 240,
    "libcudnn": 390,
    "libcufft": 153,
    "libcusolver": 97,
    "libcusparse": 117,
    "libmagma": 310,
    "mkl": 125,
    "nccl": 160,
    "pytorch": 35,
    "libarrow": 9,
}


def test_plan_equals_build(do: Cli, copy: TinyProject) -> None:
    """The plan has the layers of the build."""
    plan = do("plan", "tiny", "--json").json
    built = do("build", "tiny", "--json").json
    of_packages = [x["title"] for x in built["layers"] if x["packages"]]
    assert [x["title"] for x in plan["layers"]] == of_packages
    assert (
        plan["packages"] == 10
        and plan["unknown_sizes"] == 0
        and not any(x["estimated"] for x in plan["layers"])
    )
    assert next(x for x in plan["layers"] if x["title"] == "conda bulky 1.0")["archive_bytes"] > 2 << 20


def test_unknown_sizes(do: Cli, copy: TinyProject) -> None:
    """Archives of unknown size are counted in a warning."""
    result = do("--cache", copy.root / "empty", "--offline", "plan", "tiny")
    assert result.code == 0 and "10 packages in" in result.out and "unknown" in result.out
    assert "9 archives have an unknown size" in result.err, "the wheel lies in its folder"


def test_estimate_of_split_packages() -> None:
    gb = 10**9
    assert likely_parts({"torch": gb, "cudnn": 400 * 10**6, "numpy": 20 * 10**6, "unknown": None}) == {
        "torch": 4,
        "cudnn": 2,
    }


@pytest.mark.skipif(
    not SYNAPSE.exists(), reason="the Synapse data (../shared/data/synapse-ml) is not on this machine"
)
def test_synapse_lock(do: Cli, tiny: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of 302 packages is planned without and with the sizes of its archives."""
    plan = ["--project", CLONE, "plan", "perlmutter", "--lock", SYNAPSE / "environment-lock.yml", "--json"]
    packages = read_lock(SYNAPSE / "environment-lock.yml").for_platform("linux-64")
    blind = do("--offline", *plan).json
    assert (
        blind["packages"]
        == blind["unknown_sizes"]
        == 302
        == len({n for x in blind["layers"] for n in x["packages"]})
    )
    for p in (
        packages
    ):  # files without content, of the size that the packages have, where a mirror would have them
        path = tmp_path / "mirror" / p.subdir / p.filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, int(LARGE.get(p.name, 0.5) * 1_000_000))
    monkeypatch.setenv("BUILDER_MIRRORS", f"https://conda.anaconda.org/conda-forge={tmp_path / 'mirror'}")
    result = do("--offline", *plan).json
    assert result["unknown_sizes"] == 0
    of_their_own = [x["packages"][0] for x in result["layers"] if len(x["packages"]) == 1]
    assert sorted(set(of_their_own)) == sorted(LARGE)
    assert of_their_own.count("libtorch") == of_their_own.count("libcudnn") == 2, (
        "over 1 GiB unpacked, most likely"
    )
    groups = [x for x in result["layers"] if len(x["packages"]) > 1]
    assert len(groups) == 12 and sum(len(x["packages"]) for x in groups) == 302 - len(LARGE)
    total = sum(x["archive_bytes"] for x in result["layers"])
    assert total == pytest.approx(sum(LARGE.values()) * 1e6 + (302 - len(LARGE)) * 5e5, abs=20)


@pytest.mark.parametrize("bytecode", ["none", "all"])
def test_compiled_modules(do: Cli, copy: TinyProject, bytecode: str) -> None:
    """The plan says that a build adds layers of compiled modules; those of packages stay the same."""
    before = do("plan", "tiny", "--json").json
    edit(copy.recipe, bytecode=bytecode)
    result = do("plan", "tiny")
    assert ("bytecode: all adds layers of compiled modules" in result.out + result.err) == (bytecode == "all")
    after = do("plan", "tiny", "--json").json
    assert after["layers"] == before["layers"] and after.get("bytecode", "none") == bytecode
