"""The image that a step runs in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builder.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, Layer, canonical_json


def image_of(
    layers: Sequence[Layer], env: Mapping[str, str], *, architecture: str = "amd64", target: str = ""
) -> Image:
    """Returns an image of some layers that runs as root in ``/``.

    Args:
        layers: from the bottom up.
        env: its environment variables.
        architecture: OCI's name of the processor.
        target: the target that it becomes; unpacked images of one target share their files.
    """
    config = canonical_json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Env": [f"{name}={value}" for name, value in env.items()],
                "Labels": {"org.builder.target": target} if target else {},
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        }
    )
    described = Descriptor.of(OCI_CONFIG, config)
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": described.to_json(),
            "layers": [layer.descriptor.to_json() for layer in layers],
        }
    )
    return Image(tuple(layers), config, described, manifest, Descriptor.of(OCI_MANIFEST, manifest))
