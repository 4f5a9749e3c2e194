"""Which modules are compiled."""

from __future__ import annotations

from typing import Any

import pytest

from builder.bytecode.modules import python_folder, wanted_modules, with_modules
from builder.errors import LockError
from builder.lock.modules import MODULES, listed_modules
from builder.model import Lock, LockedPackage
from tests.support.image_kit import recipe

SITE = "opt/conda/lib/python3.12/site-packages"


def lock(listed: str | None = None, *, build: str = "h1_0_cpython", name: str = "python") -> Lock:
    url = f"https://host.example/linux-64/{name}-3.12.4-{build}.conda"
    package = LockedPackage(name, "3.12.4", "conda", "linux-64", url, "a" * 64)
    return Lock((package,), ("linux-64",), custom={} if listed is None else {MODULES: listed})


def of(bytecode: str, **more: Any) -> Any:
    return recipe(bytecode=bytecode, **more)


def test_all_and_none() -> None:
    assert wanted_modules(of("all"), lock()) is None
    assert wanted_modules(of("none"), lock(".: a")) == frozenset()


def test_imported() -> None:
    """The list has neither the prefix nor the version of Python."""
    listed = ".: abc\nsite-packages/six: __init__"
    found = wanted_modules(of("imported"), lock(listed))
    assert found == {"opt/conda/lib/python3.12/abc.py", f"{SITE}/six/__init__.py"}
    found = wanted_modules(of("imported", conda={"prefix": "/env"}), lock(listed, build="h1_0_cp312t"))
    assert found == {"env/lib/python3.12t/abc.py", "env/lib/python3.12t/site-packages/six/__init__.py"}


def test_without_list() -> None:
    """The hint is the one command that is missing."""
    with pytest.raises(LockError, match="does not list the imported modules") as caught:
        wanted_modules(of("imported"), lock())
    assert caught.value.hint == "builder lock tiny --imports"
    with pytest.raises(LockError) as caught:
        wanted_modules(of("imported", lock="conda-lock.yml"), lock())
    assert "bytecode: all" in caught.value.hint and "builder lock tiny" not in caught.value.hint


def test_without_python() -> None:
    """An image without Python has no modules, and needs no list."""
    assert wanted_modules(of("imported"), lock(name="zlib")) == frozenset()
    assert python_folder(of("all"), lock(name="zlib")) == ""


def test_with_modules() -> None:
    """What is no module of the prefix's Python is left out."""
    files = [f"/{SITE}/a.py", "/usr/lib/python3.12/os.py", f"/{SITE}/../../../x.py", "/etc/a.py", "a.py"]
    made = with_modules(of("imported"), lock("old: x"), [*files, f"/{SITE}/b c.py"])
    assert listed_modules(made) == {"site-packages/a.py"}
    with pytest.raises(LockError, match="read no module below /opt/conda/lib/python3.12/"):
        with_modules(of("imported"), lock(), files[1:])
