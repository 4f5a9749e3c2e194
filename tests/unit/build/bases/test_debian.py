"""``debian:`` bases: when they are made, and what happens when they cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.build.bases import debian_mirror, mmdebstrap
from builder.build.bases.image import WantedBase
from builder.build.bases.mmdebstrap import DebianBase
from builder.build.bases.resolve import open_base, resolve_base
from builder.core.errors import ImageError
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.net import apt
from tests.support.image_kit import layer, member, settings
from tests.support.images import make_test_image


def test_offline(store: Store, tmp_path: Path) -> None:
    """Offline, a base that was never made is an error."""
    with pytest.raises(ImageError, match="is not in the cache, and this build is offline"):
        resolve_base(
            "debian:bookworm", WantedBase("amd64"), Workspace(settings(tmp_path, offline=True), store)
        )


def pretend(monkeypatch: pytest.MonkeyPatch, state: list[Any]) -> list[str]:
    """Replaces mmdebstrap and a mirror in ``state[0]``; returns the packages of each base made."""
    calls: list[str] = []

    def make(base: DebianBase, work: Workspace) -> str:
        calls.append(",".join(base.include))
        one = layer(work.store, member("etc/mirror", str(state[0]).encode()))
        made = make_test_image([one])
        work.store.add(made.config)
        return work.store.add(made.manifest)

    monkeypatch.setattr(apt, "apt_sources", lambda suite: "")
    monkeypatch.setattr(debian_mirror, "mirror_state", lambda *a: state[0])
    monkeypatch.setattr(mmdebstrap, "make_debian_base", make)
    return calls


def test_made_again_when_mirror_moves(store: Store, given: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base is made once, and again when the mirror has changed."""
    state: list[Any] = ["monday"]
    calls = pretend(monkeypatch, state)
    first = resolve_base("debian:bookworm", WantedBase("amd64"), Workspace(given, store))
    assert resolve_base(
        "debian:bookworm", WantedBase("amd64"), Workspace(given, store)
    ) == first and calls == ["ca-certificates"]
    resolve_base("debian:bookworm", WantedBase("amd64", base_packages=["git"]), Workspace(given, store))
    assert calls == ["ca-certificates", "ca-certificates,git"]
    state[0] = "tuesday"
    second = resolve_base("debian:bookworm", WantedBase("amd64"), Workspace(given, store))
    assert second != first and len(calls) == 3
    state[0] = None  # the mirror does not answer: what was made last
    assert (
        resolve_base("debian:bookworm", WantedBase("amd64"), Workspace(given, store)) == second
        and len(calls) == 3
    )
    assert open_base(first, WantedBase("amd64"), Workspace(given, store)).digest == first.digest, (
        "still in the store"
    )
    assert len(calls) == 3


def test_pinned_base_is_missing(
    store: Store, given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pinned base that the mirror cannot make any more is an error."""
    state: list[Any] = ["monday"]
    pretend(monkeypatch, state)
    locked = resolve_base("debian:bookworm", WantedBase("amd64"), Workspace(given, store))
    fresh = Store(tmp_path / "another-machine")
    assert open_base(locked, WantedBase("amd64"), Workspace(given, fresh)).digest == locked.digest
    state[0] = "tuesday"
    with pytest.raises(
        ImageError, match=f"pins debian:bookworm as {locked.digest}, but .* have changed"
    ) as caught:
        open_base(locked, WantedBase("amd64"), Workspace(given, Store(tmp_path / "third")))
    assert "builder lock --update-base" in caught.value.hint
