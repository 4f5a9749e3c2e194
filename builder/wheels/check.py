"""Checks a wheel that was built: its name, its tags, its files, and the libraries that it needs."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path, PurePosixPath

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builder.config.recipe import Recipe
from builder.errors import WheelError
from builder.layers import limits
from builder.layers.wheel_archive import WheelArchive
from builder.lock.wheels import ARCHITECTURES, tag_ranks
from builder.model import Fetched, Layer, LockedPackage
from builder.store.blobs import Store
from builder.trees.merge import Merge
from builder.trees.sources import layer_source

#: Bytes of a library in a wheel.
MAX_LIBRARY = 2 << 30
_LIBRARY = re.compile(r"[^/]+\.so(?:\.[\w.]+)*")
#: What every image with the C library has.
_OF_GLIBC = re.compile(r"(?:ld-linux.*|linux-vdso|lib(?:c|m|dl|rt|pthread|util|resolv))\.so\.\d+")
#: Machines in ELF headers, as pyelftools names them.
_MACHINES = {"linux-64": "EM_X86_64", "linux-aarch64": "EM_AARCH64"}


@dataclass(frozen=True, slots=True)
class CheckedWheel:
    """What is known of a wheel that was built."""

    path: Path
    name: str
    """Normalised as PEP 503 says."""
    version: str
    libraries: frozenset[str]
    """Those that its own libraries need (DT_NEEDED), without those in the wheel and of the C library."""
    has_requirements: bool
    """Whether it needs other Python packages."""


def check_wheel(folder: Path, wanted: str, name: str | None, recipe: Recipe, python: str) -> CheckedWheel:
    """Checks what a build left in its folder.

    Args:
        folder: the folder for finished wheels.
        wanted: the package, for messages.
        name: the name that the wheel has to have, normalised; None: any.
        recipe: the target.
        python: the version of the target's Python.

    Raises:
        WheelError: there is not exactly one wheel, it is another package's, it does not fit the target, or it
            is damaged.
    """
    path = _only_wheel(folder, wanted)
    try:
        found, version, _, tags = parse_wheel_filename(path.name)
    except (InvalidWheelFilename, InvalidVersion) as e:
        raise WheelError(f"{wanted}: its build made {path.name!r}: {e}") from None
    if name is not None and found != name:
        raise WheelError(
            f"{wanted}: its source is that of the package {found}, not {name}",
            f"write the name of the package: {found} @ URL",
        )
    if not any(tag in tag_ranks(recipe, python) for tag in tags):
        raise WheelError(
            f"{wanted}: its build made {path.name}, which is not for Python {python} on {recipe.platform}",
            "correct the settings of the build (env, config_settings), or use another version",
        )
    package = LockedPackage(found, str(version), "pip", recipe.platform, path.name, None)
    with WheelArchive(Fetched(package, path, path.stat().st_size)) as archive:
        data = archive.read(archive.metadata("METADATA"), limits.MAX_METADATA)
        _check_metadata(data, found, version, wanted)
        libraries = frozenset(_needed(archive, wanted, recipe.platform))
        requires = "Requires-Dist" in BytesHeaderParser().parsebytes(data)
    return CheckedWheel(path, found, str(version), libraries, requires)


def _only_wheel(folder: Path, wanted: str) -> Path:
    wheels = [path for path in sorted(folder.iterdir()) if path.name.endswith(".whl")]
    if len(wheels) != 1 or wheels[0].is_symlink() or not wheels[0].is_file():
        made = ", ".join(path.name for path in wheels) or "no wheel"
        raise WheelError(f"{wanted}: its build has to make one wheel, and made {made}")
    return wheels[0]


def _check_metadata(data: bytes, name: str, version: Version, wanted: str) -> None:
    header = BytesHeaderParser().parsebytes(data)
    found = str(header.get("Name", "")), str(header.get("Version", ""))
    try:
        same = canonicalize_name(found[0]) == name and Version(found[1]) == version
    except InvalidVersion:
        same = False
    if not same:
        written = " ".join(found)
        raise WheelError(f"{wanted}: the metadata of its wheel is that of {written!r}, not {name} {version}")


def _needed(archive: WheelArchive, wanted: str, platform: str) -> Iterator[str]:
    """The libraries that the wheel's ELF files load from elsewhere."""
    own = {PurePosixPath(name).name for name in archive.members}
    for member in archive.members.values():
        if archive.start(member, 4) != b"\x7fELF":
            continue
        try:
            file = ELFFile(io.BytesIO(archive.read(member, MAX_LIBRARY)))
            machine, needed = file.header["e_machine"], list(_entries(file))
        except (ELFError, KeyError, ValueError) as e:
            raise WheelError(f"{wanted}: {member.filename} in its wheel is damaged: {e}") from None
        if machine != _MACHINES[platform]:
            raise WheelError(
                f"{wanted}: {member.filename} in its wheel is for another processor than "
                f"{ARCHITECTURES[platform]} ({machine})"
            )
        yield from (name for name in needed if name not in own and not _OF_GLIBC.fullmatch(name))


def _entries(file: ELFFile) -> Iterator[str]:
    for segment in file.iter_segments("PT_DYNAMIC"):
        if isinstance(segment, DynamicSegment):
            yield from (str(vars(tag)["needed"]) for tag in segment.iter_tags("DT_NEEDED"))


def missing_libraries(
    wheel: CheckedWheel, layers: Callable[[], Collection[Layer]], store: Store
) -> list[str]:
    """The libraries that a wheel needs and that are in none of the layers.

    Args:
        wheel: a wheel.
        layers: returns the layers of the image; called only if the wheel needs libraries.
        store: the blobs of the layers.

    Raises:
        ImageError: a layer is damaged.
    """
    if not wheel.libraries:
        return []
    found = Merge([layer_source(layer, store) for layer in layers()])
    for _ in found:
        pass
    names = {name for path in found.kinds if _LIBRARY.fullmatch(name := path.rpartition("/")[2])}
    return sorted(wheel.libraries - names)
