"""Published images as users name them: by a target of the project and a tag, or by a reference."""

from __future__ import annotations

import re
from dataclasses import dataclass

from builder.errors import UsageError
from builder.project import Project
from builder.publishing.destination import PublishDestination, destination_text
from builder.publishing.pull import AnyImage, find_published, is_reference, split_image
from builder.publishing.verify import Subject

#: ``TARGET``, ``TARGET:TAG`` and ``TARGET@DIGEST``.
_OF_TARGET = re.compile(r"([a-z0-9][a-z0-9._-]*)(?:[:@]([\w.:-]+))?")


@dataclass(frozen=True, slots=True)
class NamedImage:
    """Where a published image is."""

    place: str
    """The destination: ``HOST/REPOSITORY`` or ``oci:DIR``."""
    ref: str
    """A tag or digest."""
    wanted: AnyImage


def named_image(text: str | None, project: Project | None) -> NamedImage:
    """Return the image that a user names.

    Args:
        text: ``TARGET``, ``TARGET:TAG``, ``TARGET@DIGEST``, ``HOST/REPOSITORY:TAG``,
            ``HOST/REPOSITORY@DIGEST`` or ``oci:DIR:TAG``; None: the only target of the project.
        project: of the target; None: there is none.

    Raises:
        UsageError: the text names no image, or its target has no registry.
        ConfigError: the target is not known, or its recipe is not valid.
    """
    if text is not None and is_reference(text):
        return NamedImage(*split_image(text), AnyImage(text))
    found = _OF_TARGET.fullmatch(text) if text is not None else None
    if project is None or (text is not None and found is None):
        hint = "write HOST/REPOSITORY:TAG, or in a project TARGET or TARGET:TAG"
        raise UsageError(f"{text or 'nothing'} names no published image here", hint)
    recipe = project.one_recipe(found[1] if found else None)
    wanted = AnyImage(text or recipe.name, architecture=recipe.architecture)
    ref = (found[2] if found else None) or "latest"
    return NamedImage(destination_text(recipe), ref, wanted)


def find_subject(named: NamedImage, place: PublishDestination) -> Subject:
    """Return the image at an open destination, not verified.

    Raises:
        RegistryError, ImageError: there is none, or it is damaged.
    """
    described, layer = find_published(named.wanted, place, named.ref)
    return Subject(place, named.ref, described.digest, layer.digest if layer else "")
