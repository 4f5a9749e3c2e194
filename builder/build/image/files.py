"""The files that builder adds to images: entry point, smoke test, lock, ``files:``.

The smoke test is builder/bench as one file, which Python runs. The file is a zip. Python runs any zip
that has a ``__main__.py`` at its top, under any file name, so that ``python /opt/builder/smoke.py``
works. The package's modules stay separate files in it:
tracebacks name them, and relative imports work. Everything is stored uncompressed, so that the file
can be read in the image even by a Python without zlib, and its bytes do not depend on a version of
zlib.
"""

from __future__ import annotations

import functools
import io
import shlex
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path

from builder import bench
from builder.core.datafiles import script
from builder.core.redact import redact
from builder.formats.layers.entry import Entry
from builder.lock.config.recipe import Recipe

from .recipe_files import recipe_entries

#: The package's name in the zip.
PACKAGE = "bench"
#: Files of other kinds, such as compiled modules or an editor's backups, are left out.
SUFFIXES = frozenset({".py"})

_UNIX = 3
#: The earliest time that a zip can hold.
_TIME = (1980, 1, 1, 0, 0, 0)


@functools.cache
def smoke_program() -> bytes:
    """Return the smoke test as one file; the same bytes for the same sources."""
    return pack(Path(bench.__file__).parent)


def pack(package: Path) -> bytes:
    """Return a package as a zip that Python runs; its ``main.main()`` returns the exit code.

    The bytes depend on the content of its files only, not on their times, modes or order.
    """
    members = {"__main__.py": script(__file__, "smoke_main.txt", package=PACKAGE).encode()}
    for path in package.rglob("*"):
        if path.suffix in SUFFIXES and path.is_file():
            members[f"{PACKAGE}/{path.relative_to(package).as_posix()}"] = path.read_bytes()

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, _TIME)
            info.create_system = _UNIX
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, members[name])
    return out.getvalue()


#: Folder of builder's own files in an image.
HOME = "/opt/builder"
ENTRYPOINT = f"{HOME}/entrypoint"
#: Name of a whiteout that hides everything that lower layers have in its folder (image-spec,
#: layer.md).
_OPAQUE = ".wh..wh..opq"


def entrypoint(recipe: Recipe, activation_scripts: Sequence[str]) -> str:
    """Return the entry point, a POSIX sh script.

    It sets the environment's variables, sources the activation scripts once and executes its
    arguments.

    Args:
        recipe: the environment's prefix and variables; its ``cmd`` runs if there are no arguments
            (``sh`` if it has none).
        activation_scripts: image paths of the ``activate.d`` scripts that do more than the image's
            config can express.
    """
    # The scripts are part of every image: a change of one character, even in a comment, changes the
    # digests of all images.
    prefix, command = shlex.quote(recipe.conda.prefix), shlex.join(recipe.cmd or ("sh",))
    activation = ""
    if activation_scripts:
        # The recipe's variables (or their values from `docker run -e`) override what a script sets.
        activation = script(
            __file__,
            "activation.sh",
            entrypoint=ENTRYPOINT,
            scripts=" ".join(shlex.quote("/" + s.lstrip("/")) for s in activation_scripts),
            keep="".join(f"    builder_keep_{n}=${{{n}-}}\n" for n in recipe.env),
            restore="".join(f"    {n}=$builder_keep_{n}\n    export {n}\n" for n in recipe.env),
        )
    values = {"prefix": prefix, "command": command, "activation": activation}
    return script(__file__, "entrypoint.sh", **values)


def system_entries(recipe: Recipe, lock_text: bytes, scripts: Sequence[str]) -> list[Entry]:
    """Return entry point, smoke test, lock file and the recipe's files, as members of one layer.

    Args:
        recipe: its ``files:``, ``cmd``, ``env`` and prefix.
        lock_text: the lock file; credentials in its URLs are removed.
        scripts: image paths of the scripts that the entry point sources.

    Raises:
        ConfigError: a file of the recipe does not exist, or its target would break the base.
    """
    home, started = HOME.lstrip("/"), entrypoint(recipe, scripts)
    entries = [
        Entry(home, "dir", 0o755),
        Entry.of(f"{home}/conda-lock.yml", lock_in_image(lock_text)),
        Entry.of(f"{home}/entrypoint", started.encode(), 0o755),
        Entry.of(f"{home}/smoke.py", smoke_program()),
    ]
    entries += recipe_entries(recipe)
    # A later file replaces an earlier one with the same path; folders are merged.
    last = {e.path: e for e in entries}
    return [e for e in entries if last[e.path] is e or e.kind == "dir" == last[e.path].kind]


def lock_in_image(lock_text: bytes) -> bytes:
    """Return the lock file as it is in an image: credentials in its URLs are removed."""
    return redact(lock_text.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def whiteout_entries(prefix: str) -> list[Entry]:
    """Return the members of a layer that hides what the base has at the environment's prefix.

    The layer is harmless if the base has nothing there.
    """
    folder = prefix.strip("/")
    return [Entry(folder, "dir", 0o755), Entry.of(f"{folder}/{_OPAQUE}", b"")]
