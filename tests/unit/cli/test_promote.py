"""``builder promote`` and ``builder rollback``: what moves, what is asked, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from builder.deliver.publishing.release import RELEASE
from builder.lock.config.policy import POLICY_FILE
from tests.support.cli import Cli, Result
from tests.support.fakeregistry import FakeRegistry, sha256
from tests.support.project import TinyProject, edit
from tests.support.signkeys import make_pair

REPOSITORY = "tests/tiny"


@dataclass
class Team:
    """A project that publishes untested images to a registry in memory."""

    do: Cli
    project: TinyProject
    fake: FakeRegistry

    def candidate(self, label: str, *args: str | Path) -> str:
        """Publish a candidate; another label is another image. Return its digest."""
        edit(self.project.recipe, labels={"image": label})
        done = self.do("publish", "--only", "candidate", "--json", *args)
        assert done.code == 0, done.err
        digest: str = done.json["digest"]
        return digest

    def release(self, label: str, month: str, *args: str | Path) -> str:
        """Publish a candidate and promote it."""
        digest = self.candidate(label, *args)
        done = self.do("promote", "-y", "--tag", month, *args)
        assert done.code == 0, done.err
        return digest

    def tag(self, name: str) -> str:
        """The digest that a tag names; empty if there is none."""
        found = self.fake.manifests[REPOSITORY].get(name)
        return sha256(found[0]) if found else ""

    def artifacts(self, kind: str) -> int:
        """The number of attached artifacts of a type."""
        manifests = self.fake.manifests[REPOSITORY].items()
        return sum(json.loads(data).get("artifactType") == kind for ref, (data, _) in manifests if ":" in ref)

    def policy(self, *names: str) -> list[Path]:
        """Write a policy with these keys, and none that must be attached; return the private keys."""
        pairs = [make_pair(self.project.root / "recipes", name) for name in names]
        files = ", ".join(f"{name}.pub" for name in names)
        (self.project.root / POLICY_FILE).write_text(f"keys: [{files}]\nrequire: [sbom, provenance]\n")
        return [private for private, _ in pairs]


@pytest.fixture
def team(do: Cli, copy: TinyProject) -> Iterator[Team]:
    with FakeRegistry() as fake:
        fake.lists_referrers = True
        edit(copy.recipe, smoke={"none": "a toy"}, registry={"host": fake.host, "repository": REPOSITORY})
        yield Team(do, copy, fake)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool | None], list[str]]:
    """``answer(YES)``: the user's answer to the question; None: nobody is there."""

    def given(yes: bool | None) -> list[str]:
        questions: list[str] = []

        def confirm(question: str, **options: object) -> bool:
            questions.append(question)
            if yes is None:
                raise click.Abort
            return yes

        monkeypatch.setattr(click, "confirm", confirm)
        return questions

    return given


# promote ------------------------------------------------------------------------------------------


def test_promote(team: Team) -> None:
    """The tags name the candidate; nothing is built, and no blob but the record is sent."""
    digest = team.candidate("one")
    assert (team.tag("candidate"), team.tag("latest")) == (digest, "")
    sent = team.fake.count("PUT", "/blobs/uploads/")
    done = team.do("promote", "-y", "--tag", "26.10", "--json")
    assert done.code == 0 and (team.tag("26.10"), team.tag("latest")) == (digest, digest)
    assert done.json["before"] == {"26.10": None, "latest": None} and done.json["moved"]
    assert done.json["tags"] == ["26.10", "latest"] and done.json["digest"] == digest
    assert team.fake.count("PUT", "/blobs/uploads/") <= sent + 2  # the record and its empty config


def test_dry_run(team: Team) -> None:
    """It shows what would move, writes nothing, and asks nobody."""
    digest = team.candidate("one")
    writes = team.fake.count("PUT") + team.fake.count("POST")
    done = team.do("promote", "--dry-run", "--tag", "26.10")
    assert done.code == 0 and f"  26.10: new -> {digest[:19]}\n" in done.out
    assert "smoke test: not tested: a toy" in done.out and "moved" not in done.err
    assert team.fake.count("PUT") + team.fake.count("POST") == writes
    assert not team.do("promote", "--dry-run", "--json").json["moved"]


@pytest.mark.parametrize(("yes", "last"), [(True, "moved 26.10, latest"), (False, "no tag was moved")])
def test_question(team: Team, answer: Callable[[bool | None], list[str]], yes: bool, last: str) -> None:
    """Without ``-y`` the user is asked; no is no error."""
    digest, questions = team.candidate("one"), answer(yes)
    done = team.do("promote", "--tag", "26.10")
    assert done.code == 0 and questions == ["Move the tags?"]
    assert done.err.splitlines()[-1] == last
    assert team.tag("latest") == (digest if yes else "")


@pytest.mark.parametrize("command", ["promote", "rollback"])
def test_nobody_answers(
    team: Team,
    answer: Callable[[bool | None], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    """In CI, without ``-y``: an error that names it, and not an interrupt."""
    team.release("one", "26.10"), team.release("two", "26.11"), team.candidate("three")
    answer(None)
    done = team.do(command, *(["--tag", "26.12"] if command == "promote" else []))
    assert done.code == 2 and "\nerror: there is no terminal to ask at\n  hint: agree" in done.err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert team.do(command, *(["--tag", "26.12"] if command == "promote" else [])).code == 130


def test_promoted_already(team: Team) -> None:
    """Without a key nothing is written. A key signs what it has signed before, and nothing else."""
    team.release("one", "26.10")
    records = team.artifacts(RELEASE)
    again = team.do("promote", "--tag", "26.10", "--json")
    assert again.code == 0 and not again.json["moved"] and "no tag was moved" in again.err
    assert "26.10: names it already" in team.do("promote", "--tag", "26.10").out
    assert team.artifacts(RELEASE) == records
    private, _ = make_pair(team.project.root, "k")
    signed = team.do("promote", "-y", "--tag", "26.10", "--sign", private)
    assert signed.code == 15 and "has no signature by this key" in signed.err
    assert team.artifacts(RELEASE) == records


def test_signed_lately(team: Team) -> None:
    """What the key signed a few days ago is not signed again, nobody is asked, and the output says so."""
    (key,) = team.policy("release")
    team.release("one", "26.10", "--sign", key)
    records = team.artifacts(RELEASE)
    again = team.do("promote", "--tag", "26.10", "--sign", key, "--json")
    assert again.code == 0 and "no tag was moved; signed a few days ago, and not again" in again.err
    assert (again.json["action"], again.json["signed"]) == ("promote", False)
    assert team.artifacts(RELEASE) == records
    other = team.do("promote", "-y", "--tag", "26.11", "--sign", key, "--json")
    assert other.json["signed"] and other.err.endswith("moved 26.11; signed\n")


def test_second_of_a_month(team: Team) -> None:
    """The dated tag is a record: refused, with the option that moves ``latest`` alone."""
    first = team.release("one", "26.11")
    second = team.candidate("two")
    refused = team.do("promote", "-y", "--tag", "26.11")
    assert refused.code == 12 and ":26.11 exists and is" in refused.err and "--only latest" in refused.err
    assert team.tag("latest") == first
    assert team.do("promote", "-y", "--only", "latest").code == 0
    assert (team.tag("26.11"), team.tag("latest")) == (first, second)
    assert team.do("promote", "-y", "--tag", "26.11", "--force").code == 0
    assert team.tag("26.11") == second


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--from", "edge"], 9, "there is no {host}/tests/tiny:edge"),
        (["--from", "sha256:12"], 2, "'sha256:12' is neither a tag nor a digest"),
        (["--only", "edge"], 2, "--only edge: tiny has no such tag"),
        (["--tag", "26/11"], 2, "--tag '26/11' is not a tag"),
        (["--to", "oci:away"], 9, "there is no oci:"),
        (["other"], 3, "no target named 'other'"),
    ],
)
def test_wrong_words(team: Team, args: list[str], code: int, message: str) -> None:
    team.candidate("one")
    done = team.do("promote", "-y", *args)
    assert done.code == code and message.format(host=team.fake.host) in done.err


@pytest.mark.parametrize("command", ["promote", "rollback"])
def test_no_image(team: Team, command: str) -> None:
    """Nothing was published yet: exit code 9, and what to do first."""
    done = team.do(command, "-y", "--json")
    assert done.code == 9 and done.json["code"] == 9
    assert "publish" in done.json["hint"]


def test_without_report(team: Team) -> None:
    """The recipe has a test now, and the attached report says that there was none."""
    team.candidate("one")
    edit(team.project.recipe, smoke="torch")
    done = team.do("promote", "-y")
    assert done.code == 11 and "the verdict is none, not pass; no tag was moved" in done.err
    assert "builder publish tiny --only candidate --smoke always" in done.err and team.tag("latest") == ""


def test_candidate_goes_back(team: Team) -> None:
    """An older image may become the candidate again, and no rollback of other tags is proposed."""
    edit(team.project.recipe, registry={"host": team.fake.host, "repository": REPOSITORY})
    first = team.candidate("one")
    team.candidate("two")
    edit(team.project.recipe, labels={"image": "one"})
    done = team.do("publish", "--only", "candidate")
    assert done.code == 0 and "to undo" not in done.out and team.tag("candidate") == first
    assert "creation time" not in done.err


# rollback -----------------------------------------------------------------------------------------


def test_rollback(team: Team) -> None:
    """``latest`` goes back; the dated tag, which named nothing before, stays, and the output says so."""
    one, two = team.release("one", "26.10"), team.release("two", "26.11")
    done = team.do("rollback", "-y", "--json")
    assert done.code == 0 and done.json["before"] == {"latest": two}
    assert (team.tag("latest"), team.tag("26.11"), team.tag("26.10")) == (one, two, one)
    assert team.tag("candidate") == two


def test_rollback_shown(team: Team) -> None:
    one, two = team.release("one", "26.10"), team.release("two", "26.11")
    done = team.do("rollback", "--dry-run")
    assert (
        done.code == 0 and f"  latest: {two[:19]} -> {one[:19]}\n  26.11 stays: it named no image" in done.out
    )
    assert team.tag("latest") == two


def test_rollback_twice(team: Team) -> None:
    """The second one goes back further, the third one finds nothing before the first release."""
    one, _, _ = (team.release(*names) for names in (("one", "26.10"), ("two", "26.11"), ("three", "26.12")))
    assert [team.do("rollback", "-y").code for _ in range(3)] == [0, 0, 2]
    assert team.tag("latest") == one
    last = team.do("rollback", "-y")
    assert "no release record of" in last.err and "--back-to TAG" in last.err


def test_back_to(team: Team) -> None:
    """Any image of the repository, by tag or digest; dated tags stay."""
    one, two, three = (
        team.release(*names) for names in (("one", "26.10"), ("two", "26.11"), ("three", "26.12"))
    )
    assert team.do("rollback", "-y", "--back-to", "26.10").code == 0 and team.tag("latest") == one
    assert team.do("rollback", "-y", "--back-to", two).code == 0 and team.tag("latest") == two
    assert team.tag("26.12") == three
    assert team.do("rollback", "-y", "--back-to", "25.01").code == 9


def test_after_publish(team: Team) -> None:
    """``publish`` without policy and key writes the record, too; its report names the command to undo it."""
    edit(team.project.recipe, labels={"image": "one"})
    first = team.do("publish", "--tag", "26.10", "--json").json["digest"]
    edit(team.project.recipe, labels={"image": "two"})
    done = team.do("publish", "--tag", "26.11")
    undo = f"builder rollback tiny --to {team.fake.host}/{REPOSITORY}"
    assert undo in " ".join(done.out.split()) and team.artifacts(RELEASE) == 2
    assert team.do(*undo.split()[1:], "-y").code == 0 and team.tag("latest") == first


def test_tag_of_others(team: Team) -> None:
    """A tag that somebody has moved to a third image since the release stays theirs."""
    tags = {"host": team.fake.host, "repository": REPOSITORY, "tags": ["latest", "edge"]}
    edit(team.project.recipe, registry=tags)
    one, _ = team.release("one", "26.10"), team.release("two", "26.11")
    three = team.candidate("three")
    assert team.do("promote", "-y", "--only", "edge").code == 0
    done = team.do("rollback", "-y")
    assert done.code == 0 and f"edge stays: it names another image now, {three[:19]}" in done.out
    assert (team.tag("latest"), team.tag("edge")) == (one, three)


def test_no_record(team: Team) -> None:
    """An image of another tool, or of an older builder: no record says what was before."""
    one = team.release("one", "26.10")
    team.fake.manifests[REPOSITORY] = {
        ref: entry
        for ref, entry in team.fake.manifests[REPOSITORY].items()
        if json.loads(entry[0]).get("artifactType") != RELEASE
    }
    done = team.do("rollback", "-y")
    assert done.code == 2 and f"no release record of {team.fake.host}/{REPOSITORY}@{one}" in done.err


def test_not_whole(team: Team) -> None:
    """An image whose blobs were deleted gets no tag."""
    one, two = team.release("one", "26.10"), team.release("two", "26.11")
    layer = json.loads(team.fake.manifests[REPOSITORY][one][0])["layers"][-1]
    del team.fake.blobs[REPOSITORY][layer["digest"]]
    done = team.do("rollback", "-y")
    assert done.code == 8 and "is not whole: 1 blobs are gone" in done.err and team.tag("latest") == two


# with a policy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["promote"], ["rollback"], ["publish"]])
def test_key_is_needed(team: Team, command: list[str]) -> None:
    """A policy makes signatures mandatory: without its key nothing is sent."""
    (key,) = team.policy("release")
    team.candidate("one", "--sign", key)
    other, _ = make_pair(team.project.root, "other")
    words = command if command == ["publish"] else [*command, "-y"]
    writes = team.fake.count("PUT")
    done = team.do(*words)
    assert done.code == 2 and f"{POLICY_FILE} accepts signed images only, and no key was given" in done.err
    done = team.do(*words, "--sign", other)
    assert done.code == 2 and f"{POLICY_FILE} does not name the public key of --sign" in done.err
    assert "sign with a key of it: release.pub" in done.err and team.fake.count("PUT") == writes


def test_refused_before_build(team: Team) -> None:
    """Without a key, or without the test that the policy requires, nothing is built."""
    (key,) = team.policy("release")
    (team.project.root / POLICY_FILE).write_text("keys: [release.pub]\n")
    team.project.lock.unlink()
    untested = team.do("publish", "--sign", key)
    assert untested.code == 2 and "requires a smoke test, and target tiny has none" in untested.err
    assert team.do("publish").code == 2 and not team.project.lock.exists()
    assert team.do("publish", "--no-tags").code == 0, "nothing is released"


def test_variable(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of BUILDER_SIGN_KEY; the output says that it signed."""
    (key,) = team.policy("release")
    monkeypatch.setenv("BUILDER_SIGN_KEY", str(key))
    done = team.do("publish", "--tag", "26.10")
    assert done.code == 0 and "\n  signed\n" in f"{done.out}\n"
    assert team.do("verify", "tiny:26.10").code == 0


def unsigned(team: Team) -> Result:
    """Promote an image that was published before there was a policy."""
    team.candidate("one")
    (key,) = team.policy("release")
    return team.do("promote", "-y", "--sign", key)


def test_unsigned_candidate(team: Team) -> None:
    done = unsigned(team)
    assert done.code == 15 and "is refused: signature: no signature of builder by a key" in done.err
    assert "see all checks: builder verify" in done.err and team.tag("latest") == ""


def test_new_key(team: Team) -> None:
    """What is in use is signed again by the new key; then the old one is not needed."""
    old, new = team.policy("old", "new")
    one = team.release("one", "26.10", "--sign", old)
    for tag in ("26.10", "latest"):
        words = ["--from", tag, "--tag", "26.10", "--only", tag, "--sign", new]
        assert team.do("promote", "-y", *words).code == 0
    (team.project.root / POLICY_FILE).write_text("keys: [new.pub]\nrequire: [sbom]\n")
    assert team.do("verify").code == team.do("verify", "tiny:26.10").code == 0
    assert team.tag("latest") == one


def test_layout(team: Team, tmp_path: Path) -> None:
    """A layout holds no signatures; tags move in it all the same."""
    to = ["--to", f"oci:{tmp_path / 'there'}"]
    team.candidate("one", *to)
    private, _ = make_pair(team.project.root, "k")
    refused = team.do("promote", "-y", *to, "--sign", private)
    assert refused.code == 2 and "is an OCI layout, which holds no signatures" in refused.err
    assert team.do("promote", "-y", *to, "--tag", "26.10").code == 0
    team.candidate("two", *to)
    assert team.do("promote", "-y", *to, "--tag", "26.11").code == 0
    assert team.do("rollback", "-y", *to).code == 0
