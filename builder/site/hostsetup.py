"""Shell lines that prepare the host for a job: HOME, modules, and the site's own lines."""

from __future__ import annotations

from collections.abc import Sequence

from builder.config.site import Additions, Site
from builder.site.containers import HOME_VARIABLE
from builder.site.shell import quote, with_account


def host_setup(site: Site, additions: Sequence[Additions] = (), *, account: str = "") -> list[str]:
    """Returns the lines that a job of a site runs first.

    Args:
        site: its HOME, modules and own lines.
        additions: further modules and lines: of the network, of MPI.
        account: replaces ``{account}`` in ``runtime.home``; empty: the variable ``SLURM_JOB_ACCOUNT``.
    """
    lines = []
    if site.runtime.home:
        home = with_account(site.runtime.home, account)
        lines += [f"export HOME={quote(home)}", 'mkdir -p "$HOME"']
        if site.runtime.kind in HOME_VARIABLE:
            lines.append(f'export {HOME_VARIABLE[site.runtime.kind]}="$HOME"')
    parts: list[Site | Additions] = [site, *additions]
    modules = dict.fromkeys(module for part in parts for module in part.modules)
    lines += [f"module load {quote(module)}" for module in modules]
    lines += [line for part in parts for line in part.setup]
    return lines
