"""Replacing the placeholder by the environment's prefix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.formats.layers.conda_prefix import replaced

_words = st.sampled_from(
    [b"/old/prefix", b"/old/pre", b"fix", b":", b"\0", b"\n", b"x", b"/", b"#!/old/prefix/bin/python"]
)


@given(st.lists(_words, max_size=40), st.integers(1, 30), st.booleans())
def test_chunks_do_not_matter(words: list[bytes], size: int, binary: bool) -> None:
    """The result does not depend on how the content is cut into chunks."""
    data = b"x" + b"".join(words)
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    whole = b"".join(replaced([data], "/old/prefix", "/new", binary=binary))
    assert b"".join(replaced(chunks, "/old/prefix", "/new", binary=binary)) == whole
    assert b"/old/prefix" not in whole
    if binary:
        assert len(whole) == len(data)
        assert [s for s in whole.split(b"\0") if s] == [
            s for s in data.replace(b"/old/prefix", b"/new").split(b"\0") if s
        ]
    else:
        assert whole == data.replace(b"/old/prefix", b"/new")


@pytest.mark.parametrize(
    ("line", "prefix", "expected"),
    [
        ("#!/old/bin/perl -w", "/opt/conda", "#!/opt/conda/bin/perl -w"),
        ("#!/old/bin/perl -w", "/" + "p" * 130, "#!/usr/bin/env perl -w"),
        ("#!  /old/bin/perl", "/with blank", "#!/usr/bin/env perl"),
        (
            "#!/old/bin/python3 -E",
            "/with blank",
            "#!/bin/sh\n'''exec' \"/with blank/bin/python3\" -E \"$0\" \"$@\" #'''",
        ),
        ("#!/usr/bin/env perl", "/with blank", "#!/usr/bin/env perl"),
        ("#!" + "/long" * 30 + "/tool", "/opt/conda", "#!/usr/bin/env tool"),
        ("#!" + "x" * 140, "/opt/conda", "#!" + "x" * 140),
    ],
)
@pytest.mark.parametrize("end", ["", "\nrest of /old it\n"])
def test_shebangs(line: str, prefix: str, expected: str, end: str) -> None:
    """A first line that the kernel would cut or split is replaced by one that works."""
    out = b"".join(replaced([(line + end).encode()], "/old", prefix, binary=False)).decode()
    assert out == expected + end.replace("/old", prefix)
