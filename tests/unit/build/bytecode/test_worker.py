"""The program that compiles modules, run with this Python."""

from __future__ import annotations

import importlib.util
import json
import marshal
import random
import subprocess
import sys
import types
from pathlib import Path

import pytest

from builder.build.bytecode import worker

SOURCES = sorted(Path(json.__file__).parent.parent.glob("*.py"))[:60]


def write(folder: Path, modules: list[tuple[str, bytes]], name: str = "0") -> Path:
    file = folder / f"{name}.src"
    packed = [
        worker.LENGTHS.pack(len(path.encode()), len(text)) + path.encode() + text for path, text in modules
    ]
    file.write_bytes(b"".join(packed))
    return file.with_suffix(".pyc")


def read(file: Path) -> list[bytes]:
    data, found = file.read_bytes(), []
    while data:
        (size,) = worker.LENGTH.unpack_from(data)
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


def run(folder: Path, processes: int, *options: str, seed: str = "0") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-s", "-S", "-B", *options, worker.__file__, str(folder), str(processes)]
    env = {"PYTHONHASHSEED": seed}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


def test_module(tmp_path: Path) -> None:
    """A .pyc is one for any time of its source (PEP 552), and names the path in the image."""
    source = b"def f():\n    return 1\n"
    result = write(tmp_path, [("/opt/x.py", source)])
    done = run(tmp_path, 1)
    assert done.returncode == 0, done.stderr
    [pyc] = read(result)
    assert pyc[:4] == importlib.util.MAGIC_NUMBER
    assert int.from_bytes(pyc[4:8], "little") == 1
    assert pyc[8:16] == importlib.util.source_hash(source)
    code = marshal.loads(pyc[16:])
    assert isinstance(code, types.CodeType) and code.co_filename == "/opt/x.py"
    assert json.loads((tmp_path / "python.json").read_text())["tag"] == sys.implementation.cache_tag


@pytest.mark.parametrize(
    "source",
    [b"def f(:\n", b"x = '\xff'\n", b"x = '\0'\n", b"(" * 500 + b")" * 500, b"# coding: none\n"],
    ids=["syntax", "bytes", "null", "nested", "coding"],
)
def test_not_python(tmp_path: Path, source: bytes) -> None:
    """A file that does not compile has no .pyc; the others of its package do."""
    result = write(tmp_path, [("/bad.py", source), ("/good.py", b"x = 1\n")])
    done = run(tmp_path, 1)
    assert done.returncode == 0, done.stderr
    bad, good = read(result)
    assert bad == b"" and good


def test_same_bytes(tmp_path: Path) -> None:
    """The bytes do not depend on order, hash seed, number of processes and modules that Python has loaded."""
    modules = [(f"/opt/lib/{path.name}", path.read_bytes()) for path in SOURCES]
    found = []
    for number, (processes, seed, options) in enumerate(
        [(1, "0", ()), (3, "12345", ()), (2, "7", ("-X", "importtime")), (1, "99", ("-X", "dev"))]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        shuffled = random.Random(number).sample(modules, len(modules))
        results = [write(folder, shuffled[i::3], str(i)) for i in range(3)]
        done = run(folder, processes, *options, seed=seed)
        assert done.returncode == 0, done.stderr
        pycs = {
            path: pyc
            for i in range(3)
            for (path, _), pyc in zip(shuffled[i::3], read(results[i]), strict=True)
        }
        found.append(pycs)
    assert len(found[0]) == len(SOURCES)
    assert all(pycs == found[0] for pycs in found[1:])


def test_killed(tmp_path: Path) -> None:
    """A process that dies leaves the name of the file that it had taken."""
    write(tmp_path, [("/m.py", b"x = 1\n")])
    (tmp_path / "0.src").write_bytes(worker.LENGTHS.pack(5, 10) + b"short")
    (tmp_path / "1.src").write_bytes(b"\0")
    done = run(tmp_path, 2)
    assert done.returncode == 1 and "struct.error" in done.stderr
    assert (tmp_path / "1.taken").exists() and not (tmp_path / "1.pyc").exists()
