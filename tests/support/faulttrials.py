"""Trials: one fault, what must hold afterwards, and the bytes that it cost."""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from builder.errors import BuilderError
from builder.registry import transport
from builder.registry.client import RegistryClient
from builder.registry.pull import pull_image
from builder.store.blobs import Store
from tests.support.cli import Result
from tests.support.faultkit import LARGE_UPLOAD, STALL_S, TAGS, Kit, Published, check_tags, wait_less
from tests.support.faultproxy import Fault
from tests.support.real_registries import RealRegistry


def upload_faults(rng: random.Random) -> dict[str, tuple[list[Fault], float]]:
    """Faults of one publish by name, with the most that they may make builder send again, in large layers.

    A transfer that breaks is sent again from its start, because the state of such an upload is not defined
    by the distribution-spec: distribution 2.8 forgets it, and Pulp 2.30 takes it for the whole blob.
    """
    places = [rng.random() for _ in range(3)]
    once = rng.random()
    large: dict[str, Any] = LARGE_UPLOAD
    busy = (503, {"Retry-After": "1"})
    many = (429, {"Retry-After": "1"})
    zero = {"Docker-Content-Digest": "sha256:" + "0" * 64}
    manifest, tag = "/manifests/", rf"/manifests/{TAGS[0]}$"
    return {
        "upload cut": ([Fault("cut", **large, at=once, cut_request=True)], once),
        "upload cut three times": (
            [Fault("cut", **large, at=at, cut_request=True) for at in places],
            sum(places),
        ),
        "upload's answer lost": ([Fault("lost", **large, lose_answer=True)], 0),
        "503 for an upload, twice": ([Fault("503", **large, answer=busy, times=2)], 2),
        "500 for an upload": ([Fault("500", **large, answer=(500, {}))], 1),
        "429, three times": ([Fault("429", path="/blobs/", answer=many, times=3)], 2),
        "sessions lost": ([Fault("lost", "POST", "/blobs/uploads/", lose_answer=True, times=2)], 0),
        "manifests cut": ([Fault("cut", "PUT", manifest, at=once, cut_request=True, times=2)], 0),
        "manifests' answers lost": ([Fault("lost", "PUT", manifest, lose_answer=True, times=2)], 0),
        "a tag's answer lost": ([Fault("lost", "PUT", tag, lose_answer=True)], 0),
        "wrong content arrives": ([Fault("flip", **large, at=once, flip_request=True)], 1),
        "wrong manifest arrives": ([Fault("flip", "PUT", manifest, at=once, flip_request=True)], 0),
        "slow upload": ([Fault("slow", **large, at=once, pause_s=1.5)], 0),
        "stalled answer": ([Fault("stall", "HEAD", "/blobs/sha256", pause_s=STALL_S + 1)], 0),
        "login lost in an upload": ([Fault("401", **large, without_login=True)], 1),
        "token expires": ([Fault("expire", "POST", "/blobs/uploads/", skip=2, expire_tokens=True)], 0),
        "wrong digest in answers": ([Fault("digest", "HEAD|PUT", manifest, headers=zero, times=2)], 0),
        "corrupted lists": ([Fault("flip", "GET", manifest, flip_response=True, times=2)], 0),
        "truncated lists": ([Fault("short", "GET", manifest, shorten=True, times=2)], 0),
    }


def pull_faults(rng: random.Random, blob: str) -> dict[str, list[Fault]]:
    """Faults of one pull by name; ``blob`` is a pattern of the paths of the large layer."""
    at = [rng.random() for _ in range(3)]
    zero = {"Docker-Content-Digest": "sha256:" + "0" * 64}
    return {
        "download cut three times": [Fault("cut", "GET", blob, at=x, cut_response=True) for x in at],
        "corrupted download": [Fault("flip", "GET", blob, at=at[0], flip_response=True)],
        "truncated download": [Fault("short", "GET", blob, at=at[0], shorten=True)],
        "stalled download": [Fault("stall", "GET", blob, at=at[0], pause_s=STALL_S + 1)],
        "503 for a download": [Fault("503", "GET", blob, answer=(503, {"Retry-After": "1"}), times=2)],
        "corrupted manifest": [Fault("flip", "GET", "/manifests/", at=at[1], flip_response=True)],
        "truncated manifest": [Fault("short", "GET", "/manifests/", at=at[1], shorten=True)],
        "wrong digest in answers": [Fault("digest", "GET", "/manifests/", headers=zero)],
        "token expires": [Fault("expire", "GET", "/blobs/", expire_tokens=True)],
    }


@dataclass
class Count:
    """What trials of one kind did; bytes are those of blobs."""

    tried: int = 0
    met: int = 0
    """Faults that met a request."""
    sent: int = 0
    again: int = 0
    """Sent beyond what the image needs once."""
    refused: int = 0
    """Publishes that builder refused to end, because the registry keeps wrong content under a digest."""
    failed: int = 0
    """Trials after which a check failed: a tag that cannot be pulled, a rerun that failed, too many bytes."""

    def add(self, other: Count) -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def is_refusal(registry: RealRegistry, result: Result) -> bool:
    """Whether builder refused because of wrong content that this registry keeps under a digest."""
    said = re.search(r"bytes under the digest|with the digest|digest mismatch", result.err)
    return registry.keeps_wrong and result.code > 0 and said is not None


class Trials:
    """Trials on one registry, each in a repository of its own.

    Args:
        kit: the images.
        registry: it runs.
    """

    def __init__(self, kit: Kit, registry: RealRegistry) -> None:
        self.kit, self.registry = kit, registry
        plain = kit.publish(registry, kit.repository(registry))
        assert plain.result.code == 0, plain.result.err
        self.once = plain.uploaded
        """Bytes of blobs that a publish without faults sends."""
        self.large = max(x.sent for x in plain.exchanges)
        self.requests = len(plain.exchanges)
        self.large_digest = next(
            x.path.rpartition("digest=")[2].replace("%3A", ":")
            for x in plain.exchanges
            if x.sent == self.large
        )

    def publish(self, faults: list[Fault], most: float) -> Count:
        """Publishes with faults, then without; ``most`` is what may be sent again, in large layers."""
        repository = self.kit.repository(self.registry)
        first = self.kit.publish(self.registry, repository, *faults)
        return self.finish(repository, [first], most)

    def finish(self, repository: str, before: list[Published], most: float) -> Count:
        """Checks all tags, publishes without faults, checks again, and counts."""
        check_tags(self.registry, repository, self.kit.ours.digest)
        rerun = self.kit.publish(self.registry, repository)
        if is_refusal(self.registry, rerun.result):
            return self.repair(repository, [*before, rerun])
        assert rerun.result.code == 0, rerun.result.err
        self.check_published(repository)
        runs = [*before, rerun]
        again = sum(run.uploaded for run in runs) - self.once
        assert again >= 0, "builder took a blob for present that the registry never received whole"
        # The small blobs are those that may be under way beside the large one.
        assert again <= most * self.large + self.once - self.large, (again, most)
        assert again <= sum(run.wasted for run in runs), "what the registry had acknowledged was sent again"
        met = sum(len(run.met) for run in before)
        return Count(1, met, sum(run.uploaded for run in runs), again)

    def repair(self, repository: str, before: list[Published]) -> Count:
        """Lets the registry's owner remove what is wrong; then publishing ends right.

        No client can do that: the registry says that it has the blob or manifest, and does not store it
        again.
        """
        check_tags(self.registry, repository, self.kit.ours.digest)
        self.registry.remove_wrong()
        rerun = self.kit.publish(self.registry, repository)
        assert rerun.result.code == 0, rerun.result.err
        self.check_published(repository)
        sent = sum(run.uploaded for run in [*before, rerun])
        return Count(1, sum(len(run.met) for run in before), sent, sent - self.once, refused=1)

    def check_published(self, repository: str) -> None:
        tags = check_tags(self.registry, repository, self.kit.ours.digest)
        assert sorted(tags) == sorted(TAGS), tags

    def kill_registry(self, fault: Fault, *, comes_back: bool) -> Count:
        """Ends the registry with kill -9 where ``fault`` says; starts it at once, or after the publish."""

        def kill() -> None:
            self.registry.kill()
            if comes_back:
                self.registry.start()

        repository = self.kit.repository(self.registry)
        first = self.kit.publish(self.registry, repository, replace(fault, then=kill))
        self.registry.proxy.wait_idle()  # until it is back
        if not comes_back and first.met:
            assert first.result.code == 9, first.result.err
            self.registry.start()
        elif not self.registry.keeps_manifests and first.met and first.result.code:
            assert first.result.code == 9, first.result.err  # the manifest was gone when the tag was set
        return self.finish(repository, [first], 1)

    def fill_disk(self) -> Count:
        """The registry's disk is full in the middle of the large layer."""
        repository = self.kit.repository(self.registry)
        self.registry.leave_free(self.large // 2)
        try:
            first = self.kit.publish(self.registry, repository)
            assert first.result.code == 9, first.result.err
            check_tags(self.registry, repository, self.kit.ours.digest)
        finally:
            self.registry.enlarge()
        return replace(self.finish(repository, [first], transport.TRIES), met=1)  # asserted above

    def kill_publisher(self, rng: random.Random, times: int) -> Count:
        """Ends the publisher with kill -9 at random places of random requests, again and again; then one
        publish is not disturbed. A kill costs at most what was under way.
        """
        total = Count()
        runs: list[Published] = []
        repository = self.kit.repository(self.registry)
        while total.met < times:
            runs.append(self._one_kill(repository, rng))
            total.met += bool(runs[-1].met)
            total.tried += 1
            check_tags(self.registry, repository, self.kit.ours.digest)
            if runs[-1].result.code != -9 or total.met == times:
                done = self.finish(repository, runs, len(runs))
                total.add(replace(done, tried=0, met=0))
                repository, runs = self.kit.repository(self.registry), []
        return total

    def _one_kill(self, repository: str, rng: random.Random) -> Published:
        started = threading.Event()
        processes: list[subprocess.Popen[bytes]] = []

        def kill() -> None:
            assert started.wait(240)
            processes[0].kill()

        any_time = Fault("kill -9", skip=rng.randrange(self.requests), at=rng.random(), then=kill)
        in_layer = Fault("kill -9", **LARGE_UPLOAD, at=rng.random(), then=kill)
        fault = any_time if rng.random() < 0.6 else in_layer
        self.registry.proxy.begin(fault)
        processes.append(self.kit.start(self.registry, repository, self.kit.ours))
        started.set()
        code = processes[0].wait(480)
        self.registry.proxy.wait_idle()
        result = Result(code, "", self.kit.last_log.read_text())
        assert code in (0, -9) or is_refusal(self.registry, result), result
        return Published(result, list(self.registry.proxy.exchanges))

    def empty_links(self) -> Count:
        """The registry's notes of which blobs a repository has are empty, as a full disk leaves them.

        distribution 2.8 answers 500 to HEAD for such a blob, until it is uploaded again.
        """
        rerun = self._harmed(self.registry.empty_links)
        assert {x.status for x in rerun.exchanges if x.method == "HEAD" and "/blobs/" in x.path} == {500, 200}
        return Count(1, 1, self.once + rerun.uploaded, rerun.uploaded)

    def lose_blobs(self) -> Count:
        """The registry loses every blob; publishing again sends them again."""
        rerun = self._harmed(lambda _: self.registry.lose_blobs())
        return Count(1, 1, self.once + rerun.uploaded, rerun.uploaded)

    def _harmed(self, harm: Callable[[str], None]) -> Published:
        """Publishes, harms the registry's files of that repository, and publishes again, which mends it."""
        repository = self.kit.repository(self.registry)
        assert self.kit.publish(self.registry, repository).result.code == 0
        harm(repository)
        rerun = self.kit.publish(self.registry, repository)
        assert rerun.result.code == 0, rerun.result.err
        self.check_published(repository)
        return rerun

    def pull(self, faults: list[Fault], folder: Path) -> Count:
        """Pulls with faults into an empty store, then without; nothing wrong is in the store afterwards."""
        repository = self.kit.repository(self.registry)
        assert self.kit.publish(self.registry, repository).result.code == 0
        shutil.rmtree(folder, ignore_errors=True)
        store = Store(folder)
        self.registry.proxy.begin(*faults)
        digest = self.kit.ours.digest
        with pytest.MonkeyPatch.context() as patch:
            wait_less(patch, *faults)
            with RegistryClient(self.registry.host, self.registry.credentials) as client:
                with contextlib.suppress(BuilderError):
                    assert pull_image(client, repository, TAGS[0], "amd64", store).digest == digest
                met = sum(bool(x.fault) for x in self.registry.proxy.exchanges)
                self.registry.proxy.begin()
                assert pull_image(client, repository, TAGS[0], "amd64", store).digest == digest
        for blob in (folder / "blobs/sha256").iterdir():
            if not blob.suffix:
                assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
        return Count(1, met)
