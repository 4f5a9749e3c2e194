"""What this host can lock, build, run and push, with a hint for each part that it cannot use."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from builder.build.bases.mmdebstrap import mmdebstrap_mode
from builder.build.run.failures import hint_for
from builder.build.run.podman import pause_process_ends
from builder.build.run.process import execute, reason
from builder.build.run.select import runner_classes
from builder.build.run.trial import try_runner
from builder.core.datafiles import table
from builder.core.errors import BuilderError, ImageError, RegistryError
from builder.core.parallel import in_parallel
from builder.core.redact import redact
from builder.core.settings import Settings
from builder.core.store.folders import CacheFolders
from builder.core.text import human_bytes
from builder.core.version import __version__
from builder.formats.net.apt import apt_sources, parse_stanzas, uris_of
from builder.formats.net.findlinks import as_path
from builder.formats.net.mirrors import mirrored_base, mirrored_url
from builder.formats.net.pipconfig import PYPI, pip_configuration
from builder.formats.net.proxies import is_loopback, proxy_for
from builder.formats.net.trust import authorities, network_hint, tls_context
from builder.formats.registry.credentials import auth_files, auth_places
from builder.lock.channels import named_channels
from builder.lock.config.recipe import load_recipe, recipe_files
from builder.lock.inputs import Inputs
from builder.lock.request import SolveRequest

#: Bytes that a CUDA image needs in the cache while it is built.
_ENOUGH = 10e9


@dataclass(frozen=True)
class Finding:
    """One part of the host.

    Attributes:
        what: the name of the part: a folder, a program, the GPU, credentials.
        status: ``ok``; ``missing`` or ``broken``, which are optional; ``bad`` has to be fixed.
        found: what is there, in words.
        hint: what to type to change it; empty: nothing to do.
    """

    what: str
    status: Literal["ok", "missing", "broken", "bad"]
    found: str
    hint: str = ""


def examine_host(settings: Settings | None = None, root: Path = Path()) -> list[Finding]:
    """Check this host within a few seconds. Changes nothing, but creates the cache folder.

    Args:
        settings: cache, mirrors, and whether to ask no server; None: those of the environment.
        root: a project, whose channels are asked; another folder: conda-forge is asked.
    """
    settings = settings or Settings.from_environment()
    glibc = platform.libc_ver()[1] or "unknown"
    python = f"Python {platform.python_version()}, {platform.machine()}"
    return [
        Finding("builder", "ok", f"{__version__} on {python}, glibc {glibc}"),
        _folder("cache", settings.cache),
        _folder("temporary files", settings.tmpdir),
        *_network(settings, root),
        _debian(),
        *_runners(),
        _gpus(),
        _credentials(),
    ]


def _folder(what: str, folder: Path) -> Finding:
    try:
        if what == "cache":
            CacheFolders(folder)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".doctor-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
    except BuilderError as e:
        return Finding(what, "bad", e.message, e.hint)
    except OSError as e:
        hint = "choose another folder with BUILDER_CACHE or BUILDER_TMPDIR"
        return Finding(what, "bad", f"{folder}: {e.strerror}", hint)
    free = shutil.disk_usage(folder).free
    found = f"{folder}: {human_bytes(free)} free"
    if free > _ENOUGH:
        return Finding(what, "ok", found)
    hint = f"a CUDA image needs about {human_bytes(_ENOUGH)}: run builder cache prune, or set "
    return Finding(what, "bad", found, f"{hint}BUILDER_CACHE to another disk")


def _debian() -> Finding:
    """Check by the build's own function whether this user can make ``debian:`` bases here."""
    what = "base: debian:SUITE"
    try:
        return Finding(what, "ok", f"mmdebstrap, mode {mmdebstrap_mode('debian:SUITE')}")
    except ImageError as e:
        problem = e.message.removeprefix("debian:SUITE: ")
        return Finding(what, "missing", problem, hint_for("userns", problem) or e.hint)


def _runners() -> Iterator[Finding]:
    """Run a tiny container with each runner, all at once."""
    runners = runner_classes()
    with pause_process_ends():
        found = in_parallel(try_runner, runners, len(runners))
    for runner, problem in found:
        what = f"run: {runner.name}"
        if problem is None:
            yield Finding(what, "ok", "ran a container")
        else:
            status: Literal["broken", "missing"] = "broken" if problem.is_installed else "missing"
            yield Finding(what, status, problem.reason, problem.hint)


def _network(settings: Settings, root: Path) -> Iterator[Finding]:
    """Yield whom builds trust and which proxies they use, and whether their servers answer."""
    try:
        tls_context()  # or the error that names a file
        named = [f"{name} ({path})" for path, name in authorities().items() if name]
        servers = list(dict.fromkeys(_servers(settings, root)))
        proxies = {proxy_for(f"{kind}://any.invalid") for kind in ("http", "https")} - {None}
    except BuilderError as e:
        yield Finding("network", "bad", e.message, e.hint)
        return
    found = f"trusts {', '.join(named)}; {', '.join(sorted(map(str, proxies))) or 'no proxy'}"
    yield Finding("network", "ok", found + "; offline: no server is asked" * settings.offline)
    asked = [] if settings.offline else servers
    yield from (finding for _, finding in in_parallel(_server, asked, len(asked)))


def _servers(settings: Settings, root: Path) -> Iterator[tuple[str, str]]:
    """Yield what builds ask, with its name in doctor.yaml: URLs, and paths of folders."""
    pip, servers = pip_configuration(), table(__file__, "doctor.yaml")["servers"]
    indexes = (pip.index_url or mirrored_url(settings, PYPI), *pip.extra_index_urls)
    yield from (("package index", url) for url in indexes if not pip.no_index)
    yield from (("find-links", link) for link in pip.find_links)
    targets = recipe_files(root)
    if not targets:
        yield "conda channel", mirrored_url(settings, servers["conda channel"]["default"])
    for target in targets:
        with suppress(BuilderError):  # the other commands report it
            recipe = load_recipe(target, root)
            request = SolveRequest(recipe, Inputs.read(recipe).environment, settings)
            yield from (("conda channel", channel.actual) for channel in named_channels(request))
    kind, _, base = mirrored_base(settings, servers["Docker Hub"]["default"]).partition(":")
    host = base.split("/")[2] if kind == "docker" else ""
    scheme = "http" if is_loopback(host) else "https"
    yield "Docker Hub", f"{scheme}://{host}" if host else base
    with suppress(ImageError):  # see _debian
        mirrors = uris_of(parse_stanzas(apt_sources(servers["Debian mirror"]["default"])))
        yield "Debian mirror", mirrors[0]


def _server(server: tuple[str, str]) -> Finding:
    """Ask a server for what a build reads first, with the certificates and proxies of a build."""
    from builder.formats.net.http import probe  # httpx2 is slow to import

    what, url = server
    row, path = table(__file__, "doctor.yaml")["servers"][what], as_path(url)
    if path is not None:
        problem = "" if path.exists() else "no such file or folder"
    else:
        registry = urlsplit(url).netloc if what == "Docker Hub" else ""
        problem = probe(url.rstrip("/") + row["path"], registry=registry, connect_s=5.0)
    if problem in ("", *row["good"]):
        proxy = proxy_for(url) if path is None else None
        way = f" through {proxy}" if proxy else ""
        return Finding(what, "ok", redact(url) + (f" answers{way}" if path is None else ""))
    otherwise = table(__file__, "doctor.yaml")["unreachable"]
    hint, found = network_hint(problem, otherwise), f"{redact(url)}: {problem}"
    return Finding(what, "missing" if hint == otherwise else "broken", found, hint)


def _gpus() -> Finding:
    """List the GPUs with the vendor's tool."""
    commands: dict[str, list[str]] = table(__file__, "doctor.yaml")["gpus"]
    vendor = next((name for name, words in commands.items() if shutil.which(words[0])), None)
    if vendor is None:
        found = "no nvidia-smi or rocm-smi: images for GPUs can be built here, and smoke-tested on the target"
        return Finding("GPU", "missing", found)
    what = f"GPU: {vendor}"
    try:
        done = execute(commands[vendor], timeout_s=20)
    except BuilderError as e:
        return Finding(what, "bad", e.message, e.hint)
    if done.returncode:
        return Finding(what, "bad", reason(done), "the driver does not answer")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return Finding(what, "ok", "; ".join(lines[:8]))


def _credentials() -> Finding:
    """List the places of credentials that exist, with the names of their hosts, never a value."""
    what = "push: credentials"
    found = ["REGISTRY_USER and REGISTRY_PASSWORD"] if os.environ.get("REGISTRY_USER") else []
    try:
        places = ", ".join(map(str, auth_places()))
        found += [f"{file.path}: {', '.join(file.hosts()) or 'no host'}" for file in auth_files()]
    except RegistryError as e:
        return Finding(what, "broken", e.message, e.hint)
    if found:
        return Finding(what, "ok", "; ".join(found))
    return Finding(what, "missing", f"none in {places}", table(__file__, "doctor.yaml")["login"])
