"""pixi.lock, versions 4 to 7."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import LockError
from tests.unit.lock.formats.support import COMMIT, FILES, FORGE, MD5, A, B, names, read, written

PYTHON = f"{FORGE}/linux-64/python-3.11.9-h1_0_cpython.conda"
WHEEL = f"{FILES}/aa/rich-13.9.4-py3-none-any.whl"
GIT = f"git+https://github.com/o/mike.git?rev=main#{COMMIT}"

HEAD = f"""\
environments:
  default:
    channels:
    - url: {FORGE}/
    packages:
      linux-64:
      - conda: {PYTHON}
      - pypi: {WHEEL}
"""
#: Versions 4 and 5 write name, version and kind of each package.
OLD = f"""\
packages:
- kind: conda
  name: python
  version: 3.11.9
  build: h1_0_cpython
  subdir: linux-64
  url: {PYTHON}
  sha256: {A}
  md5: {MD5}
  depends:
  - bzip2 >=1.0.8,<2.0a0
  - __glibc >=2.17
  license: Python-2.0
- kind: pypi
  name: rich
  version: 13.9.4
  url: {WHEEL}
  sha256: {B}
"""
NEEDS = """\
  requires_dist:
  - markdown-it-py>=2.2.0
  - ipywidgets>=7 ; extra == 'jupyter'
"""
NEW = f"""\
packages:
- conda: {PYTHON}
  sha256: {A}
  md5: {MD5}
  depends:
  - bzip2 >=1.0.8,<2.0a0
  - __glibc >=2.17
  license: Python-2.0
- pypi: {WHEEL}
  name: rich
  version: 13.9.4
  sha256: {B}
{NEEDS}"""
PLATFORMS = """\
platforms:
- name: linux-64
- name: osx-arm64
"""
FILES_BY_VERSION = {
    4: f"version: 4\n{HEAD}{OLD}",
    5: f"version: 5\n{HEAD}{OLD}",
    6: f"version: 6\n{HEAD}{NEW}",
    7: f"version: 7\n{PLATFORMS}{HEAD}{NEW}",
}


#: Fields of a wheel that a conda channel offers, as py-rattler 0.28 writes them.
PURE = """\
  name: pure_one
  version: '1.0'
  build: py3_none_any_0
  subdir: noarch
  noarch: python
"""


@pytest.mark.parametrize("version", FILES_BY_VERSION)
def test_versions(tmp_path: Path, version: int) -> None:
    lock = read(written(tmp_path, "pixi.lock", FILES_BY_VERSION[version]), python=None)
    assert names(lock) == ["python 3.11.9", "rich 13.9.4"]
    python, rich = lock.packages
    assert (python.url, python.sha256, python.md5) == (PYTHON, A, MD5)
    assert python.dependencies == {"bzip2": ">=1.0.8,<2.0a0", "__glibc": ">=2.17"}
    assert rich.dependencies == ({"markdown-it-py": ""} if version > 5 else {})
    assert (rich.manager, rich.url, rich.sha256) == ("pip", WHEEL, B)
    assert lock.channels == (FORGE,)
    assert lock.tool == "a lock file of pixi"


def changed(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    text = FILES_BY_VERSION[6]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return written(tmp_path, "pixi.lock", text)


def test_sources(tmp_path: Path) -> None:
    """sdists, repositories and folders have to be built; the wheel of a URL may have no hash."""
    direct = "https://github.com/p/click/releases/click-8.1.7-py3-none-any.whl"
    sdist = f"{FILES}/bb/antlr4-4.9.3.tar.gz"
    path = changed(
        tmp_path,
        (
            f"      - pypi: {WHEEL}\n",
            f"      - pypi: {sdist}\n      - pypi: {GIT}\n      - pypi: .\n      - pypi: direct+{direct}\n",
        ),
        (
            f"- pypi: {WHEEL}\n  name: rich\n  version: 13.9.4\n  sha256: {B}\n{NEEDS}",
            f"- pypi: {sdist}\n  name: antlr4\n  version: 4.9.3\n  sha256: {B}\n"
            f"- pypi: {GIT}\n  name: mike\n  version: 2.2.0\n"
            f"- pypi: .\n  name: mine\n  version: 0.1.0\n  editable: true\n"
            f"- pypi: direct+{direct}\n  name: click\n  version: 8.1.7\n",
        ),
    )
    lock = read(path)
    sources = {source.name: source for source in lock.sources}
    assert names(lock) == ["python 3.11.9"]
    assert (sources["antlr4"].kind, sources["antlr4"].url, sources["antlr4"].sha256) == ("sdist", sdist, B)
    git = sources["mike"]
    assert (git.kind, git.url, git.revision) == ("git", "https://github.com/o/mike.git", COMMIT)
    assert (sources["mine"].kind, sources["mine"].url) == ("local", ".")
    assert [pin.text for pin in lock.pinned] == [f"click @ {direct}"]


def test_environment(tmp_path: Path) -> None:
    path = changed(tmp_path, ("  default:", "  cuda:"))
    with pytest.raises(LockError, match="no environment 'default'") as caught:
        read(path)
    assert "lock_environment" in caught.value.hint and "cuda" in caught.value.hint
    with pytest.raises(LockError) as caught:
        read(path, environment="cud")
    assert "did you mean cuda?" in caught.value.hint
    assert names(read(path, environment="cuda")) == ["python 3.11.9", "rich 13.9.4"]


def test_platform(tmp_path: Path) -> None:
    path = changed(tmp_path)
    with pytest.raises(LockError, match="is for linux-64, not linux-aarch64") as caught:
        read(path, platform="linux-aarch64")
    assert "pixi workspace platform add linux-aarch64" in caught.value.hint


@pytest.mark.parametrize(("first", "found"), [("linux-64", 1), ("cpu", 0)])
def test_several_platforms(tmp_path: Path, first: str, found: int) -> None:
    """Version 7 may lock one subdir for several machines: the one with the target's name is taken."""
    text = f"""\
version: 7
platforms:
- name: {first}
  subdir: linux-64
- name: gpu
  subdir: linux-64
environments:
  default:
    channels:
    - url: {FORGE}/
    packages:
      {first}:
      - conda: {PYTHON}
      gpu:
      - conda: {PYTHON}
      - pypi: {WHEEL}
{NEW}"""
    path = written(tmp_path, "pixi.lock", text)
    if found:
        assert names(read(path)) == ["python 3.11.9"]
        return
    with pytest.raises(LockError, match="has several platforms for linux-64: cpu, gpu"):
        read(path)


def test_conda_source(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        (f"      - pypi: {WHEEL}\n", "      - conda: libs/cpp\n"),
        (
            f"- pypi: {WHEEL}\n  name: rich\n  version: 13.9.4\n  sha256: {B}\n{NEEDS}",
            "- conda: libs/cpp\n  name: cpp\n  version: 1.0.0\n  build: h0\n  subdir: linux-64\n",
        ),
    )
    with pytest.raises(LockError, match="cpp is a conda package that pixi builds from source") as caught:
        read(path)
    assert "lock_environment" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("version: 6", "version: 8"), "found newer lockfile format version 8"),
        (("  default:", "  default: 1\n  x:"), "rattler cannot read this lock file"),
        ((f"  sha256: {A}\n  md5: {MD5}\n", ""), "has no sha256"),
    ],
)
def test_damage(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(LockError) as caught:
        read(changed(tmp_path, change))
    assert said in caught.value.message and caught.value.hint
    assert caught.value.message.startswith(str(tmp_path / "pixi.lock"))


def test_wheel_of_a_channel(tmp_path: Path) -> None:
    """rattler takes wheels of conda channels; name and version are those of the file."""
    wheel = f"{FORGE}/noarch/Pure_One-1.0-py3-none-any.whl"
    text = FILES_BY_VERSION[7].replace(WHEEL, wheel).replace("- pypi:", "- conda:")
    text = text.replace("  name: rich\n  version: 13.9.4\n", PURE).replace(NEEDS, "")
    (package,) = [p for p in read(written(tmp_path, "pixi.lock", text)).packages if p.manager == "pip"]
    assert (package.name, package.version, package.url, package.sha256) == ("pure-one", "1.0", wheel, B)


@pytest.mark.parametrize(
    ("after", "keys"),
    [
        (
            "conda",
            ["build_number: 1", "constrains: [pip <1]", "features: x", "track_features: [x]", "size: 1"],
        ),
        (
            "conda",
            ["timestamp: 1714521600000", "license_family: PSF", "purls: []", "arch: x86", "platform: win"],
        ),
        (
            "conda",
            [
                "python_site_packages_path: lib/site",
                f"file_name: {PYTHON.rpartition('/')[2]}",
                f"channel: {FORGE}/",
            ],
        ),
        ("pypi", ["requires_python: '>=3.99'", "md5: " + MD5]),
        ("default", ["indexes: [https://h.example/simple]", "find-links: [{path: ./links}]"]),
        ("default", ["options: {exclude-newer: '2001-01-01', pypi-prerelease-mode: allow}"]),
    ],
)
def test_other_keys(tmp_path: Path, after: str, keys: list[str]) -> None:
    """rattler reads every key; these cannot change what has a URL and a hash."""
    text = FILES_BY_VERSION[7].replace(f"  md5: {MD5}\n", "")
    marks = {
        "conda": f"- conda: {PYTHON}\n  sha256: {A}\n",
        "pypi": f"- pypi: {WHEEL}\n",
        "default": "  default:\n",
    }
    indent = "    " if after == "default" else "  "
    for key in keys:
        start, mark, rest = text.rpartition(marks[after])
        lock = read(written(tmp_path, "pixi.lock", f"{start}{mark}{indent}{key}\n{rest}"))
        assert names(lock) == ["python 3.11.9", "rich 13.9.4"], key
        assert [package.sha256 for package in lock.packages] == [A, B], key
