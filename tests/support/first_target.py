"""Chooses the target of ``make image``: cpu, or cpu-jax where nothing has torch for the CPU.

``python -m tests.support.first_target`` prints the target on stdout, and the reason on stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path

from builder.core.errors import BuilderError
from builder.core.settings import Settings
from builder.formats.net.findlinks import FindLinks, as_path
from builder.formats.net.http import make_client, probe
from builder.formats.net.mirrors import mirrored_url
from builder.lock.config.recipe import load_recipe
from builder.lock.environment import read_environment

#: The end of a wheel's name for target cpu: PyTorch's label of builds for the CPU, Python and platform.
WHEEL_TAGS = "+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


def first_target(settings: Settings) -> tuple[str, str]:
    """Return the target and the reason: torch of cpu is from PyTorch's index, or from where pip looks."""
    recipe = load_recipe("cpu", Path(__file__).parents[2])
    environment = read_environment(recipe.environment_path, recipe.platform)
    torch = next(spec.text for spec in environment.pip if spec.name == "torch")  # torch==VERSION
    wheel = torch.replace("==", "-") + WHEEL_TAGS
    index = environment.extra_index_urls[0]
    if not (problem := _problem(mirrored_url(settings, index))):
        return "cpu", f"{index} has torch for the CPU"
    if _pip_finds(wheel):
        return "cpu", f"pip's configuration has {wheel}"
    return "cpu-jax", f"{index} does not answer ({problem}), and pip's configuration has no {wheel}"


def _problem(index: str) -> str:
    """Return the reason why an index, or a folder that mirrors it, has no torch; empty if it has."""
    folder = as_path(f"{index}/torch")
    if folder is None:
        return probe(f"{index}/torch/")
    return "" if folder.is_dir() else f"no folder {folder}"


def _pip_finds(wheel: str) -> bool:
    """Return whether the find-links and indexes of pip's configuration have a wheel."""
    places = FindLinks()
    with make_client() as client:
        return any(places.local(wheel)) or any(places.remote(wheel, client))


if __name__ == "__main__":
    try:
        target, reason = first_target(Settings.from_environment())
    except BuilderError as e:
        sys.exit(f"no target: {e.message}")
    print(f"target {target}: {reason}", file=sys.stderr)
    print(target)
