"""Pulls the published image of a target, unless this machine has it already.

An OCI image has the same manifest digest in a registry, in an OCI layout and in podman's storage; a
SIF's artifact contains the sha256 of the file. So one request, for the digest of a tag, is enough
to know whether anything must be downloaded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from builder.build.bases.reference import path_and_tag
from builder.core.errors import ImageError, RegistryError, UsageError
from builder.core.model import Descriptor, Image, SifImage
from builder.core.progress import working
from builder.core.workspace import Workspace
from builder.deliver.pulled import Pull, record_pull
from builder.deliver.site.runtimes.table import runtime_of
from builder.formats.oci.image import host_architecture
from builder.formats.oci.layout import write_layout
from builder.formats.oci.manifest import through_indexes
from builder.formats.oci.reference import Reference, is_digest, is_tag
from builder.formats.registry.oras import sif_layer
from builder.formats.registry.referrers import Attached
from builder.lock.config.policy import has_policy
from builder.lock.config.recipe import Recipe

from .destination import LayoutDestination, PublishDestination, open_destination

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AnyImage:
    """An image or SIF for this machine's processor, whatever target it is of."""

    name: str
    """For messages, and in OCI layouts."""
    format: Literal["any"] = "any"
    architecture: str = field(default_factory=host_architecture)
    """The OCI's name of the processor."""
    root: Path | None = None
    """The project whose policy must accept it; None: no policy."""


#: What is pulled.
PulledTarget = Recipe | AnyImage


@dataclass(frozen=True)
class Pulled:
    """The result of a pull."""

    target: str
    reference: str
    """The origin with the tag or digest."""
    digest: str
    """Of the manifest for an OCI image, of the file for a SIF."""
    changed: bool
    """False: this machine had the image already."""
    place: str
    """The image's location now: a file, ``oci:DIR:TAG``, ``ENGINE:NAME``, or ``cache``."""


def pull(
    recipe: Recipe,
    origin: PublishDestination,
    tag: str,
    output: Path,
    work: Workspace,
    *,
    if_changed: bool = False,
) -> Pulled:
    """Download the image of a tag: a SIF into a file, an OCI image into a layout.

    Args:
        recipe: states whether it is a SIF, and for which processor.
        origin: where it was published.
        tag: a tag or a digest.
        output: the file for a SIF; the folder of an OCI layout otherwise.
        if_changed: ask for the digest only, and change nothing when ``output`` holds that image
            undamaged. False: an OCI image is written into the layout again. Blobs on this machine
            are not downloaded in either case.

    Raises:
        RegistryError: there is no such tag, or the registry refuses.
        ImageError: it is not what the target runs, or is damaged.
        VerifyError: the policy of the project refuses it.
        HashMismatch, SpaceError: see
        :class:`builder.deliver.publishing.destination.PublishDestination`.
    """
    where = reference_of(origin, tag)
    described, layer = resolve_published(recipe, origin, tag)
    if layer is not None:
        changed = origin.sif(layer, output)
        return Pulled(recipe.name, where, layer.digest, changed, str(output))
    here = LayoutDestination(output, work.store, reporter=work.reporter)
    is_here = _is_whole(here, recipe, described.digest)
    if not is_here or not if_changed:
        image = origin.image(described.digest, recipe.architecture)
        with working(work.reporter, f"writing {recipe.name} into {output}"):
            write_layout(image, output, recipe.name, work.store)
    record_pull(output, recipe.name, Pull(where, described.digest))
    return Pulled(recipe.name, where, described.digest, not is_here, f"oci:{output}:{recipe.name}")


def is_reference(text: str) -> bool:
    """Return whether a text names an image, with a host or as ``oci:DIR``, and not a target."""
    host, slash, _ = text.partition("/")
    return text.startswith("oci:") or bool(slash and re.search(r"\A[^.]+[.:]|\Alocalhost\Z", host))


@contextmanager
def open_reference(
    text: str, work: Workspace, option: str = "--to"
) -> Iterator[tuple[PublishDestination, str]]:
    """Yield the destination of an image's name, and its tag or digest; close it afterwards.

    Args:
        text: ``HOST/REPOSITORY[:TAG]``, with a digest instead of the tag, or ``oci:DIR[:TAG]``.
        work: the cache.
        option: see :func:`builder.deliver.publishing.destination.open_destination`.

    Raises:
        RegistryError: it is not a reference; see ``open_destination``.
    """
    where, tag = _split(text)
    with closing(open_destination(where, work, option=option)) as place:
        yield place, tag


def _split(text: str) -> tuple[str, str]:
    """Return the destination in an image's name, and its tag or digest.

    Raises:
        RegistryError: it is not a reference.
    """
    if text.startswith("oci:"):
        path, tag = path_and_tag(text.removeprefix("oci:"), Path())
        return f"oci:{path}", tag or "latest"
    parsed = Reference.parse(text)
    return parsed.name, parsed.ref


def pull_reference(
    text: str, work: Workspace, root: Path | None = None
) -> tuple[Pulled, Image | SifImage]:
    """Download an image or a SIF into the cache, as far as it is not there.

    Args:
        text: see :func:`open_reference`.
        root: the project whose policy must accept the image; None: no policy.

    Raises:
        RegistryError: there is no such tag, or the registry refuses.
        ImageError: it is damaged, or for another processor.
    """
    wanted = AnyImage(text, root=root)
    with open_reference(text, work) as (origin, tag):
        described, layer = resolve_published(wanted, origin, tag)
        name, digest = reference_of(origin, tag), described.digest
        pulled = Pulled(text, name, digest, changed=True, place="cache")
        if layer is None:
            return pulled, origin.image(digest, wanted.architecture)
        path = work.store.folders.sif / f"pulled-{layer.digest.partition(':')[2][:24]}.sif"
        path.parent.mkdir(parents=True, exist_ok=True)
        changed = origin.sif(layer, path)
        sif = SifImage(path, layer.digest, layer.size, wanted.architecture)
        return replace(pulled, digest=layer.digest, changed=changed), sif


def find_attached(text: str, artifact_type: str, work: Workspace) -> list[Attached]:
    """Return the artifacts of a type that are attached to an image, the newest last.

    Args:
        text: see :func:`open_reference`.
        artifact_type: such as :data:`builder.deliver.publishing.release.SMOKE_REPORT`.

    Raises:
        RegistryError, ImageError: there is no such image, or what is attached is damaged.
    """
    with open_reference(text, work) as (origin, tag):
        described, _ = find_published(AnyImage(text), origin, tag)
        return origin.attached_to(described.digest, artifact_type)


def pinned_reference(recipe: Recipe, work: Workspace, *, image: str = "") -> str:
    """Ask the registry which image a tag names now; return ``HOST/REPOSITORY@sha256:...``.

    Args:
        recipe: the target.
        image: a reference in place of the recipe's; one with a digest is returned unchanged, but
            verified if the project has a policy.

    Raises:
        UsageError: the recipe names no repository.
        RegistryError: there is no such tag, or the registry does not answer.
        ImageError: it is not what the target runs.
    """
    text = image or runtime_of(recipe).image()
    if is_digest(_split(text)[1]) and not has_policy(recipe.root):
        return image
    with open_reference(text, work, "--image") as (origin, tag):
        described, _ = resolve_published(recipe, origin, tag)
        return reference_of(origin, described.digest)


def reference_of(origin: PublishDestination, tag: str) -> str:
    """Return the destination with a tag or digest.

    Raises:
        UsageError: it is neither.
    """
    if is_digest(tag):
        return f"{origin.name}@{tag}"
    if is_tag(tag):
        return f"{origin.name}:{tag}"
    raise UsageError(f"{tag!r} is neither a tag nor a digest", "write latest, 26.11 or sha256:...")


def resolve_published(
    wanted: PulledTarget, origin: PublishDestination, tag: str
) -> tuple[Descriptor, Descriptor | None]:
    """Return the manifest of a tag or digest for the processor, and its SIF if it has one.

    If the project has a policy, the image is verified.

    Raises:
        RegistryError, ImageError: see :func:`find_published`.
        VerifyError: the policy refuses it.
    """
    described, layer = find_published(wanted, origin, tag)
    if wanted.root is not None and has_policy(wanted.root):
        from .verify import Subject, Trust, verify

        trust = Trust.find(wanted.root)
        assert trust is not None
        subject = Subject(origin, tag, described.digest, layer.digest if layer else "")
        verify(subject, trust).require()
    return described, layer


def find_published(
    wanted: PulledTarget, origin: PublishDestination, tag: str
) -> tuple[Descriptor, Descriptor | None]:
    """Return the manifest of a tag or digest for the processor, and its SIF; verify nothing.

    Raises:
        RegistryError: there is no such tag.
        ImageError: it is not what the target runs.
    """
    where = reference_of(origin, tag)
    described = origin.resolve(tag)
    if described is None:
        publish = f"publish it (builder publish {wanted.name}), or "
        hint = f"{publish if wanted.format != 'any' else ''}name another tag"
        raise RegistryError(f"there is no {where}", hint, status=404)
    described = through_indexes(described, origin.manifest, wanted.architecture, where)
    log.info("%s is the image %s", where, described.digest)
    layer = sif_layer(origin.manifest(described), described, where)
    if wanted.format == "sif" and layer is None:
        raise ImageError(
            f"{where} is an OCI image, and target {wanted.name} runs a SIF",
            "publish the target's SIF there; or convert the image with Apptainer: "
            "apptainer pull docker://...",
        )
    if wanted.format == "oci" and layer is not None:
        raise ImageError(
            f"{where} is a SIF, and target {wanted.name} runs an OCI image",
            "correct the repository or the tag",
        )
    return described, layer


def _is_whole(here: LayoutDestination, recipe: Recipe, digest: str) -> bool:
    """Return whether a layout holds this image under the target's name, with undamaged layers."""
    with suppress(ImageError):
        found = here.resolve(recipe.name)
        if found is not None and found.digest == digest:
            here.image(digest, recipe.architecture)
            return True
    return False
