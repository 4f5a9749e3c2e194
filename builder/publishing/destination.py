"""Checks destinations and tags that a user typed, before anything is built."""

from __future__ import annotations

import re
from pathlib import Path

from builder.config.recipe import Recipe
from builder.config.yamlfile import place_of
from builder.errors import ConfigError, UsageError
from builder.oci.reference import TAG_RULE, Reference, is_tag

#: A host alone: ``localhost:5000``, ``ghcr.io``.
_HOST = re.compile(r"(localhost|[\w-]+(\.[\w-]+)+|\[[0-9a-fA-F:]+\])(:\d+)?/?|[\w-]+:\d{4,5}/?")


def check_destination(text: str, recipe: Recipe, option: str) -> None:
    """Check the text of a destination.

    Args:
        text: what the user typed: ``HOST/REPOSITORY`` or ``oci:DIR``.
        recipe: the target.
        option: the option that it comes from.

    Raises:
        UsageError: it is a folder, a host without a repository, or contains a tag; the hint is what
            to type.
        RegistryError: it breaks another rule of references.
    """
    if text.startswith("oci:"):
        return
    is_folder = "/" not in text and Path(text).is_dir()
    if text.startswith(("/", "./", "../", "~")) or is_folder:
        raise UsageError(
            f"{option} {text}: a folder, not a repository of a registry",
            f"for an OCI layout in that folder write {option} oci:{text}",
        )
    plain = text.removeprefix("docker://").removeprefix("oras://")
    if _HOST.fullmatch(plain):
        repository = recipe.registry.repository or recipe.name
        raise UsageError(
            f"{option} {text}: a registry without a repository",
            f"write {option} {plain.rstrip('/')}/{repository}",
        )
    reference = Reference.parse(text)
    if reference.tag or reference.digest:
        tag = f" --tag {reference.tag}" if reference.tag else ""
        raise UsageError(
            f"{option} {text}: contains a tag or digest, but must be a repository",
            f"write {option} {reference.name}{tag}",
        )


def check_tag(tag: str, recipe: Recipe, option: str | None) -> None:
    """Check a tag of the command line (``option``), or of the recipe (None).

    Raises:
        UsageError, ConfigError: no registry accepts such a tag; the hint is the rule.
    """
    if is_tag(tag):
        return
    if option:
        raise UsageError(f"{option} {tag!r} is not a tag", f"{TAG_RULE}: {option} {_meant(tag)}")
    where = place_of(recipe.source, "registry", "tags")
    raise ConfigError(f"{where}: {tag!r} is not a tag", f"{TAG_RULE}: write {_meant(tag)}")


def _meant(tag: str) -> str:
    """Return the tag without the characters that it must not have."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", tag).strip("-.")[:128] or "26.11"
