"""Base images resolved and opened, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.bases.image import WantedBase
from builder.build.bases.resolve import check_base, open_base, resolve_base
from builder.core.errors import ConfigError, ImageError
from builder.core.model import Image, LockedBase
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.oci.image import plain_image
from builder.formats.oci.layout import write_layout
from builder.formats.sif.plain import write_plain
from builder.formats.sif.write import write_sif
from builder.formats.trees.inflate import inflate
from builder.lock.config.recipe import Recipe
from tests.support.base_files import write_base
from tests.support.image_kit import image, layer, member, settings


@pytest.fixture
def made(tmp_path: Path) -> Image:
    elsewhere = Store(tmp_path / "elsewhere")
    return image(elsewhere, layer(elsewhere, member("a", b"1" * 5000)), env={"FROM": "base"})


@pytest.mark.parametrize("kind", ["oci", "docker-archive", "docker save"])
def test_local_images(kind: str, made: Image, store: Store, given: Settings, tmp_path: Path) -> None:
    """Images in layouts and archives are opened, always with the same digest."""
    reference = write_base(kind, made, tmp_path)
    locked = resolve_base(reference, WantedBase("amd64", root=tmp_path), Workspace(given, store))
    assert locked.reference == reference
    found = open_base(locked, WantedBase("amd64", root=tmp_path), Workspace(given, store))
    assert found.digest == locked.digest
    assert [x.diff_id for x in found.layers] == [x.diff_id for x in made.layers]
    assert found.config == json.loads(made.config)
    for one in found.layers:
        assert one.path is not None and one.path.stat().st_size == one.descriptor.size
        assert "sha256:" + hashlib.sha256(one.path.read_bytes()).hexdigest() == one.descriptor.digest
        assert "sha256:" + hashlib.sha256(b"".join(inflate(one.path))).hexdigest() == one.diff_id
    if kind == "oci":
        assert found.digest == made.digest
    if kind != "docker save":
        assert [x.descriptor for x in found.layers] == [x.descriptor for x in made.layers]
    again = Store(tmp_path / "another")
    assert (
        resolve_base(reference, WantedBase("amd64", root=tmp_path), Workspace(settings(tmp_path), again))
        == locked
    )


@pytest.mark.parametrize("kind", ["oci", "docker-archive", "docker save"])
def test_other_image_than_locked(
    kind: str, made: Image, store: Store, given: Settings, tmp_path: Path
) -> None:
    """An image that is not the locked one is refused."""
    reference = write_base(kind, made, tmp_path)
    locked = LockedBase(reference, "sha256:" + "e" * 64)
    with pytest.raises(
        ImageError, match=f"pins the base {reference} as sha256:eee.* but it holds sha256"
    ) as caught:
        open_base(locked, WantedBase("amd64", root=tmp_path), Workspace(given, store))
    assert "--update-base" in caught.value.hint


def test_wrong_architecture(made: Image, store: Store, given: Settings, tmp_path: Path) -> None:
    """An image for another architecture is refused."""
    reference = write_base("oci", made, tmp_path)
    with pytest.raises(ImageError, match="is for linux/amd64, the recipe for linux/arm64"):
        open_base(
            LockedBase(reference, made.digest), WantedBase("arm64", root=tmp_path), Workspace(given, store)
        )


@pytest.mark.parametrize("names", [{"architecture": "", "os": ""}, {"architecture": None, "os": None}, {}])
def test_config_without_architecture(
    store: Store, given: Settings, tmp_path: Path, names: dict[str, str | None]
) -> None:
    """An image that names no processor, as of crane append, serves any, and becomes a SIF of amd64."""
    one = layer(store, member("a", b"A"))
    rootfs = {"type": "layers", "diff_ids": [one.diff_id]}
    made = plain_image([one], {"config": {"Labels": {"odd": None}}, "rootfs": rootfs, **names})
    write_layout(made, tmp_path / "layout", "x", store)
    locked = LockedBase("oci:layout:x", made.digest)
    work = Workspace(given, store)
    for architecture in ("amd64", "arm64"):
        found = open_base(locked, WantedBase(architecture, root=tmp_path), work)
        assert found.config["config"]["Labels"] == {"odd": ""}
    assert write_sif(made, tmp_path / "a.sif", work).architecture == "amd64"
    assert write_plain(made, tmp_path / "a.sqsh", work)


def test_damaged_layer_in_layout(made: Image, store: Store, given: Settings, tmp_path: Path) -> None:
    """A corrupt layer of an OCI layout is named."""
    reference = write_base("oci", made, tmp_path)
    path = tmp_path / "layout/blobs/sha256" / made.layers[0].descriptor.digest[7:]
    path.write_bytes(b"?" * path.stat().st_size)
    with pytest.raises(ImageError, match="its content does not match its digest"):
        resolve_base(reference, WantedBase("amd64", root=tmp_path), Workspace(given, store))


@pytest.mark.parametrize(
    ("base", "packages", "message", "hint"),
    [
        (
            "ubuntu:22.04",
            [],
            "1: base: base 'ubuntu:22.04'",
            "write base: docker://docker.io/library/ubuntu:22.04",
        ),
        ("debian", [], "not a reference to an image", "write base: debian:bookworm"),
        (
            "debian:12",
            [],
            "1: base: base 'debian:12': not a Debian suite",
            "write the suite's name: debian:bookworm",
        ),
        ("images/lumi.sif", [], "not a reference to an image", "write base: sif:images/lumi.sif"),
        ("base.tar", [], "not a reference to an image", "write base: docker-archive:base.tar"),
        ("mine", [], "not a reference to an image", "for an image of this project: oci:dist:TARGET"),
        (
            "docker-daemon:mine:latest",
            [],
            "not a reference to an image",
            "docker save -o base.tar mine:latest; then write base: docker-archive:base.tar",
        ),
        (
            "containers-storage:localhost/mine",
            [],
            "not a reference to an image",
            "podman save -o base.tar localhost/mine; then write base: docker-archive:base.tar",
        ),
        (
            "oci-archive:mine.tar",
            [],
            "not a reference to an image",
            "mkdir base && tar -C base -xf mine.tar; then write base: oci:base",
        ),
        ("./layout", [], "not a reference to an image", "write base: oci:./layout for an OCI layout"),
        ("docker://HOST/X", [], "1: base: 'HOST/X'", "write it in lower case"),
        ("debian:bookworm", ["git curl"], "2: base_packages: 'git curl'", "write base_packages: [git, curl]"),
    ],
)
def test_check_base(tmp_path: Path, base: str, packages: list[str], message: str, hint: str) -> None:
    """A base that cannot be one is an error before anything is made; the hint is the line to write."""
    source = tmp_path / "mine.yaml"
    source.write_text(f"base: {base}\nbase_packages: {packages}\n")
    recipe = Recipe(
        name="mine", base=base, base_packages=tuple(packages), environment="environment.yml", source=source
    )
    with pytest.raises(ConfigError) as caught:
        check_base(recipe)
    assert caught.value.message.startswith(f"{source}:") and message in caught.value.message
    assert hint in caught.value.hint


def test_own_image_before_its_build(store: Store, given: Settings, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="/dist does not exist") as caught:
        resolve_base("oci:dist:mine", WantedBase("amd64", root=tmp_path), Workspace(given, store))
    assert "for oci:dist:NAME: builder build NAME" in caught.value.hint


def test_check_base_accepts(tmp_path: Path) -> None:
    for base in (
        "debian:bookworm",
        "debian:bookworm-backports",
        "oci:x",
        "sif:/appl/x.sif",
        "docker://debian",
    ):
        check_base(Recipe(name="mine", base=base, environment="environment.yml"))


def test_mirror_in_a_folder(made: Image, store: Store, given: Settings, tmp_path: Path) -> None:
    """The image of a registry, from a layout that BUILDER_MIRRORS names, is still there without it."""
    path = tmp_path / write_base("oci", made, tmp_path).removeprefix("oci:")
    reference = "docker://r.invalid/base:1"
    mirrors = ((reference, f"oci:{path}"),)
    mirrored = Workspace(replace(given, mirrors=mirrors), store)
    locked = resolve_base(reference, WantedBase("amd64"), mirrored)
    first = open_base(locked, WantedBase("amd64"), mirrored)
    shutil.rmtree(tmp_path / "layout")
    again = open_base(locked, WantedBase("amd64"), Workspace(replace(given, offline=True), store))
    assert (again.digest, again.config) == (first.digest, first.config)
    assert [x.descriptor for x in again.layers] == [x.descriptor for x in made.layers]
    assert all(x.path and x.path.is_relative_to(store.root) and x.path.exists() for x in again.layers)
