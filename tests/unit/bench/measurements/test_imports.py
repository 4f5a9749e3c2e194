"""Importing modules: by name, by package, with failures, crashes and hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.bench.measurements import imports
from builder.bench.measurements.imports import failed_imports
from tests.support.smoke import run


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with modules, before all others for this and for new processes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def write(site: Path, path: str, text: str = "") -> None:
    file = site / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


#: The source of each module that cannot be imported, and how its import ends.
FAULTY = {
    "odd": ("raise ImportError('libGL.so.1: cannot open')", "ImportError: libGL.so.1: cannot open"),
    "leaves": ("import sys; sys.exit(3)", "it ended the process with exit code 3"),
    "crashes": (
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "it ended the process by signal 11",
    ),
    "ends": ("import os; os._exit(4)", "it ended the process with exit code 4"),
    "hangs": ("import time; time.sleep(1000)", "did not end within 5 s"),
}


def test_each_module(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that fails, exits, crashes or hangs is named; the others are imported."""
    monkeypatch.setattr(imports, "LIMIT_S", 5.0)
    monkeypatch.setattr(imports, "TOTAL_S", 60.0)
    write(site, "fine.py", "print('{}'); import sys; print('x', file=sys.stderr)")
    for name, (source, _) in FAULTY.items():
        write(site, f"{name}.py", source)
    names = ["fine", "odd", "leaves", "crashes", "json", "ends", "hangs", "os.path", "nosuch"]
    expected = {name: message for name, (_, message) in FAULTY.items()}
    expected["nosuch"] = "ModuleNotFoundError: No module named 'nosuch'"
    assert failed_imports(names) == expected


def install(site: Path, name: str, files: list[str], top_level: str = "", record: bool = True) -> None:
    """Installs a distribution with empty files."""
    folder = f"{name.replace('-', '_')}-1.0.dist-info"
    write(site, f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    if record:
        write(site, f"{folder}/RECORD", "".join(f"{file},,\n" for file in files))
    if top_level:
        write(site, f"{folder}/top_level.txt", top_level)
    for file in files:
        write(site, file)


def test_modules_of_packages(site: Path) -> None:
    """The image knows which modules a package installs."""
    install(site, "Scikit_Learn", ["sklearn/__init__.py", "sklearn/tests/__init__.py", "../bin/x"])
    install(site, "attrs", ["attr/__init__.py", "attrs/__init__.py"])
    install(site, "google-thing", ["google/thing/__init__.py", "google/thing/deep/__init__.py"])
    install(site, "single", ["_single.cpython-311-x86_64-linux-gnu.so", "one.py", "tests/__init__.py"])
    install(site, "debian-like", [], "deb\n_deb\ntests\n", record=False)
    install(site, "programs", ["../../bin/run", "share/x.txt"])
    expected = {
        "scikit-learn": ["sklearn"],
        "attrs": ["attrs"],
        "google-thing": ["google"],
        "single": ["one"],
        "debian-like": ["deb"],
        "programs": [],
        "gone": [],
    }
    assert imports.modules_of(list(expected)) == expected


def test_in_the_report(site: Path) -> None:
    """The benchmark imports modules and those of packages; a failure fails, and has its reason."""
    install(site, "my-package", ["my_module/__init__.py"])
    options = ("--framework", "none", "--packages", "my-package,gone")
    result = run(*options, "--imports", "json", env={"PYTHONPATH": str(site)})
    item = result.measurement("imports")
    assert item["status"] == "pass" and item["seen"].startswith("json, my_module: imported in")
    assert result.report["test"] == {"imports": ["json"], "packages": ["my-package", "gone"]}
    result = run("--framework", "none", "--imports", "json,nosuch")
    assert result.verdict == "fail" and result.failed == {"imports"}
    assert (
        "1 of 2 modules do not import: nosuch: ModuleNotFoundError" in result.measurement("imports")["seen"]
    )
    result = run("--framework", "none", "--packages", "gone")
    item = result.measurement("imports")
    assert item["status"] == "warn" and "smoke: {command" in item["advice"] and result.code == 0


def test_python_alone() -> None:
    """A test of nothing else imports modules that need shared libraries of the image."""
    item = run("--framework", "none").measurement("imports")
    assert item["status"] == "pass" and item["seen"].startswith("ctypes, zlib: imported in")
