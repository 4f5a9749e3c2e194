"""The conda part of a lock: solved by py-rattler for the target's virtual packages, never the build host's."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from builder.config.recipe import Recipe
from builder.errors import ConfigError, FetchError, SolveError
from builder.fetch import EMBEDDED
from builder.fetch.http import shown, tls_context
from builder.lock.environment import Environment
from builder.model import LockedPackage
from builder.progress import Reporter
from builder.settings import Settings

DEFAULT_VIRTUAL = {"__unix": "0", "__linux": "5.10", "__glibc": "2.28"}
_ARCHSPEC = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
_ALIAS = "https://conda.anaconda.org"
_PROBE_SECONDS = 8.0


def virtual_packages(recipe: Recipe) -> dict[str, str]:
    """The virtual packages of the target: the recipe's over the platform's defaults."""
    return {**DEFAULT_VIRTUAL, **recipe.virtual_packages}


def channels_of(recipe: Recipe, environment: Environment) -> tuple[str, ...]:
    """The channels in order of priority.

    Raises:
        ConfigError: none are named.
    """
    channels = recipe.conda.channels or environment.channels
    if not channels:
        raise ConfigError(f"{recipe.environment_path}: no channels", "add 'channels: [conda-forge]', or conda.channels to the recipe")
    return tuple(c if "://" in c or c.startswith("/") else f"{_ALIAS}/{c}" for c in channels if c != "nodefaults")


def solve_conda(
    recipe: Recipe,
    environment: Environment,
    settings: Settings,
    *,
    previous: Sequence[LockedPackage] = (),
    exclude_newer: str | None,
    reporter: Reporter,
) -> tuple[list[LockedPackage], tuple[str, ...]]:
    """The packages, and the channels they came from.

    Args:
        previous: packages to keep where possible.

    Raises:
        SolveError: unsatisfiable; the solver's reason is in the message.
        FetchError: no channel answers, and the recipe names no fallback.
    """
    channels, embedded = _reachable(recipe, channels_of(recipe, environment), settings, reporter)
    records = _solve(recipe, environment, channels, settings, previous, exclude_newer if not embedded else None)
    packages = sorted((_locked(r, recipe.platform, embedded) for r in records), key=lambda p: p.name)
    names = tuple(EMBEDDED.rstrip("/") if embedded else c for c in channels)
    return packages, names


def _reachable(
    recipe: Recipe, channels: tuple[str, ...], settings: Settings, reporter: Reporter
) -> tuple[tuple[str, ...], Path | None]:
    """The channels, or the embedded one when none of them answers and the recipe allows it."""
    mirrored = tuple(_mirrored(c, settings) for c in channels)
    problems = [p for c in mirrored if (p := _problem(c, recipe.platform, settings))]
    if not problems:
        return mirrored, None
    if recipe.conda.fallback != "debian":
        raise FetchError(
            f"{recipe.environment_path}: {'; '.join(problems)}",
            "check the network, name a mirror (BUILDER_MIRRORS='FROM=TO'), or let the recipe fall back: conda: {fallback: debian}",
        )
    reporter.warn(f"{'; '.join(problems)}: using the embedded channel of Debian's python instead")
    from builder.channel.debian import debian_channel

    folder = debian_channel(settings, reporter)
    return (folder.as_uri(),), folder


def _mirrored(channel: str, settings: Settings) -> str:
    for source, target in settings.mirrors:
        if channel.startswith(source):
            moved = target.rstrip("/") + "/" + channel[len(source) :].lstrip("/")
            return Path(moved).as_uri() if moved.startswith("/") else moved
    return Path(channel).as_uri() if channel.startswith("/") else channel


def _problem(channel: str, platform: str, settings: Settings) -> str | None:
    """Why a channel cannot be used, or None."""
    if channel.startswith("file://"):
        folder = Path(channel.removeprefix("file://"))
        return None if (folder / "noarch").is_dir() or (folder / platform).is_dir() else f"no channel in {folder}"
    if settings.offline:
        return f"{shown(channel)} is not asked: offline"
    try:
        with httpx.Client(timeout=_PROBE_SECONDS, follow_redirects=True, verify=tls_context()) as client:
            for name in ("repodata.json.zst", "repodata.json"):
                answer = client.head(f"{channel.rstrip('/')}/noarch/{name}")
                if answer.is_success:
                    return None
    except httpx.HTTPError as e:
        return f"{shown(channel)} does not answer ({type(e).__name__})"
    return f"{shown(channel)} answers HTTP {answer.status_code}"


def _solve(
    recipe: Recipe,
    environment: Environment,
    channels: Sequence[str],
    settings: Settings,
    previous: Sequence[LockedPackage],
    exclude_newer: str | None,
) -> list[Any]:
    import rattler

    try:
        virtual = [
            rattler.GenericVirtualPackage(rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build))
            for name, version, build in _virtual(recipe)
        ]
    except Exception as e:
        raise ConfigError(f"{recipe.source}: virtual_packages: {e}", "write versions such as '12.4'") from None
    gateway = rattler.Gateway(cache_dir=settings.cache / "repodata", show_progress=False)
    platforms = [recipe.platform, "noarch"]

    async def run() -> list[Any]:
        kept: list[Any] = []
        if previous:
            wanted = {(p.name, p.version, p.build) for p in previous}
            specs = [f"{p.name}=={p.version}" for p in previous]
            found = await gateway.query([rattler.Channel(c) for c in channels], platforms, specs, recursive=False)
            kept = [r for group in found for r in group if (r.name.normalized, str(r.version), r.build) in wanted]
        return await rattler.solve(  # type: ignore[no-any-return]
            [rattler.Channel(c) for c in channels],
            list(environment.conda),
            gateway=gateway,
            platforms=platforms,
            locked_packages=kept,
            virtual_packages=virtual,
            channel_priority=rattler.ChannelPriority.Strict,
            exclude_newer=_moment(exclude_newer),
        )

    try:
        return asyncio.run(run())
    except (ConfigError, FetchError):
        raise
    except Exception as e:
        text = str(e).strip()
        if any(w in text for w in ("error sending request", "failed to fetch", "FetchRepoData", "could not be fetched")):
            raise FetchError(f"{recipe.environment_path}: a channel broke off: {text.splitlines()[0]}", "try again, or use a mirror") from None
        raise SolveError(f"{recipe.environment_path} cannot be satisfied:\n{_indented(text)}", _cure(text, recipe)) from None


def _virtual(recipe: Recipe) -> list[tuple[str, str, str]]:
    """Name, version and build string of each virtual package."""
    declared = [(name, version, "0") for name, version in virtual_packages(recipe).items()]
    return [*declared, ("__archspec", "1", _ARCHSPEC[recipe.platform])]


def _moment(date: str | None) -> datetime.datetime | None:
    """The end of a day, or a moment given in full, UTC."""
    if date is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(date)
    except ValueError:
        raise ConfigError(f"exclude_newer: {date!r} is not a date", "write it as YYYY-MM-DD") from None
    if "T" not in date and " " not in date:
        moment += datetime.timedelta(days=1)
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _cure(text: str, recipe: Recipe) -> str:
    if "__cuda" in text and "__cuda" not in recipe.virtual_packages:
        return f"a package needs CUDA: say which the target's driver has, in {recipe.source.name}: virtual_packages: {{__cuda: '12.4'}}"
    for name in ("__cuda", "__glibc", "__linux"):
        if name in text:
            return f"a package needs another {name} than {virtual_packages(recipe).get(name)} (virtual_packages in {recipe.source.name}), or ask for an older one"
    return "loosen a version in the environment file, or ask for another channel"


def _locked(record: Any, platform: str, embedded: Path | None) -> LockedPackage:
    url = str(record.url)
    if embedded is not None:
        url = EMBEDDED + "/".join(url.rsplit("/", 2)[-2:])
    dependencies: dict[str, str] = {}
    for spec in record.depends:
        name, _, version = spec.partition(" ")
        dependencies[name] = version.strip()
    return LockedPackage(
        record.name.normalized,
        str(record.version),
        "conda",
        platform,
        url,
        record.sha256.hex() if record.sha256 else None,
        record.md5.hex() if record.md5 else None,
        dependencies,
    )
