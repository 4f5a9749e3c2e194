"""pylock.toml (PEP 751)."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from packaging.pylock import Package, Pylock

from builder.core.errors import LockError
from tests.unit.lock.formats.support import COMMIT, FILES, A, B, C, D, names, read, written

LOCK = f"""\
lock-version = "1.0"
created-by = "test"
requires-python = ">=3.10"
extras = ["gpu"]
dependency-groups = ["dev", "docs"]
default-groups = ["docs"]

[[packages]]
name = "numpy"
version = "2.1.0"
wheels = [
  {{ url = "{FILES}/1/numpy-2.1.0-cp311-cp311-musllinux_1_2_x86_64.whl", hashes = {{ sha256 = "{B}" }} }},
  {{ url = "{FILES}/2/numpy-2.1.0-cp311-cp311-manylinux_2_17_x86_64.whl", hashes = {{ sha256 = "{A}" }} }},
  {{ url = "{FILES}/3/numpy-2.1.0-cp311-cp311-manylinux_2_35_x86_64.whl", hashes = {{ sha256 = "{C}" }} }},
  {{ url = "{FILES}/4/numpy-2.1.0-cp311-cp311-manylinux_2_17_aarch64.whl", hashes = {{ sha256 = "{D}" }} }},
]

[[packages]]
name = "colorama"
version = "0.4.6"
marker = "sys_platform == 'win32'"
wheels = [{{ url = "{FILES}/5/colorama-0.4.6-py3-none-any.whl", hashes = {{ sha256 = "{A}" }} }}]

[[packages]]
name = "sphinx"
version = "8.0"
marker = "'docs' in dependency_groups"
wheels = [{{ url = "{FILES}/6/sphinx-8.0-py3-none-any.whl", hashes = {{ sha256 = "{A}" }} }}]

[[packages]]
name = "pytest"
version = "8.3"
marker = "'dev' in dependency_groups"
wheels = [{{ url = "{FILES}/7/pytest-8.3-py3-none-any.whl", hashes = {{ sha256 = "{A}" }} }}]

[[packages]]
name = "cupy"
version = "13.0"
marker = "'gpu' in extras"
wheels = [{{ url = "{FILES}/8/cupy-13.0-py3-none-any.whl", hashes = {{ sha256 = "{A}" }} }}]
"""
SOURCES = f"""
[[packages]]
name = "mike"
vcs = {{ type = "git", url = "https://github.com/o/mike.git", commit-id = "{COMMIT}", subdirectory = "py" }}

[[packages]]
name = "mine"
directory = {{ path = ".", editable = true }}

[[packages]]
name = "data"
archive = {{ url = "https://host.example/data.zip", hashes = {{ sha256 = "{B}" }} }}

[[packages]]
name = "direct"
version = "1.0"
archive = {{ url = "https://host.example/direct-1.0-py3-none-any.whl", hashes = {{ sha256 = "{C}" }} }}

[[packages]]
name = "old"
version = "0.1"
sdist = {{ url = "{FILES}/9/old-0.1.tar.gz", hashes = {{ sha256 = "{D}" }} }}
"""


def test_best_wheel(tmp_path: Path) -> None:
    path = written(tmp_path, "pylock.toml", LOCK)
    lock = read(path)
    assert names(lock) == ["numpy 2.1.0", "sphinx 8.0"]
    assert lock.packages[0].sha256 == A and lock.packages[0].url.endswith("manylinux_2_17_x86_64.whl")
    assert read(path, glibc=36).packages[0].sha256 == C
    assert read(path, platform="linux-aarch64").packages[0].sha256 == D


def test_groups(tmp_path: Path) -> None:
    path = written(tmp_path, "pylock.dev.toml", LOCK)
    assert names(read(path, groups=["main", "dev", "gpu"])) == [
        "numpy 2.1.0",
        "sphinx 8.0",
        "pytest 8.3",
        "cupy 13.0",
    ]
    assert names(read(path, groups=["dev"])) == ["numpy 2.1.0", "pytest 8.3"]
    assert read(path).omitted == ("dev", "gpu")
    with pytest.raises(LockError, match="no group or extra 'dve'") as caught:
        read(path, groups=["dve"])
    assert "did you mean dev" in caught.value.hint


def test_sources(tmp_path: Path) -> None:
    lock = read(written(tmp_path, "pylock.toml", LOCK + SOURCES))
    assert names(lock)[-1] == "direct 1.0"
    mike, mine, data, old = lock.sources
    assert (mike.kind, mike.url, mike.revision, mike.subdirectory) == (
        "git",
        "https://github.com/o/mike.git",
        COMMIT,
        "py",
    )
    assert (mine.kind, mine.url, mine.editable) == ("local", ".", True)
    assert (data.kind, data.sha256) == ("archive", B) and (old.kind, old.sha256) == ("sdist", D)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('lock-version = "1.0"', 'lock-version = "2.0"', "version 2.0 is not supported"),
        ('lock-version = "1.0"', 'lock-version = "1.1"', "lock-version 1.1, and builder reads 1.0"),
        ('requires-python = ">=3.10"', 'requires-python = ">=3.12"', "does not satisfy"),
        (f'hashes = {{ sha256 = "{A}" }}', f'hashes = {{ md5 = "{A}" }}', "has no sha256"),
        ("numpy-2.1.0-cp311-cp311-manylinux", "numpy-2.1.0-cp312-cp312-manylinux", "No wheel found"),
    ],
)
def test_damage(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in LOCK
    with pytest.raises(LockError) as caught:
        read(written(tmp_path, "pylock.toml", LOCK.replace(old, new)))
    assert said in caught.value.message and caught.value.hint
    assert caught.value.message.startswith(str(tmp_path / "pylock.toml"))


def test_package_without_files(tmp_path: Path) -> None:
    """pdm 2.29.4 writes this beside hishel 2.0.0, and ends with exit code 0; hishel 1.4.0 helps."""
    bare = """\
lock-version = "1.0"
created-by = "pdm"
[[packages]]
name = "six"
version = "1.17.0"
marker = "\\"default\\" in dependency_groups"
[packages.tool.pdm]
dependencies = []
"""
    with pytest.raises(LockError, match="not a valid pylock") as caught:
        read(written(tmp_path, "pylock.toml", bare))
    assert caught.value.hint == "export it again; with pdm, before: pdm self add 'hishel<2'"


def test_wheel_of_the_project(tmp_path: Path) -> None:
    text = (
        LOCK
        + f"""
[[packages]]
name = "own"
version = "1.0"
wheels = [{{ name = "own-1.0-py3-none-any.whl", path = "wh/own-1.0-py3-none-any.whl",
             hashes = {{ sha256 = "{A}" }} }}]
"""
    )
    path = written(tmp_path, "pylock.toml", text)
    assert read(path).packages[-1].url == "builder://find-links/own-1.0-py3-none-any.whl"
    (tmp_path / "wh").mkdir()
    (tmp_path / "wh" / "own-1.0-py3-none-any.whl").touch()
    assert read(path).packages[-1].url == "builder://find-links/wh/own-1.0-py3-none-any.whl"


def test_hash_of_a_source(tmp_path: Path) -> None:
    """A hash that builder does not verify is not dropped."""
    path = written(tmp_path, "pylock.toml", LOCK + SOURCES.replace("sha256", "sha512"))
    with pytest.raises(LockError, match="package data: its file has no sha256"):
        read(path)


#: The smallest package, and what stands for another one in each row of KEYS.
ONE = f"""
[[packages]]
name = "one"
version = "1"
KEY
[[packages.wheels]]
url = "{FILES}/one-1-py3-none-any.whl"
hashes = {{ sha256 = "{A}" }}
"""
SAME, NONE = ["one 1"], list[str]()
#: Keys of PEP 751 by table: a line that could change the result, and the packages, or words of the error.
KEYS: dict[str, dict[str, tuple[str, list[str] | str]]] = {
    "": {
        "lock-version": ('lock-version = "1.1"', "lock-version 1.1"),
        "environments": ("environments = [\"sys_platform == 'darwin'\"]", "environments"),
        "requires-python": ('requires-python = ">=3.12"', "does not satisfy"),
        "extras": ('extras = ["x"]', SAME),
        "dependency-groups": ('dependency-groups = ["x"]', SAME),
        "default-groups": ('dependency-groups = ["x"]\ndefault-groups = ["x"]', SAME),
        "created-by": ('created-by = "another tool"', SAME),
        "tool": ("tool.x.y = 1", SAME),
    },
    "packages": {
        "marker": ("marker = \"sys_platform == 'win32'\"", NONE),
        "requires-python": ('requires-python = ">=3.12"', "does not satisfy"),
        "dependencies": ('dependencies = [{ name = "two" }]', SAME),
        "index": ('index = "https://another.example/simple"', SAME),
        "attestation-identities": ('attestation-identities = [{ kind = "x" }]', SAME),
        "tool": ("tool.x.y = 1", SAME),
        "vcs": ('vcs = { type = "hg", url = "https://h.example/r", commit-id = "1" }', "vcs"),
        "directory": ('directory = { path = "." }', "directory"),
        "archive": ('archive = { path = "x.zip", hashes = { sha256 = "1" } }', "archive"),
    },
}


@pytest.mark.parametrize(("where", "key"), [(table, key) for table in KEYS for key in KEYS[table]])
def test_keys(tmp_path: Path, where: str, key: str) -> None:
    """Each one is obeyed, is part of an error, or cannot change what has a URL and a hash."""
    line, expected = KEYS[where][key]
    head = {"lock-version": 'lock-version = "1.0"', "created-by": 'created-by = "x"'}
    if not where:
        head.pop(key, "")
        head["more"] = line
    text = "\n".join(head.values()) + ONE.replace("KEY", line if where else "")
    path = written(tmp_path, "pylock.toml", text)
    if isinstance(expected, list):
        assert names(read(path)) == expected
        return
    with pytest.raises(LockError) as caught:
        read(path)
    assert expected in caught.value.message and caught.value.hint


def test_all_keys_are_known() -> None:
    """packaging has a field for each key of the standard; the others are read or checked in test_sources."""
    read_elsewhere = {"packages", "name", "version", "wheels", "sdist"}
    for table, of_table in (("", Pylock), ("packages", Package)):
        keys = {field.name.replace("_", "-") for field in fields(of_table)} - read_elsewhere
        assert keys == set(KEYS[table])
