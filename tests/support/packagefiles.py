"""The files of packages, as the engine hands them from stage to stage."""

from __future__ import annotations

from collections.abc import Sequence

from builder.core.model import Fetched
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.entry import LinkContext
from builder.formats.layers.packages import Packages
from tests.support.wheels import CONTEXT


def files_of(packages: Sequence[Fetched], settings: Settings, context: LinkContext = CONTEXT) -> Packages:
    """The files of packages in link order; their indexes are cached in the settings' cache."""
    archives = {one.package.key: one for one in packages}
    work = Workspace(settings, Store(settings.cache))
    locked = [one.package for one in packages]
    return Packages(locked, context, work, lambda asked: [archives[package.key] for package in asked])
