"""Destinations and tags that a user typed: the hint is what to type instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import BuilderError, ConfigError, UsageError
from builder.deliver.publishing.destination import check_destination, destination_text
from builder.deliver.publishing.tags import TagPlan, check_tag
from builder.lock.config.recipe import Recipe, Registry


def recipe(**registry: object) -> Recipe:
    return Recipe(
        name="mine",
        base="debian:bookworm",
        environment="environment.yml",
        registry=Registry.model_validate(registry),
        source=Path("recipes/mine.yaml"),
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "localhost:15055",
            "--to localhost:15055: a registry without a repository",
            "write --to localhost:15055/mine",
        ),
        ("ghcr.io", "a registry without a repository", "write --to ghcr.io/mine"),
        ("docker://ghcr.io/", "a registry without a repository", "write --to ghcr.io/mine"),
        (
            "/tmp/regz",
            "--to /tmp/regz: a folder",
            "for an OCI layout in that folder write --to oci:/tmp/regz",
        ),
        ("./regz", "a folder, not a repository", "write --to oci:./regz"),
        (".", "a folder, not a repository", "write --to oci:."),
        (
            "https://ghcr.io/me/mine",
            "is a URL, not an image reference",
            "leave out the scheme",
        ),
        ("https://me:hunter2@a.example/x", "is a URL", "leave out the scheme"),
        ("ghcr.io/me/mine:1.0", "contains a tag or digest", "write --to ghcr.io/me/mine --tag 1.0"),
        ("ghcr.io/Me/mine", "'Me' cannot be part of a repository name", "write it in lower case: me/mine"),
    ],
)
def test_destination(text: str, message: str, hint: str) -> None:
    with pytest.raises(BuilderError) as caught:
        destination_text(recipe(), text)
    assert message in caught.value.message and hint in caught.value.hint
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["localhost:5000/x", "ghcr.io/me/mine", "oci:/tmp/x", "docker://a.example/b", "me/x"]
)
def test_accepted(text: str) -> None:
    check_destination(text, recipe(), "--to")


def test_no_registry() -> None:
    with pytest.raises(UsageError) as caught:
        destination_text(recipe(repository="me/mine"))
    assert caught.value.message.startswith("recipes/mine.yaml: registry.host is not set")
    assert "registry: {host: HOST, repository: me/mine}" in caught.value.hint


def test_tags() -> None:
    """A tag is checked when it is planned, which is before the build."""
    with pytest.raises(UsageError) as caught:
        TagPlan.of(recipe(), "a b")
    assert caught.value.message == "--tag 'a b' is not a tag" and caught.value.hint.endswith(": --tag a-b")
    with pytest.raises(ConfigError) as wrong:
        TagPlan.of(recipe(tags=["%y/%m"]))
    assert wrong.value.message.startswith("recipes/mine.yaml: registry.tags: '")
    check_tag("26.11", recipe(), "--tag")
