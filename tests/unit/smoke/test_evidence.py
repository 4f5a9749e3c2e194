"""Which image a job ran, from the files that it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.oci.digest import sha256
from builder.site.shell import ShellText
from builder.smoke import evidence
from builder.smoke.evidence import BuiltImage, RanImage, hash_sif, read_evidence, with_lock_hash

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def test_job_leaves_evidence(tmp_path: Path) -> None:
    """The job's own commands report the SIF, and the lock file once per node; then the benchmark runs."""
    sif, lock = tmp_path / "my $x.sif", tmp_path / "conda-lock.yml"
    sif.write_bytes(b"the SIF")
    lock.write_bytes(b"the lock")
    env = {**os.environ, "SLURM_SUBMIT_DIR": str(tmp_path)}
    subprocess.run(["bash", "-c", f"set -eo pipefail; {hash_sif(str(sif))}"], env=env, check=True)
    command = with_lock_hash([sys.executable, "-c", "import sys; print(sys.argv[1:])", "--json", "r"])
    command = [word.replace(evidence.LOCK, str(lock)) for word in command]
    for rank in ("0", "1"):
        ranked = {**env, "LOCAL_RANK": rank}
        done = subprocess.run(command, env=ranked, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout.replace("'", '"')) == ["--json", "r"]
    assert len(list(tmp_path.glob("lock-*.sha256"))) == 1
    ran = read_evidence(tmp_path, str(sif))
    assert ran == RanImage(str(sif), sha256(b"the SIF"), (sha256(b"the lock"),))
    assert ran.mismatch(BuiltImage(sha256(b"the SIF"), sha256(b"the lock"))) == ""


def test_folder_as_image(tmp_path: Path) -> None:
    """A sandbox folder has no digest, and does not stop the job."""
    env = {**os.environ, "SLURM_SUBMIT_DIR": str(tmp_path)}
    script = f"set -eo pipefail; {hash_sif(ShellText('$SLURM_SUBMIT_DIR'))}"
    subprocess.run(["bash", "-c", script], env=env, check=True, capture_output=True)
    assert read_evidence(tmp_path, str(tmp_path)).digest == ""


@pytest.mark.parametrize(
    ("reference", "digest"),
    [(f"registry.example/a/b@{A}", A), (A, A), ("registry.example/a/b:latest", ""), (f"x@{A}0", "")],
)
def test_references(tmp_path: Path, reference: str, digest: str) -> None:
    """A digest in a reference is evidence; a tag is not."""
    assert read_evidence(tmp_path, reference).digest == digest


def test_damaged_evidence(tmp_path: Path) -> None:
    """A file without a hash is no evidence."""
    (tmp_path / "image.sha256").write_text("sha256sum: I/O error")
    (tmp_path / "lock-1.sha256").write_bytes(b"\xff")
    ran = read_evidence(tmp_path, "/x.sif")
    assert ran.digest == "" and "whose digest is not known" in ran.mismatch(BuiltImage(B))
    assert "expected " + A in RanImage("/x.sif", B, ran.locks).mismatch(BuiltImage(B, A))
