"""What activating an environment does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.core.errors import LayerError
from builder.core.model import Fetched
from builder.core.settings import Settings
from builder.formats.layers.conda_activation import Activation, activation_environment
from tests.support.conda_reader import CONTEXT
from tests.support.condapackage import PLACEHOLDER, Member, fetched, pack
from tests.support.packagefiles import files_of


def activate(tmp_path: Path, *packages: Fetched) -> Activation:
    settings = Settings(tmp_path / "cache", tmp_path / "tmp", 1)
    return activation_environment(files_of(packages, settings, CONTEXT))


def activation(
    tmp_path: Path, scripts: dict[str, str], variables: dict[str, str]
) -> tuple[dict[str, str], list[str]]:
    members = [Member(f"etc/conda/activate.d/{n}", t.encode()) for n, t in scripts.items()]
    members += [Member(f"etc/conda/env_vars.d/{n}", t.encode()) for n, t in variables.items()]
    found = activate(tmp_path, fetched(pack(tmp_path, "thing", members)))
    return dict(found.env), [s.removeprefix("/opt/conda/etc/conda/activate.d/") for s in found.scripts]


def test_order(tmp_path: Path) -> None:
    """The order is that of file names; scripts are sourced, never read."""
    scripts = {"b.sh": "export A=b", "a.sh": "export A=a", "readme.txt": "export A=9"}
    variables = {
        "z.json": json.dumps({"A": "z", "C": 7}),
        "y.json": json.dumps({"C": "y", "D": "***unset***"}),
    }
    assert activation(tmp_path, scripts, variables) == ({"A": "z", "C": "7"}, ["a.sh", "b.sh"])


def test_later_package_wins(tmp_path: Path) -> None:
    """Placeholders are replaced, and the package that is linked later wins."""
    path = "etc/conda/env_vars.d/s.json"
    one = fetched(pack(tmp_path, "one", [Member(path, b'{"A": "1"}')]))
    text = json.dumps({"A": f"{PLACEHOLDER}/x"}).encode()
    two = fetched(pack(tmp_path, "two", [Member(path, text, prefix="text")], extension=".tar.bz2"))
    assert activate(tmp_path, one, two).env == {"A": "/opt/conda/x"}
    assert activate(tmp_path, two, one).env == {"A": "1"}


@pytest.mark.parametrize("text", ["[1]", "nonsense", '{"A B": "x"}', '{"A": ["x"]}'])
def test_invalid_variables(tmp_path: Path, text: str) -> None:
    """A JSON file that does not map names to values is an error."""
    with pytest.raises(LayerError, match=r"thing-1\.0-0\.conda"):
        activation(tmp_path, {}, {"v.json": text})
