"""Publishing to three real registries while everything breaks that can break between them and builder.

After every fault: all that a tag names can be pulled whole, the same command run again ends right, and the
bytes that were sent again are counted and bounded. The random places come from one seed, which is printed:
``FAULT_SEED=N`` repeats a run. ``make soak`` runs the same trials for longer.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faultkit import LARGE_UPLOAD, TAGS, Kit, basic, check_tags, make_kit, skopeo_copies
from tests.support.faultproxy import Fault
from tests.support.faulttrials import Trials, pull_faults, upload_faults
from tests.support.parts import need
from tests.support.real_registries import RealRegistry
from tests.support.secretwatch import Secrets

pytestmark = pytest.mark.registry

SEED = int(os.environ.get("FAULT_SEED") or int.from_bytes(os.urandom(4), "big"))
#: The names of the faults alone; their places are drawn anew for each test.
UPLOAD, PULL = list(upload_faults(random.Random(0))), list(pull_faults(random.Random(0), ""))
#: Pulp is slow: these faults in every run, all of them in ``make soak`` and with FAULTS=all.
QUICK = {
    "upload cut",
    "upload cut three times",
    "upload's answer lost",
    "503 for an upload, twice",
    "manifests' answers lost",
    "wrong content arrives",
    "token expires",
    "download cut three times",
    "corrupted download",
}
#: kill -9 of the publisher, for each registry (Pulp: one). ``make soak`` has many more.
KILLS = 3


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    with make_kit(tmp_path_factory.mktemp("kit")) as made:
        yield made


@pytest.fixture(scope="module")
def secrets() -> Iterator[Secrets]:
    with Secrets() as watch:
        yield watch


@pytest.fixture(scope="module")
def trials(kit: Kit, any_registry: RealRegistry, secrets: Secrets) -> Trials:
    secrets.add(any_registry.password, basic(any_registry))
    return Trials(kit, any_registry)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    print("FAULT_SEED", SEED)  # pytest shows it when the test fails
    return random.Random(f"{SEED} {request.node.name}")


def in_quick_run(registry: RealRegistry, name: str) -> None:
    if registry.name == "pulp" and name not in QUICK and os.environ.get("FAULTS") != "all":
        pytest.skip("FAULTS=all, and make soak, try this fault on Pulp too")


@pytest.mark.parametrize("name", UPLOAD)
def test_publish(trials: Trials, rng: random.Random, name: str) -> None:
    in_quick_run(trials.registry, name)
    faults, most = upload_faults(rng)[name]
    count = trials.publish(faults, most)
    assert count.met >= 1, "the fault met no request"


@pytest.mark.parametrize("name", PULL)
def test_pull(trials: Trials, rng: random.Random, name: str, tmp_path: Path) -> None:
    """A broken pull ends with an error or the right image, and leaves nothing wrong in the store."""
    in_quick_run(trials.registry, name)
    blob = trials.registry.blobs + ".*" + trials.large_digest
    count = trials.pull(pull_faults(rng, blob)[name], tmp_path / "store")
    assert count.met >= 1, "the fault met no request"


def test_killed_publisher(trials: Trials, rng: random.Random) -> None:
    trials.kill_publisher(rng, KILLS if trials.registry.name != "pulp" else 1)


@pytest.mark.parametrize("comes_back", [True, False], ids=["comes back", "stays away"])
def test_killed_registry(trials: Trials, rng: random.Random, comes_back: bool) -> None:
    """kill -9 of the registry in the middle of a layer, or at any moment."""
    in_layer = Fault("kill -9", **LARGE_UPLOAD, at=rng.random())
    any_time = Fault("kill -9", skip=rng.randrange(trials.requests), at=rng.random())
    trials.kill_registry(rng.choice([in_layer, any_time]), comes_back=comes_back)


def test_full_disk(trials: Trials) -> None:
    trials.fill_disk()


def test_half_written_links(trials: Trials) -> None:
    """Publishing again mends a registry whose disk was full when it noted that a repository has a blob."""
    if trials.registry.name != "distribution":
        pytest.skip("only distribution keeps a file of its own for each blob of a repository")
    trials.empty_links()


def test_lost_blobs(trials: Trials) -> None:
    """Publishing again mends a registry that lost its blobs."""
    if trials.registry.name == "pulp":
        pytest.skip("Pulp asks only its database whether it has a blob")
    trials.lose_blobs()


def test_overtaken(trials: Trials) -> None:
    """While one publisher's manifest is under way, another publishes the month: its tag is not replaced."""
    kit, registry = trials.kit, trials.registry
    repository = kit.repository(registry)
    overtake = Fault(
        "overtaken", "PUT", "/manifests/sha256:", then=lambda: _publish_theirs(kit, registry, repository)
    )
    first = kit.publish(registry, repository, overtake)
    registry.proxy.wait_idle()
    assert "overtaken" in first.met
    assert first.result.code == 12 and TAGS[0] in first.result.err, first.result.err
    tags = check_tags(registry, repository, kit.theirs.digest, kit.ours.digest)
    assert tags[TAGS[0]] == kit.theirs.digest, "the tag of the other publisher was replaced"


def _publish_theirs(kit: Kit, registry: RealRegistry, repository: str) -> None:
    assert kit.start(registry, repository, kit.theirs).wait(200) == 0


def test_race(trials: Trials) -> None:
    """Two publishers start at once: the tag names one of them, who was told so."""
    kit, registry = trials.kit, trials.registry
    repository = kit.repository(registry)
    both = [(image, kit.start(registry, repository, image)) for image in (kit.ours, kit.theirs)]
    codes = {image.digest: process.wait(240) for image, process in both}
    tags = check_tags(registry, repository, *codes)
    assert codes[tags[TAGS[0]]] == 0 and set(codes.values()) <= {0, 12}, codes
    assert sorted(tags) == sorted(TAGS)


def test_skopeo_pulls(trials: Trials, tmp_path: Path) -> None:
    """Another implementation pulls what a publish with many faults left."""
    need("skopeo")
    kit, registry = trials.kit, trials.registry
    repository = kit.repository(registry)
    kit.publish(registry, repository, Fault("lost", "POST|PUT", lose_answer=True, skip=3, times=5))
    assert kit.publish(registry, repository).result.code == 0
    registry.proxy.begin()
    for tag in TAGS:
        skopeo_copies(registry, repository, tag, tmp_path)


def test_no_secret_is_written(trials: Trials, secrets: Secrets) -> None:
    """Passwords and tokens are in no file that builder made, and in no command line of any process."""
    registry, kit = trials.registry, trials.kit
    login = kit.login(registry)
    secrets.add(*registry.proxy.tokens())
    assert login.stat().st_mode & 0o777 == 0o600 and secrets.files(login.parent) != [], "the search works"
    done = subprocess.run(["sh", "-c", "sleep 0.2", registry.name], check=True)
    assert done.returncode == 0 and secrets.samples > 10
    others = [kit.folder / f"auth-{name}.json" for name in ("distribution", "crane", "pulp")]
    assert secrets.files(kit.folder, *others) == []
    assert secrets.seen == []
