"""Manifests, and images of layers and a config: of targets, steps, trials, and bases.

And what an image's config says (image-spec, config.md).
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

from builder.core.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, Layer, canonical_json

#: The PATH of a container whose image sets none.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Variables that serve the programs of a base image alone: they refer to its activated environment,
#: or Python reads them and then imports the base's modules instead of the image's.
SERVES_BASE = re.compile(
    r"CONDA_(?:PREFIX(?:_\d+)?|DEFAULT_ENV|SHLVL|PROMPT_MODIFIER|EXE|PYTHON_EXE)|_CE_(?:CONDA|M)"
    r"|PYTHON(?:PATH|HOME|USERBASE|STARTUP|PLATLIBDIR|PYCACHEPREFIX)|VIRTUAL_ENV(?:_PROMPT)?"
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def host_architecture() -> str:
    """Return the OCI's name of this machine's processor; for rarer ones, the kernel's name."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def config_environment(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that an image config sets."""
    entries = (config.get("config") or {}).get("Env") or ()
    pairs = (text.partition("=") for text in entries)
    return {name: value for name, _, value in pairs if name}


def assemble(
    layers: Sequence[Layer], config: bytes, config_type: str = OCI_CONFIG, **more: Any
) -> Image:
    """Return the image or artifact of layers and a config (image-spec, manifest.md).

    Args:
        layers: from the bottom up.
        config: its exact bytes.
        config_type: its media type.
        more: other keys of the manifest.
    """
    described = Descriptor.of(config_type, config)
    value = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": described.to_json(),
        "layers": [layer.descriptor.to_json() for layer in layers],
    }
    manifest = canonical_json(value | more)
    return Image(tuple(layers), config, described, manifest, Descriptor.of(OCI_MANIFEST, manifest))


def plain_image(layers: Sequence[Layer], config: Mapping[str, Any], **more: Any) -> Image:
    """Return the image of layers, from the bottom up, and a config; ``more``: of the manifest."""
    return assemble(layers, canonical_json(dict(config)), **more)


def image_blobs(image: Image) -> list[Descriptor]:
    """Return the layers and the config of an image, each once."""
    blobs = [*(layer.descriptor for layer in image.layers), image.config_descriptor]
    return list({blob.digest: blob for blob in blobs}.values())


def image_of(
    layers: Sequence[Layer], env: Mapping[str, str], architecture: str = "amd64", target: str = ""
) -> Image:
    """Return an image of some layers that runs as root in ``/``.

    Args:
        layers: from the bottom up.
        env: its environment variables.
        architecture: OCI's name of the processor.
        target: the target that it becomes; the last unpacked images of each target are kept.
    """
    runtime = {
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Labels": {"org.builder.target": target} if target else {},
        "WorkingDir": "/",
    }
    rootfs = {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]}
    config = {"architecture": architecture, "os": "linux", "config": runtime, "rootfs": rootfs}
    return plain_image(layers, config)
