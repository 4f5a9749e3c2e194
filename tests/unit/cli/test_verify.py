"""``builder verify``: what it accepts as an image and as trust, and what it prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.lock.config.policy import POLICY_FILE
from tests.support.cli import Cli
from tests.support.fakeregistry import FakeRegistry, Reply
from tests.support.project import TinyProject, edit
from tests.support.signkeys import make_pair

REPOSITORY = "tests/tiny"


@dataclass
class Released:
    """A signed image in a registry in memory, as 26.10 and latest."""

    do: Cli
    project: TinyProject
    fake: FakeRegistry
    private: Path
    public: Path
    digest: str = ""

    @property
    def name(self) -> str:
        return f"{self.fake.host}/{REPOSITORY}"

    def policy(self, **values: object) -> None:
        path = self.project.root / POLICY_FILE
        path.write_text("{}")
        edit(path, **{"keys": ["release.pub"], "require": ["sbom", "provenance"], **values})


@pytest.fixture
def released(do: Cli, copy: TinyProject) -> Iterator[Released]:
    with FakeRegistry() as fake:
        fake.lists_referrers = True
        edit(copy.recipe, smoke={"none": "a toy"}, registry={"host": fake.host, "repository": REPOSITORY})
        made = Released(do, copy, fake, *make_pair(copy.root / "recipes", "release"))
        done = do("publish", "--tag", "26.10", "--sign", made.private, "--json")
        assert done.code == 0, done.err
        made.digest = done.json["digest"]
        yield made


@pytest.mark.parametrize(
    "image", [None, "tiny", "tiny:26.10", "tiny@{digest}", "{name}:26.10", "{name}@{digest}"]
)
def test_names(released: Released, image: str | None) -> None:
    """The image by target, tag, digest or reference; without one the only target's ``latest``."""
    released.policy()
    words = [image.format(name=released.name, digest=released.digest)] if image else []
    done = released.do("verify", *words)
    assert done.code == 0 and f" is {released.digest}\n" in done.out
    lines = [line.split()[:2] for line in done.out.splitlines()[1:]]
    assert ["ok", "signature:"] in lines and all(line[0] == "ok" for line in lines)


def test_json(released: Released) -> None:
    released.policy(max_age_days=3)
    value = released.do("verify", "--json").json
    assert value["verified"] and value["image"] == f"{released.name}:latest"
    assert value["digest"] == released.digest
    assert [check["name"] for check in value["checks"]] == ["signature", "tag", "age", "sbom", "provenance"]
    assert value["checks"][1] == {"name": "tag", "seen": "signed for 26.10, latest", "passed": True}
    assert value["release"]["tags"] == {"26.10": None, "latest": None}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["tiny:27.01"], 9, "there is no {name}:27.01"),
        (["other"], 3, "no target named 'other'"),
        (["tiny@sha256:12"], 9, "after @ must come sha256: and 64 hex digits"),
        (["--key", "missing.pub"], 3, "missing.pub: no such file"),
        (["--key", "recipes/release.key"], 3, "release.key is not a public key in PEM format"),
    ],
)
def test_wrong_words(released: Released, words: list[str], code: int, message: str) -> None:
    released.policy()
    done = released.do("verify", *words)
    assert done.code == code and message.format(name=released.name) in done.err


def test_missing_key(released: Released) -> None:
    """The policy names a key that is not there: nobody is told to make a new one."""
    released.policy(keys=["release.pub", "second.pub"])
    done = released.do("verify", "--json")
    assert done.code == 3 and "recipes/second.pub: no such file" in done.json["error"]
    assert "ask whoever signs" in done.json["hint"] and "openssl" not in done.json["hint"]


def test_no_policy(released: Released, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing says who may sign: an error, in a project and elsewhere; ``--key`` says it."""
    done = released.do("verify")
    assert done.code == 2 and f"there is no {POLICY_FILE} here" in done.err and "--key FILE" in done.err
    monkeypatch.chdir(tmp_path)
    assert released.do("verify", f"{released.name}:latest").code == 2
    key = ["--key", released.public]
    assert released.do("verify", "tiny", *key).code == 3, "no project, so no target"
    done = released.do("verify", f"{released.name}:latest", *key)
    assert done.code == 15, "a key alone requires everything: this image has no passing report"
    assert "FAILED  smoke: the verdict is none, not pass" in done.out


def test_other_key(released: Released) -> None:
    """The policy names another key than the one that signed; with both, one is enough."""
    make_pair(released.project.root / "recipes", "other")
    released.policy(keys=["other.pub"])
    done = released.do("verify")
    assert done.code == 15 and "FAILED  signature: no signature of builder by a key of the policy" in done.out
    released.policy(keys=["other.pub", "release.pub"])
    assert released.do("verify").code == 0


@pytest.mark.parametrize(
    ("words", "failed", "seen"),
    [
        (["tiny:27.01"], "tag", "signed for 26.10, latest, not for 27.01"),
        (["tiny:edge"], "signature", "no signature of builder by a key of the policy"),
    ],
)
def test_refused(released: Released, words: list[str], failed: str, seen: str) -> None:
    """Exit code 15, with the checks that failed: in the table, and as JSON."""
    released.policy()
    there = released.fake.manifests[REPOSITORY]
    there["27.01"] = there["latest"]
    edit(released.project.recipe, labels={"image": "unsigned"})
    edit(released.project.recipe, registry={"host": released.fake.host, "repository": REPOSITORY})
    (released.project.root / POLICY_FILE).rename(released.project.root / "kept")
    digest = released.do("publish", "--no-tags", "--json").json["digest"]
    there["edge"] = there[digest]
    (released.project.root / "kept").rename(released.project.root / POLICY_FILE)
    value = released.do("verify", *words, "--json")
    assert value.code == 15 and not value.json["verified"]
    (check,) = (check for check in value.json["checks"] if not check["passed"])
    assert check["name"] == failed and check["seen"].startswith(seen)


def test_pull(released: Released) -> None:
    """``pull`` verifies where there is a policy, says so, and takes nothing that it refuses."""
    assert "verified" not in released.do("pull").out
    released.policy()
    done = released.do("pull")
    assert done.code == 0 and f"  verified: {POLICY_FILE}" in done.out
    there = released.fake.manifests[REPOSITORY]
    there["27.01"] = there["latest"]
    for words in (["tiny", "--tag", "27.01"], [f"{released.name}:27.01"]):
        done = released.do("pull", *words)
        assert done.code == 15 and "is refused: tag: signed for 26.10, latest, not for 27.01" in done.err


def test_registry_is_away(released: Released) -> None:
    """An answer that says nothing about the image is an error of the registry, and never a yes."""
    released.policy()
    released.fake.fault = lambda request: Reply(403) if ".sig" in request.path else None
    done = released.do("verify")
    assert done.code == 9 and "is refused" not in done.err
