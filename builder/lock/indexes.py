"""The indexes and find-links of the environment, the recipe and pip's own configuration.

And warnings about wheels of them that are for another GPU, or for two versions of CUDA.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from builder.core.datafiles import table
from builder.core.errors import ConfigError, FetchError
from builder.core.model import LockedPackage
from builder.core.parallel import in_parallel
from builder.core.progress import Reporter
from builder.core.redact import redact
from builder.core.settings import expand_home
from builder.formats.net.findlinks import as_path
from builder.formats.net.mirrors import mirrored_url, public_url
from builder.formats.net.pipconfig import PYPI, PipConfiguration, pip_configuration
from builder.formats.net.trust import network_hint
from builder.formats.net.urlvariables import expanded
from builder.lock.config.recipe import Recipe

from .request import SolveRequest
from .spec import IndexPin

#: Packages that only builds for CUDA need. Some for CPUs need nvidia-ml-py and nvidia-nccl.
_NEEDS_CUDA = re.compile(r"cuda-toolkit|nvidia-(cublas|cuda-runtime|cudnn)(-cu\d+)?")
#: Indexes of builds for CUDA: ``https://download.pytorch.org/whl/cu129``.
_CUDA_INDEX = re.compile(r"/cu\d+(/|$)")


@dataclass(frozen=True, slots=True)
class Indexes:
    """Where uv looks for packages: URLs as the files have them, with the names of variables."""

    main: str = ""
    """Empty: uv's own, unless ``no_index``."""
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    unreachable: tuple[str, ...] = ()
    """The public URLs of indexes that do not answer: pip's own configuration takes their place."""
    pins: tuple[IndexPin, ...] = ()

    @property
    def pages(self) -> tuple[str, ...]:
        """The URLs of the indexes, each once, in the order in which uv asks them."""
        return tuple(dict.fromkeys(filter(None, (*self.extra, self.main))))

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of indexes and find-links."""
        return (*self.pages, *self.find_links, *(pin.url for pin in self.pins))

    def pages_of(self, name: str) -> tuple[str, ...]:
        """Return the URLs of the indexes that may have a package."""
        return tuple(pin.url for pin in self.pins if pin.name == name) or self.pages

    def uv_toml(self, where: str, more: Mapping[str, Any]) -> str:
        """Return the settings of uv, with the values of variables, which may be secret.

        uv reads a value of this file as one URL, whatever characters it has. A requirements file
        would not do: after a line break there, ``-e FOLDER`` runs the build backend of that folder.

        Args:
            where: the environment file, for messages.
            more: other settings of uv.

        Raises:
            ConfigError: a variable in a URL is not set, or one of the other settings has a variable.
        """
        if "$" in _toml(more):  # uv replaces variables in all URLs
            problem = f"{where}: variables are for URLs of indexes, not for other settings of uv"
            raise ConfigError(problem, "credentials belong into ~/.netrc")
        values: dict[str, object] = {
            "index-strategy": "unsafe-best-match",
            **more,
            "index-url": expanded(self.main, where),
            "extra-index-url": [expanded(url, where) for url in self.extra],
            "find-links": [expanded(url, where) for url in self.find_links],
            "no-index": self.no_index or more.get("no-index"),
        }
        return toml_document(values)

    def pyproject(self, requirements: Sequence[str], where: str) -> str:
        """Return a ``pyproject.toml`` for uv, in which packages have an index of their own.

        Args:
            requirements: those of the packages with pins.
            where: as in :meth:`uv_toml`.

        Raises:
            ConfigError: a variable in a URL is not set.
        """
        sources: dict[str, list[dict[str, str]]] = {}
        indexes: list[dict[str, Any]] = []
        for number, pin in enumerate(self.pins):
            name, marker = f"pin-{number}", {"marker": pin.marker} if pin.marker else {}
            sources.setdefault(pin.name, []).append({"index": name, **marker})
            indexes.append({"name": name, "url": expanded(pin.url, where), "explicit": True})
        project = {"name": "pins", "version": "0", "dependencies": list(requirements)}
        uv = {"sources": sources, "index": indexes}
        return toml_document({"project": project, "tool": {"uv": uv}})


def toml_document(values: Mapping[str, Any]) -> str:
    """Return a TOML document with these values, but for empty ones, each on one line."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in values.items() if value)


def _toml(value: Any) -> str:
    """Return a value of TOML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)


def find_indexes(request: SolveRequest) -> Indexes:
    """Return the indexes and find-links of the recipe, the environment and pip's configuration.

    URLs of the environment and the recipe are replaced by their mirrors (``BUILDER_MIRRORS``).

    Raises:
        ConfigError: a find-links folder does not exist, or a variable in a URL is not set.
        FetchError: an index of the environment or the recipe does not answer, and the recipe names
            no fallback.
    """
    configuration = pip_configuration()
    links = _find_links(request, configuration)

    def actual(mirror: str) -> str:
        """Return the index of pip's configuration in place of PyPI."""
        return configuration.index_url or PYPI if mirror == PYPI else mirror

    settings = request.settings
    main, *others = named_indexes(request)
    extra = dict.fromkeys(map(actual, others))
    pins = [replace(p, url=actual(mirrored_url(settings, p.url))) for p in request.environment.pins]
    unreachable = _unreachable_indexes(request, [main, *extra, *(pin.url for pin in pins)])
    named = Indexes(
        "" if main in unreachable else main,
        tuple(url for url in extra if url not in unreachable),
        links,
        unreachable=tuple(public_url(settings, url) for url in unreachable),
        pins=tuple(pin for pin in pins if pin.url not in unreachable),
    )
    return _with_configuration(named, request, configuration)


def _with_configuration(
    named: Indexes, request: SolveRequest, configuration: PipConfiguration
) -> Indexes:
    """Return the named indexes with those of pip's configuration."""
    if configuration.no_index and not named.main:
        # Without an index or no-index uv would use PyPI.
        return replace(named, main=next(iter(named.extra), ""), no_index=not named.extra)
    main = named.main or configuration.index_url or mirrored_url(request.settings, PYPI)
    # pip treats all indexes alike, and so does uv with "unsafe-best-match". uv prefers an extra
    # index to the main one for the same wheel, so the main one is first among the extra ones too:
    # its URL goes into the lock. With uv's own "first-index" the main one is the last.
    before = [] if request.environment.takes_first_index else [main]
    extra = dict.fromkeys([*before, *named.extra, *configuration.extra_index_urls])
    return replace(named, main=main, extra=tuple(extra))


def named_indexes(request: SolveRequest) -> list[str]:
    """Return the mirrors of the named indexes: the main one (or empty), then the extra ones."""
    recipe, environment = request.recipe.pip, request.environment
    urls = [recipe.index_url or environment.index_url or ""]
    urls += [*environment.extra_index_urls, *recipe.extra_index_urls]
    return [mirrored_url(request.settings, url) for url in urls]


def _find_links(request: SolveRequest, configuration: PipConfiguration) -> tuple[str, ...]:
    recipe, path = request.recipe, request.environment.path
    named = [_as_url(link, path.parent, str(path)) for link in request.environment.find_links]
    named += [_as_url(link, recipe.root, str(recipe.source)) for link in recipe.pip.find_links]
    links = [mirrored_url(request.settings, url) for url in named]
    links += [_as_url(link, Path.cwd(), "pip's configuration") for link in configuration.find_links]
    return tuple(dict.fromkeys(links))


def _as_url(link: str, folder: Path, named_by: str) -> str:
    """Return a find-links page or folder as a URL; a relative folder starts at ``folder``."""
    if "://" in link:
        return link
    path = (folder / expanded(str(expand_home(link)), named_by)).absolute()
    if not os.access(path, os.F_OK):  # Path.exists raises errors, which name the path
        hint = f"create or correct the folder; relative folders start at {folder}"
        raise ConfigError(f"{named_by}: --find-links {link} does not exist", hint)
    return path.as_uri()


# indexes that do not answer


def probe_indexes(request: SolveRequest, urls: Sequence[str], refused: int = 500) -> dict[str, str]:
    """Return the indexes on the web that do not answer, each with a message.

    Args:
        request: the environment and the target.
        urls: those of indexes.
        refused: the HTTP status from which on an answer counts as none; some indexes have no page
            of all packages.

    Raises:
        ConfigError: a variable in a URL is not set.
    """
    on_web = [url for url in dict.fromkeys(urls) if url.startswith(("http://", "https://"))]
    expanded_urls = [expanded(url, str(request.environment.path)) for url in on_web]
    if not on_web or request.settings.offline:
        return {}
    from builder.formats.net.http import probe  # httpx2 is slow to import

    found = in_parallel(lambda url: probe(url, refused), expanded_urls, len(on_web))
    problems = {url: why for url, (_, why) in zip(on_web, found, strict=True) if why}
    return {u: f"package index {redact(u)} does not answer ({why})" for u, why in problems.items()}


def _unreachable_indexes(request: SolveRequest, urls: Sequence[str]) -> tuple[str, ...]:
    """Return the indexes that do not answer, if the recipe allows to continue without them."""
    has_fallback = request.recipe.pip.fallback == "pip"
    unreachable = probe_indexes(request, urls, 500 if has_fallback else 1000)
    for message in unreachable.values():
        if not has_fallback:
            hint = (
                "check the network; or name a copy: BUILDER_MIRRORS='FROM=TO'; or use pip's configuration: "
                f"pip: {{fallback: pip}} in {request.recipe.source or 'the recipe'}"
            )
            problem = f"{request.environment.path}: {message}"
            raise FetchError(problem, network_hint(message, hint))
        request.reporter.note(f"{message}: using pip's own configuration, the recipe's fallback")
    return tuple(unreachable)


def check_kind(
    request: SolveRequest, unreachable: Sequence[str], packages: Sequence[Mapping[str, Any]]
) -> None:
    """Raise FetchError if packages for CUDA replace those of an index that does not answer.

    One name can be two kinds of package: torch is for the CPU on an index of PyTorch, and for CUDA,
    with 3 GB of other packages, on PyPI. A recipe for NVIDIA GPUs takes them.

    Args:
        request: the environment and the target.
        unreachable: the public URLs of the indexes that do not answer.
        packages: uv's solution.
    """
    replaced = [redact(url) for url in unreachable if not _CUDA_INDEX.search(url)]
    found = _for_cuda(request.recipe, (package["name"] for package in packages))
    if not replaced or not found:
        return
    url = replaced[0]
    origin = url.removesuffix(urlsplit(url).path)
    raise FetchError(
        f"{request.environment.path}: package index {url} does not answer, and the packages of "
        f"other indexes are {found}",
        f"name a copy of it: export BUILDER_MIRRORS='{origin}=URL-OR-FOLDER'; or a folder with "
        "wheels: export PIP_FIND_LINKS=FOLDER; or let the recipe take CUDA: gpu: {vendor: nvidia}",
    )


def warn_of_kind(recipe: Recipe, packages: Sequence[LockedPackage], reporter: Reporter) -> None:
    """Warn about packages for CUDA in a lock for other GPUs or none, and for two versions of it."""
    warn_of_versions(recipe, packages, reporter)
    if found := _for_cuda(recipe, (package.name for package in packages)):
        reporter.warn(
            f"{recipe.name}: packages are {found}: write gpu: {{vendor: nvidia}} into {recipe.source}, or "
            "name an index of other builds above them, for torch "
            "'- --extra-index-url https://download.pytorch.org/whl/cpu' (.../rocmX.Y for AMD)"
        )


def _for_cuda(recipe: Recipe, names: Iterable[str]) -> str:
    """Return the end of a message on packages that only CUDA needs; empty if the recipe takes them."""
    names, vendor = list(names), recipe.gpu.vendor
    found = list(filter(_NEEDS_CUDA.fullmatch, names))
    if vendor == "nvidia" or not found:
        return ""
    message = f"for CUDA ({', '.join(found)} ...), but the recipe has gpu: {{vendor: {vendor}}}"
    own = [_as_url(link, recipe.root, str(recipe.source)) for link in recipe.pip.find_links]
    folders = filter(None, map(as_path, (*own, *pip_configuration().find_links)))
    kind = "rocm" if vendor == "amd" else "cpu"
    for file in (file for folder in folders for file in sorted(folder.glob(f"*+{kind}*.whl"))):
        name, version, *_ = file.name.split("-")
        if name in names:  # the index has a newer one
            line = f"{name}=={version.partition('+')[0]}"
            return f"{message} ({file.parent} has {name} {version}: write {line})"
    return message


#: Name and version of a library: the part of both that is the same, and the version of CUDA.
_LIBRARY = re.compile(r"nvidia-(?:(.+)-cu(\d+) .*|(?:cublas|cuda-runtime|nvjitlink) (\d\d)\..*)")


def warn_of_versions(recipe: Recipe, packages: Iterable[LockedPackage], reporter: Reporter) -> None:
    """Warn about libraries that replace each other; report those that are there for two versions.

    On PyPI a library is ``nvidia-NAME-cuVERSION``, with its files in ``nvidia/NAME`` whatever the
    version is. NVIDIA's own ones have no number since CUDA 13, and their files are in
    ``nvidia/cu13``::

        nvidia-cudnn-cu12, nvidia-cudnn-cu13      nvidia/cudnn/lib     one replaces the other
        nvidia-cublas-cu12, nvidia-cublas 13.4    nvidia/cublas/lib,
                                                  nvidia/cu13/lib      both are there
    """
    wheels = [f"{p.name} {p.version}" for p in packages if p.manager == "pip"]
    found = list(filter(None, map(_LIBRARY.fullmatch, wheels)))
    versions = sorted({int(one[2] or one[3]) for one in found})
    if len(versions) < 2:
        return
    text = f"{recipe.name}: packages are for CUDA {' and '.join(map(str, versions))}"
    counts = Counter(one[1] for one in found if one[1])
    shared = ", ".join(one[0].split()[0] for one in found if counts[one[1]] > 1)
    if not shared:
        reporter.note(f"{text}: the image has the libraries of both, in different folders")
        return
    lines = "; ".join(_lines(recipe, wheels, versions)) or "choose packages for one of them"
    reporter.warn(f"{text}, and replace each other's files ({shared}): {lines}")


def _lines(recipe: Recipe, wheels: Iterable[str], versions: Collection[int]) -> Iterator[str]:
    """Yield what to write for each of the versions that the driver runs."""
    driver = recipe.virtual_packages.get("__cuda", "")
    newest = int(driver.partition(".")[0] or max(versions))
    for version, rows in table(__file__, "cuda.yaml").items():
        found = [
            line for pattern, line in rows.items() if any(re.match(pattern, w) for w in wheels)
        ]
        if found and version in versions and version <= newest:
            yield f"for CUDA {version} write {' and '.join(found)}"
