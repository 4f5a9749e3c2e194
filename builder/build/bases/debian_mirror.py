"""The state of this machine's Debian mirror, and apt's settings for it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from builder.core.datafiles import read_beside, search
from builder.core.settings import Settings
from builder.core.store.temporary import temporary_folder
from builder.formats.net.apt import parse_stanzas, uris_of
from builder.formats.net.proxies import proxy_for
from builder.formats.net.trust import authorities, write_bundle

_APT_HELPER = "/usr/lib/apt/apt-helper"
_CREDENTIALS = (Path("/etc/apt/auth.conf"), Path("/etc/apt/auth.conf.d"))


def apt_options(folder: Path, uris: Iterable[str]) -> str:
    """Return this machine's settings of apt for the mirror, as apt.conf(5) writes them.

    They are proxies, certificates and time checks: those of apt's configuration, else of the
    environment. Empty when there is no apt.

    Args:
        folder: gets the file with the authorities that are trusted, see
            :func:`builder.formats.net.trust.write_bundle`.
        uris: the mirrors.
    """
    try:
        dump = subprocess.run(
            ["apt-config", "dump"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = [line for line in dump.splitlines() if _is_passed_on(line)]
    if not any(re.match(r"(?i)Acquire::https?::Proxy[: ]", line) for line in lines):
        lines += _proxy_lines(uris)
    if len(authorities()) > 1 and not any("::cainfo " in line.lower() for line in lines):
        lines.append(f'Acquire::https::CaInfo "{write_bundle(folder)}";')
    return "".join(f"{line}\n" for line in lines)


def _proxy_lines(uris: Iterable[str]) -> Iterator[str]:
    """Yield the settings for the proxies of mirrors, which the environment names."""
    for uri in uris:
        try:
            parts, proxy = urlsplit(uri), proxy_for(uri)
        except ValueError:  # a base may have any text in its sources: apt refuses it
            continue
        if parts.scheme in ("http", "https") and re.fullmatch(r"[\w.:-]+", parts.hostname or ""):
            # apt's name for a proxy that resolves names itself
            url = re.sub(r"^socks5:", "socks5h:", proxy.url) if proxy else "DIRECT"
            value = url.replace('"', "%22")
            yield f'Acquire::{parts.scheme}::Proxy::{parts.hostname} "{value}";'


def apt_credentials() -> str:
    """Return the passwords of mirrors that this user may read, as apt_auth.conf(5) writes them.

    A text and no path, because an ordinary user's mmdebstrap runs apt as a subordinate id.
    """
    single, folder = _CREDENTIALS
    files = [file for file in (single, *sorted(folder.glob("*.conf"))) if os.access(file, os.R_OK)]
    return "".join(file.read_text(errors="replace") + "\n" for file in files)


def _is_passed_on(line: str) -> bool:
    """Return whether the tree gets a setting: Proxy-Auto-Detect names a program of this host."""
    is_known = search(read_beside(__file__, "apt_passed_on.txt"), line, re.IGNORECASE) is not None
    is_empty = line.endswith(' "";')
    return is_known and not is_empty and "Proxy-Auto-Detect" not in line


def mirror_state(sources: str, settings: Settings) -> str | None:
    """Return a hash of the mirror's signed release files: it changes when the mirror's packages do.

    Args:
        sources: apt sources in deb822 form.
        settings: the temporary folder.

    Returns:
        The hash in hex. Empty when a URL has a password, which must not appear in the arguments of
        a process: a base made before counts as current then. None when the mirror does not answer.
    """
    state, stanzas = hashlib.sha256(), parse_stanzas(sources)
    with temporary_folder(settings.tmpdir, 0o700) as tmp:
        settings_file = tmp / "apt.conf"
        settings_file.write_text(apt_options(tmp, uris_of(stanzas)))
        env = {**os.environ, "APT_CONFIG": str(settings_file)}
        for number, url in enumerate(_release_files(stanzas)):
            if "@" in url.partition("://")[2].partition("/")[0]:
                return ""
            target = tmp / str(number)
            command = [_APT_HELPER, "-o", f"Dir::State={tmp}", "download-file", url, str(target)]
            try:
                subprocess.run(
                    command,
                    check=True,
                    capture_output=True,
                    timeout=120,
                    stdin=subprocess.DEVNULL,
                    env=env,
                )
                state.update(target.read_bytes())
            except (OSError, subprocess.SubprocessError):
                return None
    return state.hexdigest()


def _release_files(stanzas: Iterable[Mapping[str, str]]) -> Iterator[str]:
    for stanza in stanzas:
        for uri in uris_of([stanza]):
            for suite in stanza.get("Suites", "").split():
                yield f"{uri.rstrip('/')}/dists/{suite}/InRelease"
