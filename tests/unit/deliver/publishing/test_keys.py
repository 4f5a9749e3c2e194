"""Key pairs: formats of files, passwords, who may read them, and messages that quote nothing."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from builder.core.errors import ConfigError
from builder.deliver.publishing.keys import PublicKey, SigningKey

PASSWORD = b"correct horse"
PRIVATE, PEM = PrivateFormat.PKCS8, Encoding.PEM
Key = ec.EllipticCurvePrivateKey


def never() -> bytes:
    raise AssertionError("the file is not encrypted")


def locked() -> KeySerializationEncryption:
    return BestAvailableEncryption(PASSWORD)


def sealed(key: Key, label: str = "SIGSTORE", n: int = 1 << 15) -> bytes:
    """The file that ``cosign generate-key-pair`` writes."""
    nacl = pytest.importorskip("nacl.secret", reason="PyNaCl is not installed: make setup")
    salt, nonce = b"s" * 32, b"n" * 24
    box = nacl.SecretBox(Scrypt(salt, 32, n, 8, 1).derive(PASSWORD))
    der = key.private_bytes(Encoding.DER, PRIVATE, NoEncryption())
    salt_text, nonce_text, text = (
        base64.b64encode(data).decode() for data in (salt, nonce, box.encrypt(der, nonce).ciphertext)
    )
    kdf = {"name": "scrypt", "params": {"N": n, "r": 8, "p": 1}, "salt": salt_text}
    cipher = {"name": "nacl/secretbox", "nonce": nonce_text}
    value = json.dumps({"kdf": kdf, "cipher": cipher, "ciphertext": text})
    label = f"ENCRYPTED {label} PRIVATE KEY"
    body = base64.encodebytes(value.encode()).decode()
    return f"-----BEGIN {label}-----\n{body}-----END {label}-----\n".encode()


FORMATS: dict[str, tuple[Callable[[Key], bytes], bool]] = {
    "pkcs8": (lambda key: key.private_bytes(PEM, PRIVATE, NoEncryption()), False),
    "sec1": (lambda key: key.private_bytes(PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()), False),
    "encrypted": (lambda key: key.private_bytes(PEM, PRIVATE, locked()), True),
    "encrypted sec1": (lambda key: key.private_bytes(PEM, PrivateFormat.TraditionalOpenSSL, locked()), True),
    "sigstore": (sealed, True),
    "cosign": (lambda key: sealed(key, "COSIGN"), True),
}


@pytest.fixture
def key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(data: bytes, mode: int = 0o600) -> Path:
        path = tmp_path / "builder.key"
        path.write_bytes(data)
        path.chmod(mode)
        return path

    return write


def public_pem(key: Key) -> bytes:
    return key.public_key().public_bytes(PEM, PublicFormat.SubjectPublicKeyInfo)


def test_without_pynacl(key: Key, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(sealed(key))
    monkeypatch.setitem(sys.modules, "nacl.secret", None)
    with pytest.raises(ConfigError, match=f"^{path} is encrypted as cosign does it, which PyNaCl") as caught:
        SigningKey.load(path, lambda: PASSWORD)
    assert caught.value.hint == "pip install pynacl"


@pytest.mark.parametrize("form", FORMATS)
def test_formats(form: str, key: Key, write: Callable[..., Path], tmp_path: Path) -> None:
    """The password is asked for only if the file is encrypted; the public half verifies."""
    make, encrypted = FORMATS[form]
    loaded = SigningKey.load(write(make(key)), (lambda: PASSWORD) if encrypted else never)
    (tmp_path / "builder.pub").write_bytes(public_pem(key))
    public = PublicKey.load(tmp_path / "builder.pub")
    assert public == loaded.public and public.fingerprint.startswith("sha256:")
    signature = loaded.sign(b"data")
    assert public.verify(signature, b"data")
    assert not public.verify(signature, b"other")
    assert not public.verify(signature[:-1], b"data") and not public.verify(b"", b"data")


@pytest.mark.parametrize("form", [form for form, (_, encrypted) in FORMATS.items() if encrypted])
@pytest.mark.parametrize("password", [b"hunter2", b""], ids=["other", "empty"])
def test_wrong_password(form: str, password: bytes, key: Key, write: Callable[..., Path]) -> None:
    path = write(FORMATS[form][0](key))
    with pytest.raises(ConfigError) as caught:
        SigningKey.load(path, lambda: password)
    assert caught.value.message == f"cannot decrypt the private key {path}: the password is wrong"
    assert "hunter2" not in str(caught.value) and caught.value.__suppress_context__


def test_password_raises(key: Key, write: Callable[..., Path]) -> None:
    """What goes wrong while the password is asked for is not called a wrong password."""

    def broken() -> bytes:
        raise ValueError("no terminal")

    with pytest.raises(ValueError, match="no terminal"):
        SigningKey.load(write(FORMATS["encrypted"][0](key)), broken)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_others_can_read(mode: int, key: Key, write: Callable[..., Path]) -> None:
    path = write(FORMATS["pkcs8"][0](key), mode)
    with pytest.raises(ConfigError) as caught:
        SigningKey.load(path, never)
    assert f"mode {mode:o}" in caught.value.message and caught.value.hint == f"chmod 600 {path}"


def test_of_another_user(key: Key, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(FORMATS["pkcs8"][0](key))
    owner = os.stat_result((0o100600, 0, 0, 0, os.geteuid() + 1, 0, 0, 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda fd: owner)
    with pytest.raises(ConfigError, match="belongs to another user"):
        SigningKey.load(path, never)


@pytest.mark.parametrize(
    "other",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ed25519.Ed25519PrivateKey.generate(),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["P-384", "Ed25519", "RSA"],
)
def test_other_kinds(other: ec.EllipticCurvePrivateKey, write: Callable[..., Path]) -> None:
    """The message names what to type; both halves are refused."""
    data = other.private_bytes(PEM, PRIVATE, NoEncryption())
    for load in (lambda path: SigningKey.load(path, never), PublicKey.load):
        with pytest.raises(ConfigError) as caught:
            load(write(data))
        assert "is not an ECDSA key on the curve P-256" in caught.value.message
        assert "openssl genpkey -algorithm EC" in caught.value.hint
        assert "cosign generate-key-pair" in caught.value.hint
        data = public_pem(other)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\x00", b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n", b"x" * (1 << 17)]
)
def test_no_key(data: bytes, write: Callable[..., Path]) -> None:
    path = write(data)
    with pytest.raises(ConfigError) as caught:
        SigningKey.load(path, never)
    assert caught.value.message == f"{path} is not a private key in PEM format"
    with pytest.raises(ConfigError) as caught:
        PublicKey.load(path)
    assert caught.value.message == f"{path} is not a public key in PEM format"


@pytest.mark.parametrize("n", [1 << 14, 1 << 30])
def test_other_parameters(n: int, key: Key, write: Callable[..., Path]) -> None:
    """A file cannot make scrypt use all memory."""
    data = sealed(key)
    head, body, tail = data.split(b"-----\n", 1)[0], data.split(b"-----\n", 1)[1], b""
    text, _, tail = body.partition(b"-----END")
    value = base64.b64decode(text).replace(str(1 << 15).encode(), str(n).encode())
    path = write(head + b"-----\n" + base64.encodebytes(value) + b"-----END" + tail)
    with pytest.raises(ConfigError, match="cannot decrypt"):
        SigningKey.load(path, lambda: PASSWORD)


def test_private_for_public(key: Key, write: Callable[..., Path]) -> None:
    """A private key is not accepted in place of the public one, and is not quoted."""
    path = write(FORMATS["pkcs8"][0](key))
    with pytest.raises(ConfigError, match="not a public key"):
        PublicKey.load(path)
    with pytest.raises(ConfigError, match="nosuch: no such file"):
        PublicKey.load(path.with_name("nosuch"))


def test_repr(key: Key, write: Callable[..., Path]) -> None:
    loaded = SigningKey.load(write(FORMATS["pkcs8"][0](key)), never)
    assert repr(loaded) == f"SigningKey(public={loaded.public!r})"
    assert str(key.private_numbers().private_value) not in f"{loaded!r} {loaded}"
