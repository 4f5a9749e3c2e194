"""The Debian package sources of this machine, read from apt's settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from builder.core.errors import ImageError
from builder.core.store.reading import text_of

#: Options of one-line sources (sources.list(5)) whose names differ from those of the deb822 form.
_OPTION_NAMES = {"arch": "Architectures", "lang": "Languages", "target": "Targets"}


def apt_sources(
    suite: str, folder: Path = Path("/etc/apt"), os_release: Path = Path("/etc/os-release")
) -> str:
    """Return this machine's apt sources for a Debian suite, its updates and fixes, as deb822.

    On a Debian machine of another suite: the sources of that suite, with the suite's name replaced.

    Args:
        suite: the code name, such as ``bookworm``.
        folder: apt's configuration folder.
        os_release: the file that names this machine's distribution.

    Raises:
        ImageError: the sources name no mirror for the suite.
    """
    stanzas = list(host_sources(folder))
    found = _for_suite(stanzas, suite, suite)
    release = parse_os_release(text_of(os_release))
    if not found and release.get("ID") == "debian":
        found = _for_suite(stanzas, release.get("VERSION_CODENAME", ""), suite)
    if not found:
        problem = f"this machine's apt sources ({folder}) name no mirror for Debian {suite}"
        hint = f"add one to {folder / 'sources.list.d'}, or use a base image from docker:// or oci:"
        raise ImageError(problem, hint)
    return "\n".join(written(stanza) for stanza in found)


def host_id(os_release: Path) -> tuple[str, str]:
    """Return ID and code name of a distribution (os-release(5)), as ``("debian", "bookworm")``."""
    release = parse_os_release(text_of(os_release))
    return release.get("ID", ""), release.get("VERSION_CODENAME", "")


def written(stanza: Mapping[str, str]) -> str:
    """Return a paragraph in deb822 form."""
    return "".join(f"{key}: {value}\n" for key, value in stanza.items())


def _for_suite(stanzas: list[dict[str, str]], own: str, wanted: str) -> list[dict[str, str]]:
    """Return the sources of suite ``own`` with component ``main``, rewritten for ``wanted``."""
    if not own:
        return []
    # sid has no updates and no fixes of its own
    suffixes = ("",) if wanted == "sid" else ("", "-updates", "-security", "/updates")
    own_suites = [own + suffix for suffix in suffixes]
    found = []
    for stanza in stanzas:
        suites = [suite for suite in stanza.get("Suites", "").split() if suite in own_suites]
        if not suites or "main" not in stanza.get("Components", "").split():
            continue
        rewritten = {key: value for key, value in stanza.items() if key != "Architectures"}
        rewritten["Types"] = "deb"
        rewritten["Suites"] = " ".join(wanted + suite.removeprefix(own) for suite in suites)
        rewritten["Components"] = "main"
        found.append(rewritten)
    return found


def host_sources(folder: Path) -> Iterator[dict[str, str]]:
    """Yield all enabled sources of binary packages of a folder such as ``/etc/apt``, as deb822."""
    for file in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]:
        yield from parse_sources(file.name, text_of(file))


def parse_sources(name: str, text: str) -> Iterator[dict[str, str]]:
    """Yield the enabled sources of binary packages in a file, whose name tells the form."""
    if name.endswith(".list"):
        yield from filter(None, map(_one_line, text.splitlines()))
    elif name.endswith(".sources"):
        yield from filter(_is_enabled, parse_stanzas(text))


def _is_enabled(stanza: Mapping[str, str]) -> bool:
    enabled = stanza.get("Enabled", "yes").strip().lower()
    return "deb" in stanza.get("Types", "").split() and enabled not in ("no", "false")


def parse_stanzas(text: str) -> list[dict[str, str]]:
    """Return the paragraphs of deb822 text."""
    return [parse_stanza(block) for block in re.split(r"\n\s*\n", text) if block.strip()]


def uris_of(sources: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the URIs of apt sources."""
    return [uri for source in sources for uri in source.get("URIs", "").split()]


def parse_stanza(block: str) -> dict[str, str]:
    """Return one paragraph of deb822 text, with field names in their usual spelling."""
    stanza: dict[str, list[str]] = {}
    key = ""
    for line in block.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace() and key:
            stanza[key].append(line)
        elif ":" in line:
            name, _, value = line.partition(":")
            key = "URIs" if name.strip().lower() == "uris" else _capitalized(name.strip())
            stanza[key] = [value.strip()]
    return {key: "\n".join(lines) for key, lines in stanza.items()}


def _one_line(line: str) -> dict[str, str] | None:
    """Return a line such as ``deb [arch=amd64] http://host/debian bookworm main`` as a stanza."""
    text = line.partition("#")[0].strip()
    match = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+(.+)", text)
    if not match:
        return None
    stanza = {"Types": "deb", "URIs": match[2], "Suites": match[3], "Components": match[4]}
    for option in (match[1] or "").split():
        name, _, value = option.partition("=")
        stanza[_OPTION_NAMES.get(name) or _capitalized(name)] = value.replace(",", " ")
    return stanza


def _capitalized(name: str) -> str:
    return "-".join(part.capitalize() for part in name.split("-"))


def parse_os_release(text: str) -> dict[str, str]:
    """Return the variables of an os-release(5)."""
    pairs = [line.strip().partition("=") for line in text.splitlines() if not line.startswith("#")]
    return {key: value.strip("\"'") for key, separator, value in pairs if separator}
