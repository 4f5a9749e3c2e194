"""The project's own code in images: edited, run and published as its author does it, with real parts.

Each command is a new process, in a real project of each kind that ``builder init`` reads.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builder.core.model import LockedSource
from builder.lock.file import read_lock
from tests.integration.conftest import keep_base
from tests.support import parts
from tests.support.cli import tags
from tests.support.gitserver import Repo
from tests.support.ownprojects import KINDS, SETUPTOOLS, Kind, User, replace_text, write_files
from tests.support.wheels import make_wheel

INIT = "builder init -y --base debian:bookworm"
#: How zip files begin: wheels and conda packages.
_ZIP = b"PK\x03\x04"


def test_archives_of_mirrors(tmp_path: Path, cache: Path) -> None:
    """What was fetched, also from a folder of BUILDER_MIRRORS, is enough for other layers and other code.

    This is the first test: the others remove archives from the cache.
    """
    user = User(tmp_path / "mine", cache)
    KINDS["environment.yml"].write(user.folder)
    user.type(f"{INIT} && builder build")
    with (user.folder / "recipes/mine.yaml").open("a") as recipe:
        recipe.write("layers: {groups: 2}\n")
    user.type("builder build", offline=True)
    assert user.type("builder run -- say", offline=True).stdout == "first\n"
    replace_text(user.folder / "src/walk/__init__.py", "first", "without network")
    assert user.type("builder run -- say", offline=True).stdout == "without network\n"


@dataclass(frozen=True)
class Walk:
    """A project on its way through the commands."""

    kind: Kind
    user: User
    in_git: bool

    @property
    def folder(self) -> Path:
        return self.user.folder

    @property
    def lock(self) -> Path:
        (path,) = self.folder.glob("*.mine.lock.yml")
        return path

    @property
    def module(self) -> str:
        """A module that its author has not yet added."""
        return f"{self.kind.package}/extra.py"

    @property
    def add(self) -> str:
        """The line that adds it."""
        return f"git -C {self.folder} add {self.module}"

    @property
    def wheels(self) -> dict[str, bytes]:
        """The wheels of the project, by their paths."""
        return {str(path): path.read_bytes() for path in (self.folder / "wheels").rglob("*.whl")}

    def locked(self) -> tuple[bytes, dict[str, bytes]]:
        """Return the lock and the wheels, which must not change."""
        return self.lock.read_bytes(), self.wheels

    def build(self, *, offline: bool = False) -> str:
        """Build, and return the digest."""
        return str(json.loads(self.user.type("builder build --json", offline=offline).stdout)["digest"])

    def publish(self, layout: str, options: str = "", *, offline: bool = False) -> str:
        """Publish to a layout beside the project, and return the digest of its tag ``latest``."""
        place = self.folder.parent / layout
        self.user.type(f"builder publish --to oci:{place} {options}", offline=offline)
        return tags(place)["latest"]

    def says(self, text: str, options: str = "", *, offline: bool = False) -> str:
        """Run the package's program, which must print a text; return what builder reports."""
        done = self.user.type(f"builder run {options} -- {self.kind.say}", offline=offline)
        assert done.stdout == f"{text}\n", done.stdout + done.stderr
        return done.stderr


@pytest.mark.parametrize("name", KINDS)
def test_walk(name: str, tmp_path: Path, cache: Path) -> None:
    """A project from its first image to a publish after an edit, without git and then with it; after that
    without network, and with a new requirement.
    """
    folder = tmp_path / "mine"
    plain = Walk(KINDS[name], User(folder, cache), in_git=False)
    plain.kind.write(folder)
    if plain.kind.before_lock:
        plain.user.type(plain.kind.before_lock)
    first = train(plain)
    leave_files(plain, first)
    second = edit_code(plain, first, "first", "second")

    repo, before = Repo(folder), plain.locked()
    repo.git("add", "--all")
    repo.git("commit", "--quiet", "--message", "image")
    walk = replace(plain, in_git=True)
    leave_files(walk, second)
    assert plain.locked() == before, "a commit and its .gitignore change no lock"
    third = edit_code(walk, second, "second", "third")
    work_offline(walk, third)
    require_more(walk)


def train(walk: Walk) -> str:
    """Init, build and run twice: what a run writes changes neither lock nor wheels."""
    user = walk.user
    user.type(INIT)
    with (walk.folder / "recipes/mine.yaml").open("a") as recipe:
        recipe.write("smoke: {none: other tests have one}\n")
    first = walk.build()
    before = walk.locked()
    assert len(before[1]) == 1
    for _ in range(2):
        user.type("builder run -- python train.py")
    assert (walk.folder / "model.txt").read_text() == "first\nfirst\n"
    assert walk.locked() == before
    return first


def leave_files(walk: Walk, first: str) -> None:
    """Leave files that are no code: the lock is up to date, and the image is the first one.

    In a checkout a module that git does not track is one of them, which a note says.
    """
    before, text = walk.locked(), "second" if walk.in_git else "first"
    names = ["train.log", "outputs/result.txt", ".ipynb_checkpoints/train.ipynb"]
    write_files(walk.folder, dict.fromkeys(names, "x\n"))
    with (walk.folder / ".gitignore").open("a") as file:
        file.write("*.ckpt\n")
    if walk.in_git:
        write_files(walk.folder, {walk.module: 'TEXT = "third"\n'})
    checked = walk.user.type("builder lock --check")
    assert checked.stdout == "mine: fresh\n"
    expected = [walk.add] if walk.in_git else []
    notes = walk.says(text)
    assert to_add(checked.stderr) == to_add(notes) == expected
    assert f"built here ({first[:19]})" in notes
    assert walk.locked() == before


def to_add(notes: str) -> list[str]:
    """Return the lines to type in notes about files that git does not track."""
    found = [line for line in notes.splitlines() if "git does not track" in line]
    return [line[line.index("git -C ") :] for line in found]


def edit_code(walk: Walk, before: str, old: str, new: str) -> str:
    """Edit the code: what others get is refused, and run writes the new wheel into the lock.

    Args:
        walk: the project.
        before: the digest of its image.
        old, new: the text of the code.
    """
    user, wheels = walk.user, walk.wheels
    if walk.in_git:
        user.type(walk.add)
    text = "from walk.extra import TEXT" if walk.in_git else f'TEXT = "{new}"'
    replace_text(walk.folder / walk.kind.package / "__init__.py", f'TEXT = "{old}"', text)
    stale = f"walk: the files of {walk.folder} changed"
    assert user.type("builder lock --check", code=4).stdout == f"mine: stale: {stale}\n"
    refused = user.type(f"builder publish --to oci:{walk.folder.parent}/published", code=4)
    assert stale in refused.stderr and "hint: builder build mine\n" in refused.stderr
    notes = walk.says(old, "--no-build")
    assert re.fullmatch(r"running mine .*: built here .*, with the code of that build\n", notes), notes
    notes = walk.says(new)
    (wheel,) = (Path(path).name for path in wheels)
    assert f"mine: your code has changed: {walk.lock.name} has the new {wheel}\n" in notes
    assert not to_add(notes)
    assert walk.wheels.keys() == wheels.keys() and walk.wheels != wheels
    after = walk.build()
    assert f"built here ({after[:19]})" in notes and after != before
    assert walk.publish(f"published-{new}") == after
    return after


def work_offline(walk: Walk, digest: str) -> None:
    """Build, run and publish the unchanged target without archives and network."""
    assert only_in_cache(walk.user.cache), "the replaced wheel"
    walk.user.type("builder cache prune --packages")
    assert not only_in_cache(walk.user.cache)
    for path in archives(walk.user.cache):  # links to files of the channel and the project
        path.unlink()
    assert walk.build(offline=True) == digest
    walk.says("third", offline=True)
    assert walk.publish("elsewhere", offline=True) == digest
    assert not archives(walk.user.cache)


def archives(cache: Path) -> list[Path]:
    """Return the archives of packages in a cache."""
    found = []
    for path in (cache / "blobs/sha256").iterdir():
        with path.open("rb") as file:
            found += [path] if file.read(4) == _ZIP else []
    return found


def only_in_cache(cache: Path) -> list[Path]:
    """Return the archives that are not links to files elsewhere."""
    return [path for path in archives(cache) if path.stat().st_nlink == 1]


def require_more(walk: Walk) -> None:
    """Add a requirement, which needs a solve: run names the command."""
    user = walk.user
    command = 'builder run -- python -c "import iniconfig"'
    replace_text(walk.folder / walk.kind.requirements, '"six",', '"six", "iniconfig",')
    refused = user.type(command, code=4)
    assert "iniconfig" in refused.stderr
    if walk.kind.before_lock:
        assert "uv lock" in refused.stderr
        failed = user.type("builder lock mine", code=4)
        assert "iniconfig" in failed.stderr and "uv lock" in failed.stderr
        user.type(walk.kind.before_lock)
        refused = user.type(command, code=4)
    assert "hint: builder lock mine\n" in refused.stderr
    user.type("builder lock mine")
    user.type(command)
    assert len(walk.wheels) == 1


def test_folder_of_a_run(tmp_path: Path, cache: Path) -> None:
    """A folder that a run left, where setuptools looks for packages, is no part of the package."""
    user = User(tmp_path / "mine", cache)
    Kind({"pyproject.toml": SETUPTOOLS}, "walk").write(user.folder)
    user.type(f"{INIT} && builder build")
    (user.folder / "outputs").mkdir()
    (user.folder / "outputs/result.txt").write_text("x\n")
    assert user.type("builder run -- say").stdout == "first\n"
    replace_text(user.folder / "walk/__init__.py", "first", "second")
    assert user.type("builder run -- say").stdout == "second\n"


def test_new_packages(tmp_path: Path, cache: Path) -> None:
    """Packages that git does not track, with their folder, are named with the line that adds them.

    Until it tracks a module, all modules count.
    """
    user = User(tmp_path / "mine", cache)
    Kind({"pyproject.toml": SETUPTOOLS}, "src/walk").write(user.folder)
    repo = Repo(user.folder)
    repo.git("add", "pyproject.toml")
    assert not to_add(user.type(f"{INIT} && builder build").stderr)
    assert user.type("builder run -- say").stdout == "first\n"
    repo.git("add", "src")
    assert user.type("builder lock --check").stdout == "mine: fresh\n"
    write_files(user.folder, {"src/walk/models/__init__.py": "", "src/walk/models/net.py": ""})
    (line,) = to_add(user.type("builder lock --check").stderr)
    user.type(line)
    assert not to_add(user.type("builder lock --check", code=4).stderr)
    assert "??" not in repo.git("status", "--porcelain", "src")


def test_two_targets(tmp_path: Path, cache: Path) -> None:
    """Each target has its own lock; the folder wheels/ has what the two name, and nothing twice."""
    user = User(tmp_path / "mine", cache)
    KINDS["environment.yml"].write(user.folder)
    user.type(f"{INIT} && cp recipes/mine.yaml recipes/other.yaml")
    user.type("builder build mine && builder build other")
    replace_text(user.folder / "src/walk/__init__.py", "first", "second")
    assert user.type("builder run mine -- say").stdout == "second\n"
    assert len(list((user.folder / "wheels").rglob("*.whl"))) == 2
    checked = user.type("builder lock --check", code=4).stdout.splitlines()
    assert checked[0] == "mine: fresh" and checked[1].startswith("other: stale: walk: the files of")
    assert user.type("builder run other --no-build -- say").stdout == "first\n"
    assert user.type("builder run other -- say").stdout == "second\n"
    assert len(list((user.folder / "wheels").rglob("*.whl"))) == 1


HELLO = "import sys\n\n\ndef main():\n    print(*sys.argv[1:])\n"
SITE = "site: {title: Here, launcher: srun, slurm: {account: none}}\n"


def test_names_of_programs(tmp_path: Path, cache: Path) -> None:
    """A program with the name of the target: what follows -- is a command, whatever its name."""
    user = User(tmp_path / "hello", cache)
    project = SETUPTOOLS.replace('"walk"', '"hello"').replace('say = "walk:main"', 'hello = "hello:main"')
    write_files(user.folder, {"pyproject.toml": project, "src/hello/__init__.py": HELLO})
    user.type(INIT)
    with (user.folder / "recipes/hello.yaml").open("a") as recipe:
        recipe.write(SITE)
    user.type("builder build")
    for command in ("run", "run hello", "run hello --no-build"):
        assert user.type(f"builder {command} -- hello world").stdout == "world\n", command
    for command in ("job", "job hello"):
        script = user.type(f"builder {command} -- hello world").stdout.replace("\\\n", " ")
        (line,) = (line.split() for line in script.splitlines() if "exec builder run" in line)
        assert line[:4] == ["exec", "builder", "run", "hello"] and line[-3:] == ["--", "hello", "world"]
    replace_text(user.folder / "src/hello/__init__.py", "*sys", "'hello', *sys")
    tested = user.type("builder smoke hello")
    assert "pass: the image works" in tested.stdout and "hello: your code has changed" in tested.stderr
    assert user.type("builder run -- hello world").stdout == "hello world\n"


def source_of(folder: Path) -> LockedSource:
    """Return the source of the project's own package in its lock."""
    (lock,) = folder.glob("*.mine.lock.yml")
    (source,) = (package.source for package in read_lock(lock).packages if package.name == "walk")
    assert source is not None
    return source


def test_two_clones(tmp_path: Path, cache: Path, base_cache: Path) -> None:
    """Another clone builds the same image, with the setuptools of the lock and not the newest."""
    kind, one = KINDS["environment.yml"], User(tmp_path / "one/mine", cache)
    kind.write(one.folder)
    repo = Repo(one.folder)
    one.type(f"{INIT} && echo 'bytecode: none' >> recipes/mine.yaml")
    digest = json.loads(one.type("builder build --json").stdout)["digest"]
    requires = source_of(one.folder).requires
    assert [pin.partition("==")[0] for pin in requires] == ["setuptools"]
    repo.git("add", "--all")
    repo.git("commit", "--quiet", "--message", "image")

    (tmp_path / "two").mkdir()
    repo.git("clone", "--quiet", one.folder.as_uri(), str(tmp_path / "two/mine"))
    links = f"{newest_setuptools(tmp_path / 'links')} {os.environ.get('PIP_FIND_LINKS', '')}"
    other = keep_base(base_cache, tmp_path / "two/cache")
    two = User(tmp_path / "two/mine", other, {"PIP_FIND_LINKS": links.strip()})
    shutil.rmtree(two.folder / "wheels")
    built = two.type("builder build --json")
    assert json.loads(built.stdout)["digest"] == digest
    assert two.type("git status --porcelain -- '*.lock.yml'").stdout == ""

    replace_text(two.folder / "src/walk/__init__.py", "first", "second")
    assert two.type("builder run -- say").stdout == "second\n"
    assert source_of(two.folder).requires == requires
    (two.folder / "environment.mine.lock.yml").unlink()
    assert "this is release 999" in two.type("builder lock", code=7).stderr, "a new lock takes the newest"


def newest_setuptools(folder: Path) -> Path:
    """Make a folder with a release of setuptools that is newer than all others, and builds nothing."""
    folder.mkdir()
    code = "raise SystemExit('this is release 999')\n"
    make_wheel(folder, "setuptools", "999.0", files={"setuptools/build_meta.py": code})
    return folder


def test_nothing_changed(tmp_path: Path, cache: Path) -> None:
    """A build of unchanged code reads no recipe, and each change of the code or of git is noticed."""
    kind, user = KINDS["environment.yml"], User(tmp_path / "mine", cache)
    kind.write(user.folder)
    repo, module = Repo(user.folder), user.folder / "src/walk/__init__.py"
    (user.folder / ".gitignore").write_text("outputs/\n")
    repo.git("add", "--all")
    repo.git("commit", "--quiet", "--message", "code")
    user.type(f"{INIT} && echo 'bytecode: none' >> recipes/mine.yaml")

    def build() -> tuple[str, bool]:
        """Return the digest, and whether nothing was read but the record."""
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        done = user.type(f"builder --log-file {log} build --json")
        return json.loads(done.stdout)["digest"], "nothing that this command reads" in log.read_text()

    def settled() -> str:
        found = next(digest for digest, is_known in (build() for _ in range(4)) if is_known)
        assert build() == (found, True)
        return found

    digests = [settled()]
    replace_text(module, "first", "other")
    digests.append(build()[0])
    (module.parent / "extra.py").write_text("x = 1\n")
    assert not build()[1]  # a note names the file
    repo.git("add", "--all")
    digests.append(build()[0])
    assert len(set(digests)) == 3 and settled() == digests[-1]
    for line in (
        "chmod +x src/walk/extra.py",
        "echo '*.x' >> .gitignore",
        "git init -q ..",
        "mv .git ../git",
    ):
        user.type(line)
        assert not build()[1], line
    user.type("builder build && rm -r $BUILDER_CACHE/unchanged")
    done = user.type(f'PYTHONPATH="{parts.CLONE}" {sys.executable} -m tests.support.asked build')
    assert json.loads(done.stderr.splitlines()[-1]) == []
