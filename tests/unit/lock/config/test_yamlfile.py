"""YAML files: line numbers of keys, and errors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.lock.config.yamlfile import MAX_BYTES, load_yaml, read_text


def test_where(tmp_path: Path) -> None:
    """Each nested key has its line; an unknown key has the line of its parent."""
    path = tmp_path / "x.yaml"
    path.write_text("a:\n  b:\n    - c: 1\n    - d: 2\n")
    yaml = load_yaml(path)
    assert yaml.where("a", "b", 1, "d") == f"{path}:4"
    assert yaml.where("a", "nowhere") == f"{path}:1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", "x.yaml:2: not valid YAML"),
        ("a: 1\na: 2\n", "x.yaml:2: key 'a' appears twice (first on line 1)"),
        ("- a\n", "is a list, not a mapping"),
    ],
)
def test_invalid_files(tmp_path: Path, text: str, message: str) -> None:
    """The error names file and line."""
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_yaml(tmp_path / "x.yaml")
    assert message in caught.value.message


def test_bounds(tmp_path: Path) -> None:
    """A file that is too large, and aliases that multiply: one line each, with the place."""
    path = tmp_path / "x.yaml"
    path.write_text("#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match=r"x\.yaml: the file has more than 1048576 bytes"):
        load_yaml(path)
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    path.write_text(f"a0: &a0 [x]\n{levels}description: *a8\n")
    with pytest.raises(ConfigError, match=r"x\.yaml:\d: not valid YAML: aliases \(\*NAME\) repeat more than"):
        load_yaml(path)
    path.write_text("? [a]\n: b\n")
    with pytest.raises(ConfigError, match=r"x\.yaml:1: a key is a list or mapping"):
        load_yaml(path)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("a:\n\tb: 1\n", ":2: not valid YAML: a tab", "YAML takes no tabs: indent with spaces"),
        ("a: @me\n", ":1: not valid YAML", "special character into quotes"),
        ("a: 1\n<<<<<<< HEAD\nb: 1\n=======\n", ":2: a conflict marker of git", "resolve the conflict"),
    ],
)
def test_hints_for_invalid_yaml(tmp_path: Path, text: str, message: str, hint: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_yaml(path)
    assert f"{path}{message}" in caught.value.message and hint in caught.value.hint


def test_text_of_windows(tmp_path: Path) -> None:
    """The hint has the line that converts a file in the encoding of Windows."""
    path = tmp_path / "a b.txt"
    path.write_bytes("six  # für\n".encode("cp1252"))
    with pytest.raises(ConfigError, match="a b.txt:1: not UTF-8 text") as wrong:
        read_text(path)
    typed = wrong.value.hint.partition("(")[2].partition(")")[0]
    subprocess.run(typed, shell=True, check=True, cwd=tmp_path)
    assert read_text(tmp_path / "NEW") == "six  # für\n"
