"""The SBOM of an image: CycloneDX 1.6 (JSON).

It is made from the lock, from what the locked packages declare in their archives (licences, and
what is inside of them), and from the list of Debian packages in the base. So the same lock and base
have the same SBOM, byte for byte, on every machine and with every engine. What a cache has lost is
read, or downloaded, again.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from builder.build.engines.base import BuildResult
from builder.core.model import (
    Fetched,
    Lock,
    LockedBase,
    LockedPackage,
    LockedSource,
    OsPackage,
    canonical_json,
)
from builder.core.parallel import in_parallel
from builder.core.progress import working
from builder.core.redact import redact
from builder.core.version import __version__
from builder.core.workspace import Workspace
from builder.formats.layers.cache import declared_record
from builder.formats.layers.entry import Declared
from builder.formats.layers.licences import licence_choice
from builder.lock.config.recipe import Recipe
from builder.lock.inputs import Inputs

if TYPE_CHECKING:
    from builder.build.bases.contents import BaseSystem, DebianPackage

_CYCLONEDX = "1.6"
#: In the reference of a component that is inside of a package, behind the package's.
INSIDE = "#inside-"


def image_sbom(result: BuildResult, work: Workspace) -> bytes:
    """Return the SBOM of a build, with what its packages declare and the packages of its base.

    Raises:
        FetchError, RegistryError, SpaceError: an archive or a layer of the base is not on this
            machine any more, and cannot be downloaded.
        LayerError, ImageError: a package or the base is damaged.
    """
    # slow, and not needed by those who only import the types of attachments
    from builder.build.bases.contents import base_system

    recipe, lock, base = result.recipe, result.lock, result.base
    declared = _declared(recipe, lock, work)
    return sbom(recipe, lock, base, declared, base_system(base, recipe, work))


def _declared(recipe: Recipe, lock: Lock, work: Workspace) -> dict[str, Declared]:
    """Return by key what the packages declare. A build records it when it reads an archive."""
    packages = lock.for_platform(recipe.platform)
    found = {p.key: declared_record(p, work.store).read() for p in packages}
    missing = [package for package in packages if found[package.key] is None]
    if missing:
        from builder.build.fetch.packages import fetch_for
        from builder.formats.layers.inside import declared

        archives = fetch_for(Inputs.read(recipe), missing, work)

        def read(fetched: Fetched) -> Declared:
            record = declared_record(fetched.package, work.store)
            return record.get(lambda: declared(fetched))

        with working(work.reporter, "reading licences"):
            read_now = in_parallel(read, archives, work.settings.jobs)
        found |= {fetched.package.key: what for fetched, what in read_now}
    return {key: what for key, what in found.items() if what is not None}


def sbom(
    recipe: Recipe,
    lock: Lock,
    base: LockedBase | None,
    declared: Mapping[str, Declared] | None = None,
    system: BaseSystem | None = None,
) -> bytes:
    """Return an SBOM: the locked packages, those of the OS, and the base with its packages.

    Packages have their version, purl, licences, hashes and dependencies. What is inside of one is a
    component beside it, on which it depends: Trivy does not read components in components.

    Args:
        recipe: the target.
        lock: its lock; the packages of the recipe's platform are listed.
        base: the base image; None: it is not listed.
        declared: by key, what the packages declare.
        system: the base's; its packages are listed unless the lock replaces them.
    """
    platform, root = recipe.platform, f"builder:{recipe.name}"
    packages = sorted(lock.for_platform(platform), key=lambda p: (p.manager, p.name, p.version))
    references: dict[tuple[str, str], str] = {(p.manager, p.name): package_url(p) for p in packages}
    known = {p.key: (declared or {}).get(p.key, Declared((), (), ())) for p in packages}
    components = [_component(p, known[p.key]) for p in packages]
    inside = {p.key: _inside(package_url(p), known[p.key]) for p in packages}
    for package in lock.record.os_packages or ():
        hashes = {"SHA-256": package.sha256}
        components.append(_library(package, package.purl + _distro(system), hashes, package.url))
    below = _base_components(lock, system)
    dependencies: list[dict[str, Any]] = []
    if base is not None:
        components.append(_base(base))
        dependencies.append(_depends(f"base:{base.digest}", below))
    dependencies.append(_depends(root, components))
    for p in packages:
        entry = _depends(references[p.manager, p.name], inside[p.key])
        entry["dependsOn"] = sorted(entry["dependsOn"] + _dependencies(p, references))
        dependencies.append(entry)
    tool = {"type": "application", "name": "builder", "version": __version__}
    value: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": _CYCLONEDX,
        "version": 1,
        "metadata": {
            "component": {"type": "container", "bom-ref": root, "name": recipe.name},
            "tools": {"components": [tool]},
            "properties": [
                {"name": "builder:lock", "value": lock.digest},
                {"name": "builder:platform", "value": platform},
            ],
        },
        "components": [*components, *below, *chain.from_iterable(inside.values())],
        "dependencies": dependencies,
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, canonical_json(value).decode())
    value["serialNumber"] = f"urn:uuid:{serial}"
    return canonical_json(value) + b"\n"


def package_url(package: LockedPackage) -> str:
    """Return a package's purl (package-url/purl-spec, types conda and pypi)."""
    version = quote(package.version, safe=".-_~")
    if package.manager == "pip":
        name = re.sub(r"[-_.]+", "-", package.name).lower()
        return f"pkg:pypi/{name}@{version}{_source_qualifiers(package.source)}"
    kind = "tar.bz2" if package.filename.endswith(".tar.bz2") else "conda"
    qualifiers = {"build": package.build, "channel": _channel(package)}
    qualifiers |= {"subdir": package.subdir, "type": kind}
    query = "&".join(f"{k}={quote(v, safe='.-_~/')}" for k, v in sorted(qualifiers.items()) if v)
    return f"pkg:conda/{quote(package.name.lower(), safe='.-_~')}@{version}?{query}"


def _source_qualifiers(source: LockedSource | None) -> str:
    """Return the purl's qualifiers for the source of a wheel; none for a folder."""
    if source is None or "://" not in source.url:
        return ""
    url = redact(source.url)
    if source.kind == "git":
        return "?vcs_url=" + quote(f"git+{url}@{source.commit}", safe=".-_~/:")
    return f"?checksum=sha256:{source.sha256}&download_url={quote(url, safe='.-_~/:')}"


def _channel(package: LockedPackage) -> str:
    """Return the channel's name: the path of the URL without subdir and file, else the host."""
    parts = urlsplit(redact(package.url))
    path = parts.path.strip("/").split("/")[:-2]
    return "/".join(path) or parts.netloc


def _component(package: LockedPackage, declared: Declared) -> dict[str, Any]:
    hashes = {"SHA-256": package.sha256, "MD5": package.md5}
    value = _library(package, package_url(package), hashes, package.url)
    if declared.licences:
        value["licenses"] = licence_choice(declared.licences)
    if package.source is not None:
        value |= _source(package.source)
    if declared.unread:
        unread = [{"name": "builder:sbom-not-read", "value": path} for path in declared.unread]
        value["properties"] = [*value.get("properties", ()), *unread]
    return value


def _inside(package: str, declared: Declared) -> list[dict[str, Any]]:
    """Return the components that are inside of a package, with references of their own."""
    parts = enumerate(declared.parts, 1)
    return [{**part, "bom-ref": f"{package}{INSIDE}{number}"} for number, part in parts]


def _library(
    package: LockedPackage | OsPackage | DebianPackage,
    purl: str,
    hashes: Mapping[str, str | None],
    url: str,
) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "library", "bom-ref": purl, "purl": purl}
    value |= {"name": package.name, "version": package.version}
    if known := [{"alg": name, "content": text} for name, text in hashes.items() if text]:
        value["hashes"] = known
    if url.startswith(("http://", "https://")):
        value["externalReferences"] = [{"type": "distribution", "url": redact(url)}]
    return value


def _source(source: LockedSource) -> dict[str, Any]:
    """Return the part of a component for the source of a wheel."""
    fields = ("commit", "tree", "sha256", "subdirectory", "describe", "build")
    pins = {name: getattr(source, name) for name in fields}
    properties = [
        {"name": f"builder:source:{name}", "value": text} for name, text in pins.items() if text
    ]
    url = redact(source.url)
    if "://" not in url:
        return {"properties": [{"name": "builder:source:folder", "value": url}, *properties]}
    kind = "vcs" if source.kind == "git" else "source-distribution"
    reference: dict[str, Any] = {"type": kind, "url": url}
    if source.sha256:
        reference["hashes"] = [{"alg": "SHA-256", "content": source.sha256}]
    return {"externalReferences": [reference], "properties": properties}


def _base(base: LockedBase) -> dict[str, Any]:
    return {
        "type": "container",
        "bom-ref": f"base:{base.digest}",
        "name": redact(base.reference),
        "version": base.digest,
        "hashes": [{"alg": "SHA-256", "content": base.digest.partition(":")[2]}],
    }


def _base_components(lock: Lock, system: BaseSystem | None) -> list[dict[str, Any]]:
    """Return the system of a base and its packages, without those that the lock replaces."""
    if system is None or not system.name:
        return []
    value = {
        "type": "operating-system",
        "bom-ref": f"os:{system.name}-{system.version}",
        "name": system.name,
        "version": system.version,
    }
    replaced = {(p.name, p.architecture) for p in lock.record.os_packages or ()}
    packages = [p for p in system.packages if (p.name, p.architecture) not in replaced]
    return [value, *(_library(p, _debian_url(p, system), {}, "") for p in packages)]


def _debian_url(package: DebianPackage, system: BaseSystem) -> str:
    """Return a package's purl (type deb). Its ``upstream`` is the source package, as in Syft's.

    Vulnerabilities in Debian are listed by source package.
    """
    texts = package.name, package.version, package.architecture
    name, version, architecture = (quote(text, safe=".-_~") for text in texts)
    source, _, of = package.source.partition(" ")
    upstream = f"{source}@{of.strip('()')}" if of else source
    more = f"&upstream={quote(upstream, safe='.-_~')}" if upstream else ""
    vendor = quote(system.name, safe=".-_~")
    return f"pkg:deb/{vendor}/{name}@{version}?arch={architecture}{_distro(system)}{more}"


def _distro(system: BaseSystem | None) -> str:
    """Return the qualifier of a purl for the release of a distribution, ``debian-12``."""
    if system is None or not system.version:
        return ""
    return f"&distro={quote(f'{system.name}-{system.version}', safe='.-_~')}"


def _depends(reference: str, components: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"ref": reference, "dependsOn": sorted(c["bom-ref"] for c in components)}


def _dependencies(package: LockedPackage, references: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the purls of a package's dependencies; a wheel may depend on a conda package."""
    found = {
        references.get((package.manager, name)) or references.get(("conda", name), "")
        for name in package.dependencies
    }
    return sorted(found - {"", references[package.manager, package.name]})
