"""Verifies published images: a signed release of this image, and what it says is attached.

Whoever may push to the registry, but has no key of the policy, must not get a yes. So nothing is
taken from the registry's lists: a signature by a key of the policy, over the image's digest and the
repository's name, names the release record by its digest; the record names the tags and the
attached artifacts. A tag is valid for an image only if a signed record says so. Of several records
the newest that names the tag counts, and a machine that has verified a newer release of a tag
refuses an older one.

An attacker who replays a release that was ``latest`` before is stopped by ``max_age_days``, and on
machines that have verified a newer one. Nothing else can tell: there is no transparency log.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.core.errors import BuilderError, ImageError, RegistryError, VerifyError
from builder.core.model import Image
from builder.core.store.records import Record
from builder.deliver.smoke.values import mapping, mappings
from builder.formats.oci.documents import load_json
from builder.formats.oci.reference import is_tag
from builder.formats.registry.answer import MAX_SMALL_BLOB
from builder.formats.registry.oras import is_sif
from builder.lock.config.policy import Attestation, Policy, find_policy

from .destination import PublishDestination, RegistryDestination
from .keys import PublicKey
from .release import PROVENANCE, SBOM, SMOKE_REPORT, ReleaseRecord, signed_release
from .signatures import read_signatures
from .smoke_record import PASSED

log = logging.getLogger(__name__)

#: By how much the clocks of the machines that sign and verify may differ.
_CLOCKS_DIFFER = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was verified."""

    name: str
    seen: str
    """What was found: for people."""
    passed: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """The image to verify."""

    place: PublishDestination
    ref: str
    """The tag or digest that the user named."""
    digest: str
    """Of the manifest."""
    sif: str = ""
    """The sha256 of the SIF in it; empty: it is an OCI image."""

    @classmethod
    def of(cls, place: PublishDestination, ref: str, image: Image) -> Subject:
        """Return an image of a destination, or the artifact that contains a SIF."""
        first = image.layers[0].descriptor if image.layers else None
        sif = first.digest if first and is_sif(first) else ""
        return cls(place, ref, image.digest, sif)

    @property
    def tag(self) -> str:
        """The tag that the user named; empty: a digest."""
        return self.ref if is_tag(self.ref) else ""

    @property
    def name(self) -> str:
        """The image as messages name it."""
        return f"{self.place.name}{':' if self.tag else '@'}{self.ref}"


@dataclass(frozen=True, slots=True)
class Verification:
    """The result: what was verified, in order."""

    subject: Subject
    checks: tuple[Check, ...]
    release: ReleaseRecord | None = None
    """The signed record; None: no signature counts."""

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the result for ``--json``."""
        value = {"image": self.subject.name, "digest": self.subject.digest, "verified": self.passed}
        release = self.release.model_dump(mode="json") if self.release else None
        return value | {"checks": [asdict(check) for check in self.checks], "release": release}

    def require(self) -> None:
        """Raise VerifyError unless everything passed."""
        failed = [check for check in self.checks if not check.passed]
        if failed:
            problems = "; ".join(f"{check.name}: {check.seen}" for check in failed)
            subject = self.subject
            image = f"{subject.name}, {subject.digest}," if subject.tag else subject.name
            raise VerifyError(
                f"{image} is refused: {problems}", f"see all checks: builder verify {subject.name}"
            )


@dataclass(frozen=True, slots=True)
class SignedRelease:
    """A release record that a key of the policy has signed."""

    record: ReleaseRecord
    key: PublicKey


@dataclass(frozen=True)
class Trust:
    """The policy of a project, and its keys."""

    policy: Policy
    keys: tuple[PublicKey, ...]

    @classmethod
    def of(cls, policy: Policy) -> Trust:
        """Return a policy with its keys. Raises ConfigError: a key cannot be read."""
        return cls(policy, tuple(PublicKey.load(path) for path in policy.key_files))

    @classmethod
    def find(cls, root: Path) -> Trust | None:
        """Return the policy of a project folder with its keys; None if there is no policy.

        Raises:
            ConfigError: the policy is wrong, or a key cannot be read.
        """
        policy = find_policy(root)
        return None if policy is None else cls.of(policy)


def signed_releases(
    place: PublishDestination, image: str, keys: Sequence[PublicKey]
) -> list[SignedRelease]:
    """Return the records of an image that one of the keys has signed, the oldest first.

    Raises:
        RegistryError: the registry refuses, or cannot be reached.
        VerifyError: something else is in the place of the signatures.
    """
    if not isinstance(place, RegistryDestination):
        return []
    try:
        signatures = read_signatures(place, image, keys)
    except ImageError as e:
        raise VerifyError(f"no signatures can be read: {e.message}", e.hint) from None
    found: list[SignedRelease] = []
    for signed in signatures:
        record = _read_release(place, signed_release(signed.optional), image)
        found += [SignedRelease(record, signed.key)] if record else []
    return sorted(found, key=lambda release: release.record.created)


def _read_release(place: RegistryDestination, digest: str, image: str) -> ReleaseRecord | None:
    """Return a record by its digest; None if it is lost, or the digest is empty."""
    try:
        return ReleaseRecord.read(place.artifact(digest), image) if digest else None
    except (ImageError, RegistryError) as e:
        if _is_unavailable(e):
            raise
        log.info("%s: the signed record %s is lost: %s", place.name, digest, e.message)
        return None


def _is_unavailable(error: BuilderError) -> bool:
    """Return whether the registry did not answer, so that nothing can be said about the image."""
    return isinstance(error, RegistryError) and error.status != 404


def verify(subject: Subject, trust: Trust) -> Verification:
    """Verify an image as a policy says.

    Raises:
        RegistryError: the registry refuses, or cannot be reached.
    """
    releases = signed_releases(subject.place, subject.digest, trust.keys)
    if not releases:
        shown = ", ".join(key.fingerprint[:19] for key in trust.keys)
        seen = f"no signature of builder by a key of the policy ({shown})"
        return Verification(subject, (Check("signature", seen, False),))
    named = [r for r in releases if not subject.tag or subject.tag in r.record.tags]
    release = (named or releases)[-1]
    record, key = release.record, release.key.fingerprint[:19]
    checks = [Check("signature", f"by {key} at {record.created:%Y-%m-%dT%H:%M:%SZ}")]
    if subject.tag:
        checks += _check_tag(subject, record, trust.policy)
    checks += [_check_attached(subject, record, name) for name in trust.policy.require]
    done = Verification(subject, tuple(checks), record)
    if subject.tag and done.passed:
        _newest_record(subject).write(_stamp(record))
    return done


def read_document(subject: Subject, attached: Mapping[str, str], kind: str) -> bytes:
    """Return the one file of an attached artifact.

    Args:
        subject: the image.
        attached: digests by type, such as those that a record names.
        kind: which type.

    Raises:
        ImageError: none is attached, or it is not about this image.
        RegistryError: the registry refuses, or cannot be reached.
    """
    digest = attached.get(kind)
    if digest is None:
        raise ImageError("not attached")
    try:
        found = subject.place.artifact(digest)
    except (ImageError, RegistryError) as e:
        if _is_unavailable(e):
            raise
        raise ImageError(f"was attached, and is lost: {e.message}") from None
    if (found.artifact_type, found.subject, len(found.files)) != (kind, subject.digest, 1):
        raise ImageError("is not about this image")
    return found.files[0].data


# one check each ----------------------------------------------------------------------------------


def _check_tag(subject: Subject, record: ReleaseRecord, policy: Policy) -> Iterator[Check]:
    tag, now = subject.tag, datetime.datetime.now(datetime.UTC)
    if tag not in record.tags:
        signed = ", ".join(record.tags) or "no tag"
        yield Check("tag", f"signed for {signed}, not for {tag}", False)
        return
    yield Check("tag", f"signed for {', '.join(record.tags)}")
    age = now - record.created
    if age < -_CLOCKS_DIFFER:
        yield Check("age", f"signed in the future: {record.created}", False)
    elif tag not in record.fixed and policy.max_age_days is not None:
        limit = datetime.timedelta(days=policy.max_age_days)
        yield Check("age", f"{age.days} days, {limit.days} are allowed", age <= limit)
    newest = _newest_record(subject).read() or ""
    if newest > _stamp(record):
        seen = f"this machine has verified a newer release of {tag}, signed at {newest}"
        yield Check("replay", seen, False)


def _check_attached(subject: Subject, record: ReleaseRecord, name: Attestation) -> Check:
    """Return the check of one attestation."""
    kind, read = _ATTESTATIONS[name]
    try:
        return Check(name, read(subject, record, read_object(subject, record.attached, kind)))
    except ImageError as e:
        return Check(name, e.message, False)


def read_object(subject: Subject, attached: Mapping[str, str], kind: str) -> Mapping[str, Any]:
    """Return the JSON object of an attached artifact; an empty one for any other value.

    Raises:
        ImageError, RegistryError: see :func:`read_document`; it is not JSON.
    """
    return mapping(load_json(read_document(subject, attached, kind), kind, MAX_SMALL_BLOB))


def _read_sbom(subject: Subject, record: ReleaseRecord, value: Mapping[str, Any]) -> str:
    if value.get("bomFormat") != "CycloneDX":
        raise ImageError("is no CycloneDX document")
    return f"{len(value.get('components') or ())} components"


def _read_provenance(subject: Subject, record: ReleaseRecord, value: Mapping[str, Any]) -> str:
    wanted = [{"sha256": subject.digest.partition(":")[2]}]
    if [item.get("digest") for item in mappings(value.get("subject"))] != wanted:
        raise ImageError("is about another image")
    version = _at(value, "predicate", "runDetails", "builder", "version", "builder")
    return f"built by builder {version}"


def _read_smoke(subject: Subject, record: ReleaseRecord, value: Mapping[str, Any]) -> str:
    """Check a report for the GPUs of the recipe that the provenance names."""
    provenance = read_object(subject, record.attached, PROVENANCE)
    parameters = _at(provenance, "predicate", "buildDefinition", "externalParameters")
    return check_report(subject, value, str(_at(parameters, "recipe", "gpu", "vendor") or "none"))


def _at(value: Any, *keys: str) -> Any:
    """Return a value in nested JSON objects; None if it is not there."""
    for key in keys:
        value = mapping(value).get(key)
    return value


def check_report(subject: Subject, report: Mapping[str, Any], vendor: str) -> str:
    """Return what a passing smoke report of an image says, in a few words.

    Args:
        subject: the image.
        report: the report.
        vendor: the GPUs that the recipe is for.

    Raises:
        ImageError: it is about another image, did not pass, or expected other GPUs.
    """
    tested, verdict = str(_at(report, "image", "digest")), report.get("verdict")
    gpu = _at(report, "expect", "gpu")
    if verdict not in PASSED:
        raise ImageError(f"the verdict is {verdict}, not pass")
    if tested not in {subject.digest, subject.sif} - {""}:
        raise ImageError(f"is about another image, {tested}")
    if gpu != vendor:
        raise ImageError(f"tested GPUs of {gpu}, and the recipe is for {vendor}")
    return f"{verdict}, GPUs: {gpu}, {report.get('started')}"


_ATTESTATIONS: Mapping[Attestation, tuple[str, Callable[..., str]]] = {
    "sbom": (SBOM, _read_sbom),
    "provenance": (PROVENANCE, _read_provenance),
    "smoke": (SMOKE_REPORT, _read_smoke),
}


def _newest_record(subject: Subject) -> Record[str]:
    """Return the record of when the newest release of a tag that was verified here was signed."""
    name = hashlib.sha256(f"{subject.place.name}:{subject.tag}".encode()).hexdigest()
    return Record(subject.place.store.folders.verified / f"{name[:32]}.json", str)


def _stamp(record: ReleaseRecord) -> str:
    return record.created.astimezone(datetime.UTC).isoformat(timespec="microseconds")
