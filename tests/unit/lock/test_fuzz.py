"""Locks, environment files and recipes with everything wrong: each ends in a BuilderError, or is read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

from builder.core.errors import BuilderError
from builder.core.redact import redact
from builder.lock.config.recipe import load_recipe
from builder.lock.config.safeyaml import compose, load
from builder.lock.config.sites import SITE_KEYS
from builder.lock.environment import read_environment
from builder.lock.file import parse_lock, write_lock
from tests.support.fuzz import Sample, fuzz, mutated

LOCK: dict[str, Any] = {
    "version": 1,
    "metadata": {
        "content_hash": {"linux-64": "abc"},
        "channels": [{"url": "https://host.example/t/$TOKEN/c", "used_env_vars": ["TOKEN"]}, "conda-forge"],
        "platforms": ["linux-64"],
        "sources": ["environment.yml"],
        "custom_metadata": {"builder.base": "debian:bookworm", "builder.base-digest": "sha256:" + "0" * 64},
    },
    "package": [
        {
            "name": "zlib",
            "version": "1.3",
            "manager": "conda",
            "platform": "linux-64",
            "dependencies": {"libzlib": ">=1"},
            "url": "https://host.example/linux-64/zlib-1.3-0.conda",
            "hash": {"md5": "b" * 32, "sha256": "a" * 64},
            "category": "main",
            "optional": False,
        }
    ],
}
ENVIRONMENT: dict[str, Any] = {
    "name": "e",
    "channels": ["conda-forge", "https://host.example/t/$TOKEN/c", "nodefaults"],
    "platforms": ["linux-64"],
    "dependencies": ["python=3.11", "c::zlib >=1,<2", {"pip": ["--find-links a b", "numpy==1.0", "-f 'x'"]}],
    "pip-repositories": ["https://pypi.example.org/simple"],
    "variables": {},
}
RECIPE: dict[str, Any] = {
    "description": "a test",
    "extends": "other",
    "group": ["ml"],
    "base": "oci:base",
    "environment": "environments/e.yml",
    "gpu": {"vendor": "nvidia", "architectures": ["sm_80"]},
    "virtual_packages": {"__cuda": "12.4"},
    "conda": {"channels": ["a"], "exclude_newer": "2026-01-01", "post_link": {"a": "skip"}},
    "files": [{"source": "a", "target": "/a", "mode": "0755"}],
    "env": {"A": "b"},
    "cmd": ["python"],
    "labels": {"a": "b"},
    "registry": {"host": "h", "repository": "r", "tags": ["%y"]},
    "site": {
        "runtime": {"kind": "podman", "options": ["--a=$B"], "binds": ["/a:/b:ro"], "env": {"A": "$B"}},
        "slurm": {"time": "1-02:03", "queues": {"gpu": {"gpus": "--gpus={gpus}", "memory": "12g"}}},
        "node": {"gpus": 4, "cores": 64, "cpu_bind": "mask_cpu:1,2,3,4"},
        "launcher": "srun",
    },
}


def text(value: Any) -> bytes:
    return yaml.safe_dump(value, sort_keys=False).encode(errors="replace")


def forms(value: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """A document with strange values, with changed bytes, and with pieces of YAML put into it."""
    plain = text(value)
    pieces = st.sampled_from(
        ["&a ", "*a", "[", "]", "{", "}", "- ", "? ", ": ", "<<: ", "!!int ", "!!set ", "!!timestamp ", "|\n"]
        + [
            "\n",
            "  ",
            "# [osx]",
            "#",
            "'",
            '"',
            "\t",
            "%",
            "@",
            "---\n",
            "2024-02-31",
            ".inf",
            "1:99:1",
            "\0",
        ]
    ).map(str.encode)
    places = st.lists(st.tuples(st.integers(0, len(plain)), pieces), min_size=1, max_size=4)

    def put(changes: list[tuple[int, bytes]]) -> bytes:
        data = plain
        for at, piece in changes:
            data = data[:at] + piece + data[at:]
        return data

    soup = st.lists(pieces | st.text(max_size=3).map(lambda t: t.encode(errors="ignore")), max_size=30)
    return mutated(value).map(text) | Sample(plain).damaged() | places.map(put) | soup.map(b"".join)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str, bytes], None]:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/other.yaml").write_text("base: oci:base\nenvironment: e.yml\n")

    (tmp_path / "sites").mkdir()
    (tmp_path / "recipes/sited.yaml").write_text("site: one\nenvironment: e.yml\n")

    def read_file(kind: str, data: bytes) -> None:
        if kind == "site":
            (tmp_path / "sites/one.yaml").write_bytes(data)
            load_recipe("sited", tmp_path)
        elif kind == "recipe":
            (tmp_path / "recipes/one.yaml").write_bytes(data)
            load_recipe("one", tmp_path)
        elif kind == "environment":
            (tmp_path / "e.yml").write_bytes(data)
            read_environment(tmp_path / "e.yml", "linux-64")
        else:
            lock = parse_lock(data, tmp_path / "l.yml")
            for package in lock.packages:
                assert package.filename and package.build is not None and package.subdir is not None
            write_lock(lock, tmp_path / "l.yml")

    return read_file


@fuzz(100)
@given(forms(LOCK))
@example(b"- " * 100_000)
def test_lock(read: Callable[[str, bytes], None], data: bytes) -> None:
    with contextlib.suppress(BuilderError):
        read("lock", data)


@fuzz(100)
@given(forms(ENVIRONMENT))
@example(b"? []\n")
def test_environment(read: Callable[[str, bytes], None], data: bytes) -> None:
    with contextlib.suppress(BuilderError):
        read("environment", data)


@fuzz(80)
@given(forms(RECIPE))
@example(b"extends: []\n")
def test_recipe(read: Callable[[str, bytes], None], data: bytes) -> None:
    with contextlib.suppress(BuilderError):
        read("recipe", data)


@fuzz(60)
@given(forms({key: value for key, value in RECIPE.items() if key in SITE_KEYS}))
@example(b"site: {name: []}\n")
@example(b"site: [1]\n")
@example(b"1: {}\n")
def test_site_file(read: Callable[[str, bytes], None], data: bytes) -> None:
    with contextlib.suppress(BuilderError):
        read("site", data)


@fuzz(150)
@given(forms({"a": [1, 2.5, True, None, "x"], "b": {"c": "d"}}))
def test_yaml(data: bytes) -> None:
    for reader in (load, compose):
        with contextlib.suppress(yaml.YAMLError):
            reader(data)


#: The characters of a password: visible, without those that end a URL in a text.
WORD = st.text("!#$%&'()*+,-./09:;=?@AZ[\\]^_`az{|}~", max_size=6)


@fuzz(150)
@given(WORD, WORD, WORD, st.sampled_from(["https", "docker", "tcp"]))
@example("robot$ml", "", "", "https")
@example("me", "//", "/", "https")
def test_redact(user: str, before: str, after: str, scheme: str) -> None:
    """No password of a URL survives, whatever is around it; its user and the host are ordinary."""
    user = user.replace("/", "").replace("?", "").replace("#", "").replace("@", "").replace(":", "") or "me"
    user = user.replace("[", "").replace("]", "") or "me"
    assume(not re.match(r"\d+[/?#]", before))  # reads as a port
    assume("://" not in before + "-" + after)  # reads as two URLs
    before = before.rstrip("${") + "-"  # not the name of a variable
    shown = redact(f"{scheme}://{user}:{before}S3CR3T{after}@host.example/x and ://")
    assert "S3CR3T" not in shown and shown.endswith("host.example/x and ://")
    shown = redact(f"{scheme}://host.example/x?{user}={before.replace('#', '').replace('&', '')}S3CR3T and b")
    assert "S3CR3T" not in shown and shown.endswith(" and b")
