"""The conda part of a lock, solved by py-rattler for the target machine, never for this one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from builder.config.recipe import Recipe
from builder.errors import BuilderError, ConfigError, FetchError, SolveError
from builder.lock.environment import Environment
from builder.lock.inputs import channels, virtual_packages
from builder.lock.urls import expanded, unexpanded
from builder.model import DEBIAN_CHANNEL, LockedPackage
from builder.net.mirrors import mirrored_url
from builder.progress import QUIET, Reporter
from builder.redact import redact
from builder.settings import Settings
from builder.store.folders import CacheFolders

_DEFAULTS = ("https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r")
_TIME_LIMIT = timedelta(minutes=10)
#: Seconds that a channel or index has to answer in before it counts as unreachable.
PROBE_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class _Channel:
    """A channel: as the sources name it, where it is read from now, and how the lock's URLs begin. URLs end with ``/``."""

    name: str
    actual: str
    locked: str


def solve_conda(
    recipe: Recipe,
    environment: Environment,
    settings: Settings,
    *,
    newest: datetime | None = None,
    keep: Sequence[LockedPackage] = (),
    update: frozenset[str] = frozenset(),
    reporter: Reporter = QUIET,
) -> tuple[list[LockedPackage], tuple[str, ...]]:
    """The conda packages of an environment, and the channels that they come from.

    Args:
        newest: packages that were made later are not looked at.
        keep: what a lock before this one had: kept where the specs allow.
        update: names that move to the newest version possible; the others of ``keep`` move only where they must.

    Raises:
        ConfigError: a spec that cannot be read, or no channels.
        SolveError: no set of packages satisfies the specs; the solver's reason is in the message.
        FetchError: a channel does not answer, and the recipe names no fallback.
    """
    specs = _specs(environment)
    named = channels(recipe, environment)
    if not named:
        raise ConfigError(f"{environment.path}: no channels", "add 'channels: [conda-forge, nodefaults]'")
    answering = _answering(named, recipe, environment, settings, reporter)
    if answering[0].locked == DEBIAN_CHANNEL:
        newest = None  # made here and now, out of what the Debian mirror has
    try:
        records = asyncio.run(_solve(answering, specs, recipe, settings, newest, keep, update))
    except BuilderError:
        raise
    except Exception as e:
        raise _explained(e, recipe, environment, settings, answering) from None
    return [_locked(r, answering, recipe) for r in records], tuple(c.name for c in answering)


def _specs(environment: Environment) -> list[str]:
    """The specs as rattler writes them itself.

    Each constrained package stands there without its constraint too: rattler fetches only what matches a spec, so a channel whose
    versions all fall outside would be passed over as if it did not have the package, against strict channel priority.
    """
    from rattler import MatchSpec

    out = []
    for spec in environment.conda:
        try:
            parsed = MatchSpec(spec.text)
        except Exception as e:  # rattler's errors share no base class
            raise ConfigError(
                f"{spec.where}: {spec.text!r} is not a conda spec: {e}",
                "write NAME, NAME>=VERSION or NAME=VERSION=BUILD",
            ) from None
        out.append(str(parsed))
        if parsed.channel is None:
            out.append(spec.name)
    return list(dict.fromkeys(out))


# channels -------------------------------------------------------------------------------------------------------------


def _channels(named: Sequence[str], recipe: Recipe, settings: Settings) -> list[_Channel]:
    from rattler import Channel, ChannelConfig

    out = []
    for name in (n for c in named for n in (_DEFAULTS if c == "defaults" else (c,))):
        url = expanded(name, "channels")
        try:
            base = (
                Channel(url, ChannelConfig(root_dir=str(recipe.root.absolute()))).base_url.rstrip("/") + "/"
            )
        except Exception as e:
            raise ConfigError(
                f"channel {redact(name)!r} cannot be understood: {redact(str(e))}",
                "name it as conda does, or give its URL",
            ) from None
        locked = redact(name).rstrip("/") + "/" if "$" in name and "://" in name else redact(base)
        out.append(_Channel(redact(name), mirrored_url(settings, base), locked))
    return out


def _answering(
    named: Sequence[str], recipe: Recipe, environment: Environment, settings: Settings, reporter: Reporter
) -> list[_Channel]:
    """The channels, all of which answer; or the Debian channel, when none does and the recipe allows it."""
    found = _channels(named, recipe, settings)
    with ThreadPoolExecutor(len(found)) as pool:
        silent = {
            c.name: why
            for c, why in zip(
                found, pool.map(lambda c: _silent(c, recipe.platform, settings), found), strict=True
            )
            if why
        }
    if not silent:
        return found
    reasons = "; ".join(f"channel {name} does not answer ({why})" for name, why in silent.items())
    if len(silent) == len(found) and recipe.conda.fallback == "debian":
        if recipe.platform != "linux-64":
            raise FetchError(
                reasons,
                f"the Debian channel is for linux-64, this target for {recipe.platform}: reach a channel, or mirror it",
            )
        from builder.channel.debian import current_channel

        reporter.warn(f"{reasons}: the Debian channel of Debian's python takes over")
        return [
            _Channel(
                DEBIAN_CHANNEL.rstrip("/"),
                current_channel(settings, reporter).absolute().as_uri().rstrip("/") + "/",
                DEBIAN_CHANNEL,
            )
        ]
    hint = "check the network, or mirror it (BUILDER_MIRRORS='FROM=TO')"
    if recipe.conda.fallback is None:
        hint += (
            f", or allow the Debian channel in {recipe.source or 'the recipe'}: conda: {{fallback: debian}}"
        )
    raise FetchError(reasons, hint)


def _silent(channel: _Channel, platform: str, settings: Settings) -> str:
    """Why a channel cannot be used now; empty when it can."""
    if channel.actual.startswith("file:"):
        folder = Path(unquote(urlsplit(channel.actual).path))
        if any((folder / s / "repodata.json").is_file() for s in (platform, "noarch")):
            return ""
        return f"no repodata.json in {folder / platform} or {folder / 'noarch'}"
    if settings.offline:
        # what an earlier run fetched still serves; asking rattler for nothing but its cache tells
        return (
            ""
            if asyncio.run(_cached(channel, platform, settings))
            else "offline, and nothing of it is cached"
        )
    import httpx

    from builder.net.http import tls_context

    why = "no answer"
    with httpx.Client(timeout=PROBE_TIMEOUT, follow_redirects=True, verify=tls_context()) as client:
        for file in ("noarch/repodata.json", f"{platform}/repodata.json", "noarch/repodata.json.zst"):
            try:
                answer = client.head(channel.actual + file)
            except httpx.HTTPError as e:
                return redact(str(e)) or type(e).__name__
            if answer.is_success:
                return ""
            why = f"HTTP {answer.status_code} for {file}"
    return why


def _gateway(settings: Settings) -> Any:
    from rattler import Gateway, SourceConfig

    action: Any = "force-cache-only" if settings.offline else "cache-or-fetch"
    return Gateway(
        cache_dir=CacheFolders(settings.cache).repodata, default_config=SourceConfig(cache_action=action)
    )


async def _cached(channel: _Channel, platform: str, settings: Settings) -> bool:
    from rattler import Channel

    try:
        await _gateway(settings).query(
            [Channel(channel.actual)], [platform, "noarch"], ["python"], recursive=False
        )
    except Exception:  # rattler's errors share no base class
        return False
    return True


# solving --------------------------------------------------------------------------------------------------------------


async def _solve(
    found: Sequence[_Channel],
    specs: Sequence[str],
    recipe: Recipe,
    settings: Settings,
    newest: datetime | None,
    keep: Sequence[LockedPackage],
    update: frozenset[str],
) -> list[Any]:
    from rattler import Channel, ChannelPriority, solve

    gateway = _gateway(settings)
    sources = [Channel(c.actual) for c in found]
    platforms: Any = [recipe.platform, "noarch"]

    async def run(locked: Sequence[Any] = (), constraints: Sequence[str] = ()) -> list[Any]:
        return await solve(
            sources,
            specs,
            gateway=gateway,
            platforms=platforms,
            locked_packages=locked,
            constraints=constraints,
            virtual_packages=_virtual(recipe),
            channel_priority=ChannelPriority.Strict,
            exclude_newer=newest,
            timeout=_TIME_LIMIT,
        )

    if not keep:
        return await run()
    known = await gateway.query(
        sources, platforms, sorted({p.name for p in keep if p.name not in update}), recursive=False
    )
    hashes = {h for p in keep for h in (p.sha256, p.md5) if h}
    locked = [r for records in known for r in records if _hex(r.sha256) in hashes or _hex(r.md5) in hashes]
    if not update:
        return await run(locked)
    # Where a free solve takes the named packages is where they go; everything else then stays as close as it can.
    goals = [r for r in await run() if r.name.normalized in update]
    return await run(locked, [f"{r.name.normalized} =={r.version} {r.build}" for r in goals])


def _virtual(recipe: Recipe) -> list[Any]:
    from rattler import BuildString, GenericVirtualPackage, PackageName, Version

    out = []
    for name, value in virtual_packages(recipe).items():
        version, _, build = value.partition("=")
        try:
            out.append(GenericVirtualPackage(PackageName(name), Version(version), BuildString(build or "0")))
        except Exception as e:
            raise ConfigError(
                f"{recipe.source}: virtual_packages.{name}: {value!r}: {e}", 'write a version, such as "12.4"'
            ) from None
    return out


def _explained(
    error: Exception, recipe: Recipe, environment: Environment, settings: Settings, found: Sequence[_Channel]
) -> BuilderError:
    from rattler.exceptions import SolverError

    text = redact(unexpanded(str(error), (c.name for c in found))).strip()
    if not isinstance(error, SolverError):
        where = ", ".join(c.name for c in found)
        return FetchError(f"channels {where}: {text}", "check the network and the channels, then run again")
    reason = text.removeprefix("Cannot solve the request because of: ")
    declared = virtual_packages(recipe)
    cures = []
    for name in dict.fromkeys(re.findall(r"(?<![\w.-])(__\w+)", reason)):
        if name not in declared:
            example = {"__cuda": "12.4"}.get(name, "VERSION")
            cures.append(
                f'{name} is not declared: if the target has it, add to {recipe.source}: virtual_packages: {{{name}: "{example}"}}'
            )
        else:
            cures.append(f"the target has {name} {declared[name]} (virtual_packages in {recipe.source})")
    hint = (
        "; ".join(cures) or "loosen a spec in the environment file, or add a channel that has what is missing"
    )
    return SolveError(
        f"{environment.path}: nothing satisfies the environment for {recipe.platform}:\n{reason}", hint
    )


def _locked(record: Any, found: Sequence[_Channel], recipe: Recipe) -> LockedPackage:
    url = record.url
    for channel in found:
        if url.startswith(channel.actual):
            url = channel.locked + url[len(channel.actual) :]
            break
    name = record.name.normalized
    sha256, md5 = _hex(record.sha256), _hex(record.md5)
    if not sha256 and not md5:
        raise SolveError(
            f"{redact(url)}: its channel gives no hash",
            "index the channel again (rattler-index, conda index)",
        )
    return LockedPackage(
        name,
        str(record.version),
        "conda",
        recipe.platform,
        redact(url),
        sha256,
        md5,
        _dependencies(record.depends),
    )


def _dependencies(depends: Sequence[str]) -> Mapping[str, str]:
    out: dict[str, str] = {}
    for text in depends:
        name, _, spec = text.strip().partition(" ")
        spec = spec.strip()
        out[name] = (
            f"{out[name]},{spec}"
            if out.get(name) and spec and " " not in out[name] + spec
            else out.get(name) or spec
        )
    return out


def _hex(value: bytes | None) -> str | None:
    return value.hex() if value else None
