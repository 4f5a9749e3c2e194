"""Wheels as entries: the files are installer's, and hostile archives are refused by name."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import stat
import warnings
import zipfile
from pathlib import Path

import pytest

from builder.errors import LayerError
from builder.layers.entry import Deflated, Entry, Inline, LinkContext, Range
from builder.layers.wheel import WheelReader
from tests.support.wheels import CONTEXT, assert_like_installer, fetched, make_wheel, zip_info

SITE = "opt/conda/lib/python3.11/site-packages"


READER = WheelReader()


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
    return {e.path: e for e in READER.entries(fetched(path), context, leave_out)}


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


def test_content_is_a_reference(tmp_path: Path) -> None:
    """Content is a reference into the wheel, also that of a program among the scripts."""
    wheel = make_wheel(
        tmp_path,
        files={
            "demo/a.py": "x = 1\n" * 100,
            "demo/b": b"stored",
            "demo-1.0.data/scripts/tool": b"\x7fELF" * 99,
        },
        stored=["demo/b"],
    )
    found = entries(wheel)
    a, b, tool = found[f"{SITE}/demo/a.py"], found[f"{SITE}/demo/b"], found["opt/conda/bin/tool"]
    assert isinstance(a.content, Deflated) and a.size == 600
    assert isinstance(b.content, Range) and wheel.read_bytes()[b.content.offset :][: b.size] == b"stored"
    assert isinstance(tool.content, Deflated) and tool.mode == 0o755, (
        "a program among the scripts is not read into memory"
    )


def test_metadata(tmp_path: Path) -> None:
    """RECORD lists all files, INSTALLER is builder, REQUESTED marks requested packages."""
    wheel = make_wheel(tmp_path, files=RICH, entry_points=ENTRY_POINTS)
    rows = record(wheel)
    assert rows["demo-1.0.dist-info/RECORD"] == ("", "")
    assert rows["demo-1.0.dist-info/INSTALLER"][1] == "8"
    assert (
        "../../../bin/demo" in rows and "../../../bin/run.py" in rows and "../../../share/demo/x.txt" in rows
    )
    assert "demo-1.0.dist-info/REQUESTED" not in rows
    asked = LinkContext("/opt/conda", "3.11", "lib/python3.11/site-packages", requested=frozenset({"demo"}))
    assert "demo-1.0.dist-info/REQUESTED" in record(wheel, asked)
    assert f"{SITE}/demo-1.0.dist-info/REQUESTED" in entries(wheel, asked)
    assert all(
        digest.startswith("sha256=") for path, (digest, _) in rows.items() if not path.endswith("/RECORD")
    )


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


def test_member_missing_in_record(tmp_path: Path) -> None:
    """A member that the wheel's RECORD does not list gets a hash."""
    wheel = make_wheel(tmp_path, extra=[(zip_info("demo/late.py"), b"x = 1\n")])
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).decode().rstrip("=")
    assert record(wheel)["demo/late.py"] == (f"sha256={digest}", "6")


def test_entry_point_wins(tmp_path: Path) -> None:
    """A generated script replaces a wrapper for the same entry point."""
    wheel = make_wheel(
        tmp_path,
        files={"demo-1.0.data/scripts/demo": "#!python\nold\n"},
        entry_points="[console_scripts]\ndemo = demo:main\n",
    )
    content = entries(wheel)["opt/conda/bin/demo"].content
    assert isinstance(content, Inline) and b"from demo import main" in content.data


def test_index_matches_entries(tmp_path: Path) -> None:
    """The index lists the paths of the entries in the same order, and leave_out removes paths."""
    wheel = make_wheel(tmp_path, files=RICH, entry_points=ENTRY_POINTS)
    index = READER.index(fetched(wheel), CONTEXT)
    everything = entries(wheel)
    assert [e.path for e in index.entries] == list(everything)
    sizes = {e.path: e.size for e in index.entries}
    rewritten = {"opt/conda/bin/run.py", "opt/conda/bin/runw.py", f"{SITE}/demo-1.0.dist-info/RECORD"}
    assert all(sizes[p] == e.size for p, e in everything.items() if p not in rewritten)
    gone = frozenset({f"{SITE}/demo/tool", "opt/conda/bin/demo", "opt/conda/bin/run.py"})
    assert set(entries(wheel, leave_out=gone)) == set(everything) - gone


def test_names_differ_in_case(tmp_path: Path) -> None:
    """Names that differ in case only are noted."""
    index = READER.index(fetched(make_wheel(tmp_path, files={"demo/A.py": "", "demo/a.py": ""})), CONTEXT)
    assert index.notes == (f"/{SITE}/demo/A.py and /{SITE}/demo/a.py differ in case only",)


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (zip_info("../evil.py"), r"unsafe member '\.\./evil.py'"),
        (zip_info("demo/../../evil.py"), "unsafe member"),
        (zip_info("/etc/passwd"), "unsafe member '/etc/passwd'"),
        (zip_info("demo-1.0.data/data/../../evil"), "unsafe member"),
        (zip_info("demo//x.py"), "unsafe member"),
        (zip_info("demo\\x.py"), "backslash"),
        (zip_info("demo/link", kind=stat.S_IFLNK), "'demo/link' is a symlink"),
        (zip_info("demo/pipe", kind=stat.S_IFIFO), "'demo/pipe' is a special file"),
        (zip_info("demo/__init__.py"), "'demo/__init__.py' appears twice"),
        (
            zip_info("demo-1.0.data/purelib/demo/__init__.py"),
            "two members are installed to 'lib/python3.11/site-packages/demo/__init__.py'",
        ),
        (zip_info("demo-1.0.data/other/x"), "no known scheme"),
        (zip_info("demo-1.0.data/x"), "no known scheme"),
        (zip_info("other-1.0.dist-info/METADATA"), "2 .dist-info folders"),
    ],
)
def test_hostile_members(tmp_path: Path, member: zipfile.ZipInfo, message: str) -> None:
    """Hostile members are refused by name, in the index and the entries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's own, about the duplicate name
        wheel = make_wheel(tmp_path, files={"demo/__init__.py": ""}, extra=[(member, b"/etc/passwd")])
    for read in (lambda: READER.index(fetched(wheel), CONTEXT), lambda: entries(wheel)):
        with pytest.raises(LayerError, match=message) as caught:
            read()
        assert "demo-1.0-py3-none-any.whl" in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[console_scripts]\n../../evil = demo:main\n", "entry point '../../evil' has a slash"),
        ("[console_scripts]\ndemo = demo main\n", "entry_points.txt cannot be read"),
        ("[console_scripts]\ndemo = demo\n", "entry_points.txt cannot be read"),
        ("no section\n", "entry_points.txt cannot be read"),
        ("[console_scripts]\ndemo = demo:main\ndemo = demo:other\n", "entry_points.txt cannot be read"),
    ],
)
def test_bad_entry_points(tmp_path: Path, text: str, message: str) -> None:
    """Entry points that cannot be parsed, or have a slash, are refused."""
    with pytest.raises(LayerError, match=message):
        entries(make_wheel(tmp_path, entry_points=text))


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
    whole = make_wheel(tmp_path / "4").read_bytes()
    cut = tmp_path / "5" / "demo-1.0-py3-none-any.whl"
    cut.parent.mkdir()
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LayerError, match="not a wheel"):
        entries(cut)
    other = make_wheel(tmp_path / "6").rename(tmp_path / "6" / "other-1.0-py3-none-any.whl")
    with pytest.raises(LayerError, match="its metadata is that of 'demo'"):
        entries(other)
    with pytest.raises(LayerError, match="no python"):
        entries(make_wheel(tmp_path / "7"), LinkContext("/opt/conda", "", ""))


def test_local_headers(tmp_path: Path) -> None:
    """A local header that belongs to another member is refused."""
    wheel = make_wheel(tmp_path, files={"demo/good.py": "x = 1\n" * 50})
    data = wheel.read_bytes()
    wheel.write_bytes(data.replace(b"demo/good.py", b"demo/evil.py", 1))
    with pytest.raises(LayerError, match="'demo/good.py' has no separate local header"):
        entries(wheel)
