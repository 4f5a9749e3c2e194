"""Build steps that really run: each runner makes the same layer, as root and as an ordinary user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.build.steps.run import StepRun, run_step
from builder.core.model import Layer
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.entry import Entry, Range
from builder.formats.oci.image import image_of
from builder.formats.oci.layout import read_layout, write_layout
from builder.formats.sif.read import open_sif
from tests.integration.conftest import CLONE, Builder
from tests.support import parts
from tests.support.compare import compare_trees, image_tree
from tests.support.project import TinyProject, edit, tiny_channel, tiny_project
from tests.support.rootfs import PROGRAMS, make_rootfs

TOOLS = (*PROGRAMS, "chmod", "chown", "ln", "mkdir", "mknod", "mkfifo", "rm", "touch", "env")
COMMANDS = (
    "echo hello > /opt/new; chown 33:33 /opt/new; chmod 4750 /opt/new; ln /opt/new /opt/linked",
    "ln -s ./new /opt/short; mkdir -m 2775 /opt/empty; mkdir /opt/full; echo x > /opt/full/x",
    "rm /etc/builder-test; rm -r /srv/old; mkdir /srv/old; echo y > /srv/old/y; touch /etc/passwd",
    "mknod /opt/null c 1 3; mkfifo /opt/pipe; echo t > /tmp/t; echo 1.2.3.4 x >> /etc/hosts",
    "rm -r /srv/folder; echo file > /srv/folder; rm /srv/file; mkdir /srv/file; echo z > /srv/file/z",
    "test -e /data/given; id; env",
)
WANTED = {
    "etc": "dir 755",
    "etc/.wh.builder-test": "file 644",
    "opt": "dir 755",
    "opt/empty": "dir 2775",
    "opt/full": "dir 755",
    "opt/full/x": "file 644",
    "opt/linked": "file 4750",
    "opt/new": "hardlink 4750",
    "opt/short": "symlink 777",
    "srv": "dir 755",
    "srv/file": "dir 755",
    "srv/file/z": "file 644",
    "srv/folder": "file 644",
    "srv/old": "dir 755",
    "srv/old/.wh.x": "file 644",
    "srv/old/y": "file 644",
}
#: Runs the step as another user: CACHE holds the image's layer.
PROGRAM = """\
import sys
from pathlib import Path
from tests.integration.test_steps import run_as
print(run_as(Path(sys.argv[1]), sys.argv[2]).diff_id)
"""


def settings_of(cache: Path) -> Settings:
    return Settings(cache=cache, tmpdir=cache / "tmp", jobs=2)


def base_layer(cache: Path) -> Layer:
    """A shell and some programs, with files to remove, as a layer in a cache."""
    tree = make_rootfs(cache / "tree", TOOLS)
    for name in ("opt/kept", "srv/old/x", "srv/folder/in", "srv/file"):
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    entries = []
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree).as_posix()
        if path.is_dir():
            entries.append(Entry(name, "dir", 0o755))
        else:
            mode = 0o755 if os.access(path, os.X_OK) else 0o644
            entries.append(Entry(name, "file", mode, path.stat().st_size, content=Range(path)))
    return make_layer(entries, "tools", Workspace(settings_of(cache), Store(cache)))


def run_as(cache: Path, runner: str) -> Layer:
    """Runs the step with a runner, in a cache of its own."""
    from builder.build.run.base import Mount

    cache.mkdir(exist_ok=True)
    given = cache / "given"
    given.write_text("data\n")
    given.chmod(0o644)
    image = image_of([base_layer(cache)], {"PATH": "/bin", "IN_IMAGE": "yes"})
    step = StepRun(COMMANDS, env={"IN_STEP": "yes"}, mounts=[Mount(given, "/data/given")])
    return run_step(image, step, Workspace(settings_of(cache), Store(cache)), runner=runner)


def members(layer: Layer) -> dict[str, str]:
    kinds = {tarfile.DIRTYPE: "dir", tarfile.REGTYPE: "file", tarfile.SYMTYPE: "symlink"}
    assert layer.path is not None
    with tarfile.open(layer.path) as tar:
        found = tar.getmembers()
    assert {(m.uid, m.gid, m.mtime) for m in found} == {(0, 0, 315532800)}
    return {m.name: f"{kinds.get(m.type, 'hardlink')} {m.mode:o}" for m in found}


@pytest.fixture(scope="module")
def by_userns(tmp_path_factory: pytest.TempPathFactory) -> Layer:
    return run_as(tmp_path_factory.mktemp("userns") / "cache", "userns")


def test_userns(by_userns: Layer) -> None:
    """Root emulation, deletions, links and modes; nothing of the container's own files."""
    found = members(by_userns)
    swapped = {**found, "opt/linked": found["opt/new"], "opt/new": found["opt/linked"]}
    assert swapped == WANTED or found == WANTED


def test_ordinary_user(by_userns: Layer, ordinary_user: parts.OrdinaryUser) -> None:
    """A user without subordinate ids gets root's layer, byte for byte."""
    command = [sys.executable, "-c", PROGRAM, ordinary_user.home / "steps", "userns"]
    done = ordinary_user.run(command, {"PYTHONPATH": str(CLONE)})
    assert done.stdout.strip() == by_userns.diff_id


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_engines(engine: str, by_userns: Layer, tmp_path: Path, use_runner: Callable[[str], None]) -> None:
    """An engine makes the same layer, and no container is left."""
    use_runner(engine)
    made = run_as(tmp_path / "cache", engine)
    assert members(made) == members(by_userns)
    assert made.diff_id == by_userns.diff_id
    assert subprocess.check_output([engine, "ps", "--all", "--quiet"]) == b""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> TinyProject:
    """The tiny project over a base with a shell, with steps."""
    folder = tmp_path_factory.mktemp("steps")
    made = tiny_project(folder, tiny_channel(folder / "channel").as_uri())
    shutil.rmtree(made.root / "base")
    base = image_of([base_layer(folder / "base")], {"PATH": "/bin"})
    write_layout(base, made.root / "base", "latest", Store(folder / "base"))
    (made.root / "data").write_text("data\n")
    steps = [
        {"run": ["cat /opt/conda/share/small0 > /opt/copy", "rm -r /srv/old"], "title": "copy"},
        {"run": "cat /app/data > /opt/data; chmod 755 /opt/data", "files": True},
    ]
    edit(made.recipe, files=[{"source": "data", "target": "/app/data"}], steps=steps, smoke={"none": "no"})
    shutil.copy(made.recipe, made.root / "recipes" / "flat.yaml")
    edit(made.root / "recipes" / "flat.yaml", format="sif")
    shutil.copy(made.root / "recipes" / "flat.yaml", made.root / "recipes" / "layered.yaml")
    edit(made.root / "recipes" / "layered.yaml", sif={"layout": "layered"})
    return made


@pytest.fixture(scope="module")
def built(project: TinyProject) -> Builder:
    builder = Builder(project.root, project.cache)
    builder.run("build", "tiny", "flat", "layered", env=project.variables())
    return builder


@pytest.mark.parametrize("target", ["flat", "layered"])
def test_sif(built: Builder, project: TinyProject, target: str) -> None:
    """A SIF has the files of the OCI image; only the lock names another target."""
    store = Store(project.cache)
    image = read_layout(project.root / "dist", "tiny")
    sif = open_sif(project.root / "dist" / f"{target}.sif", store)
    found = compare_trees(image_tree(image, store), image_tree(sif, store))
    assert [difference.path for difference in found] == ["opt/builder/conda-lock.yml"]


def test_over_a_sif(built: Builder, project: TinyProject) -> None:
    """A step over the partitions of a SIF that is the base."""
    recipe = project.root / "recipes" / "over.yaml"
    shutil.copy(project.recipe, recipe)
    steps = [{"run": "cat /opt/data > /opt/again; test -s /opt/copy"}]
    edit(recipe, base="sif:dist/layered.sif", format="sif", steps=steps)
    built.run("build", "over", env=project.variables())
    done = built.run("run", "over", "--", "/bin/cat", "/opt/again", env=project.variables())
    assert done.stdout.splitlines()[-1] == "data"


def test_project(built: Builder, project: TinyProject) -> None:
    """The steps saw packages and files; a step that fails keeps nothing and names its line."""
    environ = project.variables()
    script = "cat /opt/data /app/data; ls /srv /opt"
    done = built.run("run", "tiny", "--", "/bin/sh", "-c", script, env=environ)
    assert done.stdout.split()[:2] == ["data", "data"] and "old" not in done.stdout.split()

    edit(project.recipe, steps=[{"run": ["echo first > /opt/first", "echo why; exit 3"]}])
    records = set((project.cache / "layers").glob("step-*"))
    done = built.run("build", "tiny", env=environ, check=False)
    assert done.returncode == 8
    assert "tiny.yaml:" in done.stderr and "steps[0]: the step" in done.stderr
    assert "exit code 3 at 'echo why; exit 3'" in done.stderr and "    why\n" in done.stderr
    log = Path(done.stderr.partition("all lines of the step: ")[2].splitlines()[0])
    assert log.read_text().splitlines()[-1] == "why"
    assert set((project.cache / "layers").glob("step-*")) == records
    assert not list((project.cache / "tmp").iterdir())


def test_killed(project: TinyProject, built: Builder) -> None:
    """Nothing of a step that was killed counts as its layer; the next build removes its files."""
    environ = {**os.environ, "PYTHONPATH": str(CLONE), **project.variables()}
    edit(project.recipe, steps=[{"run": "echo half > /opt/half; echo started; while :; do :; done"}])
    command = [*built.command("build", "tiny"), "-v"]
    process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(line.endswith(": started\n") for line in process.stderr)
    process.kill()
    process.wait()
    assert list((project.cache / "tmp").iterdir())
    edit(project.recipe, steps=[{"run": "test ! -e /opt/half"}])
    built.run("build", "tiny", env=project.variables())
    assert not list((project.cache / "tmp").iterdir())
