"""OS packages on a base that builder does not make: solved and installed by the base's own apt.

The base is an OCI layout of ``debian:bookworm``; the conda packages are those of a tiny channel made here.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.build.bases.image import WantedBase, stored_base
from builder.build.bases.resolve import resolve_base
from builder.build.run.base import RunOptions
from builder.build.run.select import find_runner
from builder.core.model import OCI_MANIFEST, Descriptor, Image, SifImage, canonical_json
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.oci.layout import list_tags, read_layout, write_layout
from builder.lock.file import read_lock
from tests.support import parts
from tests.support.machine import Machine
from tests.support.project import TinyProject, edit, tiny_channel, tiny_project

pytestmark = pytest.mark.heavy
#: A program; one with a user, a group and a setuid program; a library.
PACKAGES = ["hello", "dbus", "libmpich12"]
SCRIPT = (
    "cat /opt/step; hello; dpkg --audit; id -un messagebus; ls /var/lib/apt/lists; ls /usr/share/doc/hello; "
    "ldconfig -p | grep -c libmpich.so"
)
PRINTED = ["Hello, world!", "Hello, world!", "messagebus", "1"]
#: A step that uses the packages, and deletes a file of a lower layer.
STEP = {"run": ["hello >/opt/step", "rm /usr/share/doc/hello/copyright"]}
#: The files of the OS, without those that containers bring.
FILES = "cd / && find opt usr/bin usr/lib usr/sbin var/lib/dpkg -type f -exec sha256sum {} + | sort"


def write_base(base_cache: Path, folder: Path) -> None:
    """Writes ``debian:bookworm`` as an OCI layout."""
    settings = Settings.from_environment(cache=base_cache)
    store = Store(base_cache)
    locked = resolve_base("debian:bookworm", WantedBase("amd64"), Workspace(settings, store))
    base = stored_base("debian:bookworm", locked.digest, store)
    manifest = store.path(locked.digest).read_bytes()
    config = Descriptor.from_json(json.loads(manifest)["config"])
    described = Descriptor.of(OCI_MANIFEST, manifest)
    write_layout(
        Image(base.layers, canonical_json(base.config), config, manifest, described), folder, "latest", store
    )


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_channel(tmp_path_factory.mktemp("channel"), bulk=1 << 12)


@pytest.fixture(scope="module")
def machine(channel: Path, base_cache: Path, module_folder: Path) -> Machine:
    """A machine that has locked and built the target."""
    machine = Machine(tiny_project(module_folder, channel.as_uri()))
    root = machine.project.root
    shutil.rmtree(root / "base")
    write_base(base_cache, root / "base")
    edit(machine.project.recipe, base_packages=PACKAGES, steps=[STEP])
    machine.run("lock")
    machine.run("build")
    return machine


def digest(machine: Machine) -> str:
    return list_tags(machine.project.root / "dist")["tiny"]


def test_lock(machine: Machine) -> None:
    """The lock has each package, with dependencies, at its public address, and no lists of apt are left."""
    packages = {p.name: p for p in read_lock(machine.project.lock).record.os_packages or ()}
    assert {"hello", "dbus", "dbus-daemon", "libmpich12"} <= packages.keys()
    assert packages["hello"].url.startswith("http://deb.debian.org/debian/pool/main/h/hello/hello_")
    assert len(packages["hello"].sha256) == 64 and packages["hello"].size > 10_000
    manifest = json.loads((machine.project.root / "dist/blobs/sha256" / digest(machine)[7:]).read_bytes())
    config = (machine.project.root / "dist/blobs/sha256" / manifest["config"]["digest"][7:]).read_bytes()
    assert [h["created_by"] for h in json.loads(config)["history"]][1] == "builder: OS packages"


def output(machine: Machine, image: Image | SifImage, runner: str, script: str) -> str:
    """What a script prints in an image."""
    found = find_runner(Workspace.of(Settings.from_environment(cache=machine.project.cache)), runner)
    done = found.run(image, ["/bin/sh", "-c", script], RunOptions(entrypoint=(), timeout_s=300))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("runner", ["userns", "docker", "podman", "apptainer"])
def test_runs(runner: str, machine: Machine, use_runner: Callable[[str], None]) -> None:
    """The packages and the step's files are there under each runner, as the user of the tests."""
    use_runner(runner)
    image = read_layout(machine.project.root / "dist", "tiny", "amd64")
    assert output(machine, image, runner, SCRIPT).splitlines() == PRINTED


@pytest.fixture(scope="module")
def sif(machine: Machine) -> SifImage:
    """The target as a SIF."""
    project = machine.project
    (project.root / "recipes/tiny-sif.yaml").write_text("extends: tiny\nformat: sif\n")
    shutil.copy(project.lock, project.root / "environments/tiny.tiny-sif.lock.yml")
    built = machine.json("build", "tiny-sif")
    return SifImage(Path(built["sif"]), built["digest"], Path(built["sif"]).stat().st_size)


def test_sif(machine: Machine, sif: SifImage) -> None:
    """The SIF has the files of the OCI image."""
    image = read_layout(machine.project.root / "dist", "tiny", "amd64")
    files = output(machine, image, "userns", FILES)
    assert "usr/bin/hello" in files
    assert output(machine, sif, "userns", FILES) == files


@pytest.mark.usefixtures("fuse")
def test_ordinary_user(
    machine: Machine, sif: SifImage, apptainer: parts.Apptainer, podman: parts.Podman, tmp_path: Path
) -> None:
    """apptainer and podman run the image for an ordinary user."""
    dist = machine.project.root / "dist"
    with parts.ordinary_user() as user:
        env = parts.apptainer_environment(apptainer.path, user.home)
        command = [apptainer.path, "exec", "--containall", "--cleanenv", sif.path, "sh", "-c", SCRIPT]
        assert user.run(command, env, readable=[sif.path]).stdout.splitlines() == PRINTED
        archive = tmp_path / "image.tar"
        parts.skopeo(tmp_path, "copy", f"oci:{dist}:tiny", f"oci-archive:{archive}")
        run = ["podman", "run", "--rm", "--entrypoint", "sh", f"oci-archive:{archive}", "-c", SCRIPT]
        done = user.run(run, user.podman_environment(), readable=[archive])
    assert done.stdout.splitlines() == PRINTED


def test_second_machine(machine: Machine, channel: Path) -> None:
    """An ordinary user with an empty cache builds the same digest from the lock, and runs the image."""
    with parts.ordinary_user() as user:
        root = user.tmp / "project"
        shutil.copytree(machine.project.root, root, ignore=shutil.ignore_patterns("dist"))
        user.own(user.tmp)
        env = {**TinyProject(root, user.tmp / "cache").variables(), "PYTHONPATH": str(parts.CLONE)}
        env |= {"HOME": str(user.home)}
        command = [sys.executable, "-m", "builder", "--project", str(root)]
        done = user.run([*command, "build", "tiny", "--json"], env, readable=[channel], timeout=300)
        run = [*command, "run", "tiny", "--", "sh", "-c", SCRIPT]
        ran = user.run(run, env, readable=[channel], timeout=300)
    assert ran.stdout.splitlines() == PRINTED
    assert json.loads(done.stdout)["digest"] == digest(machine)
