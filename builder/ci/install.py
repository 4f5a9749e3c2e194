"""How a workflow installs builder: from where this installation came."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from builder.errors import UsageError
from builder.redact import redact
from builder.version import __version__

#: The name of the distribution on a package index. The command and the package are called builder.
DISTRIBUTION = "builder-images"
#: A requirement, a URL or a path: printable, and without what GitHub would replace.
_SPEC = re.compile(r"[\x20-\x7e]{1,500}")


def setup_command(install: str | None, setup: str | None) -> str:
    """Returns the shell command that puts builder into ``.venv`` of a checkout.

    Args:
        install: what pip installs; None: what this installation was made from.
        setup: the whole command instead.

    Raises:
        UsageError: both are given, one is not plain text or contains a password, or this installation came
            from a folder, which a workflow does not have.
    """
    if install and setup:
        raise UsageError("--install and --setup exclude each other", "omit one of them")
    for option, text in (("--install", install), ("--setup", setup)):
        if text is not None and (not _SPEC.fullmatch(text) or "${{" in text):
            raise UsageError(
                f"{option}: {text[:40]!r} is not a line of plain text", "builder ci github --help"
            )
        if text is not None and _has_password(text):
            raise UsageError(
                f"{option} {redact(text)}: contains a password or token, and the workflow is committed",
                "pass --setup COMMAND with a variable that a secret sets: git+https://$NAME@HOST/...",
            )
    if setup:
        return setup
    spec = install or installed_from(_direct_url(), repository())
    return f"python3 -m venv .venv && .venv/bin/pip install --quiet {shlex.quote(spec)}"


def _has_password(text: str) -> bool:
    """Whether a URL has more than the user name of ``ssh://git@host``."""
    without_user = re.sub(r"(?<=ssh://)[\w.-]+@", "", text)
    return redact(without_user) != without_user


def installed_from(direct_url: Mapping[str, Any], address: str) -> str:
    """Returns what pip installs to get this version of builder.

    Args:
        direct_url: the content of ``direct_url.json``, which pip writes (PEP 610); empty: there is none.
        address: the address of builder's repository; empty: nobody has set it.

    Raises:
        UsageError: builder did not come from a URL that a workflow can reach, and there is no address. An
            index is no such URL: on the public one, anybody can register the distribution's name.
    """
    url, vcs = str(direct_url.get("url", "")), direct_url.get("vcs_info")
    is_remote = url.startswith(("https://", "ssh://"))
    if is_remote and isinstance(vcs, dict) and vcs.get("vcs") == "git":
        public = redact(url) if url.startswith("https://") else url  # git@ of ssh is no credential
        return f"git+{public}@{vcs.get('commit_id', 'main')}"
    if is_remote and not vcs:
        return f"{DISTRIBUTION} @ {redact(url)}"
    if address:
        return f"git+{address}@v{__version__}"
    raise UsageError(
        "the workflow needs an address to install builder from: this builder came from a folder or an index "
        "of this machine, and its pyproject.toml does not set Repository below [project.urls]",
        "set it, or pass --install 'git+https://HOST/OWNER/builder@TAG', a URL of a wheel, or a wheel in "
        "your repository: --install ./wheels/NAME.whl",
    )


def repository() -> str:
    """Returns the address of builder's repository (``[project.urls]`` of pyproject.toml); empty: not set."""
    try:
        urls = distribution(DISTRIBUTION).metadata.get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    return next((url for name, _, url in (text.partition(", ") for text in urls) if name == "Repository"), "")


def _direct_url() -> Mapping[str, Any]:
    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
        found = json.loads(text) if text else None
    except (PackageNotFoundError, ValueError):
        return {}  # run from a checkout, not installed
    return found if isinstance(found, dict) else {}
