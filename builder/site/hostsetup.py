"""Shell lines that prepare the host for a job: proxy, HOME, modules, and the site's own lines."""

from __future__ import annotations

from collections.abc import Sequence

from builder.config.site import Additions, Proxy, Site
from builder.site.containers import HOME_VARIABLE
from builder.site.shell import ShellText, join, quote, with_account


def host_setup(site: Site, additions: Sequence[Additions] = (), *, account: str = "") -> list[str]:
    """Returns the lines that a job of a site runs first.

    Args:
        site: its proxy, HOME, modules and own lines.
        additions: further modules and lines: of the network, of MPI.
        account: replaces ``{account}`` in ``runtime.home``; empty: the variable ``SLURM_JOB_ACCOUNT``.
    """
    lines = _proxy_lines(site.proxy) if site.proxy else []
    if site.runtime.home:
        home = with_account(site.runtime.home, account)
        lines += [f"export HOME={quote(home)}", 'mkdir -p "$HOME"']
        if site.runtime.kind in HOME_VARIABLE:
            lines.append(f'export {HOME_VARIABLE[site.runtime.kind]}="$HOME"')
    parts: list[Site | Additions] = [site, *additions]
    lines += [f"module use {quote(ShellText(folder))}" for part in parts for folder in part.module_use]
    modules = dict.fromkeys(module for part in parts for module in part.modules)
    lines += [f"module load {quote(module)}" for module in modules]
    lines += [line for part in parts for line in part.setup]
    return lines


def proxy_variables(proxy: Proxy) -> dict[str, str]:
    """Returns the variables by which programs find a proxy; some read one case only."""
    values = {"http_proxy": proxy.url, "https_proxy": proxy.url, "no_proxy": ",".join(proxy.no_proxy)}
    return {name: value for key, value in values.items() for name in (key, key.upper())}


def _proxy_lines(proxy: Proxy) -> list[str]:
    return ["export " + join(name, "=", quote(value)) for name, value in proxy_variables(proxy).items()]
