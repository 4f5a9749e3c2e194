"""OS packages of a base: its own apt solves ``base_packages``, and names each file with its hash.

Nothing is installed here. apt's lists are in a container whose changes are lost when it ends.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from builder.build.bases.image import BaseImage
from builder.build.run.base import RunOptions
from builder.build.run.process import Completed, tail
from builder.build.run.select import find_runner
from builder.build.steps import apt_base
from builder.core.datafiles import script
from builder.core.errors import BuilderError, FetchError, LockError, RunnerError, SolveError
from builder.core.model import OsPackage, SifImage
from builder.core.progress import working
from builder.core.redact import redact
from builder.core.store.temporary import temporary_folder
from builder.core.text import human_bytes, visible
from builder.core.workspace import Workspace
from builder.lock.config.recipe import Recipe
from builder.lock.config.yamlfile import place_of
from builder.lock.record import package_of

from .apt_base import MOUNTED, AptBase, AptNetwork
from .recipe import check_processor

#: Seconds for the lists of packages and the solution.
_TIMEOUT_S = 900
#: Exit codes of apt_solve.sh.
_NO_LISTS, _NO_SOLUTION = 61, 62
#: ``'URL' NAME_VERSION_ARCHITECTURE.deb SIZE SHA256:HASH``, as ``apt-get --print-uris`` writes.
_LINE = re.compile(
    r"'(?P<url>[^']+)' (?P<name>[^\s_]+)_(?P<version>[^\s_]+)_(?P<architecture>[^\s_]+)\.deb (?P<size>\d+) "
    r"SHA256:(?P<sha256>[0-9a-f]{64})"
)


def solve_os_packages(
    recipe: Recipe, base: BaseImage, work: Workspace, *keys: str
) -> tuple[OsPackage, ...]:
    """Return the packages that the base's apt would install for a recipe's ``base_packages``.

    Args:
        recipe: the target.
        base: its base, with all layers on this machine.
        keys: where the recipe names them, for messages; by default ``base_packages``.

    Raises:
        FetchError: an archive does not answer, or builder is offline.
        ImageError: the base has no apt, or no archive is known for it.
        RunnerError: no runner works here, or none for the processor of the base.
        SolveError: apt finds no solution, or knows no such package or version.
    """
    where = place_of(recipe.source, *(keys or ("base_packages",)))
    if work.settings.offline:
        message = f"{where}: the OS packages of {recipe.base} cannot be solved offline"
        raise FetchError(message, f"lock once online: builder lock {recipe.name}")
    check_processor(recipe, where)
    image = base.runnable
    unfit = () if isinstance(image, SifImage) else ("apptainer",)
    runner = find_runner(work, without=unfit, image=image)
    with (
        working(work.reporter, f"OS packages of {recipe.base}"),
        temporary_folder(work.settings.tmpdir, 0o700) as tmp,
    ):
        folder = tmp / "mounted"
        folder.mkdir()
        found = apt_base.read_apt_base(base, runner, where)
        network = apt_base.prepare_network(folder, found, work.settings, where)
        command = ["/bin/sh", "-c", script(__file__, "apt_solve.sh"), "apt", *recipe.base_packages]
        options = RunOptions(
            env={"APT_CONFIG": f"{MOUNTED}/apt.conf", "LC_ALL": "C.UTF-8"},
            mounts=network.mounts,
            workdir="/",
            entrypoint=(),
            network="host",
            timeout_s=_TIMEOUT_S,
        )
        done = runner.run(image, command, options)
    if done.returncode:
        raise _failure(done, found, where)
    packages = tuple(read_uris(done.stdout, network))
    size = human_bytes(sum(package.size for package in packages))
    work.reporter.note(f"{recipe.name}: {len(packages)} OS packages for {found.title}, {size}")
    return packages


def read_uris(output: str, network: AptNetwork) -> list[OsPackage]:
    """Return the packages in the output of ``apt-get --print-uris``, by name.

    Raises:
        LockError: a line has no SHA-256, or names no package; the base chose apt, so it may be
            anything.
    """
    packages = []
    for line in map(str.strip, output.splitlines()):
        if not line.startswith("'"):
            continue
        try:
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError("a line without SHA-256")
            values = match.groupdict()
            address, version = network.public(values["url"]), unquote(values["version"])
            size = int(values["size"])
            fields = {**values, "url": address, "version": version, "size": size}
            packages.append(package_of(fields))
        except ValueError as e:
            shown = f"{visible(redact(line))[:300]}: {visible(str(e))[:300]}"
            hint = "correct the archive or its mirror, or take another base"
            raise LockError(f"apt names a package that is none: {shown}", hint) from None
    return sorted(packages, key=lambda p: (p.name, p.architecture))


def _failure(done: Completed, base: AptBase, where: str) -> BuilderError:
    """Return the error for a failure of the script."""
    errors = redact(done.stderr)
    if done.timed_out:
        message = f"{where}: apt took more than {_TIMEOUT_S} s"
        return FetchError(message, "try again, or use a nearer mirror")
    if done.returncode == _NO_LISTS:
        return FetchError(
            f"{where}: apt-get update fails in {base.title}:\n{tail(_errors(errors), 6)}",
            "set a mirror: BUILDER_MIRRORS='http://deb.debian.org/debian=URL', or correct /etc/apt; "
            "a release that is no longer supported needs a newer base",
        )
    if done.returncode != _NO_SOLUTION:
        return RunnerError(
            f"{where}: apt could not be run in {base.reference}:\n{tail(errors.splitlines(), 6)}",
            "builder doctor shows the state of each runner",
        )
    problems = [line for line in done.stdout.splitlines() if line.startswith((" ", "\t"))]
    reasons = tail([*problems[-12:], *_errors(errors)], 16)
    return SolveError(
        f"{where}: apt of {base.title} finds no solution:\n{reasons}",
        "look the names up in the archive of the base, leave out versions that contradict each other, "
        "take a newer base: builder lock --update-base, or install and remove packages in steps:",
    )


def _errors(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if re.match(r"[EW]: ", line)]
    return list(dict.fromkeys(lines or text.splitlines()))
