"""Removes credentials from text for other people: messages, logs, lock files, attestations.

:func:`redact` is the only function that does this. It changes the URLs in a text:

==================================================  ==============================================
text                                                result
==================================================  ==============================================
``https://me:secret@host/x``, ``tcp://me@host``     ``https://host/x``, ``tcp://host``
``https://me:p@ss/word@host/x`` (not encoded)       ``https://host/x``
``https://me://secret/@host/x`` (not encoded)       ``https://host/x``
``https://robot$ml:secret@host``, ``me:pa$$x@...``  ``https://host``: a ``$`` makes no variable
``https://me:$PASSWORD@host/x`` (a variable)        unchanged: a variable's name is no secret
``https://host/t/TOKEN/channel`` (conda)            ``https://host/t/***/channel``
``https://host/t/$TOKEN/channel``                   unchanged
``https://host/t/torch/torch-2.whl``                unchanged: names sorted by letter
``https://host/x?sig=SECRET&v=1``                   ``https://host/x?sig=***&v=***``
``https://host/x?sig=$TOKEN``                       unchanged
``docker://host/name:tag@sha256:...``               unchanged: a digest, not a host
==================================================  ==============================================

A text that is not encoded can have several readings. In doubt more is removed; but ``me:12/3@host``
is read as a port and a path, as HTTP clients do.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_VARIABLE = r"\$(?:\{\w+\}|\w+)"
_IS_VARIABLE = re.compile(_VARIABLE)
#: What follows ``://``, to the end of the URL or to the next one.
_ONE = r"(?:(?!://)[^\s\"<>])+"
_URL = re.compile(rf"(?<=://){_ONE}")
#: The same, but a word and another ``://`` may be a user and the beginning of a password: ``me://SECRET@host``.
_REST = re.compile(rf"(?<=://)(?:[^\s\"<>/?#@:\[\]]+://[^\s\"<>]*|{_ONE})")
#: ``$TOKEN@`` or ``user:$PASSWORD@``: conda-lock and pip expand the variable when the URL is used.
_FROM_VARIABLES = re.compile(rf"(?:(?:{_VARIABLE}|[\w.-]*):)?{_VARIABLE}@")
#: ``user:`` at the beginning, unless a port follows: then a later ``@`` ends a password with ``/?#`` in it.
_USER = re.compile(r"[^/?#@:\[\]]+:(?!\d+(?:[/?#]|$))")
#: Not where names are sorted by letter: ``/t/torch/torch-2.whl``.
_TOKEN = re.compile(r"(?<=/t/)(?!(t\w)[^/]*/\1)[^/\s'\"]+(?=/)", re.IGNORECASE)
#: A value of a query, or all of a query without ``=``.
_QUERY_VALUE = re.compile(r"(?<==)[^&]+|\A[^=]+\Z")
#: Whole digests only: what is shorter may be a host after a password.
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


def redact(text: str) -> str:
    """Return the text with the credentials of all its URLs removed; see the table above."""
    return _REST.sub(lambda match: _each(match[0], _redacted), text)


def without_userinfo(text: str) -> str:
    """Return the text without the user names and passwords of its URLs; ``$VARIABLES`` stay."""
    return _REST.sub(lambda match: _each(match[0], _without_userinfo), text)


def userinfo(url: str) -> str:
    """Return ``user:password@`` of a URL, as it is; empty if it has none."""
    match = _REST.search(url)
    return match[0][: _userinfo_end(match[0])] if match else ""


def _each(rest: str, change: Callable[[str], str]) -> str:
    """Change each URL in ``rest``, also after a user whose password begins with ``//``."""
    if "://" not in rest:
        return change(rest)
    urls = "://" + rest[_userinfo_end(rest) :]
    return _URL.sub(lambda match: change(match[0]), urls)[3:]


def _redacted(rest: str) -> str:
    if "@" in rest:
        rest = _without_userinfo(rest)
    if "/t/" in rest:
        rest = _TOKEN.sub(_hidden, rest)
    if "?" in rest:
        path, _, query = rest.partition("?")
        query, mark, fragment = query.partition("#")
        plain = query.rstrip("',.;:)]") if "=" in query else query  # of the sentence around it
        query = _QUERY_VALUE.sub(_hidden, plain) + query[len(plain) :]
        rest = f"{path}?{query}{mark}{fragment}"
    return rest


def _hidden(match: re.Match[str]) -> str:
    return match[0] if _IS_VARIABLE.fullmatch(match[0]) else "***"


def _without_userinfo(rest: str) -> str:
    end = _userinfo_end(rest)
    return rest if _FROM_VARIABLES.fullmatch(rest, 0, end) else rest[end:]


def _userinfo_end(rest: str) -> int:
    """Return the start of the host in the text after ``://``."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    area = rest if _USER.match(rest) else authority
    at = area.rfind("@")
    while at > 0 and _DIGEST.match(rest, at + 1):  # docker://name:tag@sha256:...
        at = area.rfind("@", 0, at)
    return at + 1
