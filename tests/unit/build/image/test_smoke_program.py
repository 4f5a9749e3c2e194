"""The smoke test as one file: the same bytes always, and a program."""

from __future__ import annotations

import ast
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from builder import bench
from builder.build.image.files import pack, smoke_program
from tests.support.smoke import program, run

PACKAGE = Path(bench.__file__).parent
FRAMEWORKS = {"torch", "tensorflow", "jax", "numpy"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_same_bytes(tmp_path: Path) -> None:
    """Times, modes, the order of creation and files of other kinds do not change the file."""
    copy = tmp_path / "copy"
    for number, path in enumerate(sorted(PACKAGE.rglob("*"), reverse=True)):
        target = copy / path.relative_to(PACKAGE)
        if path.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o600)
            os.utime(target, (number, number))
    (copy / "__pycache__").mkdir(exist_ok=True)
    (copy / "__pycache__" / "core.cpython-38.pyc").write_bytes(b"x")
    (copy / ".core.py.swp").write_bytes(b"x")
    assert pack(copy) == pack(PACKAGE) == smoke_program()


def test_members() -> None:
    """Sorted, uncompressed, of 1980, and readable for everybody."""
    with zipfile.ZipFile(io.BytesIO(smoke_program())) as archive:
        infos = archive.infolist()
    names = [info.filename for info in infos]
    assert names == sorted(names) and names[0] == "__main__.py"
    assert {
        "bench/__init__.py",
        "bench/main.py",
        "bench/probes/gpu.py",
    } <= set(names)
    for info in infos:
        assert info.compress_type == zipfile.ZIP_STORED and info.date_time == (1980, 1, 1, 0, 0, 0)
        assert (info.create_system, info.external_attr >> 16) == (3, 0o100644)


@pytest.mark.parametrize("options", [[], ["-I"]])
def test_runs(options: list[str]) -> None:
    """As ``python FILE``, also in isolated mode."""
    done = subprocess.run([sys.executable, *options, program(), "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage: smoke.py")
    no_torch = [*options, "-S"]  # -S: no site-packages
    result = run("--expect", "none", python=no_torch, file=program())
    assert result.verdict == "fail" and result.failed == {"torch.import"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_syntax_and_imports(path: Path) -> None:
    """Python 3.8, relative imports, the standard library, frameworks and the NumPy that they need."""
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level == 0}
    assert {n.partition(".")[0] for n in names} <= sys.stdlib_module_names | FRAMEWORKS
