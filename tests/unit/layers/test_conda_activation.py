"""What activating an environment does, as far as it is known without running its scripts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from builder.errors import LayerError
from builder.layers.conda_activation import activation_environment
from tests.support.channel import PLACEHOLDER
from tests.support.conda_reader import CONTEXT
from tests.support.condapackage import Member, fetched, pack


def activation(
    tmp_path: Path, scripts: dict[str, str], variables: dict[str, str] | None = None
) -> tuple[dict[str, str], list[str]]:
    members = [Member(f"etc/conda/activate.d/{n}", t.encode()) for n, t in scripts.items()]
    members += [Member(f"etc/conda/env_vars.d/{n}", t.encode()) for n, t in (variables or {}).items()]
    found = activation_environment([fetched(pack(tmp_path, "thing", members))], CONTEXT)
    return dict(found.env), [s.removeprefix("/opt/conda/etc/conda/activate.d/") for s in found.scripts]


PLAIN = {
    "export A=1": "1",
    "export A=": "",
    'export A="$CONDA_PREFIX/share"': "/opt/conda/share",
    "export A=${CONDA_PREFIX}/share:${CONDA_PREFIX}/lib": "/opt/conda/share:/opt/conda/lib",
    "export A='$CONDA_PREFIX stays'": "$CONDA_PREFIX stays",
    'export A="two words"  # why': "two words",
    "  export A=1;": "1",
    "#!/bin/sh\n\n# a comment\nexport A=1\n": "1",
}


DYNAMIC = {
    'export A="$HOME/x"': {},
    "export A=$(date)": {},
    "export A=~/x": {},
    'export A="a\\"b"': {},
    "export A=1 B=2": {},
    '[ -z "$A" ] && export A=1': {},
    'if [ -z "$A" ]; then\nexport A=1\nfi': {},
    "if a; then if b; then\nexport A=1\nfi\nexport A=2\nfi\nexport B=3": {},
    "f() {\nexport A=1\n}\nexport B=1": {},
    "cat <<EOF\nexport A=1\nEOF\nexport B=1": {},
    "echo 'two\nexport A=1\nlines'": {},
    "true \\\nexport A=1": {},
    "export A=1\nunset A": {},
    "export A=1\nif x; then\n  export A=$A:2\nfi": {},
    "export A=1\nexport PATH=$CONDA_PREFIX/x:$PATH": {"A": "1"},
    "echo hello\nexport A=1": {},
}


@pytest.mark.parametrize(("text", "env"), DYNAMIC.items())
def test_other_lines(tmp_path: Path, text: str, env: dict[str, str]) -> None:
    """A script with any other line is sourced by the entry point."""
    assert activation(tmp_path, {"s.sh": text}) == (env, ["s.sh"])


@pytest.mark.parametrize("text", [*PLAIN, *DYNAMIC])
def test_same_values_as_a_shell(tmp_path: Path, text: str) -> None:
    """A static value is what a real shell sets, with an empty environment and with other values."""
    env, _ = activation(tmp_path, {"s.sh": text})
    script = tmp_path / "s.sh"
    script.write_text(text)
    for before in ({}, {"A": "before", "B": "before", "HOME": "/h"}):
        command = "x() { true; }; a() { true; }; b() { true; }; . ./s.sh; env -0"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={"CONDA_PREFIX": "/opt/conda", "PATH": "/usr/bin:/bin", **before},
        )
        got = dict(line.partition("=")[::2] for line in done.stdout.split("\0") if line)
        assert {n: got.get(n) for n in env} == env


def test_order(tmp_path: Path) -> None:
    """The order is that of file names, and scripts win over variables."""
    scripts = {"b.sh": "export A=b", "a.sh": "export A=a\nexport B=a"}
    variables = {
        "z.json": json.dumps({"A": "z", "C": 7}),
        "y.json": json.dumps({"C": "y", "D": "***unset***"}),
    }
    assert activation(tmp_path, scripts, variables) == ({"A": "b", "B": "a", "C": "7"}, [])


def test_later_package_wins(tmp_path: Path) -> None:
    """Placeholders are replaced, and the package that is linked later wins."""
    path = "etc/conda/activate.d/s.sh"
    one = fetched(pack(tmp_path, "one", [Member(path, b"export A=1")]))
    two = fetched(
        pack(
            tmp_path,
            "two",
            [Member(path, f"export A={PLACEHOLDER}/x".encode(), prefix="text")],
            extension=".tar.bz2",
        )
    )
    none = fetched(pack(tmp_path, "none", [Member("etc/conda/activate.d/readme.txt", b"export A=9")]))
    assert activation_environment([one, two, none], CONTEXT).env == {"A": "/opt/conda/x"}
    assert activation_environment([two, one], CONTEXT).env == {"A": "1"}
    assert activation_environment([], CONTEXT).env == {}


@pytest.mark.parametrize("text", ["[1]", "nonsense", '{"A B": "x"}', '{"A": ["x"]}'])
def test_invalid_variables(tmp_path: Path, text: str) -> None:
    """A JSON file that does not map names to values is an error."""
    with pytest.raises(LayerError, match=r"thing-1\.0-0\.conda"):
        activation(tmp_path, {}, {"v.json": text})
