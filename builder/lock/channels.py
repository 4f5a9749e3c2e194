"""The conda channels of an environment: their URLs, and whether they answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from builder.core.errors import ConfigError, FetchError
from builder.core.parallel import in_parallel
from builder.core.redact import redact
from builder.core.settings import Settings
from builder.core.store.folders import CacheFolders
from builder.formats.net.mirrors import mirrored_url
from builder.formats.net.urlvariables import expanded

from .condaspec import split_channel
from .inputs import channels
from .request import SolveRequest

log = logging.getLogger(__name__)

#: Where the channels ``pkgs/NAME`` are, and those that conda means by ``defaults``.
_ANACONDA = "https://repo.anaconda.com"
_DEFAULTS = (f"{_ANACONDA}/pkgs/main", f"{_ANACONDA}/pkgs/r")


@dataclass(frozen=True, slots=True)
class SolverChannel:
    """One channel under its three names. The URLs end with ``/``."""

    name: str
    """As the recipe or the environment names it, without credentials."""
    actual: str
    """The URL that is read: a mirror, with the values of variables."""
    locked: str
    """The beginning of URLs in the lock: the public URL, with the names of variables."""


def reachable_channels(request: SolveRequest) -> list[SolverChannel]:
    """Return the channels of an environment, highest priority first.

    Raises:
        ConfigError: no channels, or a channel's name is not valid.
        FetchError: a channel does not answer.
    """
    answering, unreachable = probe_channels(request)
    if not unreachable:
        return answering
    raise FetchError(
        "; ".join(unreachable),
        "check the name and the network, or set a mirror: BUILDER_MIRRORS='FROM=TO' (TO may be a folder)",
    )


def probe_channels(request: SolveRequest) -> tuple[list[SolverChannel], list[str]]:
    """Return the channels of an environment that answer, and a message for each other one.

    Raises:
        ConfigError: no channels, or a channel's name is not valid.
    """
    named = channels(request.recipe, request.environment)
    if not named:
        hint = "add 'channels: [conda-forge, nodefaults]'"
        raise ConfigError(f"{request.environment.path}: names no channels", hint)
    listed = [channel for name in named for channel in solver_channels(name, request)]
    found = _with_spec_channels(listed, request)
    results = in_parallel(lambda channel: _problem(channel, request), found, len(found))
    where = "the cache" if request.settings.offline else "its server, or the cache if unchanged"
    log.info("channels %s are read from %s", ", ".join(c.locked for c in found), where)
    unreachable = [f"channel {c.name} does not answer ({why})" for c, why in results if why]
    return [c for c, why in results if not why], unreachable


def solver_channels(name: str, request: SolveRequest) -> list[SolverChannel]:
    """Return the channels that a name or URL stands for: one, or several for ``defaults``.

    Raises:
        ConfigError: it is not valid, or a variable in it is not set.
    """
    if name == "defaults":
        return [_channel(url, url, request) for url in _DEFAULTS]
    url = f"{_ANACONDA}/{name}" if name.startswith("pkgs/") else expanded(name, "channels")
    return [_channel(name, url, request)]


def meant(text: str, known: Sequence[SolverChannel], request: SolveRequest) -> list[SolverChannel]:
    """Return the channel that a spec names, of those that are read; several for ``defaults``.

    py-rattler compares a spec's channel with the URL from which an index was read, behind a mirror
    with the mirror's. So a name is resolved here, like the names below ``channels:``.

    As in conda, a name also stands for a channel that is listed by a URL which ends with that name.

    Raises:
        ConfigError: the text is not the name of a channel.
    """
    urls = {channel.actual for channel in solver_channels(text, request)}
    found = [channel for channel in known if channel.actual in urls]
    if not found and "://" not in text:
        end = f"/{text.strip('/')}/"
        found = [channel for channel in known if channel.locked.endswith(end)]
    return found


def _with_spec_channels(
    listed: Sequence[SolverChannel], request: SolveRequest
) -> list[SolverChannel]:
    """Return the listed channels, and below them those that only specs name, as conda adds them.

    Raises:
        ConfigError: a spec's channel is not the name of a channel.
    """
    found = list(listed)
    for spec in request.environment.conda:
        named, _ = split_channel(spec.text)
        if named and not meant(named, found, request):
            found += solver_channels(named, request)
            where = f"{spec.where}: channel {redact(named)}"
            request.reporter.note(f"{where} is not below channels: it is added last")
    return found


def _channel(name: str, url: str, request: SolveRequest) -> SolverChannel:
    from rattler import Channel, ChannelConfig

    config = ChannelConfig(root_dir=str(request.recipe.root.absolute()))
    try:
        base = Channel(url, config).base_url.rstrip("/") + "/"
    except Exception as e:  # rattler's errors share no base class
        raise ConfigError(
            f"channel {redact(name)!r} is not valid: {redact(str(e))}",
            "write the name of a channel (conda-forge), or its URL",
        ) from None
    has_variable = "$" in name and "://" in name
    locked = redact(name).rstrip("/") + "/" if has_variable else redact(base)
    return SolverChannel(redact(name), mirrored_url(request.settings, base), locked)


def _problem(channel: SolverChannel, request: SolveRequest) -> str:
    """Return the reason why a channel cannot be used now; empty if it can."""
    platform, settings = request.recipe.platform, request.settings
    if channel.actual.startswith("file:"):
        folder = Path(unquote(urlsplit(channel.actual).path))
        indexes = [folder / subdir / "repodata.json" for subdir in (platform, "noarch")]
        if any(index.is_file() for index in indexes):
            return ""
        return f"no repodata.json in {folder / platform} or {folder / 'noarch'}"
    if settings.offline:
        is_cached = asyncio.run(_is_cached(channel, platform, settings))
        return "" if is_cached else "offline, and the channel is not in the cache"
    from builder.formats.net.http import probe  # httpx is slow to import

    problem = ""
    for file in ("noarch/repodata.json", f"{platform}/repodata.json", "noarch/repodata.json.zst"):
        problem = probe(channel.actual + file)
        if not problem.startswith("HTTP"):
            return problem
    return f"{problem} for {file}"


async def _is_cached(channel: SolverChannel, platform: str, settings: Settings) -> bool:
    """Return whether rattler can read the channel from its cache, without the network."""
    from rattler import Channel

    try:
        where: Any = ([Channel(channel.actual)], [platform, "noarch"])
        await gateway(settings).query(*where, ["python"], recursive=False)
    except Exception:  # rattler's errors share no base class
        return False
    return True


def gateway(settings: Settings) -> Any:
    """Return rattler's reader of channel indexes, with builder's cache; offline only the cache."""
    from rattler import Gateway, SourceConfig

    action: Any = "force-cache-only" if settings.offline else "cache-or-fetch"
    cache = CacheFolders(settings.cache).repodata
    return Gateway(cache_dir=cache, default_config=SourceConfig(cache_action=action))
