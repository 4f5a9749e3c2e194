"""Builder's own lock from the lock of another tool. The conda solver is replaced: it returns one Python."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import LockError, SolveError, UsageError
from builder.core.model import Lock, LockedBase, LockedPackage, LockedSource
from builder.core.settings import Settings
from builder.core.stages import LockOptions
from builder.lock import imported
from builder.lock.config.recipe import Recipe
from builder.lock.file import read_lock, write_lock
from builder.lock.formats import ForeignLock
from builder.lock.imported import import_lock
from builder.lock.inputs import Inputs, stale_reasons
from builder.lock.request import BuiltWheel, LockRequest, SolveRequest
from builder.lock.solve import Cutoffs
from builder.lock.spec import SourceSpec
from builder.lock.uv import NoWheels
from tests.support.reporters import Notes

BASE = LockedBase("debian:bookworm", f"sha256:{'b' * 64}")
#: Wheels of two versions of Python; colorama is for Windows.
UV = """\
version = 1
revision = 3
requires-python = ">=3.10"

[[package]]
name = "fast"
version = "2.0"
source = { registry = "https://index.example/simple" }
wheels = [
    { url = "https://files.example/fast-2.0-cp311-cp311-manylinux_2_17_x86_64.whl", hash = "sha256:%(a)s" },
    { url = "https://files.example/fast-2.0-cp312-cp312-manylinux_2_17_x86_64.whl", hash = "sha256:%(b)s" },
]

[[package]]
name = "mine"
version = "0.1"
source = { virtual = "." }
dependencies = [{ name = "fast" }]

[package.dev-dependencies]
dev = [{ name = "pytest" }, { name = "colorama", marker = "sys_platform == 'win32'" }]

[[package]]
name = "pytest"
version = "9.0"
source = { registry = "https://index.example/simple" }
wheels = [
    { url = "https://me:secret@files.example/pytest-9.0-py3-none-any.whl", hash = "sha256:%(c)s", size = 1 },
]

[[package]]
name = "colorama"
version = "0.4"
source = { registry = "https://index.example/simple" }
wheels = [{ url = "https://files.example/colorama-0.4-py3-none-any.whl", hash = "sha256:%(c)s", size = 1 }]
"""
for letter in "abc":
    UV = UV.replace(f"%({letter})s", letter * 64)
PYPROJECT = """\
[project]
name = "mine"
version = "0.1"
requires-python = ">=3.10"
dependencies = ["fast"]
[dependency-groups]
dev = ["pytest", "colorama; sys_platform == 'win32'"]
"""
EXPLICIT = (
    "@EXPLICIT\nhttps://conda.example/c/linux-64/python-3.12.1-h_0.conda#"
    + "d" * 32
    + "\nhttps://conda.example/c/noarch/six-1.17-pyh_0.conda#"
    + "e" * 32
    + "\n"
)


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[SolveRequest]:
    """The requests to the conda solver, which always finds Python 3.11.2."""
    requests: list[SolveRequest] = []

    def solve(request: SolveRequest) -> tuple[list[LockedPackage], tuple[str, ...]]:
        requests.append(request)
        url = "https://conda.example/c/linux-64/python-3.11.2-0.conda"
        return [LockedPackage("python", "3.11.2", "conda", "linux-64", url, "f" * 64)], ("conda-forge",)

    monkeypatch.setattr(imported, "solve_conda_packages", solve)
    return requests


def recipe(root: Path, **values) -> Recipe:
    base = {"name": "t", "base": "debian:bookworm", "lock": "uv.lock", "root": root}
    return Recipe.model_validate({**base, "source": root / "recipes/t.yaml", **values})


def run(root: Path, settings: Settings, **values) -> Lock:
    return import_lock(LockRequest(Inputs.read(recipe(root, **values)), settings, base=BASE))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "uv.lock").write_text(UV)
    (root / "pyproject.toml").write_text(PYPROJECT)
    return root


def test_uv(folder: Path, settings: Settings, solved: list[SolveRequest]) -> None:
    """The lock has the packages of the file for the Python that was solved, and the Python."""
    lock = run(folder, settings)
    assert [(p.name, p.version) for p in lock.packages] == [("python", "3.11.2"), ("fast", "2.0")]
    assert lock.packages[1].sha256 == "a" * 64
    assert lock.base == BASE
    assert lock.sources == ("uv.lock",)
    assert json.loads(lock.record.inputs["imported"])["file"] == "uv.lock"
    assert lock.record.imported_tool == "a lock file of uv"
    (request,) = solved
    assert [spec.text for spec in request.environment.conda] == ["python >=3.10", "python 3.11.*|3.12.*"]
    assert request.environment.channels == ("conda-forge",)


def test_left_out(folder: Path, settings: Settings, solved: list[SolveRequest]) -> None:
    """Credentials are not stored."""
    assert run(folder, settings).record.left_out == ("left out: dev; to include all: groups: [main, dev]")
    lock = run(folder, settings, groups=["main", "dev"])
    assert lock.record.left_out == ""
    assert [p.url for p in lock.packages if p.name == "pytest"] == [
        "https://files.example/pytest-9.0-py3-none-any.whl"
    ]


def test_environment(folder: Path, settings: Settings, solved: list[SolveRequest]) -> None:
    """The conda packages of an environment file are solved too, with its channels."""
    (folder / "environment.yml").write_text(
        "channels: [c]\ndependencies: [python=3.11, mpich, pip: [fast]]\n"
    )
    with pytest.raises(LockError, match=r"environment.yml:2: mpich is not in the lock"):
        run(folder, settings, environment="environment.yml")
    assert solved[0].environment.channels == ("c",)
    texts = [spec.text for spec in solved[0].environment.conda]
    assert texts == ["python=3.11", "mpich", "pip", "python >=3.10", "python 3.11.*|3.12.*"]


def test_conda_packages(folder: Path, settings: Settings, solved: list[SolveRequest]) -> None:
    """A lock with its own Python is taken as it is."""
    (folder / "conda-linux-64.txt").write_text(EXPLICIT)
    lock = run(folder, settings, lock="conda-linux-64.txt")
    assert [p.name for p in lock.packages] == ["python", "six"]
    assert not solved


def test_addresses(folder: Path, settings: Settings, solved: list[SolveRequest], monkeypatch) -> None:
    """A list made behind a mirror names the public channel; one with the value of a variable is refused."""
    (folder / "list.txt").write_text(EXPLICIT)
    mirrored = replace(settings, mirrors=(("https://public.example", "https://conda.example"),))
    lock = run(folder, mirrored, lock="list.txt")
    assert lock.channels == ("https://public.example/c",)
    assert lock.packages[1].url == "https://public.example/c/noarch/six-1.17-pyh_0.conda"
    monkeypatch.setenv("TOKEN", "s3cr3t")
    (folder / "list.txt").write_text(EXPLICIT.replace("/c/", "/s3cr3t/c/"))
    with pytest.raises(SolveError, match="no lock can have its URL") as error:
        run(folder, settings, lock="list.txt", conda={"channels": ["https://conda.example/$TOKEN/c"]})
    assert "s3cr3t" not in f"{error.value} {error.value.hint}"


class FakeBuilder:
    """Builds nothing, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[SourceSpec] = []

    def name_of(self, source: SourceSpec) -> str | None:
        return source.name

    def build(self, source: SourceSpec, packages: Sequence[LockedPackage]) -> BuiltWheel:
        self.asked.append(source)
        locked = LockedSource(source.kind, source.url, commit=source.revision, tree="f" * 40)
        return BuiltWheel(Path("w"), "tool-1-py3-none-any.whl", "tool", "1", "d" * 64, locked)


def test_sources(folder: Path, settings: Settings, solved: list[SolveRequest]) -> None:
    """What the lock pins as source is built."""
    commit = "c" * 40
    (folder / "requirements.txt").write_text(f"tool @ git+https://host.example/tool.git@{commit}\n")
    target = recipe(folder, lock="requirements.txt")
    with pytest.raises(LockError, match="tool is locked as source"):
        import_lock(LockRequest(Inputs.read(target), settings, base=BASE))
    builder = FakeBuilder()
    lock = import_lock(LockRequest(Inputs.read(target), settings, base=BASE, wheel_builder=builder))
    (source,) = builder.asked
    assert (source.kind, source.url, source.revision) == ("git", "https://host.example/tool.git", commit)
    assert [p.url for p in lock.packages if p.name == "tool"] == ["builder://wheels/tool-1-py3-none-any.whl"]


def test_mirror(folder: Path, settings: Settings, solved: list[SolveRequest]) -> None:
    """A file that was locked behind a mirror gets public URLs."""
    (folder / "uv.lock").write_text(UV.replace("https://files.example/", "https://mirror.example/files/"))
    settings = replace(settings, mirrors=(("https://files.example", "https://mirror.example/files"),))
    assert "mirror.example" not in str(run(folder, settings).packages)


def test_stale(folder: Path, settings: Settings, solved: list[SolveRequest]) -> None:
    target = recipe(folder)
    lock = write_lock(run(folder, settings), target.lock_path)
    assert target.lock_path == folder / "uv.t.lock.yml"
    assert stale_reasons(Inputs.read(target), read_lock(target.lock_path)) == []
    (reason,) = stale_reasons(Inputs.read(recipe(folder, groups=["main", "dev"])), lock)
    assert reason == "groups changed: now with dev, main"
    (folder / "uv.lock").write_text(UV + "# more\n")
    assert stale_reasons(Inputs.read(target), lock) == ["uv.lock changed"]
    (folder / "uv.lock").unlink()
    with pytest.raises(LockError, match=r"uv.lock: no such lock file"):
        stale_reasons(Inputs.read(target), lock)


def test_changed_meanwhile(
    folder: Path, settings: Settings, solved: list[SolveRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes while it is imported makes the lock stale."""
    read = imported.read_foreign

    def change(*args: Any) -> ForeignLock:
        found = read(*args)
        (folder / "uv.lock").write_text(UV + "# more\n")
        return found

    monkeypatch.setattr(imported, "read_foreign", change)
    assert stale_reasons(Inputs.read(recipe(folder)), run(folder, settings)) == ["uv.lock changed"]


def test_update(folder: Path, settings: Settings) -> None:
    asked = LockRequest(Inputs.read(recipe(folder)), settings, base=BASE, options=LockOptions(["fast"]))
    with pytest.raises(UsageError, match="the versions of target t are those of uv.lock"):
        import_lock(asked)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("manylinux_2_17_x86_64", "win_amd64", "fast"),
        ('">=3.10"', '">=3.99"', "requires Python >=3.99"),
        ("version = 1\n", "version = 9\n", "9"),
    ],
)
def test_unusable(
    folder: Path, settings: Settings, solved: list[SolveRequest], old: str, new: str, message: str
) -> None:
    """No wheel for the target, no known Python, an unknown version of the format."""
    (folder / "uv.lock").write_text(UV.replace(old, new))
    with pytest.raises((LockError, SolveError)) as error:
        run(folder, settings)
    assert message in error.value.message
    assert error.value.hint
    assert not solved


PYLOCK = """\
lock-version = "1.0"
created-by = "x"
[[packages]]
name = "tool"
version = "1"
"""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            '[packages.vcs]\ntype = "git"\nurl = "file:///r"\ncommit-id = "--upload-pack=sh;"',
            "'--upload-pack=sh;' is no commit",
        ),
        (f'[packages.vcs]\ntype = "git"\nurl = "ext::sh"\ncommit-id = "{"c" * 40}"', "'ext::sh' is no addr"),
        (
            f'[packages.vcs]\ntype = "git"\nurl = "ssh://-oProxyCommand=sh/r"\ncommit-id = "{"c" * 40}"',
            "is no address",
        ),
        (
            f'[packages.vcs]\ntype = "git"\nurl = "https://a.example/$AWS_SECRET"\ncommit-id = "{"c" * 40}"',
            "cannot name the variable AWS_SECRET",
        ),
        (
            f'[packages.sdist]\npath = "../../tool-1.tar.gz"\nhashes = {{sha256 = "{"c" * 64}"}}',
            "outside of the project",
        ),
        ('[packages.directory]\npath = "/etc"', "outside of the project"),
    ],
)
def test_hostile_sources(
    folder: Path,
    settings: Settings,
    solved: list[SolveRequest],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    message: str,
) -> None:
    """A lock from a stranger names no options of git, no variable, and no file outside of the project."""
    monkeypatch.setenv("AWS_SECRET", "s3cr3t")
    (folder / "pylock.toml").write_text(f"{PYLOCK}{source}\n")
    target = recipe(folder, lock="pylock.toml")
    builder = FakeBuilder()
    with pytest.raises(LockError, match=message) as error:
        import_lock(LockRequest(Inputs.read(target), settings, base=BASE, wheel_builder=builder))
    assert builder.asked == []
    assert "s3cr3t" not in str(error.value)


def test_line_ends_in_a_url(folder: Path, settings: Settings, solved: list[SolveRequest]) -> None:
    """uv reads what an index has to name from a file of lines."""
    text = UV.replace(
        "fast-2.0-cp311-cp311-manylinux_2_17_x86_64.whl", "fast-2.0-py3-none-any.whl?\\n-r/etc/x"
    )
    text = re.sub(', hash = "sha256:a+"', "", text)
    (folder / "uv.lock").write_text(text)
    with pytest.raises(LockError, match="has a control character"):
        run(folder, settings)


@pytest.mark.parametrize(
    "line",
    [
        "six==1.17 --hash=sha256:" + "a" * 64 + "\n--index-url https://a.example/${AWS_SECRET}/simple",
        "six @ https://a.example/${AWS_SECRET}/six-1.17-py3-none-any.whl",
    ],
)
def test_variables_of_requirements(
    folder: Path, settings: Settings, solved: list[SolveRequest], line: str
) -> None:
    (folder / "requirements.txt").write_text(f"{line}\n")
    with pytest.raises(LockError, match="cannot name the variable AWS_SECRET"):
        run(folder, settings, lock="requirements.txt")


@pytest.mark.parametrize(
    ("lines", "pythons"),
    [
        # poetry writes the Pythons of the project beside each line
        (
            ["a==1 ; python_version >= '3.10' and python_version < '3.12'"],
            "python 3.10.*|3.11.*",
        ),
        (["a==1 ; python_version == '3.10'", "b==1 ; python_full_version >= '3.9'"], "python 3.10.*"),
        (["a==1 ; python_version >= '3.11'", "b==1 ; python_version < '3.13'"], "python 3.11.*|3.12.*"),
        (["a==1", "b==1 ; python_version < '3.10'"], "python 3.8.*|3.9.*"),
        # the oldest Pythons need one more package, and the newest ones: others do without
        (["a==1", "tomli==2 ; python_version < '3.11'", "b==1 ; python_version >= '3.14'"], "python 3.8.*|"),
        (["a==1", "b==1 ; python_version >= '3.11' and python_version < '3.12'"], "python 3.11.*"),
        # one name, two versions
        (["a==1 ; python_version < '3.11'", "a==2 ; python_version >= '3.11'"], "python 3.8.*|"),
        (["a==1", "b==1 ; sys_platform == 'win32'"], "python 3.8.*|"),
    ],
)
def test_python_of_markers(
    folder: Path, settings: Settings, solved: list[SolveRequest], lines: list[str], pythons: str
) -> None:
    """A list of requirements does not say for which Pythons it is; its markers do."""
    wheels = {
        f"{name}=={v}": f"{name} @ https://h.example/{name}-{v}-py3-none-any.whl"
        for name in ("a", "b")
        for v in "12"
    }
    text = "".join(f"{line} --hash=sha256:{'a' * 64}\n" for line in lines)
    for pin, wheel in wheels.items():
        text = text.replace(f"{pin} ", f"{wheel} ")
    (folder / "requirements.txt").write_text(text)
    (folder / "environment.yml").write_text("channels: [c]\ndependencies: []\n")
    task = imported._Task(*_task_values(folder, settings, lock="requirements.txt"))
    asked = "python " + "|".join(f"{version}.*" for version in imported._versions(task, ""))
    assert asked.startswith(pythons) and (pythons.endswith("|") or asked == pythons)


def _task_values(folder: Path, settings: Settings, **values: Any) -> tuple[Any, ...]:
    inputs = Inputs.read(recipe(folder, **values))
    request = SolveRequest(inputs.recipe, inputs.environment, settings)
    return request, inputs, Cutoffs.of(inputs, None), inputs.recipe.imported_lock, None


@pytest.mark.parametrize(
    ("name", "text", "asked"),
    [
        ("r.txt", "a==1 ; python_full_version >= '3.11.5' and python_version < '3.12'", ["", "3.11.*"]),
        ("r.txt", "a==1 ; python_full_version < '3.11.5' and python_version >= '3.11'", ["", "3.11.*"]),
        ("uv.lock", UV.replace(">=3.10", "==3.11.1"), ["==3.11.1", "3.11.*"]),
        ("uv.lock", UV.replace(">=3.10", ">=3.11.2,!=3.12.4"), ["!=3.12.4,>=3.11.2", "3.11.*|3.12.*"]),
    ],
)
def test_patch_releases(
    folder: Path, settings: Settings, solved: list[SolveRequest], name: str, text: str, asked: list[str]
) -> None:
    """A lock may be for some patch releases of a version of Python alone."""
    (folder / name).write_text(text)
    task = imported._Task(*_task_values(folder, settings, lock=name))
    needed = imported.foreign_python(task.path) or ""
    imported._solve_python(task, imported._versions(task, needed), needed)
    texts = [spec.text.removeprefix("python").strip() for spec in solved[0].environment.conda]
    assert texts[-2:] == asked


def test_older_patch_release(folder: Path, settings: Settings, solved: list[SolveRequest]) -> None:
    """The Python that was found is 3.11.2, for which no requirement is left."""
    (folder / "r.txt").write_text("a==1 ; python_full_version >= '3.11.3' and python_version < '3.12'\n")
    with pytest.raises(LockError, match="r.txt:1: a==1 .* all other markers are false"):
        run(folder, settings, lock="r.txt")
    assert solved


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["a==1 ; sys_platform == 'win32'"], ':1: a==1 ; sys_platform == "win32": this and all other'),
        (
            ["c==1", "a==1 ; python_version == '3.10'", "b==1 ; python_version == '3.11'"],
            ':2: a==1 ; python_version == "3.10": no version of Python keeps this',
        ),
    ],
)
def test_markers_of_no_python(
    folder: Path, settings: Settings, solved: list[SolveRequest], lines: list[str], said: str
) -> None:
    (folder / "requirements.txt").write_text("\n".join(lines))
    with pytest.raises(LockError) as caught:
        run(folder, settings, lock="requirements.txt")
    assert said.replace('"', "") in caught.value.message.replace("'", "").replace('"', "")
    assert caught.value.hint and not solved


def test_named_python(folder: Path, settings: Settings, solved: list[SolveRequest]) -> None:
    """What the user chooses is taken, whatever markers say."""
    (folder / ".python-version").write_text("3.12\n")
    text = "a==1\nb==1 ; python_version == '3.10'\nc==1 ; python_version == '3.11'\n"
    (folder / "requirements.txt").write_text(text)
    task = imported._Task(*_task_values(folder, settings, lock="requirements.txt"))
    assert len(imported._versions(task, "")) == len(imported._MINORS)


def test_older_python(
    folder: Path, settings: Settings, solved: list[SolveRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv names the Pythons for which a pin has wheels: the newest one that is older is tried next."""
    tags = "the following Python ABI tags: `cp38`, `cp310`, `cp313`"
    asked: list[tuple[LockedPackage, ...]] = []

    def solve(request: SolveRequest, conda: Sequence[LockedPackage], *rest: Any) -> list[LockedPackage]:
        asked.append(tuple(conda))
        if len(asked) == 1:
            raise NoWheels(SolveError(f"You require (`cp311`): {tags}"), ["num"])
        return [
            LockedPackage("num", "1", "pip", "linux-64", "https://h.example/num-1-py3-none-any.whl", "a" * 64)
        ]

    monkeypatch.setattr(imported, "solve_pip", solve)
    (folder / "requirements.txt").write_text("num==1\n")
    lock = run(folder, settings, lock="requirements.txt")
    assert [p.name for p in lock.packages] == ["python", "num"] and len(asked) == 2
    assert [request.environment.conda[-1].text for request in solved][1] == "python 3.8.*|3.10.*"
    (folder / ".python-version").write_text("3.11\n")
    asked.clear()
    with pytest.raises(NoWheels):
        run(folder, settings, lock="requirements.txt")


def test_notes(
    folder: Path, settings: Settings, solved: list[SolveRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only this Python leaves out is printed, and what the platform leaves out is not."""
    wheel = f"https://h.example/a-1-py3-none-any.whl --hash=sha256:{'a' * 64}"
    text = f"a @ {wheel}\ntomli==2 ; python_version < '3.11'\nwin==1 ; sys_platform == 'win32'\n"
    (folder / "requirements.txt").write_text(text)
    reporter = Notes()
    inputs = Inputs.read(recipe(folder, lock="requirements.txt"))
    import_lock(LockRequest(inputs, settings, base=BASE, reporter=reporter))
    assert "t: requirements.txt has tomli for other versions of Python" in reporter.notes
    assert "win" not in " ".join(reporter.notes)


def test_wheel_by_url(
    folder: Path, settings: Settings, solved: list[SolveRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv gets the Python and the wheels that the file has: its conda packages are those of the lock."""
    asked: list[tuple[list[str], list[str], list[str]]] = []

    def solve(
        request: SolveRequest, conda: Sequence[LockedPackage], wheels: Sequence[LockedPackage], *rest: Any
    ) -> list[LockedPackage]:
        asked.append(
            ([s.text for s in request.environment.pip], *([p.name for p in x] for x in (conda, wheels)))
        )
        return []

    monkeypatch.setattr(imported, "solve_pip", solve)
    wheels = f"# pip a @ https://h.example/a-1-py3-none-any.whl#sha256={'a' * 64}\n"
    wheels += "# pip b @ https://h.example/b-1-py3-none-any.whl\n"
    (folder / "list.txt").write_text(EXPLICIT + wheels)
    run(folder, settings, lock="list.txt")
    assert asked == [(["b @ https://h.example/b-1-py3-none-any.whl"], ["python", "six"], ["a"])]


def test_order_of_a_list(folder: Path, settings: Settings, solved: list[SolveRequest]) -> None:
    """conda links an explicit list in its order, which has no dependencies."""
    python, six = EXPLICIT.splitlines()[1:]
    (folder / "list.txt").write_text(f"@EXPLICIT\n{six}\n{python}\n")
    assert run(folder, settings, lock="list.txt").record.link_order == "six python"
    assert run(folder, settings).record.link_order == ""
