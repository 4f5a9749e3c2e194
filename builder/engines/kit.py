"""What an engine copies into an image to install the lock there: the locked archives, an installer, and one script.

The archives were fetched and checked by their hashes here, so nothing in the image needs a network. The program that installs the
conda packages is micromamba, or rattler on the locked Python itself; wheels are installed by the environment's own pip.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import shutil
import socket
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import certifi
from packaging.version import Version

from builder.bases.reference import KINDS
from builder.bases.resolve import open_base, resolve_base
from builder.engines.base import BuildRequest
from builder.engines.prepare import Prepared
from builder.errors import BuilderError, FetchError, ImageError, LockError
from builder.layers.conda import link_order
from builder.layers.conda_environment import recorded_url
from builder.model import Fetched, LockedPackage
from builder.store.files import remove_tree, sha256_file, space_errors, write_atomic
from builder.store.folders import CacheFolders
from builder.trees.inflate import inflate

#: Where the kit lies in the image while it is being built; nothing of it is left afterwards.
PLACE = "/opt/builder-kit"
#: py-rattler's wheels are for this Python and all later ones.
_RATTLER_PYTHON = Version("3.10")

_INSTALL = """\
#!/bin/sh
# Installs the locked packages of target {target}, without a network. Made by builder; docs/engines.md explains it.
set -eu
umask 022
kit={place}
prefix={prefix}
rm -rf "$prefix"
{conda}{pip}"""
_MICROMAMBA = """\
# the conda packages, by micromamba
chmod 755 "$kit/micromamba"
MAMBA_ROOT_PREFIX="$kit/mamba" "$kit/micromamba" create --yes --no-rc --no-pyc --prefix "$prefix" --file "$kit/conda.txt"
"""
_RATTLER = """\
# the conda packages, by rattler on the locked python
mkdir "$kit/tool"
tar -xf "$kit/tool.tar" -C "$kit/tool"
unset SSL_CERT_DIR
# rattler wants to see certificates, though it connects to nobody; not every base has some
SSL_CERT_FILE="$kit/cacert.pem" "$kit/tool/bin/python{python}" -I -S -B "$kit/install.py" "$kit" "$prefix"
"""
_PIP = """\
# the wheels, by the environment's own pip
PIP_CONFIG_FILE=/dev/null PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \\
    "$prefix/bin/python" -I -B -m pip install --no-index --no-deps --no-cache-dir --no-compile --require-hashes \\
    --find-links "$kit/wheels" --requirement "$kit/requirements.txt"
"""
#: Run by the locked Python, which lies unpacked in the kit; needs nothing but py-rattler beside it.
_INSTALL_PY = """\
import asyncio
import json
import os
import sys
from pathlib import Path

kit, prefix = sys.argv[1:]
sys.path.insert(0, kit + "/tool/builder-site")
from rattler import RepoDataRecord, install

with open(kit + "/urls.json") as listing:
    urls = json.load(listing)
with open(kit + "/requested.json") as listing:
    requested = json.load(listing)


async def main():
    records = [await RepoDataRecord.from_package_archive(kit + "/" + file) for file in urls]
    await install(records, prefix, cache_dir=kit + "/cache", execute_link_scripts=True, show_progress=False)
    print(len(records), "conda packages installed", flush=True)


def tell_origin():
    "conda-meta names the packages' public addresses, as after any installation, and may be read by everybody."
    public = {file.rsplit("/", 1)[1]: url for file, url in urls.items()}
    for path in Path(prefix, "conda-meta").glob("*.json"):
        record = json.loads(path.read_text())
        url = public[record["fn"]]
        record.update(url=url, channel=url.rsplit("/", 2)[0] + "/", link={"source": "", "type": 3})
        record.pop("extracted_package_dir", None)
        if record["name"] in requested:
            record.update(requested_spec=record["name"], requested_specs=[record["name"]])
        path.write_text(json.dumps(record, indent=2))
        path.chmod(0o644)
    Path(prefix, "CACHEDIR.TAG").unlink(missing_ok=True)  # it tells backup programs to leave the environment out


asyncio.run(main())
tell_origin()
os._exit(0)  # rattler's threads may still hold Python objects, which crashes an interpreter that ends in the usual way
"""


@dataclass(frozen=True)
class Kit:
    """The kit's files by their paths in it, and what installs the conda packages."""

    members: Mapping[str, bytes | Path]
    program: str
    """``micromamba`` or ``rattler``."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(len(m) if isinstance(m, bytes) else m.stat().st_size for m in self.members.values())

    def write(self, folder: Path) -> None:
        """Puts the kit into a new folder: links to the cache where the file system allows, copies elsewhere.

        Raises:
            SpaceError: the disk is full.
        """
        with space_errors(folder):
            for name, content in self.members.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, bytes):
                    path.write_bytes(content)
                else:
                    link_or_copy(content, path)


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link, or a copy where there can be none."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def build_folder(request: BuildRequest) -> Iterator[Path]:
    """A temporary folder of a build, beside the cache's blobs so that links to them can be made.

    What killed builds left on this host goes first.
    """
    folder = CacheFolders(request.settings.cache).tmp
    own = f"build-{socket.gethostname()}-"
    with space_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{own}*"):
            pid = old.name.removeprefix(own).partition("-")[0]
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                remove_tree(old)
        made = Path(tempfile.mkdtemp(prefix=f"{own}{os.getpid()}-", dir=folder))
    try:
        yield made
    finally:
        remove_tree(made)


def make_kit(request: BuildRequest, prepared: Prepared) -> Kit:
    """Gathers the kit of a build.

    Raises:
        LockError: wheels are locked, but no pip or no python that could install them.
        FetchError, RegistryError, ImageError: micromamba was asked for by name and cannot be had.
    """
    recipe = request.recipe
    conda = [f for f in prepared.fetched if f.package.manager == "conda"]
    wheels = [f for f in prepared.fetched if f.package.manager == "pip"]
    names = {f.package.name for f in conda}
    if wheels and not {"python", "pip"} <= names:
        missing = " and ".join(sorted({"python", "pip"} - names))
        raise LockError(
            f"the lock of target {recipe.name} has wheels but no {missing} from conda, and this engine installs wheels by pip",
            f"add {missing} to {recipe.environment} and lock again, or build with --engine layered, which needs neither",
        )
    members: dict[str, bytes | Path] = {}
    listing = ["@EXPLICIT"]
    for f in conda:
        path = f"conda/{f.package.subdir}/{f.package.filename}"
        members[path] = f.path
        listing.append(f"file://{PLACE}/{path}")
    members["conda.txt"] = _lines(listing)
    if wheels:
        members |= {f"wheels/{f.package.filename}": f.path for f in wheels}
        members["requirements.txt"] = _lines(
            f"{f.package.name}=={f.package.version} --hash={_sha256(f)}" for f in wheels
        )
    program, micromamba = _program(request)
    if micromamba is not None:
        members["micromamba"] = micromamba
        install = _MICROMAMBA
    else:
        python = prepared.context.python
        if not python or Version(python) < _RATTLER_PYTHON:
            raise LockError(
                f"target {recipe.name} locks {f'python {python}' if python else 'no python'}, "
                f"and rattler needs {_RATTLER_PYTHON} or newer",
                "let micromamba install it (installer: program: micromamba), or build with --engine layered",
            )
        members["tool.tar"] = _tool(request, conda)
        members["install.py"] = _INSTALL_PY.encode()
        members["cacert.pem"] = Path(certifi.where())
        urls = {f"conda/{f.package.subdir}/{f.package.filename}": recorded_url(f.package.url) for f in conda}
        members["urls.json"] = json.dumps(urls, indent=1).encode()
        members["requested.json"] = json.dumps(sorted(request.requested)).encode()
        install = _RATTLER.format(python=python)
    script = _INSTALL.format(
        target=recipe.name,
        place=PLACE,
        prefix=shlex.quote(recipe.conda.prefix),
        conda=install if conda else "",
        pip=_PIP if wheels else "",
    )
    members["install.sh"] = script.encode()
    return Kit(members, program)


def _lines(lines: Iterator[str] | list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _sha256(f: Fetched) -> str:
    return f"sha256:{f.package.sha256}" if f.package.sha256 else sha256_file(f.path)


# programs -------------------------------------------------------------------------------------------------------------


def _program(request: BuildRequest) -> tuple[str, Path | None]:
    """The installer that the recipe names, or the first that can be had; the path is micromamba's."""
    wanted = request.recipe.installer.program
    if wanted == "rattler":
        return wanted, None
    try:
        return "micromamba", micromamba(request)
    except BuilderError as e:
        if wanted == "micromamba":
            raise
        request.reporter.note(
            f"micromamba cannot be had ({e.message}); rattler installs the conda packages instead"
        )
        return "rattler", None


def micromamba(request: BuildRequest) -> Path:
    """The program, from the file or the image that the recipe names; an image is looked into once.

    Raises:
        FetchError: there is no such file.
        RegistryError, ImageError, ConfigError: the image cannot be had, or has no micromamba.
    """
    recipe, settings, store = request.recipe, request.settings, request.store
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
    kept = CacheFolders(settings.cache).tools / f"micromamba-{key}"
    if kept.exists():
        return kept
    if settings.offline and where.startswith("docker:"):
        raise FetchError(
            f"micromamba: {where} was not fetched yet, and this is offline", "build once with the network"
        )
    locked = resolve_base(
        where, recipe.architecture, settings, store, root=recipe.root, reporter=request.reporter
    )
    image = open_base(
        locked, recipe.architecture, settings, store, root=recipe.root, reporter=request.reporter
    )
    for layer in reversed(image.layers):
        if (
            layer.path is not None
            and (data := _member(layer.path, ("bin/micromamba", "usr/bin/micromamba"))) is not None
        ):
            write_atomic(kept, data)
            return kept
    raise ImageError(f"{where} has no /bin/micromamba", "correct installer.micromamba in the recipe")


def _member(blob: Path, names: tuple[str, ...]) -> bytes | None:
    """A file of a layer."""
    with tarfile.open(fileobj=_Stream(inflate(blob)), mode="r|") as tar:
        for member in tar:
            if member.isfile() and str(PurePosixPath(member.name)) in names:
                stream = tar.extractfile(member)
                return stream.read() if stream else None
    return None


class _Stream(io.RawIOBase):
    """Chunks of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._rest:
            self._rest = next(self._chunks, b"")
        n = min(len(buffer), len(self._rest))
        buffer[:n] = self._rest[:n]
        self._rest = self._rest[n:]
        return n


def _tool(request: BuildRequest, conda: list[Fetched]) -> Path:
    """A tar of the locked Python, as its packages hold it (it finds its own files wherever it lies), with py-rattler beside it.

    It is made once for a Python and a py-rattler, and kept in the cache.
    """
    import rattler
    from rattler.package_streaming import extract

    needed = python_closure([f.package for f in conda])
    archives = [f for f in conda if f.package in needed]
    package = Path(rattler.__file__).parent
    version = rattler.__version__
    key = hashlib.sha256("\n".join([version, *sorted(f.package.key for f in archives)]).encode()).hexdigest()[
        :32
    ]
    kept = CacheFolders(request.settings.cache).tools / f"rattler-{key}.tar"
    with request.store.lock(f"tool {key}"):
        if kept.exists():
            return kept
        with build_folder(request) as folder:
            tree = folder / "tree"
            for number, f in enumerate(archives):
                archive = (
                    folder / f.package.filename
                )  # the cache knows it by its hash; the extractor goes by the name
                link_or_copy(f.path, archive)
                extract(archive, folder / f"package-{number}")
                shutil.rmtree(folder / f"package-{number}" / "info", ignore_errors=True)
                shutil.copytree(folder / f"package-{number}", tree, symlinks=True, dirs_exist_ok=True)
            for heavy in ("test", "idlelib", "lib2to3", "ensurepip"):
                for found in tree.glob(f"lib/python3*/{heavy}"):
                    shutil.rmtree(found, ignore_errors=True)
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(package, tree / "builder-site" / "rattler", ignore=ignored)
            with space_errors(kept.parent):
                kept.parent.mkdir(parents=True, exist_ok=True)
                with tarfile.open(folder / "tool.tar", "w") as tar:
                    tar.add(tree, ".", filter=_of_root)
                (folder / "tool.tar").replace(kept)
    return kept


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def python_closure(packages: list[LockedPackage]) -> list[LockedPackage]:
    """The locked python and all that it depends on, in link order."""
    by_name = {p.name: p for p in packages}
    wanted: set[str] = set()
    todo = ["python"]
    while todo:
        name = todo.pop()
        if name in by_name and name not in wanted:
            wanted.add(name)
            todo += by_name[name].dependencies
    return link_order([by_name[name] for name in wanted])


__all__ = ["PLACE", "Kit", "build_folder", "link_or_copy", "make_kit", "micromamba", "python_closure"]
