"""Images for another processor: locked, built, checked and run here, with real aarch64 packages."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.build.bases.debian import debian_base
from builder.build.bases.image import WantedBase
from builder.build.bases.pack import pack_tar
from builder.core.errors import RunnerError
from builder.core.model import Image
from builder.core.progress import QUIET
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.store.files import CHUNK
from builder.core.workspace import Workspace
from builder.formats.net.apt import apt_sources
from builder.formats.oci.image import plain_image
from builder.formats.oci.layout import read_layout, write_layout
from builder.formats.qemu import emulation, is_registered
from builder.formats.sif.read import read_sif
from builder.formats.trees.merge import Merge
from tests.integration.conftest import CLONE, Builder
from tests.support.debian_channel import make_debian_channel, mirror_line
from tests.support.parts import need, part_missing

pytestmark = [pytest.mark.network, pytest.mark.heavy]
#: ELF's number of the processor.
AARCH64 = 183
RECIPE = """\
base: oci:base
environment: environments/numbers.yml
platform: linux-aarch64
virtual_packages: {__glibc: "2.36"}
pip: {fallback: pip}
"""
ENVIRONMENT = "channels: [nowhere]\ndependencies: [python=3.11, pip, {pip: [numpy]}]\n"
IMPORT = "import numpy, platform; print(platform.machine(), int(numpy.arange(10).sum()))"
RESULT = "aarch64 45\n"


@pytest.fixture(scope="module", autouse=True)
def qemu() -> None:
    """These tests need another processor, qemu, and a kernel that lets namespaces register it."""
    if platform.machine() == "aarch64":
        pytest.skip("this machine is aarch64")
    need("mmdebstrap", "apt-get")
    try:
        emulation("arm64")
    except RunnerError as e:
        part_missing(f"{e.message}: {e.hint}")


@pytest.fixture(scope="module")
def arm(module_folder: Path) -> Iterator[Builder]:
    """The targets ``numbers`` and ``numbers-sif``, built."""
    builder = Builder(module_folder / "project", module_folder / "cache")
    for name in ("recipes", "environments"):
        (builder.root / name).mkdir(parents=True)
    (builder.root / "recipes" / "numbers.yaml").write_text(RECIPE)
    (builder.root / "recipes" / "numbers-sif.yaml").write_text("extends: numbers\nformat: sif\n")
    (builder.root / "environments" / "numbers.yml").write_text(ENVIRONMENT)
    write_base(builder)
    channel = make_debian_channel(CLONE / ".cache" / "channel-aarch64", "linux-aarch64")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUILDER_MIRRORS", mirror_line(channel, "nowhere"))
        builder.run("build", "numbers", "numbers-sif")
        yield builder


def write_base(builder: Builder) -> None:
    """A base of some arm64 packages of Debian. None of their scripts is run: that is slow under qemu."""
    command = ["mmdebstrap", "--mode=root" if os.geteuid() == 0 else "--mode=unshare", "--variant=extract"]
    command += ["--architectures=arm64", "--include=libc6,dash,bash,coreutils", "--format=tar"]
    done = subprocess.run(
        [*command, "bookworm", "-", "-"], input=apt_sources("bookworm").encode(), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    store = Store(builder.cache)
    chunks = (done.stdout[at : at + CHUNK] for at in range(0, len(done.stdout), CHUNK))
    layer = pack_tar(chunks, store, 2, title="base")
    rootfs = {"type": "layers", "diff_ids": [layer.diff_id]}
    config = {"architecture": "arm64", "os": "linux", "config": {"Cmd": ["sh"]}, "rootfs": rootfs}
    image = plain_image([layer], config)
    write_layout(image, builder.root / "base", "latest", store)


def machines(headers: Iterator[tuple[str, bytes]]) -> dict[str, int]:
    """The processors of all ELF files among these, by path."""
    return {name: int.from_bytes(data[18:20], "little") for name, data in headers if data[:4] == b"\x7fELF"}


def files_of_image(image: Image) -> Iterator[tuple[str, bytes]]:
    """All files of an image, with their first bytes."""
    for layer in image.layers:
        assert layer.path is not None
        with tarfile.open(layer.path) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield member.name, file.read(20)


def files_of_sif(path: Path) -> Iterator[tuple[str, bytes]]:
    for member, content in Merge(read_sif(path).sources()):
        yield member.path, b"".join(content)[:20]


def test_lock(arm: Builder) -> None:
    """All packages are for the platform or for all, and the Debian channel's names say so."""
    text = (arm.root / "environments" / "numbers.numbers.lock.yml").read_text()
    assert set(re.findall(r"^  platform: (.*)$", text, re.MULTILINE)) == {"linux-aarch64"}
    assert "https://conda.anaconda.org/nowhere/linux-aarch64/python-3.11" in text
    assert "https://conda.anaconda.org/nowhere/noarch/tzdata" in text
    assert re.search(r"numpy-.*aarch64\.whl", text)
    assert "x86_64" not in text


def test_every_program_is_for_the_processor(arm: Builder) -> None:
    """The image and the SIF have no ELF file of another processor, and say which they are for."""
    image = read_layout(arm.root / "dist", "numbers")
    assert json.loads(image.config)["architecture"] == "arm64"
    in_image = machines(files_of_image(image))
    assert set(in_image.values()) == {AARCH64}
    assert any("numpy" in name for name in in_image)
    path = arm.root / "dist" / "numbers-sif.sif"
    in_sif = machines(files_of_sif(path))
    assert set(in_sif.values()) == {AARCH64}
    assert len(in_sif) >= len(in_image)
    header = path.read_bytes()[:64]
    assert header[header.index(b"SIF_MAGIC") + 13 :].startswith(b"04")


@pytest.mark.parametrize("target", ["numbers", "numbers-sif"])
def test_import_under_qemu(arm: Builder, target: str) -> None:
    """The image runs in the user-namespace runner, and the host's binfmt_misc stays as it is."""
    before = sorted(os.listdir("/proc/sys/fs/binfmt_misc"))
    done = arm.run("run", target, "--", "python", "-c", IMPORT)
    assert done.stdout == RESULT
    assert "the image is for arm64, this host is amd64: qemu runs its programs" in done.stderr
    assert sorted(os.listdir("/proc/sys/fs/binfmt_misc")) == before


def test_without_qemu(arm: Builder, tmp_path: Path) -> None:
    """Without qemu nothing is started; the hint names the package."""
    if is_registered("arm64"):
        pytest.skip("this host runs programs for arm64 by itself")
    (tmp_path / "python").symlink_to(sys.executable)
    done = arm.run("run", "numbers", "--", "true", env={"PATH": str(tmp_path)}, check=False)
    assert done.returncode != 0
    assert "the image is for arm64, this host is amd64" in done.stderr
    assert "apt-get install qemu-user-static" in done.stderr


@pytest.mark.timeout(1200)
def test_debian_base(tmp_path: Path) -> None:
    """``debian:bookworm`` for arm64 is complete: dpkg and all scripts of the packages ran, under qemu.

    It takes minutes.
    """
    if not is_registered("arm64"):
        pytest.skip("root has not registered qemu for arm64 on this host")
    settings = Settings.from_environment(cache=tmp_path / "cache")
    store = Store(settings.cache)
    digest = debian_base("debian:bookworm", WantedBase("arm64"), Workspace(settings, store, QUIET))
    manifest = json.loads(store.path(digest).read_bytes())
    with tarfile.open(store.path(manifest["layers"][0]["digest"])) as tar:
        names = tar.getnames()
        status = tar.extractfile("var/lib/dpkg/status")
        assert status is not None
        states = re.findall(r"^Status: (.*)$", status.read().decode(), re.MULTILINE)
        passwd = tar.extractfile("etc/passwd")
        assert passwd is not None and b"_apt:" in passwd.read()
    assert set(states) == {"install ok installed"}
    assert "etc/ssl/certs/ca-certificates.crt" in names
    assert not any("qemu" in name for name in names)
