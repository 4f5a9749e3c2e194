"""The distribution of a base image, and the apt sources that reach its archives from here.

A folder is mounted into the container: settings of this machine's apt (proxies, certificates), and
sources if the base has none or a mirror stands in for them.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from builder.build.bases.debian_mirror import apt_options
from builder.build.bases.image import BaseImage
from builder.build.run.base import Mount, Runner, RunOptions
from builder.build.run.process import tail
from builder.core.datafiles import script
from builder.core.errors import ImageError, RunnerError
from builder.core.redact import redact
from builder.core.settings import Settings
from builder.formats.net.apt import (
    apt_sources,
    parse_os_release,
    parse_sources,
    parse_stanzas,
    uris_of,
    written,
)
from builder.formats.net.debarchives import host_mirrors, mirrored_archive, public_archive
from builder.formats.net.mirrors import mirrored_url, public_url
from builder.formats.net.trust import write_bundle

log = logging.getLogger(__name__)

#: Where the folder is in the container.
MOUNTED = "/run/builder-apt"
#: Settings that name files of this machine, which the container does not have.
_LOCAL_SETTING = re.compile(r"Dir::|Acquire::https(::[^ ]+)?::(CaInfo|SslCert|SslKey) ", re.I)
_WITHOUT_APT = (
    "install them with the base's own package manager in steps:, take them from conda-forge, "
    "or use a base of Debian or Ubuntu"
)


@dataclass(frozen=True, slots=True)
class AptBase:
    """A base image with apt."""

    reference: str
    system: str
    """Its ID of os-release(5): ``debian``, ``ubuntu``."""
    suite: str
    """Its code name: ``bookworm``; empty if it states none."""
    title: str
    """Its name for people: ``Ubuntu 24.04.1 LTS``."""
    sources: tuple[dict[str, str], ...]
    """Its apt sources as deb822 paragraphs."""


def read_apt_base(base: BaseImage, runner: Runner, where: str) -> AptBase:
    """Look into a base image.

    Args:
        base: the image, with all layers on this machine.
        runner: runs a shell in it, without network.
        where: file, line and key of ``base_packages``, for messages.

    Raises:
        ImageError: the base has no apt or no shell.
        RunnerError: the runner failed.
    """
    command = ["/bin/sh", "-c", script(__file__, "apt_probe.sh")]
    options = RunOptions(entrypoint=(), timeout_s=120)
    try:
        done = runner.run(base.runnable, command, options)
    except RunnerError as e:
        if "/bin/sh in the image" in e.message:
            raise _without_apt(base, "", where) from None
        raise
    if done.returncode:
        if done.returncode in (126, 127):
            raise _without_apt(base, "", where)
        message = f"{base.reference}: the base cannot be run: {tail(done.stderr.splitlines(), 3)}"
        raise RunnerError(message, "builder doctor shows the state of each runner")
    # The texts of the files that the probe printed, by path.
    parts = (part.partition("\n") for part in f"\n{done.stdout}".split("\n@@ ")[1:])
    files = {path: text for path, _, text in parts}
    release = parse_os_release(files.get("/etc/os-release", ""))
    title = release.get("PRETTY_NAME") or release.get("ID", "")
    if "apt" not in files:
        raise _without_apt(base, title, where)
    system, suite = release.get("ID", ""), release.get("VERSION_CODENAME", "")
    return AptBase(base.reference, system, suite, title or base.reference, _sources(files))


def _without_apt(base: BaseImage, title: str, where: str) -> ImageError:
    what = f" ({title})" if title else ""
    return ImageError(f"{where}: the base {base.reference}{what} has no apt", _WITHOUT_APT)


def _sources(files: dict[str, str]) -> tuple[dict[str, str], ...]:
    paths = [path for path in files if path.startswith("/etc/apt/sources.list")]
    found = (parse_sources(PurePosixPath(path).name, files[path]) for path in paths)
    return tuple(chain.from_iterable(found))


@dataclass(frozen=True, slots=True)
class AptNetwork:
    """Mounts for apt, and the way back from a mirror's addresses."""

    mounts: tuple[Mount, ...]
    settings: Settings
    mirrors: tuple[tuple[str, str], ...]
    """This machine's, see :func:`builder.formats.net.debarchives.host_mirrors`."""

    def public(self, url: str) -> str:
        """Return a package's address in the public archive, without credentials, for the lock."""
        return public_archive(public_url(self.settings, url), self.mirrors)


def prepare_network(folder: Path, base: AptBase, settings: Settings, where: str) -> AptNetwork:
    """Fill a folder for the container.

    Args:
        folder: an empty folder that only this user can reach.
        base: the base image.
        settings: mirrors.
        where: file, line and key of ``base_packages``, for messages.

    Raises:
        ImageError: neither the base nor this machine names an archive for the base's packages.
    """
    mirrors = host_mirrors()
    sources = []
    for source in _own_sources(base, where):
        uris = [_mirrored(uri, settings, mirrors) for uri in uris_of([source])]
        sources.append({**source, "URIs": " ".join(uris)})
    if sources != list(base.sources):
        log.info("apt of %s reads %s", base.title, redact(" ".join(uris_of(sources))))
        (folder / "sources.d").mkdir()
        text = "\n".join(written(source) for source in sources)
        (folder / "sources.d" / "base.sources").write_text(text)
    lines = apt_options(folder, uris_of(sources)).splitlines()
    lines = [line for line in lines if not _LOCAL_SETTING.match(line)]
    (folder / "apt.conf").write_text("".join(f"{line}\n" for line in lines))
    shutil.copyfile(write_bundle(folder), folder / "ca.crt")
    make_readable(folder)
    folders = _folders(set(uris_of(sources)).difference(uris_of(base.sources)))
    return AptNetwork((Mount(folder, MOUNTED), *folders), settings, mirrors)


def make_readable(folder: Path) -> None:
    """Let all users read a folder: the container's root may be another user."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _own_sources(base: AptBase, where: str) -> Sequence[Mapping[str, str]]:
    """Return the base's sources; if it has none, those of this machine for its suite."""
    if base.sources:
        return base.sources
    text = ""
    if base.system == "debian" and base.suite:
        with contextlib.suppress(ImageError):
            text = apt_sources(base.suite)
    if not text:
        raise ImageError(
            f"{where}: the base {base.reference} ({base.title}) has no apt sources, "
            "and those of this machine are for another distribution",
            "use a base with apt sources, as the images of Debian and Ubuntu in registries have",
        )
    return parse_stanzas(text)


def _mirrored(uri: str, settings: Settings, mirrors: tuple[tuple[str, str], ...]) -> str:
    """Return the address for this machine: of BUILDER_MIRRORS, or of its own apt sources."""
    own = mirrored_url(settings, uri)
    return own if own != uri else mirrored_archive(uri, mirrors)


def _folders(uris: Iterable[str]) -> Iterator[Mount]:
    """Yield mounts of mirrors in folders of this machine, at the same path in the container.

    Args:
        uris: of this machine's mirrors. The base's own ``file:`` sources are folders of the base.
    """
    local = {uri.removeprefix("file://") for uri in uris if uri.startswith("file://")}
    for path in sorted(map(unquote, local)):
        if Path(path).is_dir() and ".." not in Path(path).parts:  # the base chose the path's end
            yield Mount(Path(path), path)
