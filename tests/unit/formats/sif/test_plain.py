"""Plain squashfs images: their files, those that stand for the config, and their bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.build.image.convert import convert_image
from builder.core.errors import UsageError
from builder.core.workspace import Workspace
from builder.formats.oci.layout import write_layout
from builder.formats.sif.plain import config_files, write_plain
from builder.formats.trees.sources import squashfs_source
from tests.support.compare import compare_trees, image_tree, read_tree
from tests.support.image_kit import layer, member
from tests.support.sif_place import Place

CONFIG_FILES = {"etc/rc", "etc/rc.local", "etc/fstab", "etc/environment"}


def test_same_files_as_image(place: Place) -> None:
    """The squashfs has the image's files, owned by root, and four more; nothing for SIF runtimes."""
    info, content = member("opt/mine", b"text")
    info.uid = info.gid = 1000
    image = place.image(layer(place.store, (info, content)), workdir="/work/dir")
    path = place.folder / "a.sqsh"
    _, size = write_plain(image, path, Workspace(place.settings, place.store))
    assert size == path.stat().st_size
    tree = read_tree([squashfs_source(path, 0, "a", "", size)])
    expected = image_tree(image, place.store)
    differences = compare_trees(expected, tree, owners=False)
    assert {one.path for one in differences} == CONFIG_FILES | {"work", "work/dir"}
    assert {(one.uid, one.gid) for one in tree.values()} == {(0, 0)}
    assert expected["opt/mine"].uid == 1000
    assert ".singularity.d" not in tree


def test_reproducible(tmp_path: Path) -> None:
    """Bytes do not depend on the cache."""
    places = [Place(tmp_path / name) for name in ("one", "two")]
    made = {write_plain(p.image(), p.folder / "a.sqsh", Workspace(p.settings, p.store)) for p in places}
    assert len(made) == 1


def test_config_files(tmp_path: Path) -> None:
    """The texts have the form of enroot import; words are quoted for the shell that reads them."""
    config = {
        "Env": ["PATH=/opt/conda/bin:/bin", 'A=it\'s "b" $c', "TWO=a\nb"],
        "Entrypoint": ["/opt/builder/entrypoint"],
        "Cmd": ["echo", "it's $HOME"],
        "WorkingDir": "/my work",
        "Labels": {"a": "b\nc"},
        "Volumes": {"/data": {}},
    }
    files = config_files(config, "sha256:00")
    assert set(files) == CONFIG_FILES
    assert files["etc/environment"] == 'PATH=/opt/conda/bin:/bin\nA=it\'s "b" $c\n'
    assert files["etc/fstab"] == "${ENROOT_ROOTFS}/data /data none x-create=dir,bind,rw,nosuid,nodev\n"
    assert files["etc/rc"].startswith("# builder: sha256:00\n# a b c\n\nmkdir -p '/my work' 2> /dev/null\n")
    assert 'exec /opt/builder/entrypoint "$@"\n' in files["etc/rc"]


def test_hostile_config() -> None:
    """Texts of an image's config do not become lines of a script or of mounts."""
    labels, volumes = {"a\ntouch /x": "b\rc"}, {"/d /x none bind\n/etc": {}, "/$HOME": {}, "/ok": {}}
    files = config_files({"Labels": labels, "Volumes": volumes, "WorkingDir": "../a/../../b"}, "sha256:00")
    assert files["etc/rc"].splitlines()[1:4] == ["# a touch /x b c", "", "mkdir -p /b 2> /dev/null"]
    assert [line.split()[1] for line in files["etc/fstab"].splitlines()] == ["/ok"]


def test_hostile_layer(place: Place) -> None:
    """A link in place of /etc is replaced, and no program runs as root that ran as another user."""
    link, program = member("etc", b""), member("bin/own", b"x")
    link[0].type, link[0].linkname = b"2", "/host"
    program[0].uid, program[0].mode = 1000, 0o4755
    root = member("bin/su", b"x")
    root[0].mode = 0o4755
    image = place.image(layer(place.store, link, program, root), workdir="/a/../../b")
    write_plain(image, place.folder / "a.sqsh", Workspace(place.settings, place.store))
    tree = read_tree([squashfs_source(place.folder / "a.sqsh", 0, "a")])
    assert {"etc", "etc/rc", "b"} <= set(tree) and "a" not in tree
    assert (tree["bin/own"].mode & 0o7777, tree["bin/su"].mode & 0o7777) == (0o755, 0o4755)


def test_convert(place: Place) -> None:
    """An OCI image becomes a squashfs by the file's name; SIFs and squashfs images are no source."""
    image = place.image()
    write_layout(image, place.folder / "dist", "cpu", place.store)
    work = Workspace(place.settings, place.store)
    made = convert_image(f"oci:{place.folder}/dist:cpu", f"{place.folder}/a.sqsh", work)
    assert made.source_digest == image.digest
    tree = read_tree([squashfs_source(place.folder / "a.sqsh", 0, "a.sqsh", "", made.size)])
    missing = {one.path for one in compare_trees(image_tree(image, place.store), tree) if one.b is None}
    assert not missing
    with pytest.raises(UsageError, match="not an image that builder reads"):
        convert_image(f"{place.folder}/a.sqsh", "b.sif", work)
    with pytest.raises(UsageError, match="is a SIF, and convert reads OCI images"):
        convert_image(str(place.sif(image).path), "b.sqsh", work)
