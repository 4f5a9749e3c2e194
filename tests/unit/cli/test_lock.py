"""``builder lock``: new, fresh and stale locks, and environments that cannot be solved."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from builder.core.store.blobs import Store
from builder.formats.oci.layout import read_layout, write_layout
from builder.lock.file import read_lock
from tests.support.channel import index_channel, make_package
from tests.support.cli import Cli
from tests.support.image_kit import image, layer, member
from tests.support.project import TinyProject, edit


def test_lock_and_check(do: Cli, tiny: TinyProject) -> None:
    missing = do("lock", "--check", "--json")
    assert missing.code == 4 and missing.json[0]["reasons"] == [f"{tiny.lock} does not exist"]
    made = do("lock", "--json")
    assert made.code == 0 and made.json[0]["packages"] == {"conda": 9, "pip": 1}
    assert made.json[0]["base"].startswith("sha256:")
    before = tiny.lock.read_bytes()
    checked = do("lock", "tiny", "--check")
    assert checked.code == 0 and "tiny: fresh" in checked.out
    tiny.environment.write_text(tiny.environment.read_text().replace("  - greeter\n", "  - small1\n"))
    stale = do("lock", "tiny", "--check", "--json")
    (reason,) = stale.json[0]["reasons"]
    assert stale.code == 4 and not stale.json[0]["fresh"]
    assert reason.startswith("conda specs changed: now with small1, without greeter")
    assert tiny.lock.read_bytes() == before, "--check writes nothing"


def test_stale_lock(do: Cli, copy: TinyProject) -> None:
    """Commands that need a lock refuse a stale one with the reason."""
    edit(copy.recipe, virtual_packages={"__glibc": "2.28"})
    for command in (
        ["build", "tiny"],
        ["smoke", "tiny"],
        ["publish", "tiny", "--to", "oci:there"],
    ):
        result = do(*command)
        assert result.code == 4 and f"{copy.lock} is stale: virtual packages changed" in result.err, command
        assert "hint: builder lock tiny" in result.err
    assert not (copy.root / "there").exists()


def test_undeclared_gpu(do: Cli, tiny: TinyProject, tmp_path: Path) -> None:
    """The hint is the virtual package to declare; with it, locking needs no GPU on this machine."""
    make_package(tmp_path / "gpu", "fast", "1.0", depends=["__cuda >=12"])
    index_channel(tmp_path / "gpu")
    edit(tiny.environment, channels=[(tmp_path / "gpu").as_uri()], dependencies=["fast"])
    result = do("lock", "tiny")
    assert (
        result.code == 5
        and "__cuda" in result.err
        and f'add to {tiny.recipe}: virtual_packages: {{__cuda: "12"}}' in result.err
    )
    edit(tiny.recipe, virtual_packages={"__cuda": "12.4"})
    assert do("lock", "tiny").code == 0, "declared it is there, on a builder without any GPU"


def test_lock_of_another_tool(do: Cli, copy: TinyProject) -> None:
    """It is checked and built from, but not overwritten."""
    foreign = copy.root / "theirs.yml"
    copy.lock.rename(foreign)
    edit(copy.recipe, lock="theirs.yml")
    assert do("lock", "tiny", "--check").code == 0
    refused = do("lock", "tiny")
    assert refused.code == 4 and "which another tool made" in refused.err
    assert do("lock").code == 0, "all targets: those that are locked here"
    assert do("build", "tiny").code == 0
    edit(copy.recipe, lock="nowhere.yml")
    gone = do("build", "tiny")
    assert gone.code == 4 and "nowhere.yml does not exist" in gone.err


def test_update_of_unknown_package(do: Cli, copy: TinyProject) -> None:
    result = do("lock", "tiny", "--update", "greter")
    assert (
        result.code == 2
        and "the lock has no such package" in result.err
        and "did you mean greeter?" in result.err
    )
    copy.lock.unlink()
    assert "no lock file to update" in do("lock", "tiny", "--update", "greeter").err


def test_update_base(do: Cli, copy: TinyProject) -> None:
    """A base whose tag moved is refused until ``--update-base`` pins it again."""
    before = do("build", "tiny", "--json").json
    store = Store(copy.root / "s")
    write_layout(image(store, layer(store, member("etc/new", b"new\n"))), copy.root / "base", "latest", store)
    refused = do("build", "tiny")
    assert (
        refused.code == 8
        and before["base"]["digest"][:19] in refused.err
        and "builder lock --update-base" in refused.err
    )
    packages = do("lock", "tiny", "--update-base", "--json").json[0]
    assert packages["base"] != before["base"]["digest"]
    assert do("build", "tiny", "--json").json["base"]["digest"] == packages["base"]


def created(project: TinyProject) -> str:
    """The creation time of the image in ``dist/``."""
    image = read_layout(project.root / "dist", "tiny")
    config = json.loads(image.config)
    assert config["history"][-1]["created"] == config["created"]
    return config["created"]


def test_date(do: Cli, copy: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locking again returns the same bytes. The image is as old as its lock; SOURCE_DATE_EPOCH wins."""
    before, text = read_layout(copy.root / "dist", "tiny"), copy.lock.read_bytes()
    assert do("lock", "tiny").code == 0 and copy.lock.read_bytes() == text
    assert created(copy) == read_lock(copy.lock).record.created
    assert do("build", "tiny", "--json").json["digest"] == before.digest
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    do("build", "tiny")
    assert created(copy) == "2001-09-09T01:46:40Z"


def test_months(do: Cli, copy: TinyProject) -> None:
    """With ``exclude_newer: month`` a lock names the month that it was made in, and stays fresh after it."""
    do("build", "tiny")
    layers = [layer.descriptor.digest for layer in read_layout(copy.root / "dist", "tiny").layers]
    edit(copy.recipe, conda={"exclude_newer": "month"})
    assert "exclude_newer changed" in do("lock", "tiny", "--check").out
    assert do("build", "tiny").code == 4
    before = datetime.now(UTC)
    assert do("lock", "tiny").code == 0
    solved = read_lock(copy.lock).record.solved_before
    assert solved in [f"{now:%Y-%m}-01T00:00:00Z" for now in (before, datetime.now(UTC))]
    copy.lock.write_text(copy.lock.read_text().replace(solved, "2025-02-01T00:00:00Z"))
    assert do("lock", "tiny", "--check").code == 0, "a lock of an earlier month"
    assert do("build", "tiny").code == 0 and created(copy) == "2025-02-01T00:00:00Z"
    now = [layer.descriptor.digest for layer in read_layout(copy.root / "dist", "tiny").layers]
    assert now[:-1] == layers[:-1], "the date is in no layer but that with the lock file"


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_lock_of_conda_lock(do: Cli, copy: TinyProject, options: tuple[str, ...]) -> None:
    """It is checked, also without --check: what is no lock is not up to date."""
    text = copy.lock.read_text()
    (copy.root / "conda-lock.yml").write_text(text)
    edit(copy.recipe, lock="conda-lock.yml")
    assert "tiny: fresh" in do("lock", *options).out
    (copy.root / "conda-lock.yml").write_text("nonsense: 1\n")
    checked = do("lock", *options)
    assert checked.code == 4 and "not a lock file of conda-lock" in checked.err
