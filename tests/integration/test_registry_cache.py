"""A shared cache in docker-registry: machines with an empty cache build the same image from it, whatever its
entries are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.registry.client import RegistryClient
from builder.registry.shared import EntryCodec
from builder.store.records import read_record
from tests.support.channel import Server, index_channel, make_package, serve
from tests.support.machine import Machine, RequestLog
from tests.support.parts import Registry, RegistryFactory
from tests.support.project import TinyProject, edit, noise, tiny_channel, tiny_project

pytestmark = pytest.mark.registry

SECRET = "0123456789abcdef" * 4
ENV = {"BUILDER_CACHE_KEY": SECRET}
REPOSITORY = "team/cache"


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_channel(tmp_path_factory.mktemp("channel"))


@pytest.fixture(scope="module")
def server(channel: Path) -> Iterator[Server]:
    with serve(channel) as server:
        yield server


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Machine:
    """The machine that locked and fills shared caches."""
    machine = Machine(tiny_project(tmp_path_factory.mktemp("maker"), server.url))
    machine.run("build", "tiny")
    return machine


@pytest.fixture(scope="module")
def digest(maker: Machine) -> str:
    digest: str = maker.json("build", "tiny")["digest"]
    return digest


@pytest.fixture(scope="module")
def filled(maker: Machine, make_registry: RegistryFactory) -> Path:
    """The storage of a registry with a shared cache; tests start a registry with a copy."""
    registry = make_registry()
    maker.run("build", "tiny", "--cache-to", f"{registry.host}/{REPOSITORY}", env=ENV)
    registry.stop()
    return registry.root


@pytest.fixture
def registry(filled: Path, make_registry: RegistryFactory, tmp_path: Path) -> Iterator[Registry]:
    shutil.copytree(filled, tmp_path / "registry")
    registry = make_registry(root=tmp_path / "registry")
    yield registry
    registry.stop()


@pytest.fixture
def fresh(maker: Machine, tmp_path: Path) -> Machine:
    """A machine with the project, its lock, and an empty cache."""
    shutil.copytree(maker.project.root, tmp_path / "project", ignore=shutil.ignore_patterns("dist"))
    return Machine(TinyProject(tmp_path / "project", tmp_path / "cache"))


def packages(server: Server) -> list[str]:
    """The packages that were downloaded."""
    return [path.rpartition("/")[2] for path in server.requests if path.endswith(".conda")]


def test_fresh_machine(fresh: Machine, registry: Registry, server: Server, digest: str) -> None:
    """It builds the same image, and downloads no package: a build from a shared cache is a pull."""
    server.requests.clear()
    place = f"{registry.host}/{REPOSITORY}"
    done = fresh.run("build", "tiny", "--json", "--cache-from", place, env=ENV)
    assert json.loads(done.stdout)["digest"] == digest
    assert packages(server) == []
    assert f"shared cache: 2 records came from {place}" in " ".join(
        done.stderr.split()
    )  # Python, and the set


def test_one_package_changed(
    fresh: Machine, maker: Machine, registry: Registry, server: Server, channel: Path, tmp_path: Path
) -> None:
    """One layer is made, from its own packages; the others come from the shared cache."""
    make_package(channel, "bulky", "1.1", files={"lib/bulk.bin": noise("new", 2 << 20)})
    index_channel(channel)
    fresh.run("lock", "tiny", "--update", "bulky")
    server.requests.clear()
    built = fresh.json("build", "tiny", "--cache-from", f"{registry.host}/{REPOSITORY}", env=ENV)
    assert packages(server) == ["bulky-1.1-0.conda"]

    shutil.rmtree(fresh.project.cache)
    assert fresh.json("build", "tiny")["digest"] == built["digest"]


def test_only_what_is_missing_is_sent(fresh: Machine, registry: Registry, digest: str) -> None:
    """A machine that reads and writes one shared cache sends nothing if it made nothing."""
    place = f"{registry.host}/{REPOSITORY}"
    log = RequestLog(registry, registry.log_size())
    built = fresh.json("build", "tiny", "--cache-from", place, "--cache-to", place, env=ENV)
    assert built["digest"] == digest
    assert [line for line in log.lines() if line.startswith(("PUT", "POST", "PATCH"))] == []


def test_sif(fresh: Machine, maker: Machine, registry: Registry) -> None:
    """Partitions of a SIF are shared too."""
    place = f"{registry.host}/{REPOSITORY}"
    edit(fresh.project.recipe, format="sif", registry={"repository": "tests/tiny-sif"})
    first = fresh.json("build", "tiny", "--cache-to", place, env=ENV)
    partitions = [read_record(path) for path in (fresh.project.cache / "layers").glob("sif-*.json")]
    assert partitions
    shutil.rmtree(fresh.project.cache)
    log = RequestLog(registry, registry.log_size())
    again = fresh.json("build", "tiny", "--cache-from", place, env=ENV)
    assert again["digest"] == first["digest"]
    pulled = "\n".join(log.lines())
    assert all(f"/blobs/{partition['digest']}" in pulled for partition in partitions)


def test_publish_moves_tags_as_before(fresh: Machine, registry: Registry, digest: str) -> None:
    """What publish pushes is the image; a tag of the shared cache is never a tag of the image."""
    fresh.passed(digest)
    place = f"{registry.host}/{REPOSITORY}"
    options = ("--cache-from", place, "--mount-from", REPOSITORY, "--tag", "26.11")
    done = fresh.json("publish", "tiny", "--registry", registry.host, *options, env=ENV)
    assert done["digest"] == digest
    with RegistryClient(registry.host) as client:
        tagged = client.head_manifest("tests/tiny", "26.11")
        assert tagged is not None and tagged.digest == digest
        assert all("-" in tag for tag in client.list_tags(REPOSITORY))
    mounted: int = done["push"]["blobs_mounted"]
    assert mounted > 0


# hostile, damaged and missing ------------------------------------------------------------------------------


def flip_blobs(registry: Registry, cache: Path) -> None:
    """Flips a bit in the middle of each layer in the storage of the registry."""
    for data in registry.root.glob("docker/registry/v2/blobs/sha256/*/*/data"):
        content = bytearray(data.read_bytes())
        if not content.startswith(b"{"):
            content[len(content) // 2] ^= 1
            data.write_bytes(content)


def cut_blobs(registry: Registry, cache: Path) -> None:
    for data in registry.root.glob("docker/registry/v2/blobs/sha256/*/*/data"):
        if not data.read_bytes().startswith(b"{"):
            data.write_bytes(data.read_bytes()[:-7])


def lose_blobs(registry: Registry, cache: Path) -> None:
    for data in registry.root.glob("docker/registry/v2/blobs/sha256/*/*/data"):
        if not data.read_bytes().startswith(b"{"):
            data.unlink()


def entries(client: RegistryClient) -> dict[str, bytes]:
    return {tag: client.get_manifest(REPOSITORY, tag)[0] for tag in client.list_tags(REPOSITORY)}


def write(client: RegistryClient, tag: str, manifest: bytes) -> None:
    client.put_manifest(REPOSITORY, tag, manifest, "application/vnd.oci.image.manifest.v1+json")


def swap_entries(registry: Registry, cache: Path) -> None:
    """Each tag names the entry of another one."""
    with RegistryClient(registry.host) as client:
        found = entries(client)
        for tag, other in zip(found, [*list(found.values())[1:], *list(found.values())[:1]], strict=True):
            write(client, tag, other)


def forge_entries(registry: Registry, cache: Path) -> None:
    """An attacker who can write to the registry and knows all tags, but not the secret."""
    ours, theirs = EntryCodec(SECRET.encode()), EntryCodec(b"another secret of the same length..")
    records = list((cache / "layers").glob("*.json"))
    layers = [read_record(path) for path in records if not path.stem.startswith("set-")]
    wrong = max(layers, key=lambda layer: layer["size"])
    with RegistryClient(registry.host) as client:
        found = entries(client)
        for path in records:
            name = f"layers/{path.name}"
            if ours.tag(name) not in found:
                continue
            entry = ours.decode(found[ours.tag(name)], name)
            value = {**wrong} if "digest" in entry.value else {**entry.value, "layers": [wrong]}
            entry = type(entry)(name, value, ((wrong["digest"], wrong["size"]),))
            write(client, ours.tag(name), theirs.encode(entry))


def grow_entries(registry: Registry, cache: Path) -> None:
    """Manifests of nearly 4 MiB, the most that docker-registry stores."""
    with RegistryClient(registry.host) as client:
        for tag, data in entries(client).items():
            value = json.loads(data)
            value["annotations"]["padding"] = "x" * 3_500_000
            write(client, tag, json.dumps(value).encode())
            return


def strip_entries(registry: Registry, cache: Path) -> None:
    """The manifests of other tools, which have no such annotations."""
    with RegistryClient(registry.host) as client:
        for tag, data in entries(client).items():
            write(client, tag, json.dumps({**json.loads(data), "annotations": {"a": "b"}}).encode())


def stop_registry(registry: Registry, cache: Path) -> None:
    registry.stop()


@pytest.mark.parametrize(
    "attack",
    [
        flip_blobs,
        cut_blobs,
        lose_blobs,
        swap_entries,
        forge_entries,
        grow_entries,
        strip_entries,
        stop_registry,
    ],
)
def test_the_image_stays_the_same(
    fresh: Machine,
    maker: Machine,
    registry: Registry,
    digest: str,
    attack: Callable[[Registry, Path], None],
) -> None:
    attack(registry, maker.project.cache)
    place = f"{registry.host}/{REPOSITORY}"
    done = fresh.run("build", "tiny", "--json", "--cache-from", place, "--cache-to", place, env=ENV)
    assert json.loads(done.stdout)["digest"] == digest
    if attack is not grow_entries:  # padding beside a valid entry changes nothing
        assert "shared cache" in done.stderr or "is ignored" in done.stderr


def test_another_secret(fresh: Machine, registry: Registry, server: Server, digest: str) -> None:
    """It sees no entries: everything is made here."""
    server.requests.clear()
    place = f"{registry.host}/{REPOSITORY}"
    built = fresh.json("build", "tiny", "--cache-from", place, env={"BUILDER_CACHE_KEY": SECRET[::-1]})
    assert built["digest"] == digest and len(packages(server)) > 5


@pytest.mark.parametrize(
    ("options", "env", "message"),
    [
        (("--cache-from", "localhost:1/a"), {}, "BUILDER_CACHE_KEY is not set"),
        (("--cache-to", "localhost:1/a"), {"BUILDER_CACHE_KEY": "x"}, "BUILDER_CACHE_KEY is too short"),
        (("--cache-to", "localhost:1/a:tag"), ENV, "must be a repository"),
        (("--cache-from", "localhost:1/a", "--on", "slurm"), ENV, "--on slurm exclude each other"),
        ((), {"BUILDER_CACHE_FROM": "localhost:1/a"}, "BUILDER_CACHE_KEY is not set"),
    ],
)
def test_wrong_command_lines(
    maker: Machine, options: tuple[str, ...], env: dict[str, str], message: str
) -> None:
    done = maker.run("build", "tiny", *options, env=env, check=False)
    assert done.returncode == 2 and message in done.stderr
