"""What is inside of a package: what its own SBOMs list, and libraries that auditwheel copied.

PEP 770: a wheel has SBOMs in ``NAME.dist-info/sboms/``. cargo lists crates there, auditwheel the
packages of a distribution that it copied libraries of, and projects what they compile in, such as
OpenSSL. The libraries are in ``NAME.libs/``. Conda packages that were made of wheels have both.

CycloneDX in JSON is read, of any version. An SBOM of another format, or a damaged or too large one,
is listed as not read, and the package is installed all the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from packaging.utils import canonicalize_name

from builder.core.errors import ImageError
from builder.core.model import Fetched
from builder.core.redact import redact
from builder.core.store.files import sha256_of
from builder.formats.oci.documents import check_size, load_json

from .conda_archive import open_part, read_index_file, read_info, read_part
from .entry import Declared, PackageIndex, Part
from .libraries import is_library
from .licences import conda_licences, licence_choice, listed, wheel_licences, wheel_metadata
from .wheel_archive import WheelArchive

#: Bytes of all SBOMs of a package. That of uv, which is large, has 0.8 MB.
MAX_SBOMS = 16 << 20
#: SBOMs and libraries of a package, and components of an SBOM (uv's has 567).
MAX_PARTS = 10_000
#: Other types become libraries: scanners take the first operating system for that of the image.
_TYPES = ("application", "framework", "library", "file", "data", "firmware", "device-driver")
#: The texts of a component, and their form.
_TEXTS = dict.fromkeys(("name", "version", "cpe"), ".{0,1024}") | {
    "scope": "required|optional|excluded",
    "purl": r"pkg:[^/\s]{1,99}/\S{1,1024}",
}
_HASH = re.compile("SHA-(1 [0-9a-fA-F]{40}|256 [0-9a-fA-F]{64}|512 [0-9a-fA-F]{128})")
_SBOMS = ".dist-info/sboms/"


def declared(fetched: Fetched, index: PackageIndex | None = None) -> Declared:
    """Return what a package declares of itself, and the libraries in it that no SBOM names.

    Args:
        fetched: the package.
        index: its index, if it is known: the archives of most packages need not be read then.

    Raises:
        LayerError: the archive is unsafe or damaged.
    """
    licences = index.licences if index else _licences(fetched)
    if index and not any(_path_inside(entry.path) for entry in index.entries):
        return Declared(licences, (), ())
    return Declared(licences, *_inside(fetched))


def _licences(fetched: Fetched) -> tuple[str, ...]:
    if fetched.package.manager == "conda":
        return conda_licences(read_index_file(fetched))
    with WheelArchive(fetched) as wheel:
        return wheel_licences(wheel_metadata(wheel))


def _inside(fetched: Fetched) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Return what is inside of a package, and the SBOMs that were not read.

    The reason is not recorded: Python words it anew in each release.
    """
    # auditwheel lists the wheel itself, and Pillow its modules
    itself = _identity({"purl": f"pkg:pypi/{fetched.package.name}@{fetched.package.version}"})
    parts, libraries, unread, left = {itself: Part()}, dict[str, str](), list[str](), MAX_SBOMS
    for path, size, chunks in _files(fetched):
        if len(libraries) + len(unread) == MAX_PARTS:
            unread.append(f"{path} and others")
            break
        if _SBOMS not in path:
            libraries[path] = sha256_of(chunks).hex()
            continue
        try:
            check_size(size, path, left)
            left -= size
            for part in _parts(b"".join(chunks), path):
                parts.setdefault(_identity(part), part)
        except (ImageError, AttributeError, KeyError, TypeError, ValueError):
            unread.append(path)
    del parts[itself]
    return (*parts.values(), *_unnamed(libraries, parts.values())), tuple(unread)


def _path_inside(path: str) -> str:
    """Return the path of an SBOM or a library below site-packages; empty for any other file."""
    inside = path.rpartition("site-packages/")[2]
    if not inside.isprintable() or not re.match(r"[^/]+\.(dist-info/sboms/|libs/[^/]+$)", inside):
        return ""
    return inside if _SBOMS in inside or is_library(inside) else ""


def _files(fetched: Fetched) -> Iterator[tuple[str, int, Iterable[bytes | memoryview]]]:
    """Yield path, size in bytes and content of the SBOMs and libraries of a package."""
    if fetched.package.manager == "pip":
        with WheelArchive(fetched) as wheel:
            for name, info in wheel.members.items():
                if path := _path_inside(name):
                    yield path, info.file_size, wheel.chunks(info)
    elif any(_path_inside(info.path) for info in read_info(fetched).paths):
        with open_part(fetched, "pkg") as reader:
            for member in read_part(fetched, reader):
                if member.kind == "file" and (path := _path_inside(member.path)):
                    yield path, member.size, reader.take(member.size)


def _parts(data: bytes, path: str) -> list[Part]:
    """Return the components of an SBOM, and what it is about, for the SBOM of an image.

    Raises:
        ImageError, AttributeError, KeyError, TypeError, ValueError: it is not CycloneDX in JSON,
            or damaged.
    """
    value = load_json(data, path, MAX_SBOMS)
    about = (value.get("metadata") or {}).get("component")
    level = [*(value["components"] or ()), *filter(None, [about])]
    found: list[Part] = []
    while level:
        found += [_part(component, path) for component in level]
        level = [child for one in level for child in _items(one, "components")]
    if value["bomFormat"] != "CycloneDX" or len(found) > MAX_PARTS:
        raise ValueError(path)
    return found


def _part(value: Mapping[str, Any], path: str) -> Part:
    kind = value["type"]
    found: Part = {"type": kind if kind in _TYPES else "library", "name": value["name"]}
    for key in _TEXTS.keys() & value.keys():
        if not re.fullmatch(_TEXTS[key], value[key], re.DOTALL):
            raise ValueError(key)
        found[key] = redact(value[key])
    if licences := listed(map(_licence, _items(value, "licenses"))):
        found["licenses"] = licence_choice(licences)
    hashes = [(one["alg"], one["content"]) for one in _items(value, "hashes")]
    if known := [one for one in hashes if _HASH.fullmatch("{} {}".format(*one))]:
        found["hashes"] = [{"alg": name, "content": text} for name, text in known]
    return found | {"properties": [{"name": "builder:sbom", "value": path}]}


def _items(value: Mapping[str, Any], key: str) -> Iterable[Mapping[str, Any]]:
    return value.get(key) or ()


def _licence(choice: Mapping[str, Any]) -> str:
    licence = choice.get("license") or {}
    return choice.get("expression") or licence.get("id") or licence.get("name") or ""


def _identity(part: Part) -> str:
    """Return the package that a component is; cargo also lists the targets of each crate."""
    purl = re.split("[?#]", part.get("purl", ""))[0]
    return canonicalize_name(purl or f"{part['name']}@{part.get('version')}")


def _unnamed(libraries: Mapping[str, str], parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the libraries that no component names with a version.

    auditwheel writes neither path nor hash of the file that it copied. Where there are more files
    of a name than components, nobody can say which ones are meant, and all of them are listed.
    """
    named = Counter(_stem(part["name"]) for part in parts if part.get("version"))
    # libz of x.libs/libz-0123abcd.so.1: auditwheel adds a hash to the name
    names = {x: re.split(r"-[0-9a-f]{8}(?![^-.])|\.so", x.rpartition("/")[2])[0] for x in libraries}
    files = Counter(map(_stem, names.values()))
    for path, name in names.items():
        if files[_stem(name)] > named[_stem(name)]:
            hashes = [{"alg": "SHA-256", "content": libraries[path]}]
            properties = [{"name": "builder:bundled-library", "value": path}]
            yield {"type": "library", "name": name, "hashes": hashes, "properties": properties}


def _stem(name: str) -> str:
    return name.casefold().removeprefix("lib")
