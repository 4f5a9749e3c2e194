"""Tags that name an image index: one image for each platform (``registry: {index: true}``).

Each platform's image is built, tested and published on its own, often on different machines: the one for x86
from a laptop, the one for arm64 from a GH200 node. Publishing a target replaces the image of its platform in
the index that a tag names, and keeps the others::

    before    latest -> index (amd64: A1, arm64: B1)
    publish   the image A2 of amd64, tested
    after     latest -> index (amd64: A2, arm64: B1)

:class:`PlatformPlace` shows a place as if each tag named the image of one platform. So the checks of tags and
their moves are the same with and without an index.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from builder.config.recipe import Recipe
from builder.errors import TagExistsError
from builder.model import OCI_INDEX, Descriptor, Image, canonical_json
from builder.oci.manifest import INDEXES, parse_index
from builder.publishing.places import Place
from builder.registry.manifests import ANY, TagMove


class PlatformPlace:
    """The images of one platform in a place whose tags name indexes. All else is the place's own.

    Args:
        place: the place.
        recipe: the target, which has the platform.
        force: a tag that names one image and no index may become an index.
    """

    def __init__(self, place: Place, recipe: Recipe, *, force: bool) -> None:
        self._place = place
        self._recipe = recipe
        self._force = force
        self.moved: dict[str, tuple[str | None, str]] = {}
        """For each tag that was moved here: the digest that it named before, and the index that it names now.
        """

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    def require_indexes(self, tags: Sequence[str]) -> None:
        """Raises TagExistsError if a tag names one image and no index, which publishing would replace."""
        for tag in tags:
            found = self._place.resolve(tag)
            if found is not None and found.media_type not in INDEXES and not self._force:
                raise TagExistsError(
                    f"{self._place.name}:{tag} names one image ({found.digest[:19]}), and "
                    f"{self._recipe.source} has registry: {{index: true}}",
                    "--force replaces it by an index; publish the targets of the other platforms after that",
                )

    def resolve(self, ref: str) -> Descriptor | None:
        """The image of the platform that a tag or digest names; None if there is none."""
        found = self._place.resolve(ref)
        if found is None or ref == found.digest:
            return found
        member = self._member(self._entries(ref, found))
        return Descriptor.from_json(member) if member else None

    def move_tag(self, tag: str, image: Image, expected: str | None = ANY) -> TagMove:
        """Replaces the platform's image in the index of a tag; see :class:`builder.publishing.places.Place`.

        The digests of the arguments and the result are those of the platform's images.

        Raises:
            TagExistsError: the tag names an image and no index.
        """
        self.require_indexes([tag])
        found = self._place.resolve(tag)
        entries = self._entries(tag, found)
        member = self._member(entries)
        before = str(member["digest"]) if member else None
        if expected not in (ANY, before):
            return TagMove(before, before, written=False)
        if before == image.digest:
            return TagMove(before, before, written=False)
        index = platform_index(entries, image, self._recipe)
        done = self._place.move_tag(tag, index, found.digest if found else None)
        if done.now != index.digest:  # another publish moved it meanwhile
            now = self.resolve(tag)
            return TagMove(before, now.digest if now else None, written=False)
        self.moved[tag] = (done.before, index.digest)
        return TagMove(before, image.digest, written=done.written)

    def _entries(self, tag: str, found: Descriptor | None) -> list[Mapping[str, Any]]:
        """The entries of the index that a tag names now; none if it names one image."""
        if found is None or found.media_type not in INDEXES:
            return []
        where = f"the image index {self._place.name}:{tag}"
        return list(parse_index(self._place.manifest(found), where, found.media_type)["manifests"])

    def _member(self, entries: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """The entry of the platform."""
        architecture = self._recipe.architecture
        return next((entry for entry in entries if _architecture(entry) == architecture), None)


def platform_index(entries: list[Mapping[str, Any]], image: Image, recipe: Recipe) -> Image:
    """An index with the entries of other platforms, and an image for its own, sorted by architecture.

    Args:
        entries: of the index before.
        image: what was published, an image or a SIF's artifact.
        recipe: its target.

    Returns:
        The index, as an image without layers: what a tag can name.
    """
    platform = {"architecture": recipe.architecture, "os": "linux"}
    variant = json.loads(image.config).get("variant")
    if variant:
        platform["variant"] = variant
    own = {**image.manifest_descriptor.to_json(), "platform": platform}
    own["annotations"] = {**own.get("annotations", {}), "org.builder.target": recipe.name}
    others = [entry for entry in entries if _architecture(entry) != recipe.architecture]
    manifests = sorted([*others, own], key=lambda entry: (_architecture(entry), entry["digest"]))
    data = canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests})
    return Image((), b"", image.config_descriptor, data, Descriptor.of(OCI_INDEX, data))


def refuse_to_replace(place: Place, tag: str, found: Descriptor, image: Image) -> None:
    """Raises TagExistsError if a tag names an index of several platforms, which one image would replace."""
    if found.media_type not in INDEXES:
        return
    where = f"{place.name}:{tag}"
    index = parse_index(place.manifest(found), f"the image index {where}", found.media_type)
    platforms = sorted({_architecture(entry) for entry in index["manifests"]} - {"", "unknown"})
    if len(platforms) > 1:
        raise TagExistsError(
            f"{where} is an index of images for {', '.join(platforms)}, and {image.digest[:19]} is one image",
            "write into the recipe: registry: {index: true}; or --force to replace the index",
        )


def _architecture(entry: Mapping[str, Any]) -> str:
    return (entry.get("platform") or {}).get("architecture") or ""
