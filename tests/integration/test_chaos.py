"""Faults at random moments and places: two builders with one cache that are killed, flipped bits, full disks.

A few of each here; ``make soak`` repeats them until the figures of docs/reliability.md are reached. Each ends
by what a user would type next: the digest is right, the release verifies, and a pull with an empty cache is
whole.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.run import SmokeReport
from tests.support.channel import serve
from tests.support.disk import flip, small_disk
from tests.support.parts import Registry, RegistryFactory
from tests.support.programs import run_program
from tests.support.project import TinyProject, tiny_channel, tiny_project, whole
from tests.support.releases import report
from tests.support.signkeys import make_pair

CLONE = Path(__file__).parents[2]
SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
KILLS = 77 if SOAK else 4
FLIPS = 100 if SOAK else 3
#: Sizes of the disk, in KiB.
DISKS = (4, 64, 256, 512, 1024, 1500, 2048, 2500, 3000, 3500, 4096, 5000, 6000, 6800) if SOAK else (64, 3000)
MONTH = "26.11"
#: What SIGTERM, the user's Ctrl-C and SIGKILL leave.
ENDED = (-signal.SIGTERM, 128 + signal.SIGTERM, 130, -signal.SIGKILL)
#: Seconds of the slowest command on a busy machine.
PATIENCE_S = 300


@dataclass
class Releases:
    """The small project, published to a registry that nobody else uses, signed; and its digest."""

    project: TinyProject
    registry: Registry
    channel: Path
    folder: str = "first"
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(4), "big"))
    digest: str = ""

    @property
    def name(self) -> str:
        return f"{self.registry.host}/{self.folder}/tests/tiny"

    @property
    def steps(self) -> list[list[str]]:
        """The commands of a release, in their order."""
        sign = ["--sign", str(self.project.root / "team.key"), "--to", f"{self.registry.host}/{self.folder}/"]
        return [
            ["lock", "tiny"],
            ["build", "tiny"],
            ["publish", "tiny", "--only", "candidate", *sign],
            ["promote", "tiny", "--tag", MONTH, "-y", "--force", *sign],
        ]

    def command(self, *args: str | Path) -> list[str | Path]:
        return [sys.executable, "-m", "builder", "--project", self.project.root, *args]

    def env(self, cache: Path, **more: str | Path) -> dict[str, str]:
        own = {"BUILDER_CACHE": cache, "PYTHONPATH": CLONE, **more}
        return {**self.project.variables(), **{key: str(value) for key, value in own.items()}}

    def run(self, cache: Path, *args: str | Path, **more: str | Path) -> str:
        return run_program(self.command(*args), self.env(cache, **more)).stdout

    def passed(self, cache: Path) -> Path:
        """Records in a cache that the image has passed its smoke test; returns the cache."""
        path = self.project.root / "reports/tiny/one.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"digest": self.digest, "target": "tiny"}
        path.write_text(json.dumps(report(self.digest, image=about)))
        SmokeRecord(cache).update(SmokeReport("pass", {}, "userns", self.digest, 0.0, path))
        return cache

    def complete(self, cache: Path, folder: Path) -> None:
        """Releases without a fault, and fails unless a user elsewhere gets the image."""
        for step in self.steps:
            self.run(cache, *step)
        shutil.rmtree(folder, ignore_errors=True)
        for tag in ("candidate", MONTH, "latest"):
            place = f"{self.name}:{tag}"
            assert json.loads(self.run(folder / tag, "verify", place, "--json"))["digest"] == self.digest
        pulled = folder / "pulled"
        self.run(folder / "empty", "pull", "tiny", "--from", self.name, "--tag", "latest", "--output", pulled)
        whole(pulled, self.digest)


@pytest.fixture
def releases(tmp_path: Path, make_registry: RegistryFactory) -> Iterator[Releases]:
    channel = tiny_channel(tmp_path / "channel")
    with serve(channel) as server:
        project = tiny_project(tmp_path, server.url)
        make_pair(project.root, "team")
        (project.root / "recipes" / "_policy.yaml").write_text("keys: [../team.pub]\n")
        made = Releases(project, make_registry(), channel)
        made.digest = json.loads(made.run(tmp_path / "reference", "build", "tiny", "--json"))["digest"]
        yield made


class Killer(threading.Thread):
    """Types the steps of a release, ends them at a random moment, and types each again until it has ended."""

    def __init__(self, releases: Releases, cache: Path, seed: int, kills: int) -> None:
        super().__init__()
        self.releases, self.cache, self.left = releases, cache, kills
        self.random = random.Random(seed)
        self.wrong: list[str] = []

    def run(self) -> None:
        while self.left and not self.wrong:
            for step in self.releases.steps:
                while not self._type(step) and not self.wrong:
                    pass

    def _type(self, step: Sequence[str]) -> bool:
        command = self.releases.command(*step)
        process = subprocess.Popen(
            command,
            env=self.releases.env(self.cache),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, error = process.communicate(timeout=self.random.uniform(0.2, 2) if self.left else PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(self.random.choice([signal.SIGKILL, signal.SIGTERM]))
            _, error = process.communicate(timeout=PATIENCE_S)
            self.left = max(0, self.left - (process.returncode in ENDED))
        if process.returncode not in (0, *ENDED) or "Traceback" in error:
            self.wrong.append(f"{step[0]}: {process.returncode}\n{error}")
        return process.returncode == 0


def test_two_builders_killed(releases: Releases, tmp_path: Path) -> None:
    """Two builders with one cache release one project, and are killed; the next ones complete everything."""
    done, rounds = 0, random.Random(releases.seed)
    while done < KILLS:
        releases.folder = f"round-{done}"
        cache = releases.passed(tmp_path / f"cache-{done}")
        kills = min(4, KILLS - done)
        killers = [Killer(releases, cache, rounds.randrange(1 << 32), -(-kills // 2)) for _ in range(2)]
        for killer in killers:
            killer.start()
        for killer in killers:
            killer.join()
        assert [w for killer in killers for w in killer.wrong] == [], f"seed {releases.seed}"
        releases.complete(cache, tmp_path / "elsewhere")
        whole(releases.project.root / "dist", releases.digest)
        shutil.rmtree(cache)
        done += kills


def test_flipped_bits(releases: Releases, tmp_path: Path) -> None:
    """A bit of any file of the cache or of dist/ flips, half of them unseen by the file's time: the next
    release is right, or refused, and then the one after it is right.

    Not of files that are links to the base of the project: nothing else has their content.
    """
    cache = releases.passed(tmp_path / "cache")
    releases.complete(cache, tmp_path / "elsewhere")
    moments = random.Random(releases.seed)
    base = {path.stat().st_ino for path in (releases.project.root / "base").rglob("*")}
    for number in range(FLIPS):
        files = [p for root in (cache, releases.project.root / "dist") for p in sorted(root.rglob("*"))]
        kept = [p for p in files if p.is_file() and p.stat().st_size and p.stat().st_ino not in base]
        victim = moments.choice(kept)
        flip(victim)
        if number % 2:
            victim.touch()
        releases.passed(cache)
        releases.folder = f"flip-{number}"
        try:
            releases.complete(cache, tmp_path / "elsewhere")
        except pytest.fail.Exception as e:
            assert re.search("damaged|corrupt", str(e)), f"seed {releases.seed}, {victim}: {e}"
            if hint := re.search("builder (cache prune --packages)", str(e)):
                releases.run(cache, *hint[1].split())
            releases.complete(cache, tmp_path / "elsewhere")  # as the message says


@pytest.mark.parametrize("size", DISKS)
@pytest.mark.parametrize("place", ["cache", "dist", "tmp", "environments"])
def test_full_disk(releases: Releases, tmp_path: Path, place: str, size: int) -> None:
    """One line, exit code 13, or the right image; with space again, the right image."""
    root = releases.project.root
    folder = {"dist": root / "dist", "environments": root / "environments"}.get(place, tmp_path / place)
    cache = tmp_path / ("cache" if place == "cache" else "own-cache")
    environment = releases.project.environment.read_text()
    shutil.rmtree(folder, ignore_errors=True)
    with small_disk(folder, f"{size}k") as disk:
        releases.project.environment.parent.mkdir(exist_ok=True)
        releases.project.environment.write_text(environment)
        env = releases.env(cache, BUILDER_TMPDIR=tmp_path / "tmp")
        command = releases.command("build", "tiny", "--json")
        full = run_program(command, env, check=False)
        assert full.returncode in (0, 13), full.stderr
        assert "Traceback" not in full.stderr and "Arguments:" not in full.stderr
        errors = [line for line in full.stderr.splitlines() if line.startswith("error:")]
        assert full.returncode == 0 or len(errors) == 1, full.stderr
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        again = run_program(command, env)
        assert json.loads(again.stdout)["digest"] == releases.digest
        whole(root / "dist", releases.digest)
