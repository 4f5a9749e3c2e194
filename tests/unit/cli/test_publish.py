"""``builder publish``: destinations, tags that move or do not, and groups."""

from __future__ import annotations

from pathlib import Path

import pytest

import builder.cli
import builder.core.errors
import builder.core.store.files
from tests.support.cli import Cli, ask, pass_smoke, tags
from tests.support.fakeregistry import FakeRegistry, Fault, Reply, Request
from tests.support.project import TinyProject, edit, whole

OLD, NEW = "sha256:" + "0" * 64, "sha256:" + "1" * 64


def test_group_with_failing_targets(do: Cli, three: TinyProject, tmp_path: Path) -> None:
    """All targets of the group are tried, and each failure has its own reason."""
    for name in ("tiny", "zwei"):
        pass_smoke(three, do("build", name, "--json").json["digest"])
    for command in (
        lambda *o: do("publish", "--group", "ml", *o).code,
        lambda *o: ask(three, ["--ml", "-y", *o]).exit_code,
    ):
        # nobody answers at the address: what counts is that all were tried, and each for its own reason
        assert command("--to", "127.0.0.1:9/") == 5
    result = do("publish", "--group", "ml", "--to", "127.0.0.1:9/")
    assert result.err.count("127.0.0.1:9") >= 2 and "3 of 3 targets failed: broken, tiny, zwei" in result.err


def test_shared_tag(do: Cli, three: TinyProject, tmp_path: Path) -> None:
    """Two targets cannot be published as one tag."""
    to = ["--to", f"oci:{tmp_path / 'there'}", "--tag", "26.11"]
    result = do("publish", "tiny", "zwei", *to)
    assert result.code == 2 and "--to HOST/" in result.err
    assert f"tiny and zwei would both be published as oci:{tmp_path / 'there'}:26.11" in result.err
    assert "would both be" in do("publish", "--group", "ml", *to).err
    with pytest.raises(builder.core.errors.UsageError, match="would both be"):
        ask(three, ["--ml", "-y", *to])
    edit(three.recipe.with_name("zwei.yaml"), registry={"repository": "tests/tiny"})
    result = do("publish", "tiny", "zwei", "--to", "127.0.0.1:9/")
    assert result.code == 2 and "published as 127.0.0.1:9/tests/tiny:" in result.err
    edit(three.recipe.with_name("zwei.yaml"), registry={"repository": "tests/tiny", "tags": ["zwei"]})
    assert do("publish", "tiny", "zwei", "--to", "127.0.0.1:9/").code != 2
    assert not (tmp_path / "there").exists()


def test_dry_run(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    there = tmp_path / "there"
    result = do("publish", "tiny", "--to", f"oci:{there}", "--dry-run", "--tag", "26.11", "--json")
    assert (
        result.code == 0
        and result.json["dry_run"]
        and result.json["tags"] == ["26.11", "latest"]
        and result.json["push"] is None
    )
    assert not there.exists()
    assert "tiny would be" in do("publish", "tiny", "--to", f"oci:{there}", "--dry-run").out


def test_dated_tag(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    """A dated tag moves to another image only with ``--force``; ``--only latest`` leaves it alone."""
    to = ["--to", f"oci:{tmp_path / 'there'}", "--tag", "26.11"]
    first = do("build", "tiny", "--json").json["digest"]
    pass_smoke(copy, first)
    assert do("publish", "tiny", *to, "--json").json["tags"] == ["26.11", "latest"]
    assert do("publish", "tiny", *to).code == 0, "the same image again is no move"
    edit(copy.recipe, labels={"changed": "yes"})
    second = do("build", "tiny", "--json").json["digest"]
    pass_smoke(copy, second)
    refused = do("publish", "tiny", *to)
    assert refused.code == 12 and ":26.11 exists and is" in refused.err and "--force" in refused.err
    assert set(tags(tmp_path / "there").values()) == {first}, "latest stays too"
    assert "to move latest alone: --only latest" in refused.err
    assert do("publish", "tiny", *to, "--only", "latest").code == 0
    assert tags(tmp_path / "there") == {"26.11": first, "latest": second}
    wrong = do("publish", "tiny", *to, "--only", "newest")
    assert wrong.code == 2 and "its tags are 26.11, latest" in wrong.err
    assert do("publish", "tiny", "--only", "latest", "--no-tags").code == 2
    assert "--no-tags tests nothing" in do("publish", "tiny", "--ab", "--no-tags").err
    forced = do("publish", "tiny", *to, "--force")
    assert forced.code == 0 and f"26.11 named {first} before" in " ".join(forced.out.split())
    assert tags(tmp_path / "there") == {"26.11": second, "latest": second}
    whole(tmp_path / "there", second)


def test_smoke_test_fails(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    """No tag moves when the smoke test does not pass."""
    result = do("publish", "tiny", "--to", f"oci:{tmp_path / 'there'}", "--runner", "userns")
    assert result.code in (10, 11), "no Python in the image, or no user namespaces on this host"
    assert not (tmp_path / "there").exists()
    if result.code == 11:
        assert "no tag was moved" in result.err and "--no-tags" in result.err


def test_untested(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    """The output says that the image was not tested, and why."""
    edit(copy.recipe, smoke={"none": "no [python] in it"})
    to = ["--to", f"oci:{tmp_path / 'there'}", "--tag", "26.11"]
    result = do("publish", "tiny", *to)
    assert result.code == 0 and "26.11, latest; not smoke-tested: no [python] in it" in result.out
    assert do("publish", "tiny", *to, "--json").json["untested"] == "no [python] in it"


def no_head(request: Request) -> Reply | None:
    return Reply(405) if request.method == "HEAD" and "/manifests/" in request.path else None


def absent_for_head(request: Request) -> Reply | None:
    return Reply(404) if request.method == "HEAD" and "/manifests/" in request.path else None


def moved(request: Request) -> Reply | None:
    """As a registry at another address: 307 for what is sent, once."""
    if request.method not in ("POST", "PUT") or "again" in request.query:
        return None
    query = "&".join(f"{key}={value[0]}" for key, value in request.query.items())
    return Reply(307, {"Location": f"{request.path}?again=1&{query}"})


@pytest.mark.parametrize("fault", [no_head, absent_for_head, moved])
def test_registry_without_a_feature(do: Cli, copy: TinyProject, fault: Fault) -> None:
    """Publish, publish again with another image, verify the tag and pull."""
    edit(copy.recipe, smoke={"none": "no [python] in it"})
    with FakeRegistry() as fake:
        fake.fault = fault
        to = ["--to", f"{fake.host}/team/tiny", "--tag", "26.11"]
        assert do("publish", "tiny", *to).code == 0
        edit(copy.recipe, labels={"changed": "yes"})
        assert do("publish", "tiny", *to).code == 12, "the tag names another image"
        done = do("publish", "tiny", *to, "--force", "--json")
        assert done.code == 0, done.err
        pulled = ["pull", "tiny", "--from", f"{fake.host}/team/tiny", "--if-changed", "--json"]
        first = do(*pulled)
        assert first.code == 0, first.err
        assert first.json["digest"] == done.json["digest"] and not do(*pulled).json["changed"]
