"""What to write when no set of packages satisfies an environment."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from builder.config.recipe import Recipe
from builder.lock.channels import SolverChannel
from builder.lock.environment import read_environment
from builder.lock.hints import conda_hint, line_of_missing, pip_hint, wheels_on_disk
from builder.lock.request import SolveRequest
from builder.lock.spec import Spec
from builder.model import DEBIAN_CHANNEL
from builder.settings import Settings
from tests.support.channel import index_channel, make_package

NONE = "No candidates were found for "
OPTIONS = " * cannot be installed because there are no viable options:\n"


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> SolverChannel:
    """A channel with some names of conda-forge."""
    folder = tmp_path_factory.mktemp("channel")
    for name, version in (
        ("numpy", "1.26.4"),
        ("numpy", "2.1.0"),
        ("numpy", "1.9.0"),
        ("python", "3.11.9"),
        ("pytorch", "2.4.0"),
        ("scikit-learn", "1.5.0"),
    ):
        make_package(folder, name, version)
    index_channel(folder)
    url = folder.as_uri() + "/"
    return SolverChannel("conda-forge", url, url)


def request(folder: Path, *specs: str) -> SolveRequest:
    path = folder / "environment.yml"
    path.write_text("channels: [c]\ndependencies:\n" + "".join(f"- {spec}\n" for spec in specs))
    recipe = Recipe.model_validate(
        {
            "name": "mine",
            "base": "debian:bookworm",
            "environment": "environment.yml",
            "root": folder,
            "source": folder / "mine.yaml",
        }
    )
    settings = Settings.from_environment({"HOME": str(folder)})
    return SolveRequest(recipe, read_environment(path, "linux-64"), settings)


@pytest.mark.parametrize(
    ("spec", "reason", "hint"),
    [
        (
            "numpyy",
            NONE + "numpyy *.",
            "is the name numpyy right? conda-forge has numpy",
        ),
        (
            "torch",
            NONE + "torch *.",
            "is the name torch right? conda-forge has pytorch",
        ),
        ("sklearn", NONE + "sklearn *.", "conda-forge has scikit-learn"),
        (
            "zzz",
            NONE + "zzz *.",
            "is the name zzz right? conda-forge has no such package: add the channel that has it, or move it "
            "below the item '- pip:' if it is a package of PyPI: '- zzz'",
        ),
        (
            "numpy=3",
            NONE + "numpy 3.*.",
            "has numpy 2.1.0, 1.26.4, 1.9.0: write '- numpy=2.1'",
        ),
        (
            "python==3.11",
            NONE + "python ==3.11.",
            "exactly this version: write '- python=3.11'",
        ),
        (
            "pytorch",
            "pytorch" + OPTIONS + "└─ pytorch 2.4.0 would require\n"
            "   └─ missing *, for which no candidates were found.",
            "is the name missing right? conda-forge has no such package: add the channel that has it",
        ),
        (
            "python",
            "└─ python 3.11.9 would require\n   └─ __glibc >=2.39, for which no candidates were found.",
            "the target has __glibc 2.36: if the target machine has it, add to {recipe}: "
            'virtual_packages: {__glibc: "2.39"}',
        ),
        (
            "pytorch",
            "└─ pytorch 2.4.0 would require\n   └─ __cuda *, for which no candidates were found.",
            "__cuda is not declared: if the target machine has it, "
            'add to {recipe}: virtual_packages: {__cuda: "12.4"}',
        ),
        (
            "a",
            "The following packages are incompatible",
            "relax a spec in the environment file, or add a channel",
        ),
    ],
)
def test_conda(tmp_path: Path, channel: SolverChannel, spec: str, reason: str, hint: str) -> None:
    made = request(tmp_path, spec)
    assert hint.replace("{recipe}", f"{tmp_path}/mine.yaml") in conda_hint(reason, made, [channel])


def test_debian_channel(tmp_path: Path, channel: SolverChannel) -> None:
    """It has Python 3.11 and little more: the first wall of an environment that was made for conda-forge."""
    debian = replace(channel, locked=DEBIAN_CHANNEL)
    made = request(tmp_path, "python=3.12", "polars", "numpy", "matplotlib")
    assert conda_hint(NONE + "polars *.", made, [debian]) == (
        "the Debian channel has Python 3.11 and no packages for it: "
        "move polars, matplotlib below the item '- pip:'"
    )
    assert conda_hint(NONE + "python 3.12.*.", made, [debian]) == (
        "the Debian channel has python 3.11.9 only: write '- python=3.11'"
    )


def test_channel_of_spec_in_debian_channel(tmp_path: Path, channel: SolverChannel) -> None:
    """Without its channel, a package with one is not available."""
    debian = replace(channel, locked=DEBIAN_CHANNEL)
    made = request(tmp_path, "python", "bioconda::samtools=1.20")
    hint = conda_hint(NONE + "samtools 1.20.*.", made, [debian])
    assert hint.startswith("bioconda::samtools=1.20 is in channel bioconda, which does not answer: check the")
    assert "BUILDER_MIRRORS='FROM=TO'" in hint and "move samtools below the item '- pip:'" in hint


def test_channel_that_cannot_be_read(tmp_path: Path) -> None:
    """A hint is no reason for another error."""
    gone = SolverChannel("gone", "file:///nowhere/", "file:///nowhere/")
    said = conda_hint(NONE + "numpyy *.", request(tmp_path, "numpyy"), [gone])
    assert said.startswith("is the name numpyy right? gone has no such package")


def test_exclude_newer(tmp_path: Path, channel: SolverChannel) -> None:
    old = replace(request(tmp_path, "numpy=3"), newest=datetime(2026, 1, 2, tzinfo=UTC))
    said = conda_hint(NONE + "numpy 3.*.", old, [channel])
    assert said.endswith("exclude_newer hides packages published after 2026-01-02: use a later date")


def test_line(tmp_path: Path) -> None:
    """The line of the spec that no channel has; the file where the solver names none of its specs."""
    made = request(tmp_path, "python", "NumPyy")
    assert line_of_missing(NONE + "numpyy *.", made) == f"{made.environment.path}:4"
    assert line_of_missing("└─ x *, for which no candidates were found.", made) == str(made.environment.path)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            "Because richh was not found in the package registry and you require richh, we can",
            "is the name richh right? the index has no such package: did you mean rich?",
        ),
        (
            "Because qqqqqq was not found in the package registry and you require qqqqqq",
            "the index has no such package: correct it, or name its index: --extra-index-url URL",
        ),
        (
            "Because there is no version of torch==2.13.0+cu124 and you require torch==2.13.0+cu124",
            "versions with +cu124 are in PyTorch's own index: write above it in the pip section: "
            "- --extra-index-url https://download.pytorch.org/whl/cu124",
        ),
        ("Because there is no version of other==1+abc", "write other==1, or name the index that has +abc"),
        ("Because there is no version of numpy==99 and", "write another version of numpy: numpy>=VERSION"),
        (
            "Because all versions of sklearn have no usable wheels and you require sklearn",
            "is the name sklearn right? did you mean scikit-learn?",
        ),
        ("because tensorflow-gpu==2.12.0 has no usable wheels and", "right? did you mean tensorflow?"),
        ("numpy has no usable wheels", "no index has a source distribution for this Python either"),
        ("you require a<1 and a>1, which are incompatible", "relax a requirement of the pip section"),
        (
            "six>=2",
            "conda provides six 1.16, and pip must not install it a second time: remove",
        ),
    ],
)
def test_pip(text: str, hint: str) -> None:
    assert hint in pip_hint(text, [Spec("numpy==99", "numpy", "e.yml:4")], {"six": "1.16"})


def test_wheels_on_disk(tmp_path: Path) -> None:
    """A name of a find-links folder is among the near ones."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "Our_Models-1.0-py3-none-any.whl").write_bytes(b"")
    known = wheels_on_disk(request(tmp_path, "python", "pip: [--find-links wheels]"))
    assert known >= {"our-models"}
    text = "Because our-modles was not found in the package registry"
    assert "did you mean our-models?" in pip_hint(text, (), {}, known)
