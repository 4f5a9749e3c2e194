"""A machine (project and cache) that runs builder's commands, and the requests that a registry received."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from builder.core.model import OCI_MANIFEST
from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.run import SmokeReport
from tests.support import parts
from tests.support.documents import checked
from tests.support.programs import run_program
from tests.support.project import TinyProject

#: An account whose name and password need quoting.
ROBOT, PASSWORD = "robot$m558+perlmutter-nersc-gov", "s3cr$t 'word'"


@dataclass
class Machine:
    """A project and a cache of its own, as on a machine of its own."""

    project: TinyProject

    def run(
        self, *args: str | Path, check: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "builder", "--project", self.project.root, *args]
        full = {**self.project.variables(), "PYTHONPATH": str(parts.CLONE), **(env or {})}
        done = run_program(command, full, check=check)
        assert PASSWORD not in done.stdout + done.stderr
        return done

    def json(self, *args: str | Path, env: Mapping[str, str] | None = None) -> Any:
        return checked(json.loads(self.run(*args, "--json", env=env).stdout))

    def passed(self, digest: str, when: str = "2026-11-21T08:00:00Z") -> None:
        """Records that the smoke test of an image passed here; these images have no Python to run it."""
        report = {"schema_version": 1, "verdict": "pass", "started": when, "image": {"digest": digest}}
        path = self.project.root / "reports/tiny" / f"{digest.partition(':')[2][:12]}-1.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report))
        SmokeRecord(self.project.cache).update(SmokeReport("pass", {}, "userns", digest, 0.0, path))

    def publish(self, *args: str | Path, env: Mapping[str, str] | None = None) -> Any:
        built = self.json("build", "tiny")
        self.passed(built["digest"])
        return self.json("publish", "tiny", *args, env=env)


@dataclass
class RequestLog:
    """The requests that a registry received from a position of its log on."""

    registry: parts.Registry
    start: int

    def lines(self) -> list[str]:
        size = self.registry.log_size()
        text = self.registry.log.read_bytes()[self.start : size].decode(errors="replace")
        return re.findall(r'"((?:GET|HEAD|PUT|POST|PATCH) /v2/[^ ]*)', text)


def tag_of(registry: parts.Registry, repository: str, tag: str) -> str | None:
    """The digest that a tag has in a registry."""
    where = f"{registry.url}/v2/{repository}/manifests/{tag}"
    answer = httpx2.head(where, headers={"Accept": OCI_MANIFEST}, timeout=120)
    return answer.headers["docker-content-digest"] if answer.status_code == 200 else None


def pulled_whole(registry: parts.Registry, repository: str, tag: str) -> None:
    """Fails unless every blob of a tag is in the registry and matches its digest."""
    where = f"{registry.url}/v2/{repository}"
    headers = {"Accept": OCI_MANIFEST}
    manifest = httpx2.get(f"{where}/manifests/{tag}", headers=headers, timeout=120).json()
    for part in (manifest["config"], *manifest["layers"]):
        data = httpx2.get(f"{where}/blobs/{part['digest']}", timeout=120).content
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == part["digest"] and len(data) == part["size"]
