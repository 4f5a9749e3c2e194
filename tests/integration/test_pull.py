"""One machine publishes and another pulls: images and SIFs, through registries, OCI layouts and engines."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.build.bases.pack import pack_tar
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.core.workspace import Workspace
from builder.deliver.publishing.pull import find_attached
from builder.deliver.publishing.release import LOCK, PROVENANCE, SBOM, SMOKE_REPORT
from builder.formats.oci.layout import write_layout
from tests.support import parts
from tests.support.channel import index_channel, make_package
from tests.support.image_kit import image
from tests.support.machine import PASSWORD, ROBOT, Machine, RequestLog
from tests.support.podman_hpc import podman_hpc
from tests.support.ports import free_ports
from tests.support.project import edit, tiny_channel, tiny_project, whole
from tests.support.rootfs import MIGRATED, make_rootfs_tar
from tests.support.secretwatch import Secrets


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_channel(tmp_path_factory.mktemp("channel"))


@pytest.fixture(scope="module")
def maker(channel: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The machine that builds and publishes."""
    return Machine(tiny_project(tmp_path_factory.mktemp("maker"), channel.as_uri()))


@pytest.fixture
def user(channel: Path, tmp_path: Path) -> Machine:
    """The machine that pulls: the same project, nothing built."""
    return Machine(tiny_project(tmp_path / "user", channel.as_uri()))


@pytest.fixture(scope="module")
def published(maker: Machine, registry: parts.Registry) -> Any:
    return maker.publish("--to", f"{registry.host}/pull/", "--tag", "26.11")


@pytest.fixture
def asked(registry: parts.Registry) -> RequestLog:
    return RequestLog(registry, registry.log_size())


def test_if_changed(
    published: Any, user: Machine, maker: Machine, registry: parts.Registry, asked: RequestLog, channel: Path
) -> None:
    """With --if-changed an image is downloaded once, and again when it has changed."""
    place = ("--from", f"{registry.host}/pull/")
    first = user.json("pull", "tiny", *place, "--if-changed")
    assert first == {
        "schema": "pull/1",
        "target": "tiny",
        "reference": f"{registry.host}/pull/tests/tiny:latest",
        "digest": published["digest"],
        "changed": True,
        "place": f"oci:{user.project.root / 'dist'}:tiny",
    }
    whole(user.project.root / "dist", published["digest"])
    asked.start = registry.log_size()
    again = user.json("pull", "tiny", *place, "--if-changed")
    assert again == {**first, "changed": False}
    assert [line for line in asked.lines() if line != "GET /v2/"] == [
        "HEAD /v2/pull/tests/tiny/manifests/latest"
    ]
    assert "is already" in user.run("pull", "tiny", *place, "--if-changed").stdout

    make_package(channel, "small0", "1.1", files={"share/small0": b"new"})
    index_channel(channel)
    maker.run("lock", "tiny", "--update", "small0")
    newer = maker.publish("--to", place[1], "--tag", "26.11", "--force")
    asked.start = registry.log_size()
    third = user.json("pull", "tiny", *place, "--if-changed")
    assert third["changed"] and third["digest"] == newer["digest"] != first["digest"]
    whole(user.project.root / "dist", newer["digest"])
    blobs = [line for line in asked.lines() if "/blobs/" in line]
    assert 0 < len(blobs) <= 4, f"the layers that are the same are not fetched again: {blobs}"
    dated = next(t for t in published["tags"] if t != "latest")
    assert user.json("pull", "tiny", *place, "--tag", dated)["digest"] == newer["digest"], "--force moved it"
    back = user.json("pull", "tiny", *place, "--tag", first["digest"])
    assert back["changed"] and back["reference"] == f"{registry.host}/pull/tests/tiny@{first['digest']}"


def test_damaged_layer(published: Any, user: Machine, registry: parts.Registry) -> None:
    """A damaged layer is downloaded again."""
    place = ("--from", f"{registry.host}/pull/", "--if-changed")
    first = user.json("pull", "tiny", *place)
    blob = max((user.project.root / "dist/blobs/sha256").iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)  # the cache's copy is the same file
    assert user.json("pull", "tiny", *place)["changed"] is True
    whole(user.project.root / "dist", first["digest"])
    assert user.json("pull", "tiny", *place)["changed"] is False


def test_attached(published: Any, maker: Machine, registry: parts.Registry, tmp_path: Path) -> None:
    """SBOM, provenance and report are attached. Debian's registry has no lists of referrers: the lists are
    tags.
    """
    assert set(published["attached"]) == {SBOM, PROVENANCE, LOCK, SMOKE_REPORT}
    reference = f"{published['reference']}@{published['digest']}"
    work = Workspace.of(Settings.from_environment({"HOME": str(tmp_path)}))
    (sbom,) = find_attached(reference, SBOM, work)
    names = {c["name"] for c in json.loads(sbom.files[0].data)["components"]}
    assert {"python", "greeter", "bulky", "small0", "pure", "oci:base"} <= names
    (statement,) = find_attached(reference, PROVENANCE, work)
    provenance = json.loads(statement.files[0].data)
    assert provenance["subject"] == [{"name": "tiny", "digest": {"sha256": published["digest"][7:]}}]
    (report,) = find_attached(reference, SMOKE_REPORT, work)
    assert json.loads(report.files[0].data)["image"] == {"digest": published["digest"]}
    assert report.created == "2026-11-21T08:00:00Z"


# credentials ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed(make_registry: parts.RegistryFactory) -> parts.Registry:
    return make_registry(htpasswd={ROBOT: PASSWORD})


@pytest.fixture(scope="module")
def closed_image(maker: Machine, closed: parts.Registry) -> Any:
    return maker.publish(
        "--to", f"{closed.host}/p/t", env={"REGISTRY_USER": ROBOT, "REGISTRY_PASSWORD": PASSWORD}
    )


def test_no_secret_is_written(maker: Machine, user: Machine, closed: parts.Registry, tmp_path: Path) -> None:
    """The password is in no file of a publish and a pull, and in no command line meanwhile."""
    env = {"REGISTRY_USER": ROBOT, "REGISTRY_PASSWORD": PASSWORD}
    with Secrets() as secrets:
        secrets.add(PASSWORD, base64.b64encode(f"{ROBOT}:{PASSWORD}".encode()).decode())
        published = maker.publish("--to", f"{closed.host}/p/secret", env=env)
        pulled = user.json("pull", "tiny", "--from", f"{closed.host}/p/secret", env=env)
    assert pulled["digest"] == published["digest"]
    assert secrets.samples > 5 and secrets.seen == []
    assert secrets.files(maker.project.root.parent) == secrets.files(user.project.root.parent) == []
    known = tmp_path / "known"
    known.write_text(f"export REGISTRY_PASSWORD='{PASSWORD}'\n")
    assert secrets.files(tmp_path) == [known], "the search works"


# engines ----------------------------------------------------------------------------------------------------


def test_into_podman(closed_image: Any, closed: parts.Registry, user: Machine, podman: parts.Podman) -> None:
    """podman pulls with the same credentials."""
    place = ("pull", "tiny", "--from", f"{closed.host}/p/t", "--load", "podman", "--if-changed")
    env = {k: v for k, v in podman.env.items() if k != "REGISTRY_AUTH_FILE"}
    env |= {"REGISTRY_USER": ROBOT, "REGISTRY_PASSWORD": PASSWORD}
    first = user.json(*place, env=env)
    name = f"{closed.host}/p/t:latest"
    assert first["changed"] and first["place"] == f"podman:{name}"
    assert first["digest"] == closed_image["digest"]
    (known,) = json.loads(podman.run("image", "inspect", name).stdout)
    assert known["Digest"] == closed_image["digest"]
    assert user.json(*place, env=env)["changed"] is False
    assert not list((user.project.cache / "tmp").glob("auth-*")), "no file with the password is left"
    podman.run("rmi", name)
    assert user.json(*place, env=env)["changed"] is True
    podman.run("rmi", name)


def test_into_podman_hpc(
    shell_image: Any, user: Machine, podman: parts.Podman, registry: parts.Registry, tmp_path: Path
) -> None:
    """podman-hpc pulls by digest and migrates. Run and jobs then use that image, on every node, without the
    registry.
    """
    hpc = podman_hpc(tmp_path / "hpc", podman)
    env = hpc.env
    name = f"{registry.host}/pull/shell"
    pinned = f"{name}@{shell_image['digest']}"
    place = ("pull", "tiny", "--from", name, "--load", "podman-hpc", "--if-changed")
    edit(user.project.recipe, site={"runtime": {"kind": "podman-hpc"}, "launcher": "torchrun"})
    failed = user.run(*place, env={**env, "PODMANHPC_MKSQUASHFS_BIN": "/bin/false"}, check=False)
    assert failed.returncode == 10 and "it was not migrated" in failed.stderr
    assert "podman-hpc migrate " in failed.stderr
    assert user.json(*place, env=env)["place"] == f"podman-hpc:{pinned}"

    hpc.run("rmi", pinned)  # another node has a storage of its own
    offline = {**env, "BUILDER_OFFLINE": "1"}
    done = user.run("run", "tiny", "--", "/bin/sh", "-c", "echo ran", env=offline)
    assert done.stdout == "ran\n" and f"pulled into podman-hpc: {pinned}" in done.stderr
    script = user.run("job", "tiny", "--", "true", env=offline).stdout
    assert f"BUILDER_IMAGE={pinned}\n" in script
    check_image(script, env)
    assert user.json(*place, env=env)["changed"] is False

    # Without a record of the pull, the job runs the digest that the registry has under the tag.
    edit(user.project.recipe, registry={"host": registry.host, "repository": "pull/shell"})
    (user.project.root / "dist/tiny.pulled.json").unlink()
    assert f"BUILDER_IMAGE={pinned}\n" in user.run("job", "tiny", "--", "true", env=env).stdout

    # Without its answer it runs the tag: another name of an image that was migrated before, which is known on
    # this node only.
    silent = f"127.0.0.1:{free_ports(1)[0]}"
    edit(user.project.recipe, registry={"host": silent, "repository": "pull/shell"})
    job = user.run("job", "tiny", "--", "true", env=offline)
    tag = f"{silent}/pull/shell:latest"
    assert f"BUILDER_IMAGE={tag}\n" in job.stdout and "the job runs a tag, not a digest" in job.stderr
    hpc.run("image", "pull", "--tls-verify=false", pinned)  # without a migration
    hpc.run("tag", pinned, tag)
    check_image(job.stdout, env)
    hpc.run("rmi", "--force", tag)


def image_part(script: str, engine: str = "podman-hpc") -> str:
    """The lines of a job that find its image, and a command in it."""
    assert "export MASTER_ADDR" in script
    run = f'{engine} run --rm --network=none "$BUILDER_IMAGE" /bin/sh -c "cat /srv/text"'
    before, _, after = script.partition("export MASTER_ADDR")
    return before + run + after[after.index("\n}\n") :]


def start_job(script: str, env: Mapping[str, str], engine: str = "podman-hpc") -> tuple[int, str, str]:
    """Runs :func:`image_part`; returns exit code, output and errors."""
    command = ["bash", "-c", image_part(script, engine)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("engine", ["podman-hpc", "podman", "docker"])
def test_tag_moves(
    engine: str,
    shell_maker: Machine,
    user: Machine,
    make_registry: parts.RegistryFactory,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """A job runs the image that its tag names now, in whichever direction the tag moved, and prints its
    digest. Without the registry it runs the stored one.
    """
    env = job_environment(engine, request, tmp_path)
    server = make_registry()
    place = {"host": server.host, "repository": "moves/shell"}
    edit(user.project.recipe, registry=place, site={"runtime": {"kind": engine}, "launcher": "torchrun"})
    script = user.run("job", "tiny", "--", "true", env=env).stdout
    code, _, errors = start_job(script, env, engine)
    assert code == 1 and f"no image {server.host}/moves/shell:latest" in errors
    digests = {}
    for text in ("first\n", "second\n", "first\n"):
        (shell_maker.project.root / "text").write_text(text)
        digests[text] = shell_maker.publish("--to", f"{server.host}/moves/shell", "--force")["digest"]
        code, out, errors = start_job(script, env, engine)
        assert code == 0 and out.endswith(text), errors
        assert f"image: {server.host}/moves/shell:latest, " in out and digests[text] in out
    assert len(digests) == len(set(digests.values())) == 2
    server.stop()
    code, out, errors = start_job(script, env, engine)
    assert code == 0 and "latest was not pulled: looking for the image of an earlier pull" in errors
    assert out.endswith(("first\n", "second\n")) and digests[out.splitlines(keepends=True)[-1]] in out


def job_environment(engine: str, request: pytest.FixtureRequest, folder: Path) -> dict[str, str]:
    """The variables for a real engine, which pulls over plain HTTP."""
    part = request.getfixturevalue("docker_engine" if engine == "docker" else "podman")
    env = dict(podman_hpc(folder / "hpc", part).env if engine == "podman-hpc" else part.env)
    if engine != "docker":
        conf = folder / "registries.conf"
        conf.write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
        env["CONTAINERS_REGISTRIES_CONF"] = str(conf)
    return env


def check_image(script: str, env: dict[str, str]) -> None:
    """The job finds its image without a registry."""
    code, out, errors = start_job(script, env)
    assert code == 0 and out.endswith("text\n") and "image: " in out, errors


@pytest.fixture(scope="module")
def shell_maker(channel: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine whose image has a shell."""
    machine = Machine(tiny_project(tmp_path_factory.mktemp("shell"), channel.as_uri()))
    with_shell(machine)
    return machine


def with_shell(machine: Machine) -> None:
    """The base gets a shell, and the image the file ``text`` of the project."""
    root = machine.project.root
    store = Store(root.parent / "base-store")
    tar = make_rootfs_tar(root.parent / "shell", MIGRATED).read_bytes()
    write_layout(image(store, pack_tar([tar], store, 2, "shell")), root / "base", "latest", store)
    (root / "text").write_text("text\n")
    edit(machine.project.recipe, files=[{"source": "text", "target": "/srv/text"}])


@pytest.fixture(scope="module")
def shell_image(shell_maker: Machine, registry: parts.Registry) -> Any:
    return shell_maker.publish("--to", f"{registry.host}/pull/shell")


@pytest.mark.parametrize("kind", ["podman", "docker"])
def test_run_built(kind: str, user: Machine, request: pytest.FixtureRequest) -> None:
    """What was built runs with the site's engine, which loads it once; a newer build takes its place."""
    engine = request.getfixturevalue("podman" if kind == "podman" else "docker_engine")
    with_shell(user)
    site = {"runtime": {"kind": kind, "options": ["--network=none"]}, "launcher": "torchrun"}
    edit(user.project.recipe, site=site)
    show = ("run", "tiny", "--no-bind", "--", "/bin/sh", "-c", "cat /srv/text")
    images = [kind, "images", "--no-trunc", "--quiet"]
    before = set(subprocess.check_output(images, env=engine.env, text=True).split())
    for text in ("one\n", "two\n"):
        (user.project.root / "text").write_text(text)
        digest = user.json("build", "tiny")["digest"]
        first = user.run(*show, env=engine.env)
        assert first.stdout == text and f"built here ({digest[:19]})" in first.stderr
        assert user.run(*show, env=engine.env).stdout == text
        after = set(subprocess.check_output(images, env=engine.env, text=True).split())
        assert len(after - before) == 1, "the image of an earlier build is removed"
    name = "builder/tiny:latest" if kind == "docker" else "localhost/builder/tiny:latest"
    subprocess.run([kind, "rmi", name], env=engine.env, check=True, capture_output=True)


# SIFs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sif_maker(channel: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(tiny_project(tmp_path_factory.mktemp("sifmaker"), channel.as_uri()))
    edit(machine.project.recipe, format="sif")
    return machine


@pytest.fixture(scope="module")
def sif_published(sif_maker: Machine, registry: parts.Registry) -> Any:
    return sif_maker.publish("--to", f"{registry.host}/pull/sif")


@pytest.fixture
def sif_user(user: Machine) -> Machine:
    edit(user.project.recipe, format="sif")
    return user


def test_sif(
    sif_published: Any,
    sif_maker: Machine,
    sif_user: Machine,
    registry: parts.Registry,
    apptainer: parts.Apptainer,
    tmp_path: Path,
) -> None:
    """A SIF is built, published, pulled to the places where it may be, and read by Apptainer."""
    ours = sha256_file(sif_maker.project.root / "dist/tiny.sif")
    assert (
        set(sif_published["attached"]) == {SBOM, PROVENANCE, LOCK, SMOKE_REPORT}
        and len(sif_published["tags"]) == 2
    )
    place = ("pull", "tiny", "--from", f"oras://{registry.host}/pull/sif", "--if-changed")
    first = sif_user.json(*place)
    file = sif_user.project.root / "dist/tiny.sif"
    assert first["changed"] and first["digest"] == ours == sha256_file(file) and first["place"] == str(file)
    assert sif_user.json(*place)["changed"] is False
    assert f"is already {registry.host}/pull/sif:latest, SIF {ours}\n" in sif_user.run(*place).stdout
    elsewhere = tmp_path / "images"
    elsewhere.mkdir()
    assert sif_user.json(*place, "--output", elsewhere)["place"] == str(elsewhere / "tiny.sif")
    assert sha256_file(elsewhere / "tiny.sif") == ours
    edit(
        sif_user.project.recipe,
        site={
            "runtime": {"kind": "apptainer"},
            "launcher": "torchrun",
            "images": "$SCRATCH/images/{account}",
        },
    )
    (tmp_path / "scratch/images").mkdir(parents=True)
    at_site = sif_user.json(*place, "--account", "def-x", env={"SCRATCH": str(tmp_path / "scratch")})
    assert (
        at_site["place"] == str(tmp_path / "scratch/images/def-x/tiny.sif")
        and sha256_file(Path(at_site["place"])) == ours
    )
    assert sif_user.json(*place)["place"] == str(file), "elsewhere it goes into dist/"
    apptainer.run("pull", "--no-https", tmp_path / "theirs.sif", f"oras://{registry.host}/pull/sif:latest")
    assert sha256_file(tmp_path / "theirs.sif") == ours


def test_changed_sif(sif_published: Any, sif_user: Machine, registry: parts.Registry) -> None:
    """A SIF that was changed on this machine is pulled again."""
    place = ("pull", "tiny", "--from", f"{registry.host}/pull/sif", "--if-changed")
    file = Path(sif_user.json(*place)["place"])
    with file.open("r+b") as f:
        f.seek(-1, os.SEEK_END)
        f.write(b"\xff")
    assert sif_user.json(*place)["changed"] is True
    assert sif_user.json(*place)["changed"] is False


def test_sif_in_layout(sif_maker: Machine, sif_user: Machine, tmp_path: Path) -> None:
    """A SIF is published to and pulled from an OCI layout."""
    done = sif_maker.publish("--to", f"oci:{tmp_path / 'pub'}")
    assert set(done["attached"]) == {SBOM, PROVENANCE, LOCK, SMOKE_REPORT}
    place = ("pull", "tiny", "--from", f"oci:{tmp_path / 'pub'}", "--if-changed")
    first = sif_user.json(*place)
    assert first["changed"] and first["digest"] == sha256_file(sif_user.project.root / "dist/tiny.sif")
    assert sif_user.json(*place)["changed"] is False


def test_wrong_kind(
    published: Any, sif_published: Any, user: Machine, registry: parts.Registry, tmp_path: Path
) -> None:
    """A SIF for an OCI target, and the reverse, are errors."""
    done = user.run("pull", "tiny", "--from", f"{registry.host}/pull/sif", check=False)
    assert done.returncode == 8 and "is a SIF, and target tiny runs an OCI image" in done.stderr
    edit(user.project.recipe, format="sif")
    done = user.run("pull", "tiny", "--from", f"{registry.host}/pull/tests/tiny", check=False)
    assert done.returncode == 8 and "is an OCI image, and target tiny runs a SIF" in done.stderr
    done = user.run("pull", "tiny", "--from", f"{registry.host}/pull/sif", "--load", "podman", check=False)
    assert done.returncode == 2 and "runs a SIF, which podman does not" in done.stderr
