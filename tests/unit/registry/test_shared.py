"""The shared cache in a fake registry: what is sent, what is trusted, and that failures are warnings."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from builder.errors import BuilderError, SpaceError, UsageError
from builder.model import OCI_MANIFEST
from builder.oci.reference import Reference
from builder.registry import shared
from builder.registry.client import RegistryClient
from builder.registry.shared import Entry, EntryCodec, RegistryCache, check_secret
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.records import read_record, write_record
from tests.support.fakeregistry import Cut, FakeRegistry, Reply, sha256
from tests.support.reporters import Warnings

SECRET = b"s" * 32
REPOSITORY = "team/cache"
KEY = "0" * 64


class Machine:
    """A machine with an empty cache, and the shared cache as it uses it."""

    def __init__(self, folder: Path, host: str, secret: bytes = SECRET) -> None:
        self.store = Store(folder)
        self.reporter = Warnings()
        settings = Settings(cache=folder, tmpdir=folder / "tmp", jobs=2)
        place = Reference.parse(f"{host}/{REPOSITORY}")
        self.cache = RegistryCache(place, place, secret, self.store, settings, self.reporter)
        self.store.shared = self.cache

    def record(self, name: str = f"layers/{KEY}.json") -> Path:
        return self.store.root / name

    def make(self, blob: bytes, name: str = f"layers/{KEY}.json") -> Path:
        """Makes what was looked up before, as a build does."""
        assert self.store.recall(self.record(name)) is None
        digest = self.store.add(blob)
        write_record(self.record(name), {"digest": digest, "size": len(blob), "title": "a layer"})
        return self.record(name)


@pytest.fixture
def machines(tmp_path: Path, fake: FakeRegistry) -> Iterator[Any]:
    made: list[Machine] = []

    def make(secret: bytes = SECRET, host: str = fake.host) -> Machine:
        made.append(Machine(tmp_path / f"m{len(made)}", host, secret))
        return made[-1]

    yield make
    for machine in made:
        machine.cache.__exit__()


def entry_of(fake: FakeRegistry) -> tuple[str, dict[str, Any]]:
    """The tag and the manifest of the only entry."""
    ((tag, (data, _)),) = [item for item in fake.manifests[REPOSITORY].items() if ":" not in item[0]]
    return tag, json.loads(data)


def replace_entry(fake: FakeRegistry, tag: str, manifest: Any) -> None:
    data = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    fake.manifests[REPOSITORY][tag] = (data, OCI_MANIFEST)


def test_what_one_machine_made_another_finds(machines: Any, fake: FakeRegistry) -> None:
    one, two = machines(), machines()
    one.make(b"layer")
    one.cache.send()

    value = two.store.recall(two.record())

    assert value == read_record(one.record())
    path = two.store.get(value["digest"], value["size"])
    assert path is not None and path.read_bytes() == b"layer"
    assert not two.reporter.messages


class Progress(Warnings):
    """Counts the bytes of tasks, and how often one ended."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.done = self.finished = 0

    def start(self, task: str, total: int | None = None, unit: str = "B") -> None:
        self.total = total or 0

    def advance(self, task: str, amount: int) -> None:
        self.done += amount

    def finish(self, task: str, summary: str = "") -> None:
        self.finished += 1


def test_progress(machines: Any) -> None:
    """All entries of a lookup are one task: it ends with the last of them."""
    one, two = machines(), machines()
    names = [f"layers/{digit * 64}.json" for digit in "ab"]
    for name in names:
        one.make(name.encode(), name)
    one.cache.send()
    two.cache._reporter = progress = Progress()
    two.cache.find([two.record(name) for name in names])
    size = sum(map(len, names))
    assert (progress.total, progress.done, progress.finished) == (size, size, 1)


def test_records_without_blobs_and_wheels(machines: Any, fake: FakeRegistry) -> None:
    """Indexes name no blob; the record of a built wheel names it as ``wheel``."""
    one, two = machines(), machines()
    index, wheel = f"index/{KEY}.json", f"wheels/{KEY}.json"
    assert one.store.recall(one.record(index)) is None and one.store.recall(one.record(wheel)) is None
    write_record(one.record(index), {"entries": [["a", "file", 1, ""]]})
    write_record(one.record(wheel), {"wheel": one.store.add(b"a wheel")})
    one.cache.send()

    assert two.store.recall(two.record(index)) == {"entries": [["a", "file", 1, ""]]}
    assert two.store.get(two.store.recall(two.record(wheel))["wheel"]) is not None


@pytest.mark.parametrize("named", [True, False])
def test_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    """Those of publishing are for this registry only if REGISTRY_HOST says so."""
    monkeypatch.setenv("REGISTRY_USER", "me")
    monkeypatch.setenv("REGISTRY_PASSWORD", "secret")
    with FakeRegistry(token_user=("me", "secret")) as fake:
        if named:
            monkeypatch.setenv("REGISTRY_HOST", fake.host)
        machine = Machine(tmp_path, fake.host)
        with machine.cache:
            machine.make(b"layer")
            machine.cache.send()
        assert bool(fake.manifests.get(REPOSITORY)) == named == (not machine.reporter.messages)


def test_what_is_there_is_not_sent_again(machines: Any, fake: FakeRegistry) -> None:
    one, two = machines(), machines()
    one.make(b"layer")
    one.cache.send()
    fake.requests.clear()
    one.cache.send()
    two.store.recall(two.record())
    two.cache.send()
    assert fake.count("PUT") == fake.count("POST") == fake.count("HEAD") == 0


def test_parts_of_a_set_are_sent(machines: Any, fake: FakeRegistry) -> None:
    """A set that was found on this machine is one record; a build with a newer package needs its layers."""
    one, two = machines(), machines()
    blob = one.store.add(b"layer")
    part = {"digest": blob, "size": 5}
    write_record(one.record(), part)
    write_record(one.record("layers/set-1.json"), {"layers": [part]})
    write_record(one.record("layers/other.json"), {"digest": one.store.add(b"of another image")})
    one.store.recall(one.record("layers/set-1.json"))
    one.cache.send()

    assert two.store.recall(two.record()) == part
    assert two.store.recall(two.record("layers/other.json")) is None


def test_a_record_without_its_blob_is_not_sent(machines: Any, fake: FakeRegistry) -> None:
    one = machines()
    record = one.make(b"layer")
    one.store.drop(read_record(record)["digest"])
    one.cache.send()
    assert not fake.manifests.get(REPOSITORY)


def test_a_blob_that_was_pruned_comes_back(machines: Any) -> None:
    one, two = machines(), machines()
    one.make(b"layer")
    one.cache.send()
    write_record(two.record(), read_record(one.record()))
    value = two.store.recall(two.record())
    assert two.store.get(value["digest"]) is not None


def test_what_was_done_is_reported(
    machines: Any, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(Warnings, "note", lambda self, message: notes.append(message))
    one, two = machines(), machines()
    one.make(b"layer")
    one.cache.send()
    recall = two.store.recall(two.record())
    one.cache.__exit__()
    two.cache.__exit__()
    assert recall and notes == [
        f"shared cache: 1 records went to {fake.host}/{REPOSITORY}",
        f"shared cache: 1 records came from {fake.host}/{REPOSITORY}",
    ]


def test_another_secret_has_other_entries(machines: Any, fake: FakeRegistry) -> None:
    one, two = machines(), machines(secret=b"t" * 32)
    one.make(b"layer")
    one.cache.send()
    assert two.store.recall(two.record()) is None
    two.make(b"other", "layers/1.json")
    two.cache.send()
    three = machines()
    value = three.store.recall(three.record())
    assert three.store.path(value["digest"]).read_bytes() == b"layer"


# hostile entries -------------------------------------------------------------------------------------------


TEXT, MAC = "org.builder.cache.entry", "org.builder.cache.mac"


def forged(fake: FakeRegistry) -> dict[str, Any]:
    """The entry that an attacker without the secret would like to have used."""
    digest = fake.put(REPOSITORY, b"malware")
    entry = Entry(f"layers/{KEY}.json", {"digest": digest, "size": 7}, ((digest, 7),))
    manifest: dict[str, Any] = json.loads(EntryCodec(b"another secret".ljust(32)).encode(entry))
    return manifest


def annotated(manifest: dict[str, Any], **annotations: Any) -> dict[str, Any]:
    """The manifest with other annotations ``text`` and ``mac``."""
    new = {TEXT if name == "text" else MAC: value for name, value in annotations.items()}
    return {**manifest, "annotations": {**manifest["annotations"], **new}}


#: Inflates to 64 MiB.
BOMB = base64.b64encode(zlib.compress(bytes(64 << 20))).decode()
HOSTILE: dict[str, Callable[[FakeRegistry, dict[str, Any]], Any]] = {
    "signed with another secret": lambda f, m: forged(f),
    "another blob in the text": lambda f, m: annotated(m, text=forged(f)["annotations"][TEXT]),
    "no MAC": lambda f, m: {**m, "annotations": {TEXT: m["annotations"][TEXT]}},
    "empty MAC": lambda f, m: annotated(m, mac=""),
    "MAC of another type": lambda f, m: annotated(m, mac=1),
    "MAC that is not ASCII": lambda f, m: annotated(m, mac="\N{SNOWMAN}"),
    "a bomb": lambda f, m: annotated(m, text=BOMB),
    "no annotations": lambda f, m: {k: v for k, v in m.items() if k != "annotations"},
    "annotations that are a list": lambda f, m: {**m, "annotations": []},
    "not JSON": lambda f, m: b"{",
    "a list": lambda f, m: [],
    "deep": lambda f, m: b"[" * 100_000,
    "an index": lambda f, m: {**m, "mediaType": "application/vnd.oci.image.index.v1+json"},
    "large": lambda f, m: {**m, "padding": "x" * (9 << 20)},
}


@pytest.mark.parametrize("attack", list(HOSTILE))
def test_hostile_entry(machines: Any, fake: FakeRegistry, attack: str) -> None:
    """It is a miss, with a warning, and nothing of it is in the cache."""
    one, two = machines(), machines()
    one.make(b"layer")
    one.cache.send()
    tag, manifest = entry_of(fake)
    replace_entry(fake, tag, HOSTILE[attack](fake, manifest))

    assert two.store.recall(two.record()) is None
    assert len(two.reporter.messages) == 1
    assert two.store.get(sha256(b"malware")) is None and not two.record().exists()


@pytest.mark.parametrize("attack", ["signed with another secret", "no MAC", "not JSON"])
def test_hostile_entry_is_replaced(machines: Any, fake: FakeRegistry, attack: str) -> None:
    """The machine that made the layer itself stores it in place of the hostile entry."""
    one, two, three = machines(), machines(), machines()
    one.make(b"layer")
    one.cache.send()
    tag, manifest = entry_of(fake)
    replace_entry(fake, tag, HOSTILE[attack](fake, manifest))
    two.make(b"layer")
    two.cache.send()
    assert three.store.recall(three.record()) == read_record(one.record())
    assert not three.reporter.messages


def test_entry_of_another_record(machines: Any, fake: FakeRegistry) -> None:
    """A valid entry under the tag of another record: the layer of another package."""
    one, two = machines(), machines()
    one.make(b"layer")
    one.cache.send()
    _, manifest = entry_of(fake)
    name = "layers/" + "1" * 64 + ".json"
    replace_entry(fake, EntryCodec(SECRET).tag(name), manifest)

    assert two.store.recall(two.record(name)) is None
    assert "the entry of another record" in two.reporter.messages[0]


@pytest.mark.parametrize("damaged", [b"other", b"cut", b"layer and more", None])
def test_damaged_blob(machines: Any, fake: FakeRegistry, damaged: bytes | None) -> None:
    """The entry is a miss; the next machine that makes the layer sends the blob again."""
    one, two, three = machines(), machines(), machines()
    record = one.make(b"layer")
    one.cache.send()
    digest = read_record(record)["digest"]
    if damaged is None:
        del fake.blobs[REPOSITORY][digest]
    else:
        fake.blobs[REPOSITORY][digest] = damaged

    two.make(b"layer")
    assert len(two.reporter.messages) == 1
    two.cache.send()
    assert fake.blobs[REPOSITORY][digest] == b"layer"
    value = three.store.recall(three.record())
    assert three.store.path(value["digest"]).read_bytes() == b"layer"


# failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 500])
def test_registry_refuses(machines: Any, fake: FakeRegistry, status: int, monkeypatch: Any) -> None:
    """One warning to read and one to write, however many records there are; the build goes on."""
    monkeypatch.setattr(shared, "RegistryClient", partial(RegistryClient, sleep=lambda seconds: None))
    fake.fault = lambda request: Reply(status)
    machine = machines()
    machine.make(b"layer")
    machine.make(b"other", "layers/1.json")
    machine.cache.send()
    machine.cache.send()
    assert len(machine.reporter.messages) == 2
    assert "cannot read the shared cache" in machine.reporter.messages[0]
    assert "cannot write the shared cache" in machine.reporter.messages[1]


def test_offline(machines: Any) -> None:
    machine = machines(host="registry.example.org")
    machine.cache._settings = Settings(machine.store.root, machine.store.tmp, 1, offline=True)
    machine.make(b"layer")
    machine.cache.send()
    assert len(machine.reporter.messages) == 2 and "offline" in machine.reporter.messages[0]


def test_connection_is_cut(machines: Any, fake: FakeRegistry) -> None:
    """A download that breaks off is resumed, as every download of a blob."""
    one, two = machines(), machines()
    record = one.make(b"layer" * 1000)
    one.cache.send()
    fake.fail_once("GET", "/blobs/", Cut(100))
    value = two.store.recall(two.record())
    assert two.store.get(value["digest"]) is not None and read_record(record) == value


def test_disk_is_full(machines: Any, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """This concerns the build too."""
    one, two = machines(), machines()
    one.make(b"layer")
    one.cache.send()

    def full(*args: Any) -> None:
        raise SpaceError("no space left")

    monkeypatch.setattr(shared.RegistryClient, "get_blob_to", full)
    with pytest.raises(SpaceError):
        two.store.recall(two.record())


def test_large_entry_is_not_sent(machines: Any, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_ENTRY", 100)
    machine = machines()
    machine.make(b"layer")
    machine.cache.send()
    assert not fake.manifests.get(REPOSITORY) and not machine.reporter.messages


# the codec --------------------------------------------------------------------------------------------------


def test_codec_limits_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = EntryCodec(SECRET)
    data = codec.encode(Entry("layers/1.json", "x" * 1000, ()))
    assert codec.decode(data, "layers/1.json").value == "x" * 1000
    monkeypatch.setattr(shared, "MAX_RECORD", 500)
    with pytest.raises(BuilderError, match="too large"):
        codec.decode(data, "layers/1.json")


def test_tags() -> None:
    tag = EntryCodec(SECRET).tag(f"layers/step-{KEY}.json")
    assert tag.startswith("layers-") and len(tag) == len("layers-") + 64
    assert tag != EntryCodec(b"t" * 32).tag(f"layers/step-{KEY}.json")


@pytest.mark.parametrize(("secret", "problem"), [("", "not set"), ("  ", "not set"), ("short", "too short")])
def test_secret(secret: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as e:
        check_secret(secret)
    assert "short" not in e.value.hint
    assert check_secret("s" * 32 + "\n") == SECRET
