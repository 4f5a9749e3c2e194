"""Records, reports and policy files of others, in forms that no command writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import ConfigError, ImageError
from builder.core.store.blobs import Store
from builder.deliver.publishing.destination import LayoutDestination
from builder.deliver.publishing.release import RELEASE, ReleaseRecord
from builder.deliver.publishing.verify import Subject, check_report
from builder.formats.registry.referrers import Attached, AttachedFile
from builder.lock.config.policy import find_policy, has_policy

DIGEST = "sha256:" + "a" * 64
RECORD: dict[str, Any] = {
    "image": DIGEST,
    "target": "t",
    "created": "2026-11-21T08:00:00Z",
    "action": "publish",
    "tags": {"latest": None},
}


def read(data: bytes, subject: str = DIGEST, kind: str = RELEASE) -> ReleaseRecord | None:
    file = AttachedFile("release.json", RELEASE, data)
    return ReleaseRecord.read(Attached(DIGEST, kind, (file,), {}, subject), DIGEST)


def test_record() -> None:
    """A record counts for the image that it names, and that its artifact names."""
    data = json.dumps(RECORD).encode()
    assert read(data) and not read(data, "sha256:" + "b" * 64) and not read(data, kind="text/plain")


@pytest.mark.parametrize(
    "change",
    [
        {"tags": {tag: None}}
        for tag in ("", "a b", "a\n", "\x00", "../x", "a/b", "a?b", "a@b", "-a", "x" * 129, "ü", "latest:1")
    ]
    + [
        {"image": "sha256:" + "b" * 64},
        {"image": "latest"},
        {"image": DIGEST.upper()},
        {"created": "2026-11-21T08:00:00"},
        {"created": "99999-01-01T00:00:00Z"},
        {"action": "delete"},
        {"tags": {"latest": "sha256:x"}},
        {"tags": {"latest": "26.10"}},
        {"tags": ["latest"]},
        {"attached": {"x": None}},
        {"attached": {"a/b": ""}},
    ],
    ids=str,
)
def test_odd_records(change: dict[str, Any]) -> None:
    """Another image's, a time without a zone, and values of other forms."""
    assert read(json.dumps(RECORD | change).encode()) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 9999, b"null", b"latest"])
def test_garbage(data: bytes) -> None:
    assert read(data) is None


ODD: tuple[Any, ...] = (None, 7, [], ["pass"], {}, {"digest": []}, True)


@pytest.mark.parametrize("odd", ODD, ids=str)
@pytest.mark.parametrize("key", ["verdict", "image", "expect", "image.digest", "expect.gpu"])
def test_odd_reports(key: str, odd: Any, tmp_path: Path) -> None:
    subject = Subject(LayoutDestination(tmp_path, Store(tmp_path)), DIGEST, DIGEST)
    value: dict[str, Any] = {"verdict": "pass", "image": {"digest": DIGEST}, "expect": {"gpu": "none"}}
    assert check_report(subject, value, "none").startswith("pass")
    name, _, inner = key.partition(".")
    value[name] = {inner: odd} if inner else odd
    with pytest.raises(ImageError):
        check_report(subject, value, "none")


@pytest.mark.parametrize("name", ["_policy.yaml", "_policy.yml"])
def test_policy_files(name: str, tmp_path: Path) -> None:
    """Recipes can end with .yml, and so can the policy; a link that leads nowhere is not "no policy"."""
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    assert not has_policy(tmp_path) and find_policy(tmp_path) is None
    (recipes / name).symlink_to("nowhere")
    assert has_policy(tmp_path)
    with pytest.raises(ConfigError):
        find_policy(tmp_path)
    (recipes / name).unlink()
    (recipes / name).write_text("keys: [a.pub]\n")
    found = find_policy(tmp_path)
    assert found and found.key_files == (recipes / "a.pub",)
