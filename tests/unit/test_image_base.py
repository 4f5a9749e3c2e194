"""Base images from this machine's disk, apt's settings, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from builder.bases import debian
from builder.bases.base import BaseImage, conda_prefixes, open_base, resolve_base, split
from builder.errors import BuilderError, ConfigError, ImageError, RegistryError
from builder.image.archive import write_docker_archive, write_oci_archive
from builder.model import Image, LockedBase
from builder.net.apt import apt_sources
from builder.oci.layout import write_layout
from builder.settings import Settings
from builder.store.blobs import Store
from builder.trees.rootfs import inflate
from tests.support.image_kit import base, image, layer, member, settings, tar_bytes


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def given(tmp_path: Path) -> Settings:
    return settings(tmp_path)


@pytest.fixture
def made(tmp_path: Path) -> Image:
    elsewhere = Store(tmp_path / "elsewhere")
    return image(elsewhere, layer(elsewhere, member("a", b"1" * 5000)), env={"FROM": "base"})


def write(kind: str, made: Image, folder: Path) -> str:
    """The image in one of the local forms; gives the reference, relative to ``folder``."""
    if kind == "oci":
        write_layout(made, folder / "layout", "tiny", Store(folder / "elsewhere"))
        return "oci:layout:tiny"
    if kind == "oci-archive":
        write_oci_archive(made, folder / "image.tar", "tiny")
        return "oci-archive:image.tar"
    if kind == "docker-archive":
        write_docker_archive(made, folder / "image.tar", "builder/tiny:latest")
        return "docker-archive:image.tar"
    docker_save(made, folder / "saved.tar")
    return "docker-archive:saved.tar"


def docker_save(made: Image, file: Path) -> None:
    """As ``docker save`` of 20.10 writes it: layers uncompressed."""
    with tarfile.open(file, "w") as tar:

        def add(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        names = []
        for number, one in enumerate(made.layers):
            assert one.path is not None
            names.append(f"{number}/layer.tar")
            add(names[-1], b"".join(inflate(one.path)))
        add("config.json", made.config)
        add(
            "manifest.json",
            json.dumps([{"Config": "config.json", "RepoTags": ["x/y:1"], "Layers": names}]).encode(),
        )


@pytest.mark.parametrize("kind", ["oci", "oci-archive", "docker-archive", "docker save"])
def test_local_images(kind: str, made: Image, store: Store, given: Settings, tmp_path: Path) -> None:
    reference = write(kind, made, tmp_path)
    locked = resolve_base(reference, "amd64", given, store, root=tmp_path)
    assert locked.reference == reference
    found = open_base(locked, "amd64", given, store, root=tmp_path)
    assert found.digest == locked.digest
    assert [x.diff_id for x in found.layers] == [x.diff_id for x in made.layers]
    assert found.config == json.loads(made.config)
    for one in found.layers:
        assert one.path is not None and one.path.stat().st_size == one.descriptor.size
        assert "sha256:" + hashlib.sha256(one.path.read_bytes()).hexdigest() == one.descriptor.digest
        assert "sha256:" + hashlib.sha256(b"".join(inflate(one.path))).hexdigest() == one.diff_id
    if kind in ("oci", "oci-archive"):
        assert found.digest == made.digest
    if kind != "docker save":
        assert [x.descriptor for x in found.layers] == [x.descriptor for x in made.layers]
    again = Store(tmp_path / "another")
    assert resolve_base(reference, "amd64", settings(tmp_path), again, root=tmp_path) == locked


@pytest.mark.parametrize("kind", ["oci", "oci-archive", "docker-archive", "docker save"])
def test_another_image_than_the_locked_one(
    kind: str, made: Image, store: Store, given: Settings, tmp_path: Path
) -> None:
    reference = write(kind, made, tmp_path)
    locked = LockedBase(reference, "sha256:" + "e" * 64)
    with pytest.raises(
        ImageError, match=f"pins the base {reference} as sha256:eee.* but it holds sha256"
    ) as caught:
        open_base(locked, "amd64", given, store, root=tmp_path)
    assert "--update-base" in caught.value.hint


def test_the_wrong_architecture(made: Image, store: Store, given: Settings, tmp_path: Path) -> None:
    reference = write("oci", made, tmp_path)
    with pytest.raises(ImageError, match="is for linux/amd64, the recipe for linux/arm64"):
        open_base(LockedBase(reference, made.digest), "arm64", given, store, root=tmp_path)


def test_a_damaged_layer_in_a_layout(made: Image, store: Store, given: Settings, tmp_path: Path) -> None:
    reference = write("oci", made, tmp_path)
    path = tmp_path / "layout/blobs/sha256" / made.layers[0].descriptor.digest[7:]
    path.write_bytes(b"?" * path.stat().st_size)
    with pytest.raises(ImageError, match="is not what its name says"):
        resolve_base(reference, "amd64", given, store, root=tmp_path)


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
def test_damaged_archives(kind: str, made: Image, store: Store, given: Settings, tmp_path: Path) -> None:
    reference = write(kind, made, tmp_path)
    file = tmp_path / "image.tar"
    data = file.read_bytes()

    def refused(message: str) -> None:
        with pytest.raises(ImageError, match=message) as caught:
            resolve_base(reference, "amd64", given, Store(tmp_path / "fresh"), root=tmp_path)
        assert "image.tar" in caught.value.message
        shutil.rmtree(tmp_path / "fresh", ignore_errors=True)

    file.write_bytes(b"not a tar" * 100)
    refused("not a whole archive")
    file.write_bytes(data[: len(data) // 2])
    refused("archive|damaged|has no|read")
    one = made.layers[1].path
    assert one is not None
    at = data.index(one.read_bytes())
    file.write_bytes(data[:at] + bytes(reversed(data[at : at + 200])) + data[at + 200 :])
    refused("damaged")
    file.write_bytes(tar_bytes([member("etc/passwd", b"x")]))
    refused("has no (index|manifest).json")


def test_a_docker_archive_whose_layer_is_another(
    made: Image, store: Store, given: Settings, tmp_path: Path
) -> None:
    write("docker save", made, tmp_path)
    with tarfile.open(tmp_path / "saved.tar") as tar:
        members = [(m, tar.extractfile(m).read()) for m in tar.getmembers()]  # type: ignore[union-attr]
    changed = [(m, tar_bytes([member("evil", b"x")]) if m.name == "1/layer.tar" else d) for m, d in members]
    for m, d in changed:
        m.size = len(d)
    (tmp_path / "saved.tar").write_bytes(tar_bytes(changed))
    with pytest.raises(ImageError, match=r"layer 1/layer.tar is sha256:\w+, its config says"):
        resolve_base("docker-archive:saved.tar", "amd64", given, store, root=tmp_path)


def test_a_compressed_docker_archive(made: Image, store: Store, given: Settings, tmp_path: Path) -> None:
    write("docker save", made, tmp_path)
    plain = resolve_base("docker-archive:saved.tar", "amd64", given, store, root=tmp_path)
    (tmp_path / "saved.tar.gz").write_bytes(gzip.compress((tmp_path / "saved.tar").read_bytes()))
    packed = resolve_base("docker-archive:saved.tar.gz", "amd64", given, Store(tmp_path / "x"), root=tmp_path)
    assert packed.digest == plain.digest


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("debian", "not a reference"),
        ("debian:", "not a reference"),
        ("debian:../x", "not a Debian suite"),
        ("docker:debian:bookworm", "not a reference"),
        ("ubuntu:22.04", "not a reference"),
        ("library/debian", "not a reference"),
        ("file:/x", "not a reference"),
        ("oci:nowhere", "nowhere does not exist"),
        ("oci-archive:nowhere.tar", "nowhere.tar does not exist"),
        ("docker-archive:.", "is not a file"),
        ("docker://UPPER/case", "."),
    ],
)
def test_references_that_are_none(
    reference: str, message: str, store: Store, given: Settings, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, ImageError, RegistryError), match=message) as caught:
        resolve_base(reference, "amd64", given, store, root=tmp_path)
    assert isinstance(caught.value, BuilderError) and caught.value.hint


def test_base_packages_are_debian_s(store: Store, given: Settings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="base_packages are for debian: bases"):
        resolve_base("oci:x", "amd64", given, store, packages=["git"])
    with pytest.raises(ConfigError, match="'git --evil' is not the name of a Debian package"):
        resolve_base("debian:bookworm", "amd64", given, store, packages=["git --evil"])


def test_split() -> None:
    assert split("docker://debian:bookworm") == ("docker", "debian:bookworm")
    assert split("oci:dir:tag") == ("oci", "dir:tag")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ([], []),
        (["PATH=/usr/bin:/bin"], []),
        (["PATH=/opt/conda/bin:/opt/conda/condabin:/usr/bin", "CONDA_DIR=/opt/conda"], ["/opt/conda"]),
        (
            ["PATH=/opt/miniforge3/bin:/bin", "MAMBA_ROOT_PREFIX=/opt/mamba/"],
            ["/opt/mamba", "/opt/miniforge3"],
        ),
    ],
)
def test_conda_of_a_base(env: list[str], expected: list[str]) -> None:
    assert conda_prefixes(base(env=env)) == expected
    assert conda_prefixes(BaseImage("x", "y", {}, ())) == []


# apt ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    folder = tmp_path / "apt"
    (folder / "sources.list.d").mkdir(parents=True)
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_CODENAME="bookworm"\n')
    return folder


def sources(apt: Path, suite: str = "bookworm") -> str:
    return apt_sources(suite, apt, apt.parent / "os-release")


def test_deb822_sources(apt: Path) -> None:
    (apt / "sources.list.d/debian.sources").write_text(
        "# a comment\nTypes: deb deb-src\nURIs: http://mirror.example/debian\n"
        "Suites: bookworm bookworm-updates bookworm-backports\n"
        "Components: main contrib\nArchitectures: amd64 i386\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n"
        " abc\n -----END PGP PUBLIC KEY BLOCK-----\n"
        "\n\nTypes: deb\nURIs: http://mirror.example/security\nSuites: bookworm-security\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/k.gpg\n"
        "\nTypes: deb\nURIs: http://tool.example\nSuites: stable\nComponents: main\n"
        "\nTypes: deb\nEnabled: no\nURIs: http://off.example\nSuites: bookworm\nComponents: main\n"
        "\nTypes: deb-src\nURIs: http://source.example\nSuites: bookworm\nComponents: main\n"
    )
    assert sources(apt) == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"
        "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----\n"
        "\nTypes: deb\nURIs: http://mirror.example/security\nSuites: bookworm-security\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/k.gpg\n"
    )


def test_one_line_sources(apt: Path) -> None:
    (apt / "sources.list").write_text(
        "deb [arch=amd64,arm64 signed-by=/k.gpg check-valid-until=no] http://mirror.example/debian bookworm main contrib # ours\n"
        "deb-src http://mirror.example/debian bookworm main\n#deb http://old.example bookworm main\n"
        "deb http://x.example bookworm stable\n"
    )
    assert sources(apt) == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\nSigned-By: /k.gpg\n"
        "Check-Valid-Until: no\n"
    )


def test_another_suite_from_the_same_mirror(apt: Path) -> None:
    (apt / "sources.list").write_text(
        "deb http://mirror.example/debian bookworm main\ndeb http://mirror.example/security bookworm-security main\n"
    )
    assert "Suites: trixie\n" in sources(apt, "trixie") and "Suites: trixie-security\n" in sources(
        apt, "trixie"
    )
    (apt.parent / "os-release").write_text("ID=ubuntu\nVERSION_CODENAME=bookworm\n")
    with pytest.raises(ImageError, match="name no mirror for Debian trixie"):
        sources(apt, "trixie")


def test_no_sources(apt: Path) -> None:
    with pytest.raises(ImageError, match="name no mirror for Debian bookworm") as caught:
        sources(apt)
    assert "docker://" in caught.value.hint


# who can make a Debian base -------------------------------------------------------------------------------------------


@pytest.fixture
def no_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        debian,
        "apt_sources",
        lambda suite: "Types: deb\nURIs: file:///nowhere\nSuites: bookworm\nComponents: main\n",
    )
    monkeypatch.setattr(debian, "_mirror_state", lambda *a: None)


def test_mmdebstrap_is_missing(
    store: Store, given: Settings, no_mirror: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian.shutil, "which", lambda name: None)
    with pytest.raises(ImageError, match="mmdebstrap is not installed") as caught:
        resolve_base("debian:bookworm", "amd64", given, store)
    assert "apt-get install mmdebstrap" in caught.value.hint


@pytest.mark.parametrize(
    ("which", "message", "hint"),
    [
        (("mmdebstrap",), "needs newuidmap", "apt-get install uidmap"),
        (("mmdebstrap", "newuidmap", "newgidmap"), "no range of ids in /etc/subuid", "usermod --add-subuids"),
    ],
)
def test_an_ordinary_user_who_cannot(
    which: tuple[str, ...],
    message: str,
    hint: str,
    store: Store,
    given: Settings,
    no_mirror: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(debian.shutil, "which", lambda name: f"/usr/bin/{name}" if name in which else None)
    monkeypatch.setattr(debian.os, "geteuid", lambda: 987654)
    monkeypatch.setattr(debian.getpass, "getuser", lambda: "nobody-like-this")
    with pytest.raises(ImageError, match=message) as caught:
        resolve_base("debian:bookworm", "amd64", given, store)
    assert hint in caught.value.hint


def test_offline_and_never_made(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="is not in the cache, and this build is offline"):
        resolve_base("debian:bookworm", "amd64", settings(tmp_path, offline=True), store)


def pretend(monkeypatch: pytest.MonkeyPatch, state: list[Any]) -> list[str]:
    """mmdebstrap whose mirror is in ``state[0]``; gives the list of what was made."""
    calls: list[str] = []

    def make(
        reference: str,
        suite: str,
        include: list[str],
        architecture: str,
        sources: str,
        s: Settings,
        store: Store,
        r: Any,
    ) -> str:
        calls.append(",".join(include))
        one = layer(store, member("etc/mirror", str(state[0]).encode()))
        config = store.add(
            json.dumps(
                {
                    "architecture": architecture,
                    "os": "linux",
                    "rootfs": {"type": "layers", "diff_ids": [one.diff_id]},
                }
            ).encode()
        )
        size = store.path(config).stat().st_size
        return store.add(
            json.dumps(
                {
                    "schemaVersion": 2,
                    "config": {"digest": config, "size": size},
                    "layers": [one.descriptor.to_json()],
                }
            ).encode()
        )

    monkeypatch.setattr(debian, "apt_sources", lambda suite: "")
    monkeypatch.setattr(debian, "_mirror_state", lambda *a: state[0])
    monkeypatch.setattr(debian, "_make", make)
    return calls


def test_a_base_is_made_once_and_again_when_the_mirror_moves(
    store: Store, given: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: list[Any] = ["monday"]
    calls = pretend(monkeypatch, state)
    first = resolve_base("debian:bookworm", "amd64", given, store)
    assert resolve_base("debian:bookworm", "amd64", given, store) == first and calls == ["ca-certificates"]
    resolve_base("debian:bookworm", "amd64", given, store, packages=["git"])
    assert calls == ["ca-certificates", "ca-certificates,git"]
    state[0] = "tuesday"
    second = resolve_base("debian:bookworm", "amd64", given, store)
    assert second != first and len(calls) == 3
    state[0] = None  # the mirror does not answer: what was made last
    assert resolve_base("debian:bookworm", "amd64", given, store) == second and len(calls) == 3
    assert (
        open_base(first, "amd64", given, store).digest == first.digest and len(calls) == 3
    )  # still in the store


def test_a_pinned_base_that_cannot_be_made_any_more(
    store: Store, given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: list[Any] = ["monday"]
    pretend(monkeypatch, state)
    locked = resolve_base("debian:bookworm", "amd64", given, store)
    fresh = Store(tmp_path / "another-machine")
    assert open_base(locked, "amd64", given, fresh).digest == locked.digest
    state[0] = "tuesday"
    with pytest.raises(
        ImageError, match=f"pins debian:bookworm as {locked.digest}, but .* moved on"
    ) as caught:
        open_base(locked, "amd64", given, Store(tmp_path / "third"))
    assert "builder lock --update-base" in caught.value.hint


def test_a_base_pruned_from_the_cache_is_made_again(
    store: Store, given: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pretend(monkeypatch, ["monday"])
    locked = resolve_base("debian:bookworm", "amd64", given, store)
    found = open_base(locked, "amd64", given, store)
    store.drop(found.layers[0].descriptor.digest)
    assert open_base(locked, "amd64", given, store) == found and len(calls) == 2


@pytest.mark.parametrize(
    ("log", "message", "hint"),
    [
        (
            "I: running\nE: Unable to locate package no-such-package\nE: setup failed",
            "has no package no-such-package",
            "base_packages",
        ),
        (
            "E: Could not connect to 127.0.0.1:1\nE: apt-get update failed",
            "Could not connect",
            "does not answer",
        ),
        (
            "E: unshare(CLONE_NEWUSER) failed: Operation not permitted",
            "Operation not permitted",
            "does not let users make namespaces",
        ),
        (
            "E: something else: http://me:secret@mirror.example/debian",
            "//mirror.example/debian",
            "try it by hand",
        ),
    ],
)
def test_what_mmdebstrap_says_is_explained(log: str, message: str, hint: str) -> None:
    error = debian._failure("debian:bookworm", 1, log, "bookworm", ["ca-certificates"])
    assert message in error.message and hint in error.hint and "secret" not in str(error)
