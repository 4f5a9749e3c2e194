"""What a base image has: its Python, its glibc and its Debian packages, found in the files of its layers.

Nothing of the base is run. For glibc and packages, layers of a base in a registry are downloaded as
far as needed. For packages these are the lowest one, which says what system it is, and then those
from the top down to the first one with dpkg's list. Distroless bases have a list per package
(``status.d``), in any layer, so all are read.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import NamedTuple

from builder.build.fetch.venv import BasePython
from builder.core.errors import ConfigError, ImageError
from builder.core.model import LockedBase
from builder.core.progress import working
from builder.core.store.blobs import Store
from builder.core.store.records import Record
from builder.core.workspace import Workspace
from builder.formats.oci.image import DEFAULT_PATH, config_environment
from builder.formats.trees.member import Kind, real_path
from builder.formats.trees.merge import Merge
from builder.formats.trees.sources import Source
from builder.lock.config.recipe import Recipe
from builder.lock.config.yamlfile import place_of

from .image import BaseImage
from .resolve import open_base

#: Part of the key of records. Increase it when another Python is found in the same base.
_FORMAT = 2
#: Where Python is looked for after the folders of the base's PATH.
_FOLDERS = ("/usr/local/bin", "/opt/conda/bin", "/opt/venv/bin", "/usr/bin")
_INTERPRETER = re.compile(r"python(3\.\d+)t?")
#: Files that are read: they tell the version, and what a virtual environment of the base is made from.
_READ = re.compile(
    r"^(.+/)?(pyvenv\.cfg|include/python3\.\d+t?/patchlevel\.h)|^var/lib/dpkg/status"
)
#: glibc's library: on Debian, Alpine (added to it) and others; up to glibc 2.33 a link to the second name.
_LIBC = re.compile(r"(usr/)?(glibc-compat/)?lib(64)?/([\w-]+-linux-gnu/)?libc(\.so\.6|-2\.\d+\.so)")
#: ``GNU C Library (Debian GLIBC 2.41-12) stable release version 2.41.``
_GLIBC = re.compile(rb"GNU C Library .{0,200}release version (2\.\d+)")


def base_python(locked: LockedBase, recipe: Recipe, work: Workspace) -> BasePython:
    """Return the Python of the recipe's base, for the recipe's ``python``.

    The files of a large base take some time; what was found is recorded.

    Raises:
        ImageError: the base has no Python 3, or is damaged.
        ConfigError: the recipe's prefix would hide it.
        RegistryError, SpaceError: the base is not available.
    """
    name = f"base-python-{_FORMAT}-{locked.digest.replace(':', '-')}.json"

    def find() -> BasePython:
        base = open_base(locked, recipe, work)
        with working(work.reporter, "looking for the Python of the base"):
            found = find_python(base, work.store)
        if found is None:
            raise ImageError(
                f"{place_of(recipe.source, 'python')}: the base {recipe.base} has no Python 3 in its PATH",
                "add it to base_packages: [python3] of a debian: base, name a base that has it, or remove "
                "'python:' to take Python from a conda channel",
            )
        return found

    python = Record(work.store.folders.index / name, BasePython).get(find)
    _check_prefix(python, recipe)
    if recipe.python == "base-with-packages":
        return python
    return BasePython(python.interpreter, python.version)


def _check_prefix(python: BasePython, recipe: Recipe) -> None:
    prefix = recipe.conda.prefix
    for path in (python.interpreter, python.packages):
        if path.startswith(f"{prefix}/"):
            raise ConfigError(
                f"{recipe.source}: conda.prefix: {prefix} hides {path} of the base",
                f"name another folder: conda: {{prefix: {prefix}2}}",
            )


def find_python(base: BaseImage, store: Store) -> BasePython | None:
    """Return the first Python 3 in a base's PATH, with its packages; None if there is none.

    Raises:
        ImageError: the base is damaged.
    """
    from .sif import base_sources

    path = config_environment(base.config).get("PATH", DEFAULT_PATH).split(":")
    merge, links = Merge(base_sources(base, store)), dict[str, str]()
    what = "the files that tell of Python in the base"
    files = _PythonFiles(merge.kinds, links, dict(merge.read(_READ, MAX_SIZE, what, links)))
    places = product(dict.fromkeys((*path, *_FOLDERS)), ("python3", "python"))
    return next(filter(None, (_python_at(*place, files) for place in places)), None)


def base_glibc(locked: LockedBase, recipe: Recipe, work: Workspace) -> str:
    """Return the version of glibc in the recipe's base, ``2.41``, and report it; empty if it has none.

    Of a base in a registry the lowest layers are downloaded, up to the one with the library. What a
    layer above brings in its place is newer, and has all that wheels need. It is recorded.

    Raises:
        ImageError: the base is damaged.
        RegistryError, SpaceError: the base is not available.
    """
    name = f"base-glibc-{_FORMAT}-{locked.digest.replace(':', '-')}.json"

    def find() -> str:
        base = open_base(locked, recipe, work, download=False)
        with working(work.reporter, "looking for the glibc of the base"):
            return find_glibc(base, work)

    found = Record(work.store.folders.index / name, str).get(find)
    if found:
        work.reporter.note(f"{recipe.name}: glibc {found} of the base")
    else:
        problem = f"{place_of(recipe.source, 'base')}: {recipe.base} has no glibc"
        work.reporter.warn(f"{problem}: compiled packages do not run there; name another base")
    return found


def find_glibc(base: BaseImage, work: Workspace) -> str:
    """Return the version of a base's glibc; empty if it has none. Raises as :func:`base_glibc`."""
    from .sif import downloading_sources

    for member, content in chain.from_iterable(s() for s in downloading_sources(base, work)):
        is_file = member.kind is Kind.FILE and member.size <= MAX_SIZE
        data = content if is_file and _LIBC.fullmatch(member.path) else ()
        if version := _GLIBC.search(b"".join(map(bytes, data))):
            return version[1].decode()
    return ""


class _PythonFiles(NamedTuple):
    """What is read of a base."""

    kinds: Mapping[str, Kind]
    links: Mapping[str, str]
    texts: Mapping[str, str]


def _python_at(folder: str, name: str, files: _PythonFiles) -> BasePython | None:
    """Return the Python of a folder of the PATH."""
    real = real_path(f"{folder}/{name}", files.links)
    match = _INTERPRETER.fullmatch(posixpath.basename(real))
    if match is None or files.kinds.get(real) not in (Kind.FILE, Kind.HARDLINK):
        return None
    prefix = posixpath.dirname(posixpath.dirname(real))
    libraries = {files.kinds.get(f"{prefix}/{name}/{match[0]}") for name in ("lib", "lib64")}
    if f"{real}t" in files.kinds and Kind.DIRECTORY not in libraries:
        real = f"{real}t"  # free-threaded: make install links python3.13 to it
    version = _version(real, match[1], files)
    own = posixpath.dirname(real_path(folder, files.links))
    settings = files.texts.get(f"{own}/pyvenv.cfg")
    if settings is None:
        return BasePython(f"/{real}", version, sees_packages=True)
    sees = re.search(r"(?mi)^include-system-site-packages\s*=\s*true\s*$", settings) is not None
    packages = f"/{own}/lib/{posixpath.basename(real)}/site-packages"
    return BasePython(f"/{real}", version, sees, packages)


def _version(real: str, minor: str, files: _PythonFiles) -> str:
    """Return the full version from a header, conda's record or dpkg's list; else ``3.11``."""
    prefix, name = posixpath.dirname(posixpath.dirname(real)), posixpath.basename(real)
    header = files.texts.get(f"{prefix}/include/{name}/patchlevel.h", "")
    dpkg = files.texts.get(STATUS, "") if prefix == "usr" else ""
    listed = "\n".join(f"{one.name} {one.version}" for one in listed_packages({STATUS: dpkg}))
    records = "\n".join(path for path in files.kinds if "/conda-meta/python-" in path)
    dotted = re.escape(minor)
    for text, pattern in (
        (header, r'^#define\s+PY_VERSION\s+"([\d.]+)'),
        (records, rf"^{re.escape(prefix)}/conda-meta/python-({dotted}\.\d+)-[^/]+\.json$"),
        (listed, rf"^python{dotted}(?:-minimal|-nogil)? ([\d.]+)"),
    ):
        found = re.search(pattern, text, re.MULTILINE)
        if found is not None and found[1].startswith(f"{minor}."):
            return found[1]
    return minor


#: Part of the name of records. Increase it when other packages are found in the same base.
_SYSTEM_FORMAT = 1
STATUS = "var/lib/dpkg/status"
#: The files that are read (os-release(5), dpkg(1)).
_LISTS = re.compile(r"(etc|usr/lib)/os-release|var/lib/dpkg/status(\.d/.+(?<!\.md5sums))?")
#: Bytes of these files together. The list of a large system has about 4 MB.
MAX_SIZE = 32 << 20
_FIELD = re.compile(r"(?m)^(Package|Version|Architecture|Source|Status):[ \t]*(.*)")
#: States (the last word of ``Status``) of packages without files.
_NO_FILES = ("not-installed", "config-files")


class DebianPackage(NamedTuple):
    """A package in a list of dpkg."""

    name: str
    version: str
    """With epoch and revision."""
    architecture: str
    """Debian's name, or ``all``."""
    source: str
    """The source package, as ``NAME`` or ``NAME (VERSION)``; empty if it has the same name and
    version."""


class BaseSystem(NamedTuple):
    """The system of a base image."""

    name: str
    """``debian``, ``ubuntu``; empty: unknown."""
    version: str
    """``12``, ``24.04``; for a release without a number its name; empty: unknown."""
    packages: tuple[DebianPackage, ...]
    """Sorted; empty for a system that is not made of Debian packages."""


def base_system(locked: LockedBase, recipe: Recipe, work: Workspace) -> BaseSystem:
    """Return the system of a recipe's base. It is recorded, so that a base is read once.

    Raises:
        ImageError: the base is damaged.
        RegistryError, SpaceError: the base is not available.
    """

    def find() -> BaseSystem:
        base = open_base(locked, recipe, work, download=False)
        with working(work.reporter, "looking for the packages of the base"):
            return find_system(base, work)

    return system_record(locked, work.store).get(find)


def system_record(locked: LockedBase, store: Store) -> Record[BaseSystem]:
    """Return the record of a base's system."""
    name = f"base-system-{_SYSTEM_FORMAT}-{locked.digest.replace(':', '-')}.json"
    return store.record(store.folders.index / name, BaseSystem)


def find_system(base: BaseImage, work: Workspace) -> BaseSystem:
    """Return the system of a base image, from its files.

    Raises:
        ImageError: the base is damaged.
        RegistryError, SpaceError: a layer cannot be downloaded.
    """
    # imported here: a publish with nothing changed reads no base
    from .sif import downloading_sources

    sources = downloading_sources(base, work)
    lowest = _read(sources[:1])
    release = _release(lowest)
    families = {"", "debian", "ubuntu"}
    if not families & {release.get("ID", ""), *release.get("ID_LIKE", "").split()}:
        return BaseSystem(release["ID"], release.get("VERSION_ID", ""), ())
    texts = _read(sources, last=STATUS) if len(sources) > 1 else lowest
    release = _release(texts) or release
    packages = listed_packages(texts)
    version = release.get("VERSION_ID") or release.get("VERSION_CODENAME", "")
    return BaseSystem(release.get("ID") or ("debian" if packages else ""), version, packages)


def _read(sources: Sequence[Source], last: str = "") -> dict[str, str]:
    """Return the texts by path, from the top down; nothing is read after ``last``."""
    found: dict[str, str] = {}
    for path, text in Merge(sources).read(_LISTS, MAX_SIZE, "the lists of dpkg in the base"):
        found[path] = text
        if path == last:
            break
    return found


def _release(texts: Mapping[str, str]) -> dict[str, str]:
    text = texts.get("etc/os-release") or texts.get("usr/lib/os-release", "")
    pairs = re.findall(r"(?m)^(\w+)=(.{0,200})", text)  # each package's purl has the system's name
    return {name: value.strip(" \t\r\"'") for name, value in pairs}


def listed_packages(texts: Mapping[str, str]) -> tuple[DebianPackage, ...]:
    """Return the installed packages in lists of dpkg, sorted.

    Args:
        texts: the lists by path.
    """
    found = {}
    lists = [text for path, text in sorted(texts.items()) if path.startswith(STATUS)]
    for stanza in re.split(r"\n\s*\n", "\n\n".join(lists)):
        fields = defaultdict(str, {name: value.strip() for name, value in _FIELD.findall(stanza)})
        name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
        if name and version and fields["Status"].rpartition(" ")[2] not in _NO_FILES:
            found[name, architecture] = DebianPackage(name, version, architecture, fields["Source"])
    return tuple(found[key] for key in sorted(found))
