"""The Debian package sources of this machine, as its apt settings name them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from builder.errors import ImageError

_OPTION_NAMES = {"arch": "Architectures", "lang": "Languages", "target": "Targets"}


def apt_sources(
    suite: str, folder: Path = Path("/etc/apt"), os_release: Path = Path("/etc/os-release")
) -> str:
    """This machine's apt sources for a Debian suite, its updates and security fixes, in deb822 form (sources.list(5)).

    On a Debian machine of another suite, its own suite's sources with the name replaced.

    Raises:
        ImageError: it has none.
    """
    stanzas = list(_stanzas(folder))
    found = _for_suite(stanzas, suite, suite)
    release = _os_release(os_release)
    if not found and release.get("ID") == "debian":
        found = _for_suite(stanzas, release.get("VERSION_CODENAME", ""), suite)
    if not found:
        raise ImageError(
            f"this machine's apt sources ({folder}) name no mirror for Debian {suite}",
            f"add one to {folder / 'sources.list.d'}, or take a base from docker:// or oci:",
        )
    return "\n".join("".join(f"{k}: {v}\n" for k, v in stanza.items()) for stanza in found)


def _for_suite(stanzas: list[dict[str, str]], own: str, wanted: str) -> list[dict[str, str]]:
    found = []
    for stanza in stanzas:
        suites = [
            s
            for s in stanza.get("Suites", "").split()
            if s in (own, f"{own}-updates", f"{own}-security", f"{own}/updates")
        ]
        if own and suites and "main" in stanza.get("Components", "").split():
            kept = {k: v for k, v in stanza.items() if k != "Architectures"}
            found.append(
                {
                    **kept,
                    "Types": "deb",
                    "Suites": " ".join(wanted + s.removeprefix(own) for s in suites),
                    "Components": "main",
                }
            )
    return found


def _stanzas(folder: Path) -> Iterator[dict[str, str]]:
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    for file in files:
        try:
            text = file.read_text()
        except OSError:
            continue
        if file.suffix == ".list":
            yield from filter(None, map(_one_line, text.splitlines()))
        elif file.suffix == ".sources":
            for block in re.split(r"\n\s*\n", text):
                stanza = parse_stanza(block)
                if "deb" in stanza.get("Types", "").split() and stanza.get(
                    "Enabled", "yes"
                ).strip().lower() not in (
                    "no",
                    "false",
                ):
                    yield stanza


def parse_stanza(block: str) -> dict[str, str]:
    stanza: dict[str, str] = {}
    key = ""
    for line in block.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace() and key:
            stanza[key] += f"\n{line}"
        elif ":" in line:
            name, _, value = line.partition(":")
            key = "-".join(
                "URIs" if part.lower() == "uris" else part.capitalize() for part in name.strip().split("-")
            )
            stanza[key] = value.strip()
    return stanza


def _one_line(line: str) -> dict[str, str] | None:
    match = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+(.+)", line.partition("#")[0].strip())
    if not match:
        return None
    options = dict(word.partition("=")[::2] for word in (match[1] or "").split())
    fields = {
        _OPTION_NAMES.get(k, "-".join(p.capitalize() for p in k.split("-"))): v.replace(",", " ")
        for k, v in options.items()
    }
    return {"Types": "deb", "URIs": match[2], "Suites": match[3], "Components": match[4], **fields}


def _os_release(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {k: v.strip("\"'") for k, sep, v in (line.partition("=") for line in lines) if sep}
