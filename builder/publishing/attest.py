"""Artifacts attached to a published image: SBOM, provenance, lock, report of the smoke test.

The same lock has the same SBOM and provenance, byte for byte.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from builder.config.recipe import Recipe
from builder.engines.base import BuildResult
from builder.model import Lock, LockedBase, LockedPackage, LockedSource, OsPackage, canonical_json
from builder.project import Project
from builder.publishing.destination import PublishedContent
from builder.publishing.testers import Release
from builder.redact import redact
from builder.registry.errors import ArtifactRefused
from builder.registry.referrers import CREATED, Artifact, AttachedFile
from builder.version import __version__

#: Types of attached artifacts (``artifactType``), and media types of the files in them.
SMOKE_REPORT = "application/vnd.builder.smoke-report.v1+json"
SBOM = "application/vnd.cyclonedx+json"
PROVENANCE = "application/vnd.in-toto+json"
LOCK = "application/vnd.builder.lock.v1+yaml"

_CYCLONEDX = "1.6"
_BUILD_TYPE = "urn:builder:build:v1"
_BUILDER_ID = "urn:builder:local"


def attach_all(destination: PublishedContent, release: Release, project: Project) -> dict[str, str]:
    """Attach SBOM, provenance, lock and report to a pushed image; return their digests by type.

    If the registry accepts container images only, this reports a warning and does not fail.
    """
    result, image, report = release.result, release.image, release.report
    statement = provenance(result, image.digest, project.work.settings.epoch)
    sbom_file = AttachedFile("sbom.cdx.json", SBOM, sbom(result.recipe, result.lock, result.base))
    artifacts = [
        Artifact(SBOM, [sbom_file]),
        Artifact(PROVENANCE, [AttachedFile("provenance.json", PROVENANCE, statement)]),
    ]
    if result.lock_text:
        artifacts.append(Artifact(LOCK, [AttachedFile("conda-lock.yml", LOCK, result.lock_text)]))
    if report is not None:
        file = AttachedFile("smoke.json", SMOKE_REPORT, canonical_json(report) + b"\n")
        started = {CREATED: str(report["started"])} if report.get("started") else {}
        artifacts.append(Artifact(SMOKE_REPORT, [file], started))
    done: dict[str, str] = {}
    try:
        for artifact in artifacts:
            done[artifact.artifact_type] = destination.attach(image.manifest_descriptor, artifact)
    except ArtifactRefused as e:
        project.work.reporter.warn(
            f"{e.message}: {artifact.files[0].name} is not attached to the image; "
            "this registry accepts images only"
        )
    return done


def sbom(recipe: Recipe, lock: Lock, base: LockedBase | None) -> bytes:
    """Return an SBOM in CycloneDX 1.6 (JSON): the locked packages, those of the OS, and the base.

    Packages have their version, purl, hashes and dependencies.

    Args:
        recipe: the target.
        lock: its lock; the packages of the recipe's platform are listed.
        base: the base image; None: it is not listed.
    """
    platform, root = recipe.platform, f"builder:{recipe.name}"
    packages = sorted(lock.for_platform(platform), key=lambda p: (p.manager, p.name, p.version))
    references: dict[tuple[str, str], str] = {(p.manager, p.name): package_url(p) for p in packages}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"{root} {lock.digest} {platform}")
    components = [_component(p) for p in packages]
    for package in lock.record.os_packages or ():
        hashes = {"SHA-256": package.sha256}
        components.append(_library(package, package.purl, hashes, redact(package.url)))
    if base is not None:
        components.append(_base(base))
    dependencies = [{"ref": root, "dependsOn": sorted(c["bom-ref"] for c in components)}]
    for p in packages:
        entry = {"ref": references[p.manager, p.name], "dependsOn": _dependencies(p, references)}
        dependencies.append(entry)
    tool = {"type": "application", "name": "builder", "version": __version__}
    value = {
        "bomFormat": "CycloneDX",
        "specVersion": _CYCLONEDX,
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {"type": "container", "bom-ref": root, "name": recipe.name},
            "tools": {"components": [tool]},
            "properties": [
                {"name": "builder:lock", "value": lock.digest},
                {"name": "builder:platform", "value": platform},
            ],
        },
        "components": components,
        "dependencies": dependencies,
    }
    return canonical_json(value) + b"\n"


def provenance(result: BuildResult, digest: str, epoch: int) -> bytes:
    """Return an in-toto statement (v1) with SLSA provenance (v1): the inputs of a build.

    These are recipe, lock, base, source and the version of builder, without paths of this machine
    and without credentials in URLs. The statement is not signed, and contains no time and no
    machine: it names the inputs that produce the same bytes again.

    Args:
        result: the build.
        digest: of the published image.
        epoch: SOURCE_DATE_EPOCH, in seconds.
    """
    recipe, lock, base = result.recipe, result.lock, result.base
    dependencies = [
        {"name": "lock", "digest": _digest_set(lock.digest)} if lock.digest else {"name": "lock"},
        {"name": "base", "uri": redact(base.reference), "digest": _digest_set(base.digest)},
        *_project_source(result),
    ]
    inputs = recipe.model_dump(mode="json", exclude={"source", "root"}, exclude_defaults=True)
    parameters = {"target": recipe.name, "engine": result.engine, "recipe": _clean(inputs)}
    own = {"SOURCE_DATE_EPOCH": epoch, "requested": sorted(result.requested), **_ran(recipe)}
    value = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": recipe.name, "digest": _digest_set(digest)}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": parameters,
                "internalParameters": own,
                "resolvedDependencies": dependencies,
            },
            "runDetails": {"builder": {"id": _BUILDER_ID, "version": {"builder": __version__}}},
        },
    }
    return canonical_json(value) + b"\n"


def _ran(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's steps: with them an image is not only a function of its inputs."""
    ran = [
        {
            "commands": [redact(command) for command in step.run],
            "env": {name: redact(value) for name, value in step.env.items()},
            "network": step.network,
        }
        for step in recipe.steps
    ]
    return {"ran": ran} if ran else {}


def _project_source(result: BuildResult) -> list[dict[str, Any]]:
    """Return the repository and revision in the image's annotations (``--source``), if any."""
    manifest = json.loads(result.image.manifest) if result.image else {}
    annotations = manifest.get("annotations") or {}
    source = annotations.get("org.opencontainers.image.source")
    revision = annotations.get("org.opencontainers.image.revision")
    if source and revision:
        commit = {"gitCommit": revision}
        return [{"name": "source", "uri": f"git+{redact(source)}", "digest": commit}]
    return [{"name": "source", "uri": redact(source)}] if source else []


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


def _component(package: LockedPackage) -> dict[str, Any]:
    url = redact(package.url)
    url = url if url.startswith(("http://", "https://")) else ""
    hashes = {"SHA-256": package.sha256, "MD5": package.md5}
    value = _library(package, package_url(package), hashes, url)
    return value if package.source is None else value | _source(package.source)


def _library(
    package: LockedPackage | OsPackage, purl: str, hashes: Mapping[str, str | None], url: str
) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "library", "bom-ref": purl, "purl": purl}
    known = [{"alg": name, "content": content} for name, content in hashes.items() if content]
    value |= {"name": package.name, "version": package.version, "hashes": known}
    if url:
        value["externalReferences"] = [{"type": "distribution", "url": url}]
    return value


def _source(source: LockedSource) -> dict[str, Any]:
    """Return the part of a component for the source of a wheel."""
    pins = {name: getattr(source, name) for name in ("commit", "tree", "sha256", "build")}
    properties = [
        {"name": f"builder:source:{name}", "value": text} for name, text in pins.items() if text
    ]
    url = redact(source.url)
    if "://" not in url:
        return {"properties": [{"name": "builder:source:folder", "value": url}, *properties]}
    kind = "vcs" if source.kind == "git" else "source-distribution"
    return {"externalReferences": [{"type": kind, "url": url}], "properties": properties}


def _base(base: LockedBase) -> dict[str, Any]:
    return {
        "type": "container",
        "bom-ref": f"base:{base.digest}",
        "name": redact(base.reference),
        "version": base.digest,
        "hashes": [{"alg": "SHA-256", "content": base.digest.partition(":")[2]}],
    }


def _dependencies(package: LockedPackage, references: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the purls of a package's dependencies; a wheel may depend on a conda package."""
    found = {
        references.get((package.manager, name)) or references.get(("conda", name), "")
        for name in package.dependencies
    }
    return sorted(found - {"", references[package.manager, package.name]})


def _digest_set(digest: str) -> dict[str, str]:
    algorithm, _, value = digest.partition(":")
    return {algorithm: value}


def _clean(value: Any) -> Any:
    """Return the value with the credentials of all its URLs removed."""
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_clean(v) for v in value]
    return redact(value) if isinstance(value, str) else value
