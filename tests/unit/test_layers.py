"""Blobs: what comes out is what went in, hashed right, and the same bytes whatever the machine does."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import builder.layers.plan as plan_module
from builder.config.recipe import Compression, Layers
from builder.errors import LayerError, SpaceError
from builder.layers import build as build_module
from builder.layers.build import LayersResult, build_layers, make_layer
from builder.layers.compress import BLOCK, SPLICE_FROM, write_layer
from builder.layers.entry import (
    Content,
    Deflated,
    Entry,
    IndexEntry,
    Inline,
    LinkContext,
    PackageIndex,
    Range,
)
from builder.layers.wheel import WheelReader
from builder.model import Fetched, Layer
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import sha256_file
from builder.store.records import read_record
from tests.support.wheels import CONTEXT, fetched, make_wheel, noise, tar_bytes, tree, zip_info

EPOCH = 315532800
SITE = "opt/conda/lib/python3.11/site-packages"


def raw_deflate(data: bytes) -> bytes:
    c = zlib.compressobj(6, wbits=-15)
    return c.compress(data) + c.flush()


class Sources:
    """Puts contents into one file, as an archive holds them, and refers to them there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(b"head")

    def _append(self, data: bytes) -> int:
        with self.path.open("ab") as f:
            offset = f.tell()
            f.write(data + b"tail")
        return offset

    def deflated(self, data: bytes) -> Deflated:
        raw = raw_deflate(data)
        return Deflated(self.path, self._append(raw), len(raw), zlib.crc32(data))

    def plain(self, data: bytes) -> Range:
        return Range(self.path, self._append(data))


def file(path: str, content: Content, size: int) -> Entry:
    return Entry(path, "file", 0o644, size, content=content)


def layer(store: Store, entries: list[Entry], compression: Compression = "gzip") -> Layer:
    return write_layer(store, entries, compression=compression, mtime=EPOCH)


sizes = st.one_of(
    st.integers(0, 2000),
    st.sampled_from(
        [SPLICE_FROM - 1, SPLICE_FROM, 65535, 65536, 65537, BLOCK - 512, BLOCK, BLOCK + 1, 3 * BLOCK]
    ),
)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(st.tuples(st.sampled_from(["inline", "deflated", "range"]), sizes), max_size=8))
def test_any_content_comes_back(
    tmp_path: Path, compression: Compression, content: list[tuple[str, int]]
) -> None:
    store, sources = Store(tmp_path / "store"), Sources(tmp_path / "archive")
    expected, entries = {}, []
    for i, (kind, size) in enumerate(content):
        data = noise(str(i), size)
        given_as: dict[str, Callable[[bytes], Content]] = {
            "inline": Inline,
            "deflated": sources.deflated,
            "range": sources.plain,
        }
        entries.append(file(f"d/f{i}", given_as[kind](data), size))
        expected[f"d/f{i}"] = ("file", 0o644, data)
    made = layer(store, entries, compression)
    assert tree([made]) == expected
    tar = tar_bytes(made)
    assert made.diff_id == f"sha256:{hashlib.sha256(tar).hexdigest()}" and made.unpacked == len(tar)
    assert made.path is not None and made.descriptor.size == made.path.stat().st_size
    assert made.descriptor.digest == sha256_file(made.path)
    assert made.descriptor.media_type == f"application/vnd.oci.image.layer.v1.tar+{compression}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_large_deflate_streams_are_spliced_as_they_are(store: Store, tmp_path: Path) -> None:
    data = noise("x", SPLICE_FROM)
    made = layer(store, [file("f", Sources(tmp_path / "a").deflated(data), len(data))])
    assert made.path is not None
    blob = made.path.read_bytes()
    member = (
        b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + raw_deflate(data) + struct.pack("<II", zlib.crc32(data), len(data))
    )
    assert member in blob, "a gzip member of its own, without name or time"
    assert subprocess.run(["gzip", "-t"], input=blob).returncode == 0


def test_the_format_is_written_down(store: Store, tmp_path: Path) -> None:
    """These digests may change with the format only: then codec_name or FORMAT changes too, and every image is published anew."""
    sources = Sources(tmp_path / "a")
    entries = [
        file("a/inline", Inline(noise("1", 5000)), 5000),
        file("a/small", sources.plain(noise("2", 300)), 300),
        Entry("a/link", "symlink", 0o777, target="inline"),
        Entry("a/hard", "hardlink", 0o644, target="a/inline"),
        file("a/" + "long" * 60, Inline(b"x"), 1),
    ]
    gzip, zstd = layer(store, entries), layer(store, entries, "zstd")
    assert (
        gzip.diff_id
        == zstd.diff_id
        == "sha256:ca0594739dc046a0906732c4ee5f5e828bbd11c65cce7f6b562d672b35a17875"
    )
    assert (gzip.descriptor.digest, zstd.descriptor.digest) == (
        "sha256:76470066425e5cf02a68367a05d23cbfc5b6d16df15391a85619518db62ead11",
        "sha256:dd0a415da5ce094ddcd9daa5ad083eb1bbca1313f45a5c817f8930c9643a9d32",
    )


@pytest.mark.parametrize("size", [100, SPLICE_FROM, 300_000])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("harm", ["bit", "crc", "longer", "shorter", "tail", "end"])
def test_damaged_members_are_refused(
    store: Store, tmp_path: Path, size: int, compression: Compression, harm: str
) -> None:
    sources, data = Sources(tmp_path / "a"), noise("x", size)
    content = sources.deflated(data)
    if harm == "bit":
        whole = bytearray(sources.path.read_bytes())
        whole[content.offset + content.compressed // 2] ^= 0x10
        sources.path.write_bytes(whole)
    elif harm == "crc":
        content = replace(content, crc32=content.crc32 ^ 1)
    elif harm == "longer":
        size += 1
    elif harm == "shorter":
        size -= 1
    elif harm == "tail":
        if compression == "zstd" or size < SPLICE_FROM:
            return  # bytes after the stream do no harm where the stream is not passed on
        content = replace(content, compressed=content.compressed + 2)
    else:
        os.truncate(sources.path, content.offset + content.compressed - 10)
    with pytest.raises(LayerError, match="^f: (damaged in its archive|its archive ends too early)"):
        layer(store, [file("f", content, size)], compression)
    assert not list(store.tmp.iterdir()) and not store.blobs.exists()


def test_a_bomb_is_given_up_early(store: Store, tmp_path: Path) -> None:
    bomb = bytes(64 << 20)
    content = Sources(tmp_path / "a").deflated(bomb)
    for size in (10, SPLICE_FROM):
        with pytest.raises(LayerError, match="damaged"):
            layer(store, [file("f", content, size)])


def test_no_blob_is_left_by_a_full_disk(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, data: object) -> int:
        raise OSError(28, "No space left on device")

    with store.writer() as out:
        out._file.close()
        out._file = type("Full", (io.BytesIO,), {"write": full})()
        from builder.layers.compress import LayerWriter

        with pytest.raises(SpaceError, match="no space left"):
            LayerWriter(out, "gzip", EPOCH).write([file("f", Inline(noise("x", 3 * BLOCK)), 3 * BLOCK)])
    assert not list(store.tmp.iterdir())


def test_a_time_that_tar_cannot_hold(store: Store) -> None:
    with pytest.raises(LayerError, match="SOURCE_DATE_EPOCH"):
        write_layer(store, [], compression="gzip", mtime=8**11)


# whole builds ---------------------------------------------------------------------------------------------------------


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


def build(
    packages: list[Fetched],
    folder: Path,
    *,
    jobs: int = 2,
    options: Layers | None = None,
    context: LinkContext = CONTEXT,
    epoch: int = EPOCH,
) -> LayersResult:
    where = Settings(folder / "cache", folder / "tmp", jobs, epoch=epoch)
    return build_layers(
        packages,
        context,
        options or Layers(groups=4, own_layer_from=1 << 20),
        where,
        Store(where.cache),
        budget=90,
    )


def digests(result: LayersResult) -> list[tuple[str, str, int]]:
    return [(x.descriptor.digest, x.diff_id, x.unpacked) for x in result.layers]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_the_same_bytes_with_any_number_of_jobs_any_umask_any_cache(
    tmp_path: Path, wheels: list[Fetched], compression: Compression
) -> None:
    options = Layers(groups=4, own_layer_from=1 << 20, compression=compression)
    first = build(wheels, tmp_path / "1", jobs=1, options=options)
    old = os.umask(0o077)
    try:
        second = build(wheels, tmp_path / "2", jobs=4, options=options)
    finally:
        os.umask(old)
    assert first.layers and digests(first) == digests(second)
    assert [x.descriptor.to_json() for x in first.layers] == [x.descriptor.to_json() for x in second.layers]
    assert first.made == len(first.layers) == 5
    for a, b in zip(first.layers, second.layers, strict=True):
        assert a.path is not None and b.path is not None and a.path.read_bytes() == b.path.read_bytes()


def test_everything_arrives_once(tmp_path: Path, wheels: list[Fetched]) -> None:
    result = build(wheels, tmp_path)
    found = tree(result.layers)
    assert found[f"{SITE}/big/lib.so"] == ("file", 0o644, noise("big", 6 << 20))
    assert found["opt/conda/bin/p3"][1] == 0o755
    expected = {e.path for f in wheels for e in WheelReader().entries(f, CONTEXT)}
    assert set(found) == expected
    assert sorted(p for x in result.layers for p in x.packages) == sorted(f.package.name for f in wheels)
    assert result.layers[-1].descriptor.annotations == {"org.builder.packages": "big=1.0"}


def test_no_time_stamp_and_no_path_of_this_machine(tmp_path: Path, wheels: list[Fetched]) -> None:
    for made in build(wheels, tmp_path, epoch=1_700_000_000).layers:
        data = tar_bytes(made)
        assert str(tmp_path).encode() not in data and str(wheels[0].path.parent).encode() not in data
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in archive} == {
                (1_700_000_000, 0, 0, "", "")
            }


def test_nothing_changed(tmp_path: Path, wheels: list[Fetched]) -> None:
    first = build(wheels, tmp_path)
    again = build(wheels, tmp_path, jobs=1)
    assert again.made == 0
    assert replace(again, made=first.made) == first


def test_a_bump_makes_its_own_layer_and_no_other(tmp_path: Path, wheels: list[Fetched]) -> None:
    first = build(wheels, tmp_path)
    new = fetched(make_wheel(tmp_path / "new", "p5", "2.0", files={"p5/__init__.py": "n = 55\n"}))
    second = build([new if f.package.name == "p5" else f for f in wheels], tmp_path)
    assert second.made == 1
    (changed,) = [i for i, (a, b) in enumerate(zip(digests(first), digests(second), strict=True)) if a != b]
    assert "p5" in second.layers[changed].packages and "big" not in second.layers[changed].packages


def test_a_name_newly_asked_for_makes_its_own_layer(tmp_path: Path, wheels: list[Fetched]) -> None:
    build(wheels, tmp_path)
    second = build(wheels, tmp_path, context=replace(CONTEXT, requested=frozenset({"big", "unknown"})))
    assert second.made == 1
    assert f"{SITE}/big-1.0.dist-info/REQUESTED" in tree(second.layers)


@pytest.mark.parametrize(
    "change",
    [
        {"context": replace(CONTEXT, prefix="/opt/env")},
        {"context": replace(CONTEXT, python="3.12", site_packages="lib/python3.12/site-packages")},
        {"epoch": EPOCH + 1},
        {"options": Layers(groups=4, own_layer_from=1 << 20, compression="zstd")},
    ],
    ids=["prefix", "python", "epoch", "codec"],
)
def test_what_all_layers_depend_on(tmp_path: Path, wheels: list[Fetched], change: dict[str, object]) -> None:
    first = build(wheels, tmp_path)
    second = build(wheels, tmp_path, **change)  # type: ignore[arg-type]
    assert second.made == len(second.layers) and not set(digests(first)) & set(digests(second))


def test_a_damaged_blob_is_made_again(tmp_path: Path, wheels: list[Fetched]) -> None:
    first = build(wheels, tmp_path)
    path = first.layers[2].path
    assert path is not None
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    second = build(wheels, tmp_path)
    assert (second.made, digests(second)) == (1, digests(first))
    assert path.read_bytes() == whole


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b'{"layers": [{}]}', b'{"entries": [1]}'])
def test_damaged_records_are_made_again(tmp_path: Path, wheels: list[Fetched], junk: bytes) -> None:
    first = build(wheels, tmp_path)
    records = [*(tmp_path / "cache" / "index").iterdir(), *(tmp_path / "cache" / "layers").iterdir()]
    assert len(records) == len(wheels) + len(first.layers) + 1
    for path in records:
        path.write_bytes(junk)
    assert digests(build(wheels, tmp_path)) == digests(first)


def test_two_builds_in_one_cache(tmp_path: Path, wheels: list[Fetched]) -> None:
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda _: build(wheels, tmp_path), range(2))
    assert digests(one) == digests(two)
    assert not list((tmp_path / "cache" / "tmp").iterdir())


def test_the_later_package_wins_and_it_is_said(tmp_path: Path) -> None:
    a = fetched(make_wheel(tmp_path, "a", files={"ns/x.py": "a", "ns/a.py": ""}))
    b = fetched(make_wheel(tmp_path, "b", files={"ns/x.py": "b", "ns/b.py": ""}))
    result = build([a, b], tmp_path)
    assert [(c.path, c.winner, c.losers) for c in result.conflicts] == [(f"{SITE}/ns/x.py", "b", ("a",))]
    found = tree(result.layers)
    assert found[f"{SITE}/ns/x.py"][2] == b"b" and {f"{SITE}/ns/a.py", f"{SITE}/ns/b.py"} <= set(found)
    assert tree(build([b, a], tmp_path).layers)[f"{SITE}/ns/x.py"][2] == b"a"


def test_a_large_package_is_split_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "split_index", lambda index: plan_module.split_index(index, 100_000))
    files = {f"w/f{i}": noise(str(i), 40_000) for i in range(7)}
    wheel = fetched(make_wheel(tmp_path, "w", files=files))
    result = build([wheel], tmp_path)
    assert [x.title for x in result.layers] == [f"pip w 1.0 ({i}/4)" for i in (1, 2, 3, 4)]
    assert {p: v[2] for p, v in tree(result.layers).items() if "/w/f" in p} == {
        f"{SITE}/{k}": v for k, v in files.items()
    }
    assert all(x.unpacked < 130_000 for x in result.layers)


def test_link_scripts_are_refused_unless_the_recipe_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scripted(WheelReader):
        def index(self, fetched: Fetched, context: LinkContext) -> PackageIndex:
            return replace(super().index(fetched, context), post_link=("opt/conda/bin/.a-post-link.sh",))

    monkeypatch.setattr(build_module, "WheelReader", Scripted)
    a = fetched(make_wheel(tmp_path, "a"))
    where = Settings(tmp_path / "cache", tmp_path / "tmp", 1)
    store = Store(where.cache)
    for policy in ({}, {"b": "skip"}, {"a": "run"}):
        with pytest.raises(
            LayerError, match=r"a-1.0-py3-none-any.whl has a link script \(/opt/conda/bin/.a-post-link.sh\)"
        ) as caught:
            build_layers([a], CONTEXT, Layers(), where, store, budget=9, post_link=policy)
        assert "post_link: {a: skip}" in caught.value.hint
    result = build_layers([a], CONTEXT, Layers(), where, store, budget=9, post_link={"a": "skip"})
    assert result.notes == ("a: its link script was left out, as the recipe says",)


def test_a_whiteout_in_a_package_is_refused(tmp_path: Path) -> None:
    evil = fetched(make_wheel(tmp_path, "evil", files={"evil/.wh.victim": ""}))
    with pytest.raises(LayerError, match=r"evil-1.0-py3-none-any.whl: .*/evil/\.wh\.victim would delete"):
        build([evil], tmp_path)


def test_damage_names_the_package(tmp_path: Path) -> None:
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


def test_one_failure_stops_the_others(tmp_path: Path, wheels: list[Fetched]) -> None:
    link = fetched(make_wheel(tmp_path, "evil", extra=[(zip_info("evil/l", kind=0o120000), b"/etc")]))
    with pytest.raises(LayerError, match="evil-1.0-py3-none-any.whl: 'evil/l' is a symlink"):
        build([*wheels, link], tmp_path)
    assert digests(build(wheels, tmp_path)) == digests(build(wheels, tmp_path / "other"))


def test_a_package_twice(tmp_path: Path) -> None:
    a = fetched(make_wheel(tmp_path, "a"))
    with pytest.raises(LayerError, match="twice in the lock"):
        build([a, a], tmp_path)


def test_no_packages(tmp_path: Path) -> None:
    assert build([], tmp_path).layers == ()


def test_own_files(tmp_path: Path) -> None:
    where = Settings(tmp_path, tmp_path, 1)
    entries = [Entry("opt/x", "file", 0o755, 2, content=Inline(b"hi"))]
    first, second = (make_layer(entries, "own", where, Store(tmp_path)) for _ in range(2))
    assert first == second and tree([first]) == {"opt/x": ("file", 0o755, b"hi")}
    assert first.title == "own" and not first.descriptor.annotations


def test_progress_adds_up(tmp_path: Path, wheels: list[Fetched]) -> None:
    class Counting:
        total = done = 0

        def start(self, task: str, total: int | None = None, unit: str = "B") -> None:
            self.total = total or 0

        def advance(self, task: str, amount: int) -> None:
            self.done += amount

        def finish(self, task: str, summary: str = "") -> None: ...
        def note(self, message: str) -> None: ...
        def warn(self, message: str) -> None: ...

    reporter = Counting()
    where = Settings(tmp_path / "cache", tmp_path / "tmp", 1)
    result = build_layers(wheels, CONTEXT, Layers(), where, Store(where.cache), budget=90, reporter=reporter)
    assert reporter.done == sum(x.unpacked for x in result.layers) >= reporter.total > 6 << 20


def test_the_index_cache_holds_no_path_of_this_machine(tmp_path: Path, wheels: list[Fetched]) -> None:
    build(wheels, tmp_path)
    for path in (tmp_path / "cache" / "index").iterdir():
        data = read_record(path)
        assert str(tmp_path) not in path.read_text()
        assert all(IndexEntry(*e).path.startswith("opt/conda/") for e in data["entries"])
