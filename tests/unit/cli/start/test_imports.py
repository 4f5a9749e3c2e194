"""The packages that code imports, and the hint for a project that lists none."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.cli.start import imports
from builder.cli.start.found import no_packages, own_code
from builder.cli.start.imports import imported_packages

CODE = """\
import os, torch.nn as nn
from model import GPT
from . import other
if True:
    import yaml, cv2
    from numpy.linalg import norm
"""


def test_imports(tmp_path: Path) -> None:
    """Names on PyPI, without the standard library and the project's own modules."""
    (tmp_path / "train.py").write_text(CODE)
    (tmp_path / "model.py").write_text("import model.deep, torch\n")
    (tmp_path / "old.py").write_text("print 'python 2'\n")
    found = imported_packages(tmp_path, ["train.py", "model.py", "old.py"])
    assert found == ["numpy", "opencv-python-headless", "pyyaml", "torch"]


def test_packages(tmp_path: Path) -> None:
    """Modules of the project's packages count; a link out of the project is not read."""
    secret = tmp_path / "secret.py"
    secret.write_text("import secret_package\n")
    package = tmp_path / "mine" / "net"
    package.mkdir(parents=True)
    (package / "deep.py").write_text("import torch, net\n")
    (package / "out.py").symlink_to(secret)
    assert imported_packages(tmp_path / "mine", ["net"]) == ["torch"]


@pytest.mark.parametrize(
    ("file", "text", "hint"),
    [
        (
            "train.py",
            "import torch, PIL\n",
            "printf '%s\\n' pillow torch >> requirements.txt && builder",
        ),
        ("mnist/requirements.txt", "torch\n", "cd {folder}/mnist && builder init"),
        ("notes.txt", "", "list the packages in requirements.txt"),
    ],
)
def test_hint(tmp_path: Path, file: str, text: str, hint: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert hint.format(folder=tmp_path) in (no_packages("none", tmp_path).hint or "")


def test_much_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A parser takes memory and time for each byte: all files together have a limit, which one line says."""
    monkeypatch.setattr(imports, "MAX_CODE", 100_000)
    text = "import module{}\n" + "#" * 30_000
    names = [f"code{number}.py" for number in range(9)]
    for number, name in enumerate(names):
        (tmp_path / name).write_text(text.format(number))
    assert imported_packages(tmp_path, names) == ["module0", "module1"]
    assert capsys.readouterr().err == "imports are those of the first 100.0 kB of code\n"
    for name in names:
        (tmp_path / name).write_text("import torch\n")
    assert imported_packages(tmp_path, names) == ["torch"] and capsys.readouterr().err == ""


def test_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few bytes count too, and files at the top as those of packages."""
    monkeypatch.setattr(imports, "MAX_CODE", 3 * (4 << 10) + 1000)
    for number in range(9):
        (tmp_path / f"code{number}.py").write_text(f"import module{number}\n")
        (tmp_path / f"module{number}").mkdir()
        (tmp_path / f"module{number}" / "x.py").write_text("")
    names = [name for name, _ in own_code(tmp_path)]
    assert [name for name in names if name.startswith("module")] == ["module0", "module1", "module2"]
