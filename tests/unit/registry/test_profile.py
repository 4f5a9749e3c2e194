"""registry.profile: read as a shell reads it, never run."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        f"export REGISTRY_USER='{ROBOT}' REGISTRY_PASSWORD='s3cret'\n",
        f'export REGISTRY_USER="{ROBOT}" REGISTRY_PASSWORD="s3cret"',
        f"export REGISTRY_USER={ROBOT} REGISTRY_PASSWORD=s3cret",
        "export REGISTRY_USER=robot\\$m558+perlmutter-nersc-gov\nexport REGISTRY_PASSWORD=s3cret\n",
        'export REGISTRY_USER="robot\\$m558"+perlmutter-nersc-gov REGISTRY_PASSWORD=s3cr"et"',
        f"REGISTRY_USER='{ROBOT}'; REGISTRY_PASSWORD=s3cret; export REGISTRY_USER REGISTRY_PASSWORD",
        f"# for jobs\n\n  export REGISTRY_USER='{ROBOT}'   # the robot's\n"
        "\texport REGISTRY_PASSWORD=s3cret # and so on\r\n",
        f"export REGISTRY_USER='{ROBOT}' \\\n       REGISTRY_PASSWORD=s3cret",
        f"declare -x REGISTRY_USER='{ROBOT}' && typeset -x REGISTRY_PASSWORD=s3cret",
        "#!/bin/bash\nexport DB=$(hostname) TZ=`date +%Z`\n"
        f"export REGISTRY_USER='{ROBOT}' REGISTRY_PASSWORD=s3cret\n",
        "export REGISTRY_PASSWORD=old REGISTRY_USER=old\n"
        f"export REGISTRY_PASSWORD=s3cret REGISTRY_USER='{ROBOT}'",
        f"echo REGISTRY_PASSWORD=shown\nexport REGISTRY_USER='{ROBOT}' REGISTRY_PASSWORD=s3cret\n"
        "echo REGISTRY_USER=x",
    ],
)
def test_notations(tmp_path: Path, text: str) -> None:
    """The notations that sites use."""
    found = read_profile(write(tmp_path, text))
    assert (found.username, found.password) == (ROBOT, "s3cret")
    assert "s3cret" not in repr(found) and found.source == str(tmp_path / "registry.profile")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=30))
def test_shlex_round_trip(tmp_path_factory: pytest.TempPathFactory, password: str) -> None:
    """Whatever shlex quotes is read back."""
    path = write(
        tmp_path_factory.mktemp("p"), f"export REGISTRY_USER=u REGISTRY_PASSWORD={shlex.quote(password)}\n"
    )
    assert read_profile(path).password == password


@pytest.mark.parametrize(
    "text",
    [
        "a\\ b",
        "a'b c'd",
        'a"b \\" \\\\ c"d',
        "'a#b'#c",
        "a\\#b",
        'x"y;z&|";true',
        "a'\"'b",
        "\\'\\\"",
        'a"\\x"',
    ],
)
def test_same_words_as_bash(tmp_path: Path, text: str) -> None:
    """Words are split and unquoted as bash does it."""
    path = write(tmp_path, f"export REGISTRY_USER=u REGISTRY_PASSWORD={text}\n")
    bash = subprocess.run(
        ["bash", "-c", '. "$0"; printf %s "$REGISTRY_PASSWORD"', path], capture_output=True, text=True
    )
    assert read_profile(path).password == bash.stdout


def test_nothing_is_run(tmp_path: Path) -> None:
    """No command in the file is run."""
    mark = tmp_path / "mark"
    text = f"touch {mark}\nexport A=$(touch {mark}) B=`touch {mark}`\n"
    text += f"export REGISTRY_USER=u REGISTRY_PASSWORD=p; touch {mark}\n"
    assert read_profile(write(tmp_path, text)).password == "p"
    assert not mark.exists()


@pytest.mark.parametrize(
    "value", ["$(pass show robot)", '"$(cat secret)"', "`pass show robot`", "${SECRET}", '"a${B}c"']
)
def test_computed_value(tmp_path: Path, value: str) -> None:
    """A value that a shell would compute is refused; the message names the line and not the value."""
    path = write(tmp_path, f"# mine\nexport REGISTRY_USER=u\nexport REGISTRY_PASSWORD={value}\n")
    with pytest.raises(RegistryError, match=r"registry\.profile:3: REGISTRY_PASSWORD is computed") as caught:
        read_profile(path)
    assert "single quotes" in caught.value.hint and value not in str(caught.value)


@pytest.mark.parametrize("value", ["'a$(b)'", "'a${b}c`d`'", "a\\$\\(b\\)"])
def test_quoted_dollar(tmp_path: Path, value: str) -> None:
    """A quoted or escaped $ is an ordinary character."""
    (word,) = shlex.split(value)
    assert read_profile(write(tmp_path, f"export REGISTRY_USER=u REGISTRY_PASSWORD={value}")).password == word


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("export REGISTRY_USER=u\n", "does not set REGISTRY_PASSWORD"),
        ("", "does not set REGISTRY_USER and REGISTRY_PASSWORD"),
        ("export REGISTRY_USER= REGISTRY_PASSWORD=hunter2\n", "does not set REGISTRY_USER$"),
        ("export REGISTRY_USER=u REGISTRY_PASSWORD='hunter2\n", "profile:1: a quote is not closed"),
        ("\0\1\2hunter2", "is not a shell file"),
        ("x" * 70000 + "hunter2", "is not a shell file"),
    ],
)
def test_unusable_files(tmp_path: Path, text: str, message: str) -> None:
    """Unusable files are named, and nothing of them is shown."""
    with pytest.raises(RegistryError) as caught:
        read_profile(write(tmp_path, text))
    assert re.search(message, caught.value.message) and "registry.profile" in caught.value.message
    assert "hunter2" not in str(caught.value)


def test_missing_or_binary_file(tmp_path: Path) -> None:
    """A missing file and a binary file are errors."""
    with pytest.raises(
        RegistryError, match=r"cannot read the registry profile .*none: No such file"
    ) as caught:
        read_profile(tmp_path / "none")
    assert VARIABLE in caught.value.hint
    (tmp_path / "latin").write_bytes("export REGISTRY_USER=ü".encode("latin-1"))
    with pytest.raises(RegistryError, match="is not a shell file"):
        read_profile(tmp_path / "latin")


@pytest.mark.parametrize(
    ("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o666, True)]
)
def test_loose_permissions(tmp_path: Path, mode: int, warned: bool) -> None:
    """A file that other users can read is a warning without the password."""
    warnings: list[str] = []
    read_profile(write(tmp_path, "export REGISTRY_USER=u REGISTRY_PASSWORD=hunter2", mode), warnings.append)
    assert bool(warnings) is warned
    assert all("chmod 600" in s and "hunter2" not in s for s in warnings)


def test_order_of_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--profile counts before the variables, and those before BUILDER_REGISTRY_PROFILE."""
    given_, named = tmp_path / "given", tmp_path / "named"
    given_.mkdir()
    named.mkdir()
    one = write(given_, "export REGISTRY_USER=given REGISTRY_PASSWORD=p")
    two = write(named, "export REGISTRY_USER=named REGISTRY_PASSWORD=p")
    variables = {"REGISTRY_USER": "variables", "REGISTRY_PASSWORD": "p"}

    def who(profile: Path | None, env: dict[str, str]) -> str:
        found = named_credentials(profile, env)
        return found.username if found else ""

    assert who(one, {**variables, VARIABLE: str(two)}) == "given"
    assert who(None, {**variables, VARIABLE: str(two)}) == "variables"
    assert who(None, {VARIABLE: str(two)}) == "named"
    monkeypatch.chdir(given_)
    assert who(None, {"HOME": str(given_)}) == "", (
        "a file that merely lies there does not say which registry it is for"
    )


def test_registry_host(tmp_path: Path) -> None:
    """A profile may name its registry; else the variable counts."""
    env = {VARIABLE: str(write(tmp_path, "REGISTRY_USER=u REGISTRY_PASSWORD=p REGISTRY_HOST=a.example"))}
    found = named_credentials(environ={**env, "REGISTRY_HOST": "b.example"})
    assert found is not None and found.host == "a.example"
    write(tmp_path, "REGISTRY_USER=u REGISTRY_PASSWORD=p")
    found = named_credentials(environ={**env, "REGISTRY_HOST": "b.example"})
    assert found is not None and found.host == "b.example"
    found = named_credentials(environ=env)
    assert found is not None and found.host == ""
