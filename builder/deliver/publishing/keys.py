"""Key pairs that sign images: ECDSA on the curve P-256 with SHA-256.

cosign's specification requires this scheme only (specs/SIGNATURE_SPEC.md), and it is the only one that
podman, skopeo and cosign read alike: with Ed25519 and P-384, cosign 3 hashes otherwise than
containers/image does.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
    load_pem_public_key,
)

from builder.core.datafiles import read_beside
from builder.core.errors import ConfigError
from builder.core.store.reading import Reader
from builder.formats.oci.digest import sha256

_SCHEME = ec.ECDSA(hashes.SHA256())
#: In bytes: a key in PEM format has less than 1 KiB.
_MAX_KEY = 64 << 10
_MAKE = read_beside(__file__, "make_keys.txt").rstrip()
_GET = "ask whoever signs for their public key; keys of a policy are relative to its folder"
#: A private key of ``cosign generate-key-pair`` or ``skopeo generate-sigstore-key``.
_COSIGN = re.compile(rb"-----BEGIN ENCRYPTED (?:SIGSTORE|COSIGN) PRIVATE KEY-----([^-]*)-----END ")
#: The parameters (N, r, p) of scrypt that go-securesystemslib accepts.
_SCRYPT = {(1 << bits, 8, 1) for bits in (15, 16, 17)}


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The public half of a key pair: what verifies signatures."""

    der: bytes = field(repr=False)
    """SubjectPublicKeyInfo; the same bytes for the same key."""
    _key: ec.EllipticCurvePublicKey = field(repr=False, compare=False)

    @classmethod
    def load(cls, path: Path) -> PublicKey:
        """Read a key in PEM format, as ``cosign.pub``.

        Raises:
            ConfigError: it cannot be read, or is of another kind.
        """
        try:
            key = load_pem_public_key(_read(path))
        except (ValueError, UnsupportedAlgorithm):
            raise ConfigError(f"{path} is not a public key in PEM format", _MAKE) from None
        return cls._of(key, path)

    @classmethod
    def _of(cls, key: object, path: Path) -> PublicKey:
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            message = f"{path} is not an ECDSA key on the curve P-256: no other kind is supported"
            raise ConfigError(message, _MAKE)
        return cls(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo), key)

    @property
    def fingerprint(self) -> str:
        """``sha256:<hex>`` of the key in DER."""
        return sha256(self.der)

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Return whether this key's private half signed these bytes."""
        try:
            self._key.verify(signature, data, _SCHEME)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True, eq=False)
class SigningKey:
    """A private key and its public half."""

    _key: ec.EllipticCurvePrivateKey = field(repr=False)
    public: PublicKey

    @classmethod
    def load(cls, path: Path, password: Callable[[], bytes]) -> SigningKey:
        """Read a private key: PKCS#8 or SEC 1 in PEM format, or cosign's own encrypted format.

        Args:
            path: the file, which only its owner may read.
            password: returns the password; called only if the file is encrypted.

        Raises:
            ConfigError: it cannot be read, other users can read it, it is of another kind, or the
                password is wrong. The message quotes nothing of the file.
        """
        data = _read(path, _MAKE, private=True)
        secret = password() if b"ENCRYPTED" in data else None
        try:
            key = _decode(data, secret)
        except ImportError:
            message = f"{path} is encrypted as cosign does it, which PyNaCl decrypts"
            raise ConfigError(message, "pip install pynacl") from None
        except (ValueError, TypeError, LookupError, UnsupportedAlgorithm):
            if secret is None:
                raise ConfigError(f"{path} is not a private key in PEM format", _MAKE) from None
            message = f"cannot decrypt the private key {path}: the password is wrong"
            hint = "enter the password again; if it is right, the file is damaged"
            raise ConfigError(message, hint) from None
        public = PublicKey._of(key.public_key(), path)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(key, public)

    def sign(self, data: bytes) -> bytes:
        """Return a signature of these bytes, in DER."""
        return self._key.sign(data, _SCHEME)


def read_secret(path: Path) -> bytes:
    """Return the content of a file that only its owner may read.

    Raises:
        ConfigError: it cannot be read, or others can read it.
    """
    return _read(path, "write it there, and set its mode to 600", private=True)


def _read(path: Path, hint: str = _GET, *, private: bool = False) -> bytes:
    with Reader(ConfigError, hint, pipes=private).open(path, hint) as (f, info):
        data = f.read(_MAX_KEY)
    if private and info.st_uid not in (0, os.geteuid()):
        hint = "another user can change it: copy it to a file of yours with mode 600"
        raise ConfigError(f"the secret file {path} belongs to another user", hint)
    if private and info.st_mode & 0o077:
        message = f"other users can read the secret file {path} (mode {info.st_mode & 0o777:o})"
        raise ConfigError(message, f"chmod 600 {path}")
    return data


def _decode(data: bytes, password: bytes | None) -> PrivateKeyTypes:
    box = _COSIGN.search(data)
    if box and password is not None:
        return load_der_private_key(_open_box(base64.b64decode(box[1]), password), None)
    return load_pem_private_key(data, password)


def _open_box(data: bytes, password: bytes) -> bytes:
    """Decrypt a key as go-securesystemslib's ``encrypted`` does: scrypt and NaCl's secretbox.

    Raises:
        ValueError, TypeError, LookupError: the password is wrong, or the data are damaged.
    """
    # XSalsa20, the cipher of secretbox, is not in cryptography; only keys of cosign need it.
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    box = json.loads(data)
    kdf, cipher = box["kdf"], box["cipher"]
    n, r, p = (kdf["params"][name] for name in ("N", "r", "p"))
    if (kdf["name"], cipher["name"]) != ("scrypt", "nacl/secretbox") or (n, r, p) not in _SCRYPT:
        raise ValueError("unknown encryption")
    salt, nonce, text = map(base64.b64decode, (kdf["salt"], cipher["nonce"], box["ciphertext"]))
    secret = Scrypt(salt, SecretBox.KEY_SIZE, n, r, p).derive(password)
    try:
        return bytes(SecretBox(secret).decrypt(text, nonce))
    except CryptoError:
        raise ValueError("wrong password") from None
