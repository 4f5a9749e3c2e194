"""Faults in the middle of a run: killed and interrupted runs, full disks, corrupt caches, registries that
refuse.

Every test runs real processes and ends by running again: the digest is right, the image is complete, and
nothing half-written was taken for complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.run import SmokeReport
from builder.formats.oci.layout import read_layout
from tests.support.channel import Server, serve
from tests.support.disk import flip
from tests.support.machine import pulled_whole, tag_of
from tests.support.parts import RegistryFactory, part_missing
from tests.support.project import TinyProject, tiny_channel, tiny_project, whole
from tests.support.waiting import until

CLONE = Path(__file__).parents[2]
BULK = 24 << 20
REPOSITORY = "tests/tiny"


@dataclass(frozen=True)
class Faulty:
    """The small project with a larger package, its image's digest, and the seconds that a build takes."""

    project: TinyProject
    server: Server
    channel: Path
    digest: str
    seconds: float

    def command(self, *args: str | Path) -> list[str]:
        return [sys.executable, "-m", "builder", "--project", str(self.project.root), *(str(a) for a in args)]

    def environment(self, cache: Path) -> dict[str, str]:
        return {**self.project.variables(), "BUILDER_CACHE": str(cache), "PYTHONPATH": str(CLONE)}

    def run(self, cache: Path, *args: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        env = {**self.environment(cache), **more}
        return subprocess.run(self.command(*args), env=env, capture_output=True, text=True, timeout=120)

    def build(self, cache: Path, layout: Path) -> None:
        """Builds successfully, and checks everything that the build leaves behind."""
        done = self.run(cache, "build", "tiny", "--to", f"oci:{layout}", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["digest"] == self.digest
        whole(layout, self.digest)
        sound(cache)


def sound(cache: Path) -> None:
    """Every blob matches its digest, and no temporary file is left."""
    for blob in (cache / "blobs" / "sha256").iterdir():
        if not blob.suffix:
            assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    for folder in ("tmp", "partial"):
        assert not (cache / folder).exists() or list((cache / folder).iterdir()) == []


@pytest.fixture(scope="module")
def faulty(module_folder: Path) -> Iterator[Faulty]:
    folder = module_folder
    channel = tiny_channel(folder / "channel", bulk=BULK)
    with serve(channel) as server:
        project = tiny_project(folder, server.url)
        first = Faulty(project, server, channel, "", 0)
        done = first.run(folder / "reference", "build", "tiny", "--json")
        assert done.returncode == 0, done.stderr
        start = time.monotonic()
        again = first.run(folder / "cold", "build", "tiny", "--json")
        seconds = time.monotonic() - start
        digest = json.loads(done.stdout)["digest"]
        assert json.loads(again.stdout)["digest"] == digest, "a cold cache gives the same image"
        shutil.rmtree(folder / "cold")
        yield Faulty(project, server, channel, digest, seconds)


@pytest.fixture
def warm(faulty: Faulty, tmp_path: Path) -> Path:
    """A cache in which the image was built."""
    return Path(shutil.copytree(faulty.project.cache.parent / "reference", tmp_path / "warm"))


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal; as builder for SIGALRM
    (``builder/core/interrupts.py``)."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


class Interruptions:
    """Starts a command repeatedly and ends it at a random moment, until it was really interrupted ``wanted``
    times.

    The moment lies between the interpreter's start and the end of the fastest run so far, because machines
    differ. Ctrl-C waits for builder's own handler: before it, Python may print Ctrl-C and go on.
    """

    def __init__(self, number: int, seconds: float, wanted: int) -> None:
        self.number, self.longest, self.wanted = number, seconds, wanted
        self.seed = int.from_bytes(os.urandom(4), "big")
        self._random = random.Random(self.seed)
        self.ended = 0

    def __iter__(self) -> Iterator[None]:
        for _ in range(30):
            if self.ended == self.wanted:
                return
            yield
        raise AssertionError(f"seed {self.seed}: ended only {self.ended} times; a run takes {self.longest} s")

    def run(self, command: list[str], env: dict[str, str]) -> int:
        """Sends Ctrl-C to the command's group, or kill -9 to the command alone; returns its exit code."""
        moment = self._random.uniform(min(0.25, self.longest / 2), self.longest)
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, err = process.communicate(timeout=moment)
            self.longest = min(self.longest, time.monotonic() - start)
        except subprocess.TimeoutExpired:
            if self.number == signal.SIGKILL:
                process.kill()
            else:
                until(lambda: process.poll() is not None or catches(process.pid, signal.SIGALRM))
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, self.number)
            _, err = process.communicate(timeout=120)
        code = process.returncode
        self.ended += code != 0
        context = f"seed {self.seed}, {moment} s: {code}\n{err}"
        if "KeyboardInterrupt" in err:  # Python itself was ending already
            assert not re.search(re.escape(str(CLONE / "builder")) + r"/(?!__main__\.py)", err), context
        else:
            assert code in (0, -self.number, 130) and "Traceback" not in err, context
        assert code != 130 or "interrupted" in err, context
        return code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_build(faulty: Faulty, tmp_path: Path, number: int) -> None:
    """All runs share one cache, so each run meets what the interrupted ones left."""
    cache, layout = tmp_path / "cache", tmp_path / "dist"
    build = faulty.command("build", "tiny", "--to", f"oci:{layout}")
    for _ in (again := Interruptions(number, faulty.seconds, 3)):
        code = again.run(build, faulty.environment(cache))
        if (layout / "index.json").exists():
            whole(layout, faulty.digest)
        if code == 0:
            for name in ("layers", "unchanged"):  # so that there is something to be done next time
                shutil.rmtree(cache / name, ignore_errors=True)
    faulty.build(cache, layout)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_lock(faulty: Faulty, tmp_path: Path, number: int) -> None:
    """The lock file is complete or unchanged, never partial."""
    lock = faulty.project.lock
    text = lock.read_bytes()
    try:
        for _ in (again := Interruptions(number, 1.5, 2)):
            lock.unlink(missing_ok=True)
            code = again.run(faulty.command("lock", "tiny"), faulty.environment(tmp_path / "cache"))
            assert lock.read_bytes() == text if lock.exists() else code != 0
        done = faulty.run(tmp_path / "cache", "lock", "tiny")
        assert done.returncode == 0 and lock.read_bytes() == text
        faulty.build(tmp_path / "cache", tmp_path / "dist")
    finally:
        lock.write_bytes(text)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_publish(
    faulty: Faulty, make_registry: RegistryFactory, warm: Path, tmp_path: Path, number: int
) -> None:
    """A tag names a complete image or nothing; the next run sends what is missing and moves the tags."""
    registry = make_registry()
    SmokeRecord(warm).update(SmokeReport("pass", {}, "userns", faulty.digest, 0.0))
    publish = ["publish", "tiny", "--to", f"{registry.host}/", "--tag", "26.11"]
    for _ in (again := Interruptions(number, faulty.seconds, 3)):
        again.run(faulty.command(*publish), faulty.environment(warm))
        for tag in ("26.11", "latest"):
            if (digest := tag_of(registry, REPOSITORY, tag)) is not None:
                assert digest == faulty.digest
                pulled_whole(registry, REPOSITORY, tag)
    done = faulty.run(warm, *publish, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tags"] == ["26.11", "latest"]
    assert tag_of(registry, REPOSITORY, "latest") == tag_of(registry, REPOSITORY, "26.11") == faulty.digest
    pulled_whole(registry, REPOSITORY, "latest")


def in_small_disk(script: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a shell script in its own mount namespace, so that its mounts leave nothing on this machine."""
    enter = ["unshare", "--mount", "--propagation=private"]
    if os.geteuid() != 0:
        enter += ["--user", "--map-root-user"]
    if subprocess.run([*enter, "true"], capture_output=True).returncode:
        part_missing("no mount namespace for this user")
    return subprocess.run(
        [*enter, "bash", "-ec", script], env=env, capture_output=True, text=True, timeout=120
    )


def test_disk_fills_during_a_layer(faulty: Faulty, tmp_path: Path) -> None:
    """The disk has the space required in advance (half the unpacked size), but less than is needed."""
    (tmp_path / "disk").mkdir()
    mirror = f"{faulty.server.url}={faulty.channel}"
    archives = sum(path.stat().st_size for path in faulty.channel.rglob("*.conda"))  # are copied first
    build = shlex.join(
        faulty.command(
            "--cache", tmp_path / "disk" / "cache", "build", "tiny", "--to", f"oci:{tmp_path}/dist"
        )
    )
    done = in_small_disk(
        f"""
        mount -t tmpfs -o size={(18 << 20) + archives} tmpfs {tmp_path}/disk
        export BUILDER_MIRRORS={mirror} BUILDER_TMPDIR={tmp_path}/tmp
        {build} && exit 99 || echo "code $?"
        find {tmp_path}/disk/cache/tmp {tmp_path}/tmp -type f
        mount -o remount,size=80m tmpfs {tmp_path}/disk
        {build} --json
        """,
        faulty.environment(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stderr
    code, _, rest = done.stdout.partition("\n")
    assert code == "code 13", done.stderr
    assert (
        f"no space left on the disk of {tmp_path}/disk/cache" in done.stderr
        and "builder cache prune" in done.stderr
    )
    assert rest.lstrip().startswith("{"), "temporary files are gone"
    assert json.loads(rest)["digest"] == faulty.digest
    whole(tmp_path / "dist", faulty.digest)


def flip_all(blobs: list[Path]) -> None:
    for blob in blobs:
        flip(blob)
        blob.touch()  # as any program that writes


def truncate_all(blobs: list[Path]) -> None:
    for blob in blobs:
        os.truncate(blob, blob.stat().st_size // 2)


@pytest.mark.parametrize("damage", [flip_all, truncate_all])
def test_corrupt_cache(
    faulty: Faulty, warm: Path, tmp_path: Path, damage: Callable[[list[Path]], None]
) -> None:
    """The next build detects any damage and repairs it, also in the layout, whose blobs are links to the
    cache.
    """
    layout = tmp_path / "dist"
    faulty.build(warm, layout)
    blobs = [p for p in (warm / "blobs" / "sha256").iterdir() if not p.suffix]
    layers = {layer.descriptor.digest[7:] for layer in read_layout(layout, "tiny").layers}
    damage([blob for blob in blobs if blob.name in layers])
    faulty.build(warm, layout)
    damage([blob for blob in blobs if blob.name not in layers])
    shutil.rmtree(warm / "layers")
    faulty.build(warm, layout)


def test_two_builds_in_one_cache(faulty: Faulty, tmp_path: Path) -> None:
    """Two concurrent builds with an empty cache are both right, and no package is fetched twice."""
    faulty.server.requests.clear()
    processes = [
        subprocess.Popen(
            faulty.command("build", "tiny", "--to", f"oci:{tmp_path}/dist", "--json"),
            env=faulty.environment(tmp_path / "cache"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert json.loads(out)["digest"] == faulty.digest
    whole(tmp_path / "dist", faulty.digest)
    sound(tmp_path / "cache")
    fetched = [r for r in faulty.server.requests if r.endswith(".conda")]
    assert len(fetched) == len(set(fetched)) == 9
