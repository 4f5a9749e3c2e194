"""Programs that install conda packages in an image: micromamba, and rattler with a Python to run it."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from builder.bases.image import BaseImage
from builder.bases.reference import KINDS
from builder.bases.resolve import open_base, resolve_base
from builder.engines.base import BuildRequest
from builder.engines.folders import build_folder
from builder.errors import FetchError, ImageError
from builder.layers.conda_order import link_order
from builder.model import Fetched, LockedPackage
from builder.store.blobs import Store
from builder.store.files import link_or_copy, space_errors, write_atomic
from builder.store.folders import CacheFolders
from builder.trees.member import Kind
from builder.trees.sources import layer_source

_MICROMAMBA_PATHS = ("bin/micromamba", "usr/bin/micromamba")
#: Parts of Python's standard library that rattler does not need.
_UNUSED_PYTHON = ("test", "idlelib", "lib2to3", "ensurepip")


def micromamba(request: BuildRequest) -> Path:
    """Returns the path of micromamba: the file that the recipe names, or a copy from the image that it names.

    Raises:
        FetchError: The file does not exist, or the image is not in the cache and builder is offline.
        RegistryError, ImageError, ConfigError: The image is not available, or does not contain micromamba.
    """
    recipe, settings = request.recipe, request.settings
    where = recipe.installer.micromamba
    if where.partition(":")[0] not in KINDS:
        path = recipe.root / Path(where).expanduser()
        if not path.is_file():
            raise FetchError(
                f"{recipe.source}: installer.micromamba: {path} does not exist",
                "correct the path, or name an image: docker://...",
            )
        return path

    key = hashlib.sha256(f"{where} {recipe.architecture}".encode()).hexdigest()[:32]
    cached = CacheFolders(settings.cache).tools / f"micromamba-{key}"
    if cached.exists():
        return cached
    if settings.offline and where.startswith("docker:"):
        raise FetchError(
            f"micromamba: {where} is not in the cache, and builder is offline", "build once with a network"
        )
    data = _micromamba_in(_open_image(request, where), request.store)
    if data is None:
        raise ImageError(
            f"{where} does not contain /bin/micromamba", "correct installer.micromamba in the recipe"
        )
    write_atomic(cached, data)
    return cached


def _open_image(request: BuildRequest, reference: str) -> BaseImage:
    recipe, settings, store = request.recipe, request.settings, request.store
    locked = resolve_base(
        reference, recipe.architecture, settings, store, root=recipe.root, reporter=request.reporter
    )
    return open_base(
        locked, recipe.architecture, settings, store, root=recipe.root, reporter=request.reporter
    )


def _micromamba_in(image: BaseImage, store: Store) -> bytes | None:
    for layer in reversed(image.layers):
        for member, content in layer_source(layer, store)():
            if member.kind is Kind.FILE and member.path in _MICROMAMBA_PATHS:
                return b"".join(content)
    return None


def rattler_tool(request: BuildRequest, conda: Sequence[Fetched]) -> Path:
    """Returns a tar of the locked Python with py-rattler beside it, in ``builder-site``.

    The packages are unpacked only and not installed: Python finds its standard library relative to its own
    program. The tar is stored in the cache for each combination of Python and py-rattler.
    """
    import rattler

    needed = python_closure([f.package for f in conda])
    archives = [f for f in conda if f.package in needed]
    names = "\n".join([rattler.__version__, *sorted(f.package.key for f in archives)])
    key = hashlib.sha256(names.encode()).hexdigest()[:32]
    cached = CacheFolders(request.settings.cache).tools / f"rattler-{key}.tar"
    with request.store.lock(f"tool {key}"):
        if cached.exists():
            return cached
        with build_folder(request) as folder:
            tree = _python_tree(archives, folder)
            shutil.copytree(
                Path(rattler.__file__).parent,
                tree / "builder-site" / "rattler",
                ignore=shutil.ignore_patterns("__pycache__"),
            )
            with space_errors(cached.parent):
                cached.parent.mkdir(parents=True, exist_ok=True)
                with tarfile.open(folder / "tool.tar", "w") as tar:
                    tar.add(tree, ".", filter=_owned_by_root)
                (folder / "tool.tar").replace(cached)
    return cached


def _python_tree(archives: Sequence[Fetched], folder: Path) -> Path:
    """Unpacks packages into one tree in ``folder``."""
    from rattler.package_streaming import extract

    tree = folder / "tree"
    for number, fetched in enumerate(archives):
        # rattler detects the format by the file's name, and the cache names files by their hashes
        archive = folder / fetched.package.filename
        link_or_copy(fetched.path, archive)
        unpacked = folder / f"package-{number}"
        extract(archive, unpacked)
        shutil.rmtree(unpacked / "info", ignore_errors=True)
        shutil.copytree(unpacked, tree, symlinks=True, dirs_exist_ok=True)
    for name in _UNUSED_PYTHON:
        for found in tree.glob(f"lib/python3*/{name}"):
            shutil.rmtree(found, ignore_errors=True)
    return tree


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def python_closure(packages: Sequence[LockedPackage]) -> list[LockedPackage]:
    """Returns the locked python and everything it depends on, in link order."""
    by_name = {package.name: package for package in packages}
    wanted: set[str] = set()
    todo = ["python"]
    while todo:
        name = todo.pop()
        if name in by_name and name not in wanted:
            wanted.add(name)
            todo += by_name[name].dependencies
    return link_order([by_name[name] for name in wanted])
