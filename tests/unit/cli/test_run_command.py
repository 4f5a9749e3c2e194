"""``builder run``: which image it runs."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.cli.run_here import bind_folder
from builder.model import Image, SifImage
from builder.oci.digest import sha256
from builder.project import Project
from builder.run import userns
from builder.run.base import DEFAULT_OPTIONS, Mount, RunOptions
from builder.run.process import Completed
from builder.settings import Settings
from builder.site import command
from builder.site.command import ContainerRequest
from tests.support.cli import Cli
from tests.support.project import TinyProject, edit


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
    assert ran.pop()[1].workdir is None, "the image's own command starts where the image says"
    do("--project", copy.root, "run", "tiny", "--no-bind", "--", "true")
    options = ran.pop()[1]
    assert options.workdir is None and options.mounts == []


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


def test_site_runtime(do: Cli, copy: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's own runtime gets the project folder as well."""
    lines: list[Sequence[str]] = []

    def run_site(recipe: Any, words: Sequence[str], **more: Any) -> Completed:
        lines.append(words)
        return Completed(0, "", "")

    monkeypatch.setattr(command, "run_site", run_site)
    site = {"runtime": {"kind": "docker"}, "launcher": "torchrun"}
    edit(copy.recipe, site=site, registry={"repository": "me/tiny"})
    assert do("run", "tiny", "--", "true").code == 0
    root = copy.root.resolve()
    assert " ".join(lines[0]) == f"docker run --rm -v {root}:{root} -w {root} me/tiny:latest true"


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
    assert "--print needs a target" in do("run", name, "--print", "--", "true").err
    assert "needs a registry" in do("pull", name, "--into", "podman").err
    monkeypatch.chdir("/dev")  # tmp_path may be in a project
    refused = do("pull", "--from", f"oci:{copy.root}/dist")
    assert f"without a project: builder pull oci:{copy.root}/dist; builder init" in refused.err
    assert do("run", "recipes/tiny.yaml", "--", "true").code == 3, "no image's name"


def test_print(do: Cli, copy: TinyProject) -> None:
    """Without a site's runtime there is no other command line to print: a note says so."""
    done = do("run", "tiny", "--print", "--", "true")
    assert done.out == "builder run tiny -- true\n"
    assert done.err == "builder's own runner runs tiny: no other program is called\n"
