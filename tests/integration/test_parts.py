"""The parts that other integration tests lean on, each seen to work."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import parts
from tests.support.rootfs import make_rootfs, make_rootfs_tar

SHOW = ["/bin/sh", "-c", "read line < /etc/builder-test; echo $line; /bin/id -u"]


@pytest.fixture(scope="module")
def tiny_tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_rootfs_tar(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tiny_archive(tiny_tar: Path, podman: parts.Podman, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny image as an OCI archive."""
    podman.run("import", "--change", 'CMD ["/bin/sh"]', tiny_tar, "tiny:parts")
    path = tmp_path_factory.mktemp("archive") / "tiny.tar"
    podman.run("save", "--quiet", "--format", "oci-archive", "-o", path, "tiny:parts")
    return path


def skopeo(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["skopeo", *map(str, args)],
        env=parts.clean_environment(HOME="/nonexistent"),
        capture_output=True,
        text=True,
    )


@pytest.mark.docker
@pytest.mark.root
def test_docker_engine_runs_an_image(docker_engine: parts.DockerEngine, tiny_tar: Path) -> None:
    assert docker_engine.client.version()["Version"].startswith("20.10.")
    docker_engine.docker("import", tiny_tar, "tiny:parts")
    out = docker_engine.client.containers.run("tiny:parts", SHOW, network_mode="none", remove=True)
    assert out.decode().split() == ["tiny", "0"]
    out = docker_engine.client.containers.run(
        "tiny:parts", SHOW, network_mode="none", remove=True, user="1234"
    )
    assert out.decode().split() == ["tiny", "1234"]


@pytest.mark.docker
@pytest.mark.root
@pytest.mark.registry
def test_docker_engine_and_registry(
    docker_engine: parts.DockerEngine, registry: parts.Registry, tiny_tar: Path
) -> None:
    name = f"{registry.host}/parts/docker:1"
    docker_engine.docker("import", tiny_tar, name)
    pushed = docker_engine.docker("push", name).stdout
    digest = next(word for word in pushed.split() if word.startswith("sha256:"))
    assert digest in registry.blobs()
    docker_engine.docker("rmi", name)
    docker_engine.docker("pull", name)
    assert docker_engine.client.images.get(name).attrs["RepoDigests"] == [
        f"{registry.host}/parts/docker@{digest}"
    ]


@pytest.mark.podman
def test_podman_runs_an_image(podman: parts.Podman, tiny_archive: Path) -> None:
    podman.run("load", "-i", tiny_archive)
    assert podman.run("run", "--rm", "tiny:parts", *SHOW).stdout.split() == ["tiny", "0"]
    assert podman.run("run", "--rm", "tiny:parts", "/bin/sh", "-c", "exit 7", check=False).returncode == 7


@pytest.mark.registry
@pytest.mark.podman
def test_registry_takes_and_gives(registry: parts.Registry, tiny_archive: Path, tmp_path: Path) -> None:
    target = f"docker://{registry.host}/parts/skopeo:1"
    assert skopeo("copy", "--dest-tls-verify=false", f"oci-archive:{tiny_archive}", target).returncode == 0
    assert skopeo("copy", "--src-tls-verify=false", target, f"dir:{tmp_path}").returncode == 0
    layers = {f"sha256:{p.name}": p.stat().st_size for p in tmp_path.iterdir() if len(p.name) == 64}
    assert layers and layers.items() <= registry.blobs().items()
    stat = Path(f"/proc/{registry.pid}/cmdline").read_text()
    assert "docker-registry" in stat


@pytest.mark.registry
@pytest.mark.podman
def test_registry_with_passwords_tls_and_without_writes(
    make_registry: parts.RegistryFactory, tiny_archive: Path, tmp_path: Path
) -> None:
    registry = make_registry(htpasswd={"robot$x": "s3cret:wörd"}, tls=True)
    assert registry.ca is not None and registry.url.startswith("https://")
    target = f"docker://{registry.host}/parts/tls:1"
    certificates = tmp_path / "certs"
    certificates.mkdir()
    (certificates / "ca.crt").write_bytes(registry.ca.read_bytes())
    source = f"oci-archive:{tiny_archive}"
    assert "certificate" in skopeo("copy", source, target).stderr
    assert "unauthorized" in skopeo("copy", f"--dest-cert-dir={certificates}", source, target).stderr
    credentials = "--dest-creds=robot$x:s3cret:wörd"
    assert skopeo("copy", f"--dest-cert-dir={certificates}", credentials, source, target).returncode == 0
    kept = registry.blobs()
    frozen = make_registry(readonly=True, root=registry.root)
    assert (
        skopeo("copy", "--dest-tls-verify=false", source, f"docker://{frozen.host}/parts/new:1").returncode
        != 0
    )
    assert skopeo("inspect", "--tls-verify=false", f"docker://{frozen.host}/parts/tls:1").returncode == 0
    assert frozen.blobs() == kept


@pytest.mark.registry
def test_registry_comes_back_where_it_was(make_registry: parts.RegistryFactory) -> None:
    registry = make_registry()
    host, pid = registry.host, registry.pid
    registry.stop()
    assert not Path(f"/proc/{pid}").exists()
    registry.start()
    assert registry.host == host and registry.pid != pid


@pytest.mark.apptainer
def test_apptainer_runs_a_sandbox(
    apptainer: parts.Apptainer, ordinary_user: parts.OrdinaryUser, tmp_path: Path
) -> None:
    assert apptainer.run("--version").stdout.startswith("apptainer version 1.")
    tree = make_rootfs(tmp_path / "rootfs")
    assert apptainer.run("exec", "--no-home", tree, *SHOW).stdout.split() == ["tiny", str(os.getuid())]
    env = parts.apptainer_environment(apptainer.path, ordinary_user.home)
    command = [apptainer.path, "exec", "--no-home", tree, *SHOW]
    assert ordinary_user.run(command, env, readable=[tree]).stdout.split() == ["tiny", str(ordinary_user.uid)]


@pytest.mark.apptainer
@pytest.mark.usefixtures("fuse")
def test_apptainer_runs_a_sif(
    apptainer: parts.Apptainer, ordinary_user: parts.OrdinaryUser, tmp_path: Path
) -> None:
    tree, sif = make_rootfs(tmp_path / "rootfs"), tmp_path / "tiny.sif"
    apptainer.run("build", sif, tree)
    assert apptainer.run("exec", "--no-home", sif, *SHOW).stdout.split() == ["tiny", str(os.getuid())]
    env = parts.apptainer_environment(apptainer.path, ordinary_user.home)
    command = [apptainer.path, "exec", "--no-home", sif, *SHOW]
    assert ordinary_user.run(command, env, readable=[tmp_path]).stdout.split() == [
        "tiny",
        str(ordinary_user.uid),
    ]


@pytest.mark.podman
def test_podman_as_an_ordinary_user(ordinary_user: parts.OrdinaryUser, tiny_archive: Path) -> None:
    run = ["podman", "run", "--rm", f"oci-archive:{tiny_archive}", *SHOW]
    assert ordinary_user.run(
        run, ordinary_user.podman_environment(), readable=[tiny_archive]
    ).stdout.split() == ["tiny", "0"]


def test_ordinary_user(ordinary_user: parts.OrdinaryUser, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    inner, closed = tmp_path / "inner", tmp_path / "closed"
    for folder in (inner, closed):
        folder.mkdir(mode=0o755)
        (folder / "file").write_text(folder.name)
    probe = "import os, pwd, builder; user = pwd.getpwuid(os.getuid()); "
    probe += "print(user.pw_uid, user.pw_name, os.environ['HOME'], os.environ['X'])"
    done = ordinary_user.run([sys.executable, "-c", probe], {"X": "1"}, cwd=parts.CLONE)
    assert done.stdout.split() == [str(ordinary_user.uid), ordinary_user.name, str(ordinary_user.home), "1"]
    if os.geteuid() == 0:
        assert ordinary_user.run(["cat", inner / "file"], readable=[inner]).stdout == "inner"
        assert ordinary_user.run(["cat", closed / "file"], readable=[inner], check=False).returncode != 0
        assert ordinary_user.run(["touch", "/etc/written"], check=False).returncode != 0
        assert ordinary_user.name not in Path("/etc/passwd").read_text()


def test_parts_end_with_their_tests() -> None:
    """A run that is killed leaves no server behind."""
    script = (
        "from tests.support import parts\n"
        "with parts.registries() as make:\n"
        "    print(make().pid, flush=True)\n"
        "    import time; time.sleep(300)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=parts.CLONE)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    registry = os.pidfd_open(pid)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert select.select([registry], [], [], 120)[0], "the registry is still there"
    os.close(registry)
