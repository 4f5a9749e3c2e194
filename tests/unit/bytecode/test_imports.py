"""Imports in an image: here the image's Python is the one that runs the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.bytecode import imports
from builder.bytecode.imports import Imported, Imports, image_for_imports, import_modules
from builder.errors import LockError, RunnerError
from builder.image.smoke_program import smoke_program
from builder.model import SifImage
from builder.run.base import RunOptions
from builder.run.process import Completed
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support.image_kit import image, recipe
from tests.support.reporters import Warnings

RECIPE = recipe()


class HostRunner:
    """Runs the command of an image with the Python of the tests."""

    name = "host"

    def __init__(self, folder: Path, answer: Completed | None = None) -> None:
        self.folder = folder
        self.answer = answer

    def run(self, image: Any, command: Sequence[str], options: RunOptions) -> Completed:
        assert options.network == "none" and command[0] == "/opt/conda/bin/python"
        if self.answer is not None:
            return self.answer
        (self.folder / "smoke.py").write_bytes(smoke_program())
        words = [word.replace("/opt/builder/", f"{self.folder}/") for word in command[1:]]
        env = {**os.environ, "PYTHONPATH": str(self.folder)}
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env)
        return Completed(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``run(Imports(...))``; ``answer`` replaces what the program in the image prints."""

    def run(wanted: Imports, answer: str | None = None, **more: Any) -> tuple[Imported, Warnings]:
        done = None if answer is None else Completed(more.pop("code", 0), answer, more.pop("err", ""), **more)
        monkeypatch.setattr(imports, "find_runner", lambda *a, **k: HostRunner(tmp_path, done))
        settings = Settings.from_environment({"HOME": str(tmp_path)})
        reporter = Warnings()
        store = Store(settings.cache)
        found = import_modules(image(store), RECIPE, wanted, settings, store, reporter)
        return found, reporter

    return run


def write(folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


def test_files(run: Any, tmp_path: Path) -> None:
    """What modules print is not the list, and the importer's own modules are not in it."""
    text = "import os, below\nprint('{\"builder\": \"imports\", x')\nos.write(1, b'[')\n"
    write(tmp_path, above=text, below="import colorsys")
    found, _ = run(Imports(("above", "above")))
    names = {Path(file).name for file in found.files}
    assert found.names == ("above",) and not found.failed
    assert {"above.py", "below.py", "colorsys.py"} <= names and "subprocess.py" not in names


def test_packages(run: Any) -> None:
    """The image knows which modules a package has."""
    found, _ = run(Imports(packages=("PyYAML", "nosuch")))
    assert found.names == ("yaml",) and any(file.endswith("/yaml/loader.py") for file in found.files)


def test_failures(run: Any, tmp_path: Path) -> None:
    """A module that fails or crashes is named; the others are listed, and what it read before."""
    write(
        tmp_path,
        good="",
        bad="import good\nraise ImportError('no \\x1b[1m GPU')",
        crash="import os\nos.abort()",
        leave="raise SystemExit(0)",
    )
    found, reporter = run(Imports(("bad", "crash", "leave", "colorsys")))
    assert set(found.failed) == {"bad", "crash", "leave"} and "\x1b" not in found.failed["bad"]
    assert {"good.py", "colorsys.py"} <= {Path(file).name for file in found.files}
    (warning,) = reporter.messages
    assert "3 modules cannot be imported: bad: ImportError: no" in warning and "exit code -6" in warning
    with pytest.raises(LockError, match=r"no module can be imported: nosuch: ModuleNotFoundError") as caught:
        run(Imports(("nosuch",)))
    assert "builder smoke tiny" in caught.value.hint


def test_nothing_to_import(run: Any) -> None:
    with pytest.raises(LockError, match="imports no modules") as caught:
        run(Imports())
    assert "smoke: {imports: [...]}" in caught.value.hint
    with pytest.raises(LockError, match="its packages install none"):
        run(Imports(packages=("nosuch",)))


def answer(**values: Any) -> str:
    good: dict[str, Any] = {"builder": "imports", "names": ["a"], "failed": {}, "files": ["/a.py"]}
    return json.dumps({**good, **values})


def test_answer_among_other_output(run: Any) -> None:
    found, _ = run(Imports(("a",)), f"hello\n{answer()}\nbye")
    assert found.files == ("/a.py",)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"builder": "imports", ', answer(names=None), answer(files=["a", 1]), answer(failed=["a"])]
    + [answer(failed={"a": 1}), answer(names=["a"] * 1001), answer(files={"a": 1})]
    + ['{"builder": "imports", "names": ' + "[" * 100_000],
)
def test_hostile_answer(run: Any, text: str) -> None:
    """Anything but the list is an error with what the program printed last."""
    with pytest.raises(RunnerError, match=r"ended with exit code 137 and left no list: one \| two"):
        run(Imports(("a",)), text, code=137, err="one\ntwo\n")


def test_too_many_files(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "MAX_MODULES", 1)
    run(Imports(("a",)), answer(files=["/a.py"] * 2))
    with pytest.raises(RunnerError):
        run(Imports(("a",)), answer(files=["/a.py"] * 3))


def test_sif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some runners run SIFs; an OCI image is made where the base is none."""
    asked: list[Any] = []

    def find(*values: Any, without: Any, **more: Any) -> HostRunner:
        asked.append(set(without))
        return HostRunner(tmp_path, Completed(0, answer(), ""))

    monkeypatch.setattr(imports, "find_runner", find)
    settings = Settings.from_environment({"HOME": str(tmp_path)})
    sif = SifImage(tmp_path / "a.sif", "sha256:a", 1)
    import_modules(sif, RECIPE, Imports(("a",)), settings, Store(settings.cache), Warnings())
    assert asked == [{"docker", "podman", "podman-hpc"}]
    assert image_for_imports(recipe(format="sif", bytecode="imported")).format == "oci"
    kept = image_for_imports(recipe(format="sif", base="sif:a.sif", bytecode="imported"))
    assert kept.format == "sif" and kept.bytecode == "none"
