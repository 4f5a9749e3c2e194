"""Builds of whole environments: the cache, conflicts, and failures that name the package."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import LayerError
from builder.core.model import Compression, Fetched, Layer, LayerContent, LayerOptions, LockedPackage
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers import build as build_module
from builder.formats.layers.build import LayersResult, build_layers, make_layer
from builder.formats.layers.entry import Entry, LinkContext
from builder.formats.layers.packages import Packages
from builder.formats.layers.wheel import wheel_entries
from tests.support import condapackage
from tests.support.packagefiles import files_of
from tests.support.wheels import CONTEXT, fetched, make_wheel, noise, tree

EPOCH = 315532800


SITE = "opt/conda/lib/python3.11/site-packages"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Fetched]:
    folder = tmp_path_factory.mktemp("wheels")
    out = []
    for i in range(14):
        files = {f"p{i}/__init__.py": f"n = {i}\n", f"p{i}/data.bin": noise(str(i), 3000 * (i + 1))}
        out.append(
            fetched(
                make_wheel(
                    folder, f"p{i}", files=files, entry_points=f"[console_scripts]\np{i} = p{i}:main\n"
                )
            )
        )
    big = {"big/lib.so": noise("big", 6 << 20), "big/small.py": "x = 1\n"}
    return [*out, fetched(make_wheel(folder, "big", files=big, stored=["big/small.py"]))]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of the layers that are written, and not taken from the cache."""
    titles: list[str] = []

    def make(entries: Iterable[Entry], title: str, *args: Any, **more: Any) -> Layer:
        titles.append(title)
        return make_layer(entries, title, *args, **more)

    monkeypatch.setattr(build_module, "make_layer", make)
    return titles


def build(
    packages: list[Fetched],
    folder: Path,
    *,
    jobs: int = 2,
    options: LayerOptions | None = None,
    context: LinkContext = CONTEXT,
    epoch: int = EPOCH,
) -> LayersResult:
    where = Settings(folder / "cache", folder / "tmp", jobs, epoch=epoch)
    return build_layers(
        files_of(packages, where, context),
        options or LayerOptions(groups=4, own_layer_from=1 << 20),
        budget=90,
    )


def digests(result: LayersResult) -> list[tuple[str, str, int]]:
    return [(x.descriptor.digest, x.diff_id, x.unpacked) for x in result.layers]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_same_bytes_everywhere(tmp_path: Path, wheels: list[Fetched], compression: Compression) -> None:
    """The number of jobs, the umask and the cache folder do not change a layer."""
    options = LayerOptions(groups=4, own_layer_from=1 << 20, compression=compression)
    first = build(wheels, tmp_path / "1", jobs=1, options=options)
    old = os.umask(0o077)
    try:
        second = build(wheels, tmp_path / "2", jobs=4, options=options)
    finally:
        os.umask(old)
    assert first.layers and digests(first) == digests(second)
    assert [x.descriptor.to_json() for x in first.layers] == [x.descriptor.to_json() for x in second.layers]
    assert len(first.layers) == 5
    for a, b in zip(first.layers, second.layers, strict=True):
        assert a.path is not None and b.path is not None and a.path.read_bytes() == b.path.read_bytes()


def test_each_file_is_in_one_layer(tmp_path: Path, wheels: list[Fetched]) -> None:
    """The layers hold every file of every package once."""
    result = build(wheels, tmp_path)
    found = tree(result.layers)
    assert found[f"{SITE}/big/lib.so"] == ("file", 0o644, noise("big", 6 << 20))
    assert found["opt/conda/bin/p3"][1] == 0o755
    expected = {e.path for f in wheels for e in wheel_entries(f, CONTEXT)}
    assert set(found) == expected
    assert sorted(p for x in result.layers for p in x.packages) == sorted(f.package.name for f in wheels)
    assert result.layers[0].descriptor.annotations == {"org.builder.packages": "big=1.0"}


def test_new_version_changes_one_layer(tmp_path: Path, wheels: list[Fetched], written: list[str]) -> None:
    """The same input makes no layer; a new version of a small package changes that of its group only."""
    first = build(wheels, tmp_path)
    written.clear()
    assert build(wheels, tmp_path, jobs=1) == first and not written
    new = fetched(make_wheel(tmp_path / "new", "p5", "2.0", files={"p5/__init__.py": "n = 55\n"}))
    second = build([new if f.package.name == "p5" else f for f in wheels], tmp_path)
    assert len(written) == 1
    (changed,) = [i for i, (a, b) in enumerate(zip(digests(first), digests(second), strict=True)) if a != b]
    assert "p5" in second.layers[changed].packages and "big" not in second.layers[changed].packages


def test_log(tmp_path: Path, wheels: list[Fetched], caplog: pytest.LogCaptureFixture) -> None:
    """The log names each layer that is made, or reports that all are in the cache."""
    caplog.set_level("INFO", "builder.formats.layers")
    result = build(wheels, tmp_path)
    count = len(result.layers)
    assert caplog.messages[0] == f"making layers: {count} are needed, 0 of them in the cache"
    made = [f"not in the cache: {x.title}; made {x.descriptor.digest}" for x in result.layers]
    assert sorted(x.rpartition(" (")[0] for x in caplog.messages[1:]) == sorted(made)
    caplog.clear()
    build(wheels, tmp_path)
    assert caplog.messages == [f"all {count} layers of packages are in the cache"]


def test_titles_do_not_depend_on_the_cache(tmp_path: Path, wheels: list[Fetched]) -> None:
    """A layer of one package has the title that its plan names, and not that of an earlier build, in which
    the package was the only one of a group.
    """
    one = [f for f in wheels if f.package.name == "p5"]
    alone = LayerOptions(groups=4, own_layer_from=1)
    group = build(one, tmp_path / "cached").layers[0]
    cached = build(one, tmp_path / "cached", options=alone)
    assert cached == build(one, tmp_path / "cached", options=alone)
    assert (group.title[:9], cached.layers[0].title) == ("pip group", "pip p5 1.0")
    assert cached.layers[0].content == LayerContent("packages", "pip", "p5")
    assert cached.layers[0].descriptor == group.descriptor


@pytest.mark.parametrize(
    "change",
    [
        {"context": replace(CONTEXT, prefix="/opt/env")},
        {"context": replace(CONTEXT, python="3.12", site_packages="lib/python3.12/site-packages")},
        {"epoch": EPOCH + 1},
        {"options": LayerOptions(groups=4, own_layer_from=1 << 20, compression="zstd")},
    ],
    ids=["prefix", "python", "epoch", "codec"],
)
def test_inputs_of_all_layers(tmp_path: Path, wheels: list[Fetched], change: dict[str, object]) -> None:
    """Prefix, Python, time and codec change every layer."""
    first = build(wheels, tmp_path)
    second = build(wheels, tmp_path, **change)  # type: ignore[arg-type]
    assert second.layers and not set(digests(first)) & set(digests(second))


def test_damaged_blob(tmp_path: Path, wheels: list[Fetched], written: list[str]) -> None:
    """A damaged blob in the cache is written again."""
    first = build(wheels, tmp_path)
    path = first.layers[2].path
    assert path is not None
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    written.clear()
    assert digests(build(wheels, tmp_path)) == digests(first) and len(written) == 1
    assert path.read_bytes() == whole


def test_concurrent_builds(tmp_path: Path, wheels: list[Fetched]) -> None:
    """Two builds at once in one cache return the same layers."""
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda _: build(wheels, tmp_path), range(2))
    assert digests(one) == digests(two)
    assert not list((tmp_path / "cache" / "tmp").iterdir())


def test_conflict(tmp_path: Path) -> None:
    """The wheel that needs the other one wins, else the first name, as with pip; this is reported."""
    a = fetched(make_wheel(tmp_path, "a", files={"ns/x.py": "a", "ns/a.py": ""}))
    b = fetched(make_wheel(tmp_path, "b", files={"ns/x.py": "b", "ns/b.py": ""}))
    result = build([a, b], tmp_path)
    assert [(c.path, c.winner, c.losers) for c in result.conflicts] == [(f"{SITE}/ns/x.py", "a", ("b",))]
    found = tree(result.layers)
    assert found[f"{SITE}/ns/x.py"][2] == b"a" and {f"{SITE}/ns/a.py", f"{SITE}/ns/b.py"} <= set(found)
    assert tree(build([b, a], tmp_path).layers)[f"{SITE}/ns/x.py"][2] == b"a"
    needs = fetched(make_wheel(tmp_path / "2", "b", files={"ns/x.py": "b"}, requires=["a"]))
    assert [c.winner for c in build([a, needs], tmp_path).conflicts] == ["b"]


def test_link_scripts(tmp_path: Path) -> None:
    """A package with a link script is refused, unless the recipe allows to skip the script."""
    script = condapackage.Member("bin/.a-post-link.sh", b"exit 1\n")
    a = condapackage.fetched(condapackage.pack(tmp_path / "channel", "a", [script]))
    where = Settings(tmp_path / "cache", tmp_path / "tmp", 1)
    with pytest.raises(
        LayerError, match=r"a-1.0-0.conda has a link script \(/opt/conda/bin/.a-post-link.sh\)"
    ) as caught:
        build_layers(files_of([a], where), LayerOptions(), budget=9, post_link={"b": "skip"})
    assert "post_link: {a: skip}" in caught.value.hint
    result = build_layers(files_of([a], where), LayerOptions(), budget=9, post_link={"a": "skip"})
    assert result.notes == ("a: its link script was not run, as the recipe says",)


def test_damage_names_the_package(tmp_path: Path) -> None:
    """The error about a damaged file names its package."""
    path = make_wheel(tmp_path, "w", files={"w/data.bin": noise("x", 200_000)})
    wheel = fetched(path)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("w/data.bin")
    data = bytearray(path.read_bytes())
    data[info.header_offset + 50_000] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(LayerError, match=rf"w-1.0-py3-none-any.whl: {SITE}/w/data.bin: damaged"):
        build([wheel], tmp_path)
    assert not list((tmp_path / "cache" / "tmp").iterdir()), "nothing half-written stays"


def test_duplicate_package(tmp_path: Path) -> None:
    """A lock with the same package twice is refused."""
    a = fetched(make_wheel(tmp_path, "a"))
    with pytest.raises(LayerError, match="appears twice in the lock"):
        build([a, a], tmp_path)


def test_whiteout_in_a_package(tmp_path: Path) -> None:
    """A package must not delete files of the image."""
    evil = fetched(make_wheel(tmp_path, "evil", files={"evil/.wh.victim": ""}))
    with pytest.raises(LayerError, match=r"evil-1.0-py3-none-any.whl: .*/evil/\.wh\.victim would delete"):
        build([evil], tmp_path)


def test_archives_that_are_read(tmp_path: Path, wheels: list[Fetched]) -> None:
    """Only those of layers that the cache does not have, and all at once."""
    settings, asked = Settings(tmp_path / "cache", tmp_path, 2), list[list[str]]()

    def build(packages: list[Fetched]) -> LayersResult:
        archives = {one.package.key: one for one in packages}

        def fetch(missing: Sequence[LockedPackage]) -> list[Fetched]:
            asked.append([package.name for package in missing])
            return [archives[package.key] for package in missing]

        work = Workspace(settings, Store(settings.cache))
        files = Packages([one.package for one in packages], CONTEXT, work, fetch)
        return build_layers(files, LayerOptions(groups=3), budget=50)

    first = build(wheels)
    assert asked == [[one.package.name for one in wheels]]
    asked.clear()
    assert build(wheels) == first and asked == []
    changed = fetched(make_wheel(tmp_path, "p3", files={"p3/__init__.py": "n = 'other'\n"}))
    build([changed if one.package.name == "p3" else one for one in wheels])
    [alone, group] = asked
    assert alone == ["p3"], "the indexes of the others are recorded"
    assert "p3" not in group and "big" not in group and 0 < len(group) < 14, "those of its layer"
    asked.clear()
    build([*wheels[:5], *wheels[6:]])
    assert "big" not in sum(asked, [])
