"""Commands that print again what they printed last time, if nothing has changed since."""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from builder.core.errors import BuilderError
from builder.core.settings import project_root
from builder.core.store.folders import CacheFolders
from builder.core.store.unchanged import Recording

from .context import Context

log = logging.getLogger(__name__)

#: A time in the result for people.
_SECONDS = re.compile(r"\b\d+\.\d s\b")


def repeatable(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that reads its record first, see :mod:`builder.core.store.unchanged`."""

    @functools.wraps(command)
    def run(context: Context, /, **values: Any) -> None:
        recording = _recording(context)
        if recording is None:
            return command(context, **values)
        found = recording.find()
        if found is not None and _is_published(context, found["published"]):
            log.info("nothing that this command reads has changed since the last time")
            for method, value in found["printed"]:
                getattr(context.output, method)(value)
            return None
        with recording.running():
            command(context, **values)
        printed = [(method, _timeless(value)) for method, value in context.output.printed]
        recording.store({"printed": printed, "published": context.published})
        return None

    return run


def _recording(context: Context) -> Recording | None:
    """Return the recording of the command; None if its log is shown, or there is no project."""
    click_context = click.get_current_context()
    root, general = project_root(context.start), click_context.find_root().params
    if root is None or general["verbose"]:
        return None
    own = sorted(click_context.params.items())
    words = repr([click_context.info_name, own, sorted(general.items()), context.output.as_json])
    return Recording(context.settings, root, words)


def _timeless(value: Any) -> Any:
    """Return what was printed with no time passed, as JSON."""
    if isinstance(value, str):
        return _SECONDS.sub("0.0 s", value)

    def without_times(found: dict[str, Any]) -> dict[str, Any]:
        for key in found.keys() & {"seconds", "build_seconds"}:
            found[key] = {} if isinstance(found[key], dict) else 0.0
        return found

    return json.loads(json.dumps(value, default=str), object_hook=without_times)


def _is_published(context: Context, published: Sequence[tuple[str, str, Sequence[str]]]) -> bool:
    """Return whether all tags name the digests that they named, and no push was interrupted.

    Args:
        context: of the command.
        published: destinations, digests and tags. What is in an OCI layout was read as a file.
    """
    if published and any(CacheFolders(context.settings.cache).unverified.glob("*")):
        return False
    places = [one for one in published if not one[0].startswith("oci:")]
    try:
        return all(_names(context, *place) for place in places)
    except BuilderError as e:
        log.info("asking for the tags: %s", e.message)
        return False


def _names(context: Context, name: str, digest: str, tags: Sequence[str]) -> bool:
    """Ask a registry whether all tags of a repository name a digest."""
    from builder.formats.registry.client import RegistryClient
    from builder.formats.registry.credentials import environment_credentials

    host, _, repository = name.partition("/")
    credentials, settings = environment_credentials(), context.settings
    with RegistryClient(host, credentials, settings=settings, reporter=context.output) as client:
        found = [client.manifests.head(repository, tag) for tag in tags]
    return all(one is not None and one.digest == digest for one in found)
