"""What the smoke test of an image tests: the recipe's ``smoke``, or what the lock suggests."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from builder.core.datafiles import table
from builder.core.model import LockedPackage
from builder.lock.config.smoketest import SmokeTest

#: Packages that install a framework, in the order in which a lock is searched.
_PACKAGES: dict[str, str] = table(__file__, "frameworks.yaml")
#: Packages that say nothing about an image: all have them.
_TRIVIAL = {"python", "pip", "setuptools", "wheel"}


@dataclass(frozen=True, slots=True)
class SmokePlan:
    """What is tested in an image. Two plans that are equal test the same."""

    framework: str = ""
    """``torch``, ``tensorflow`` or ``jax``; empty: none of them."""
    imports: tuple[str, ...] = ()
    """Modules to import."""
    packages: tuple[str, ...] = ()
    """Packages whose modules are imported; the image knows which modules these are."""
    command: tuple[str, ...] = ()
    """A program whose exit code decides."""
    timeout_s: int = 0
    """Seconds for ``command``."""
    none: str = ""
    """Why nothing is tested; empty: something is."""

    @property
    def title(self) -> str:
        """What is tested, in a few words."""
        parts = [self.framework] if self.framework else []
        if self.imports or self.packages:
            parts.append("imports")
        if self.command:
            parts.append("own command")
        return ", ".join(parts) or ("none" if self.none else "python")

    def to_json(self) -> dict[str, Any]:
        """Return the plan as the benchmark writes it into ``test`` of its report."""
        found = {key: value for key, value in asdict(self).items() if value}
        found.pop("timeout_s", None)
        return {key: list(v) if isinstance(v, tuple) else v for key, v in found.items()}

    def arguments(self) -> list[str]:
        """Return the benchmark's options."""
        out = ["--framework", self.framework or "none"]
        for option, names in (("--imports", self.imports), ("--packages", self.packages)):
            out += [option, ",".join(names)] if names else []
        if self.command:
            out += ["--command", json.dumps(list(self.command))]
            out += ["--command-timeout", str(self.timeout_s)]
        return out


#: The test of every image that has torch, and of all reports without ``test``, which older builders wrote.
TORCH = SmokePlan("torch")


def plan_smoke(
    test: SmokeTest, packages: Sequence[LockedPackage], requested: Iterable[str]
) -> SmokePlan:
    """Return the plan of an image's test.

    Args:
        test: the recipe's ``smoke``. If it is ``auto``, the packages decide: torch, TensorFlow or
            JAX where one of them is installed, else the modules of the requested packages.
        packages: of the image.
        requested: names of the packages that the environment file lists; empty: not known. Those
            that no other package needs take their place.
    """
    if not test.is_auto:
        timeout = test.timeout if test.command else 0
        none = test.none or ""
        return SmokePlan(test.framework or "", test.imports, (), test.command, timeout, none)
    installed = {package.name for package in packages}
    for framework, names in _PACKAGES.items():
        if any(map(re.compile(names).fullmatch, installed)):
            return SmokePlan(framework)
    needed = set(itertools.chain(*(package.dependencies for package in packages)))
    wanted = set(requested) or installed - needed
    return SmokePlan(packages=tuple(sorted(wanted - _TRIVIAL)))


def plan_of(report: dict[str, Any]) -> Any:
    """Return the plan in a report, to be compared with :meth:`SmokePlan.to_json`."""
    return report.get("test", TORCH.to_json())
