"""The only reader of TOML: bounded in size, depth, and in the tables that a text makes.

tomli makes a table, and a tuple of all names before it, for each part of a dotted key, and
remembers each of them. So 120 kB are gigabytes of memory::

    a.a.a.a.a.a.a = 1          a table for each a
    [a]                        6 bytes of text, about 1 kB of memory

Each text is searched before it is parsed. Names in quotation marks have dots of their own, so
strings and comments become one letter first.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import tomli

from builder.core.datafiles import read_beside
from builder.formats.oci.documents import is_deeper

#: Levels of tables and lists, and parts of a key. Lock files and projects have at most 8.
MAX_DEPTH = 100
#: Tables with a header, lists, and dots in keys and numbers. The ``uv.lock`` of 300 packages has 2,000.
MAX_TABLES = 200_000

# A string that is not closed ends with its line or with the text; tomli refuses it.
_OPAQUE = re.compile(read_beside(__file__, "opaque_toml.txt"), re.VERBOSE | re.DOTALL)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}")


def loads(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    tomli reads TOML 1.1, as uv does: formatters break the tables of a ``uv.lock`` into lines.
    Python's own reader knows TOML 1.0 only.

    Raises:
        ValueError: it is no TOML, or exceeds a bound.
    """
    bare = _OPAQUE.sub("s", text)
    if bare.count("[") + bare.count(".") > MAX_TABLES:
        raise ValueError(f"more than {MAX_TABLES} tables, lists and parts of keys")
    if _LONG_KEY.search(bare):
        raise ValueError(f"a key has more than {MAX_DEPTH} parts")
    data: dict[str, Any] | None = None
    with contextlib.suppress(RecursionError):
        data = tomli.loads(text)
    if data is None or is_deeper(data, MAX_DEPTH):
        raise ValueError(f"tables and lists are more than {MAX_DEPTH} levels deep")
    return data
