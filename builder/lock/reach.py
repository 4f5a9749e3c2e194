"""Servers that a lock needs and that do not answer: one error names all of them, and what to type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from builder.config.recipe import Recipe
from builder.errors import BuilderError, FetchError, RegistryError
from builder.lock.environment import recipe_environment
from builder.lock.request import SolveRequest
from builder.redact import redact
from builder.settings import Settings


@dataclass(frozen=True, slots=True)
class Silent:
    """A server that does not answer."""

    what: str
    """For the message: ``base docker://...``, ``channel conda-forge``, ``package index https://...``."""
    reason: str
    source: str
    """FROM in ``BUILDER_MIRRORS``; empty: a mirror cannot take its place."""
    target: str
    """A form of TO."""


@contextmanager
def all_silent_named(recipe: Recipe, settings: Settings) -> Iterator[None]:
    """Around a lock: if a server does not answer, the error names all of them.

    Raises:
        FetchError, RegistryError: see :func:`with_all_silent`.
    """
    try:
        yield
    except (FetchError, RegistryError) as e:
        raise with_all_silent(e, recipe, settings) from e


def with_all_silent(error: BuilderError, recipe: Recipe, settings: Settings) -> BuilderError:
    """Returns the error of a lock with everything else that does not answer either.

    Without this, a user without a network would see the base first, and the channel and the indexes one by
    one after each repair. An error that is not about an unreachable server is returned as it is.

    Args:
        error: why the lock failed.
        recipe: the target.
        settings: mirrors, and whether to work offline.
    """
    is_base = isinstance(error, RegistryError)
    if isinstance(error, RegistryError):
        if error.status is not None:  # the registry answered
            return error
    elif not isinstance(error, FetchError):
        return error
    try:
        found = silent_sources(recipe, settings)
    except BuilderError:
        return error
    if is_base:
        found.insert(0, _silent_base(recipe, error))
    elif not any(_is_named(one, error) for one in found):  # the source of a package, for example
        found.insert(0, Silent("", error.message, "", ""))
    if len(found) < 2:
        return error
    lines = [f"{one.what}: {one.reason}" if one.what else one.reason for one in found]
    message = f"to lock {recipe.name}, builder needs what does not answer here:\n    " + "\n    ".join(lines)
    kind = RegistryError if is_base else FetchError
    return kind(message, _hint(found, settings))


def silent_sources(recipe: Recipe, settings: Settings) -> list[Silent]:
    """Returns the channels and package indexes of a target that do not answer and have no fallback.

    Raises:
        ConfigError: the environment, or the name of a channel or index, is not valid.
    """
    # imported here: with the HTTP client, which most commands do not need
    from builder.lock.channels import probe_channels
    from builder.lock.indexes import mirrored_indexes, probe_indexes

    request = SolveRequest(recipe, recipe_environment(recipe), settings)
    found = []
    if not recipe.uses_base_python and not recipe.lock and recipe.conda.fallback is None:
        for channel, why in probe_channels(request)[1]:
            url = channel.locked.rstrip("/")
            found.append(Silent(f"channel {channel.name}", why, url, "URL-OR-FOLDER"))
    if (request.environment.pip or request.environment.sources) and recipe.pip.fallback is None:
        indexes = mirrored_indexes(request)
        for actual, why in probe_indexes(request, list(indexes)).items():
            url = redact(indexes[actual])
            origin = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}" if url else ""
            found.append(Silent(f"package index {url or redact(actual)}", why, origin, "URL-OR-FOLDER"))
    return found


def _silent_base(recipe: Recipe, error: BuilderError) -> Silent:
    registry = recipe.base.removeprefix("docker://").partition("/")[0]
    is_named = "." in registry or ":" in registry
    source = f"docker://{registry}" if is_named else "docker://docker.io"
    return Silent(f"base {recipe.base}", error.message, source, "docker://REGISTRY")


def _is_named(one: Silent, error: BuilderError) -> bool:
    """Whether an error is about this server."""
    return one.what in error.message or (bool(one.source) and one.source in error.message)


def _hint(found: Sequence[Silent], settings: Settings) -> str:
    pairs = dict.fromkeys(f"{one.source}={one.target}" for one in found if one.source)
    first = "unset BUILDER_OFFLINE" if settings.offline else "check the network"
    mirrors = f"export BUILDER_MIRRORS='{' '.join(pairs)}'"
    return (
        f"{first}; or name copies that you can reach: {mirrors}; or lock and build where they answer, and "
        "bring the lock and the cache (docs/offline.md)"
    )
