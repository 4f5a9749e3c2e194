"""What a base image says about itself: its distribution, and its apt sources."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath

from builder.bases.image import BaseImage
from builder.errors import ImageError, RunnerError
from builder.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, SifImage, canonical_json
from builder.net.apt import parse_os_release, parse_sources
from builder.progress import Reporter
from builder.run.base import Runner, RunOptions
from builder.run.process import tail
from builder.run.select import ENGINE_NAMES, find_runner
from builder.settings import Settings
from builder.store.blobs import Store

#: Prints what this module reads, each file after a line with its path.
_PROBE = r"""
command -v apt-get > /dev/null && command -v dpkg > /dev/null &&
    printf '\n@@ apt\n' && dpkg --print-architecture
for file in /etc/os-release /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    [ -f "$file" ] && printf '\n@@ %s\n' "$file" && while IFS= read -r line || [ -n "$line" ]; do
        printf '%s\n' "$line"
    done < "$file"
done
exit 0
"""
_WITHOUT_APT = (
    "install them with the base's own package manager in steps:, take them from conda-forge, "
    "or use a base of Debian or Ubuntu"
)


@dataclass(frozen=True, slots=True)
class AptBase:
    """A base image with apt."""

    reference: str
    system: str
    """Its ID of os-release(5): ``debian``, ``ubuntu``."""
    suite: str
    """Its code name: ``bookworm``; empty if it does not say."""
    title: str
    """Its name for people: ``Ubuntu 24.04.1 LTS``."""
    architecture: str
    """Debian's name: ``amd64``."""
    sources: tuple[dict[str, str], ...]
    """Its apt sources as deb822 paragraphs."""


def runnable(base: BaseImage) -> Image | SifImage:
    """The base as runners and steps take it."""
    if base.sif is not None:
        return base.sif
    config = canonical_json(base.config)
    described = Descriptor.of(OCI_CONFIG, config)
    return Image(base.layers, config, described, b"", Descriptor(OCI_MANIFEST, base.digest, 0))


def apt_runner(image: Image | SifImage, settings: Settings, store: Store, reporter: Reporter) -> Runner:
    """The runner for the base's apt: user namespaces if they work, else the first engine.

    Raises:
        RunnerError: none works.
    """
    unfit = ENGINE_NAMES if isinstance(image, SifImage) else ("apptainer",)
    return find_runner(settings, store, reporter=reporter, without=unfit)


def read_apt_base(base: BaseImage, runner: Runner, where: str) -> AptBase:
    """Looks into a base image.

    Args:
        base: the image, with all layers on this machine.
        runner: runs a shell in it, without network.
        where: file, line and key of ``base_packages``, for messages.

    Raises:
        ImageError: the base has no apt or no shell.
        RunnerError: the runner failed.
    """
    try:
        done = runner.run(runnable(base), ["/bin/sh", "-c", _PROBE], RunOptions(entrypoint=(), timeout_s=120))
    except RunnerError as e:
        if "/bin/sh in the image" in e.message:
            raise _without_apt(base, "", where) from None
        raise
    if done.returncode:
        if done.returncode in (126, 127):
            raise _without_apt(base, "", where)
        raise RunnerError(
            f"{base.reference}: the base cannot be run: {tail(done.stderr.splitlines(), 3)}",
            "builder doctor shows the state of each runner",
        )
    files = _files(done.stdout)
    release = parse_os_release(files.get("/etc/os-release", ""))
    title = release.get("PRETTY_NAME") or release.get("ID", "")
    if "apt" not in files:
        raise _without_apt(base, title, where)
    return AptBase(
        base.reference,
        release.get("ID", ""),
        release.get("VERSION_CODENAME", ""),
        title or base.reference,
        files["apt"].strip(),
        _sources(files),
    )


def _without_apt(base: BaseImage, title: str, where: str) -> ImageError:
    what = f" ({title})" if title else ""
    return ImageError(f"{where}: the base {base.reference}{what} has no apt", _WITHOUT_APT)


def _files(output: str) -> dict[str, str]:
    """The texts of the files that the probe printed, by path."""
    parts = ("\n" + output).split("\n@@ ")
    return {path: text for path, _, text in (part.partition("\n") for part in parts[1:])}


def _sources(files: dict[str, str]) -> tuple[dict[str, str], ...]:
    folders = ("/etc/apt/sources.list", "/etc/apt/sources.list.d/")
    found = [parse_sources(PurePosixPath(p).name, text) for p, text in files.items() if p.startswith(folders)]
    return tuple(chain.from_iterable(found))
