"""Which changes make a lock stale, and what the reason says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from builder.core.errors import ConfigError, LockError
from builder.core.model import Lock, LockedBase, LockedPackage, LockRecord
from builder.lock.config.recipe import Recipe
from builder.lock.file import read_lock, write_lock
from builder.lock.inputs import (
    Inputs,
    content_hash,
    cutoff,
    glibc_of,
    recorded_inputs,
    require_sha256,
    stale_reasons,
    virtual_packages,
    without_sha256,
)

ENVIRONMENT = """\
channels:
  - first
  - second
dependencies:
  - python=3.11
  - zlib  # [linux]
  - pyobjc  # [osx]
  - pip:
    - --extra-index-url https://user:secret@index.example/simple
    - numpy
"""


def recipe(root: Path, **values) -> Recipe:
    base = {
        "name": "t",
        "base": "debian:bookworm",
        "environment": "environment.yml",
        "root": root,
        "source": root / "t.yaml",
    }
    return Recipe.model_validate({**base, **values})


def package(name: str, manager="conda") -> LockedPackage:
    return LockedPackage(
        name, "1", manager, "linux-64", f"https://host.example/linux-64/{name}-1-0.conda", "a" * 64, "b" * 32
    )


@pytest.fixture
def locked(tmp_path) -> Lock:
    (tmp_path / "environment.yml").write_text(ENVIRONMENT)
    r = recipe(tmp_path)
    values = recorded_inputs(Inputs.read(r))
    lock = Lock(
        packages=tuple(package(n) for n in ("python", "zlib", "pip")),
        platforms=("linux-64",),
        content_hash={"linux-64": content_hash(values)},
        record=LockRecord(values),
        base=LockedBase("debian:bookworm", "sha256:" + "0" * 64),
    )
    return write_lock(lock, tmp_path / "t.lock.yml")


def test_fresh(tmp_path, locked, settings):
    assert stale_reasons(Inputs.read(recipe(tmp_path)), locked) == []
    assert stale_reasons(Inputs.read(recipe(tmp_path)), read_lock(tmp_path / "t.lock.yml")) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  - python=3.11\n  - zlib  # [linux]\n", "  - zlib\n  -   python=3.11\n"),
        ("pyobjc", "another"),
        ("user:secret@", "user:other@"),
    ],
)
def test_irrelevant_changes(tmp_path, locked, settings, old, new):
    """Changes of the file that do not make a lock stale."""
    assert old in ENVIRONMENT
    (tmp_path / "environment.yml").write_text(ENVIRONMENT.replace(old, new))
    assert stale_reasons(Inputs.read(recipe(tmp_path)), locked) == []


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("python=3.11", "python=3.12", "conda specs changed: now with python=3.12, without python=3.11"),
        (
            "  - first\n  - second\n",
            "  - second\n  - first\n",
            "channels changed: now in the order second, first",
        ),
        (
            "index.example",
            "other.example",
            "pip options changed: now with extra_index_urls https://other.example/simple",
        ),
    ],
)
def test_environment_changes(tmp_path, locked, settings, old, new, reason):
    assert old in ENVIRONMENT
    (tmp_path / "environment.yml").write_text(ENVIRONMENT.replace(old, new))
    reasons = stale_reasons(Inputs.read(recipe(tmp_path)), locked)
    assert len(reasons) == 1 and reasons[0].startswith(reason)
    assert "secret" not in reasons[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"virtual_packages": {"__cuda": "12.4"}}, "virtual packages changed: now with __cuda 12.4"),
        (
            {"virtual_packages": {"__glibc": "2.31"}},
            "virtual packages changed: now with __glibc 2.31, without __glibc 2.36",
        ),
        ({"conda": {"exclude_newer": "2026-07-01"}}, "exclude_newer changed from none to 2026-07-01"),
        ({"base": "docker://h/debian:12"}, "base changed from debian:bookworm to docker://h/debian:12"),
        ({"platform": "linux-aarch64"}, "the lock is for linux-64, the recipe for linux-aarch64"),
    ],
)
def test_recipe_changes(tmp_path, locked, settings, change, reason):
    assert stale_reasons(Inputs.read(recipe(tmp_path, **change)), locked) == [reason]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": [1]}'])
def test_records_that_are_damaged(tmp_path, locked, settings, text):
    """What a lock says about its inputs may be anything."""
    old = replace(locked, record=LockRecord(dict.fromkeys(locked.record.inputs, text)))
    reasons = stale_reasons(Inputs.read(recipe(tmp_path)), old)
    assert reasons and all("changed from" in reason and len(reason) < 2000 for reason in reasons)


def test_lock_of_conda_lock(tmp_path, settings):
    """A lock of conda-lock is checked for the names of the environment file."""
    (tmp_path / "environment.yml").write_text(ENVIRONMENT)
    lock = Lock(tuple(package(n) for n in ("python", "zlib", "pip", "numpy")), ("linux-64", "osx-64"))
    assert stale_reasons(Inputs.read(recipe(tmp_path)), lock) == []
    lock = Lock(tuple(package(n) for n in ("python", "pip", "numpy")), ("linux-64", "osx-64"))
    reasons = stale_reasons(Inputs.read(recipe(tmp_path)), lock)
    assert reasons == [f"{tmp_path}/environment.yml:6: zlib is not in the lock"]
    (tmp_path / "environment.yml").unlink()
    assert stale_reasons(Inputs.read(recipe(tmp_path)), lock) == []


def test_md5(tmp_path, settings):
    """A lock with MD5 alone is reported at each build, and nothing is published from it."""
    good = package("zlib")
    weak = [replace(package(name), sha256=None) for name in "abcd"]
    other = replace(weak[0], platform="osx-64")
    fine, bad = Lock((good, other), ("linux-64",)), Lock((good, *weak), ("linux-64",))
    assert without_sha256(recipe(tmp_path), fine) == ""
    require_sha256(recipe(tmp_path), fine)
    said = "4 packages of the lock have an MD5 and no SHA-256: a, b, c, ..."
    assert without_sha256(recipe(tmp_path), bad) == said
    with pytest.raises(LockError, match=f"environment.t.lock.yml: {said}"):
        require_sha256(recipe(tmp_path), bad)


def test_base_of_a_lock_of_another_tool(tmp_path, settings):
    """A lock made elsewhere never replaces the recipe's base."""
    evil = LockedBase("docker://host.example/evil:1", "sha256:" + "0" * 64)
    lock = Lock((package("python"),), ("linux-64",), base=evil)
    assert stale_reasons(Inputs.read(recipe(tmp_path)), lock) == [
        "base changed from docker://host.example/evil:1 to debian:bookworm"
    ]


def test_virtual_packages(tmp_path):
    """Virtual packages come from the recipe and defaults, never from this machine."""
    assert virtual_packages(recipe(tmp_path, base="oci:base")) == {
        "__unix": "0",
        "__linux": "4.18",
        "__glibc": "2.28",
        "__archspec": "1=x86_64",
    }
    told = virtual_packages(
        recipe(tmp_path, platform="linux-aarch64", virtual_packages={"__cuda": "12.4", "__glibc": "2.17"})
    )
    assert told["__cuda"] == "12.4" and told["__glibc"] == "2.17" and told["__archspec"] == "1=aarch64"


@pytest.mark.parametrize(
    ("base", "glibc"),
    [
        ("debian:bookworm", "2.36"),
        ("debian:sid", "2.28"),
        ("docker://docker.io/library/debian:bookworm-slim@sha256:" + "0" * 64, "2.36"),
        ("docker://host:5000/mirror/ubuntu:22.04", "2.35"),
    ],
)
def test_glibc_of_the_base(tmp_path, base, glibc):
    """The default of __glibc is that of a known base; the recipe's own value wins."""
    assert virtual_packages(recipe(tmp_path, base=base))["__glibc"] == glibc
    told = recipe(tmp_path, base=base, virtual_packages={"__glibc": "2.17"})
    assert virtual_packages(told)["__glibc"] == "2.17"


def test_glibc_of_a_lock(tmp_path):
    """A base that was read when it was locked is not read again; the recipe's own value wins."""
    (tmp_path / "environment.yml").write_text(ENVIRONMENT)
    inputs = Inputs.read(recipe(tmp_path, base="oci:base"))
    found = inputs.on_base("2.41")
    assert virtual_packages(found.recipe)["__glibc"] == "2.41"
    lock = Lock((), ("linux-64",), record=LockRecord(recorded_inputs(found)))
    assert glibc_of(lock) == "2.41" and stale_reasons(inputs, lock) == []
    before = replace(lock, record=LockRecord(recorded_inputs(inputs)))
    assert glibc_of(before) == "" and stale_reasons(inputs, before) == [], "a lock of an earlier builder"
    told = Inputs.read(recipe(tmp_path, base="oci:base", virtual_packages={"__glibc": "2.17"}))
    assert told.on_base("2.41") is told
    assert stale_reasons(told, lock) == [
        "virtual packages changed: now with __glibc 2.17, without __glibc 2.41",
        "glibc of the base changed",
    ]


def test_cutoff():
    assert cutoff("2026-07-01", "x") == datetime(
        2026, 7, 2, tzinfo=UTC
    )  # the end of that day, wherever this machine is
    assert cutoff("2026-07-01T12:00:00+02:00", "x") == datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert cutoff("2026-07-01T12:00:00", "x") == datetime(2026, 7, 1, 12, tzinfo=UTC)
    now = datetime(2026, 7, 8, tzinfo=UTC)
    assert cutoff("7d", "x", now) == cutoff("1w", "x", now) == datetime(2026, 7, 1, tzinfo=UTC)
    assert cutoff(None, "x") is None and cutoff("", "x") is None
    for wrong in ("yesterday", "99999w", "2026-13-01", "01.07.2026"):
        with pytest.raises(ConfigError, match="recipe.yaml: exclude-newer"):
            cutoff(wrong, "recipe.yaml")


def with_pip(root: Path, *lines: str) -> Inputs:
    text = ENVIRONMENT + "".join(f"    - {line}\n" for line in lines)
    (root / "environment.yml").write_text(text)
    return Inputs.read(recipe(root))


def test_sources(tmp_path, locked, settings):
    """Each has a reason of its own; without sources a lock has no key for them."""
    assert not [key for key in locked.record.inputs if "sources" in key or "constraints" in key]
    (tmp_path / "c.txt").write_text("scipy<2\n")
    changed = with_pip(tmp_path, "git+https://me:hunter2@h.example/t@v1", "-c c.txt", "--no-binary numpy")
    assert stale_reasons(changed, locked) == [
        "pip options changed: now with no_binary numpy",
        "source packages changed: now with git+https://h.example/t@v1",
        "constraints changed: now with scipy<2",
    ]
    values = recorded_inputs(changed)
    lock = replace(locked, record=LockRecord(values))
    assert stale_reasons(changed, lock) == []
    assert stale_reasons(with_pip(tmp_path), lock)[1:] == [
        "source packages changed: without git+https://h.example/t@v1",
        "constraints changed: without scipy<2",
    ]
