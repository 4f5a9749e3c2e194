"""``builder run``: which image it runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.build.run import userns
from builder.build.run.base import DEFAULT_OPTIONS, Mount, RunOptions
from builder.build.run.process import Completed
from builder.core.model import Image, SifImage
from builder.deliver.pulled import Pull, record_pull, recorded_pull
from builder.deliver.site.containers import Invocation
from builder.deliver.site.runtimes.runtime import ContainerRuntime
from builder.formats.oci.layout import list_tags
from tests.support.cli import Cli
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


def test_settings_of_the_site(
    do: Cli, copy: TinyProject, ran: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Binds and variables of the site, the GPUs that are asked for, and in a job its variables."""
    runtime = {
        "binds": [f"{tmp_path}:/data:ro"],
        "env": {"KIND": "site", "OWN": "$$x"},
        "pass_env": ["PASS_"],
    }
    edit(copy.recipe, gpu={"vendor": "nvidia"}, site={"runtime": runtime, "node": {"gpus": 1}})
    monkeypatch.setenv("PASS_IT", "host")
    monkeypatch.setenv("PASS_OWN", "host")
    command = ("run", "tiny", "--env", "KIND=mine", "--env", "PASS_OWN=mine", "--no-bind")
    assert do(*command, "--", "true").code == 0
    (_, options) = ran.pop()
    assert options.env == {"KIND": "mine", "OWN": "$x", "PASS_OWN": "mine"} and options.gpu == "nvidia"
    assert options.mounts == [Mount(tmp_path, "/data", readonly=True)]
    monkeypatch.setenv("BUILDER_JOB_ID", "1")
    assert do(*command, "--gpus", "0", "--", "true").code == 0
    (_, options) = ran.pop()
    assert options.env["PASS_IT"] == "host" and options.env["PASS_OWN"] == "mine" and options.gpu == "none"


def test_variables_from_a_pipe(do: Cli, copy: TinyProject, ran: Runs) -> None:
    """A shell's ``<(command)`` can be read once."""
    pipe, writer = os.pipe()
    os.write(writer, b"TOKEN=x\n")
    os.close(writer)
    assert do("run", "tiny", "--env-file", f"/dev/fd/{pipe}", "--", "true").code == 0
    os.close(pipe)
    (_, options) = ran.pop()
    assert options.env == {"TOKEN": "x"}


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


def test_printed_line(do: Cli, copy: TinyProject) -> None:
    """What --print prints is for the site, and does not name folders of this machine."""
    assert do("run", "tiny", "--print", "--", "true").out == "builder run tiny -- true\n"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command lines of sites; nothing is run, and every program is there."""
    found: list[str] = []

    def run(self: ContainerRuntime, made: Invocation, **more: Any) -> Completed:
        found.append(" ".join(made.words))
        return Completed(0, "", "")

    monkeypatch.setattr(ContainerRuntime, "run", run)
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
    monkeypatch.setattr("builder.build.run.docker.DockerRunner.keep", lambda _, image, name: image.digest)
    monkeypatch.setattr("builder.build.run.podman.PodmanStorage.keep", lambda _, image, name: image.digest)
    monkeypatch.setattr("builder.build.run.podman.migrated_ids", lambda program: frozenset())
    digest = do("build", "tiny", "--json").json["digest"]
    mounted = at_site(copy, kind)
    done = do("run", "tiny", "--", "true")
    dashes = "-- " if kind == "podman-hpc" else ""
    assert lines == [f"{kind} run --rm {mounted} {dashes}{digest} true"]
    assert f": built here ({digest[:19]}); after a change of the recipe: builder build tiny" in done.err
    printed = do("run", "tiny", "--print", "--", "true").out
    assert printed == f"{kind} run --rm {dashes}h.example/me/tiny:latest true\n"
    refused = do("run", "tiny", "--bind", "a:b", "--", "true")
    assert refused.code == 2 and len(lines) == 1


def test_pulled_into_engine(
    do: Cli, copy: TinyProject, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an engine has pulled is what it runs, and what jobs name, until the next build."""
    pulled = Pull("h.example/me/tiny:latest", f"h.example/me/tiny@{OTHER}", "podman-hpc", "sha256:cafe")
    dist, mounted = copy.root / "dist", at_site(copy, "podman-hpc")
    migrated: set[str] = set()
    monkeypatch.setattr("builder.build.run.podman.migrated_ids", lambda program: migrated)
    record_pull(dist, "tiny", pulled)
    done = do("run", "tiny", "--", "true")
    assert lines.pop() == f"podman-hpc run --rm {mounted} -- {pulled.image} true"
    assert f": pulled into podman-hpc: {pulled.image}" in done.err
    migrated.add("sha256:cafe")
    do("run", "tiny", "--", "true")
    assert lines.pop() == f"podman-hpc run --rm {mounted} -- cafe true", "it may have another name there"
    assert do("run", "tiny", "--print", "--", "true").out == f"podman-hpc run --rm -- {pulled.image} true\n"
    job = do("job", "tiny", "--", "true")
    assert f"export BUILDER_IMAGE={pulled.image}\n" in job.out
    assert f"the job runs {pulled.image}, pulled into podman-hpc" in job.err
    do("build", "tiny")
    assert recorded_pull(dist, "tiny") is None
    assert "BUILDER_IMAGE=h.example/me/tiny:latest\n" in do("job", "tiny", "--", "true").out
    record_pull(dist, "tiny", pulled)
    do("publish", "tiny", "--to", f"oci:{copy.root}/published", "--no-tags")
    tags = list_tags(dist)
    there = f"oci:{copy.root}/published"
    do("pull", "tiny", "--from", there, "--tag", tags["tiny"])
    assert recorded_pull(dist, "tiny") == Pull(f"{there}@{tags['tiny']}", tags["tiny"]), "a pull into dist/"
    (dist / "tiny.pulled.json").write_text("{}")
    broken = do("run", "tiny", "--", "true")
    assert broken.code == 8 and f"rm {dist.resolve()}/tiny.pulled.json" in broken.err


def test_no_build(do: Cli, copy: TinyProject, ran: Runs) -> None:
    """Jobs of builder's own runner run what is in ``dist/``."""
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


def test_no_build_without_image(do: Cli, copy: TinyProject, ran: Runs) -> None:
    """Jobs of builder's own runner never build what is not in ``dist/``."""
    shutil.rmtree(copy.root / "dist")
    refused = do("run", "tiny", "--no-build", "--", "true")
    assert refused.code == 8 and not ran
    assert "on the login node: builder build tiny, or builder pull tiny" in refused.err
    job = do("job", "tiny", "--", "true")
    assert job.code == 0 and "before it starts, builder build tiny, or builder pull tiny" in job.err


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
    assert "--digest needs a target" in do("run", name, "--digest", digest, "--", "true").err
    assert "needs a registry" in do("pull", name, "--load", "podman").err
    monkeypatch.chdir("/dev")  # tmp_path may be in a project
    assert do("run", "recipes/tiny.yaml", "--", "true").code == 3, "no image's name"
