"""Which image a job ran, from the files that it leaves."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.deliver.site.shell import ShellText
from builder.deliver.smoke.evidence import hash_sif, mismatch, ran_digest
from builder.formats.oci.digest import sha256

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def built(digest: str) -> Any:
    """A build with this digest, whose image has the lock A."""
    return SimpleNamespace(digest=digest, image_lock=A)


def test_job_leaves_evidence(tmp_path: Path) -> None:
    """The job's own command reports the SIF, whatever its name."""
    sif = tmp_path / "my $x.sif"
    sif.write_bytes(b"the SIF")
    env = {**os.environ, "SLURM_SUBMIT_DIR": str(tmp_path)}
    subprocess.run(["bash", "-c", f"set -eo pipefail; {hash_sif(str(sif))}"], env=env, check=True)
    ran = ran_digest(tmp_path, str(sif))
    assert ran == sha256(b"the SIF")
    assert mismatch(ran, str(sif), built(ran), {"facts": {"locks": [A]}}) == ""
    assert "expected " + A in mismatch(ran, str(sif), built(ran), {"facts": {"locks": [A, B]}})


def test_folder_as_image(tmp_path: Path) -> None:
    """A sandbox folder has no digest, and does not stop the job."""
    env = {**os.environ, "SLURM_SUBMIT_DIR": str(tmp_path)}
    script = f"set -eo pipefail; {hash_sif(ShellText('$SLURM_SUBMIT_DIR'))}"
    subprocess.run(["bash", "-c", script], env=env, check=True, capture_output=True)
    assert ran_digest(tmp_path, str(tmp_path)) == ""


@pytest.mark.parametrize(
    ("reference", "digest"),
    [(f"registry.example/a/b@{A}", A), (A, A), ("registry.example/a/b:latest", ""), (f"x@{A}0", "")],
)
def test_references(tmp_path: Path, reference: str, digest: str) -> None:
    """A digest in a reference is evidence; a tag is not."""
    assert ran_digest(tmp_path, reference) == digest


def test_damaged_evidence(tmp_path: Path) -> None:
    """A file without a hash is no evidence."""
    (tmp_path / "image.sha256").write_text("sha256sum: I/O error")
    ran = ran_digest(tmp_path, "/x.sif")
    assert ran == "" and "/x.sif, whose digest is not known" in mismatch(ran, "/x.sif", built(B), {})
