"""Several targets in one command: a failure of one does not stop the others."""

from __future__ import annotations

import pytest

from tests.support.cli import Cli
from tests.support.project import TinyProject


@pytest.mark.parametrize("command", ["lock", "build"])
def test_failure_of_one_target(do: Cli, three: TinyProject, command: str) -> None:
    """The other targets are locked or built, and the exit code is that of the failure."""
    names = [] if command == "lock" else ["broken", "tiny", "zwei"]
    result = do(command, *names, "--json")
    assert result.code == 5
    assert (
        "error: broken: " in result.err
        and "greeter >=2" in result.err
        and "1 of 3 targets failed: broken" in result.err
    )
    by_name = {r["target"]: r for r in result.json}
    assert (
        "greeter >=2" in by_name["broken"]["error"]
        and by_name["tiny"]["digest"]
        and by_name["zwei"]["digest"]
    )
    assert (three.lock.parent / "tiny.zwei.lock.yml").exists()
    alone = do(command, "broken")
    assert alone.code == 5 and "targets failed" not in alone.err
