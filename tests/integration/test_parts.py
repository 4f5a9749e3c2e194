"""What no other test shows of its parts: whom an ordinary user is, and that servers end with a killed run."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from tests.support import parts


def test_ordinary_user(ordinary_user: parts.OrdinaryUser, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    inner, closed = tmp_path / "inner", tmp_path / "closed"
    for folder in (inner, closed):
        folder.mkdir(mode=0o755)
        (folder / "file").write_text(folder.name)
    probe = "import os, pwd, builder; user = pwd.getpwuid(os.getuid()); "
    probe += "print(user.pw_uid, user.pw_name, os.environ['HOME'], os.environ['X'])"
    done = ordinary_user.run([sys.executable, "-c", probe], {"X": "1"}, cwd=parts.CLONE)
    assert done.stdout.split() == [str(ordinary_user.uid), ordinary_user.name, str(ordinary_user.home), "1"]
    if os.geteuid() == 0:
        assert ordinary_user.run(["cat", inner / "file"], readable=[inner]).stdout == "inner"
        assert ordinary_user.run(["cat", closed / "file"], readable=[inner], check=False).returncode != 0
        assert ordinary_user.run(["touch", "/etc/written"], check=False).returncode != 0
        assert ordinary_user.name not in Path("/etc/passwd").read_text()


def test_parts_end_with_their_tests() -> None:
    """A run that is killed leaves no server behind."""
    script = (
        "from tests.support import parts\n"
        "with parts.registries() as make:\n"
        "    print(make().pid, flush=True)\n"
        "    import time; time.sleep(300)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=parts.CLONE)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    registry = os.pidfd_open(pid)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert select.select([registry], [], [], 120)[0], "the registry is still there"
    os.close(registry)
