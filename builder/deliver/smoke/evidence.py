"""Which image a job ran, as the job itself reports it. A verdict counts for that image only.

The job writes the sha256 of its SIF into a file, from the host, before the first process starts.
The benchmark reports the sha256 of the lock file inside the image, on each node.

A reference with a digest needs no file: a runtime resolves it to that image or to none. A reference
with a tag is not evidence: the tag may name another image on the node than in the registry.
"""

from __future__ import annotations

import re
from pathlib import Path

from builder.bench.machine.facts import LOCK
from builder.build.engines.base import BuildResult
from builder.core.store.reading import text_of
from builder.deliver.site.shell import quote

from .values import Report, mapping

_SIF_FILE = "image.sha256"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST_AT_END = re.compile(r"(?:^|@)(sha256:[0-9a-f]{64})$")


def mismatch(ran: str, reference: str, result: BuildResult, report: Report) -> str:
    """Return the difference of the image that a job ran from the build; empty if it is that one.

    Args:
        ran: what :func:`ran_digest` returned.
        reference: the path or reference in the job.
        result: the build that the job should run.
        report: of the job.
    """
    if ran != result.digest:
        seen = ran or f"{reference}, whose digest is not known"
        return f"the job ran {seen}; the image that was built is {result.digest}"
    locks = mapping(report.get("facts")).get("locks") or []
    if locks != [result.image_lock]:
        found = " and ".join(map(str, locks)) or "not reported"
        return (
            f"the job ran another image than {ran}: "
            f"the sha256 of its {LOCK} is {found}, expected {result.image_lock}"
        )
    return ""


def hash_sif(reference: str) -> str:
    """Return a shell line for the host that hashes a SIF; a sandbox folder has no hash."""
    return f'sha256sum <{quote(reference)} >"$SLURM_SUBMIT_DIR"/{_SIF_FILE} || true'


def ran_digest(folder: Path, reference: str) -> str:
    """Return the digest of the image that a completed job ran; empty if it is not known.

    Args:
        folder: of the job.
        reference: what it was told to run.
    """
    if named := _DIGEST_AT_END.search(reference):
        return named[1]
    found = _SHA256.match(text_of(folder / _SIF_FILE))
    return f"sha256:{found[0]}" if found else ""
