"""Files of uv, pixi and PEP 621, as their tools write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.config.yamlfile import MAX_BYTES
from builder.errors import ConfigError
from builder.start.manifests import has_pixi, has_project, read_pixi, read_pyproject

PYPROJECT = """\
[project]
name = "mine"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["polars>=1", "own-lib", "Torch_Geometric[full]; sys_platform == 'linux'"]
[project.optional-dependencies]
plots = ["matplotlib"]
[dependency-groups]
base = ["rich"]
dev = ["pytest", {include-group = "base"}]
[[tool.uv.index]]
url = "https://example.org/cu124/"
[tool.uv.sources]
own_lib = {git = "https://example.org/own-lib", tag = "v1"}
"""


@pytest.fixture
def pyproject(tmp_path: Path) -> Path:
    path = tmp_path / "pyproject.toml"
    path.write_text(PYPROJECT)
    return path


def test_pyproject(pyproject: Path) -> None:
    """The project's own dependencies and indexes; groups only if they are named."""
    found = read_pyproject(pyproject)
    assert found.python == ">=3.11"
    own, geometric = (
        "own-lib @ git+https://example.org/own-lib@v1",
        "Torch_Geometric[full]; sys_platform == 'linux'",
    )
    assert found.pip == ["polars>=1", own, geometric] and not found.left_out
    assert found.options == ["--extra-index-url https://example.org/cu124"]
    assert found.notes == ["pyproject.toml: not taken: plots, base, dev (--with NAME takes a group)"]
    grouped = read_pyproject(pyproject, ["plots", "dev"])
    assert grouped.pip[-3:] == ["matplotlib", "pytest", "rich"] and not grouped.notes
    with pytest.raises(ConfigError, match="no extra and no dependency group 'doc'"):
        read_pyproject(pyproject, ["doc"])


def test_not_toml(pyproject: Path) -> None:
    pyproject.write_text("[project\n")
    with pytest.raises(ConfigError, match=r"pyproject\.toml: not valid TOML: .*line 1"):
        read_pyproject(pyproject)
    pyproject.write_text("[tool.ruff]\n")
    assert not has_project(pyproject) and not has_pixi(pyproject)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"a = " + b"[" * 100_000, "not valid TOML"),
        (b"\xff", "cannot be read"),
        (b"#" * (MAX_BYTES + 1), "more than"),
    ],
)
def test_hostile(tmp_path: Path, raw: bytes, words: str) -> None:
    """Whatever a file contains ends in a message."""
    path = tmp_path / "pixi.toml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=words):
        read_pixi(path)


PIXI = """\
[workspace]
channels = ["conda-forge", {channel = "bioconda", priority = 1}]
[dependencies]
python = "3.12.*"
numpy = ">=1.26, <2"
cuda = "*"
special = {version = "1.0", build = "cuda*", channel = "mine"}
[target.linux-64.dependencies]
mkl = "*"
[pypi-dependencies]
polars = "*"
torch = {version = ">=2", extras = ["a", "b"], index = "https://example.org/simple"}
local = {path = ".", editable = true}
[feature.test.dependencies]
pytest = "*"
"""


def test_pixi(tmp_path: Path) -> None:
    """The default environment with local packages; features are reported."""
    path = tmp_path / "pixi.toml"
    path.write_text(PIXI)
    (tmp_path / "setup.py").write_text("")
    found = read_pixi(path)
    assert found.channels == ["conda-forge", "bioconda"]
    assert found.conda == ["python 3.12.*", "numpy >=1.26,<2", "cuda", "mine::special 1.0 cuda*", "mkl"]
    assert found.pip == ["polars", "torch[a,b]>=2", "-e ."] and not found.left_out
    assert found.options == ["--extra-index-url https://example.org/simple"]
    assert found.notes == ["pixi.toml: [feature] is not taken: only the default environment is taken"]


def test_pixi_in_pyproject(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(
        '[project]\nname = "x"\nrequires-python = ">=3.11"\ndependencies = ["rich"]\n'
        '[tool.pixi.workspace]\nchannels = ["conda-forge"]\n[tool.pixi.dependencies]\nnumpy = "*"\n'
    )
    found = read_pixi(path)
    assert has_pixi(path) and found.conda == ["numpy"] and found.pip == ["rich"]
    assert found.python == ">=3.11"


def test_groups_that_include_each_other(tmp_path: Path) -> None:
    """Each group is taken once, however often it is included."""
    path = tmp_path / "pyproject.toml"
    pairs = (f'g{n} = [{{include-group = "g{n + 1}"}}, {{include-group = "g{n + 1}"}}]' for n in range(40))
    path.write_text('[project]\nname = "x"\n[dependency-groups]\n' + "\n".join(pairs) + '\ng40 = ["rich"]\n')
    assert read_pyproject(path, ["g0"]).pip == ["rich"]
