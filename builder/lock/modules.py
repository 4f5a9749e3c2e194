"""The list of the Python modules that a target's imports read: ``bytecode: imported`` compiles these.

It is in the lock's metadata, a line for each folder below ``lib/pythonX.Y``, with the names of its modules::

    .: argparse ast base64
    site-packages: six
    site-packages/torch: __init__ _jit_internal functional

It holds neither the prefix nor the version of Python, so both can change. It is no input of the lock: the
lock is not stale without it, and a new solve keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from builder.errors import LockError
from builder.model import Lock

#: Key of the lock's metadata.
MODULES = "builder.modules"
#: Modules of a list. In target cpu ``import torch`` reads 978, in 171 lines.
MAX_MODULES = 100_000
#: Characters of a path.
_MAX_PATH = 1000
#: Below ``lib/pythonX.Y``. No part begins with a dot, so no path leads out.
_PATH = re.compile(r"(?:\w[\w.+~-]*/)*\w[\w.+~-]*\.py")
_SUFFIX = ".py"


def is_module_path(path: str) -> bool:
    """Whether a path below ``lib/pythonX.Y`` can be in a list: ``site-packages/torch/__init__.py``."""
    return len(path) <= _MAX_PATH and _PATH.fullmatch(path) is not None


def modules_text(paths: Iterable[str]) -> str:
    """The value of :data:`MODULES` for paths that :func:`is_module_path` accepts."""
    folders: dict[str, list[str]] = {}
    for path in sorted(set(paths)):
        folder, _, name = path.rpartition("/")
        folders.setdefault(folder or ".", []).append(name.removesuffix(_SUFFIX))
    return "\n".join(f"{folder}: {' '.join(names)}" for folder, names in sorted(folders.items()))


def listed_modules(lock: Lock) -> frozenset[str] | None:
    """The paths in a lock's list; None if it has no list.

    Raises:
        LockError: the list is damaged.
    """
    text = lock.custom.get(MODULES)
    if text is None:
        return None
    paths: set[str] = set()
    for line in text.split("\n"):
        folder, _, names = line.partition(": ")
        below = "" if folder == "." else f"{folder}/"
        found = [f"{below}{name}{_SUFFIX}" for name in names.split(" ")]
        wrong = next((path for path in found if not is_module_path(path)), "")
        if wrong:
            raise _damaged(f"{wrong[:60]!r} is no module below lib/pythonX.Y")
        paths.update(found)
        if len(paths) > MAX_MODULES:
            raise _damaged(f"more than {MAX_MODULES:,} modules")
    return frozenset(paths)


def _damaged(problem: str) -> LockError:
    return LockError(f"the lock's {MODULES} is damaged: {problem}", "list them again: builder lock --imports")
