"""Tries random faults on three real registries for some minutes, and writes what happened into a page.

``python -m tests.soak [MINUTES] [PAGE]``, by ``make soak``. The seed is printed; SOAK_SEED repeats it. Every
trial checks what ``tests/integration/test_registry_faults.py`` checks; failed checks are printed and counted.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from builder.errors import BuilderError
from tests.support.faultkit import LARGE_UPLOAD, Kit, basic, make_kit
from tests.support.faultproxy import Fault
from tests.support.faulttrials import Count, Trials, pull_faults, upload_faults
from tests.support.install_registries import PULP
from tests.support.parts import CLONE
from tests.support.real_registries import NAMES, real_registry
from tests.support.secretwatch import Secrets

BEGIN, END = "<!-- soak:begin -->", "<!-- soak:end -->"
KINDS = (
    "kill -9 of the publisher",
    "kill -9 of the registry",
    "full disk",
    "lost blobs",
    "upload",
    "download",
)
EXPLANATION = """The columns of faults count those
that met a request. After each trial every tag is pulled whole into an empty store, and the same publish
runs again; "failed" counts the trials after which a tag could not be pulled, a publish did not end right,
or more bytes were sent again than the fault explains. "Refused" counts publishes that ended with an error,
without a tag, until the registry's owner removed content that does not match its digest: Pulp 2.30 keeps
uploads that were cut off, and crane keeps manifests that were changed."""
#: How often each kind is in one round, whose order is random.
WEIGHTS = (4, 2, 1, 1, 6, 3)


@dataclass
class Report:
    """Counts of one registry, by kind of trial."""

    version: str
    counts: dict[str, Count] = field(default_factory=dict)

    def total(self) -> Count:
        total = Count()
        for count in self.counts.values():
            total.add(count)
        return total


def trial(trials: Trials, kind: str, rng: random.Random, folder: Path) -> Count:
    """One trial of a kind."""
    registry = trials.registry
    if kind == "kill -9 of the publisher":
        return trials.kill_publisher(rng, 5)
    if kind == "kill -9 of the registry":
        any_time = Fault("kill -9", skip=rng.randrange(trials.requests), at=rng.random())
        in_layer = Fault("kill -9", **LARGE_UPLOAD, at=rng.random())
        return trials.kill_registry(rng.choice([any_time, in_layer]), comes_back=rng.random() < 0.5)
    if kind == "full disk":
        return trials.fill_disk()
    if kind == "lost blobs":
        return trials.lose_blobs()
    if kind == "upload":
        faults, most = rng.choice(list(upload_faults(rng).values()))
        return trials.publish(faults, most)
    blob = f"{registry.blobs}.*{trials.large_digest}"
    return trials.pull(rng.choice(list(pull_faults(rng, blob).values())), folder / "store")


def checked(trials: Trials, kind: str, rng: random.Random, folder: Path) -> Count:
    """One trial; a failed check is printed and counted."""
    try:
        return replace(trial(trials, kind, rng, folder), tried=1)
    except (AssertionError, BuilderError):
        traceback.print_exc()
        return Count(tried=1, failed=1)


def soak(kit: Kit, name: str, seconds: float, rng: random.Random, folder: Path) -> Report:
    """Trials on one registry until the time is over."""
    with Secrets() as secrets, real_registry(name) as registry:
        secrets.add(registry.password, basic(registry))
        report = Report(version_of(name))
        trials = Trials(kit, registry)
        end = time.monotonic() + seconds
        weights = dict(zip(KINDS, WEIGHTS, strict=True))
        kinds = [k for k, n in weights.items() for _ in range(n) if k not in registry.impossible]
        left: list[str] = []
        while time.monotonic() < end:
            left = left or rng.sample(kinds, len(kinds))
            kind = left.pop()
            report.counts.setdefault(kind, Count()).add(checked(trials, kind, rng, folder))
            print(name, kind, report.counts[kind], flush=True)
        secrets.add(*registry.proxy.tokens())
        found = secrets.files(kit.folder, *kit.folder.glob("auth-*.json"))
        if found or secrets.seen:
            sys.exit(f"{name}: secrets in {found} {secrets.seen}")
        return report


def version_of(name: str) -> str:
    """The program and its version."""
    if name == "pulp":
        return " ".join(PULP).replace("==", " ")
    folder = CLONE / ".cache/parts/crane/usr/share/doc/crane"
    command = {
        "distribution": ["dpkg-query", "-W", "-f", "${Version}", "docker-registry"],
        "crane": ["sh", "-c", f"zcat {folder}/changelog.Debian.gz | head -n1 | sed 's/.*(\\(.*\\)).*/\\1/'"],
    }[name]
    found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return f"{'docker-registry' if name == 'distribution' else 'crane'} {found}".strip()


def table(reports: dict[str, Report], seed: int, minutes: float) -> str:
    """The section of the page, in Markdown."""

    def mib(size: int) -> str:
        return f"{size / (1 << 20):.0f} MiB"

    columns = ["registry", *KINDS, "trials", "sent", "sent again", "refused", "failed"]
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    for report in reports.values():
        met = [str(report.counts.get(kind, Count()).met) for kind in KINDS]
        total = report.total()
        outcome = [str(total.refused), str(total.failed)]
        cells = [report.version, *met, str(total.tried), mib(total.sent), mib(total.again), *outcome]
        lines.append(" | ".join(cells))
    rows = "\n".join(f"| {line} |" for line in lines)
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    return f"`make soak` on {when}, {minutes:g} minutes, seed {seed}. {EXPLANATION}\n\n{rows}\n"


def write(page: Path, text: str) -> None:
    """Replaces the section between the two comments, or adds it at the end of the page."""
    old = page.read_text() if page.exists() else "# Reliability\n"
    before, begin, rest = old.partition(BEGIN)
    after = rest.partition(END)[2] if begin else "\n"
    if not begin:
        before = f"{old.rstrip()}\n\n## What a soak test tried\n\n"
    page.write_text(f"{before}{BEGIN}\n{text}{END}{after}")


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    page = Path(sys.argv[2]) if len(sys.argv) > 2 else CLONE / "docs/reliability.md"
    seed = int(os.environ.get("SOAK_SEED") or int.from_bytes(os.urandom(4), "big"))
    print("SOAK_SEED", seed, flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-", dir="/var/tmp") as folder, make_kit(Path(folder)) as kit:
        seconds = minutes * 60 / len(NAMES)
        reports = {
            name: soak(kit, name, seconds, random.Random(f"{seed} {name}"), Path(folder)) for name in NAMES
        }
    write(page, table(reports, seed, minutes))
    print(page.read_text())
    if any(report.total().failed for report in reports.values()):
        sys.exit("a check failed: see above")


if __name__ == "__main__":
    main()
