"""``--sign``, and the password of its key: where they come from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from builder.cli.signing import signing_key
from builder.core.errors import ConfigError, UsageError
from builder.deliver.publishing.keys import PublicKey
from tests.support.signkeys import make_pair

PASSWORD = b"correct horse"
VARIABLE = "BUILDER_SIGN_PASSWORD_FILE"


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return make_pair(tmp_path, "plain")[0]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return make_pair(tmp_path, "secret", PASSWORD)[0]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """``terminal(ANSWER)``: somebody is there; returns the questions that they get."""

    def answer(text: str) -> list[str]:
        questions: list[str] = []

        def prompt(question: str, **options: object) -> str:
            assert options == {"hide_input": True, "err": True}
            questions.append(question)
            return text

        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(click, "prompt", prompt)
        return questions

    return answer


def public(private: Path) -> PublicKey:
    return PublicKey.load(private.with_suffix(".pub"))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``write(CONTENT, MODE)``: the file with the password."""

    def write(content: bytes, mode: int = 0o600) -> None:
        path = tmp_path / "password"
        path.write_bytes(content)
        path.chmod(mode)
        monkeypatch.setenv(VARIABLE, str(path))

    return write


def test_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``--sign`` nothing is read, whatever else is given."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    assert signing_key(None) is None


def test_no_password_needed(plain: Path, terminal: Callable[[str], list[str]]) -> None:
    questions = terminal("")
    key = signing_key(plain)
    assert key is not None and key.public == public(plain) and not questions


@pytest.mark.parametrize("content", [PASSWORD, PASSWORD + b"\n", PASSWORD + b"\r\n"])
def test_password_file(secret: Path, write: Callable[..., None], content: bytes) -> None:
    """As openssl and cosign read it: without the newline at its end, also that of Windows."""
    write(content)
    key = signing_key(secret)
    assert key is not None and key.public == public(secret)


def test_asked(secret: Path, terminal: Callable[[str], list[str]]) -> None:
    questions = terminal(PASSWORD.decode())
    key = signing_key(secret)
    assert key is not None and key.public == public(secret)
    assert questions == [f"Password of {secret}"]


def test_no_password_file(secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is about the password, not about the key."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="missing: no such file") as caught:
        signing_key(secret)
    assert "openssl" not in caught.value.hint and "600" in caught.value.hint


@pytest.mark.parametrize("answer", [b"p\xe4ss", "p\udce4ss"])
def test_other_encoding(
    secret: Path, terminal: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch, answer: bytes | str
) -> None:
    """A terminal that is not UTF-8: no traceback, since its message quotes the password."""
    terminal("")
    text = (lambda *_, **__: answer) if isinstance(answer, str) else (lambda *_, **__: answer.decode())
    monkeypatch.setattr(click, "prompt", text)
    with pytest.raises(UsageError, match="the password is not UTF-8 text") as caught:
        signing_key(secret)
    assert caught.value.__suppress_context__ and VARIABLE in caught.value.hint


def test_nobody_to_ask(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(UsageError, match="is encrypted, and there is no terminal to ask at") as caught:
        signing_key(secret)
    assert VARIABLE in caught.value.hint


@pytest.mark.parametrize(
    ("mode", "content", "message"),
    [
        (0o600, b"wrong", "cannot decrypt the private key"),
        (0o644, PASSWORD, r"other users can read the secret file .*password \(mode 644\)"),
        (0o640, PASSWORD, r"other users can read the secret file .*password \(mode 640\)"),
        (0o600, b"", "cannot decrypt the private key"),
    ],
)
def test_refused_passwords(
    secret: Path, write: Callable[..., None], mode: int, content: bytes, message: str
) -> None:
    write(content, mode)
    with pytest.raises(ConfigError, match=message) as caught:
        signing_key(secret)
    assert PASSWORD.decode() not in str(caught.value)


def test_refused_keys(plain: Path, tmp_path: Path) -> None:
    """A key that is missing, that others can read, or that is the public one."""
    with pytest.raises(ConfigError, match=r"missing\.key: no such file") as caught:
        signing_key(tmp_path / "missing.key")
    assert "openssl genpkey" in caught.value.hint
    plain.chmod(0o604)
    with pytest.raises(ConfigError, match=r"other users can read the secret file .*plain\.key") as caught:
        signing_key(plain)
    assert caught.value.hint == f"chmod 600 {plain}"
    plain.with_suffix(".pub").chmod(0o600)
    with pytest.raises(ConfigError, match="is not a private key in PEM format"):
        signing_key(plain.with_suffix(".pub"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_key_of_another_user(plain: Path) -> None:
    """Who owns the file could exchange it."""
    os.chown(plain, 4242, 4242)
    with pytest.raises(ConfigError, match="belongs to another user"):
        signing_key(plain)
