"""Sources in the metadata of a lock: written and read, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.model import WHEELS, Lock, LockedPackage, LockedSource, LockRecord
from builder.lock.request import SolveRequest
from builder.lock.solve import with_pinned_repositories
from builder.lock.sourcerecords import (
    locked_url,
    parse_sources,
    rendered_sources,
    with_sources,
)
from builder.lock.spec import Environment, SourceSpec
from tests.support.image_kit import recipe

GIT = LockedSource("git", "https://h.example/t", commit="c" * 40, tree="d" * 40, subdirectory="x", build="b")
REQUIRES = ("Hatch_vcs.x==0.4", "setuptools==1!80.9.0+cu1")
LOCAL = LockedSource("local", "libs/one", tree="e" * 64, describe="v1.2-0-gabc", requires=REQUIRES)
SDIST = LockedSource("sdist", "https://h.example/s-1.tar.gz", sha256="f" * 64)


def package(name: str, source: LockedSource | None, url: str = WHEELS) -> LockedPackage:
    return LockedPackage(name, "1", "pip", "linux-64", f"{url}{name}-1.whl", "a" * 64, source=source)


def test_round_trip() -> None:
    packages = (package("My_Tool", GIT), package("one", LOCAL), package("s", SDIST), package("plain", None))
    text = rendered_sources(packages)
    bare = [package(p.name, None) for p in packages]
    assert with_sources(bare, parse_sources(text)) == packages
    assert text == rendered_sources(reversed(packages))
    assert rendered_sources(bare) == "" and with_sources(bare, parse_sources("")) == tuple(bare)


def test_only_wheels_that_builder_built() -> None:
    (found,) = with_sources([package("s", None, "https://h.example/")], {"s": SDIST})
    assert found.source is None


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://me:hunter2@h.example/t", "https://h.example/t"),
        ("https://$TOKEN@h.example/t", "https://$TOKEN@h.example/t"),
        ("ssh://git@h.example/t", "ssh://git@h.example/t"),
        ("ssh://git:hunter2@h.example:22/t", "ssh://git@h.example:22/t"),
        ("libs/one", "libs/one"),
    ],
)
def test_locked_url(url: str, public: str) -> None:
    """ssh needs the user, which is no secret."""
    assert locked_url(url) == public == locked_url(public)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "hg"}, "one.kind: must be 'sdist', 'git', 'archive' or 'local'"),
        ({"url": ""}, "url is missing"),
        ({"describe": "v1\nnode: 2"}, "build or describe has a blank or a control character"),
        ({"requires": ["x"]}, "requires is not a list of NAME==VERSION"),
        ({"requires": ["x==1 --index-url=https://h.example"]}, "requires is not a list"),
        ({"requires": ["x==1\n-r /etc/passwd"]}, "requires is not a list"),
        ({"requires": ["-r==1"]}, "requires is not a list"),
        ({"requires": ["x==${HOME}"]}, "requires is not a list"),
        ({"subdirectory": "a/../../b"}, "subdirectory leads out of the source"),
        ({"kind": "git", "url": "ext::sh", "commit": "c" * 40}, "url is not that of a git repository"),
        ({"kind": "git", "url": "https://h.example/t", "commit": "main"}, "not a hash of git"),
        ({"kind": "archive", "url": "file:///etc/passwd"}, "neither on the web nor a path inside"),
        ({"kind": "sdist", "url": "https://h.example/x", "sha256": "F" * 64}, "sha256 is not 64 hex digits"),
    ],
)
def test_damage(change: dict[str, object], problem: str) -> None:
    item = {"kind": "local", "url": "libs/one", "tree": "e" * 64} | change
    with pytest.raises(ValueError, match=problem):
        parse_sources(json.dumps({"one": item}))


@pytest.mark.parametrize("text", ["{", "[]", '{"one": {}}', "[" * 5000])
def test_no_sources(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid JSON|must be|Field required"):
        parse_sources(text)


def test_pinned_repositories(settings) -> None:
    """--update of another package does not move a branch; a changed requirement does."""
    url = "https://host.example/tool.git"
    main = SourceSpec("git", None, url, "main")
    source = LockedSource("git", url, commit="c" * 40, tree="d" * 40)
    package = LockedPackage("tool", "1", "pip", "linux-64", "builder://wheels/tool", "1" * 64, source=source)
    request = SolveRequest(recipe(), Environment(Path(), sources=(main,)), settings, previous=[package])

    def pinned(asked: str, request: SolveRequest = request) -> SourceSpec:
        earlier = Lock((package,), ("linux-64",), record=LockRecord({"sources-asked": json.dumps([asked])}))
        return with_pinned_repositories(request, earlier).environment.sources[0]

    assert pinned(main.shown) == replace(main, revision="c" * 40)
    assert pinned(main.shown, replace(request, update=frozenset({"tool"}))) == main
    assert pinned(main.shown, replace(request, previous=[])) == main
    assert pinned("other") == main and with_pinned_repositories(request, None) == request
