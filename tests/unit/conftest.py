from __future__ import annotations

import pytest

from builder.build.bytecode import compile as compile_module
from builder.build.bytecode.compile import CompileJob
from tests.support.thispython import ThisPython


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> ThisPython:
    """This Python compiles, in place of one in a container."""
    python = ThisPython()
    monkeypatch.setattr(compile_module, "make_runtime", lambda source: (None, ""))
    monkeypatch.setattr(CompileJob, "run", lambda job, *args: python.run(job, *args))
    return python
