"""How apt in a base image reaches the archives: the base's own sources, or this machine's mirrors of them.

A folder is mounted into the container: settings of this machine's apt (proxies, certificates, credentials),
and sources if the base has none or a mirror stands in for them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from builder.bases.debian_mirror import apt_credentials, apt_options
from builder.errors import ImageError
from builder.net.apt import apt_sources, parse_stanza, written
from builder.net.debarchives import host_mirrors, mirrored_archive, public_archive
from builder.net.mirrors import mirrored_url, public_url
from builder.run.base import Mount
from builder.settings import Settings
from builder.steps.apt_base import AptBase

#: Where the folder is in the container.
MOUNTED = "/run/builder-apt"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
#: Where this machine's keyrings are. The base's sources name paths, and must not choose other files.
_KEYRINGS = ("/usr/share/keyrings", "/etc/apt/keyrings", "/etc/apt/trusted.gpg.d")
#: Settings that name files of this machine, which the container does not have.
_LOCAL_SETTING = re.compile(r"Dir::|Acquire::https(::[^ ]+)?::(CaInfo|SslCert|SslKey) ", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AptNetwork:
    """Mounts for apt, and the way back from a mirror's addresses."""

    mounts: tuple[Mount, ...]
    settings: Settings
    mirrors: tuple[tuple[str, str], ...]
    """This machine's, see :func:`builder.net.debarchives.host_mirrors`."""

    def public(self, url: str) -> str:
        """The address of a package for the lock: of the public archive, without credentials."""
        return public_archive(public_url(self.settings, url), self.mirrors)


def prepare_network(folder: Path, base: AptBase, settings: Settings, where: str) -> AptNetwork:
    """Fills a folder for the container.

    Args:
        folder: an empty folder that only this user can reach.
        base: the base image.
        settings: mirrors.
        where: file, line and key of ``base_packages``, for messages.

    Raises:
        ImageError: neither the base nor this machine names an archive for the base's packages.
    """
    folder.chmod(0o755)  # the container's root may be another user
    mirrors = host_mirrors()
    sources, replaced = _sources(base, settings, mirrors, where)
    own = _uris(base.sources)
    mirrored = [uri for uri in _uris(sources) if uri not in own]
    if replaced:
        (folder / "sources.d").mkdir()
        text = "\n".join(written(_with_keys(source, folder)) for source in sources)
        (folder / "sources.d" / "base.sources").write_text(text)
        _copy_credentials(folder, {_host(uri) for uri in mirrored})
    lines = [line for line in apt_options().splitlines() if not _LOCAL_SETTING.match(line)]
    (folder / "apt.conf").write_text("".join(f"{line}\n" for line in lines))
    if _CERTIFICATES.is_file():
        shutil.copyfile(_CERTIFICATES, folder / "ca.crt")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return AptNetwork((Mount(folder, MOUNTED), *_folders(mirrored)), settings, mirrors)


def _sources(
    base: AptBase, settings: Settings, mirrors: tuple[tuple[str, str], ...], where: str
) -> tuple[list[dict[str, str]], bool]:
    """The sources for apt, and whether they differ from those in the base."""
    own = list(base.sources)
    if not own:
        try:
            text = apt_sources(base.suite) if base.system == "debian" and base.suite else ""
        except ImageError:
            text = ""
        if not text:
            raise ImageError(
                f"{where}: the base {base.reference} ({base.title}) has no apt sources, and those of this "
                "machine are for another distribution",
                "use a base with apt sources, as the images of Debian and Ubuntu in registries have",
            )
        own = [parse_stanza(block) for block in text.split("\n\n") if block.strip()]
    mapped = [_mapped(source, settings, mirrors) for source in own]
    return mapped, mapped != list(base.sources)


def _mapped(
    source: Mapping[str, str], settings: Settings, mirrors: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    uris = [_mirrored(uri, settings, mirrors) for uri in source.get("URIs", "").split()]
    return {**source, "URIs": " ".join(uris)}


def _mirrored(uri: str, settings: Settings, mirrors: tuple[tuple[str, str], ...]) -> str:
    """The address that answers here: BUILDER_MIRRORS first, then this machine's apt sources."""
    own = mirrored_url(settings, uri)
    return own if own != uri else mirrored_archive(uri, mirrors)


def _uris(sources: Iterable[Mapping[str, str]]) -> list[str]:
    return [uri for source in sources for uri in source.get("URIs", "").split()]


def _host(uri: str) -> str:
    """Host and port of an address, with or without a scheme."""
    return uri.partition("://")[2 if "://" in uri else 0].partition("/")[0].rpartition("@")[2].lower()


def _folders(uris: list[str]) -> Iterator[Mount]:
    """Mirrors in folders of this machine, at the same place in the container.

    Args:
        uris: of this machine's mirrors. The base's own ``file:`` sources are folders of the base.
    """
    for path in sorted({unquote(uri.removeprefix("file://")) for uri in uris if uri.startswith("file://")}):
        if Path(path).is_dir() and ".." not in Path(path).parts:  # the base chose the end of the path
            yield Mount(Path(path), path)


def _with_keys(source: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The source with keyrings of this machine where the base may have none."""
    signed = source.get("Signed-By", "")
    if not signed.startswith("/"):
        return dict(source)  # none, fingerprints, or a key in the text itself
    paths = []
    for path in signed.replace(",", " ").split():
        if _is_keyring(path):
            shutil.copyfile(path, folder / Path(path).name)
            paths.append(f"{MOUNTED}/{Path(path).name}")
        else:
            paths.append(path)
    return {**source, "Signed-By": " ".join(paths)}


def _is_keyring(path: str) -> bool:
    """Whether a path is a keyring of this machine that can be read."""
    place = Path(os.path.normpath(path))
    return str(place.parent) in _KEYRINGS and place.is_file() and os.access(place, os.R_OK)


def _copy_credentials(folder: Path, hosts: set[str]) -> None:
    """Credentials of this machine's mirrors, without those of other hosts: the base's apt can read them."""
    parts = folder / "auth.conf.d"
    parts.mkdir()
    (parts / "credentials.conf").write_text(credentials_of(apt_credentials(), hosts))


def credentials_of(text: str, hosts: set[str]) -> str:
    """The entries of an apt_auth.conf(5) that are for some hosts."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    words = [word for line in lines for word in line.split()]
    entries: list[list[str]] = []
    for word in words:
        if word == "machine":
            entries.append([])
        if entries:
            entries[-1].append(word)
    # without a port, an entry is for all ports of its host
    known = hosts | {host.partition(":")[0] for host in hosts}
    found = [entry for entry in entries if len(entry) > 1 and _host(entry[1]) in known]
    return "".join(f"{' '.join(entry)}\n" for entry in found)
