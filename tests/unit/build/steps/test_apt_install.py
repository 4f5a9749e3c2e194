"""The layer of OS packages: what is downloaded, what is run, what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.build.steps import apt_install
from builder.build.steps.apt_install import OsInstall, fetch_os_packages, os_layer
from builder.build.steps.run import StepRun
from builder.core.errors import FetchError
from builder.core.model import Image, Layer, OsPackage, SifImage
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.entry import Entry
from tests.support import image_kit
from tests.support.fileserver import Server

POOL = "/debian/pool/hello.deb"


def package(store: Store, url: str, name: str = "hello", architecture: str = "amd64") -> OsPackage:
    digest = store.add(name.encode())
    store.path(digest).unlink()
    return OsPackage(name, "1:2", architecture, url, digest.removeprefix("sha256:"), len(name))


def install(store: Store, *packages: OsPackage) -> OsInstall:
    return OsInstall(image_kit.base(), packages, "amd64", 0, "mine", "mine.yaml:2: base_packages")


def test_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are mounted under apt's names, the step has no network, and the second time nothing runs."""
    settings = image_kit.settings(tmp_path)
    store = Store(settings.cache)
    server = Server()
    server.put(POOL, b"hello")
    server.put("/lib.deb", b"lib")
    steps: list[tuple[StepRun, dict[str, str]]] = []

    def run(image: Image | SifImage, step: StepRun, work: Workspace) -> Layer:
        folder = step.mounts[0].source
        files = {p.name: p.read_text() for p in [*(folder / "debs").iterdir(), folder / "install.sh"]}
        steps.append((step, files))
        return image_kit.layer(store, image_kit.member("usr/bin/hello", b"x"))

    monkeypatch.setattr(apt_install, "run_step", run)
    try:
        lib = package(store, f"{server.url}/lib.deb", "lib", "i386")
        wanted = install(store, package(store, server.url + POOL), lib)
        layer = os_layer(wanted, image_kit.base, Workspace(settings, store))
    finally:
        server.close()
    step, files = steps[0]
    assert not step.network and step.where == "mine.yaml:2: base_packages"
    assert files["hello_1%3a2_amd64.deb"] == "hello" and files["lib_1%3a2_i386.deb"] == "lib"
    assert "dpkg --add-architecture i386" in files["install.sh"]
    assert layer.title == "OS packages"
    again = os_layer(wanted, lambda: pytest.fail("no base is needed"), Workspace(settings, store))
    assert again.descriptor == layer.descriptor and len(steps) == 1
    os_layer(install(store, lib), image_kit.base, Workspace(settings, store))
    assert len(steps) == 2


def test_missing(tmp_path: Path) -> None:
    """What no place has is named; the hint says what to type."""
    settings = image_kit.settings(tmp_path)
    store = Store(settings.cache)
    server = Server()
    try:
        with pytest.raises(FetchError) as caught:
            fetch_os_packages(install(store, package(store, server.url + POOL)), Workspace(settings, store))
    finally:
        server.close()
    assert POOL in caught.value.message
    assert "builder lock mine --update-base" in caught.value.hint


@pytest.mark.parametrize(
    "path",
    [
        "var/log/dpkg.log",
        "var/lib/dpkg/status-old",
        "etc/machine-id",
        "etc/ssh/ssh_host_rsa_key",
        "etc/ssl/private/ssl-cert-snakeoil.key",
        "usr/sbin/policy-rc.d",
    ],
)
def test_left_out(path: str) -> None:
    """Logs, caches, locks, and keys that all containers would share are not in the layer."""
    assert apt_install._is_left_out(Entry(path, "file"))
