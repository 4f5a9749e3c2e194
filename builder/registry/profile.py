"""The credentials of the registry that is published to or pulled from."""

from __future__ import annotations

from builder.registry.credentials import Credentials, Warn, environment_credentials


def named_credentials(warn: Warn | None = None) -> Credentials | None:
    """Return :func:`~builder.registry.credentials.environment_credentials`; warns of nothing."""
    return environment_credentials()
