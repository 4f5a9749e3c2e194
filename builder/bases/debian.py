"""``debian:SUITE`` bases: mmdebstrap's tree as a one-layer image, the same bytes on every host, as root and as an ordinary user.

The mirror is the machine's own (its apt sources, with their keyrings, proxies and credentials) and leaves no trace in the image,
which has no apt sources. Left out are ``/dev``, logs, caches, package lists, backup files, and, as in Debian's own slim images,
documentation (not the copyright files), manual pages and translations. ``resolv.conf`` and ``hostname`` are empty, for the
engine to fill.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from builder.bases.pack import pack_tar
from builder.errors import ConfigError, ImageError
from builder.model import OCI_CONFIG, OCI_MANIFEST, canonical_json
from builder.net.apt import apt_sources, parse_stanza
from builder.progress import Reporter
from builder.redact import redact
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import require_space, write_atomic

#: Part of the key of what was made before: raise it when the same packages give other bytes.
FORMAT = 1
ALWAYS = ("ca-certificates",)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UNPACKED = 1 << 30

_DROPPED = re.compile(
    r"dev/.+"
    r"|etc/apt/(sources\.list|sources\.list\.d/.+|apt\.conf\.d/99mmdebstrap|auth\.conf|auth\.conf\.d/.+)"
    r"|etc/dpkg/dpkg\.cfg\.d/99mmdebstrap"
    r"|etc/(passwd|group|shadow|gshadow|subuid|subgid)-|etc/\.pwd\.lock"
    r"|var/cache/(apt|ldconfig)/.+|var/cache/debconf/.+-old"
    r"|var/lib/apt/lists/.+|var/lib/(dpkg|apt|systemd|ucf)/[^/]+-old|var/lib/dpkg/(lock|lock-frontend|triggers/Lock)"
    r"|var/lib/systemd/(catalog|random-seed)(/.+)?|var/lib/dbus/machine-id"
    r"|(tmp|var/tmp|run)/(?!lock$).+|root/\..*history"
    r"|usr/share/doc/[^/]+/(?!copyright$).+|usr/share/(man|info|groff|lintian|linda)/.+|usr/share/locale/(?!locale\.alias$).+"
)
_LOG = re.compile(r"var/log/.+")
#: The engine's to fill; the host's content must not get in. /etc/hosts serves runners that do not.
_FIXED = {
    "etc/hostname": b"",
    "etc/hosts": b"127.0.0.1\tlocalhost\n::1\tlocalhost\n",
    "etc/machine-id": b"",
    "etc/resolv.conf": b"",
}
_SUITE = re.compile(r"[a-z][a-z0-9.-]*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]*(:[a-z0-9]+)?(=[A-Za-z0-9.+~:-]+)?")


def debian_base(
    reference: str,
    architecture: str,
    settings: Settings,
    store: Store,
    *,
    packages: Sequence[str] = (),
    pinned: str | None = None,
    reporter: Reporter,
) -> str:
    """The digest of the manifest of a ``debian:SUITE`` base that is in the store when this returns.

    Args:
        reference: ``debian:bookworm``.
        architecture: the OCI's and Debian's name of it: ``amd64``.
        packages: Debian packages beside minbase and ca-certificates.
        pinned: the digest that the lock names. None asks what the mirror gives now.

    Raises:
        ConfigError: a suite or package name that cannot be one.
        ImageError: mmdebstrap is missing or fails, this user cannot make a base, there is no Debian mirror, or what the mirror
            gives now is not the pinned digest any more.
    """
    suite = reference.removeprefix("debian:")
    if not _SUITE.fullmatch(suite):
        raise ConfigError(f"base {reference!r}: not a Debian suite", "write it as debian:bookworm")
    for package in packages:
        if not _PACKAGE.fullmatch(package):
            raise ConfigError(
                f"base_packages: {package!r} is not the name of a Debian package", "correct the recipe"
            )
    if pinned and complete(store, pinned):
        return pinned
    include = sorted({*ALWAYS, *packages})
    key = canonical_json([FORMAT, suite, include, architecture, settings.epoch])
    record = (
        store.folders.bases / f"debian-{suite}-{architecture}-{hashlib.sha256(key).hexdigest()[:16]}.json"
    )
    with store.lock(f"base {record.name}"):
        if pinned and complete(store, pinned):
            return pinned
        known = _read(record)
        digest = str(known.get("digest", ""))
        have = bool(digest) and complete(store, digest)
        if settings.offline:
            if have and pinned in (None, digest):
                return digest
            raise ImageError(
                f"the base {reference} {f'({pinned}) ' if pinned else ''}is not in the cache, and this build is offline",
                "build once online, or take the base from oci: or docker://",
            )
        sources = apt_sources(suite)
        state = _mirror_state(sources, settings)
        if have and (state is None or state == known.get("state")):
            if state is None:
                reporter.warn(f"Debian's mirror does not answer; {reference} is the one made before")
        else:
            digest = _make(reference, suite, include, architecture, sources, settings, store, reporter)
            write_atomic(record, canonical_json({"digest": digest, "state": state or ""}))
    if pinned and digest != pinned:
        raise ImageError(
            f"the lock pins {reference} as {pinned}, but the Debian mirror of this machine gives {digest} now (it has moved on)",
            "pin what it gives now: builder lock --update-base; or fetch the pinned base from an image that has it (oci: or docker://)",
        )
    return digest


def complete(store: Store, digest: str) -> bool:
    """Whether the store has an image's manifest and everything that it names."""
    path = store.get(digest)
    if path is None:
        return False
    manifest = json.loads(path.read_bytes())
    return all(
        store.get(d["digest"], d["size"]) is not None for d in (manifest["config"], *manifest["layers"])
    )


def _read(record: Path) -> dict[str, Any]:
    try:
        value = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


# the machine's apt ----------------------------------------------------------------------------------------------------


def _apt_options() -> str:
    """What apt must know of this machine to reach the mirror: proxies, certificates, time checks, credentials."""
    try:
        dump = subprocess.run(
            ["apt-config", "dump"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    wanted = re.compile(
        r"Acquire::((https?|ftp|socks)(::.*)?|Check-Valid-Until|Check-Date|Max-ValidTime|Min-ValidTime|Retries)(?= )",
        re.I,
    )
    lines = [
        line
        for line in dump.splitlines()
        if wanted.match(line) and not line.endswith(' "";') and "Proxy-Auto-Detect" not in line
    ]
    for key, path in (
        ("Dir::Etc::netrc", Path("/etc/apt/auth.conf")),
        ("Dir::Etc::netrcparts", Path("/etc/apt/auth.conf.d")),
    ):
        if os.access(path, os.R_OK):
            lines.append(f'{key} "{path}";')
    return "".join(f"{line}\n" for line in lines)


def _mirror_state(sources: str, settings: Settings) -> str | None:
    """A hash of the mirror's signed release files: what it offers is the same while this is. None when it does not answer."""
    helper = "/usr/lib/apt/apt-helper"
    state = hashlib.sha256()
    settings.tmpdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=settings.tmpdir, prefix="debian-") as tmp:
        for number, (uri, suite) in enumerate(_releases(sources)):
            target = Path(tmp) / str(number)
            url = f"{uri.rstrip('/')}/dists/{suite}/InRelease"
            if "@" in url.partition("://")[2].partition("/")[0]:
                return ""  # a password: it must not stand in an argument list; the base is made anew
            try:
                subprocess.run(
                    [helper, "-o", f"Dir::State={tmp}", "download-file", url, str(target)],
                    check=True,
                    capture_output=True,
                    timeout=120,
                    stdin=subprocess.DEVNULL,
                )
                state.update(target.read_bytes())
            except (OSError, subprocess.SubprocessError):
                return None
    return state.hexdigest()


def _releases(sources: str) -> Iterator[tuple[str, str]]:
    for block in sources.split("\n\n"):
        stanza = parse_stanza(block)
        for uri in stanza.get("URIs", "").split():
            for suite in stanza.get("Suites", "").split():
                yield uri, suite


# making it ------------------------------------------------------------------------------------------------------------


def _make(
    reference: str,
    suite: str,
    include: list[str],
    architecture: str,
    sources: str,
    settings: Settings,
    store: Store,
    reporter: Reporter,
) -> str:
    mode = _mode(reference)
    require_space(store.root, _UNPACKED, f"the base {reference}")
    task = f"base {reference}"
    reporter.start(task, None)
    options = _apt_options()
    settings.tmpdir.mkdir(parents=True, exist_ok=True)
    environment = {
        k: v
        for k, v in os.environ.items()
        if k in ("PATH", "HOME", "USER", "LOGNAME", "http_proxy", "https_proxy", "no_proxy")
    }
    environment |= {
        "SOURCE_DATE_EPOCH": str(settings.epoch),
        "LC_ALL": "C.UTF-8",
        "TMPDIR": _tree_folder(settings, mode),
    }
    environment["PATH"] = f"{environment.get('PATH', '')}:/usr/sbin:/sbin"
    with (
        tempfile.NamedTemporaryFile(
            "w", dir=settings.tmpdir, prefix="apt-", suffix=".conf"
        ) as config,  # mode 0600: proxies have passwords
        tempfile.TemporaryFile(dir=settings.tmpdir) as log,
        tempfile.TemporaryFile(dir=settings.tmpdir) as given,
    ):
        config.write(options)
        config.flush()
        given.write(sources.encode())
        given.seek(0)
        command = [
            "mmdebstrap",
            f"--mode={mode}",
            "--variant=minbase",
            "--format=tar",
            f"--architectures={architecture}",
            f"--include={','.join(include)}",
            "--dpkgopt=force-unsafe-io",
            "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            "--dpkgopt=path-include=/usr/share/locale/locale.alias",
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            *([f"--aptopt={config.name}"] if options else []),
            suite,
            "-",
            "-",
        ]
        process = subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=log, env=environment)
        assert process.stdout is not None
        try:
            layer = None
            with contextlib.suppress(tarfile.TarError, EOFError):  # mmdebstrap says below what went wrong
                layer = pack_tar(
                    _rewritten(process.stdout, settings.epoch), store, settings.jobs, title=reference
                )
            while process.stdout.read(1 << 20):
                pass
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)  # it removes its tree
            process.stdout.close()
            process.wait()
            raise
        if code or layer is None:
            log.seek(0)
            raise _failure(reference, code, log.read().decode(errors="replace"), suite, include)
    config_bytes = canonical_json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": [f"PATH={PATH}"], "Cmd": ["bash"]},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
            "history": [
                {"created_by": f"mmdebstrap --variant=minbase --include={','.join(include)} {suite}"}
            ],
        }
    )
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {"mediaType": OCI_CONFIG, "digest": store.add(config_bytes), "size": len(config_bytes)},
            "layers": [layer.descriptor.to_json()],
        }
    )
    reporter.finish(task, f"{layer.unpacked / 1e6:.0f} MB, {layer.descriptor.size / 1e6:.0f} MB compressed")
    return store.add(manifest)


def _mode(reference: str) -> str:
    """mmdebstrap's mode for this user, or an ImageError that says what is missing."""
    other = "or take a base from docker:// or oci:"
    if not shutil.which("mmdebstrap"):
        raise ImageError(f"{reference}: mmdebstrap is not installed", f"apt-get install mmdebstrap, {other}")
    if os.geteuid() == 0:
        return "root"
    user = getpass.getuser()
    if not shutil.which("newuidmap") or not shutil.which("newgidmap"):
        raise ImageError(
            f"{reference}: an ordinary user needs newuidmap and newgidmap",
            f"as root: apt-get install uidmap; {other}",
        )
    for file in (Path("/etc/subuid"), Path("/etc/subgid")):
        names = [line.split(":")[0] for line in file.read_text().splitlines()] if file.exists() else []
        if user not in names and str(os.geteuid()) not in names:
            raise ImageError(
                f"{reference}: user {user} has no range of ids in {file}",
                f"as root: usermod --add-subuids 200000-265535 --add-subgids 200000-265535 {user}; {other}",
            )
    return "unshare"


def _tree_folder(settings: Settings, mode: str) -> str:
    """Where mmdebstrap's tree may lie: the temporary folder, or the next that the mapped users can get to."""
    if mode == "root":
        return str(settings.tmpdir)
    candidates = (settings.tmpdir, Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/tmp"))  # noqa: S108
    return str(
        next((c for c in candidates if all(p.stat().st_mode & 0o001 for p in (c, *c.parents))), candidates[0])
    )


def _failure(reference: str, code: int, log: str, suite: str, include: list[str]) -> ImageError:
    log = redact(log)
    lines = [
        line for line in log.splitlines() if re.match(r"(E|W|error|mmdebstrap):? ", line)
    ] or log.splitlines()
    tail = "\n    ".join(dict.fromkeys(lines[-8:]))
    if unknown := re.findall(r"Unable to locate package (\S+)", log):
        return ImageError(
            f"Debian {suite} has no package {', '.join(sorted(set(unknown)))}",
            "correct base_packages in the recipe",
        )
    if "unshare" in log and "failed" in log:
        hint = "this host does not let users make namespaces: make the base as root once, or take it from docker:// or oci:"
    elif re.search(r"Could not (resolve|connect)|Temporary failure|Failed to fetch", log):
        hint = "the Debian mirror of this machine's apt settings does not answer; a base can also come from docker:// or oci:"
    else:
        hint = f"try it by hand: mmdebstrap --variant=minbase --include={','.join(include)} {suite} /dev/null"
    return ImageError(f"{reference}: mmdebstrap ended with {code}:\n    {tail}", hint)


def _rewritten(stream: IO[bytes], epoch: int) -> Iterator[bytes]:
    """mmdebstrap's tar without what varies, without ``./``, in its order (by name)."""
    dropped: set[str] = set()
    seen: set[str] = set()
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            name = member.name.removeprefix("./").strip("/")
            log = _LOG.fullmatch(name) and not member.isdir()
            if (
                not name
                or name == "."
                or log
                or _DROPPED.fullmatch(name)
                or not (member.isreg() or member.isdir() or member.issym() or member.islnk())
            ):
                dropped.add(name)
                continue
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.uid, info.gid = (
                member.type,
                member.mode & 0o7777,
                member.uid,
                member.gid,
            )
            info.mtime = min(int(member.mtime), epoch)
            info.linkname = member.linkname.removeprefix("./") if member.islnk() else member.linkname
            info.pax_headers = {k: v for k, v in member.pax_headers.items() if k.startswith("SCHILY.xattr.")}
            if member.islnk() and info.linkname in dropped:
                raise ImageError(
                    f"/{name} is a hard link to a file that bases leave out",
                    "report this with the list of packages",
                )
            seen.add(name)
            if name in _FIXED:
                yield from _fixed(name, epoch)
                continue
            if member.isreg():
                info.size = member.size
            yield info.tobuf(tarfile.PAX_FORMAT)
            if info.size:
                content = tar.extractfile(member)
                assert content is not None
                while data := content.read(1 << 20):
                    yield data
                yield bytes(-info.size % tarfile.BLOCKSIZE)
    if not seen:
        raise tarfile.ReadError("empty")
    for name in _FIXED:
        if name not in seen:
            yield from _fixed(name, epoch)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _fixed(name: str, epoch: int) -> Iterator[bytes]:
    data = _FIXED[name]
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.size = 0o644, epoch, len(data)
    yield info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)
