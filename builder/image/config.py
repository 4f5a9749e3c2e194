"""The image's config and manifest (OCI image-spec, config.md, manifest.md): a pure function of base, layers, recipe and lock."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from builder.bases.image import BaseImage
from builder.config.recipe import Recipe
from builder.errors import ImageError
from builder.image.files import ENTRYPOINT
from builder.model import (
    DOCKER_LAYER_GZIP,
    OCI_CONFIG,
    OCI_LAYER,
    OCI_LAYER_GZIP,
    OCI_LAYER_ZSTD,
    OCI_MANIFEST,
    Descriptor,
    Image,
    Layer,
    Lock,
    canonical_json,
)
from builder.oci.config import DEFAULT_PATH, config_environment
from builder.oci.reference import Reference
from builder.redact import redact

#: Docker 20.10 cannot mount more.
MAX_LAYERS = 127
#: The same bytes under the OCI's name.
OCI_TYPES = {
    DOCKER_LAYER_GZIP: OCI_LAYER_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar": OCI_LAYER,
    "application/vnd.docker.image.rootfs.diff.tar.zstd": OCI_LAYER_ZSTD,
}
#: What an activated conda of the base leaves in its environment; it speaks of another prefix than ours.
_ACTIVATED = re.compile(
    r"CONDA_(PREFIX(_\d+)?|DEFAULT_ENV|SHLVL|PROMPT_MODIFIER|EXE|PYTHON_EXE)|_CE_(CONDA|M)"
)
#: Inherited from the base: what image-spec knows and does not belong to the base's own program.
_INHERITED = ("User", "ExposedPorts", "Volumes", "StopSignal", "Labels")


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
    """Puts an image together; nothing is read or written, and the same values give the same digest.

    Args:
        base: what lies below.
        layers: builder's layers, from the bottom up.
        recipe: environment variables, labels, command, working folder.
        lock: gives the annotations ``org.builder.lock`` (the lock file's digest) and the versions.
        env: what activation of the environment sets; the recipe's own variables win over it.
        annotations: of the manifest, beside those made here; these win. Passwords in URLs are taken out.
        epoch: the image's time of creation, seconds since 1970.

    Raises:
        ImageError: more than 127 layers.
    """
    everything = (*(_as_oci(layer) for layer in base.layers), *layers)
    if len(everything) > MAX_LAYERS:
        raise ImageError(
            f"the image of target {recipe.name} has {len(everything)} layers; container engines take at most {MAX_LAYERS}",
            f"the base {base.reference} alone has {len(base.layers)}: take a base with fewer, or lower layers.groups",
        )
    created = datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    notes = {
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.title": recipe.labels.get("org.opencontainers.image.title", recipe.name),
        "org.opencontainers.image.base.digest": base.digest,
        "org.builder.target": recipe.name,
        **({"org.opencontainers.image.description": recipe.description} if recipe.description else {}),
        **({"org.opencontainers.image.base.name": name} if (name := base_name(base.reference)) else {}),
        **({"org.builder.lock": lock.digest} if lock.digest else {}),
        **versions(lock, recipe.platform),
        **{key: redact(value) for key, value in annotations.items()},
    }
    old = base.config.get("config") or {}
    runtime: dict[str, Any] = {key: old[key] for key in _INHERITED if old.get(key)}
    runtime["Env"] = [f"{k}={v}" for k, v in environment(base, recipe, lock, env).items()]
    runtime["Labels"] = {**(old.get("Labels") or {}), **notes, **recipe.labels}
    entrypoint = (ENTRYPOINT,) if recipe.entrypoint is None else recipe.entrypoint
    if entrypoint:
        runtime["Entrypoint"] = list(entrypoint)
    if recipe.cmd:
        runtime["Cmd"] = list(recipe.cmd)
    runtime["WorkingDir"] = recipe.workdir
    config: dict[str, Any] = {
        "architecture": recipe.architecture,
        "os": "linux",
        "created": created,
        "config": runtime,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in everything]},
        "history": [*_base_history(base, created), *(_history(layer, created) for layer in layers)],
    }
    if variant := base.config.get("variant"):
        config["variant"] = variant
    config_bytes = canonical_json(config)
    config_descriptor = Descriptor.of(OCI_CONFIG, config_bytes)
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": config_descriptor.to_json(),
            "layers": [layer.descriptor.to_json() for layer in everything],
            "annotations": notes,
        }
    )
    return Image(everything, config_bytes, config_descriptor, manifest, Descriptor.of(OCI_MANIFEST, manifest))


def environment(base: BaseImage, recipe: Recipe, lock: Lock, env: Mapping[str, str]) -> dict[str, str]:
    """The image's environment variables, in the order of the config.

    The base's come first (without those of a conda activated there), then PATH with the prefix in front, conda's and Python's,
    certificates, what activation sets, and the recipe's.

    Certificates: an environment with conda's ``ca-certificates`` uses its ``ssl/cacert.pem``; otherwise a ``debian:`` base, which
    always has ``ca-certificates``, gives ``/etc/ssl/certs``; otherwise what the base's own config says stays.
    """
    prefix = recipe.conda.prefix
    out = {k: v for k, v in config_environment(base.config).items() if not _ACTIVATED.fullmatch(k)}
    path = [p for p in out.get("PATH", DEFAULT_PATH).split(":") if p != f"{prefix}/bin"]
    out["PATH"] = ":".join([f"{prefix}/bin", *path])
    out.setdefault("LANG", "C.UTF-8")
    out |= {"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": "base", "CONDA_SHLVL": "1", "PYTHONNOUSERSITE": "1"}
    if any(p.manager == "conda" and p.name == "ca-certificates" for p in lock.for_platform(recipe.platform)):
        out["SSL_CERT_FILE"] = f"{prefix}/ssl/cacert.pem"
        out.pop("SSL_CERT_DIR", None)
    elif base.reference.startswith("debian:"):
        out |= {"SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt", "SSL_CERT_DIR": "/etc/ssl/certs"}
    return {**out, **env, **recipe.env}


def base_name(reference: str) -> str:
    """The base as ``org.opencontainers.image.base.name`` has it; empty for one that lies in a folder of the build host."""
    kind, _, rest = reference.partition(":")
    if kind == "docker":
        parsed = Reference.parse(reference)
        return parsed.name if parsed.digest and not parsed.tag else f"{parsed.name}:{parsed.tag or 'latest'}"
    return reference if kind == "debian" and rest else ""


def versions(lock: Lock, platform: str) -> dict[str, str]:
    """The annotations ``org.builder.python``, ``.torch`` and ``.cuda``: those that the lock says something about."""
    packages = {(p.manager, p.name.lower().replace("_", "-")): p.version for p in lock.for_platform(platform)}

    def first(*names: tuple[str, str]) -> str:
        return next((packages[n] for n in names if n in packages), "")

    torch = first(("pip", "torch"), ("conda", "pytorch"), ("conda", "pytorch-gpu"), ("conda", "pytorch-cpu"))
    cuda = first(
        ("conda", "cuda-version"),
        ("conda", "pytorch-cuda"),
        ("conda", "cudatoolkit"),
        ("conda", "cuda-cudart"),
    )
    if not cuda and (local := re.search(r"\+cu(\d+)(\d)$", torch)):
        cuda = f"{local[1]}.{local[2]}"
    if not cuda:
        pip_runtimes = [
            v
            for (m, n), v in packages.items()
            if m == "pip" and re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", n)
        ]
        cuda = ".".join(pip_runtimes[0].split(".")[:2]) if pip_runtimes else ""
    found = {"python": first(("conda", "python")), "torch": torch, "cuda": cuda}
    return {f"org.builder.{name}": version for name, version in found.items() if version}


def _as_oci(layer: Layer) -> Layer:
    media_type = OCI_TYPES.get(layer.descriptor.media_type, layer.descriptor.media_type)
    descriptor = Descriptor(media_type, layer.descriptor.digest, layer.descriptor.size)
    return Layer(
        descriptor,
        layer.diff_id,
        layer.path,
        layer.origin,
        layer.title or "base",
        layer.packages,
        layer.unpacked,
    )


def _history(layer: Layer, created: str) -> dict[str, Any]:
    return {"created": created, "created_by": f"builder: {layer.title or 'layer'}"}


def _base_history(base: BaseImage, created: str) -> list[dict[str, Any]]:
    """The base's history; made up when it does not have one entry for each layer, which engines insist on."""
    history = base.config.get("history") or []
    if sum(not h.get("empty_layer") for h in history) == len(base.layers):
        return list(history)
    return [{"created": created, "created_by": layer.title or "base"} for layer in base.layers]
