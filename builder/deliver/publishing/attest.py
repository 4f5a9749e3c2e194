"""Artifacts attached to a published image: SBOM, provenance, lock, report of the smoke test.

The same lock has the same SBOM and provenance, byte for byte.
"""

from __future__ import annotations

import json
from typing import Any

from builder.build.engines.base import BuildResult
from builder.core.model import Image, canonical_json
from builder.core.redact import redact
from builder.core.version import __version__
from builder.deliver.project import Project
from builder.formats.registry.errors import ArtifactRefused
from builder.formats.registry.referrers import CREATED, Artifact, AttachedFile
from builder.lock.config.recipe import Recipe

from .destination import PublishDestination, RegistryDestination
from .release import LOCK, PROVENANCE, SBOM, SMOKE_REPORT
from .reuse import is_reused, layer_artifacts
from .sbom import image_sbom
from .testers import Release
from .verify import Trust

_BUILD_TYPE = "urn:builder:build:v1"
_BUILDER_ID = "urn:builder:local"


def attach_all(
    destination: PublishDestination, release: Release, project: Project, trust: Trust | None
) -> dict[str, str]:
    """Attach SBOM, provenance, lock and report to a pushed image; return their digests by type.

    In a registry also what other builds need to reuse its layers, if they do. If the registry accepts
    container images only, this reports a warning and does not fail.
    """
    result, image, report = release.result, release.image, release.report
    statement = provenance(result, image.digest, project.work.settings.epoch)
    files = [
        AttachedFile("sbom.cdx.json", SBOM, image_sbom(result, result.work or project.work)),
        AttachedFile("provenance.json", PROVENANCE, statement),
        AttachedFile("conda-lock.yml", LOCK, result.lock_text),
    ]
    artifacts = [Artifact(file.media_type, [file]) for file in files if file.data]
    if report is not None:
        file = AttachedFile("smoke.json", SMOKE_REPORT, canonical_json(report) + b"\n")
        started = {CREATED: str(report["started"])} if report.get("started") else {}
        artifacts.append(Artifact(SMOKE_REPORT, [file], started))
    can_reuse = isinstance(destination, RegistryDestination) and isinstance(result.artifact, Image)
    if can_reuse and is_reused(result.recipe, trust):
        artifacts += layer_artifacts(result)
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
        {"name": "base", "uri": base.reference, "digest": _digest_set(base.digest)},
        *_project_source(result),
    ]
    inputs = recipe.model_dump(mode="json", exclude={"source", "root"}, exclude_defaults=True)
    parameters = {"target": recipe.name, "engine": result.engine, "recipe": inputs}
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
    return canonical_json(_clean(value)) + b"\n"


def _ran(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's steps: with them an image is not only a function of its inputs."""
    ran = [
        {"commands": list(step.run), "env": step.env, "network": step.network}
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
        return [{"name": "source", "uri": f"git+{source}", "digest": commit}]
    return [{"name": "source", "uri": source}] if source else []


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
