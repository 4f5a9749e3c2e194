"""Warns about wheels for two versions of CUDA in one lock: some contain the same files.

On PyPI a library is ``nvidia-NAME-cuVERSION``, with its files in ``nvidia/NAME`` whatever the version is.
NVIDIA's own ones have no number since CUDA 13, and their files are in ``nvidia/cu13``::

    nvidia-cudnn-cu12, nvidia-cudnn-cu13      nvidia/cudnn/lib/libcudnn.so.9        one replaces the other
    nvidia-cublas-cu12, nvidia-cublas 13.4    nvidia/cublas/lib, nvidia/cu13/lib    both are there
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from builder.core.datafiles import table
from builder.core.model import LockedPackage
from builder.core.progress import Reporter

from .config.recipe import Recipe

#: Name and version of a library: the part of both that is the same, and the version of CUDA.
_LIBRARY = re.compile(r"nvidia-(?:(.+)-cu(\d+) .*|(?:cublas|cuda-runtime|nvjitlink) (\d\d)\..*)")


def warn_of_versions(recipe: Recipe, packages: Iterable[LockedPackage], reporter: Reporter) -> None:
    """Warn about libraries that replace each other; report those that are there for two versions."""
    wheels = [f"{p.name} {p.version}" for p in packages if p.manager == "pip"]
    found = list(filter(None, map(_LIBRARY.fullmatch, wheels)))
    versions = sorted({int(one[2] or one[3]) for one in found})
    if len(versions) < 2:
        return
    text = f"{recipe.name}: packages are for CUDA {' and '.join(map(str, versions))}"
    counts = Counter(one[1] for one in found if one[1])
    shared = ", ".join(one[0].split()[0] for one in found if counts[one[1]] > 1)
    if not shared:
        reporter.note(f"{text}: the image has the libraries of both, in different folders")
        return
    lines = "; ".join(_lines(recipe, wheels, versions)) or "choose packages for one of them"
    reporter.warn(f"{text}, and replace each other's files ({shared}): {lines}")


def _lines(recipe: Recipe, wheels: Iterable[str], versions: Collection[int]) -> Iterator[str]:
    """Yield what to write for each of the versions that the driver runs."""
    driver = recipe.virtual_packages.get("__cuda", "")
    newest = int(driver.partition(".")[0] or max(versions))
    for version, rows in table(__file__, "cuda.yaml").items():
        found = [
            line for pattern, line in rows.items() if any(re.match(pattern, w) for w in wheels)
        ]
        if found and version in versions and version <= newest:
            yield f"for CUDA {version} write {' and '.join(found)}"
