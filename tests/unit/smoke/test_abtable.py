"""The table of ``builder smoke --ab``."""

from __future__ import annotations

import io

from rich.console import Console

from builder.smoke.ab import Ab, Figure
from builder.smoke.abrun import Side
from builder.smoke.abtable import render_ab


def test_table() -> None:
    """Values, change and limit; what does not decide has no limit. Names are no markup."""
    slower = Figure("training", "rank 1", "ms", 2.0, 2.5, 0.8, 0.1, "slower", (0.8, 0.8))
    shown = Figure("transfer.h2d_pageable", "", "gb_per_s", 9.0, 12.0, 4 / 3, 0.2, "shown", (1.3, 1.3))
    sides = {side: Side(f"oci:[red]{side}:t", "sha256:" + "a" * 64) for side in ("old", "new")}
    out = io.StringIO()
    Console(file=out, width=160).print(render_ab(Ab("slower", (slower, shown), 2, ("a [note]",)), sides))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    text = " ".join(lines)
    assert text.startswith(
        "oci:[red]new:t (sha256:aaaaaaaaaaaa) against oci:[red]old:t (sha256:aaaaaaaaaaaa):"
    )
    assert "): slower; 2 rounds" in text
    assert "slower training (rank 1) 2.00 ms 2.50 ms -20.0 % 10.0 %" in lines
    assert "shown transfer.h2d_pageable 9.00 GB/s 12.0 GB/s +33.3 %" in lines and "a [note]" in lines
    assert str(slower) == "training (rank 1): 2.00 ms -> 2.50 ms, -20.0% (limit 10.0%)"
