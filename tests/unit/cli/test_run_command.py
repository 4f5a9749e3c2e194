"""``builder run``: which image it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.cli.run_here import bind_folder
from builder.model import Image, SifImage
from builder.oci.digest import sha256
from builder.oci.layout import list_tags
from builder.project import Project
from builder.run import trial, userns
from builder.run.base import DEFAULT_OPTIONS, Mount, RunOptions
from builder.run.process import Completed
from builder.run.select import runner_classes
from builder.settings import Settings
from builder.site import command
from builder.site.command import ContainerRequest
from builder.site.pulled import EnginePull, record_pull, recorded_pull
from tests.support.cli import Cli
from tests.support.fakeregistry import FakeRegistry
from tests.support.project import TinyProject, edit

OTHER = "sha256:" + "0" * 64


def test_digest(do: Cli, copy: TinyProject) -> None:
    """With ``--digest`` no other image runs."""
    other = "sha256:" + "0" * 64
    built = do("build", "tiny", "--json").json["digest"]
    refused = do("run", "tiny", "--digest", other, "--", "true")
    assert refused.code == 8 and f"tiny is {built} on this machine, not {other}" in refused.err
    assert "not a digest" in do("run", "tiny", "--digest", "26.11", "--", "true").err
    elsewhere = do("run", "tiny", "--digest", other, "--image", "x", "--", "true")
    assert elsewhere.code == 2 and "--image REPOSITORY@sha256:" in elsewhere.err


def test_lock_in_image(copy: TinyProject) -> None:
    """A build reports the sha256 of the lock file as it is in the image."""
    project = Project.find(copy.root, Settings.from_environment({}, cache=copy.cache))
    result = project.build(project.recipe("tiny"))
    assert result.image is not None
    path = result.image.layers[-1].path
    assert path is not None
    with tarfile.open(path) as tar:
        member = tar.extractfile("opt/builder/conda-lock.yml")
        assert member is not None and sha256(member.read()) == result.image_lock


#: Digests and options.
Runs = list[tuple[str, RunOptions]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The runs with user namespaces; nothing is run."""
    runs: Runs = []

    def run(
        self: Any, image: Image | SifImage, words: Sequence[str], options: RunOptions = DEFAULT_OPTIONS
    ) -> Completed:
        runs.append((image.digest, options))
        return Completed(0, "", "")

    monkeypatch.setattr(userns.UsernsRunner, "run", run)
    monkeypatch.setattr(userns.UsernsRunner, "available", lambda self: None)
    return runs


def options_in(folder: Path) -> RunOptions:
    """The options of a run in a folder."""
    mount = Mount(folder, str(folder), readonly=False)
    return RunOptions(mounts=[mount], workdir=str(folder), network="host", keep_root=True, capture=False)


def test_project_folder(do: Cli, copy: TinyProject, ran: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project folder is bound, and the command starts in the current folder below it."""
    digest = do("build", "tiny", "--json").json["digest"]
    root = copy.root.resolve()
    result = do("run", "tiny", "--", "true")
    assert ran.pop() == (digest, options_in(root))
    assert f"running tiny in {root}: built here ({digest[:19]})" in result.err
    monkeypatch.chdir(copy.root / "recipes")
    do("run", "tiny", "--", "true")
    assert ran.pop()[1].workdir == str(root / "recipes")
    do("run", "tiny", "--workdir", "/srv", "--bind", "/tmp:/data:ro", "--", "true")
    options = ran.pop()[1]
    mounts = [*options_in(root).mounts, Mount(Path("/tmp"), "/data")]
    assert options.workdir == "/srv" and options.mounts == mounts
    monkeypatch.chdir("/")
    do("--project", copy.root, "run", "tiny", "--", "true")
    assert ran.pop()[1].workdir == str(root)
    do("--project", copy.root, "run", "tiny")
    assert ran.pop()[1] == options_in(root), "the image's own command too: what it writes stays"
    result = do("--project", copy.root, "run", "tiny", "--no-bind", "--", "true")
    options = ran.pop()[1]
    assert options.workdir is None and options.mounts == []
    assert "running tiny in the folder of the image, where changes are lost: built" in result.err


def test_own_command(do: Cli, copy: TinyProject, ran: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image's own command starts in the folder that ``files`` copies to ``workdir``, if there is one."""
    root = copy.root.resolve()
    (root / "ml").mkdir()
    (root / "ml" / "train.py").write_text("print()")
    monkeypatch.chdir(root / "recipes")
    edit(copy.recipe, files=[{"source": "ml", "target": "/app/ml"}], workdir="/app/ml")
    result = do("run", "tiny")
    options = ran.pop()[1]
    assert options.workdir == str(root / "ml") and options.mounts == options_in(root).mounts
    assert f"running tiny in {root}/ml: " in result.err
    edit(copy.recipe, workdir="/srv")
    result = do("run", "tiny")
    options = ran.pop()[1]
    assert options.workdir is None and options.mounts == options_in(root).mounts
    assert "running tiny in the folder of the image, where changes are lost: " in result.err


def test_readonly_folder(
    do: Cli, copy: TinyProject, ran: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that names the folder says that the user cannot write there; the image has its own /srv."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    root = copy.root.resolve()
    assert f"running tiny in {root}, which you cannot write to: " in do("run", "tiny").err
    assert "running tiny in /srv: " in do("run", "tiny", "--workdir", "/srv").err
    assert len(ran) == 2


def test_left_out(do: Cli, copy: TinyProject, ran: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """``plan`` and ``build`` say which groups are left out, and not each run again."""
    monkeypatch.setattr("builder.project.left_out", lambda *_: "left out: 1 package")
    assert "tiny: left out: 1 package" in do("plan", "tiny").err
    assert "tiny: left out: 1 package" in do("build", "tiny").err
    result = do("run", "tiny", "--", "true")
    assert len(ran) == 1 and "left out" not in result.err


def test_printed_line(do: Cli, copy: TinyProject) -> None:
    """What --print prints is for the site, and does not name folders of this machine."""
    assert do("run", "tiny", "--print", "--", "true").out == "builder run tiny -- true\n"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command lines of sites; nothing is run, and every program is there."""
    found: list[str] = []

    def run_site(recipe: Any, words: Sequence[str], **more: Any) -> Completed:
        found.append(" ".join(words))
        return Completed(0, "", "")

    monkeypatch.setattr(command, "run_site", run_site)
    monkeypatch.setattr(shutil, "which", lambda name, **more: f"/usr/bin/{name}")
    return found


def at_site(copy: TinyProject, kind: str) -> str:
    """The target's site has this runtime. Returns the options that mount the project folder."""
    edit(
        copy.recipe,
        site={"runtime": {"kind": kind}, "launcher": "torchrun"},
        registry={"host": "h.example", "repository": "me/tiny"},
    )
    root = copy.root.resolve()
    return f"-v {root}:{root} -w {root}"


def test_site_runtime(do: Cli, copy: TinyProject, lines: list[str]) -> None:
    """The site's own runtime gets the project folder as well; without an image here it runs the tag."""
    shutil.rmtree(copy.root / "dist")
    mounted = at_site(copy, "docker")
    done = do("run", "tiny", "--", "true")
    assert lines == [f"docker run --rm {mounted} h.example/me/tiny:latest true"]
    assert f"running tiny in {copy.root.resolve()}: h.example/me/tiny:latest, as docker finds it" in done.err


@pytest.mark.parametrize("kind", ["docker", "podman", "podman-hpc"])
def test_engine_runs_dist(
    kind: str, do: Cli, copy: TinyProject, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """docker and podman run the image in ``dist/``; --print loads nothing, and names the tag."""
    monkeypatch.setattr("builder.run.loaded.load_into_docker", lambda image, *_: image.digest)
    monkeypatch.setattr("builder.run.loaded.load_into_podman", lambda _, image, *more: image.digest)
    monkeypatch.setattr("builder.run.podman.migrated_ids", lambda program: frozenset())
    digest = do("build", "tiny", "--json").json["digest"]
    mounted = at_site(copy, kind)
    done = do("run", "tiny", "--", "true")
    assert lines == [f"{kind} run --rm {mounted} {digest} true"]
    assert f": built here ({digest[:19]}); after a change of the recipe: builder build tiny" in done.err
    printed = do("run", "tiny", "--print", "--", "true").out
    assert printed == f"{kind} run --rm h.example/me/tiny:latest true\n"
    refused = do("run", "tiny", "--bind", "a:b", "--", "true")
    assert refused.code == 2 and len(lines) == 1


def test_pulled_into_engine(
    do: Cli, copy: TinyProject, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an engine has pulled is what it runs, and what jobs name, until the next build."""
    pulled = EnginePull("podman-hpc", "h.example/me/tiny:latest", f"h.example/me/tiny@{OTHER}", "sha256:cafe")
    dist, mounted = copy.root / "dist", at_site(copy, "podman-hpc")
    migrated: set[str] = set()
    monkeypatch.setattr("builder.run.podman.migrated_ids", lambda program: migrated)
    record_pull(dist, "tiny", pulled)
    done = do("run", "tiny", "--", "true")
    assert lines.pop() == f"podman-hpc run --rm {mounted} {pulled.image} true"
    assert f": pulled into podman-hpc: {pulled.image}" in done.err
    migrated.add("sha256:cafe")
    do("run", "tiny", "--", "true")
    assert lines.pop() == f"podman-hpc run --rm {mounted} cafe true", "it may have another name there"
    assert do("run", "tiny", "--print", "--", "true").out == f"podman-hpc run --rm {pulled.image} true\n"
    job = do("job", "tiny", "--", "true")
    assert f"export BUILDER_IMAGE={pulled.image}\n" in job.out
    assert f"the job runs {pulled.image}, pulled into podman-hpc" in job.err
    do("build", "tiny")
    assert recorded_pull(dist, "tiny") is None
    assert "BUILDER_IMAGE=h.example/me/tiny:latest\n" in do("job", "tiny", "--", "true").out
    record_pull(dist, "tiny", pulled)
    do("publish", "tiny", "--to", f"oci:{copy.root}/published", "--no-tags")
    tags = list_tags(dist)
    do("pull", "tiny", "--from", f"oci:{copy.root}/published", "--tag", tags["tiny"])
    assert recorded_pull(dist, "tiny") is None, "a pull into dist/"
    (dist / "tiny.pulled.json").write_text("{}")
    broken = do("run", "tiny", "--", "true")
    assert broken.code == 8 and f"rm {dist.resolve()}/tiny.pulled.json" in broken.err


def test_pinned_job(do: Cli, copy: TinyProject) -> None:
    """--pin names the digest that the registry has; without an answer it is an error."""
    at_site(copy, "podman-hpc")
    digest = list_tags(copy.root / "dist")["tiny"]
    with FakeRegistry() as registry:
        edit(copy.recipe, registry={"host": registry.host, "repository": "me/tiny"})
        assert do("publish", "tiny", "--no-tags").code == 0
        manifests = registry.manifests["me/tiny"]
        manifests["latest"] = manifests[digest]
        done = do("job", "tiny", "--pin", "--", "true")
        assert f"export BUILDER_IMAGE={registry.host}/me/tiny@{digest}\n" in done.out
        named = do("job", "tiny", "--pin", "--image", f"{registry.host}/me/tiny@{OTHER}", "--", "true")
        assert f"/me/tiny@{OTHER}\n" in named.out, "not asked for"
    missing = do("job", "tiny", "--pin", "--", "true")
    assert missing.code == 9 and missing.out == ""


def test_no_build(do: Cli, copy: TinyProject, ran: Runs) -> None:
    """Jobs of builder's own runner run what is in ``dist/`` and never build."""
    digest = list_tags(copy.root / "dist")["tiny"]
    edit(copy.recipe, labels={"changed": "here"})
    done = do("run", "tiny", "--no-build", "--", "true")
    assert ran.pop()[0] == digest and f"built here ({digest[:19]})" in done.err
    do("run", "tiny", "--no-build", "--digest", digest, "--", "true")
    assert ran.pop()[0] == digest
    refused = do("run", "tiny", "--no-build", "--digest", OTHER, "--", "true")
    assert refused.code == 8 and f"tiny is {digest} on this machine, not {OTHER}" in refused.err
    job = do("job", "tiny", "--", "true")
    assert "builder run tiny --no-build" in job.out and "no image" not in job.err
    pinned = do("job", "tiny", "--pin", "--", "true").out.replace("\\\n", "")
    assert f"--digest {digest} --no-build" in " ".join(pinned.split())
    shutil.rmtree(copy.root / "dist")
    refused = do("run", "tiny", "--no-build", "--", "true")
    assert refused.code == 8 and not ran
    assert "on the login node: builder build tiny, or builder pull tiny" in refused.err
    job = do("job", "tiny", "--", "true")
    assert job.code == 0 and "before it starts, builder build tiny, or builder pull tiny" in job.err


def test_start_folder(
    do: Cli, copy: TinyProject, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current folder is mounted too if it is outside of the project, except the home folder."""
    shutil.rmtree(copy.root / "dist")
    at_site(copy, "docker")
    root, elsewhere = copy.root.resolve(), (tmp_path / "data").resolve()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    do("--project", root, "run", "tiny", "--", "true")
    assert f"docker run --rm -v {elsewhere}:{elsewhere} -v {root}:{root} -w {root} " in lines.pop()
    monkeypatch.setenv("HOME", str(elsewhere))
    do("--project", root, "run", "tiny", "--", "true")
    assert str(elsewhere) not in lines.pop()


def test_optional_binds(do: Cli, copy: TinyProject) -> None:
    """The printed line mounts the site's folders that are there, as ``builder run`` does."""
    runtime = {"kind": "apptainer", "optional_binds": ["$SLURM_TMPDIR", "/no such", "/usr"]}
    site = {"runtime": runtime, "launcher": "torchrun", "images": "/images"}
    edit(copy.recipe, format="sif", site=site)
    line = do("run", "tiny", "--print", "--", "true").out
    script = f'apptainer() {{ echo "$APPTAINER_BIND: $*"; }}\n{line}'
    env = {"APPTAINER_BIND": "/a"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env)
    assert done.stdout == "/a,/usr: exec /images/tiny.sif true\n", done.stderr


@pytest.mark.parametrize("folder", ["/", "/opt", "/usr"])
def test_folders_that_hide_the_image(folder: str) -> None:
    """A folder that would hide the environment or the system of the image is not bound."""
    request = ContainerRequest("", ("true",))
    assert bind_folder(request, Path(folder)) == request
    assert bind_folder(request, Path("/srv"), prefix="/srv/env") == request
    bound = bind_folder(ContainerRequest("", ("true",), binds=("/data:/srv",)), Path("/srv"))
    assert bound.binds == ("/data:/srv",) and bound.workdir == "/srv", "an own mount at this place wins"


def test_pulled(do: Cli, copy: TinyProject, ran: Runs) -> None:
    """What was pulled runs until the next build, without a lock file; nothing is locked."""
    digest = do("build", "tiny", "--json").json["digest"]
    place = f"oci:{copy.root}/published"
    assert do("publish", "tiny", "--to", place, "--no-tags").code == 0
    edit(copy.recipe, labels={"changed": "here"})
    changed = do("build", "tiny", "--json").json["digest"]
    lock = copy.root / "environments/tiny.tiny.lock.yml"
    text = lock.read_text()
    pull = ("pull", "tiny", "--from", place, "--tag", digest)
    assert do(*pull).code == 0
    lock.unlink()
    result = do("run", "tiny", "--", "true")
    assert ran.pop()[0] == digest and not lock.exists()
    assert f"pulled from {place}@{digest} ({digest[:19]}); to build it here: builder build tiny" in result.err
    assert do(*pull, "--if-changed", "--json").json["changed"] is False
    lock.write_text(text)
    do("build", "tiny")
    do("run", "tiny", "--", "true")
    assert ran.pop()[0] == changed, "a build after the pull"
    do(*pull, "--if-changed")
    do("run", "tiny", "--", "true")
    assert ran.pop()[0] == digest


def test_image_by_name(
    do: Cli, copy: TinyProject, ran: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image is pulled and run by its name, without a project; the current folder is bound."""
    digest = do("build", "tiny", "--json").json["digest"]
    name = f"oci:{copy.root}/dist:tiny"
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert f"builder run {name} -- COMMAND" in do("pull", name).out
    assert do("pull", name, "--json").json["digest"] == digest
    result = do("run", name, "--", "true")
    assert ran.pop() == (digest, options_in(folder.resolve()))
    assert f"running {name} in {folder.resolve()}: {digest[:19]}, with userns" in result.err
    do("run", name, "--no-bind", "--", "true")
    options = ran.pop()[1]
    assert options.mounts == [] and not options.keep_root, "nothing of the user's: root stays outside"
    monkeypatch.setenv("HOME", str(folder / "me"))
    result = do("run", name, "--", "true")
    assert ran.pop()[1].mounts == [] and "the home folder is not mounted" in result.err
    assert "there is no" in do("run", f"oci:{copy.root}/dist:none", "--", "true").err
    printed = do("run", name, "--print", "--env", "A=b c", "--", "true")
    assert printed.out == f"builder run {name} --env 'A=b c' -- true\n"
    assert "--digest needs a target" in do("run", name, "--digest", digest, "--", "true").err
    assert "needs a registry" in do("pull", name, "--into", "podman").err
    monkeypatch.chdir("/dev")  # tmp_path may be in a project
    refused = do("pull", "--from", f"oci:{copy.root}/dist")
    assert f"without a project: builder pull oci:{copy.root}/dist; builder init" in refused.err
    assert do("run", "recipes/tiny.yaml", "--", "true").code == 3, "no image's name"


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("podman-hpc", "podman-hpc run --rm -e A=b h.example/me/mine:1 true"),
        ("apptainer", "apptainer exec --env A=b docker://h.example/me/mine:1 true"),
        ("userns", "builder run h.example/me/mine:1 --env A=b -- true"),
    ],
)
def test_print_image_by_name(
    kind: str, line: str, do: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is that of the first runner that works. Nothing is pulled."""
    monkeypatch.setattr(trial, "try_runner", lambda kind: None)
    for runner in runner_classes():
        reason = None if runner.name in (kind, "apptainer") else "not here"
        monkeypatch.setattr(runner, "available", lambda self, reason=reason: reason)
    monkeypatch.chdir(tmp_path)
    words = ("run", "h.example/me/mine:1", "--no-bind", "--env", "A=b")
    assert do(*words, "--print", "--", "true").out == f"{line}\n"
    missing = do(*words, "--bind", "food11:/mnt", "--", "true")
    assert missing.code == 2 and "a named volume needs a target whose site runs docker" in missing.err


def test_print(do: Cli, copy: TinyProject) -> None:
    """Without a site's runtime there is no other command line to print: a note says so."""
    done = do("run", "tiny", "--print", "--", "true")
    assert done.out == "builder run tiny -- true\n"
    assert done.err == "builder's own runner runs tiny: no other program is called\n"
