"""Deletes what a retention rule does not keep from a repository of a registry."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass

from builder.errors import RegistryError
from builder.model import Descriptor
from builder.oci.manifest import INDEXES, MAX_INDEX_DEPTH, parse_index
from builder.parallel import in_parallel
from builder.registry.client import RegistryClient
from builder.registry.push import CHECKS
from builder.registry.referrers import referrers, referrers_tag
from builder.registry.retention import Keep, Retention, plan_retention


@dataclass(frozen=True, slots=True)
class Pruning:
    """What is, or would be, deleted from a repository."""

    retention: Retention
    attached: tuple[str, ...]
    """The digests of what is attached to the manifests: reports, SBOMs, and lists of them."""

    @property
    def digests(self) -> tuple[str, ...]:
        """Everything in the order in which it is deleted.

        What is attached comes first: without its image nobody finds it. An index comes before its images,
        because some registries refuse to delete what an index names.
        """
        return (*self.attached, *self.retention.manifests)


def plan_pruning(client: RegistryClient, repository: str, keep: Keep, today: datetime.date) -> Pruning:
    """What a rule deletes from a repository. Nothing is deleted.

    Raises:
        RegistryError: there is no such repository, or the registry refuses or cannot be reached.
        ImageError: an index is damaged.
    """
    named: dict[str, str] = {}
    parts: dict[str, tuple[str, ...]] = {}
    tags = client.list_tags(repository)
    for tag, found in in_parallel(lambda tag: client.head_manifest(repository, tag), tags, CHECKS):
        if found is None:
            continue  # deleted meanwhile
        named[tag] = found.digest
        if found.digest not in parts:
            parts[found.digest] = _parts(client, repository, found)
    retention = plan_retention(named, parts, keep, today)
    attached: dict[str, None] = {}
    for digest in retention.manifests:
        attached |= {d: None for d in _attached(client, repository, digest) if d not in retention.needed}
    return Pruning(retention, tuple(d for d in attached if d not in retention.manifests))


def _parts(client: RegistryClient, repository: str, found: Descriptor, depth: int = 0) -> tuple[str, ...]:
    """The digests of all manifests in an index; none for an image."""
    if found.media_type not in INDEXES or depth > MAX_INDEX_DEPTH:
        return ()
    data, media_type, _ = client.get_manifest(repository, found.digest)
    where = f"{client.host}/{repository}@{found.digest}"
    children = [Descriptor.from_json(entry) for entry in parse_index(data, where, media_type)["manifests"]]
    below = [part for child in children for part in _parts(client, repository, child, depth + 1)]
    return tuple(dict.fromkeys([*(child.digest for child in children), *below]))


def _attached(client: RegistryClient, repository: str, digest: str) -> list[str]:
    """What is attached to a manifest, and the list of it in registries before distribution-spec 1.1."""
    found = [descriptor.digest for descriptor in referrers(client, repository, digest)]
    listed = client.head_manifest(repository, referrers_tag(digest))
    return [*found, listed.digest] if listed is not None else found


def prune_repository(
    client: RegistryClient, repository: str, pruning: Pruning, done: Callable[[str], None]
) -> None:
    """Deletes what :func:`plan_pruning` found. After an interruption, run both again.

    Args:
        client: the registry.
        repository: in the registry.
        pruning: what is deleted.
        done: receives each digest that was deleted.

    Raises:
        RegistryError: a tag was moved meanwhile, or the registry does not delete.
    """
    for tag, digest in pruning.retention.tags.items():
        found = client.head_manifest(repository, tag)
        if found is not None and found.digest != digest:
            raise RegistryError(
                f"{client.host}/{repository}:{tag} was moved while the repository was pruned",
                "nothing was deleted; run the command again",
                host=client.host,
            )
    for digest in pruning.digests:
        client.delete_manifest(repository, digest)
        done(digest)
