"""Addresses as they may stand in a lock file or a message: without credentials."""

from __future__ import annotations

import re

#: What a lock names instead of this machine's folders; :mod:`builder.fetch` looks them up again.
EMBEDDED = "builder://debian/"
FIND_LINKS = "builder://find-links/"

_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_TOKEN = re.compile(r"(?<=/t/)[^/\s]+(?=/)")


def public(text: str) -> str:
    """A URL, or any text with URLs in it, without user names, passwords and conda tokens.

    Parts that are environment variables (``$TOKEN``), which conda-lock and pip expand themselves, are no secret and stay.
    """
    text = _USERINFO.sub(lambda m: m[0] if "$" in m[0] else "", text)
    return _TOKEN.sub(lambda m: m[0] if "$" in m[0] else "***", text)
