"""Constants of the report, for the benchmark and for builder, which reads it."""

from __future__ import annotations

#: Version of ``builder/smoke/report.schema.json``.
SCHEMA_VERSION = 2

#: The exit code for each verdict. 1: the image or this machine is not right; 2: the test could not be carried
#: out.
EXIT_CODES = {"pass": 0, "warn": 0, "fail": 1, "error": 2}

#: Every status of a probe or measurement; a higher number is worse.
SEVERITY = {"skip": 0, "pass": 1, "warn": 2, "fail": 3}
