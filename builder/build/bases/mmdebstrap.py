"""Runs mmdebstrap, and stores the tree that it makes as an image of one layer."""

from __future__ import annotations

import difflib
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from builder.core.datafiles import read_beside, script, table
from builder.core.errors import ImageError
from builder.core.model import Layer
from builder.core.progress import working
from builder.core.redact import redact
from builder.core.settings import Settings, user_name
from builder.core.store.files import CHUNK, require_space
from builder.core.store.subordinate import ranges, ranges_hint
from builder.core.store.temporary import SHARED_FOLDERS, temporary_folder
from builder.core.tarheaders import TarEnd, TarError
from builder.core.text import human_seconds
from builder.core.workspace import Workspace
from builder.formats.net.apt import parse_stanzas, uris_of
from builder.formats.net.trust import network_hint
from builder.formats.oci.image import DEFAULT_PATH, host_architecture, plain_image
from builder.formats.qemu import is_registered, registration_hint
from builder.formats.trees.member import counted

from .debian_mirror import apt_credentials, apt_options
from .debian_tar import reproducible_tar
from .pack import pack_tar

#: Disk space that a base needs at most: its tree, and its layer.
_NEEDED_SPACE = 1 << 30
_OTHER_BASES = "or use a base from docker:// or oci:"
_PASSED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "http_proxy", "https_proxy", "no_proxy")
#: What dpkg does not unpack, and the exceptions.
DPKG_OPTIONS = tuple(read_beside(__file__, "dpkg_options.txt").splitlines())


@dataclass(frozen=True, slots=True)
class DebianBase:
    """A base to be made."""

    reference: str
    """``debian:SUITE``, for messages."""
    suite: str
    include: tuple[str, ...]
    """Debian packages in addition to those of mmdebstrap's variant minbase, sorted."""
    architecture: str
    """Debian's name: ``amd64``."""
    sources: str
    """apt sources in deb822 form (sources.list(5))."""

    @property
    def task(self) -> str:
        """What the progress is called."""
        return f"base {self.reference}"

    @property
    def variant_options(self) -> list[str]:
        """mmdebstrap's options that decide which packages there are."""
        return ["--variant=minbase", f"--include={','.join(self.include)}"]


def make_debian_base(base: DebianBase, work: Workspace) -> str:
    """Make a base in the store.

    Args:
        base: what to make.

    Returns:
        The digest of the manifest.

    Raises:
        ImageError: mmdebstrap is missing or fails, or this user cannot run it.
        SpaceError: the disk is full.
    """
    mode = mmdebstrap_mode(base.reference)
    _command(base, mode)  # fails here, before anything is downloaded
    require_space(work.store.root, _NEEDED_SPACE, f"the base {base.reference}")
    work.store.sweep(work.settings.tmpdir)
    started = time.monotonic()
    with working(work.reporter, base.task):
        layer = _make_layer(base, mode, work)
    config = {
        "architecture": base.architecture,
        "os": "linux",
        "config": {"Env": [f"PATH={DEFAULT_PATH}"], "Cmd": ["bash"]},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        "history": [{"created_by": " ".join(["mmdebstrap", *base.variant_options, base.suite])}],
    }
    image = plain_image([layer], config)
    work.store.add(image.config)
    unpacked, compressed = layer.unpacked / 1e6, layer.descriptor.size / 1e6
    seconds = human_seconds(time.monotonic() - started)
    work.reporter.note(
        f"{base.task}: {unpacked:.0f} MB, {compressed:.0f} MB compressed, made in {seconds}"
    )
    return work.store.add(image.manifest)


def _make_layer(base: DebianBase, mode: str, work: Workspace) -> Layer:
    work.settings.tmpdir.mkdir(parents=True, exist_ok=True)
    group = ("setpriv", "--pdeathsig=TERM", "sh", "-c", script(__file__, "group.sh"), "sh")
    with (
        temporary_folder(_tree_folder(work.settings, mode), 0o711) as folder,
        tempfile.TemporaryFile(dir=work.settings.tmpdir) as log,
        tempfile.TemporaryFile(dir=work.settings.tmpdir) as sources,
    ):
        sources.write(base.sources.encode())
        sources.seek(0)
        process = subprocess.Popen(
            [*group, *_command(base, mode)],
            stdin=sources,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(base, work.settings, folder),
            process_group=0,  # Ctrl-C reaches builder alone
        )
        layer, code = _pack(process, base, work)
        if code or isinstance(layer, TarError):
            log.seek(0)
            damage = layer if isinstance(layer, TarError) else None
            raise mmdebstrap_error(base, code, log.read().decode(errors="replace"), damage)
    return layer


def _command(base: DebianBase, mode: str) -> list[str]:
    """Return the mmdebstrap command that reads apt sources and writes a tar.

    Raises:
        ImageError: the base is for another processor, and this host cannot run programs for it.
    """
    command = ["mmdebstrap", f"--mode={mode}", "--format=tar"]
    command += [f"--architectures={base.architecture}", *base.variant_options]
    command += [f"--dpkgopt={option}" for option in DPKG_OPTIONS]
    command += [f"--setup-hook={script(__file__, 'apt_settings.sh')}", base.suite, "-", "-"]
    if base.architecture != host_architecture():
        if not is_registered(base.architecture):  # dpkg runs the scripts of the packages
            problem = f"the base is for {base.architecture}, this host is {host_architecture()}"
            hint = f"{registration_hint(base.architecture)}; {_OTHER_BASES}"
            raise ImageError(f"{base.reference}: {problem}", hint)
        command.insert(1, "--skip=check/qemu")  # it would require the package arch-test
    return _with_own_mounts(command) if mode == "root" else command


def _with_own_mounts(command: list[str]) -> list[str]:
    """Return the command in a mount namespace of its own, if this root may create one.

    As root mmdebstrap mounts the host's /dev, with /dev/shm, in its tree. In a namespace these
    mounts end with the process, also after ``kill -9``; otherwise whoever removes the tree removes
    the host's files.
    """
    unshare = ["unshare", "--mount", "--propagation", "private", "--"]
    possible = subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0
    return [*unshare, *command] if possible else command


def _environment(base: DebianBase, settings: Settings, folder: Path) -> dict[str, str]:
    env = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    env["PATH"] = f"{env.get('PATH', '')}:/usr/sbin:/sbin"
    env["SOURCE_DATE_EPOCH"] = str(settings.epoch)
    env["LC_ALL"] = "C.UTF-8"
    env["TMPDIR"] = str(folder)
    env["_BUILDER_APT_CONF"] = apt_options(folder, uris_of(parse_stanzas(base.sources)))
    env["_BUILDER_APT_AUTH"] = apt_credentials()
    return env


def _pack(
    process: subprocess.Popen[bytes], base: DebianBase, work: Workspace
) -> tuple[Layer | TarError, int]:
    """Return the layer of mmdebstrap's output, or why that is no tar, and the exit code."""
    assert process.stdout is not None
    layer: Layer | TarError
    advance = functools.partial(work.reporter.advance, base.task)
    try:
        try:
            tar = counted(reproducible_tar(process.stdout, work.settings.epoch), advance)
            layer = pack_tar(tar, work.store, work.settings.jobs, title=base.reference)
        except TarError as e:
            layer = e
        while process.stdout.read(CHUNK):  # what follows the end of the tar
            pass
        return layer, process.wait()
    except BaseException:
        process.send_signal(signal.SIGTERM)  # mmdebstrap removes its tree then
        process.stdout.close()
        process.wait()
        raise


def mmdebstrap_mode(reference: str) -> str:
    """Return mmdebstrap's mode for this user: ``root`` or ``unshare``.

    Raises:
        ImageError: this user cannot run mmdebstrap; the hint names what is missing.
    """
    if not shutil.which("mmdebstrap"):
        hint = f"apt-get install mmdebstrap, {_OTHER_BASES}"
        raise ImageError(f"{reference}: mmdebstrap is not installed", hint)
    if os.geteuid() == 0:
        return "root"
    if not shutil.which("newuidmap") or not shutil.which("newgidmap"):
        hint = f"as root: apt-get install uidmap; {_OTHER_BASES}"
        raise ImageError(f"{reference}: an ordinary user needs newuidmap and newgidmap", hint)
    for file in (Path("/etc/subuid"), Path("/etc/subgid")):
        if not ranges(file):
            problem = f"user {user_name()} has no range of ids in {file}"
            raise ImageError(f"{reference}: {problem}", f"{ranges_hint()}; {_OTHER_BASES}")
    command = ["mmdebstrap", "--unshare-helper", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "nknown option" not in done.stderr:  # an old mmdebstrap
        first = (done.stderr.strip() or "mmdebstrap cannot make its namespace").splitlines()[0]
        raise ImageError(f"{reference}: {first}", _known_hint(done.stderr))
    return "unshare"


def _known_hint(log: str) -> str:
    """Return the hint for a failure of mmdebstrap that is known; else empty."""
    for pattern, hint in table(__file__, "mmdebstrap.yaml").items():
        if re.search(pattern, log):
            return network_hint(log, f"{hint.replace('{ranges}', ranges_hint())}{_OTHER_BASES}")
    return ""


def _tree_folder(settings: Settings, mode: str) -> Path:
    """Return the first temporary folder that the mapped users of mmdebstrap can reach."""
    folders = (settings.tmpdir, *SHARED_FOLDERS)
    reached = (folder for folder in folders if mode == "root" or _is_open(folder))
    return next(reached, settings.tmpdir)


def _is_open(folder: Path) -> bool:
    """Return whether any user may enter a folder, and this one may write into it."""
    parents = (folder, *folder.parents)
    return os.access(folder, os.W_OK) and all(parent.stat().st_mode & 0o001 for parent in parents)


def mmdebstrap_error(
    base: DebianBase, code: int, log: str, damage: TarError | None = None
) -> ImageError:
    """Return the error for a failure of mmdebstrap, with a hint that fits its log.

    Args:
        base: what was to be made.
        code: mmdebstrap's exit code.
        log: its standard error. Credentials in it are redacted.
        damage: why its tar cannot be read; None if it can.
    """
    log = redact(log)
    unread = f"its tar cannot be read: {damage}"
    if damage and not code:
        hint = "report this with what mmdebstrap --version prints"
        return ImageError(f"{base.reference}: mmdebstrap succeeded, but {unread}", hint)
    unknown = sorted(set(re.findall(r"Unable to locate package (\S+)", log)))
    if unknown:
        return ImageError(
            f"Debian {base.suite} has no package {', '.join(unknown)}",
            "correct base_packages in the recipe",
        )
    if f" {base.suite} Release' does not have a Release file" in log:
        problem = f"{base.reference}: the mirror of apt's settings has no such suite"
        return ImageError(problem, _suite_hint(base.suite))
    lines = log.splitlines()
    errors = [line for line in lines if re.match(r"(E|W|error|mmdebstrap):? ", line)]
    last = "\n    ".join(dict.fromkeys((errors or lines)[-8:]))
    command = " ".join(["mmdebstrap", *base.variant_options, base.suite, "/dev/null"])
    hint = _known_hint(last) or f"to see more, run it by hand: {command}"
    failed = f"mmdebstrap failed with exit code {code}"
    if damage and not isinstance(damage, TarEnd):  # else the log says why it ends
        failed += f", and {unread}"
    return ImageError(f"{base.reference}: {failed}:\n    {last}", hint)


def _suite_hint(suite: str) -> str:
    """Return the hint for a suite that the mirror does not have."""
    known = {*read_beside(__file__, "suites.txt").split()} - {suite}
    near = difflib.get_close_matches(suite, known, n=1, cutoff=0.7)
    return f"did you mean debian:{near[0]}?" if near else f"correct base:, {_OTHER_BASES}"
