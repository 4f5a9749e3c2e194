"""Seals a release: its record is attached, signed and verified before a tag moves."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.core.errors import UsageError
from builder.core.version import __version__
from builder.formats.registry.errors import ArtifactRefused
from builder.lock.config.policy import POLICY_FILE, Policy

from .destination import RegistryDestination
from .keys import SigningKey
from .release import SIGNED_RELEASE, Action, ReleaseRecord
from .signatures import add_signature
from .tags import TagDigests, Tagging
from .verify import Subject, Trust, signed_releases, verify

log = logging.getLogger(__name__)

#: Days after which an image whose tags do not move is signed again, so that it is not too old.
_SIGN_AGAIN_DAYS = 7


@dataclass(frozen=True)
class Signer:
    """Who signs the releases of a command, and the policy that they must fulfil."""

    key: SigningKey | None = None
    """None: nothing is signed."""
    trust: Trust | None = None
    """None: neither policy nor key, or images at this place cannot be signed."""

    @classmethod
    def of(cls, where: str, root: Path, key: SigningKey | None) -> Signer:
        """Return the signer for a destination.

        Args:
            where: the destination: ``oci:DIR`` or ``host/repository``.
            root: the project folder.
            key: of the command line.

        Raises:
            UsageError: the policy wants a signature and there is no key, the policy does not name
                the key, or the destination holds no signatures.
            ConfigError: the policy is wrong.
        """
        if where.startswith("oci:"):
            if key is not None:
                hint = "publish to a registry, or leave out --sign and BUILDER_SIGN_KEY"
                raise UsageError(f"{where} is an OCI layout, which holds no signatures", hint)
            return cls()
        trust = Trust.find(root)
        if trust is None:
            # what is signed again must have been signed by this key
            policy = Policy(keys=("--sign",), require=())
            return cls(key, Trust(policy, (key.public,)) if key else None)
        if key is None:
            problem = f"{POLICY_FILE} accepts signed images only, and no key was given"
            raise UsageError(problem, "sign: --sign KEY, or BUILDER_SIGN_KEY")
        if key.public not in trust.keys:
            problem = f"{POLICY_FILE} does not name the public key of --sign"
            raise UsageError(problem, f"sign with a key of it: {', '.join(trust.policy.keys)}")
        return cls(key, trust)


@dataclass(frozen=True)
class Seal:
    """A release whose tags are about to move."""

    tagging: Tagging
    target: str
    action: Action
    signer: Signer
    attached: Mapping[str, str] = field(default_factory=dict)
    """The digests of the attached artifacts, by their types."""

    @property
    def subject(self) -> Subject:
        """The image, by its digest."""
        image = self.tagging.image
        return Subject.of(self.tagging.destination, image.digest, image)

    def record(self, named: TagDigests) -> None:
        """Attach the record of a move of all tags of the plan; sign and verify it, if it is needed.

        Args:
            named: the digests that the tags name until then.

        Raises:
            VerifyError: the release does not fulfil the policy; no tag was moved.
            RegistryError: the registry refuses, or cannot be reached.
        """
        if not self.is_needed(named):
            return
        key, place, image = self.signer.key, self.tagging.destination, self.tagging.image
        record = ReleaseRecord(
            image=image.digest,
            target=self.target,
            created=datetime.datetime.now(datetime.UTC),
            action=self.action,
            tags=dict(named),
            fixed=tuple(sorted(self.tagging.plan.fixed & named.keys())),
            attached=dict(self.attached),
        )
        try:
            attached = place.attach(image.manifest_descriptor, record.artifact())
        except ArtifactRefused:
            if key is not None:
                raise
            return  # no record; publishing has warned that nothing can be attached
        if key is not None and isinstance(place, RegistryDestination):
            optional: dict[str, Any] = {
                "creator": f"builder {__version__}",
                "timestamp": int(record.created.timestamp()),
                SIGNED_RELEASE: attached,
            }
            add_signature(place, image.digest, key, optional)
            log.info("signed %s@%s: %s", place.name, image.digest, attached)
        if self.signer.trust is not None:
            verify(self.subject, self.signer.trust).require()

    def is_needed(self, named: TagDigests) -> bool:
        """Return whether a tag moves, or the key has not signed these tags lately.

        So a nightly job that moves nothing adds no signatures.
        """
        key, trust = self.signer.key, self.signer.trust
        digest = self.tagging.image.digest
        moves = any(before != digest for before in named.values())
        if moves or key is None:
            return moves
        limit = min(_SIGN_AGAIN_DAYS, ((trust and trust.policy.max_age_days) or 90) / 3)
        newest = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=limit)
        releases = signed_releases(self.tagging.destination, digest, [key.public])
        tags = named.keys()
        return not any(tags <= r.record.tags.keys() and r.record.created > newest for r in releases)
