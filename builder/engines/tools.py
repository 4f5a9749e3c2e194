"""Programs that install conda packages in an image: micromamba, and rattler with a Python to run it."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

from builder.bases.image import BaseImage
from builder.bases.reference import KINDS
from builder.bases.resolve import open_base, resolve_base
from builder.engines.base import BuildRequest
from builder.engines.folders import build_folder
from builder.errors import FetchError, ImageError
from builder.layers.conda_archive import CondaMember, open_part, read_part
from builder.layers.conda_order import link_order
from builder.model import Fetched, LockedPackage
from builder.settings import expand_home
from builder.store.blobs import Store
from builder.store.files import space_errors, write_atomic
from builder.store.folders import CacheFolders
from builder.trees.member import Kind, Member
from builder.trees.rootfs import new_tree
from builder.trees.sources import layer_source

_MICROMAMBA_PATHS = ("bin/micromamba", "usr/bin/micromamba")
#: Bytes of micromamba, which is held in memory. It has about 20 MB.
MAX_MICROMAMBA = 256 << 20
#: Where py-rattler is in the tar.
_SITE = "builder-site"
#: Metadata, and parts of Python's standard library that rattler does not need.
_UNUSED = re.compile(r"info/|lib/python3[^/]*/(test|idlelib|lib2to3|ensurepip)(/|\Z)")


def micromamba(request: BuildRequest) -> Path:
    """Returns the path of micromamba: the file that the recipe names, or a copy from the image that it names.

    Raises:
        FetchError: The file does not exist, or the image is not in the cache and builder is offline.
        RegistryError, ImageError, ConfigError: The image is not available, or does not contain micromamba.
    """
    recipe, settings = request.recipe, request.settings
    where = recipe.installer.micromamba
    if where.partition(":")[0] not in KINDS:
        path = recipe.root / expand_home(where)
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
    write_atomic(cached, data, durable=True)
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
                if member.size > MAX_MICROMAMBA:
                    raise ImageError(
                        f"{image.reference}: {member.path} has {member.size} bytes; "
                        f"at most {MAX_MICROMAMBA} are allowed",
                        "correct installer.micromamba in the recipe",
                    )
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
        if not cached.exists():
            with build_folder(request) as folder, space_errors(cached.parent):
                cached.parent.mkdir(parents=True, exist_ok=True)
                write_tool(archives, folder, folder / "tool.tar", request.settings.epoch)
                (folder / "tool.tar").replace(cached)
    return cached


def write_tool(archives: Sequence[Fetched], folder: Path, target: Path, epoch: int) -> None:
    """Writes the files of packages, and py-rattler beside them, into a tar.

    Args:
        archives: the packages; the files of later ones win.
        folder: where they are unpacked.
        target: the tar.
        epoch: the time of the packages' files.

    Raises:
        LayerError, ImageError: a package is damaged or unsafe.
    """
    import rattler

    sizes = [3 * f.path.stat().st_size for f in archives]
    with new_tree(folder / "tree", sum(sizes), rootless=True) as tree:
        # The writer follows the links of one package for the files of another one, but only inside the tree.
        for fetched in archives:
            with open_part(fetched, "pkg") as reader:
                for member in read_part(fetched, reader):
                    if not _UNUSED.match(member.target if member.kind == "hardlink" else member.path):
                        tree.add(_tree_member(member, epoch), reader.chunks(member.size))
    with tarfile.open(target, "w") as tar:
        tar.add(folder / "tree", ".", filter=_packed)
        tar.add(Path(rattler.__file__).parent, f"./{_SITE}/rattler", filter=_without_bytecode)


def _tree_member(member: CondaMember, epoch: int) -> Member:
    kind = {"file": Kind.FILE, "dir": Kind.DIRECTORY, "symlink": Kind.SYMLINK, "hardlink": Kind.HARDLINK}
    mode = member.mode & 0o777
    return Member(member.path, kind[member.kind], mode, size=member.size, mtime=epoch, target=member.target)


def _packed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """The member for the tar; None for what the packages have at py-rattler's place."""
    if member.name == f"./{_SITE}" or member.name.startswith(f"./{_SITE}/"):
        return None
    return _owned_by_root(member)


def _without_bytecode(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith("/__pycache__") else _owned_by_root(member)


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
