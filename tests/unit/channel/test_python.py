"""Debian's Python without Debian's changes."""

from __future__ import annotations

import struct
import sys

import pytest

from builder.channel.python import _ADDED_CODE, _ADDED_LENGTH, _NEXT_CODE, _RELOCATION, with_frozen_site
from builder.errors import FetchError

#: The string object of ``dist-packages``: reference count, type, length, hash, state, wstr, characters.
STRING = struct.pack("<6q", 1, 0, 13, -1, 0, 0) + b"dist-packages\0"
CODE = _ADDED_CODE + bytes(_ADDED_LENGTH - len(_ADDED_CODE)) + _NEXT_CODE


def test_frozen_site() -> None:
    """The string is replaced, and a jump of the right length leaves out what Debian adds."""
    before = b"\x7fELF" + STRING + CODE + b"end"
    after = with_frozen_site(before)
    assert len(after) == len(before) and b"site-packages\0" in after and b"dist-packages" not in after
    start = before.index(_ADDED_CODE)
    assert after[start + 2 :] == before[start + 2 :]
    opcode, instructions = after[start : start + 2]
    assert opcode == 110 and 2 + 2 * instructions == _ADDED_LENGTH


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="bytecode of Python 3.11")
def test_opcode() -> None:
    import dis

    assert dis.opname[110] == "JUMP_FORWARD"
    assert [dis.opname[_ADDED_CODE[at]] for at in (0, 2)] == ["LOAD_FAST", "POP_JUMP_FORWARD_IF_FALSE"]


@pytest.mark.parametrize(
    "interpreter",
    [
        STRING,
        CODE,
        STRING + CODE + CODE,
        STRING + STRING + CODE,
        STRING + CODE[:-1] + b"x",
        STRING.replace(b"\x0d", b"\x0e") + CODE,
    ],
)
def test_unknown_interpreter(interpreter: bytes) -> None:
    with pytest.raises(FetchError, match=r"python3\.11 has changed"):
        with_frozen_site(b"\x7fELF" + interpreter)


def test_relocation() -> None:
    """The build's paths lead to the running interpreter's prefix, and programs of the system stay."""
    values: dict[str, object] = {
        "MULTIARCH": "x86_64-linux-gnu",
        "prefix": "/usr",
        "INCLUDEPY": "/usr/include/python3.11",
        "LIBDIR": "/usr/lib/x86_64-linux-gnu",
        "INSTALL": "/usr/bin/install -c",
        "CC": "x86_64-linux-gnu-gcc",
        "WITH_DOC_STRINGS": 1,
    }
    exec(_RELOCATION, {"build_time_vars": values})
    assert values["prefix"] == sys.base_prefix and values["LIBDIR"] == f"{sys.base_prefix}/lib"
    assert values["INCLUDEPY"] == f"{sys.base_prefix}/include/python3.11"
    assert values["INSTALL"] == "/usr/bin/install -c" and values["WITH_DOC_STRINGS"] == 1
