"""Turns Debian packages into the conda packages of the Debian channel."""

from __future__ import annotations

import base64
import hashlib
import re
import ssl
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.build.fetch.condapackage import EPOCH, File, write_package
from builder.core.markers import ARCHITECTURES as PROCESSORS
from tests.support.debian_channel.contents import (
    ARCHITECTURES,
    CERTIFICATES_DEB,
    GLIBC,
    LIBRARIES,
    PYTHON_DEBS,
    WHEELS,
    ZONES_DEB,
    all_debs,
)
from tests.support.debian_channel.debs import Deb, download_debs, unknown, with_rpath
from tests.support.debian_channel.python import python_files
from tests.support.debian_channel.setuptools import restore_setuptools

_LIBRARY = re.compile(r"^(?:usr/)?lib/(?:[a-z0-9_]+-linux-gnu/)?([^/]+\.so(?:\.[^/]*)?)$")


def write_packages(channel: Path, work: Path, platform: str) -> None:
    """Downloads the Debian packages and writes all conda packages of the channel.

    Args:
        channel: the channel's folder.
        work: an empty folder for downloads and unpacked packages.
        platform: ``linux-64`` or ``linux-aarch64``.

    Raises:
        FetchError: no mirror, or a Debian package is missing or not as expected.
    """
    files = download_debs(all_debs(), work, ARCHITECTURES[platform])
    debs = {name: Deb.unpack(path, work / "unpacked" / name) for name, path in files.items()}
    restore_setuptools(debs[WHEELS["setuptools"]].tree)
    for name, library in LIBRARIES.items():
        sources = [debs[deb] for deb in library.debs]
        libraries = {path: file for deb in sources for path, file in _libraries(deb.tree, work).items()}
        if not libraries:
            raise unknown(", ".join(library.debs))
        package = _compiled(name, sources, libraries, library.license, library.depends)
        replace(package, subdir=platform).write(channel)
    _certificates(debs[CERTIFICATES_DEB]).write(channel)
    _zones(debs[ZONES_DEB]).write(channel)
    python = _python([debs[deb] for deb in PYTHON_DEBS], work)
    replace(python, subdir=platform).write(channel)
    for name, deb in WHEELS.items():
        _from_wheel(name, debs[deb]).write(channel)


# the common parts of all packages


@dataclass(frozen=True)
class ChannelPackage:
    """A package of the channel."""

    name: str
    version: str
    build: str
    subdir: str
    files: Mapping[str, File]
    """By path below the prefix."""
    license: str
    summary: str
    depends: Sequence[str] = ()
    noarch: str = ""
    """``python``, ``generic``, or empty for a package of one platform."""
    entry_points: Sequence[str] = ()
    """``NAME = MODULE:FUNCTION``; for ``noarch: python`` only."""

    def write(self, channel: Path) -> Path:
        """Writes the package into its subdir of a channel's folder; returns the file."""
        index: dict[str, Any] = {
            "build": self.build,
            "build_number": 0,
            "depends": list(self.depends),
            "license": self.license,
            "name": self.name,
            "subdir": self.subdir,
            "timestamp": EPOCH * 1000,
            "version": self.version,
        }
        info: dict[str, Any] = {"index.json": index, "about.json": {"summary": self.summary}}
        if self.noarch:
            index["noarch"] = self.noarch
            entries = {"entry_points": list(self.entry_points)} if self.noarch == "python" else {}
            noarch = {"type": self.noarch, **entries}
            info["link.json"] = {"noarch": noarch, "package_metadata_version": 1}
        else:
            index |= {"arch": PROCESSORS[self.subdir], "platform": "linux"}
        return write_package(channel / self.subdir, info, self.files)


def _package(name: str, sources: Sequence[Deb], files: Mapping[str, File], license: str) -> ChannelPackage:
    """A package with the first Debian package's version.

    Its build string is Debian's revision: the same file name always means the same bytes.
    """
    first = sources[0]
    origins = [f"{source.name} {source.full_version}" for source in sources]
    return ChannelPackage(
        name,
        first.version,
        build=first.revision,
        subdir="linux-64",
        files=files,
        license=license,
        summary=f"Debian's {', '.join(origins)}",
    )


def _compiled(
    name: str, sources: Sequence[Deb], files: Mapping[str, File], license: str, depends: Sequence[str]
) -> ChannelPackage:
    """A package of compiled code; the caller sets its subdir."""
    return replace(_package(name, sources, files, license), depends=[GLIBC, *depends])


def _noarch(name: str, deb: Deb, files: Mapping[str, File], license: str) -> ChannelPackage:
    return replace(_package(name, [deb], files, license), subdir="noarch", noarch="generic")


# the packages


def _libraries(tree: Path, work: Path) -> dict[str, File]:
    """A Debian package's shared libraries, in ``lib/``. Each looks for other libraries in its own folder."""
    found: dict[str, File] = {}
    for path in sorted(tree.rglob("*")):
        match = _LIBRARY.match(str(path.relative_to(tree)))
        if not match or path.is_dir():
            continue
        target = f"lib/{match.group(1)}"
        if path.is_symlink():
            found[target] = File(link=path.readlink().name)
        else:
            found[target] = File(with_rpath(path.read_bytes(), "$ORIGIN", work))
    return found


def _certificates(deb: Deb) -> ChannelPackage:
    # Only this folder: another folder of the package has an example that is not a certificate.
    root = deb.tree / "usr" / "share" / "ca-certificates"
    certificates = [path.read_bytes().rstrip() + b"\n" for path in sorted(root.rglob("*.crt"))]
    bundle = b"".join(certificates)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=bundle.decode())
    except (ssl.SSLError, ValueError):
        raise unknown(deb.name) from None
    files = {"ssl/cacert.pem": File(bundle), "ssl/cert.pem": File(link="cacert.pem")}
    return _noarch("ca-certificates", deb, files, "MPL-2.0")


def _zones(deb: Deb) -> ChannelPackage:
    root = deb.tree / "usr" / "share" / "zoneinfo"
    files = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        is_inside = path.is_file() and path.resolve().is_relative_to(root.resolve())
        if not is_inside or name.startswith(("right/", "posix/")):
            continue
        link = str(path.readlink()) if path.is_symlink() else ""
        files[f"share/zoneinfo/{name}"] = File(link=link) if link else File(path.read_bytes())
    if "share/zoneinfo/UTC" not in files and "share/zoneinfo/Etc/UTC" not in files:
        raise unknown(deb.name)
    return _noarch("tzdata", deb, files, "LicenseRef-Public-Domain")


def _python(debs: Sequence[Deb], work: Path) -> ChannelPackage:
    files = python_files([deb.tree for deb in debs], work)
    depends = sorted([*LIBRARIES, "ca-certificates", "tzdata"])
    package = _compiled("python", debs, files, "Python-2.0", depends)
    return replace(package, build=f"{package.build}_cpython")


def _from_wheel(name: str, deb: Deb) -> ChannelPackage:
    """A noarch python package with the files of a pure wheel."""
    wheels = [
        *sorted(deb.tree.rglob(f"{name}-*-py3-none-any.whl")),
        *sorted(deb.tree.rglob(f"{name}-*-py2.py3-none-any.whl")),
    ]
    if not wheels:
        raise unknown(deb.name)
    files: dict[str, File] = {}
    entry_points: list[str] = []
    with zipfile.ZipFile(wheels[0]) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            data = archive.read(info)
            folder, _, base = info.filename.rpartition("/")
            if folder.endswith(".dist-info") and base == "entry_points.txt":
                entry_points = list(_console_scripts(data.decode()))
            if folder.endswith(".dist-info") and base == "RECORD":
                files[f"site-packages/{folder}/INSTALLER"] = File(_INSTALLER)
                data += _record_of_installer(folder)
            files[f"site-packages/{info.filename}"] = File(data)
    return replace(
        _noarch(name, deb, files, "MIT"),
        version=wheels[0].name.split("-")[1],
        noarch="python",
        depends=("python >=3.7",),
        entry_points=entry_points,
    )


#: The content of ``INSTALLER`` (PEP 376), as conda writes it.
_INSTALLER = b"conda\n"


def _record_of_installer(folder: str) -> bytes:
    """The line of ``RECORD`` for ``INSTALLER``."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(_INSTALLER).digest()).rstrip(b"=")
    return b"%s/INSTALLER,sha256=%s,%d\n" % (folder.encode(), digest, len(_INSTALLER))


def _console_scripts(text: str) -> Iterator[str]:
    """The console scripts of an ``entry_points.txt``, as ``NAME = MODULE:FUNCTION``."""
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    if parser.has_section("console_scripts"):
        for name, value in parser.items("console_scripts"):
            yield f"{name} = {value}"
