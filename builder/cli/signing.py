"""The options of commands that sign a release."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.core.errors import UsageError

from .options import FILE, option

if TYPE_CHECKING:
    from builder.deliver.publishing.keys import SigningKey

#: The environment variable with the name of the file that holds the key's password.
_FILE_VARIABLE = "BUILDER_SIGN_PASSWORD_FILE"
#: Adds ``--sign``, see :func:`signing_key`.
sign_option = option("--sign", metavar="KEY", type=FILE, envvar="BUILDER_SIGN_KEY")


def signing_key(sign: Path | None) -> SigningKey | None:
    """Return the key of ``--sign``; None without the option.

    Raises:
        ConfigError: the key or the password cannot be read, or the password is wrong.
        UsageError: a password is needed, and nobody can be asked.
    """
    if sign is None:
        return None
    from builder.deliver.publishing.keys import SigningKey, read_secret

    def password() -> bytes:
        if file := os.environ.get(_FILE_VARIABLE):
            return read_secret(Path(file)).removesuffix(b"\n").removesuffix(b"\r")
        hint = f"write the password into a file of mode 600: export {_FILE_VARIABLE}=FILE"
        if not sys.stdin.isatty():
            raise UsageError(f"{sign} is encrypted, and there is no terminal to ask at", hint)
        try:
            return str(click.prompt(f"Password of {sign}", hide_input=True, err=True)).encode()
        except UnicodeError:  # its message quotes the password
            raise UsageError("the password is not UTF-8 text", hint) from None

    return SigningKey.load(sign, password)
