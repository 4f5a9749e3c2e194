"""Jobs, runs, promote and rollback of a team with a policy, while an attacker may push but has no key."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.cli import cli, run
from builder.core.model import OCI_INDEX
from builder.deliver.publishing.release import RELEASE, SBOM, SMOKE_REPORT
from builder.deliver.publishing.signatures import signature_tag
from tests.support.project import edit
from tests.support.releases import Team, builder, released, report

pytestmark = pytest.mark.registry


#: How users name an image for each runtime.
IMAGES = {
    "docker": ["{host}/{repository}:latest", "{host}/{repository}"],
    "podman": ["docker://{host}/{repository}:latest"],
    "podman-hpc": ["{host}/{repository}"],
    "apptainer": ["docker://{host}/{repository}", "oras:{host}/{repository}:latest"],
    "singularity": ["oras://{host}/{repository}:latest"],
    "pyxis": ["docker://{host}/{repository}:latest", "{host}#{repository}:latest"],
    "edf": ["docker://{host}/{repository}", "{host}#{repository}"],
}


def _site(team: Team, kind: str) -> None:
    slurm = {"account": "none", "salloc_on_node": False, "gpus": "--gpus-per-node={gpus}"}
    site = {"runtime": {"kind": kind}, "title": "x", "images": "$IMAGES", "node": {"gpus": 4, "cores": 8}}
    edit(team.root / "recipes/t.yaml", site={**site, "slurm": slurm})


@pytest.mark.parametrize("kind", IMAGES)
def test_image_of_a_job(kind: str, team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """A job and a run with --image run the digest that was verified, or nothing."""
    digest = team.publish("one").digest
    _site(team, kind)
    names = [name.format(host=team.host, repository=team.repository) for name in IMAGES[kind]]
    for name in names:
        assert builder(team, "job", "t", "--image", name, "--", "true") == 0, capsys.readouterr()
        said = capsys.readouterr().out
        assert digest in said and ":latest" not in said
    thief = team.attacker()
    thief.push(thief.image(), "latest")
    for name in names:
        assert builder(team, "job", "t", "--image", name, "--", "true") == 15
        assert builder(team, "run", "--image", name, "t", "true") == 15
        assert builder(team, "smoke", "--on", "slurm", "--image", name, "t") == 15


@pytest.mark.parametrize("image", ["library://a/b", "https://x.example/x.sif", "shub://a/b"])
def test_image_of_elsewhere(image: str, team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    _site(team, "apptainer")
    assert builder(team, "job", "t", "--image", image, "--", "true") == 2
    assert f"{image} cannot be verified" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_job(kind: str, team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --image too; a recorded pull that nobody signed is refused."""
    digest = team.publish("one").digest
    _site(team, kind)
    capsys.readouterr()
    assert builder(team, "job", "t", "--", "true") == 0
    assert f"{team.name}@{digest}" in capsys.readouterr().out
    thief = team.attacker()
    evil = thief.push(thief.image(), "latest")
    assert builder(team, "job", "t", "--", "true") == 15
    assert builder(team, "run", team.name, "--", "true") == 15
    record = {
        "engine": kind,
        "reference": f"{team.name}:latest",
        "image": f"{team.name}@{evil}",
        "image_id": evil,
    }
    (team.root / "dist").mkdir()
    (team.root / "dist/t.pulled.json").write_text(json.dumps(record))
    assert builder(team, "job", "t", "--", "true") == 15


def test_run_of_the_tag(team: Team, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``builder run TARGET`` that finds no image here does not run what the tag names by now."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(f"#!/bin/sh\necho ran >> {tmp_path}/ran\n")
    (tmp_path / "bin/docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    digest = team.publish("one").digest
    _site(team, "docker")
    assert builder(team, "run", "t", "true") == 0 and (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    thief = team.attacker()
    evil = thief.push(thief.image(), "latest")
    for image in ((), ("--image", f"{team.name}@{evil}"), ("--image", f"docker://{team.name}")):
        assert builder(team, "run", *image, "t", "true") == 15
    assert not (tmp_path / "ran").exists() and digest


def test_compared_image(team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """``smoke --ab`` runs images of the registry: only those that the policy accepts."""
    digest = team.publish("one").digest
    thief = team.attacker()
    thief.push(thief.image(), "latest")
    assert builder(team, "smoke", "t", "--ab", "latest", digest) == 15
    assert "no signature" in capsys.readouterr().err


# the policy's file ---------------------------------------------------------------------------------


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere.yaml")


POLICIES: dict[str, Callable[[Path], Any]] = {
    "broken link": _link,
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "empty": lambda path: path.write_text(""),
    "no keys": lambda path: path.write_text("keys: []\n"),
    "lost key": lambda path: path.write_text("keys: [lost.pub]\n"),
    "private key": lambda path: path.write_text("keys: [team.key]\n"),
    "unknown key": lambda path: path.write_text("keys: [team.pub]\nrequires: [sbom]\n"),
    "other suffix": lambda path: path.rename(path.with_suffix(".yml")).write_text("keys: []\n"),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_policy_that_cannot_be_used(policy: str, team: Team) -> None:
    """Nothing is accepted where a policy is wrong, as if there were none."""
    team.publish("one")
    POLICIES[policy](team.root / "recipes/_policy.yaml")
    _site(team, "docker")
    for words in (["verify"], ["pull"], ["pull", team.name], ["job", "t", "--", "true"], ["run", team.name]):
        assert builder(team, *words) == 3, words


def test_project_that_is_not_there(team: Team, tmp_path: Path) -> None:
    """A mistyped --project is not a folder without a policy."""
    team.publish("one")
    lost = ["--project", str(tmp_path / "typo"), "--cache", str(team.cache), "pull", f"{team.name}:latest"]
    assert run(cli, lost) == 3


# what the team signs -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["keys: [team.pub]\n", ""])
def test_forged_report(policy: str, team: Team) -> None:
    """``promote --sign`` signs the report that the candidate was signed with, with and without a policy."""
    Team(team.root, team.host, team.repository, policy)
    if not policy:
        (team.root / "recipes/_policy.yaml").unlink()
    done = team.publish("one", only=("candidate",))
    team.attacker().attach(done.digest, SMOKE_REPORT, report(done.digest, verdict="warn"))
    team.attacker().attach(done.digest, SBOM, {"bomFormat": "CycloneDX"})
    assert builder(team, "promote", "-y", "--sign", team.key_file) == 0
    assert released(team, done.digest)["attached"] == dict(done.attached)


def test_unsigned_candidate(team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """``promote --sign`` without a policy signs nothing that this key has not signed before."""
    (team.root / "recipes/_policy.yaml").unlink()
    digest = team.publish("one", only=("candidate",), signed=False).digest
    team.attacker().attach(digest, SMOKE_REPORT, report(digest))
    assert builder(team, "promote", "-y", "--sign", team.key_file) == 15
    assert "no signature" in capsys.readouterr().err
    assert not team.attacker().has("latest") and not team.attacker().has(signature_tag(digest))


REPORTS: dict[str, Any] = {
    "other image": report("sha256:" + "b" * 64),
    "failed": report("", verdict="fail"),
    "verdict of a list": report("", verdict=["pass"]),
    "digest of a list": {"verdict": "pass", "image": {"digest": ["x"]}, "expect": {"gpu": "none"}},
    "digest of an object": {"verdict": "pass", "image": {"digest": {}}, "expect": []},
    "list": [],
    "garbage": b"\xff{",
}


@pytest.mark.parametrize("value", REPORTS)
def test_reports_of_others(value: str, team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a policy the newest report counts; one that is not about this image does not pass."""
    (team.root / "recipes/_policy.yaml").unlink()
    digest = team.publish("one", only=("candidate",), signed=False).digest
    team.attacker().attach(digest, SMOKE_REPORT, REPORTS[value])
    assert builder(team, "promote", "-y") == 11, capsys.readouterr()
    assert not team.attacker().has("latest")


@pytest.mark.parametrize("tag", ["a b", "../../other/manifests/latest", "x?y", "\x00", "x" * 200, ""])
def test_records_of_others(tag: str, team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a policy a rollback reads records of anybody; what is no record of the image is ignored."""
    (team.root / "recipes/_policy.yaml").unlink()
    old, new = team.publish("old", "26.09", signed=False).digest, team.publish("new", signed=False).digest
    value = {"image": new, "target": "t", "created": "2030-01-01T00:00:00Z", "action": "publish"}
    team.attacker().attach(new, RELEASE, {**value, "tags": {"latest": old, tag: old}})
    team.attacker().attach(new, RELEASE, b"{")
    assert builder(team, "rollback", "-y") == 0, capsys.readouterr()
    assert team.attacker().digest("latest") == old


def test_rollback_from_a_replay(team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the attacker moved ``latest`` to an older release, a rollback does not go back from there."""
    first = team.publish("first", "26.08").digest
    second = team.publish("second", "26.09").digest
    team.publish("third")
    assert builder(team, "verify") == 0
    team.attacker().move("latest", second)
    assert builder(team, "rollback", "-y", "--sign", team.key_file) == 15
    assert "has verified a newer release" in capsys.readouterr().err
    assert builder(team, "rollback", "-y", "--sign", team.key_file, "--back-to", "26.09") == 0
    assert team.attacker().digest("latest") == second != first


def test_rollback_from_an_attack(team: Team) -> None:
    """An image of the attacker under ``latest`` is replaced by a named one, whatever it is."""
    digest = team.publish("one").digest
    thief = team.attacker()
    thief.move(
        "latest", thief.put("x", {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}, OCI_INDEX)
    )
    assert builder(team, "rollback", "-y", "--sign", team.key_file) in (2, 8, 15)
    assert builder(team, "rollback", "-y", "--sign", team.key_file, "--back-to", "26.10") == 0
    assert thief.digest("latest") == digest and builder(team, "verify") == 0


def test_rollback_without_the_tag(team: Team) -> None:
    """``latest`` that is gone comes back with ``--back-to``."""
    digest = team.publish("one", only=("26.10",)).digest
    assert builder(team, "rollback", "-y", "--sign", team.key_file) == 9
    assert builder(team, "rollback", "-y", "--sign", team.key_file, "--back-to", "26.10") == 0
    assert team.attacker().digest("latest") == digest and builder(team, "verify") == 0


def test_rollback_to_what_never_was_out(team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """The attacker moves ``latest`` to a candidate just before a publish: the record says that it was out."""
    digest = team.publish("one").digest
    failed = team.publish("never", only=("candidate",)).digest
    team.attacker().move("latest", failed)
    team.publish("two")
    assert builder(team, "rollback", "-y", "--sign", team.key_file) == 15
    assert "was not released as latest" in capsys.readouterr().err
    assert builder(team, "rollback", "-y", "--sign", team.key_file, "--back-to", digest) == 0
