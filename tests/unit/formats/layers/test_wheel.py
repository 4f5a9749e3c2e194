"""Wheels as entries: the files are installer's, and hostile archives are refused by name."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from builder.core.errors import LayerError
from builder.formats.layers.entry import Entry, Inline, LinkContext
from builder.formats.layers.wheel import wheel_entries
from tests.support.wheels import CONTEXT, assert_like_installer, fetched, make_wheel

SITE = "opt/conda/lib/python3.11/site-packages"


RICH = {
    "demo/__init__.py": "def main():\n    print('hello')\n",
    "demo/data.bin": bytes(range(256)) * 500,
    "demo/tool": "#!/bin/sh\n",
    'demo/a, "quoted" name.txt': "commas and quotes\n",
    "demo/empty.py": "",
    "demo-1.0.data/scripts/run.py": "#!python\nprint(1)\n",
    "demo-1.0.data/scripts/runw.py": "#!pythonw -s\nprint(1)\n",
    "demo-1.0.data/scripts/sh": "#!/bin/sh\nexit 0\n",
    "demo-1.0.data/data/share/demo/x.txt": "data\n",
    "demo-1.0.data/headers/demo.h": "#define X\n",
    "demo-1.0.data/purelib/pure.py": "p = 1\n",
    "demo-1.0.data/platlib/plat.py": "q = 1\n",
    "demo/__pycache__/x.cpython-311.pyc": b"\0\1",
}


ENTRY_POINTS = """\
[console_scripts]
demo = demo:main
demo-nested = demo.sub : Class.run [extra]
[gui_scripts]
demo-gui = demo:main
[other]
x = y:z
"""


def entries(
    path: Path, context: LinkContext = CONTEXT, leave_out: frozenset[str] = frozenset()
) -> dict[str, Entry]:
    return {e.path: e for e in wheel_entries(fetched(path), context, leave_out)}


def record(path: Path, context: LinkContext = CONTEXT) -> dict[str, tuple[str, str]]:
    (entry,) = [e for p, e in entries(path, context).items() if p.endswith(".dist-info/RECORD")]
    assert isinstance(entry.content, Inline)
    return {row[0]: (row[1], row[2]) for row in csv.reader(io.StringIO(entry.content.data.decode()))}


def test_same_files_as_installer(tmp_path: Path) -> None:
    """A wheel with every kind of file is laid out like PyPA installer does it."""
    wheel = make_wheel(
        tmp_path,
        files=RICH,
        entry_points=ENTRY_POINTS,
        executable=["demo/tool"],
        stored=["demo/data.bin"],
        purelib=False,
    )
    assert_like_installer(wheel, tmp_path)


@pytest.mark.parametrize("prefix", ["/opt/conda", "/opt/an env", "/opt/" + "deep/" * 40 + "env"])
def test_shebangs(tmp_path: Path, prefix: str) -> None:
    """Scripts find interpreters whose path is too long for a shebang or has spaces."""
    context = LinkContext(prefix, "3.11", "lib/python3.11/site-packages")
    wheel = make_wheel(
        tmp_path, files={"demo-1.0.data/scripts/run": "#!python\nprint(1)\n"}, entry_points=ENTRY_POINTS
    )
    found = entries(wheel, context)
    for name in ("run", "demo"):
        content = found[f"{prefix.strip('/')}/bin/{name}"].content
        assert isinstance(content, Inline)
        first = content.data.split(b"\n")[0]
        assert len(first) <= 127
        assert first == b"#!" + context.interpreter.encode() or (
            first == b"#!/bin/sh" and context.interpreter.encode() in content.data
        )


def test_metadata(tmp_path: Path) -> None:
    """RECORD lists all files with their hashes, REQUESTED marks requested packages."""
    wheel = make_wheel(tmp_path, files=RICH, entry_points=ENTRY_POINTS)
    rows = record(wheel)
    assert "demo-1.0.dist-info/REQUESTED" not in rows and "../../../bin/run.py" in rows
    assert {path for path, row in rows.items() if not row[0]} == {"demo-1.0.dist-info/RECORD"}
    asked = LinkContext("/opt/conda", "3.11", "lib/python3.11/site-packages", requested=frozenset({"demo"}))
    assert "demo-1.0.dist-info/REQUESTED" in record(wheel, asked)
    assert f"{SITE}/demo-1.0.dist-info/REQUESTED" in entries(wheel, asked)


def test_installer_files_are_replaced(tmp_path: Path) -> None:
    """Metadata that belongs to the installer is not taken from the wheel."""
    files = {
        f"demo-1.0.dist-info/{n}": "theirs"
        for n in ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD.jws")
    }
    found = entries(make_wheel(tmp_path, files=files))
    assert {p.rsplit("/", 1)[1] for p in found} == {"METADATA", "WHEEL", "INSTALLER", "RECORD"}
    content = found[f"{SITE}/demo-1.0.dist-info/INSTALLER"].content
    assert isinstance(content, Inline) and content.data == b"builder\n"


def test_entry_point_wins(tmp_path: Path) -> None:
    """A generated script replaces a wrapper for the same entry point."""
    wheel = make_wheel(
        tmp_path,
        files={"demo-1.0.data/scripts/demo": "#!python\nold\n"},
        entry_points="[console_scripts]\ndemo = demo:main\n",
    )
    content = entries(wheel)["opt/conda/bin/demo"].content
    assert isinstance(content, Inline) and b"from demo import main" in content.data


def test_unusable_wheels(tmp_path: Path) -> None:
    """Files that are not complete wheels of the right package are refused."""
    no_zip = tmp_path / "demo-1.0-py3-none-any.whl"
    no_zip.write_bytes(b"not a zip")
    with pytest.raises(LayerError, match="not a wheel"):
        entries(no_zip)
    with pytest.raises(LayerError, match=r"Wheel-Version '2.0'"):
        entries(make_wheel(tmp_path / "2", wheel_version="2.0"))
    with pytest.raises(LayerError, match="no demo-1.0.dist-info/RECORD"):
        entries(make_wheel(tmp_path / "3", record=False))
    other = make_wheel(tmp_path / "6").rename(tmp_path / "6" / "other-1.0-py3-none-any.whl")
    with pytest.raises(LayerError, match="its metadata is that of 'demo'"):
        entries(other)
    with pytest.raises(LayerError, match="no python"):
        entries(make_wheel(tmp_path / "7"), LinkContext("/opt/conda", "", ""))
