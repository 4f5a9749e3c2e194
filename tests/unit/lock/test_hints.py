"""What to write when no set of packages satisfies an environment."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from builder.core.settings import Settings
from builder.formats.net.mirrors import mirrored_url
from builder.lock.channels import SolverChannel
from builder.lock.config.recipe import Recipe
from builder.lock.environment import read_environment
from builder.lock.hints import conda_hint, line_of_missing, pip_hint
from builder.lock.indexes import Indexes
from builder.lock.request import SolveRequest
from builder.lock.uv import _explained
from tests.support.channel import index_channel, make_package
from tests.support.wheels import make_wheel

NONE = "No candidates were found for "


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
        (
            "zzz",
            NONE + "zzz *.",
            "is the name zzz right? conda-forge has no such package: add the channel that has it, or move it "
            "below the item '- pip:' if it is a package of PyPI: '- zzz'",
        ),
        (
            "numpy==2",
            NONE + "numpy ==2.",
            "exactly this version: write '- numpy=2'",
        ),
        (
            "numpy=3",
            NONE + "numpy 3.*.",
            "conda-forge has numpy in other versions only: write '- numpy'",
        ),
        (
            "python==3.11",
            NONE + "python ==3.11.",
            "conda-forge has Python 3.11: name Python 3.11 in {folder}/environment.yml:3; or take the Python",
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
            "bar",
            "└─ bar 9.0 is excluded because the package has no timestamp",
            "its index has no date: leave exclude_newer out, or index the channel again",
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
    hint = hint.replace("{recipe}", f"{tmp_path}/mine.yaml").replace("{folder}", str(tmp_path))
    assert hint in conda_hint(reason, made, [channel])


def test_dates(tmp_path: Path) -> None:
    """The date is the one of the index; no date helps for a package that has none."""
    made = replace(request(tmp_path, "bar"), newest=datetime(2026, 11, 1, tzinfo=UTC))
    late = conda_hint(
        "└─ bar 9.0 is excluded because the package is uploaded after the cutoff date of", made, []
    )
    assert (
        late
        == "exclude_newer hides what its index dates (indexed_timestamp) after 2026-11-01: use a later date"
    )
    assert "later date" not in conda_hint(
        "bar 9.0 is excluded because the package has no timestamp", made, []
    )


def test_line(tmp_path: Path) -> None:
    """The line of the spec that no channel has; the file where the solver names none of its specs."""
    made = request(tmp_path, "python", "NumPyy")
    assert line_of_missing(NONE + "numpyy *.", made) == f"{made.environment.path}:4"
    assert line_of_missing("└─ x *, for which no candidates were found.", made) == str(made.environment.path)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            "Because my-own was not found in the package registry and you require my-own, we can",
            "is the name my-own right? correct it, or name its index: --extra-index-url URL",
        ),
        (
            "Because scikit-laern was not found in the package registry and you require scikit-laern",
            "is the name scikit-laern right? did you mean scikit-learn? If not, name its index: --",
        ),
        (
            "Because numpy was not found in the provided package locations and you require numpy, we can",
            "is the name numpy right? correct it, or name its index: --extra-index-url URL",
        ),
        (
            "Because cudatoolkit was not found in the package registry and you require cudatoolkit==11.8",
            "cudatoolkit is a package of conda: write it below dependencies: of an environment.yml, or",
        ),
        (
            "Because all versions of scikit-image have no usable wheels and you require scikit-image, we can",
            "no index has a source distribution for this Python either",
        ),
        (
            "Because there is no version of torch==2.13.0+cu124 and you require torch==2.13.0+cu124",
            "name the index that has +cu124 above torch in the pip section: "
            "- --extra-index-url https://download.pytorch.org/whl/cu124",
        ),
        ("Because there is no version of other==1+abc", "name the index that has +abc above other"),
        (
            "Because all versions of sklearn have no usable wheels and you require sklearn",
            "is the name sklearn right? did you mean scikit-learn?",
        ),
        (
            "Wheels are required for `pandas` because building from source is disabled\n"
            "And because you require numpy<1.20 and pandas>=2.2, we can conclude that your requirements are",
            "numpy<1.20 and pandas>=2.2 exclude each other, as shown above: change one of them",
        ),
        ("numpy has no usable wheels", "no index has a source distribution for this Python either"),
        ("you require a<1 and a>1, which are incompatible", "relax a requirement of the pip section"),
        (
            "Wheels are available for `one` (v2.0) on the following platforms: `manylinux_2_39_x86_64`, "
            "`manylinux_2_41_x86_64`, `manylinux_2_17_aarch64`, `macosx_11_0_arm64`",
            "one 2.0 has wheels for glibc 2.39 and newer, and the target has 2.36: name a newer base; or, if "
            "the base has it, add to",
        ),
        (
            "`dep` was filtered by `exclude-newer` to only include packages uploaded before 2020-01-02. "
            "The requested version, v1.17.0, was published at 2024-12-04T17:35:26.475Z. Consider using",
            "exclude-newer hides dep of 2024-12-04: use a later date",
        ),
        (
            "`dep` was filtered by `exclude-newer` to only include packages uploaded before 2020-01-02. "
            "The latest version satisfying the requirement is v1.0. Consider using `exclude-newer-package`",
            "exclude-newer hides dep: where the index has no upload dates, leave it out; else use a",
        ),
        (
            "six>=2",
            "conda provides six 1.16, and pip must not install it a second time: remove",
        ),
    ],
)
def test_pip(tmp_path: Path, text: str, hint: str) -> None:
    assert hint in pip_hint(text, {"six": "1.16"}, Indexes(), request(tmp_path, "six"), "3.11.2")


def test_other_platforms(tmp_path: Path) -> None:
    """glibc is no reason where a wheel is for an older one, or for other systems only."""
    made = request(tmp_path, "six")
    for platforms in ("`manylinux_2_17_x86_64`, `manylinux_2_39_x86_64`", "`manylinux_2_39_aarch64`"):
        text = f"hint: Wheels are available for `one` (v2.0) on the following platforms: {platforms}"
        assert "glibc" not in pip_hint(text, {}, Indexes(), made, "3.11.2")


CU = "https://download.pytorch.org/whl/cu117"


def test_index_that_is_named_already(tmp_path: Path) -> None:
    """The hint never asks for an index that is named; of one that does not answer it asks for a copy."""
    text = "Because there is no version of torch==2.0.0+cu117 and you require torch==2.0.0+cu117"
    made = request(tmp_path, "six")
    assert f"--extra-index-url {CU}" in pip_hint(text, {}, Indexes(), made, "3.11.2")
    assert "--extra-index-url" not in pip_hint(text, {}, Indexes(extra=(CU,)), made, "3.11.2")
    hint = pip_hint(text, {}, Indexes(unreachable=(CU,)), made, "3.11.2")
    assert hint == f"package index {CU} does not answer: name a copy: " + (
        f"export BUILDER_MIRRORS='{CU}=URL-OR-FOLDER'"
    )
    typed = (
        hint.partition("BUILDER_MIRRORS=")[2].strip("'").replace("URL-OR-FOLDER", "https://copy.example/x")
    )
    settings = Settings.from_environment({"HOME": "/", "BUILDER_MIRRORS": typed})
    assert mirrored_url(settings, CU) == "https://copy.example/x"


def test_folder_of_the_project(tmp_path: Path) -> None:
    """A package that no index has, but a folder of the project (RFdiffusion)."""
    (tmp_path / "env" / "SE3Transformer").mkdir(parents=True)
    (tmp_path / "env" / "SE3Transformer" / "setup.py").touch()
    text = "Because se3-transformer was not found in the package registry and rfdiffusion depends on it"
    made = request(tmp_path, "six")
    hint = pip_hint(text, {}, Indexes(), made, "3.11.2")
    assert hint.partition(": ")[2] == (
        "printf '%s\\n' ./env/SE3Transformer . >> requirements.txt && "
        f"rm {made.recipe.source} && builder init --from requirements.txt"
    )


def test_versions_that_exist(tmp_path: Path) -> None:
    """Of an exact version that no index has, the newest ones that the target's Python installs."""
    for version in ("1.0", "1.9", "1.10", "1.11", "2.0rc1"):
        make_wheel(tmp_path, "demo", version)
    make_wheel(tmp_path, "demo", "3.0").rename(tmp_path / "demo-3.0-cp27-none-any.whl")
    indexes, made = Indexes(find_links=(tmp_path.as_uri(),)), request(tmp_path, "six")
    text = "Because there is no version of demo[x]==99.1 and you require demo[x]==99.1, we can"
    hint = pip_hint(text, {}, indexes, made, "3.11.2")
    assert hint == "the newest versions of demo for this Python are 1.11, 1.10, 1.9, 1.0"
    offline = replace(made, settings=replace(made.settings, offline=True))
    assert pip_hint(text, {}, indexes, offline, "3.11.2") == "relax a requirement of the pip section"


NO_NETWORK = """\
error: Request failed after 3 retries in 11.5s
  cause: Failed to fetch: `https://h.example/simple/six/`
  cause: error sending request for url (https://h.example/simple/six/)
  cause: client error (Connect)
  cause: {last}

hint: Consider enabling use of system TLS certificates with the `--system-certs` command-line flag
"""


@pytest.mark.parametrize(
    ("last", "hint"),
    [
        ("failed to lookup address information: Name or service not known", "check the network and the"),
        ("invalid peer certificate: UnknownIssuer", "name the file with its certificate in SSL_CERT_FILE"),
    ],
)
def test_one_cause_and_one_hint(tmp_path: Path, last: str, hint: str) -> None:
    """Of uv 0.13's nested causes the address and the last one; no hint names an option of uv."""
    made = request(tmp_path, "six")
    error = _explained(NO_NETWORK.format(last=last), made, "3.11.2", {}, Indexes())
    assert error.message == (
        f"{tmp_path}/environment.yml: pip packages: Failed to fetch: `https://h.example/simple/six/` ({last})"
    )
    assert hint in error.hint and "--" not in str(error)


def test_options_of_uv(tmp_path: Path) -> None:
    """uv's options are none of builder: its hints about them are left out, and the others stay."""
    text = "No solution found\n  hint: x is there (try: `--prerelease=allow`)\n  hint: y has no wheels for it"
    message = _explained(text, request(tmp_path, "six"), "3.11.2", {}, Indexes()).message
    assert "--prerelease" not in message and "y has no wheels for it" in message
