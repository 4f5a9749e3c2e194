"""The Python that runs the tests as the compiler of modules, in place of one in a container."""

from __future__ import annotations

import subprocess
import sys

from builder.build.bytecode import worker
from builder.build.bytecode.compile import CompileJob


class ThisPython:
    """Compiles with this Python; counts the runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.modules = 0

    def run(self, job: CompileJob, *args: object) -> str:
        self.runs += 1
        self.modules += sum(len(list(worker.modules(f.read_bytes()))) for f in job.folder.glob("*.src"))
        command = [sys.executable, "-s", "-S", "-B", worker.__file__, str(job.folder), "2"]
        subprocess.run(command, env={"PYTHONHASHSEED": "0"}, check=True, timeout=300)
        return "cpython-311"
