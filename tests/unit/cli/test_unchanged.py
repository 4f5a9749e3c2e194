"""``build`` and ``publish`` with nothing changed: what they notice, import, print and ask for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.run import SmokeReport
from tests.support.fakeregistry import FakeRegistry
from tests.support.project import TinyProject, edit

#: Runs a command. The first word: ``ask`` ends it with code 9 when its record does not count, ``modules``
#: prints those that it imported. The second word: a line of Python to run before.
_PROGRAM = """
import atexit, json, os, sys
how, first = sys.argv.pop(1), sys.argv.pop(1)
from builder.core.store import unchanged
if how == "ask":
    unchanged.Recording.running = lambda recording: os._exit(9)
exec(first)
from builder.__main__ import main
if how == "modules":
    atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
main()
"""
FILES = "data/a.txt", "data/empty", "data/sub/b.bin"
LARGE = "data/large.bin"


@dataclass
class Typed:
    """Commands in a project, each in a new process."""

    project: TinyProject
    words: tuple[str, ...] = ("build", "tiny")
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, *more: str, how: str = "run", first: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _PROGRAM, how, first, *self.words, *more],
            cwd=self.project.root,
            env=self.project.variables() | self.variables,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def is_known(self, *more: str, first: str = "") -> bool:
        """Whether the command would print what it printed."""
        done = self.run(*more, how="ask", first=first)
        assert done.returncode in (0, 9), done.stderr
        return done.returncode == 0

    def settle(self, *more: str) -> None:
        """Run the command until it is known: it may write something, or the large file is too young."""
        for _ in range(6):
            done = self.run(*more)
            assert done.returncode == 0, done.stderr
            if self.is_known(*more):
                return
            time.sleep(0.5)  # a large file is too young for two seconds
        raise AssertionError(self.log())

    def log(self) -> str:
        logs = sorted((self.project.cache / "logs").glob("*.log"), key=lambda path: path.stat().st_mtime)
        return "".join(path.read_text() for path in logs[-2:])

    @property
    def digest(self) -> str:
        done = self.run()
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[1]


@pytest.fixture
def typed(copy: TinyProject) -> Typed:
    """A project with files, a recipe that is extended, a requirements file, and a site of its own."""
    root = copy.root
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("" if name.endswith("empty") else name)
    (root / LARGE).write_bytes(b"x" * (3 << 20))
    (root / "data/link").symlink_to("a.txt")
    (root / ".builderignore").write_text("*.tmp\n")
    (root / "recipes/_base.yaml").write_text("labels: {a: b}\n")
    (root / "sites").mkdir()
    (root / "environments/more.txt").write_text("pure\n")
    text = copy.environment.read_text()
    copy.environment.write_text(text.replace("      - pure\n", "      - -r more.txt\n"))
    edit(copy.recipe, extends="_base", files=[{"source": "data", "target": "/data"}])
    subprocess.run(["git", "init", "-q", root], check=True)
    locked = Typed(copy, ("lock", "tiny")).run()
    assert locked.returncode == 0, locked.stderr
    return Typed(copy)


#: Changes one thing of a project in its context.
Change = Callable[[Path], AbstractContextManager[None]]


def _change(make: Callable[..., Iterator[None]]) -> Callable[..., Change]:
    """Return a function that returns the change of a file, whose name is relative to the project."""

    def named(name: str, *args: Any) -> Change:
        return lambda root: contextmanager(make)(root / name, *args)

    return named


@_change
def text(path: Path) -> Iterator[None]:
    """Other bytes, as many as before, and the same times."""
    before, data = path.stat(), path.read_bytes()
    for content in (data[:-1] + bytes([data[-1] ^ 1]) if data else b"x", data):
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        if content != data:
            yield


@_change
def cut(path: Path) -> Iterator[None]:
    before, data = path.stat(), path.read_bytes()
    path.write_bytes(data[:5])
    yield
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@_change
def new(path: Path) -> Iterator[None]:
    folders = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    yield
    path.unlink()
    for folder in folders:
        folder.rmdir()


@_change
def gone(path: Path, instead: Callable[[Path], object] = lambda path: None) -> Iterator[None]:
    """It is elsewhere, and perhaps something else is there."""
    tops = [folder for folder in path.parents if (folder / "recipes").is_dir()]
    root = tops[0] if tops else path.parents[1]
    aside = root.parent / "aside"
    path.rename(aside)
    instead(path)
    yield
    if path.is_symlink() or path.is_file():
        path.unlink()
    aside.rename(path)


@_change
def mode(path: Path) -> Iterator[None]:
    path.chmod(0o755)
    yield
    path.chmod(0o644)


@_change
def tag(path: Path) -> Iterator[None]:
    index = path.read_text()
    path.write_text(index.replace('"tiny"', '"other"'))
    yield
    path.write_text(index)


CHANGES: dict[str, Change] = {
    "recipe": text("recipes/tiny.yaml"),
    "extended recipe": text("recipes/_base.yaml"),
    "policy": new("recipes/_policy.yaml"),
    "new recipe": new("recipes/zwei.yaml"),
    "site of the project": new("sites/mine.yaml"),
    "site of the user": new(".config/builder/sites/mine.yaml"),
    "environment": text("environments/tiny.yml"),
    "requirements file": text("environments/more.txt"),
    "lock": text("environments/tiny.tiny.lock.yml"),
    "lock removed": gone("environments/tiny.tiny.lock.yml"),
    "file": text("data/a.txt"),
    "file below": text("data/sub/b.bin"),
    "file no longer empty": text("data/empty"),
    "file executable": mode("data/a.txt"),
    "empty file executable": mode("data/empty"),
    "new file": new("data/new.txt"),
    "new file below": new("data/sub/new.txt"),
    "removed file": gone("data/sub/b.bin"),
    "removed folder": gone("data/sub"),
    "file becomes a link": gone("data/a.txt", lambda path: path.symlink_to("sub/b.bin")),
    "link leads elsewhere": gone("data/link", lambda path: path.symlink_to("sub/b.bin")),
    ".builderignore": text(".builderignore"),
    ".builderignore removed": gone(".builderignore"),
    "mark of a cache": new("data/sub/CACHEDIR.TAG"),
    "tag moved": tag("dist/index.json"),
    "tag removed": gone("dist/index.json"),
    "dist removed": gone("dist"),
    "blob truncated": cut(""),
    "blob removed": gone(""),
    "pulled since": new("dist/tiny.pulled.json"),
    "large file": text(LARGE),  # the last: the time of the change of an inode cannot be undone
}
#: Lines of Python that change what is no file; ``unchanged`` is the module.
CODE = {
    "version": "unchanged.__version__ = '9'",
    "mask": "os.umask(0o077)",
    "another day": "import time; time.gmtime = lambda *args: time.localtime(0)",
}


def test_changes_are_noticed(typed: Typed) -> None:
    """Each change alone, and undone again."""
    typed.settle()
    root = typed.project.root
    blob = max((root / "dist/blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    missed, left = [], []
    for name, change in CHANGES.items():
        with change(blob if name.startswith("blob") else root):
            missed += [name] if typed.is_known() else []
        left += [] if typed.is_known() else [name]
    assert not missed
    assert left == ["large file"], typed.log()


def test_other_commands_and_machines(typed: Typed) -> None:
    typed.settle()
    missed = [name for name, line in CODE.items() if typed.is_known(first=line)]
    words = [("--json",), ("--to", "oci:out"), ("--lock", str(typed.project.lock)), ("--engine", "layered")]
    missed += [str(more) for more in words if typed.is_known(*more)]
    for name in ("SOURCE_DATE_EPOCH", "BUILDER_JOBS", "BUILDER_SOURCE", "PIP_INDEX_URL", "TOKEN"):
        missed += [name] if replace(typed, variables={name: "1"}).is_known() else []
    assert not missed
    assert replace(typed, variables={"SHLVL": "9", "OLDPWD": "/"}).is_known()


#: What a command with nothing changed never imports.
SLOW = {
    "pydantic",
    "yaml",
    "builder.lock.config",
    "builder.lock",
    "builder.deliver.project",
    "builder.core.model",
}


def modules(typed: Typed, *more: str) -> set[str]:
    done = typed.run(*more, how="modules")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_same_words(typed: Typed, more: tuple[str, ...]) -> None:
    """The command prints the same, and times of its own; it imports next to nothing."""
    typed.settle(*more)
    first, second = typed.run(*more), typed.run(*more)
    assert (first.stdout, first.stderr) == (second.stdout, second.stderr)
    assert (json.loads(first.stdout)["seconds"] == {}) if more else ("built in 0.0 s" in first.stdout)
    imported = modules(typed, *more)
    assert not imported & (SLOW | {"httpx2", "ssl"})
    assert len(imported) <= 190
    assert "nothing that this command reads has changed" in typed.log()
    (record,) = [path for path in (typed.project.cache / "unchanged").iterdir()][-1:]
    assert record.stat().st_mode & 0o777 == 0o600


def test_result_of_a_change(typed: Typed) -> None:
    """The next build has the change, at once and after that."""
    typed.settle()
    before = typed.digest
    (typed.project.root / "data/a.txt").write_text("changed")
    after = typed.digest
    assert after != before
    typed.settle()
    assert typed.digest == after
    edit(typed.project.recipe, labels={"changed": "yes"})
    assert typed.digest not in (before, after)


@pytest.mark.parametrize("words", [("--rebuild",), ("--check-reproducible",), ("--dry-run",)])
def test_words_that_ask_for_work(typed: Typed, words: tuple[str, ...]) -> None:
    for _ in range(3):
        assert typed.run(*words).returncode == 0
    assert not typed.is_known(*words)


def test_failure(typed: Typed) -> None:
    """A command that failed is no record, nor one that was killed before it wrote."""
    kill = "unchanged.write_record = lambda *args: os.kill(os.getpid(), 9)"
    for _ in range(3):
        assert typed.run(first=kill).returncode in (0, -9)
    assert not typed.is_known()
    typed.settle()
    typed.project.lock.write_text("version: 1\n")
    assert typed.run().returncode == typed.run().returncode != 0
    assert not typed.is_known()


@pytest.mark.parametrize(
    "keys", [{}, {"format": "sif"}, {"site": "perlmutter"}, {"site": "lumi-g", "format": "sif"}]
)
def test_everything_asked_is_noticed(typed: Typed, keys: dict[str, str]) -> None:
    """No call of stat, lstat, readlink or access is about a file that a record misses."""
    edit(typed.project.recipe, **keys)
    assert replace(typed, words=("lock", "tiny")).run().returncode == 0
    typed.settle()
    (typed.project.cache / "unchanged").rename(typed.project.cache / "aside")
    command = [sys.executable, "-m", "tests.support.asked", *typed.words]
    variables = typed.project.variables() | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        command, cwd=typed.project.root, env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr.splitlines()[-1]) == []


@pytest.mark.parametrize("change", [cut, gone])
def test_sif(typed: Typed, change: Callable[[str], Change]) -> None:
    """A SIF in ``dist/`` that is another, or gone, is placed again."""
    edit(typed.project.recipe, format="sif")
    typed.settle()
    with change("dist/tiny.sif")(typed.project.root):
        assert not typed.is_known()


def test_publish(typed: Typed) -> None:
    """Only the tags are asked for; a pass that is gone, another tag or a killed push are noticed."""
    cache = typed.project.cache
    SmokeRecord(cache).update(SmokeReport("pass", {}, "userns", typed.digest, 0.0))
    with FakeRegistry() as registry:
        publish = replace(
            typed, words=("publish", "tiny", "--to", f"{registry.host}/t/tiny", "--tag", "26.11")
        )
        publish.settle()
        registry.requests.clear()
        imported = modules(publish)
        asked = [(request.method, request.path) for request in registry.requests]
        names = ["/v2/t/tiny/manifests/26.11", "/v2/t/tiny/manifests/latest"]
        assert asked == [("GET", "/v2/"), *(("HEAD", name) for name in names)]
        assert "httpx2" in imported and not imported & SLOW - {"builder.core.model"}

        missed = [name for name in ("data/a.txt", "recipes/tiny.yaml") if _is_missed(publish, text(name))]
        (record,) = (cache / "smoke").iterdir()
        for name, change in {"pass": gone(record.name), "another": text(record.name)}.items():
            with change(record.parent):
                missed += [name] if publish.is_known() else []
        missed += ["killed push"] if _is_missed(publish, new("unverified/x.json"), cache) else []
        assert publish.is_known()
        tags = registry.manifests["t/tiny"]
        tags["latest"], now = (b"{}", tags["latest"][1]), tags["latest"]
        missed += ["tag"] if publish.is_known() else []
        tags["latest"] = now
        assert publish.is_known() and not missed
        assert replace(publish, words=(*publish.words, "--smoke", "always")).run().returncode != 0
    assert publish.run().returncode != 0  # the registry does not answer


def test_publish_to_a_layout(typed: Typed) -> None:
    SmokeRecord(typed.project.cache).update(SmokeReport("pass", {}, "userns", typed.digest, 0.0))
    publish = replace(typed, words=("publish", "tiny", "--to", "oci:../out"))
    publish.settle()
    index = typed.project.root.parent / "out/index.json"
    assert not modules(publish) & (SLOW | {"httpx2"})
    index.write_text(index.read_text().replace('"latest"', '"other"'))
    assert not publish.is_known()


def _is_missed(typed: Typed, change: Change, folder: Path | None = None) -> bool:
    with change(folder or typed.project.root):
        return typed.is_known()
