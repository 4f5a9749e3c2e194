"""Reading within limits, and packages that are what they seem."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import LockError
from builder.lock.config.safeyaml import MAX_BYTES
from builder.lock.formats.common import PackageMaker, check_groups, read_text, read_toml
from tests.unit.lock.formats.support import A, recipe, written


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a\n\xff\n", ":2: not UTF-8 text"),
        (b"a\n\0", ":2: not text"),
        (b"#" * (MAX_BYTES + 1), "more than 16777216 bytes"),
    ],
)
def test_text(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "x.lock"
    with pytest.raises(LockError, match="no such lock file"):
        read_text(path)
    path.write_bytes(data)
    with pytest.raises(LockError) as caught:
        read_text(path)
    assert said in caught.value.message
    with pytest.raises(LockError, match="is not an ordinary file"):
        read_text(tmp_path)


def test_spelling_of_groups(tmp_path: Path) -> None:
    """Groups and extras are found in any spelling (PEP 735, PEP 685)."""
    known = ["type_check", "GPU.cu"]
    assert check_groups(tmp_path, ["type-check", "gpu_cu"], known) == known
    with pytest.raises(LockError, match="no group or extra 'typo'"):
        check_groups(tmp_path, ["typo"], known)


@pytest.mark.parametrize("text", ["a = " + "[" * 3000, "a = "])
def test_toml(tmp_path: Path, text: str) -> None:
    with pytest.raises(LockError, match="TOML|levels"):
        read_toml(written(tmp_path, "x.toml", text))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": ""}, "version: has a blank"),
        ({"url": "https://h.example/"}, "url: does not end with a file name"),
        ({"url": "https://h.example/a/b\u202e.whl"}, "url: has a blank, a control character"),
        ({"sha256": "x"}, "hash.sha256: String should match"),
        ({"url": "https://h.example/a.whl?token=secret"}, "may hold a secret"),
    ],
)
def test_packages(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    values = {"name": "a", "version": "1", "url": "https://h.example/a-1-py3-none-any.whl", "sha256": A}
    values |= changes
    url, name, version = values.pop("url"), values.pop("name"), values.pop("version")
    with pytest.raises(LockError) as caught:
        PackageMaker(tmp_path / "x.lock", recipe(tmp_path)).make(
            "pip", name, version, url, {"sha256": values["sha256"]}
        )
    assert said in caught.value.message and "secret@" not in str(caught.value)


def test_credentials(tmp_path: Path) -> None:
    maker = PackageMaker(tmp_path / "x.lock", recipe(tmp_path))
    package = maker.make(
        "pip", "A.B", "1", "https://me:secret@h.example/a_b-1-py3-none-any.whl", {"sha256": A}
    )
    assert package.url == "https://h.example/a_b-1-py3-none-any.whl" and package.name == "a-b"
    local = maker.make("pip", "a", "1", "../wheels/a-1+x-py3-none-any.whl", {"sha256": A})
    assert local.url == "builder://find-links/a-1+x-py3-none-any.whl"
