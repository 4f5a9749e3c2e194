"""The file of a robot account: its values are read, and nothing of it is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.errors import RegistryError
from builder.registry.profile import VARIABLE, named_credentials, read_profile

ROBOT = "robot$m558+perlmutter-nersc-gov"


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "registry.profile"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "text",
    [
        f"export REGISTRY_USER='{ROBOT}' REGISTRY_PASSWORD='a b#c'\n",
        f'export REGISTRY_USER="{ROBOT}" REGISTRY_PASSWORD="a b#c"',
        f"REGISTRY_USER={ROBOT}\nREGISTRY_PASSWORD='a b#c'\n",
        f"# for jobs\n\n  export REGISTRY_USER='{ROBOT}'   # the robot's\n"
        "\texport OTHER=1 REGISTRY_PASSWORD='a b#c' # and so on\r\n",
        f"export REGISTRY_PASSWORD=old\nexport REGISTRY_PASSWORD='a b#c' REGISTRY_USER='{ROBOT}'",
    ],
)
def test_notations(tmp_path: Path, text: str) -> None:
    """Values are plain or in quotes, one or several a line, with or without export."""
    found = read_profile(write(tmp_path, text))
    assert (found.username, found.password) == (ROBOT, "a b#c")
    assert "a b#c" not in repr(found) and found.source == str(tmp_path / "registry.profile")


@pytest.mark.parametrize(
    "line",
    [
        "export REGISTRY_PASSWORD=$(pass show robot)",
        'export REGISTRY_PASSWORD="$(cat hunter2)"',
        "export REGISTRY_PASSWORD=`cat hunter2`",
        'export REGISTRY_PASSWORD="a${hunter2}c"',
        "export REGISTRY_PASSWORD=hunter2; touch mark",
        "export REGISTRY_PASSWORD='hunter2",
        'export REGISTRY_PASSWORD="hunt\\"er2"',
        "export REGISTRY_PASSWORD=hun\\ter2",
        "export REGISTRY_PASSWORD=hunter'2'",
        "touch mark hunter2",
    ],
)
def test_refused_lines(tmp_path: Path, line: str) -> None:
    """What a shell would compute or run is refused; the message names the line and quotes nothing."""
    with pytest.raises(RegistryError, match=r"registry\.profile:2: not NAME=VALUE") as caught:
        read_profile(write(tmp_path, f"export REGISTRY_USER=u\n{line}\n"))
    assert "hunter2" not in str(caught.value) and "export REGISTRY_USER='...'" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"export REGISTRY_USER=u\n", "does not set REGISTRY_PASSWORD"),
        (b"", "does not set REGISTRY_USER and REGISTRY_PASSWORD"),
        (b"REGISTRY_USER= REGISTRY_PASSWORD=hunter2\n", "does not set REGISTRY_USER$"),
        (b"\0\1\2hunter2", "is not a text file"),
        (b"x" * 70000 + b"hunter2", "is not a text file"),
        ("export REGISTRY_USER=\xfc".encode("latin-1"), "is not a text file"),
        (None, r"cannot read the registry profile .*registry\.profile: No such file"),
    ],
)
def test_unusable_files(tmp_path: Path, data: bytes | None, message: str) -> None:
    """Unusable files are named, and nothing of them is shown."""
    path = tmp_path / "registry.profile"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(RegistryError) as caught:
        read_profile(path)
    assert re.search(message, caught.value.message) and str(path) in caught.value.message
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_loose_permissions(tmp_path: Path, mode: int, warned: bool) -> None:
    """A file that other users can read is a warning without the password."""
    warnings: list[str] = []
    read_profile(write(tmp_path, "export REGISTRY_USER=u REGISTRY_PASSWORD=hunter2", mode), warnings.append)
    assert bool(warnings) is warned
    assert all("chmod 600" in s and "hunter2" not in s for s in warnings)


def test_order_of_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables count before BUILDER_REGISTRY_PROFILE; a file that merely lies there does not count."""
    path = write(tmp_path, "export REGISTRY_USER=named REGISTRY_PASSWORD=p")
    variables = {"REGISTRY_USER": "variables", "REGISTRY_PASSWORD": "p"}

    def who(env: dict[str, str]) -> str:
        found = named_credentials(env)
        return found.username if found else ""

    assert who({**variables, VARIABLE: str(path)}) == "variables"
    assert who({VARIABLE: str(path)}) == "named"
    monkeypatch.chdir(tmp_path)
    assert who({"HOME": str(tmp_path)}) == ""
