"""The options of commands that sign a release."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli.options import FILE, decorated
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.publishing.keys import SigningKey

#: Adds ``--sign`` and ``--password-file``, see :func:`signing_key`.
sign_options = decorated(
    click.option(
        "--sign",
        metavar="KEY",
        type=FILE,
        envvar="BUILDER_SIGN_KEY",
        help="Sign the release with the private key in this file. [env: BUILDER_SIGN_KEY]",
    ),
    click.option(
        "--password-file",
        type=FILE,
        envvar="BUILDER_SIGN_PASSWORD_FILE",
        help="File with the key's password; without it you are asked. "
        "[env: BUILDER_SIGN_PASSWORD_FILE]",
    ),
)


def signing_key(sign: Path | None, password_file: Path | None) -> SigningKey | None:
    """Return the key of ``--sign``; None without the option.

    Raises:
        ConfigError: the key or the password cannot be read, or the password is wrong.
        UsageError: a password is needed, and nobody can be asked.
    """
    if sign is None:
        return None
    from builder.publishing.keys import SigningKey, read_secret

    def password() -> bytes:
        if password_file is not None:
            return read_secret(password_file).removesuffix(b"\n")
        if not sys.stdin.isatty():
            hint = "write it into a file with mode 600: --password-file FILE"
            raise UsageError(f"{sign} is encrypted, and there is no terminal to ask at", hint)
        text: str = click.prompt(f"Password of {sign}", hide_input=True, err=True)
        return text.encode()

    return SigningKey.load(sign, password)
