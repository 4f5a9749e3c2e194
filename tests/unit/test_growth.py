"""Readers of foreign input take time in proportion to it: for twice the input at most 2.6 times as long.

Kilobytes of a stranger must not take minutes. No other test measures time; this one compares CPU times.
A new reader is a row of TEXTS, FILES or READERS; regular expressions are found in the source.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import tarfile
from collections.abc import Callable
from email.parser import HeaderParser
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import builder
from builder.build.bases import contents
from builder.build.image.libraries import _missing
from builder.cli.start.imports import imported_modules
from builder.core.errors import BuilderError
from builder.core.git import _reason
from builder.core.redact import redact, userinfo, without_userinfo
from builder.core.tarheaders import TarError, _pax_records, read_headers
from builder.core.text import visible
from builder.deliver.publishing.keys import PublicKey
from builder.deliver.site.arguments import read_env_file
from builder.deliver.smoke.reports import read_report
from builder.formats.layers.elf import ElfReader
from builder.formats.layers.inside import _parts
from builder.formats.layers.licences import wheel_licences
from builder.formats.net import answers, apt, findlinks
from builder.formats.net.pipconfig import pip_configuration
from builder.formats.oci.documents import load_json
from builder.formats.oci.reference import Reference
from builder.formats.registry.auth import parse_challenges
from builder.formats.registry.credentials import AuthFile
from builder.formats.trees.ignore import IGNORE_FILE, GitIgnore, Ignore
from builder.lock.condaspec import conda_spec_name
from builder.lock.config.yamlfile import load_yaml
from builder.lock.environment import read_any_environment
from builder.lock.file import read_lock
from builder.lock.formats.common import read_toml
from builder.lock.tomlfile import load_toml
from builder.lock.uv import names_without_wheel
from tests.support import growth
from tests.support.elf import elf

ROOT = Path(builder.__file__).parent
_STATUS = "var/lib/dpkg/status"
_SBOM = '{"bomFormat":"CycloneDX","components":['
Make = Callable[[int], Callable[[], object]]


def _dpkg(text: str) -> object:
    return contents.listed_packages({contents.STATUS: text})


def _python(text: str) -> object:
    files = contents._PythonFiles({}, {}, {_STATUS: text})
    return contents._version("usr/bin/python3.11", "3.11", files)


def _sbom(text: str) -> object:
    with contextlib.suppress(AttributeError, KeyError, TypeError):
        return _parts(text.encode(), "x")
    return None


def _environment(path: Path) -> object:
    return read_any_environment(path, "linux-64", path.parent)


def _pip(path: Path) -> object:
    return pip_configuration({"PIP_CONFIG_FILE": str(path)})


#: By module: a reader of a text, and texts as (beginning, what is repeated, end).
TEXTS: dict[str, tuple[Callable[[str], object], list[tuple[str, str, str]]]] = {
    "core/redact.py: redact": (redact, [
        ("https://h/x?a=", ",", "x"), ("https://h/x?", "&a=b", ""), ("https://", "@", ""), ("", "://a", "@h"),
        ("", "https://h/t/a/t/b?", ""), ("https://", "a:", "@h"), ("https://h", "/t/a", ""), ("", "a", ""),
        ("https://n@", "sha256:" + "0" * 64 + "@", ""), ("https://", "$a:", "@h"), ("https://h/?", "=", ""),
    ]),
    "core/redact.py: userinfo": (userinfo, [
        ("https://", "a:", "@h"), ("", "://", "@"), ("https://", "/@", ""),
    ]),
    "core/redact.py: without": (without_userinfo, [
        ("https://", "a:", "@h"), ("", "://a@", ""), ("x://", "$a", "@"),
    ]),
    "core/git.py": (lambda text: _reason(text.encode()), [
        ("", "a", ""), ("", "\n", ""), ("", "fatal: ", ""),
    ]),
    "core/text.py": (visible, [("", "\x1b", ""), ("", "a", "")]),
    "formats/registry/auth.py": (lambda text: parse_challenges([text]), [
        ("", "1", ""), ("", "a", ""), ('a="', "\\x", ""), ("", "a ", ""), ("a", " ", "="), ("", 'a="', ""),
        ("Bearer ", "a=b,", ""), ("", "a=", ""), ("", "-", "="),
    ]),
    "build/bases/contents.py": (_dpkg, [
        ("", "Package: python3.11\n", ""), ("", "Package: a\nVersion: 1\n\n", ""), ("", "\n", ""),
        ("", " \n", "x"), ("\n", " ", "x"), ("Package:", " ", ""),
    ]),
    "build/bases/contents.py: python": (_python, [
        ("", "Package: python3.11\n", ""), ("", "Package: python3.11\nVersion: x\n\n", ""),
    ]),
    "formats/net/apt.py": (lambda text: list(apt.parse_sources("x.sources", text)), [
        ("", "Types: deb\n", ""), ("Types: deb\nURIs:\n", " x\n", ""), ("", "\n \n", ""),
        ("", "A: b\n\n", ""),
    ]),
    "formats/net/apt.py: lines": (lambda text: list(apt.parse_sources("x.list", text)), [
        ("deb ", "[", ""), ("deb [", "a=b ", "] x y z"), ("deb", " ", ""), ("", "deb x y z\n", ""),
    ]),
    "formats/net/answers.py": (lambda text: answers.load_json(text.encode()), [
        ('{"files": [', '{"url": "x"},', "{}]}"), ("", "[", ""),
    ]),
    "formats/net/findlinks.py: html": (findlinks._of_html, [("", '<a href="x">', ""), ("", "a", "")]),
    "formats/oci/documents.py": (lambda text: load_json(text.encode(), "x"), [
        ("", "[", ""), ("[", "1,", "1]"), ("[", "{},", "1]"), ("", "9", ""), ('"', "\\u0020", '"'),
        ("[", '{"a":[]},', "1]"),
    ]),
    "formats/oci/reference.py": (Reference.parse, [
        ("h.example/", "a", "!"), ("h.example/", "a/", ""), ("h.example/", "-", ""),
        ("h.example/a:", "b", ""),
        ("", "a.", "/x"), ("", ":", ""), ("h.example/", "a_", ""), ("", "@", ""),
    ]),
    "formats/layers/licences.py": (lambda text: wheel_licences(HeaderParser().parsestr(text)), [
        ("", "Classifier: License :: x\n", ""), ("License:", " x\n", ""), ("", "a", ""), ("", "\n", ""),
        ("", ":", ""),
    ]),
    "formats/layers/inside.py": (_sbom, [
        (_SBOM, '{"type":"","name":"a"},', "{}]}"), (_SBOM, '{"type":"","name":"a","components":[', ""),
        (_SBOM + '{"type":"","name":"a","purl":"pkg:a/', "b", '"}]}'),
        (_SBOM + '{"type":"","name":"', "a ", '"}]}'),
        (_SBOM + '{"type":"","name":"a","licenses":[', '{"expression":"MIT"},', "{}]}]}"),
        (_SBOM + '{"type":"","name":"a","hashes":[', '{"alg":"a","content":"b"},', "{}]}]}"),
    ]),
    "lock/condaspec.py": (conda_spec_name, [
        ("a::b [", "=", ""), ("", "a", "!"), ("a://", "::a=", "\n"), ("a", " ", "["), ("", "a=", ""),
        ("a ", "[=", ""),
    ]),
    "lock/uv.py": (names_without_wheel, [
        ("", "a", ""), ("", "Wheels are required for a ", ""), ("", "a==1,", ""), ("", "a[", ""),
        ("", "a<b,<c", ""),
        ("Wheels are required for ", "`", " because"),
    ]),
}  # fmt: skip
#: By the name of a file, and the module: a reader, and texts as above.
FILES: dict[tuple[str, str], tuple[Callable[[Path], object], list[tuple[str, str, str]]]] = {
    ("requirements.txt", "lock/pipsection.py"): (_environment, [
        ("", "a==1\n", ""), ("a @ https://h/x?a=", ",", "x"), ("a", " ", "; x"), ("a", "[b]", ""),
        ("", "\\\n", ""),
        ("./a", "/b", ""), ("a", " --hash=sha256:0", ""), ("", "-e ./x\n", ""), ("a; ", "(", ""),
        ("", "#", ""),
    ]),
    ("environment.yml", "lock/environment.py"): (_environment, [
        ("dependencies:\n", "- a=1\n", ""), ("dependencies:\n- a #", " #", ""),
        ("dependencies:\n- a #", "[", "]"),
        ("dependencies:\n- a #", "[x]", "("), ("dependencies:\n- a", " ", "#"),
        ("dependencies:\n- a", "[", ""),
        ("dependencies:\n- pip:\n", "  - a\n", ""), ("dependencies: ", "[", ""),
        ("dependencies: [", "a,", "b]"),
        ("dependencies: [", "*a, ", "&a b]"),
    ]),
    ("pyproject.toml", "lock/manifests/pyproject.py"): (_environment, [
        ("[project]\nname='a'\ndependencies=[", "'a',", "]"), ("[project]\nname='a'\n[", "a.", "b]"),
        ("[project]\nname='a'\nx=", "[", ""), ("", "[[a]]\n", ""),
        ("[project]\ndependencies=['a", " ", ";x']"),
    ]),
    ("pixi.toml", "lock/manifests/pixi.py"): (_environment, [
        ("[workspace]\nname='a'\n[dependencies]\na='", "1,", "2'"), ("[workspace]\n", "[a]\n", ""),
    ]),
    ("x.toml", "lock/tomlfile.py"): (load_toml, [
        ("a=", "'", ""), ("a='''", "'a", ""), ("a=[", "1,", "]"), ('a="', "\\x", ""), ("", "a.", ""),
        ("", "#\n", ""),
        ("", "a=1\n", ""), ("a={", "b.", "c=1}"), ("a=", "[", ""), ("", '"', ""), ("", "[a]\n", ""),
    ]),
    ("uv.lock", "lock/formats/common.py"): (read_toml, [("", "[[package]]\nname='a'\n", ""), ("", "[[", "")]),
    ("x.lock.yml", "lock/file.py"): (read_lock, [
        ("version: 1\npackage:\n", "- name: a\n", ""), ("package: ", "[", ""), ("package: [", "a,", "b]"),
    ]),
    ("recipe.yaml", "lock/config/yamlfile.py"): (load_yaml, [
        ("", "- ", ""), ("", "? ", ""), ("a: ", "{", ""), ("a: [", "&a b,", "]"), ("a: |\n", "  x\n", ""),
        ("a: '", "''", "'"), ("a: [", "[],", "]"), ("", "!", ""), ("", "#", ""), ("a: {", "b: c,", "}"),
        ("a: [&a b,", "*a,", "]"), ("", "a:\n", ""), ("", "<<<<<<< a\n", ""), ("", "---\n", ""),
    ]),
    (IGNORE_FILE, "formats/trees/ignore.py"): (lambda path: Ignore(path.parent), [
        ("", "*", "b"), ("", "a/**/", "b"), ("", "[", ""), ("", "[a]", ""), ("", "a\n", ""),
        ("", "\\", ""), ("", "**/", "a"),
    ]),
    ("auth.json", "formats/registry/credentials.py"): (lambda path: AuthFile(path, print), [
        ('{"auths": {', '"a": {},', '"b": {}}}'), ("", "[", ""), ("", '{"a":', ""),
    ]),
    ("pip.conf", "formats/net/pipconfig.py"): (_pip, [
        ("[global]\nindex-url=\n", " x\n", ""), ("", "[", ""), ("[global]\n", "a", ""),
        ("[global]\na", " ", "b"),
        ("[global]\n", "\n", ""),
    ]),
    ("x.env", "deliver/site/arguments.py"): (read_env_file, [
        ("", "A=b\n", ""), ("A=", "$", ""), ("", "\n", ""),
    ]),
    ("x.pub", "deliver/publishing/keys.py"): (PublicKey.load, [
        ("", "-----BEGIN PUBLIC KEY-----", ""), ("", "-", ""),
    ]),
    ("report.json", "deliver/smoke/reports.py"): (read_report, [('{"a": [', "1,", "1]}"), ("", "[", "")]),
    ("x.py", "cli/start/imports.py"): (lambda path: list(imported_modules([path])), [
        ("", "import a\n", ""), ("", "(", ""), ("", "a<", "a"), ("", "-", "1"), ("", "a.", "b"),
    ]),
}  # fmt: skip


def _quiet(read: Callable[[Any], object], made: Any) -> object:
    with contextlib.suppress(BuilderError, OSError, ValueError, TarError):
        return read(made)
    return None


def _elf(size: int) -> Callable[[], object]:
    """Names at the beginning of a table of strings, and one at its end."""
    data = elf([*(["a"] * size), "x" * 2048 * size, "b"])

    def read() -> object:
        reader = ElfReader()
        reader.feed(data)
        if reader.wanted is not None:  # the strings passed before they were asked for
            reader.rewind()
            reader.feed(data)
        assert reader.needed is not None and len(reader.needed) == size + 2
        return reader

    return read


def _chain(size: int) -> Callable[[], object]:
    """A program needs a library, which needs another one, and so on; the last one is missing."""
    files: dict[str, tuple[str, ...]] = {f"lib/lib{n}.so": (f"lib{n + 1}.so",) for n in range(size)}
    files["opt/bin/program"] = ("lib0.so",)
    return lambda: list(_missing(files, dict.fromkeys(files, "p"), set(), "(?!)"))


def _lost(size: int) -> Callable[[], object]:
    """Each library needs another one that is missing."""
    files: dict[str, tuple[str, ...]] = {f"lib/lib{n}.so": (f"lost{n}.so",) for n in range(size)}
    return lambda: list(_missing(files, dict.fromkeys(files, "p"), set(), "(?!)"))


def _tar(size: int) -> Callable[[], object]:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for _ in range(size // 16):
            archive.addfile(tarfile.TarInfo("\xe9" * 100))
    return lambda: list(read_headers(io.BytesIO(data.getvalue()).read))


def _pax(size: int) -> Callable[[], object]:
    records = b"".join(b"%d path=%07d\n" % (16, n) for n in range(size // 16))
    return lambda: _pax_records(records)


#: By module: makes the reading of an input of a size, and the largest size.
READERS: dict[str, tuple[Make, int]] = {
    "formats/layers/elf.py": (_elf, 2048),
    "build/image/libraries.py: chain": (_chain, 1 << 14),
    "build/image/libraries.py: missing": (_lost, 1 << 14),
    "core/tarheaders.py": (_tar, 1 << 17),
    "core/tarheaders.py: pax": (_pax, 1 << 20),
}
#: Patterns of .gitignore, and what is repeated in a path. A path has at most 4,096 bytes, a pattern more.
IGNORED = [
    ("*a*a*a*b", "a"), ("**/a/**/a/**/a/**/b", "a/"), ("a/**/a/**/a/b", "a/"), ("*a?*[ab]*b/**/x", "a"),
    ("a*" * 20 + "b", "a"), ("/" + "**/a*a*a/" * 5 + "b", "aaaa/"),
]  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_text(name: str) -> None:
    read, texts = TEXTS[name]

    def make(before: str, one: str, after: str, size: int) -> Callable[[], object]:
        return partial(_quiet, read, before + one * (size // len(one)) + after)

    slow = [text for text in texts if growth.ratio(partial(make, *text), 1 << 19, 1 << 12) > growth.MOST]
    assert not slow


@pytest.mark.parametrize("name", FILES, ids=str)
def test_file(name: tuple[str, str], tmp_path: Path) -> None:
    read, texts = FILES[name]

    def make(before: str, one: str, after: str, size: int) -> Callable[[], object]:
        path = tmp_path / name[0]
        path.write_text(before + one * (size // len(one)) + after)
        path.chmod(0o600)
        return partial(_quiet, read, path)

    slow = [text for text in texts if growth.ratio(partial(make, *text), 1 << 19, 1 << 12) > growth.MOST]
    assert not slow


@pytest.mark.parametrize("name", READERS)
def test_reader(name: str) -> None:
    make, most = READERS[name]
    assert growth.ratio(make, most, 64) <= growth.MOST


@pytest.mark.parametrize(("pattern", "path"), IGNORED)
def test_ignored(tmp_path: Path, pattern: str, path: str) -> None:
    (tmp_path / ".gitignore").write_text(pattern)
    ((_, spec),) = GitIgnore().below(tmp_path).specs
    assert (
        growth.ratio(lambda size: partial(spec.check_file, path * (size // len(path))), 1 << 18, 32)
        <= growth.MOST
    )


#: The bench is not here: it runs in the image, and reads its own machine.
HOUSES = ("build", "cli", "core", "deliver", "formats", "lock")


@pytest.mark.parametrize("house", HOUSES)
def test_patterns(house: str) -> None:
    """Each regular expression of builder, with texts that are made from it."""
    found = [one for one in growth.patterns(ROOT) if one.where.startswith(f"builder/{house}/") and one.regex]
    assert found
    assert [slow for slow in map(growth.slow_text, found) if slow] == []


def test_finds_slow_patterns() -> None:
    """The texts that are made show what is quadratic or worse."""
    quadratic = [r"\s+;", r"(?<==)[^&]*?(?=&|[',.]*$)", r"BEGIN (.*?)END", r"^(?:.+/)?[^/]*a[^/]*a[^/]*b$"]
    for text in quadratic:
        assert growth.slow_text(growth.Pattern(text, re.compile(text), frozenset({"finditer"}))), text


@pytest.mark.parametrize(
    ("seconds", "grows"),
    [
        (lambda size: size * 1e-6, False),
        (lambda size: size * (1e-6 if size < 1 << 16 else 2.2e-6), False),  # it left a cache
        (lambda size: size * size * 1e-9, True),
        (lambda size: 1e-3 * 2 ** (size / 1024), True),
    ],
    ids=["linear", "one step", "quadratic", "exponential"],
)
def test_ratio(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float], grows: bool) -> None:
    monkeypatch.setattr(growth, "_seconds", lambda size, readings: seconds(size))
    assert (growth.ratio(lambda size: size) > growth.MOST) == grows  # type: ignore[arg-type, return-value]


#: What is made of variables, and why it is not among the texts above.
DYNAMIC = {
    "build/bases/mmdebstrap.py: pattern": "the last lines of a log",
    "build/bases/contents.py: pattern": "the row build/bases/contents.py",
    "build/bases/reference.py: pattern": "the name of a base in a recipe",
    "build/bytecode/runtime.py: ": "paths, which are short",
    "build/image/libraries.py: brought": "names of files",
    "build/run/gpu.py: pattern": "names of files in /dev",
    "build/wheels/run.py: ": "the end of a log",
    "core/datafiles.py: ": "the ends of logs, and one line of an error",
    "deliver/publishing/reuse.py: ": "names of files",
    "deliver/site/slurm.py: ": "what the user types",
    "deliver/smoke/": "names of figures and packages, and texts of 100 characters",
    "formats/layers/inside.py: _TEXTS[key]": "the row formats/layers/inside.py",
    "formats/net/proxies.py: pattern": "the name of a host",
    "formats/net/trust.py: pattern": "one line of an error",
    "formats/net/urlvariables.py: pattern": "beginnings of URLs",
    "formats/trees/ignore.py: linear": "test_ignored",
    "formats/trees/project.py: ": "a word",
    "lock/config/fields.py: ": "a value of a recipe",
    "cli/start/found.py: pattern": "words",
    "lock/channels.py: at": "names of channels and beginnings of URLs",
    "lock/hints.py: ": "a word, and the messages of uv",
    "lock/indexes.py: pattern": "beginnings of a name with its version",
    "lock/othertools.py: pattern": "beginnings of lines",
    "lock/tomlfile.py: ": "a word",
    "lock/urls.py: secret": "a word",
    "lock/uv.py: ": "a word",
}


def test_all_patterns() -> None:
    """A new regular expression that is made of variables is in the table above."""
    found = [one.where.removeprefix("builder/") for one in growth.patterns(ROOT) if not one.regex]
    found = [where for where in found if where.startswith(HOUSES)]
    assert [where for where in found if not where.startswith(tuple(DYNAMIC))] == []
    assert [known for known in DYNAMIC if not any(where.startswith(known) for where in found)] == []


#: Calls that parse what somebody wrote.
PARSERS = (
    "json.loads", "json.load", "load_json", "tomli.loads", "yaml.load", "yaml.compose", "ast.parse",
    "HeaderParser", "configparser.RawConfigParser", "configparser.ConfigParser", "csv.reader",
    "struct.Struct", "Struct", "struct.unpack", "struct.unpack_from", "zipfile.ZipFile", "tarfile.open",
    "Reader",
)  # fmt: skip
#: Modules that call these without a row, and why.
OTHERS = {
    **dict.fromkeys([
        "build/bytecode/worker.py", "formats/layers/wheel_archive.py",
        "formats/sif/format.py",
        "formats/sif/read.py", "formats/trees/squashfs/format.py", "formats/trees/tracked.py",
        "build/run/jail.py",
    ], "fields of a fixed size, or a table of them whose size has a bound"),
    **dict.fromkeys([
        "deliver/publishing/attest.py", "deliver/publishing/rebuild.py",
        "deliver/publishing/release_changes.py",
        "deliver/publishing/signatures.py", "deliver/publishing/tags.py", "deliver/publishing/verify.py",
        "deliver/smoke/schema.py", "formats/oci/manifest.py", "formats/registry/answer.py",
        "formats/sif/write.py",
        "formats/layers/conda_archive.py", "formats/layers/conda_activation.py", "lock/names.py",
        "lock/inputs.py",
        "lock/record.py", "lock/solve.py",
    ], "JSON: the row formats/oci/documents.py"),
    **dict.fromkeys([
        "build/bytecode/compile.py", "build/bytecode/layers.py", "build/image/files.py",
        "build/wheels/driver.py", "build/wheels/run.py", "cli/schemas.py", "cli/unchanged.py",
        "core/datafiles.py",
        "core/store/records.py", "deliver/publishing/reuse.py", "deliver/publishing/smoke_record.py",
        "formats/sif/assign.py", "formats/trees/rootfs.py", "lock/config/schema.py",
        "build/fetch/condapackage.py",
    ], "builder wrote it"),
    **dict.fromkeys([
        "build/engines/apptainer.py", "build/run/podman.py", "deliver/publishing/engines.py",
        "deliver/site/scheduler.py",
    ], "JSON of a program of this machine"),
    **dict.fromkeys([
        "formats/layers/zips.py", "formats/registry/oras.py", "lock/sourcesolve.py",
    ], "an archive, whose members are read once"),
    "build/wheels/backend.py": "the rows lock/tomlfile.py, cli/start/imports.py and formats/net/pipconfig.py",
    "cli/start/found.py": "the row lock/environment.py",
    "formats/layers/wheel.py": "lines of csv",
}  # fmt: skip


def test_all_readers() -> None:
    """A new module that parses something has a row, or a reason."""
    rows = {*TEXTS, *READERS, *(module for _, module in FILES)}
    known = {row.partition(":")[0] for row in rows} | set(OTHERS)
    found = set()
    for path in ROOT.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if any(ast.unparse(call.func) in PARSERS for call in calls):
            found.add(str(path.relative_to(ROOT)))
    assert {module for module in found - known if not module.startswith("bench/")} == set()
    assert set(OTHERS) - found == set()
