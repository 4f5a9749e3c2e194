"""Key pairs for tests, as users make them."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


def make_pair(folder: Path, name: str, password: bytes = b"") -> tuple[Path, Path]:
    """Make ``NAME.key``, encrypted if there is a password, and ``NAME.pub``; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.touch(0o600)
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public
