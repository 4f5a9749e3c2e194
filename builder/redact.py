"""Removes credentials from text that other people may read: messages, logs, lock files, images, attestations.

:func:`redact` is the only function that does this. It changes the URLs in a text:

==================================================  ==============================================
text                                                result
==================================================  ==============================================
``https://me:secret@host/x``, ``tcp://me@host``     ``https://host/x``, ``tcp://host``
``https://me:$PASSWORD@host/x`` (a variable)        unchanged: a variable's name is no secret
``https://host/t/TOKEN/channel`` (conda)            ``https://host/t/***/channel``
``https://host/t/$TOKEN/channel``                   unchanged
``https://host/x?sig=SECRET&v=1``                   ``https://host/x?sig=***&v=1``
==================================================  ==============================================
"""

from __future__ import annotations

import re

_USERINFO = re.compile(r"(?<=://)[^/@\s'\"]+@")
_VARIABLE = r"\$(?:\{\w+\}|\w+)"
#: ``$TOKEN@`` or ``user:$PASSWORD@``: conda-lock and pip expand the variable when the URL is used.
_FROM_VARIABLE = re.compile(rf"(?:[^:]*:)?{_VARIABLE}@")
_TOKEN = re.compile(r"(?<=/t/)[^/\s'\"]+(?=/)")
_QUERY = re.compile(
    r"(?<=[?&])((?:[\w.-]*(?:token|secret|passw|pwd|signature|credential|auth|apikey|api_key)[\w.-]*|sig|key)=)[^&#\s'\"]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """The text with the credentials of all its URLs removed; see the table above."""
    text = without_userinfo(text)
    text = _TOKEN.sub(lambda match: match[0] if re.fullmatch(_VARIABLE, match[0]) else "***", text)
    return _QUERY.sub(r"\1***", text)


def without_userinfo(text: str) -> str:
    """The text without the user names and passwords of its URLs; ``$VARIABLES`` stay."""
    return _USERINFO.sub(lambda match: match[0] if _FROM_VARIABLE.fullmatch(match[0]) else "", text)
