"""The image's config and manifest (OCI image-spec, config.md and manifest.md).

Pure functions of base, layers, recipe and lock.
"""

from __future__ import annotations

import datetime
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from builder.build.bases.image import BaseImage
from builder.core.datafiles import table
from builder.core.model import (
    DOCKER_LAYER_GZIP,
    OCI_LAYER,
    OCI_LAYER_GZIP,
    OCI_LAYER_ZSTD,
    Descriptor,
    Image,
    Layer,
    Lock,
    Manager,
)
from builder.core.redact import redact
from builder.formats.oci.image import DEFAULT_PATH, SERVES_BASE, config_environment, plain_image
from builder.formats.oci.reference import Reference
from builder.lock.config.recipe import Recipe

from .files import ENTRYPOINT

log = logging.getLogger(__name__)

#: Annotation and label: how many build steps ran. It is absent where no command ran.
STEPS = "org.builder.steps"
#: OCI's media types of layers that Docker names differently. The bytes are the same.
OCI_TYPES = {
    DOCKER_LAYER_GZIP: OCI_LAYER_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar": OCI_LAYER,
    "application/vnd.docker.image.rootfs.diff.tar.zstd": OCI_LAYER_ZSTD,
}
#: Labels of the base that describe it, not the images above it. Those of label-schema have the
#: meaning of the OCI's (image-spec, annotations.md), and Apptainer writes them into every SIF.
_DESCRIBES_BASE = ("org.builder.", "org.label-schema.", "org.opencontainers.image.")
#: Fields of the base's config that the image inherits: those of image-spec that do not describe the
#: base's own program.
_INHERITED = ("User", "ExposedPorts", "Volumes", "StopSignal")
#: Conda packages whose version is that of torch or CUDA; the first one counts.
_TORCH = ("pytorch", "pytorch-gpu", "pytorch-cpu")
_CUDA = ("cuda-version", "pytorch-cuda", "cudatoolkit", "cuda-cudart")


def make_image(
    base: BaseImage,
    layers: Sequence[Layer],
    *,
    recipe: Recipe,
    lock: Lock,
    env: Mapping[str, str],
    annotations: Mapping[str, str],
    epoch: int,
) -> Image:
    """Return the image of a base and layers.

    Nothing is read or written; equal arguments result in an equal digest.

    Args:
        base: the base image.
        layers: builder's layers, from the bottom up.
        recipe: environment variables, labels, command, working folder.
        lock: source of the annotations ``org.builder.lock`` (the lock file's digest) and of the
            versions.
        env: variables that activating the environment sets. The recipe's variables override them.
        annotations: further annotations of the manifest. They override the generated ones.
            Credentials in URLs are removed.
        epoch: when the image was created, seconds since 1970.
    """
    everything = (*(_as_oci(layer) for layer in base.layers), *layers)
    created = datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    notes = redacted(_annotations(base, recipe, lock, created) | dict(annotations))

    config_value: dict[str, Any] = {
        "architecture": recipe.architecture,
        "os": "linux",
        "created": created,
        "config": _runtime_config(base, recipe, environment(base, recipe, lock, env), notes),
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in everything]},
        "history": [*_base_history(base, created), *(_history(layer, created) for layer in layers)],
    }
    if variant := base.config.get("variant"):
        config_value["variant"] = variant

    image = plain_image(everything, config_value, annotations=notes)
    log.info("image %s: %d layers above %s", image.digest, len(layers), redact(base.reference))
    return image


def layer_limit() -> dict[str, Any]:
    """Return the engine that runs the fewest layers, with its ``layers``: a row of the table."""
    limits: list[dict[str, Any]] = table(__file__, "layer_limits.yaml")
    return min(limits, key=lambda limit: int(limit["layers"]))


def most_layers(recipe: Recipe) -> int:
    """Return how many layers an image may have; a SIF or squashfs that is made of it has none."""
    has_layers = recipe.format == "oci" and recipe.site.runtime.family != "plugin"
    return int(layer_limit()["layers"]) if has_layers else sys.maxsize


def _annotations(base: BaseImage, recipe: Recipe, lock: Lock, created: str) -> dict[str, str]:
    """Return the generated annotations of the manifest."""
    title = "org.opencontainers.image.title"
    notes = {
        "org.opencontainers.image.created": created,
        title: recipe.labels.get(title, recipe.name),
        "org.opencontainers.image.base.digest": base.digest,
        "org.builder.target": recipe.name,
    }
    optional = {
        "org.opencontainers.image.description": recipe.description,
        "org.opencontainers.image.base.name": base_name(base.reference),
        "org.builder.lock": lock.digest,
        STEPS: str(len(recipe.steps) or ""),
    }
    notes |= {key: value for key, value in optional.items() if value}
    return notes | versions(lock, recipe.platform)


def _runtime_config(
    base: BaseImage, recipe: Recipe, env: Mapping[str, str], notes: Mapping[str, str]
) -> dict[str, Any]:
    """Return the part of the config that sets how a container of the image runs."""
    inherited = base.config.get("config") or {}
    runtime: dict[str, Any] = {key: inherited[key] for key in _INHERITED if inherited.get(key)}
    runtime["Env"] = [f"{k}={v}" for k, v in env.items()]
    labels = (inherited.get("Labels") or {}).items()
    kept = {name: text for name, text in labels if not name.startswith(_DESCRIBES_BASE)}
    log.info("labels that describe the base alone: %s", [k for k, _ in labels if k not in kept])
    runtime["Labels"] = {**kept, **notes, **redacted(recipe.labels)}
    entrypoint = (ENTRYPOINT,) if recipe.entrypoint is None else recipe.entrypoint
    if entrypoint:
        runtime["Entrypoint"] = list(entrypoint)
    if recipe.cmd:
        runtime["Cmd"] = list(recipe.cmd)
    runtime["WorkingDir"] = recipe.workdir
    return runtime


def redacted(notes: Mapping[str, str]) -> dict[str, str]:
    """Return labels or annotations as they are in an image: credentials in URLs are removed."""
    return {key: redact(value) for key, value in notes.items()}


def environment(
    base: BaseImage, recipe: Recipe, lock: Lock, env: Mapping[str, str]
) -> dict[str, str]:
    """Return the image's environment variables, in the order of the config.

    The base's come first (without :data:`SERVES_BASE`), then PATH with the prefix in front,
    conda's and Python's, certificates, activation's, and the recipe's.

    Certificates: with conda's ``ca-certificates`` they are ``ssl/cacert.pem`` in the prefix.
    Otherwise, on a ``debian:`` base, they are in ``/etc/ssl/certs``. Otherwise the base's own
    setting stays.

    Args:
        base: the base image.
        recipe: prefix, platform and variables.
        lock: the locked packages.
        env: variables that activating the environment sets.
    """
    prefix = recipe.conda.prefix
    inherited = config_environment(base.config).items()
    found = {k: v for k, v in inherited if not SERVES_BASE.fullmatch(k)}
    path = [p for p in found.get("PATH", DEFAULT_PATH).split(":") if p != f"{prefix}/bin"]
    found["PATH"] = ":".join([f"{prefix}/bin", *path])
    found.setdefault("LANG", "C.UTF-8")
    found |= {
        "CONDA_PREFIX": prefix,
        "CONDA_DEFAULT_ENV": "base",
        "CONDA_SHLVL": "1",
        "PYTHONNOUSERSITE": "1",
    }
    packages = lock.for_platform(recipe.platform)
    if any(p.manager == "conda" and p.name == "ca-certificates" for p in packages):
        found["SSL_CERT_FILE"] = f"{prefix}/ssl/cacert.pem"
        found.pop("SSL_CERT_DIR", None)
    elif base.reference.startswith("debian:"):
        folder = "/etc/ssl/certs"
        found |= {"SSL_CERT_FILE": f"{folder}/ca-certificates.crt", "SSL_CERT_DIR": folder}
    return {**found, **env, **recipe.env}


def base_name(reference: str) -> str:
    """Return the value of the annotation ``org.opencontainers.image.base.name``.

    It is empty if the base is a folder or file of the build host.
    """
    kind, _, rest = reference.partition(":")
    if kind == "docker":
        parsed = Reference.parse(reference)
        if parsed.digest and not parsed.tag:
            return parsed.name
        return f"{parsed.name}:{parsed.tag or 'latest'}"
    return reference if kind == "debian" and rest else ""


def versions(lock: Lock, platform: str) -> dict[str, str]:
    """Return the annotations with the locked versions of Python, torch and CUDA."""
    locked = lock.for_platform(platform)
    packages = {(p.manager, p.name.lower().replace("_", "-")): p.version for p in locked}

    def conda(*names: str) -> str:
        return next((packages["conda", n] for n in names if ("conda", n) in packages), "")

    torch = packages.get(("pip", "torch")) or conda(*_TORCH)
    cuda = conda(*_CUDA) or _cuda_of_torch(torch) or _cuda_of_pip(packages)
    found = {"python": conda("python"), "torch": torch, "cuda": cuda}
    return {f"org.builder.{name}": version for name, version in found.items() if version}


def _cuda_of_torch(version: str) -> str:
    """Return ``12.4`` for torch ``2.6.0+cu124``."""
    local = re.search(r"\+cu(\d+)(\d)$", version)
    return f"{local[1]}.{local[2]}" if local else ""


def _cuda_of_pip(packages: Mapping[tuple[Manager, str], str]) -> str:
    """Return ``12.8`` if ``nvidia-cuda-runtime-cu12 12.8.90`` is among the pip packages."""
    for (manager, name), version in packages.items():
        if manager == "pip" and re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", name):
            return ".".join(version.split(".")[:2])
    return ""


def _as_oci(layer: Layer) -> Layer:
    """Return a layer of the base with OCI's media type and without annotations."""
    media_type = OCI_TYPES.get(layer.descriptor.media_type, layer.descriptor.media_type)
    descriptor = Descriptor(media_type, layer.descriptor.digest, layer.descriptor.size)
    return replace(layer, descriptor=descriptor, title=layer.title or "base")


def _history(layer: Layer, created: str) -> dict[str, Any]:
    return {"created": created, "created_by": f"builder: {layer.title or 'layer'}"}


def _base_history(base: BaseImage, created: str) -> list[dict[str, Any]]:
    """Return the base's history, or a generated one."""
    made = [{"created": created, "created_by": layer.title or "base"} for layer in base.layers]
    return made if base.history is None else base.history
