"""Signatures that builder writes and podman, skopeo and cosign verify, with their own policy files; and the
other way round. The registry is docker-registry; no program may use anything else on the network.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builder.core.errors import ImageError, RegistryError
from builder.core.model import OCI_INDEX, Image, canonical_json
from builder.core.store.blobs import Store
from builder.deliver.publishing.destination import RegistryDestination
from builder.deliver.publishing.keys import PublicKey, SigningKey
from builder.deliver.publishing.signatures import add_signature, read_signatures, signature_tag
from builder.formats.oci.digest import sha256
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS
from builder.formats.registry.referrers import Artifact, AttachedFile, attach, referrers
from tests.integration.conftest import CLONE
from tests.support import parts
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.install_registries import install_cosign, install_oras, install_podman
from tests.support.parts import Registry
from tests.support.programs import run_program

pytestmark = [pytest.mark.registry, pytest.mark.heavy]

PASSWORD = b"correct horse"
MAKE = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
#: Answers nothing: whoever asks another host than the registry fails.
NOWHERE = "http://127.0.0.1:9"
#: cosign 3 without its transparency log and the files that it downloads.
OFFLINE = ["--tlog-upload=false", "--use-signing-config=false"]
SBOM = Artifact("application/vnd.cyclonedx+json", [AttachedFile("sbom.json", "application/json", b"{}")])
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Programs:
    """cosign, podman and skopeo with settings in a folder of their own."""

    cosign: Path
    folder: Path
    """Of podman and skopeo."""
    home: Path
    env: dict[str, str]

    def run(self, name: str, *args: str | Path, check: bool = True) -> Done:
        """Run one of the three; the password is that of all keys."""
        program = self.cosign if name == "cosign" else self.folder / name
        return run_program([program, *args], self.env, check=check, cwd=self.home, timeout=90)

    def pull(self, name: str, reference: str) -> Done:
        """Pull an image with podman or skopeo, as their policies allow."""
        if name == "podman":
            return self.run("podman", "pull", "--tls-verify=false", reference, check=False)
        options = ["--src-tls-verify=false", f"docker://{reference}", f"dir:{self.home / 'out'}"]
        return self.run("skopeo", "copy", *options, check=False)

    def trust(self, host: str, key: Path) -> None:
        """Write the policy: images of this registry need a signature of this key."""
        settings = self.home / ".config/containers"
        (settings / "registries.d").mkdir(parents=True, exist_ok=True)
        attachments = f"docker:\n  {host}:\n    use-sigstore-attachments: true\n"
        (settings / "registries.d/builder.yaml").write_text(attachments)
        identity = {"type": "matchRepository"}
        rule = {"type": "sigstoreSigned", "keyPath": str(key), "signedIdentity": identity}
        policy = {"default": [{"type": "reject"}], "transports": {"docker": {host: [rule]}}}
        (settings / "policy.json").write_text(json.dumps(policy))


@pytest.fixture
def programs() -> Iterator[Programs]:
    parts.need("runc", "newuidmap", "openssl")
    cosign, folder = parts.installed(install_cosign, "cosign"), parts.installed(install_podman, "podman")
    with parts.part_folder("sg") as home:
        env = parts.podman_environment(home, home, "vfs")
        helpers = json.dumps([str(folder.parent / "lib/podman")])
        with (home / "containers.conf").open("a") as f:
            f.write(f"helper_binaries_dir = {helpers}\n")
        proxies = {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "COSIGN_PASSWORD": PASSWORD.decode()}
        yield Programs(cosign, folder, home, env | proxies)


def make_pair(folder: Path, name: str, *encrypt: str) -> tuple[Path, Path]:
    """A key pair as users make it with openssl."""
    folder.mkdir(exist_ok=True)
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    mask = os.umask(0o077)
    run_program([*MAKE, *encrypt, "-out", private], os.environ)
    os.umask(mask)
    secret = ["-passin", f"pass:{PASSWORD.decode()}"] if encrypt else []
    run_program(["openssl", "pkey", "-in", private, *secret, "-pubout", "-out", public], os.environ)
    return private, public


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return make_pair(tmp_path / "keys", "builder")


@pytest.fixture
def key(pair: tuple[Path, Path]) -> SigningKey:
    return SigningKey.load(pair[0], lambda: b"")


@dataclass(frozen=True)
class Place:
    """A repository that no other test uses."""

    to: RegistryDestination
    folder: Path

    def push(self, label: str, *tags: str) -> Image:
        """Push an image; another label is another image."""
        image = make_test_image([make_layer(self.folder / "layers", "one")], label)
        push_tagged(image, self.to.client, self.to.repository, tags)
        return image

    def beside(self) -> Place:
        """Another repository of the registry."""
        return replace(self, to=replace(self.to, repository=f"{self.to.repository}/other"))

    def copy_signatures(self, source: Place, signed: str, digest: str) -> None:
        """Store the signatures of an image as those of another one, as an attacker can."""
        repository, manifests = source.to.repository, self.to.client.manifests
        data, found = manifests.get(repository, signature_tag(signed))
        manifest = json.loads(data)
        for descriptor in (manifest["config"], *manifest["layers"]):
            assert self.to.client.blobs.mount(self.to.repository, descriptor["digest"], repository)
        manifests.put(self.to.repository, signature_tag(digest), data, found.media_type)


@pytest.fixture
def place(registry: Registry, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    name = f"sig/{sha256(request.node.name.encode())[7:19]}"
    with RegistryClient(registry.host, ANONYMOUS) as client:
        yield Place(RegistryDestination(client, name, Store(tmp_path / "cache")), tmp_path)


# podman and skopeo --------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["podman", "skopeo"])
@pytest.mark.parametrize("by", ["tag", "digest"])
def test_accepted(
    program: str, by: str, programs: Programs, place: Place, pair: tuple[Path, Path], key: SigningKey
) -> None:
    """A signed image is accepted under each of its tags, and by its digest."""
    image = place.push("signed", "latest", "26.11")
    add_signature(place.to, image.digest, key, {"creator": "builder", "timestamp": 1})
    programs.trust(place.to.client.host, pair[1])
    for ref in (":latest", ":26.11") if by == "tag" else (f"@{image.digest}",):
        done = programs.pull(program, place.to.name + ref)
        assert done.returncode == 0, done.stderr


#: Puts an image under ``latest``; returns its digest.
Attack = Callable[[Place, SigningKey, SigningKey], str]


def unsigned(place: Place, key: SigningKey, other: SigningKey) -> str:
    return place.push("unsigned", "latest").digest


def replaced(place: Place, key: SigningKey, other: SigningKey) -> str:
    """The tag is moved from the signed image to another one."""
    add_signature(place.to, place.push("signed", "latest").digest, key, {})
    return place.push("replaced", "latest").digest


def replayed(place: Place, key: SigningKey, other: SigningKey) -> str:
    """And the signatures are copied to it."""
    signed = place.push("signed", "latest").digest
    add_signature(place.to, signed, key, {})
    evil = place.push("replaced", "latest").digest
    place.copy_signatures(place, signed, evil)
    return evil


def wrongly_signed(place: Place, key: SigningKey, other: SigningKey) -> str:
    image = place.push("signed", "latest")
    add_signature(place.to, image.digest, other, {})
    return image.digest


def of_another_repository(place: Place, key: SigningKey, other: SigningKey) -> str:
    """A signed image of another repository, with its signatures."""
    beside = place.beside()
    image = beside.push("signed", "latest")
    add_signature(beside.to, image.digest, key, {})
    place.push("signed", "latest")
    place.copy_signatures(beside, image.digest, image.digest)
    return image.digest


ATTACKS = {
    unsigned: "no signature exists",
    replaced: "no signature exists",
    replayed: "does not match",
    wrongly_signed: "cryptographic signature verification failed",
    of_another_repository: "is not accepted",
}


@pytest.fixture
def attacked(attack: Attack, place: Place, key: SigningKey) -> str:
    """The digest of the image after the attack."""
    other = SigningKey.load(make_pair(place.folder / "keys", "other")[0], lambda: b"")
    return attack(place, key, other)


@pytest.mark.parametrize("attack", ATTACKS)
def test_refused(
    attack: Attack, attacked: str, programs: Programs, place: Place, pair: tuple[Path, Path], key: SigningKey
) -> None:
    """podman, skopeo and builder refuse the same images."""
    programs.trust(place.to.client.host, pair[1])
    for program in ("podman", "skopeo"):
        done = programs.pull(program, f"{place.to.name}:latest")
        assert done.returncode != 0 and ATTACKS[attack] in done.stderr
    assert read_signatures(place.to, attacked, [key.public]) == []


def test_debian_12(programs: Programs, place: Place, pair: tuple[Path, Path], key: SigningKey) -> None:
    """podman 4.3 and skopeo 1.9 as Debian 12 builds them accept no signature, so they refuse all images."""
    add_signature(place.to, place.push("signed", "latest").digest, key, {})
    programs.trust(place.to.client.host, pair[1])
    for path in parts.need("podman", "skopeo"):
        done = replace(programs, folder=Path(path).parent).pull(Path(path).name, f"{place.to.name}:latest")
        assert done.returncode == 0 or "sigstore disabled" in done.stderr


def test_signed_by_skopeo(programs: Programs, place: Place, key: SigningKey, pair: tuple[Path, Path]) -> None:
    """builder reads what skopeo signed, and adds to it what podman accepts."""
    image = place.push("signed", "latest")
    (programs.home / "password").write_bytes(PASSWORD)
    programs.run("skopeo", "generate-sigstore-key", "--output-prefix", "s", "--passphrase-file", "password")
    programs.trust(place.to.client.host, pair[1])
    reference = f"docker://{place.to.name}:latest"
    signing = ["--sign-by-sigstore-private-key", "s.private", "--sign-passphrase-file", "password"]
    options = ["--src-tls-verify=false", "--dest-tls-verify=false", "--preserve-digests"]
    programs.run("skopeo", "--insecure-policy", "copy", *options, *signing, reference, reference)
    theirs = PublicKey.load(programs.home / "s.pub")
    (found,) = read_signatures(place.to, image.digest, [key.public, theirs])
    assert found.key == theirs and found.optional["creator"].startswith("containers/image")
    add_signature(place.to, image.digest, key, {})
    assert len(read_signatures(place.to, image.digest, [key.public, theirs])) == 2
    assert programs.pull("podman", f"{place.to.name}:latest").returncode == 0


# cosign -------------------------------------------------------------------------------------------


def cosign_verify(programs: Programs, public: Path, reference: str, *options: str) -> Done:
    words = ["--key", public, "--insecure-ignore-tlog", "--allow-http-registry", *options, reference]
    return programs.run("cosign", "verify", *words, check=False)


@pytest.mark.parametrize("options", [[], ["--new-bundle-format=false"]], ids=["default", "old format"])
def test_cosign_verifies(
    options: list[str], programs: Programs, place: Place, pair: tuple[Path, Path], key: SigningKey
) -> None:
    """What builder attaches does not confuse cosign, which looks for signatures there first."""
    image = place.push("signed", "latest")
    refused = cosign_verify(programs, pair[1], f"{place.to.name}:latest", *options)
    assert refused.returncode != 0 and "no signatures found" in refused.stderr
    place.to.attach(image.manifest_descriptor, SBOM)
    add_signature(place.to, image.digest, key, {"recipe": "t"})
    done = cosign_verify(programs, pair[1], f"{place.to.name}:latest", *options, "-a", "recipe=t")
    assert done.returncode == 0, done.stderr
    (seen,) = json.loads(done.stdout)
    assert seen["critical"]["image"]["docker-manifest-digest"] == image.digest
    assert cosign_verify(programs, pair[1], f"{place.to.name}:latest", "-a", "recipe=u").returncode != 0


@pytest.mark.parametrize("attack", [unsigned, replaced, replayed, wrongly_signed])
def test_cosign_refuses(
    attack: Attack, attacked: str, programs: Programs, place: Place, pair: tuple[Path, Path]
) -> None:
    """cosign does not compare the repository: it accepts a signed image of another one."""
    assert cosign_verify(programs, pair[1], f"{place.to.name}@{attacked}").returncode != 0


def documented(place: Place) -> list[str]:
    """The words of the ``cosign verify`` of docs/howto/releases.md, for an image of the test's registry."""
    page = (CLONE / "docs/howto/releases.md").read_text()
    (found,) = re.findall(r"^    cosign (verify(?:.*\\\n)*.*)$", page, re.MULTILINE)
    *words, image = shlex.split(found.replace("\\\n", " "))
    assert image == "registry.example.org/team/mine:26.10"
    return [*words, "--allow-http-registry", f"{place.to.name}:26.10"]


def test_cosign_beside_a_bundle(
    programs: Programs, place: Place, pair: tuple[Path, Path], key: SigningKey
) -> None:
    """The documented command accepts builder's signature beside an attestation of somebody else.

    Where anything in the new format is attached, cosign 3.1.1 reads no other signature by default. podman 5.4
    and 5.8 and skopeo 1.18 and 1.22 read the old format alone, so builder signs in that.
    """
    image = place.push("signed", "26.10")
    add_signature(place.to, image.digest, key, {})
    programs.run("cosign", "generate-key-pair", "--output-key-prefix", "audit")
    (programs.home / "predicate.json").write_text("{}")
    (programs.home / "release.pub").write_bytes(pair[1].read_bytes())
    assert programs.run("cosign", *documented(place), check=False).returncode == 0
    words = ["--key", "audit.key", "-y", "--allow-http-registry", *OFFLINE, "--type", "custom"]
    reference = f"{place.to.name}@{image.digest}"
    programs.run("cosign", "attest", *words, "--predicate", "predicate.json", reference)
    done = programs.run("cosign", *documented(place), check=False)
    assert done.returncode == 0, done.stderr
    (seen,) = json.loads(done.stdout)
    assert seen["critical"]["image"]["docker-manifest-digest"] == image.digest
    (programs.home / "release.pub").write_bytes((programs.home / "audit.pub").read_bytes())
    assert programs.run("cosign", *documented(place), check=False).returncode != 0


def test_copied_by_cosign(programs: Programs, place: Place, host: str, key: SigningKey) -> None:
    """cosign copy (3.1.1) lets the tag of the list name the image. builder says so for each registry, for
    docker-registry 2.8 too, which returns no manifest of a type that was not asked for; oras copy -r (1.3.3)
    copies the list over it.
    """
    oras = parts.installed(install_oras, "oras")
    image = place.push("signed", "latest")
    entry = attach(place.to.client, place.to.repository, image.manifest_descriptor, SBOM)
    add_signature(place.to, image.digest, key, {})
    source, name = f"{place.to.name}:latest", f"{place.to.repository}/copy"
    programs.run("cosign", "copy", "--allow-http-registry", source, f"{host}/{name}:latest")
    with RegistryClient(host, ANONYMOUS) as client:
        assert client.manifests.head(name, signature_tag(image.digest)), "the signatures are copied"
        for use in (
            lambda: referrers(client, name, image.digest),
            lambda: attach(client, name, image.manifest_descriptor, SBOM),
        ):
            with pytest.raises(RegistryError, match="is not a list of attached artifacts but") as caught:
                use()
            assert "copy with oras copy -r" in (caught.value.hint or "")
        plain = ["--from-plain-http", "--to-plain-http"]
        run_program([oras, "copy", "-r", *plain, source, f"{host}/{name}:latest"], programs.env)
        assert [one.digest for one in referrers(client, name, image.digest)] == [entry]


def test_index_as_signatures(place: Place, host: str, key: SigningKey) -> None:
    """An index under the tag of signatures is an error that names it, on docker-registry 2.8, too."""
    image = place.push("signed", "latest")
    with RegistryClient(host, ANONYMOUS) as client:
        there = replace(place, to=replace(place.to, client=client))
        there.push("signed", "latest")
        index = canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []})
        client.manifests.put(there.to.repository, signature_tag(image.digest), index, OCI_INDEX)
        with pytest.raises(ImageError, match="has no config or layers"):
            read_signatures(there.to, image.digest, [key.public])


def test_signed_by_cosign(programs: Programs, place: Place, key: SigningKey, pair: tuple[Path, Path]) -> None:
    """Each reads the other's signature of one image, in either order."""
    image = place.push("signed", "latest")
    programs.run("cosign", "generate-key-pair")
    add_signature(place.to, image.digest, key, {})
    reference = f"{place.to.name}@{image.digest}"
    words = ["--key", "cosign.key", "-y", "--allow-http-registry", "--new-bundle-format=false", *OFFLINE]
    programs.run("cosign", "sign", *words, reference)
    theirs = PublicKey.load(programs.home / "cosign.pub")
    for number in (2, 3):
        found = read_signatures(place.to, image.digest, [key.public, theirs])
        assert len(found) == number and {signed.key for signed in found} == {key.public, theirs}
        for public in (pair[1], programs.home / "cosign.pub"):
            assert cosign_verify(programs, public, reference).returncode == 0
        add_signature(place.to, image.digest, key, {"number": number})


# keys ---------------------------------------------------------------------------------------------


def of_cosign(programs: Programs) -> tuple[Path, Path]:
    programs.run("cosign", "generate-key-pair", "--output-key-prefix", "c")
    return programs.home / "c.key", programs.home / "c.pub"


def of_skopeo(programs: Programs) -> tuple[Path, Path]:
    (programs.home / "password").write_bytes(PASSWORD)
    programs.run("skopeo", "generate-sigstore-key", "--output-prefix", "s", "--passphrase-file", "password")
    return programs.home / "s.private", programs.home / "s.pub"


def of_openssl(programs: Programs) -> tuple[Path, Path]:
    encrypt = ["-aes256", "-pass", f"pass:{PASSWORD.decode()}"]
    return make_pair(programs.home / "keys", "builder", *encrypt)


@pytest.mark.parametrize("make", [of_cosign, of_skopeo, of_openssl])
def test_keys(make: Callable[[Programs], tuple[Path, Path]], programs: Programs, place: Place) -> None:
    """Keys as these programs write them, encrypted; what they sign is accepted."""
    private, public = make(programs)
    key = SigningKey.load(private, lambda: PASSWORD)
    assert key.public == PublicKey.load(public)
    image = place.push("signed", "latest")
    add_signature(place.to, image.digest, key, {})
    programs.trust(place.to.client.host, public)
    assert programs.pull("skopeo", f"{place.to.name}:latest").returncode == 0
    assert cosign_verify(programs, public, f"{place.to.name}:latest").returncode == 0


def test_at_once(place: Place, tmp_path: Path) -> None:
    """Four sign at once: all four are listed."""
    image = place.push("signed", "latest")
    pairs = [make_pair(tmp_path / "keys", str(number)) for number in range(4)]
    keys = [SigningKey.load(private, lambda: b"") for private, _ in pairs]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: add_signature(place.to, image.digest, key, {}), keys))
    found = read_signatures(place.to, image.digest, [key.public for key in keys])
    assert {signed.key for signed in found} == {key.public for key in keys}
