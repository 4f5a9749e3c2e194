"""A benchmark that measures nothing: its figures are those of a CPU, times the image's variable ``SPEED``."""

from __future__ import annotations

import json
from typing import Any

from tests.support.reports import cpu

_PROGRAM = """\
import json, os, pathlib, sys, time
report = json.loads({report!r})
speed = float(os.environ["SPEED"])
for measurement in report["measurements"]:
    for field in list(measurement):
        if field.startswith(("median_", "mad_")):
            measurement[field] *= speed
    for field in list(measurement):
        if field.startswith("samples_"):
            measurement[field] = [speed * value for value in measurement[field]]
report["started"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
report["probes"][0]["seen"] = " ".join(sys.argv[1:])
text = json.dumps(report, indent=1)
target = sys.argv[sys.argv.index("--json") + 1]
if target == "-":
    print(text)
else:
    pathlib.Path(target).write_text(text)
"""


def standin_benchmark() -> bytes:
    """The program. The first probe of its report says which options it got."""
    report: dict[str, Any] = cpu()
    del report["image"]
    return _PROGRAM.format(report=json.dumps(report)).encode()
