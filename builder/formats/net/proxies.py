"""Proxies from the environment, as curl and Go read it, and the hosts that are this machine."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from builder.core.errors import FetchError

#: Kinds of proxies that httpx2 2.16 can use.
_KINDS = ("http", "https", "socks5", "socks5h")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that a variable names."""

    variable: str
    url: str
    """May have a user name and a password."""

    def __str__(self) -> str:
        return f"the proxy {urlsplit(self.url).netloc.rpartition('@')[2]} of {self.variable}"


def is_loopback(host: str) -> bool:
    """Return whether ``host[:port]`` names this machine; decided from the text alone."""
    pattern = r"(.*\.)?localhost|::1|127(\.\d{1,3}){3}"
    return re.fullmatch(pattern, host_name(host)) is not None


def host_name(host: str) -> str:
    """Return the host of ``host[:port]``."""
    return host[1 : host.index("]")] if host.startswith("[") else host.partition(":")[0]


def proxy_for(url: str) -> Proxy | None:
    """Return the proxy for a URL: that of its scheme, else ALL_PROXY. None: it is asked directly.

    This machine and the hosts in NO_PROXY are asked directly. Entries of NO_PROXY: names, which
    include all names below them, ``*.name`` (these alone), addresses, ranges (``10.0.0.0/8``,
    ``fd00::/8``), each but ranges with or without a port, and ``*``.

    Raises:
        FetchError: the variable names something else than a proxy.
    """
    target = urlsplit(url)
    proxy = named_proxy(target.scheme)
    if proxy is None or is_loopback(target.netloc.rpartition("@")[2].lower()):
        return None
    if any(_includes(name, port, target) for name, port in _excluded()):
        return None
    try:
        parts = urlsplit(proxy.url)
        valid = parts.scheme in _KINDS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        kinds = ", ".join(f"{kind}://HOST:PORT" for kind in _KINDS)
        problem = f"{proxy.variable} does not name a proxy that builder can use"
        raise FetchError(problem, f"correct it ({kinds}), or unset it")
    return proxy


def exclusions() -> dict[str, str]:
    """Return NO_PROXY for programs that read less of it: uv, rattler and git.

    reqwest and curl 7.88 know neither ``*.name`` nor a port, and ask a proxy for this machine.
    """
    names = [name.removeprefix("*.") for name, _ in _excluded()]
    loopback = ("localhost", "127.0.0.1", "127.0.0.0/8", "::1")
    value = "*" if "*" in names else ",".join([*names, *loopback])  # curl knows * alone
    return {"no_proxy": value, "NO_PROXY": value}


def named_proxy(scheme: str) -> Proxy | None:
    """Return the proxy that is named for a scheme; some hosts may be asked directly."""
    names = [f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"]
    for name in names:
        if value := os.environ.get(name, "").strip():
            return Proxy(name, value if "://" in value else f"http://{value}")
    return None


def _excluded() -> Iterator[tuple[str, str]]:
    """Yield the names, addresses and ranges in NO_PROXY, each with its port or an empty text."""
    text = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    for entry in re.split(r"[,\s]+", text.lower()):
        found = re.fullmatch(r"([^:]*|\[.*\]):(\d+)", entry)
        name, port = found.groups() if found else (entry, "")
        if name := _as_in_dns(name.strip("[]")):
            yield name, port


def _as_in_dns(name: str) -> str:
    """Return a name with ``xn--`` labels, without dots around it."""
    with suppress(UnicodeError):
        return name.strip(".").encode("idna").decode()
    return name


def _includes(name: str, port: str, target: SplitResult) -> bool:
    """Return whether an entry of NO_PROXY includes the host of a URL."""
    host = _as_in_dns(target.hostname or "")
    if port and int(port) != (target.port or _PORTS.get(target.scheme)):
        return False
    if name == "*":
        return True
    with suppress(ValueError):  # a name
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    if name.startswith("*."):
        return host.endswith(name[1:])
    return host == name or host.endswith(f".{name}")
