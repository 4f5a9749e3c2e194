"""The variables of URLs, and what a lock stores of a URL."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.core.errors import SolveError
from builder.core.model import Lock, LockedPackage, LockRecord
from builder.core.settings import Settings
from builder.lock.config.recipe import Recipe
from builder.lock.inputs import Inputs
from builder.lock.urls import checked_urls, named_url, public, unexpanded


def test_variables_of_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipe, environment file and pip's configuration name variables; without the file only the others."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip.example/$PIP_TOKEN")
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "root": tmp_path}
    recipe = Recipe.model_validate({**values, "pip": {"index_url": "https://i.example/$INDEX"}})
    found = ["https://i.example/$INDEX", "https://pip.example/$PIP_TOKEN"]
    assert sorted(Inputs.read(recipe).url_variables.sources) == found
    (tmp_path / "e.yml").write_text(
        "channels: ['https://c.example/t/$TOKEN/c', conda-forge]\ndependencies:\n- pip:\n"
        "  - --find-links $HOME/wheels\n  - --extra-index-url https://x.example/${EXTRA}\n"
    )
    more = ["https://c.example/t/$TOKEN/c", "https://x.example/${EXTRA}"]
    assert sorted(Inputs.read(recipe).url_variables.sources) == sorted([*found, *more])


def test_public() -> None:
    assert public("https://u:p@h.org/x.whl#sha256=ab") == "https://h.org/x.whl"
    assert public("https://h.org/x.whl?key=$TOKEN#a") == "https://h.org/x.whl?key=$TOKEN"
    with pytest.raises(SolveError, match=r"x\.whl\?key=\*\*\*: the query of this URL may hold a secret"):
        public("https://h.org/x.whl?key=S3CR3T")


def test_unexpanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value is replaced by its name; a literal user name with a dollar sign names nothing."""
    monkeypatch.setenv("TOKEN", "s3cr3t")
    monkeypatch.setenv("ml", "host")
    urls = ["https://h.org/$TOKEN/x", "https://robot$ml:pw@host"]
    assert unexpanded("s3cr3t", urls) == "${TOKEN}"
    assert unexpanded("https://h.org/s3cr3t/y https://host", urls) == "https://h.org/${TOKEN}/y https://host"


def settings(mirrors: str) -> Settings:
    return Settings.from_environment({"HOME": "/h", "BUILDER_MIRRORS": mirrors})


@pytest.mark.parametrize(
    ("url", "source", "named"),
    [
        ("https://h.org/s3cr3t/c/x.conda", "https://h.org/$TOKEN/c", "https://h.org/$TOKEN/c/x.conda"),
        ("https://h.org/s3cr3t/pool/x.conda", "https://h.org/$TOKEN/c", "https://h.org/$TOKEN/pool/x.conda"),
        (
            "https://h.org/t-s3cr3t-1/x.whl",
            "https://h.org/t-${TOKEN}-1/c",
            "https://h.org/t-${TOKEN}-1/x.whl",
        ),
        ("https://h.org/pool/x.conda", "https://h.org/$TOKEN/c", "https://h.org/pool/x.conda"),
        ("https://a.org/s3cr3ts/x.conda", "https://a.org/$TOKEN", "https://a.org/s3cr3ts/x.conda"),
        ("http://m/deep/x.conda", "", "https://deep.org/x.conda"),
        ("http://m/s3cr3t/pool/x.conda", "https://top.org/$TOKEN/c", "https://top.org/$TOKEN/pool/x.conda"),
        ("https://u:p@h.org/x.whl#sha256=ab", "", "https://h.org/x.whl"),
    ],
)
def test_named(url: str, source: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest beginning of a mirror or of a URL with variables is mapped, also outside of a channel."""
    monkeypatch.setenv("TOKEN", "s3cr3t")
    assert (
        named_url(url, settings("https://top.org=http://m https://deep.org=http://m/deep"), [source]) == named
    )


CHECKED = [
    ("conda", "https://c.org/forge/noarch/x-1-0.conda", True),
    ("conda", "https://other.org/s3cr3t/noarch/x-1-0.conda", False),
    ("conda", "https://other.org/${TOKEN}/noarch/x-1-0.conda", True),
    ("conda", "http://m:1/pool/noarch/x-1-0.conda", False),
    ("conda", "http://own.org/other/noarch/x-1-0.conda", True),
    ("conda", "file:///srv/own/noarch/x-1-0.conda", True),
    ("conda", "file:///srv/pool/noarch/x-1-0.conda", False),
    ("pip", "https://files.org/s3cr3t/x-1-py3-none-any.whl", False),
    ("pip", "http://m:1/pypi/x-1-py3-none-any.whl", True),
    ("pip", "builder://find-links/x-1-py3-none-any.whl", True),
    ("pip", "file:///srv/x-1-py3-none-any.whl", False),
]


@pytest.mark.parametrize(("manager", "url", "is_stored"), CHECKED)
def test_checked(manager: str, url: str, is_stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock has the value of a variable, the address of a mirror or a folder that nobody named."""
    monkeypatch.setenv("TOKEN", "s3cr3t")
    package = LockedPackage("x", "1", manager, "linux-64", url, "a" * 64)
    channels = ("forge", "file:///srv/own", "http://own.org/c")
    lock = Lock((package,), ("linux-64",), channels, (), {}, LockRecord({}))
    given = (settings("https://c.org=http://m:1/c https://d.org=http://own.org/d"), ["https://h.org/$TOKEN"])
    if is_stored:
        assert checked_urls(lock, *given) is lock
        return
    with pytest.raises(SolveError, match=r"x 1: no lock can have its URL \(on ") as error:
        checked_urls(lock, *given)
    assert "s3cr3t" not in f"{error.value} {error.value.hint}" and "BUILDER_MIRRORS" in error.value.hint
