"""Which image a job ran, as the job itself reports it. A verdict counts for that image only.

A job leaves two kinds of files in its folder:

- ``image.sha256``: the sha256 of the SIF, from the host, before the first process starts;
- ``lock-*.sha256``: the sha256 of the lock file inside the image, from a process of each node.

A reference with a digest needs no file: a runtime resolves it to that image or to none. A reference with a
tag is not evidence: the tag may name another image on the node than in the registry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.site.shell import quote

LOCK = "/opt/builder/conda-lock.yml"
_SIF_FILE = "image.sha256"
_LOCK_FILES = "lock-*.sha256"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST_AT_END = re.compile(r"(?:^|@)(sha256:[0-9a-f]{64})$")
#: Runs in the image, before the benchmark: it is no part of the image, so images of any age can be tested.
_HASH_LOCK = (
    "import hashlib, os, pathlib, sys, uuid; "
    f'found = hashlib.sha256(pathlib.Path("{LOCK}").read_bytes()).hexdigest(); '
    'first = os.environ.get("LOCAL_RANK", "0") == "0"; '
    'first and pathlib.Path("lock-" + uuid.uuid4().hex + ".sha256").write_text(found); '
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """The image that a job should run."""

    digest: str
    """Of the manifest, or the sha256 of the SIF."""
    lock: str = ""
    """``sha256:...`` of the lock file inside the image; empty: unknown."""


@dataclass(frozen=True, slots=True)
class RanImage:
    """The image that a job ran."""

    reference: str
    """What the job was told to run: a path or a reference; empty: the runtime found the image itself."""
    digest: str
    """Empty: not known."""
    locks: tuple[str, ...]
    """``sha256:...`` of the lock file inside the image, each value once. Nodes may differ."""

    @property
    def shown(self) -> str:
        """The image as messages name it."""
        return self.digest or self.reference or "an image of unknown digest"

    def mismatch(self, built: BuiltImage) -> str:
        """How this image differs from the one that was built; empty if it is that one."""
        if self.digest != built.digest:
            unknown = "" if self.digest else ", whose digest is not known"
            return f"the job ran {self.shown}{unknown}; the image that was built is {built.digest}"
        if self.locks != (built.lock,):
            found = " and ".join(self.locks) or "not reported"
            return (
                f"the job ran another image than {built.digest}: "
                f"the sha256 of its {LOCK} is {found}, expected {built.lock}"
            )
        return ""


def hash_sif(reference: str) -> str:
    """A shell line for the host that reports a SIF. A sandbox folder has no sha256: the job goes on."""
    return f'sha256sum <{quote(reference)} >"$SLURM_SUBMIT_DIR"/{_SIF_FILE} || true'


def with_lock_hash(command: Sequence[str]) -> tuple[str, ...]:
    """A command of the image's Python that reports the image's lock file first."""
    python, *arguments = command
    return (python, "-c", _HASH_LOCK, *arguments)


def read_evidence(folder: Path, reference: str) -> RanImage:
    """The image that a completed job reports.

    Args:
        folder: of the job.
        reference: what it was told to run.
    """
    named = _DIGEST_AT_END.search(reference)
    digest = named[1] if named else _read_hash(folder / _SIF_FILE)
    locks = {_read_hash(path) for path in folder.glob(_LOCK_FILES)}
    return RanImage(reference, digest, tuple(sorted(locks)))


def _read_hash(path: Path) -> str:
    """``sha256:...``; empty if the file has none."""
    try:
        found = _SHA256.match(path.read_text("ascii", "replace"))
    except OSError:
        return ""
    return f"sha256:{found[0]}" if found else ""
