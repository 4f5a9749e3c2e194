"""The folder of a stack: what is kept, and who can read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from builder.errors import BuilderError, UsageError
from builder.services.state import ExternalStore, Stack, State, check_keys, prometheus_file

STACK = Stack(
    name="services",
    target="trained",
    image="builder/trained:latest",
    servers_image="builder/services:latest",
    engine="docker",
    ports={"mlflow": 8000, "ray": 8265, "prometheus": 9090, "s3": 3900},
    workers=2,
    gpus=0,
    scrape=("host:9100",),
)


def test_round_trip(tmp_path: Path) -> None:
    """A stack is read as it was written, and secrets are made once."""
    state = State(tmp_path / "new")
    assert state.read() is None
    state.write(STACK, "services: {}\n")
    secrets = {path.name: path.read_text() for path in state.folder.iterdir()}
    state.write(STACK, "services: {}\n")
    assert state.read() == STACK
    assert {path.name: path.read_text() for path in state.folder.iterdir()} == secrets
    assert state.token() == secrets["ray-token"] and len(state.token()) == 64
    key = secrets["aws"].split()[3]
    assert key.startswith("GK") and f"GARAGE_DEFAULT_ACCESS_KEY={key}\n" in secrets["garage.env"]
    assert "secret" not in json.loads(secrets["stack.json"])
    state.remove()
    assert state.read() is None


def test_interrupted(tmp_path: Path) -> None:
    """A start that ended between two files is made complete by the next one."""
    state = State(tmp_path)
    state.write(STACK, "")
    before = (tmp_path / "garage.env").read_text()
    (tmp_path / "garage.env").unlink()
    state.write(STACK, "")
    assert (tmp_path / "garage.env").read_text() == before


def test_remove(tmp_path: Path) -> None:
    """Files of the user in a folder that they named stay."""
    state = State(tmp_path)
    state.write(STACK, "")
    assert {path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o077} == {
        *("stack.json", "compose.yaml", "postgres.sh", "dashboard.json", "prometheus.yml")
    }
    (tmp_path / "thesis.tex").touch()
    state.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of another user can have passwords that they know, and their servers are theirs to stop."""
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)
    state = State(tmp_path)
    with pytest.raises(UsageError, match="are of the user with number"):
        state.write(STACK, "")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match=f"number {STACK.user}"):
        state.require_own(STACK)


def test_damaged(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text("{}")
    with pytest.raises(BuilderError, match="damaged"):
        State(tmp_path).read()
    with pytest.raises(UsageError, match="no servers were started"):
        State(tmp_path / "other").require()


def test_folder(tmp_path: Path) -> None:
    """The folder is the user's own, unless one is named."""
    state = State.of("team", None, {"XDG_STATE_HOME": str(tmp_path)})
    assert state.folder == tmp_path / "builder/services/team"
    assert State.of("team", tmp_path / "x").folder == tmp_path / "x"
    with pytest.raises(UsageError, match="not a name"):
        State.of("A b", None)


def test_prometheus() -> None:
    """Prometheus reads every node of Ray, and the exporters that the user names."""
    ray, more = yaml.safe_load(prometheus_file(STACK))["scrape_configs"]
    assert ray["static_configs"] == [{"targets": ["ray-head:8080", "ray-worker-0:8080", "ray-worker-1:8080"]}]
    assert more["static_configs"] == [{"targets": ["host:9100"]}]


@pytest.mark.parametrize(
    ("mode", "text", "message"),
    [
        (0o644, "aws_access_key_id = a\naws_secret_access_key = b", "others can read it"),
        (0o600, "aws_access_key_id = a", "is missing"),
        (None, "", "No such file"),
    ],
)
def test_keys(tmp_path: Path, mode: int | None, text: str, message: str) -> None:
    path = tmp_path / "keys"
    if mode is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(UsageError, match=message):
        check_keys(ExternalStore("https://host:7480", str(path)))


def test_address_with_keys(tmp_path: Path) -> None:
    """Keys in the address are refused, and not shown."""
    with pytest.raises(UsageError) as error:
        check_keys(ExternalStore("https://me:geheim@host", str(tmp_path)))
    assert "geheim" not in str(error.value) + error.value.hint
