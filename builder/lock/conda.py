"""Solves the conda packages of a lock with py-rattler, for the target and not for this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from builder.core.errors import BuilderError, ConfigError, FetchError, SolveError
from builder.core.limits import small_files
from builder.core.model import LockedPackage
from builder.core.redact import redact
from builder.core.store.files import space_errors
from builder.formats.net.trust import network_hint

from .channels import ONLY, SolverChannel, gateway, meant, named_channels, stored_url, unreadable
from .condaspec import parsed_spec
from .hints import conda_hint, line_of_missing
from .inputs import virtual_packages
from .request import SolveRequest
from .urls import unexpanded

_TIME_LIMIT = timedelta(minutes=10)


def solve_conda(request: SolveRequest) -> tuple[list[LockedPackage], tuple[str, ...]]:
    """Return the conda packages of an environment, and the names of their channels.

    Raises:
        ConfigError: a spec is not valid, or there are no channels.
        SolveError: no set of packages satisfies the specs; the message contains the solver's
            reason.
        FetchError: a channel does not answer.
    """
    channels = named_channels(request)
    try:
        with space_errors(request.settings.cache):
            solve = _Solve(request, channels)
            with small_files():
                records = asyncio.run(solve.run())
    except BuilderError:
        raise
    except Exception as e:  # rattler's errors share no base class
        raise _explained(e, request, channels) from None
    _check_subdirs(records, request)
    packages = [_locked(record, channels, request) for record in records]
    return packages, tuple(channel.name for channel in channels)


class _Solve:
    """One call of the solver, or two where named packages are updated."""

    def __init__(self, request: SolveRequest, channels: Sequence[SolverChannel]) -> None:
        from rattler import Channel

        self._request = request
        self._named = channels
        self._gateway = gateway(request.settings)
        self._channels = [Channel(channel.actual) for channel in channels]
        self._platforms: Any = [request.recipe.platform, "noarch"]
        self._specs = self._all_specs()

    async def run(self) -> list[Any]:
        """Return the records of all packages of the environment."""
        request = self._request
        if not request.previous:
            return await self._solve()
        locked = await self._locked_records()
        if not request.update:
            return await self._solve(locked)
        # First a free solve: it decides the new versions of the packages to update. Then a second
        # one with these versions fixed, in which every other package stays as close as possible to
        # the previous lock.
        free = await self._solve()
        updated = [record for record in free if record.name.normalized in request.update]
        fixed = [f"{r.name.normalized} =={r.version} {r.build}" for r in updated]
        return await self._solve(locked, fixed)

    def _all_specs(self) -> list[str]:
        """Return the specs in rattler's form, and the bare name of each one without a channel.

        rattler fetches only the records that match a spec. Without the bare name, a channel whose
        versions are all outside the constraint would count as one that does not have the package,
        and the next channel would be used: against strict channel priority.
        """
        specs = []
        for spec in self._request.environment.conda:
            named, rest = parsed_spec(spec)
            if named:
                channel = meant(named, self._named, self._request)[0]
                specs.append(f"{channel.actual.rstrip('/')}::{rest}")
            else:
                specs += [str(rest), *([] if rest.condition else [spec.name])]
        return list(dict.fromkeys(specs))

    async def _locked_records(self) -> list[Any]:
        """Return the channels' records of the previous lock's packages that are not updated."""
        request = self._request
        names = sorted({p.name for p in request.previous if p.name not in request.update})
        where = (self._channels, self._platforms)
        known = await self._gateway.query(*where, names, recursive=False, **ONLY)
        hashes = {value for p in request.previous for value in (p.sha256, p.md5) if value}
        records = [record for group in known for record in group]
        return [r for r in records if _hex(r.sha256) in hashes or _hex(r.md5) in hashes]

    async def _solve(
        self, locked: Sequence[Any] = (), constraints: Sequence[str] = ()
    ) -> list[Any]:
        from rattler import ChannelPriority, solve

        environment = self._request.environment
        return await solve(
            self._channels,
            self._specs,
            gateway=self._gateway,
            platforms=self._platforms,
            locked_packages=locked,
            constraints=[*constraints, *(str(parsed_spec(s)[1]) for s in environment.limits)],
            virtual_packages=_virtual(self._request),
            channel_priority=ChannelPriority.Strict,
            exclude_newer=self._request.newest,
            # as in pixi, whose file has this date
            timestamp_policy="allow-missing" if environment.exclude_newer else "require-timestamp",
            timeout=_TIME_LIMIT,
            **ONLY,
        )


def _virtual(request: SolveRequest) -> list[Any]:
    """Return the target's virtual packages for rattler."""
    from rattler import BuildString, GenericVirtualPackage, PackageName, Version

    found = []
    for name, value in virtual_packages(request.recipe).items():
        version, _, build = value.partition("=")
        try:
            values = PackageName(name), Version(version), BuildString(build or "0")
        except Exception as e:  # rattler's errors share no base class
            raise ConfigError(
                f"{request.recipe.source}: virtual_packages.{name}: {value!r} is not a version: {e}",
                'write a version, such as "12.4"',
            ) from None
        found.append(GenericVirtualPackage(*values))
    return found


def _explained(
    error: Exception, request: SolveRequest, channels: Sequence[SolverChannel]
) -> BuilderError:
    """Return rattler's error as one of builder's, with what the user can change."""
    from rattler.exceptions import SolverError

    if not isinstance(error, SolverError):
        problem = unreadable(error, channels, request)
        return FetchError(problem, network_hint(str(error)))
    text = redact(unexpanded(str(error), (channel.name for channel in channels))).strip()
    reason = text.removeprefix("Cannot solve the request because of: ")
    return SolveError(
        f"{line_of_missing(reason, request)}: no set of packages satisfies the environment "
        f"for {request.recipe.platform}:\n{reason}",
        conda_hint(reason, request, channels),
    )


def _check_subdirs(records: Sequence[Any], request: SolveRequest) -> None:
    """Raise SolveError for a package of another subdir than its spec's: rattler 0.28 ignores it."""
    found = {record.name.normalized: record.subdir for record in records}
    for spec in request.environment.conda:
        wanted = parsed_spec(spec)[1].subdir
        if wanted and found.get(spec.name, wanted) != wanted:
            problem = f"{spec.where}: {redact(spec.text)}: found in {found[spec.name]} only"
            raise SolveError(problem, "name version and build, too: NAME=VERSION=BUILD")


def _locked(record: Any, channels: Sequence[SolverChannel], request: SolveRequest) -> LockedPackage:
    """Return a rattler record as a package of the lock, with its public URL."""
    url = stored_url(record.url, channels, request.settings)
    sha256, md5 = _hex(record.sha256), _hex(record.md5)
    if not sha256 and not md5:
        hint = "index the channel again (rattler-index or conda index)"
        raise SolveError(f"{url}: the index of its channel has no hash for it", hint)
    return LockedPackage(
        record.name.normalized,
        str(record.version),
        "conda",
        request.recipe.platform,
        url,
        sha256,
        md5,
        conda_dependencies(record.depends),
    )


def conda_dependencies(depends: Sequence[str]) -> Mapping[str, str]:
    """Return conda's list of dependencies as a mapping of names to version specs.

    rattler splits a text: ``aaa[when="python>=3.10"]``, ``u>=2``. A condition is left out, as in
    rattler's order of packages.

    Two specs for one name are joined with a comma. Where one of them has a build string (``3.11.*
    *_cp311``), which cannot be joined, the first one stays.
    """
    from rattler import PackageName

    found: dict[str, str] = {}
    for text in map(str.strip, depends):
        name = PackageName.from_matchspec_str_unchecked(text).source
        spec = text[len(name) :].partition("[")[0].strip()
        earlier = found.get(name, "")
        if earlier and spec and " " not in earlier + spec:
            found[name] = f"{earlier},{spec}"
        else:
            found[name] = earlier or spec
    return found


def _hex(value: bytes | None) -> str | None:
    return value.hex() if value else None
