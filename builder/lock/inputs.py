"""The inputs of a lock: read once, and as text in its metadata, so that builder can report why it
is stale.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from textwrap import shorten
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.core.datafiles import table
from builder.core.errors import ConfigError, LockError
from builder.core.markers import ARCHITECTURES, applies
from builder.core.model import Lock, canonical_json
from builder.core.redact import redact
from builder.core.settings import expand_home
from builder.formats.net.pipconfig import pip_configuration
from builder.formats.net.urlvariables import UrlVariables

from .config.recipe import Recipe
from .environment import read_any_environment
from .file import lock_bytes
from .groups import chosen_groups, is_own
from .names import pypi_name
from .record import prefixed
from .spec import Environment, SourceSpec, Spec
from .urls import recipe_urls

#: The folder of a project into which builder puts the wheels that it built, for other machines.
WHEELS_FOLDER = "wheels"
#: The value of exclude_newer for the start of the month in which is locked.
MONTH = "month"
#: The inputs that the conda packages depend on.
CONDA_INPUTS = ("conda", "limits", "channels", "virtual-packages", "exclude-newer", "python")

#: The target's virtual packages if neither recipe nor base has them: those of a machine like RHEL 8,
#: never those of the build host.
_DEFAULTS = {"__unix": "0", "__linux": "4.18", "__glibc": "2.28"}
#: ``debian:SUITE``, or an image in a registry: ``docker://docker.io/library/ubuntu:24.04``.
_KNOWN_BASE = re.compile(r"(?:docker://(?:[^@]*/)?)?(?:debian|ubuntu):([a-z]+|\d\d(?:\.04)?)")


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a user writes for a target: its recipe, and the content of its environment file.

    A command reads it once per target, so what it calls up to date is what it builds. What builder
    itself writes is no part of it, and is read when it is needed: the lock, and the project's
    folder of wheels.
    """

    recipe: Recipe
    environment: Environment
    """It is empty if the recipe has only a lock."""
    base_glibc: str = ""
    """The version that was found in the base; empty if the recipe or the base's name tells it."""

    @classmethod
    def read(cls, recipe: Recipe) -> Inputs:
        """Read the environment file of a recipe.

        Raises:
            ConfigError: see :func:`builder.lock.environment.read_environment`; or the recipe does
                not set a variable of the file.
        """
        path = recipe.environment_path
        if not path.exists():
            return cls(recipe, Environment(path))
        groups, pixi = () if recipe.lock else recipe.groups, recipe.lock_environment
        found = read_any_environment(path, recipe.platform, recipe.root, groups, pixi)
        declared = {"env": found.variables, "virtual_packages": found.virtual_packages}
        for key, pairs in declared.items():
            own = getattr(recipe, key)
            if unset := {name: value for name, value in pairs.items() if name not in own}:
                hint = f"write into {recipe.source}: {key}: {json.dumps({**own, **unset})}"
                what = key.replace("env", "variables")
                problem = f"{what}: the recipe does not set {', '.join(unset)}"
                raise ConfigError(f"{path}: {problem}", hint)
        return cls(recipe, found)

    def on_base(self, glibc: str) -> Inputs:
        """Return the inputs with the version of glibc in the base, unless the recipe declares one."""
        if not glibc or "__glibc" in self.recipe.virtual_packages:
            return self
        virtual = {**self.recipe.virtual_packages, "__glibc": glibc}
        recipe = self.recipe.model_copy(update={"virtual_packages": virtual})
        return replace(self, recipe=recipe, base_glibc=glibc)

    @property
    def find_links(self) -> tuple[str, ...]:
        """The folders (absolute) and URLs in which builder looks for wheels.

        The environment file and the recipe name them; and there is the project's folder with
        wheels that builder built, as it is now.
        """
        recipe, environment = self.recipe, self.environment
        links = [_absolute(link, environment.path.parent) for link in environment.find_links]
        links += [_absolute(link, recipe.root) for link in recipe.pip.find_links]
        own = recipe.root.absolute() / WHEELS_FOLDER
        if own.is_dir():  # a wheel of another target with the same name is in a folder below
            links += [str(folder) for folder in (own, *sorted(own.iterdir())) if folder.is_dir()]
        return tuple(links)

    @property
    def url_variables(self) -> UrlVariables:
        """The variables that URLs of the lock may contain, from recipe, environment and pip."""
        pip, own = pip_configuration(), self.environment
        urls = [*recipe_urls(self.recipe), pip.index_url, *pip.extra_index_urls, *pip.find_links]
        urls += [*own.channels, own.index_url, *own.extra_index_urls, *own.find_links]
        urls += [source.url for source in own.sources] + [pin.url for pin in own.pins]
        return UrlVariables(tuple(url for url in urls if url and "$" in url and "://" in url))


def _absolute(link: str, folder: Path) -> str:
    """Return a link of find-links; its variables are those that are set, and not builder's own."""
    home = link if "://" in link else str(expand_home(link))
    address = UrlVariables((home,)).expanded(home)
    # a variable may contain the whole URL
    return address if "://" in address else str((folder / address).absolute())


def virtual_packages(recipe: Recipe) -> dict[str, str]:
    """Return the target's virtual packages, by name: ``VERSION`` or ``VERSION=BUILD``.

    They are the recipe's, which has the glibc of its base too (:meth:`Inputs.on_base`); else
    defaults.
    """
    values = {**_DEFAULTS, "__archspec": f"1={ARCHITECTURES[recipe.platform]}"}
    values["__glibc"] = known_glibc(recipe) or values["__glibc"]
    return {**values, **recipe.virtual_packages}


def known_glibc(recipe: Recipe) -> str:
    """Return ``__glibc`` of the recipe, or that of a base whose name tells it; empty if unknown."""
    base = _KNOWN_BASE.match(recipe.base)
    known: dict[str, list[str]] = table(__file__, "inputs.yaml")["glibc"]
    of_base = (version for version, names in known.items() if base and base[1] in names)
    return recipe.virtual_packages.get("__glibc") or next(of_base, "")


def glibc_of(lock: Lock) -> str:
    """Return the glibc that was found in the base when a lock was made; empty if it was not read."""
    return lock.record.inputs.get("base-glibc", "")


def channels(recipe: Recipe, environment: Environment) -> tuple[str, ...]:
    """Return the channels, highest priority first: the recipe's, or those of the environment."""
    named = (c for c in recipe.conda.channels if c != "nodefaults")
    return tuple(dict.fromkeys(named)) or environment.channels


def cutoff(text: str | None, where: str, now: datetime | None = None) -> datetime | None:
    """Return the time (UTC) of an exclude-newer text; None for an empty one.

    Args:
        text: a date (which includes that whole day), or a time, in ISO 8601, UTC unless it has a
            time zone; or ``month``: the start of the current month in UTC; or a time before now:
            ``12h``, ``7d``, ``2w``.
        where: the option or file that contains it, for the message.
        now: the time of locking; default: the current one.

    Raises:
        ConfigError: the text is neither a date nor a time.
    """
    if not text:
        return None
    today = now or datetime.now(UTC)
    if text == MONTH:
        return datetime(today.year, today.month, 1, tzinfo=UTC)
    if age := re.fullmatch(r"(\d{1,4})([hdw])", text):
        return today - int(age[1]) * timedelta(hours={"h": 1, "d": 24, "w": 7 * 24}[age[2]])
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            day = date.fromisoformat(text) + timedelta(days=1)
            return datetime(day.year, day.month, day.day, tzinfo=UTC)
        time = datetime.fromisoformat(text)
    except ValueError:
        hint = f"write it as 2026-07-01, 2026-07-01T12:00:00Z, 7d or {MONTH}"
        raise ConfigError(f"{where}: exclude-newer {text!r} is not a date", hint) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def recorded_inputs(inputs: Inputs) -> dict[str, str]:
    """Return everything that decides what is locked, as text, for the lock's record.

    The base image is not included: the lock has separate keys for it.

    Raises:
        LockError: the lock of another tool cannot be read.
    """
    recipe, environment = inputs.recipe, inputs.environment
    builds = {
        name: canonical_json(build.model_dump(mode="json", exclude_defaults=True)).decode()
        for name, build in recipe.pip.build.items()
    }
    values: dict[str, Any] = {
        "conda": _texts(environment.conda),
        "pip": _texts(environment.pip),
        "channels": channels(recipe, environment),
        "pip-options": _pip_options(recipe, environment),
        "virtual-packages": virtual_packages(recipe),
        "exclude-newer": recipe.conda.exclude_newer or environment.exclude_newer,
        "base-packages": sorted(recipe.base_packages),
        "python": [recipe.python] if recipe.uses_base_python else [],
        "base-glibc": inputs.base_glibc,
        "sources-asked": sorted(source.shown for source in environment.sources),
        "constraints": _texts(environment.constraints),
        "limits": _texts(environment.limits),
        "pip-build": builds,
    }
    if recipe.imported_lock is not None:
        raw = lock_bytes(recipe.imported_lock, "correct 'lock:' in the recipe")
        digest = hashlib.sha256(raw).hexdigest()
        values["imported"] = {"file": recipe.imported_lock.name, "sha256": digest}
        # without a lock these two decide which entries of the file count
        values["groups"] = sorted(recipe.groups)
        values["lock-environment"] = recipe.lock_environment or ""
    optional = table(__file__, "inputs.yaml")["optional"]
    recorded = {key: v for key, v in values.items() if v or key not in optional}
    return {key: _as_text(value) for key, value in recorded.items()}


def _texts(specs: Sequence[Spec]) -> list[str]:
    return sorted(spec.text for spec in specs)


def _pip_options(recipe: Recipe, environment: Environment) -> dict[str, Any]:
    """Return the options of pip that are set, by their names in a recipe."""
    options = {
        "index_url": recipe.pip.index_url or environment.index_url,
        "extra_index_urls": [*environment.extra_index_urls, *recipe.pip.extra_index_urls],
        "find_links": [*environment.find_links, *recipe.pip.find_links],
        "exclude_newer": recipe.pip.exclude_newer or environment.exclude_newer,
        "no_binary": list(environment.no_binary),
        "only_binary": list(environment.only_binary),
        "pins": [f"{pin.name} {pin.url} {pin.marker}".strip() for pin in environment.pins],
        "uv": dict(environment.uv),
    }
    return {name: value for name, value in options.items() if value}


def _as_text(value: Any) -> str:
    return redact(value if isinstance(value, str) else canonical_json(value).decode())


def content_hash(values: Mapping[str, str]) -> str:
    """Return one SHA-256 (hex) over :func:`recorded_inputs`."""
    return hashlib.sha256(canonical_json(prefixed(values))).hexdigest()


def stale_reasons(inputs: Inputs, lock: Lock) -> list[str]:
    """Return the reasons why a lock no longer matches the recipe and environment file of now.

    The project's own code is not compared, see :mod:`builder.build.wheels.own`.

    A lock of another tool has no record of its inputs. For such a lock only the platform is
    checked, the base if it pins one, and that it contains every package of the environment file.
    """
    recipe = inputs.recipe
    if recipe.platform not in lock.platforms:
        platforms = ", ".join(lock.platforms) or "no platform"
        return [f"the lock is for {platforms}, the recipe for {recipe.platform}"]
    reasons = []
    if lock.base and lock.base.reference != recipe.base:
        reasons.append(f"base changed from {lock.base.reference} to {recipe.base}")
    if not is_own(lock):
        return reasons + missing(inputs, chosen_groups(recipe, lock))
    return [*reasons, *_changed_inputs(inputs, lock)]


def _changed_inputs(inputs: Inputs, lock: Lock) -> Iterator[str]:
    """Yield the changes of a recipe and its environment file since the lock was made."""
    file, names = inputs.recipe.imported_lock, table(__file__, "inputs.yaml")
    now = recorded_inputs(inputs.on_base(glibc_of(lock)))
    imported = file.name if file else "the lock of another tool"
    for key, title in {**names["titles"], **names["optional"], "imported": imported}.items():
        absent = "[]" if key in names["optional"] else ""
        old, new = lock.record.inputs.get(key, absent), now.get(key, absent)
        if old != new:
            yield f"{title} changed{'' if key == 'imported' else _difference(old, new)}"


def without_sha256(recipe: Recipe, lock: Lock) -> str:
    """Return the problem of a lock whose packages have an MD5 alone; empty if all have a SHA-256.

    Two archives with one MD5 can be made in seconds, so an MD5 proves nothing about a package whose
    publisher is not trusted.
    """
    weak = [package.name for package in lock.for_platform(recipe.platform) if not package.sha256]
    if not weak:
        return ""
    names = ", ".join(weak[:3]) + (", ..." if len(weak) > 3 else "")
    return f"{len(weak)} packages of the lock have an MD5 and no SHA-256: {names}"


def require_sha256(recipe: Recipe, lock: Lock) -> None:
    """Refuse a lock whose packages have an MD5 alone.

    Raises:
        LockError: packages of the recipe's platform have no SHA-256.
    """
    if problem := without_sha256(recipe, lock):
        hint = f"lock again with SHA-256 hashes: builder lock {recipe.name}"
        raise LockError(f"{recipe.lock_path}: {problem}", hint)


def _difference(old: str, new: str) -> str:
    """Return the difference of two texts of :func:`recorded_inputs`: added and removed items, or the order.

    The old text is from a lock, and may be anything.
    """
    try:
        before, after = _items(json.loads(old)), _items(json.loads(new))
    except (ValueError, TypeError, RecursionError):
        return f" from {shorten(old, 200) or 'none'} to {new or 'none'}"
    if before is None or after is None:
        return ""
    added = [item for item in after if item not in before]
    removed = [item for item in before if item not in after]
    changes = {"now with": added, "without": removed}
    parts = [f"{word} {', '.join(items)}" for word, items in changes.items() if items]
    in_order = f"now in the order {', '.join(after)}"
    return f": {', '.join(parts) or in_order}"


def _items(value: Any) -> list[str] | None:
    """Return a list, or a mapping as ``KEY VALUE`` texts; None for anything else."""
    if isinstance(value, dict):
        return [f"{key} {' '.join(v) if isinstance(v, list) else v}" for key, v in value.items()]
    return [str(item) for item in value] if isinstance(value, list) else None


def missing(inputs: Inputs, lock: Lock) -> list[str]:
    """Return the packages of the environment file that are not in a lock, with file and line."""
    recipe, environment = inputs.recipe, inputs.environment
    packages = lock.for_platform(recipe.platform)
    names = {package.name.lower() for package in packages}
    names |= {canonicalize_name(name) for name in names} | {pypi_name(name) for name in names}
    pythons = (p.version for p in packages if (p.manager, p.name) == ("conda", "python"))
    python = next(pythons, "3.11")
    # a pip section implies conda's pip
    specs: list[Spec | SourceSpec] = [spec for spec in environment.conda if spec.text != "pip"]
    specs += [
        spec
        for spec in environment.pip
        if applies(Requirement(spec.text).marker, recipe.platform, python)
    ]
    # conda-lock locks git repositories and archives, but no folder of the project
    specs += [source for source in environment.sources if source.kind != "local"]
    return [
        f"{spec.where}: {spec.name} is not in the lock"
        for spec in specs
        if spec.name and spec.name not in names
    ]
