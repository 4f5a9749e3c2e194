"""Probes after the measurements: can the figures be trusted, and was there time for all of them?"""

from __future__ import annotations

import time

from ..core import Run, skip, warn
from ..machine import processor

_ALONE = "another program uses this machine: the figures are too low; run again when it is idle"


def probe_steady(run: Run) -> str:
    """This process got the processor time that it needed, and its figures vary little."""
    if not run.wall_s:
        raise skip(f"without {run.options.framework} nothing was measured")
    share = run.busy_s / run.wall_s
    held_s = processor.throttled_s() - run.throttled_before_s
    seen = f"{100 * min(share, 1.0):.0f} % of a core while computing"
    if held_s > 1:
        seen += f"; the control group held this process back for {held_s:.1f} s"
        raise warn(seen, "the container's CPU quota is too small: raise its --cpus")
    if share < 0.8:
        raise warn(seen, _ALONE)

    uneven = []
    for item in run.results:
        if item["status"] == "pass" and item.get("lost_fraction", 0) > 0.35:
            uneven.append(item["id"])
    if len(uneven) > 1:
        raise warn(f"uneven figures: {', '.join(uneven)}", _ALONE)
    return seen


def probe_budget(run: Run) -> str:
    """There was time for all measurements."""
    if run.missed:
        seen = f"{run.budget_s:.0f} s were not enough for {', '.join(run.missed)}"
        raise warn(seen, "the machine is slow: allow more time (--budget), or find out why (machine.steady)")
    used_s = time.monotonic() - run.started
    return f"{used_s:.0f} of {run.budget_s:.0f} s"
