"""An attacker who may push and delete anything in the registry, but has no key: no command says yes.

Each attack is a program against docker-registry and against go-containerregistry's registry.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.core.model import OCI_CONFIG, OCI_MANIFEST, canonical_json
from builder.deliver.publishing import seal, signatures, verify
from builder.deliver.publishing.release import PROVENANCE, RELEASE, SBOM, SMOKE_REPORT
from builder.deliver.publishing.signatures import signature_tag
from builder.formats.oci.digest import sha256
from builder.formats.oci.layout import list_tags
from builder.formats.registry.oras import sif_artifact
from tests.support import parts
from tests.support.project import edit
from tests.support.releases import Attacker, Team, builder, released, report

pytestmark = [pytest.mark.registry, pytest.mark.usefixtures("own_settings")]

#: Moves something in the registry; returns the image to ask for.
Attack = Callable[[Team, Attacker, str], str]


def refused(team: Team, ref: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Fails unless all commands refuse an image; returns what they print."""
    where = f"{team.name}{'@' if ref.startswith('sha256:') else ':'}{ref}"
    capsys.readouterr()
    codes = [builder(team, "verify", where), builder(team, "pull", "t", "--tag", ref)]
    said = capsys.readouterr()
    assert set(codes) <= {9, 15}, (codes, said)
    assert "Traceback" not in said.err and "a bug in builder" not in said.err
    assert not (team.root / "dist").exists()
    return said.out + said.err


# the attacks --------------------------------------------------------------------------------------


def unsigned(team: Team, thief: Attacker, digest: str) -> str:
    thief.push(thief.image(), "latest")
    return "latest"


def other_key(team: Team, thief: Attacker, digest: str) -> str:
    """A release with everything, signed by the attacker's own key."""
    Team(thief.folder / "own", team.host, team.repository).publish("evil")
    return "latest"


def stolen_signature(team: Team, thief: Attacker, digest: str) -> str:
    evil = thief.push(thief.image(), "latest")
    thief.steal_signatures(digest, evil)
    return "latest"


def other_repository(team: Team, thief: Attacker, digest: str) -> str:
    """Another target's image, signed by the same key, with all that belongs to it."""
    other = Team(team.root, team.host, f"{team.repository}-two")
    done = other.publish("two")
    artifacts = [released(other, done.digest)["artifact"], *done.attached.values()]
    thief.push(other.built("two").artifact, "latest")  # type: ignore[arg-type]
    for artifact in artifacts:
        thief.copy(artifact, other.repository)
    thief.steal_signatures(done.digest, done.digest, other.repository)
    Team(team.root, team.host, team.repository)  # the recipe names this one again
    return "latest"


def candidate(team: Team, thief: Attacker, digest: str) -> str:
    """A signed candidate that never was ``latest``."""
    thief.move("latest", team.publish("bad", only=("candidate",)).digest)
    return "latest"


def month(team: Team, thief: Attacker, digest: str) -> str:
    """A month that did not exist."""
    thief.move("26.12", digest)
    return "26.12"


def candidate_by_digest(team: Team, thief: Attacker, digest: str) -> str:
    return thief.push(thief.image())


def no_signatures(team: Team, thief: Attacker, digest: str) -> str:
    thief.delete(signature_tag(digest))
    return "latest"


def no_record(team: Team, thief: Attacker, digest: str) -> str:
    thief.delete(released(team, digest)["artifact"])
    return "latest"


def _without(kind: str) -> Attack:
    def attack(team: Team, thief: Attacker, digest: str) -> str:
        """Replaces an attachment by a newer one of the same type."""
        gone = released(team, digest)["attached"][kind]
        thief.attach(digest, kind, report(digest) if kind == SMOKE_REPORT else thief.document(gone))
        thief.delete(gone)
        return digest

    return attack


def forged_record(team: Team, thief: Attacker, digest: str) -> str:
    """The signature stays, and its document names a record of the attacker."""
    record = released(team, digest)
    del record["artifact"]
    forged = thief.attach(digest, RELEASE, {**record, "attached": {}, "tags": {"26.12": None}})
    layer = thief.get(signature_tag(digest))["layers"][0]
    payload = json.loads(thief.read(layer))
    payload["optional"]["org.builder.release"] = forged
    blob = thief.blob(canonical_json(payload))
    thief.signatures(digest, [{**blob, "annotations": layer["annotations"]}])
    return "latest"


def junk(team: Team, thief: Attacker, digest: str) -> str:
    layer = thief.signature(b"{}")
    thief.signatures(digest, [layer] * signatures.MAX_SIGNATURES)
    return "latest"


def more_junk(team: Team, thief: Attacker, digest: str) -> str:
    good = thief.get(signature_tag(digest))["layers"]
    layer = thief.signature(b"{}")
    thief.signatures(digest, [*good, *[layer] * signatures.MAX_SIGNATURES])
    return "latest"


def index_of_evil(team: Team, thief: Attacker, digest: str) -> str:
    thief.move("latest", thief.index(thief.push(thief.image()), digest))
    return "latest"


def signed_index(team: Team, thief: Attacker, digest: str) -> str:
    """The signatures are those of the index, which nobody signed."""
    index = thief.index(thief.push(thief.image()))
    thief.steal_signatures(digest, index)
    thief.move("latest", index)
    return "latest"


def index_as_signatures(team: Team, thief: Attacker, digest: str) -> str:
    thief.move(signature_tag(digest), thief.index(digest))
    return "latest"


def image_as_signatures(team: Team, thief: Attacker, digest: str) -> str:
    thief.push(thief.image(), signature_tag(digest))
    return "latest"


def odd_signatures(team: Team, thief: Attacker, digest: str) -> str:
    config = thief.blob(b"{}", OCI_CONFIG)
    value = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [], "annotations": {}}
    thief.put(signature_tag(digest), value)
    return "latest"


def _set(*path: str, to: Any) -> Callable[[bytes], bytes]:
    """Changes a value of a document."""

    def change(payload: bytes) -> bytes:
        value = json.loads(payload)
        inner = value
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = to
        return json.dumps(value).encode()

    return change


IDENTITY = ("critical", "identity", "docker-reference")
ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        unsigned,
        other_key,
        stolen_signature,
        other_repository,
        candidate,
        month,
        candidate_by_digest,
        no_signatures,
        no_record,
        forged_record,
        junk,
        more_junk,
        index_of_evil,
        signed_index,
        index_as_signatures,
        image_as_signatures,
        odd_signatures,
    )
} | {
    "sbom": _without(SBOM),
    "provenance": _without(PROVENANCE),
    "report": _without(SMOKE_REPORT),
}
#: Other documents that the team's key has signed: elsewhere, or by mistake.
DOCUMENTS: dict[str, Callable[[bytes], bytes]] = {
    "other type": _set("critical", "type", to="atomic container signature"),
    "other image": _set("critical", "image", "docker-manifest-digest", to=sha256(b"x")),
    "no record": _set("optional", to=None),
    "record of text": _set("optional", "org.builder.release", to="latest"),
    "record of a list": _set("optional", to=["org.builder.release"]),
    "other reference": _set(*IDENTITY, to="registry.example/attack/x"),
    "longer reference": _set(*IDENTITY, to="127.0.0.1:1/attack"),
    "reference of null": _set(*IDENTITY, to=None),
    "twice": lambda payload: payload.replace(b'"critical":', b'"critical":{},"critical":', 1),
    "more keys": _set("critical", "more", to=1),
    "not JSON": lambda payload: payload + b"}",
    "number": lambda _: b"7",
    "deep": lambda _: b"[" * 20_000,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_refused(attack: str, host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    team = Team(tmp_path / "team", host, f"attack/{sha256(attack.encode())[7:20]}")
    digest = team.publish("good").digest
    refused(team, ATTACKS[attack](team, team.attacker(), digest), capsys)


def test_other_documents(team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """The team's key has signed each of them, and none is a release of this image."""
    digest = team.publish("good").digest
    thief = team.attacker()
    payload = thief.read(thief.get(signature_tag(digest))["layers"][0])
    for name, change in DOCUMENTS.items():
        thief.signatures(digest, [thief.signature(change(payload), team.key)])
        assert "no signature of builder" in refused(team, "latest", capsys), name
    thief.signatures(digest, [thief.signature(payload, team.key)])
    assert builder(team, "verify") == 0


# replays -------------------------------------------------------------------------------------------


def _days_ago(days: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets releases be signed some days ago."""
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda _: then), UTC=datetime.UTC)
    monkeypatch.setattr(seal, "datetime", clock)


def test_last_months(team: Team, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The image of last month under ``latest``, with its own signature; its dated tag stays good."""
    with monkeypatch.context() as earlier:
        _days_ago(41, earlier)
        old = team.publish("old", "26.09").digest
    team.publish("new")
    edit(team.root / "recipes/_policy.yaml", max_age_days=40)
    assert builder(team, "verify") == 0
    team.attacker().move("latest", old)
    assert "age: 41 days, 40 are allowed" in refused(team, "latest", capsys)
    assert builder(team, "verify", "t:26.09") == 0


def test_future(team: Team, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _days_ago(-2, monkeypatch)
    team.publish("one")
    assert "signed in the future" in refused(team, "latest", capsys)


def test_seen_newer(team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine that has verified a release refuses an older one under the same tag, also by another
    spelling of the host. A rollback is a newer release.
    """
    old, new = team.publish("old", "26.09").digest, team.publish("new").digest
    assert builder(team, "verify", f"docker://{team.name}:latest") == 0
    team.attacker().move("latest", old)
    assert "has verified a newer release of latest" in refused(team, "latest", capsys)
    team.attacker().move("latest", new)
    assert builder(team, "rollback", "-y", "--sign", team.key_file) == 0
    assert builder(team, "verify", team.name) == 0
    assert old in capsys.readouterr().out
    team.attacker().move("latest", new)
    refused(team, "latest", capsys)


def test_host_names(team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """A signature is for one name of the registry; another name of the same one is not signed."""
    team.publish("one")
    other = team.name.replace("127.0.0.1", "LocalHost")
    assert builder(team, "verify", other) == builder(team, "pull", f"{other}:latest") == 15
    assert "no signature" in capsys.readouterr().err


def test_newer_attachments(team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """What the signed record names is verified, not what the registry lists last."""
    done = team.publish("one")
    thief = team.attacker()
    for kind in (SBOM, PROVENANCE, SMOKE_REPORT, RELEASE):
        thief.attach(done.digest, kind, {"verdict": "fail", "bomFormat": "no"})
    assert builder(team, "verify") == builder(team, "pull") == 0
    trust = verify.Trust.find(team.root)
    assert trust is not None
    (found,) = verify.signed_releases(thief.place(), done.digest, trust.keys)
    assert dict(done.attached) == found.record.attached


def test_some_junk(team: Team) -> None:
    """A signature between others counts."""
    digest = team.publish("one").digest
    thief = team.attacker()
    good = thief.get(signature_tag(digest))["layers"]
    odd = [
        thief.signature(b"{}"),
        {**good[0], "annotations": {signatures.SIGNATURE: "?"}},
        {**good[0], "size": 1 << 40},
    ]
    thief.signatures(digest, [*odd, *good, *odd])
    assert builder(team, "verify") == 0


def test_index_of_signed(team: Team) -> None:
    """An index of anybody that leads to the signed image: that image arrives."""
    digest = team.publish("one").digest
    thief = team.attacker()
    thief.move("latest", thief.index(digest))
    assert builder(team, "verify") == builder(team, "pull") == 0
    assert list_tags(team.root / "dist") == {"t": digest}


# a tag that moves after the check ------------------------------------------------------------------


@pytest.fixture
def moving(team: Team, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """``moving(image)``: as soon as a tag was verified, the attacker moves it to their image."""

    def start(evil: Any) -> None:
        real = verify.verify

        def move(*args: Any) -> Any:
            done = real(*args)
            team.attacker().push(evil, "latest")
            return done

        monkeypatch.setattr(verify, "verify", move)

    return start


def test_moves_before_pull(team: Team, moving: Callable[[Any], None]) -> None:
    digest = team.publish("one").digest
    moving(team.attacker().image())
    assert builder(team, "pull") == 0
    assert list_tags(team.root / "dist") == {"t": digest}
    assert builder(team, "pull", "--if-changed") == 15
    assert list_tags(team.root / "dist") == {"t": digest}


def test_moves_before_sif(team: Team, moving: Callable[[Any], None], tmp_path: Path) -> None:
    edit(team.root / "recipes/t.yaml", format="sif")
    digest = team.publish_sif("one").digest
    evil = team.sif("evil")
    moving(sif_artifact(evil, "t.sif"))
    assert builder(team, "pull", "--output", tmp_path / "x.sif") == 0
    assert sha256((tmp_path / "x.sif").read_bytes()) == team.sif("one").digest != evil.digest
    assert digest not in (evil.digest, "")
    assert builder(team, "pull", "--output", tmp_path / "x.sif", "--if-changed") == 15


def test_moves_before_podman(
    team: Team, moving: Callable[[Any], None], podman: parts.Podman, use_runner: Callable[[str], None]
) -> None:
    """podman pulls the digest that was verified; the record in dist/ names it too."""
    use_runner("podman")
    digest = team.publish("one").digest
    moving(team.attacker().image())
    assert builder(team, "pull", "--load", "podman") == 0
    podman.run("image", "exists", f"{team.name}@{digest}")
    assert json.loads((team.root / "dist/t.pulled.json").read_text())["image"] == f"{team.name}@{digest}"
    assert builder(team, "pull", "--load", "podman", "--if-changed") == 15
    assert podman.run("image", "exists", f"{team.name}:latest", check=False).returncode == 1


MANIFEST = b'{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",'
LOST = b'{"mediaType":"%b","digest":"sha256:%b","size":2}' % (signatures.PAYLOAD.encode(), b"0" * 64)
GARBAGE = {
    "text": b"hello",
    "nothing": b"",
    "list": b"[]",
    "no layers": MANIFEST + b'"config":{}}',
    "lost blobs": MANIFEST + b'"config":%b,"layers":[%b]}' % (LOST, LOST),
    "lost signature": MANIFEST
    + b'"config":%b,"layers":[%b,"annotations":{"%b":"eA=="}}]}'
    % (LOST, LOST[:-1], signatures.SIGNATURE.encode()),
    "odd layers": MANIFEST + b'"config":%b,"layers":[7,null]}' % LOST,
    "twice": MANIFEST + b'"config":%b,"layers":[],"layers":[%b]}' % (LOST, LOST),
    "both": MANIFEST + b'"config":%b,"layers":[],"manifests":[]}' % LOST,
    "deep": b"[" * 50_000,
}


def test_garbage(crane: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """crane's registry stores anything: as the image, as its signatures, and as its release record."""
    team = Team(tmp_path / "team", crane, f"attack/{tmp_path.name.replace('_', '-').strip('-')}")
    digest = team.publish("good").digest
    thief = team.attacker()
    for data in GARBAGE.values():
        thief.put_raw(signature_tag(digest), data)
        said = refused(team, "latest", capsys)
        assert "hint:" in said or "FAILED" in said
    for data in GARBAGE.values():
        thief.put_raw("latest", data)
        codes = [builder(team, "verify"), builder(team, "pull")]
        assert set(codes) <= {6, 8, 9, 15}, (codes, data[:99], capsys.readouterr())
