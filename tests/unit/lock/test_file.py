"""Lock files: builder and conda-lock read each other's, and damage is named."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from conda_lock.lockfile.v1 import models as v1

from builder.core.errors import LockError
from builder.core.model import Lock, LockedBase, LockedPackage, LockedSource, LockRecord
from builder.lock.file import LockEntry, _header, _Metadata, read_lock, write_lock

SYNAPSE = Path(__file__).parents[4] / "shared/data/synapse-ml"
synapse = pytest.mark.skipif(
    not SYNAPSE.exists(), reason="the Synapse data (../shared/data/synapse-ml) is not on this machine"
)


def conda(name: str, depends=None, **more) -> LockedPackage:
    url = more.pop("url", f"builder://debian/linux-64/{name}-1.0-0.conda")
    return LockedPackage(name, "1.0", "conda", "linux-64", url, "a" * 64, "b" * 32, depends or {}, **more)


TORCH = "builder://find-links/torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
LOCK = Lock(
    packages=(
        LockedPackage("torch", "2.13.0+cpu", "pip", "linux-64", TORCH, "c" * 64),
        conda("python", {"zlib": ">=1,<2", "python_abi": "3.11.* *_cp311", "__glibc": ">=2.17"}),
        conda("zlib", {"libzlib": ""}),
        conda("libzlib"),
    ),
    platforms=("linux-64",),
    channels=("conda-forge", "https://host.example/t/$TOKEN/chan"),
    sources=("environment.yml",),
    content_hash={"linux-64": "d" * 64},
    record=LockRecord({"conda": '["python"]', "channels": '["conda-forge"]'}, others={"tool": "x"}),
    base=LockedBase("debian:bookworm", "sha256:" + "e" * 64),
)


def test_round_trip_and_order(tmp_path):
    written = write_lock(LOCK, tmp_path / "a.lock.yml")
    assert written == read_lock(tmp_path / "a.lock.yml")
    assert [p.name for p in written.packages] == ["libzlib", "python", "zlib", "torch"]
    assert written.base == LOCK.base and written.record == LOCK.record and written.channels == LOCK.channels
    assert sorted(written.packages, key=str) == sorted(LOCK.packages, key=str)
    assert written.packages[1].dependencies["python_abi"] == "3.11.* *_cp311"
    assert written.digest.startswith("sha256:")


def test_same_lock_same_bytes(tmp_path):
    one = write_lock(LOCK, tmp_path / "one" / "x.cpu.lock.yml")
    two = write_lock(
        replace(one, packages=tuple(reversed(one.packages))), tmp_path / "two" / "x.cpu.lock.yml"
    )
    assert one.digest == two.digest
    assert "builder lock cpu\n" in (tmp_path / "one/x.cpu.lock.yml").read_text()
    other = write_lock(
        replace(one, base=LockedBase("debian:bookworm", "sha256:" + "0" * 64)), tmp_path / "three.yml"
    )
    assert other.digest != one.digest and other.base.digest == "sha256:" + "0" * 64


def test_sources(tmp_path):
    """They are in the metadata, and conda-lock still reads the file."""
    from conda_lock.lockfile import parse_conda_lock_file

    source = LockedSource("git", "https://host.example/tool", commit="c" * 40, tree="d" * 40)
    wheel = "builder://wheels/tool-1.0-py3-none-any.whl"
    tool = LockedPackage("tool", "1.0", "pip", "linux-64", wheel, "f" * 64, source=source)
    path = tmp_path / "conda-lock.yml"
    written = write_lock(replace(LOCK, packages=(*LOCK.packages, tool)), path)
    assert next(p for p in written.packages if p.name == "tool") == tool
    assert written.record == LOCK.record and write_lock(written, path).digest == written.digest
    assert {p.name for p in parse_conda_lock_file(path).package} >= {"tool", "torch"}
    path.write_text(path.read_text().replace("dddd", "dd"))
    with pytest.raises(LockError, match=r"conda-lock.yml:\d+: builder.sources: tool: commit or tree"):
        read_lock(path)


def test_no_secrets(tmp_path):
    """Credentials do not get into a lock file."""
    lock = replace(
        LOCK, packages=(conda("a", url="https://user:secret@host.example/t/tk-123/c/linux-64/a-1.0-0.conda"),)
    )
    write_lock(lock, tmp_path / "l.yml")
    text = (tmp_path / "l.yml").read_text()
    assert (
        "secret" not in text
        and "tk-123" not in text
        and "https://host.example/t/***/c/linux-64/a-1.0-0.conda" in text
    )
    assert "$TOKEN" in text  # the name of a variable is not a secret


@synapse
def test_synapse_lock():
    """A real lock of 961 packages is read completely and in under a second."""
    started = time.process_time()
    lock = read_lock(SYNAPSE / "environment-lock.yml")
    assert time.process_time() - started < 1.0
    assert len(lock.packages) == 961 and len(lock.for_platform("linux-64")) == 302
    assert lock.base is None and lock.channels == ("conda-forge",) and lock.sources == ("environment.yml",)
    raw = yaml.load((SYNAPSE / "environment-lock.yml").read_bytes(), Loader=yaml.CSafeLoader)["package"]
    for theirs, ours in zip(raw, lock.packages, strict=True):
        assert (ours.name, ours.version, ours.url, ours.sha256, ours.md5) == (
            theirs["name"],
            theirs["version"],
            theirs["url"],
            theirs["hash"]["sha256"],
            theirs["hash"]["md5"],
        )
        assert dict(ours.dependencies) == theirs["dependencies"]


GOOD = """\
version: 1
metadata:
  content_hash: {linux-64: abc}
  channels: [conda-forge]
  platforms: [linux-64]
  sources: []
package:
- name: zlib
  version: '1.3'
  manager: conda
  platform: linux-64
  dependencies: {}
  url: https://host.example/linux-64/zlib-1.3-0.conda
  hash: {md5: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb}
  optional: false
"""


def parsed(tmp_path, text: str | bytes) -> Lock:
    path = tmp_path / "conda-lock.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_lock(path)


def test_old_locks(tmp_path):
    """conda-lock 1 wrote no sha256 for channels without one."""
    package = parsed(tmp_path, GOOD).packages[0]
    assert package.category == "main" and package.sha256 is None and package.key == "md5:" + "b" * 32


def test_dev_packages_are_not_main(tmp_path):
    lock = parsed(tmp_path, GOOD.replace("  optional: false", "  category: dev\n  optional: true"))
    assert lock.for_platform("linux-64") == () and lock.packages[0].optional


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "version: 1\n",
            "version: 3\n",
            "conda-lock.yml:1: lock format version 3; builder reads",
        ),
        (
            "  hash: {md5: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb}\n",
            "",
            "yml:8: package zlib: hash: no hash",
        ),
        (
            "{md5: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb}",
            "{md5: bbb}",
            "conda-lock.yml:14: package zlib: hash.md5: String should match",
        ),
        ("version: '1.3'", "version: 1.3", "conda-lock.yml:9: package zlib: version: must be a valid string"),
        ("  platforms: [linux-64]\n", "", "conda-lock.yml:2: metadata.platforms: Field required"),
        (
            "  sources: []\n",
            "  sources: []\n  custom_metadata: {a: 1}\n",
            "conda-lock.yml:7: metadata.custom_metadata.a: must be a valid string",
        ),
        (
            "  version: '1.3'",
            '  version: "1\\n"',
            "conda-lock.yml:9: package zlib: version: has a blank",
        ),
        ("/linux-64/zlib-1.3-0.conda", "/noarch/%2e%2e", "zlib: url: does not end with SUBDIR/FILE"),
        ("/linux-64/zlib-1.3-0.conda", "/noarch/a%0ab", "zlib: url: does not end with SUBDIR/FILE"),
        (
            "https://host.example/",
            "https://[host/",
            "yml:13: package zlib: url: does not end with",
        ),
        (
            "  sources: []\n",
            "  sources: []\n  custom_metadata: {builder.base: b, builder.base-digest: 'sha256:0\\nRUN'}\n",
            "builder.base-digest is not sha256: and 64 hex digits",
        ),
        ("optional: false", "optional: [", "conda-lock.yml:16: not valid YAML"),
        ("package:", "<<<<<<< HEAD\npackage:", "a conflict marker of git"),
        ("package:", "packages:", "not a lock file of conda-lock"),
    ],
)
def test_damage(tmp_path, old, new, said):
    """Damage is named with line and key."""
    assert old in GOOD
    with pytest.raises(LockError) as caught:
        parsed(tmp_path, GOOD.replace(old, new, 1))
    assert said in str(caught.value) and caught.value.hint


@pytest.mark.parametrize(
    "text",
    [b"just words", b"\xff\xfe\x00\x01", b"version: 1\npackage: [", b"a: !!python/object:os.system x"],
)
def test_not_a_lock(tmp_path, text):
    with pytest.raises(LockError, match="not a lock file|not valid YAML"):
        parsed(tmp_path, text)


@pytest.mark.parametrize("text", [b"", b"\n", _header(Path("e.t.lock.yml")).encode()[:-20]])
def test_cut_off(tmp_path: Path, text: bytes) -> None:
    """A file that is empty, or begins as builder's own locks do, is damaged, and not another tool's."""
    with pytest.raises(LockError, match="yml: empty or cut off: it has no package:") as caught:
        parsed(tmp_path, text)
    assert caught.value.hint == "restore the file from version control, or lock again: builder lock"


def test_missing_file(tmp_path):
    with pytest.raises(LockError, match="no such lock file"):
        read_lock(tmp_path / "conda-lock.yml")


def test_git_of_conda_lock(tmp_path: Path) -> None:
    """conda-lock writes the commit as its hash; what a group that is not built has stops nothing."""
    path, commit = tmp_path / "conda-lock.yml", "c" * 40
    write_lock(LOCK, path)
    url = f"git+https://h.example/tool.git@{commit}"
    text = path.read_text().replace(TORCH, url).replace("c" * 64, commit)
    path.write_text(text)
    (package,) = [package for package in read_lock(path).packages if package.manager == "pip"]
    assert (package.url, package.sha256) == (url, None)


def test_wheel_among_conda_packages(tmp_path: Path) -> None:
    path = tmp_path / "conda-lock.yml"
    write_lock(LOCK, path)
    path.write_text(path.read_text().replace("zlib-1.0-0.conda", "zlib-1.0-py3-none-any.whl"))
    with pytest.raises(LockError, match=r"package \w+: url: is no conda package"):
        read_lock(path)


def test_keys_of_conda_lock(tmp_path: Path) -> None:
    """Those that builder does not read cannot change what has a URL and a hash."""
    read = {"build", "source"} ^ set(v1.LockedDependency.model_fields)
    assert read == set(LockEntry.model_fields)
    others = {"git_metadata", "inputs_metadata"}  # what the lock was made from
    assert set(v1.LockMeta.model_fields) - others == set(_Metadata.model_fields)
