"""The conda channels of an environment: their URLs, and whether they answer."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.core.datafiles import table
from builder.core.errors import ConfigError
from builder.core.limits import small_files
from builder.core.parallel import in_parallel
from builder.core.redact import redact
from builder.core.settings import Settings
from builder.core.store.folders import CacheFolders
from builder.core.store.temporary import temporary_folder
from builder.formats.net.mirrors import mirrored_url, moved_back
from builder.formats.net.trust import trusted
from builder.formats.net.urlvariables import expanded

from .condaspec import parsed_spec
from .config.yamlfile import load_yaml
from .inputs import channels
from .request import SolveRequest
from .urls import named_url, public, unexpanded

log = logging.getLogger(__name__)

#: Where the channels ``pkgs/NAME`` are, and those that conda means by ``defaults``.
_ANACONDA = "https://repo.anaconda.com"
_DEFAULTS = (f"{_ANACONDA}/pkgs/main", f"{_ANACONDA}/pkgs/r")
#: For rattler: only the channels that the user names, and none that these name in their index (CEP 42).
ONLY: Mapping[str, Any] = {"channel_relations": "disabled"}


@dataclass(frozen=True, slots=True)
class SolverChannel:
    """One channel under its three names. The URLs end with ``/``."""

    name: str
    """As the recipe or the environment names it, without credentials."""
    actual: str
    """The URL that is read: a mirror, with the values of variables."""
    locked: str
    """The beginning of URLs in the lock: the public URL, with the names of variables."""


def named_channels(request: SolveRequest) -> list[SolverChannel]:
    """Return the channels of an environment, highest priority first.

    Those that only specs name are below the others, as conda adds them.

    Raises:
        ConfigError: no channels, or a channel's name is not valid.
    """
    named = channels(request.recipe, request.environment)
    if not named:
        hint = "add 'channels: [conda-forge, nodefaults]'"
        raise ConfigError(f"{request.environment.path}: names no channels", hint)
    found = [channel for name in named for channel in solver_channels(name, request)]
    for spec in request.environment.conda:
        name, _ = parsed_spec(spec)
        if name and not meant(name, found, request):
            found += solver_channels(name, request)
            where = f"{spec.where}: channel {redact(name)}"
            request.reporter.note(f"{where} is not below channels: it is added last")
    if note := terms_note(named):
        request.reporter.note(note)
    where = "the cache" if request.settings.offline else "its server, or the cache if unchanged"
    log.info("channels %s are read from %s", ", ".join(c.locked for c in found), where)
    return found


def probe_channels(request: SolveRequest) -> tuple[list[SolverChannel], list[str]]:
    """Return the channels of an environment that rattler can read, and a message for each other one.

    A solve reads them anyway, and needs no probe.

    Raises:
        ConfigError: see :func:`named_channels`.
    """
    found, reader = named_channels(request), gateway(request.settings)
    with small_files():
        results = in_parallel(lambda one: _problem(one, reader, request), found, len(found))
    return [c for c, why in results if not why], [why for _, why in results if why]


def unreadable(error: Exception, found: Sequence[SolverChannel], request: SolveRequest) -> str:
    """Return the message for rattler's error about one of the channels, with the line that names it."""
    text = redact(unexpanded(str(error), (channel.name for channel in found))).strip()
    named = sorted((c.actual, c.name) for c in found if c.actual in str(error))
    names = named[-1][1] if named else ", ".join(channel.name for channel in found)
    why = text.rpartition("Caused by: ")[2]
    why = re.sub("failed to lookup address information.*", "unknown host name", why)
    why = why.replace("no usable", "offline, and the channel is not in the cache: no")
    return f"{_channel_place(names, request)} does not answer ({why})"


def _channel_place(names: str, request: SolveRequest) -> str:
    """Return ``channel NAME``, after file and line of the file that names it."""
    words = (names, "defaults") if names in _DEFAULTS else (names,)
    for path in filter(Path.is_file, (request.recipe.source, request.environment.path)):
        with suppress(ConfigError):
            file = load_yaml(path)
            places = (
                at for at, text in file.texts.items() if "channels" in at and redact(text) in words
            )
            if at := next(places, None):
                of = f"{redact(file.texts[at])} ({names})" if len(words) > 1 else names
                return f"{file.where(*at)}: channel {of}"
    return f"channel {names}"


def terms_note(names: Iterable[str]) -> str:
    """Return the note about the terms of use of the first channel that has some; empty if none has."""
    terms = table(__file__, "terms.yaml").items()
    found = ((name, note) for name in names for at, note in terms if re.fullmatch(at, name))
    return next((note.format(redact(name)) for name, note in found), "")


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


def stored_url(url: str, found: Sequence[SolverChannel], settings: Settings) -> str:
    """Return the URL of a package of the channels as a lock stores it.

    It may be outside of its channel (CEP 15).

    Raises:
        SolveError: see :func:`builder.lock.urls.public`.
    """
    inside = moved_back(url, ((channel.actual, channel.locked) for channel in found))
    return public(inside) if inside else named_url(url, settings, [c.name for c in found])


def _problem(channel: SolverChannel, reader: Any, request: SolveRequest) -> str:
    """Return the reason why rattler cannot read a channel now; empty if it can."""
    where = places(request, [channel])
    try:
        asyncio.run(reader.query(*where, ["python"], recursive=False, **ONLY))
    except Exception as e:  # rattler's errors share no base class
        return unreadable(e, [channel], request)
    return ""


def places(request: SolveRequest, found: Sequence[SolverChannel]) -> tuple[list[Any], Any]:
    """Return channels, and the subdirs of the target, for rattler."""
    from rattler import Channel

    return [Channel(channel.actual) for channel in found], [request.recipe.platform, "noarch"]


def gateway(settings: Settings) -> Any:
    """Return rattler's reader of channel indexes, with builder's cache; offline only the cache.

    py-rattler 0.28 waits for a file without end, unless it has a limit (15 minutes). It trusts
    SSL_CERT_FILE as it is when a client is made.
    """
    from rattler import Client, Gateway, SourceConfig

    action: Any = "force-cache-only" if settings.offline else "cache-or-fetch"
    config, cache = SourceConfig(cache_action=action), CacheFolders(settings.cache).repodata
    with temporary_folder(settings.tmpdir, 0o700) as folder, trusted(folder):
        client = Client(timeout=900)
    return Gateway(cache_dir=cache, default_config=config, client=client)
