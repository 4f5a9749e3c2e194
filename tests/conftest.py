"""Fixtures that every test may use.

The parts are described in tests/support/parts.py; each pytest worker has one of each.
"""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest

from tests.support import parts
from tests.support.slurm import slurm  # noqa: F401  a fixture

#: Compiled modules, where PYTHONDONTWRITEBYTECODE is set.
PYCACHE = Path(__file__).parents[1] / ".cache" / "pycache"


def keep_compiled_modules() -> None:
    """Lets the processes that tests start share compiled modules, which are not beside the sources."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(PYCACHE)
        sys.dont_write_bytecode = False


keep_compiled_modules()  # before pytest imports tests and xdist starts workers

#: HYPOTHESIS_PROFILE=soak looks for new cases, for minutes to hours. See tests/support/fuzz.py.
hypothesis.settings.register_profile("soak", max_examples=5000, deadline=None)
#: A slow example is no failure: the machine may be busy. Hypothesis's own profile for CI is like this.
hypothesis.settings.register_profile(
    "local", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
if os.environ.get("CI") != "true":
    hypothesis.settings.load_profile("local")


def pytest_configure() -> None:
    """Lets uv, where tests call it, trust the system's authorities as pip does, and unblocks Ctrl-C.

    Background jobs of a shell ignore or block signals, and children inherit that.
    """
    os.environ.setdefault("UV_SYSTEM_CERTS", "1")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets soak tests run longer than the time limit of a test (pyproject.toml)."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "soak":
        for item in items:
            item.add_marker(pytest.mark.timeout(0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the skipped tests by reason: pytest's own list repeats "needs root" for each line of a test."""
    files: dict[str, Counter[str]] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        files.setdefault(reason, Counter())[report.nodeid.partition("::")[0]] += 1
    if files:
        terminalreporter.section("skipped tests, by reason")
    for reason, counts in sorted(files.items(), key=lambda item: -item[1].total()):
        terminalreporter.line(f"{counts.total()}: {reason}")
        listed = ", ".join(f"{file} ({number})" for file, number in sorted(counts.items()))
        terminalreporter.line(textwrap.indent(textwrap.fill(listed, 106, break_on_hyphens=False), "    "))


@pytest.fixture(scope="session")
def part_missing() -> Callable[[str], NoReturn]:
    """``part_missing(reason)`` skips, or fails when CI=true."""
    return parts.part_missing


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[parts.DockerEngine]:
    """A real Docker engine on a unix socket (root only)."""
    with parts.docker_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def make_registry() -> Iterator[parts.RegistryFactory]:
    """``make_registry(htpasswd=None, tls=False, readonly=False, root=None)`` starts one on loopback."""
    with parts.registries() as factory:
        yield factory


@pytest.fixture(scope="session")
def registry(make_registry: parts.RegistryFactory) -> parts.Registry:
    """A plain http registry, shared by all tests: use a repository name of your own."""
    return make_registry()


@pytest.fixture(scope="session")
def podman() -> Iterator[parts.Podman]:
    """podman with a storage of its own."""
    with parts.podman() as part:
        yield part


@pytest.fixture(scope="session")
def apptainer() -> Iterator[parts.Apptainer]:
    """Apptainer 1.4 from a private folder."""
    with parts.apptainer() as part:
        yield part


@pytest.fixture(scope="session")
def fuse() -> None:
    """Skips the tests that run a SIF with Apptainer if this user may not open /dev/fuse.

    Apptainer mounts a SIF with it, except for root.
    """
    if os.geteuid() == 0:
        return
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as e:
        parts.part_missing(
            f"this user may not open /dev/fuse, with which Apptainer mounts a SIF: {e.strerror}"
        )


@pytest.fixture(scope="session")
def ordinary_user() -> Iterator[parts.OrdinaryUser]:
    """A user who is not root."""
    with parts.ordinary_user() as user:
        yield user
