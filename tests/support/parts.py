"""Real parts for integration tests: a Docker engine, registries, podman, Apptainer, an ordinary user.

Every part lives in a temporary folder, listens on a unix socket or on 127.0.0.1, and is removed afterwards,
also after Ctrl-C or a crash (children get SIGTERM when pytest dies). Nothing in /etc changes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import http.client
import json
import os
import pwd
import re
import secrets
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import docker
import pytest

from tests.support.install import NotInstalled, install_apptainer
from tests.support.ports import free_ports
from tests.support.programs import run_program

CLONE = Path(__file__).resolve().parents[2]
#: The longest that a part may take to start; a busy machine needs more than a minute at times.
READY_S = 180
_LIBC = ctypes.CDLL(None)
#: The state of a connection in /proc/net/tcp that the other end has closed, and this one has not.
_CLOSE_WAIT = "08"


def part_missing(reason: str) -> NoReturn:
    """Skips the test because a part is missing; with CI=true, fails it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def need(*programs: str) -> list[str]:
    """Returns the paths of programs; skips the test (see :func:`part_missing`) when one is not installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    found = {p: shutil.which(p, path=path) for p in programs}
    if missing := [p for p, where in found.items() if not where]:
        part_missing(f"not installed: {', '.join(missing)} (make apt-test)")
    return [str(p) for p in found.values()]


def installed(install: Callable[[Path], Path], name: str) -> Path:
    """Installs a part into the clone's ``.cache``; skips the test if it cannot be installed."""
    try:
        return install(CLONE / ".cache/parts" / name)
    except NotInstalled as e:
        part_missing(str(e))


def shared_library(source: Path, path: Path, *options: str) -> None:
    """Compiles a C file into a shared library; skips the test if there is no gcc."""
    (gcc,) = need("gcc")
    command = [gcc, "-shared", "-fPIC", *options, "-o", str(path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def need_root() -> None:
    if os.geteuid() != 0:
        part_missing("needs root")


@contextlib.contextmanager
def part_folder(name: str) -> Iterator[Path]:
    """A temporary folder with a short path (for unix sockets) that other users may enter.

    It is removed afterwards with everything mounted below it. It is locked while its owner lives, so the
    next run removes what a killed run left.
    """
    parent = Path("/var/tmp")
    for old in parent.glob("bt-*"):
        with contextlib.suppress(OSError):
            if old.stat().st_uid == os.getuid() and (lock := _try_lock(old)) is not None:
                remove_tree(old)
                os.close(lock)
    # podman parses the path of a layout as an image name, where "-_" and a final "_" are errors.
    folder = parent / f"bt-{name}-{secrets.token_hex(4)}"
    # Locked before it has its name: another run removes a folder of this name that nobody has locked.
    unlocked = parent / f".{folder.name}"
    unlocked.mkdir(mode=0o700)
    lock = _try_lock(unlocked)
    unlocked.rename(folder)
    folder.chmod(0o755)
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            remove_tree(folder)

    atexit.register(remove)
    try:
        yield folder
    finally:
        remove()
        atexit.unregister(remove)
        if lock is not None:
            os.close(lock)


def _try_lock(folder: Path) -> int | None:
    """Returns a descriptor that holds the folder's lock, or None when another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def remove_tree(folder: Path) -> None:
    """Removes a folder, everything mounted below it, and what its modes protect."""
    unmount_below(folder)
    for path, names, _ in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                if not (sub := Path(path, name)).is_symlink():
                    sub.chmod(sub.stat().st_mode | 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def unmount_below(folder: Path) -> None:
    """Unmounts everything below a folder, innermost first."""
    if os.geteuid() != 0:
        return
    points = [
        line.split()[4].replace("\\040", " ")
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
    ]
    for point in reversed([p for p in points if p.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)


def start(
    command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a server in its own session (Ctrl-C reaches pytest only); it ends when this process does."""

    def child() -> None:
        _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG

    with log.open("ab") as out:
        return subprocess.Popen(
            [str(c) for c in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            start_new_session=True,
            preexec_fn=child,
        )


def stop(process: subprocess.Popen[bytes], patience_s: float = 30) -> None:
    """Ends a process with SIGTERM, and with SIGKILL after ``patience_s`` seconds."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def wait_for(
    ready: Callable[[], Any],
    process: subprocess.Popen[bytes],
    log: Path,
    what: str,
    patience_s: float = READY_S,
) -> Any:
    """Polls until ``ready`` returns something true; fails with the log's end if the process dies or is too
    slow.
    """
    end = time.monotonic() + patience_s
    while time.monotonic() < end and process.poll() is None:
        if value := ready():
            return value
        time.sleep(0.05)
    state = (
        f"ended with {process.returncode}"
        if process.poll() is not None
        else f"is not ready after {patience_s:.0f} s"
    )
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    pytest.fail(f"{what} {state}:\n{tail}", pytrace=False)


#: Variables that say how this machine reaches package indexes, and others without personal settings.
_PASSED_ON = re.compile(
    r"LANG|LC_ALL|TERM|TMPDIR|CI|PYTHONDONTWRITEBYTECODE|(PIP|UV|SSL_CERT)_.*|(https?|no|all)_proxy", re.I
)


def clean_environment(**more: str | Path) -> dict[str, str]:
    """An environment without the credentials, hosts and settings of the user who runs the tests."""
    keep = {k: v for k, v in os.environ.items() if _PASSED_ON.fullmatch(k)}
    path = os.pathsep.join(
        [str(Path(sys.executable).parent), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    )
    return {**keep, "PATH": path, **{k: str(v) for k, v in more.items()}}


@dataclass
class DockerEngine:
    """A private Docker engine. It has no bridge: containers need ``network_mode="none"`` or ``"host"``."""

    host: str
    folder: Path
    pid: int
    client: Any
    env: dict[str, str]

    def docker(self, *args: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs the docker command line on this engine."""
        command = ["/usr/bin/docker", *(str(a) for a in args)]
        return subprocess.run(command, env=self.env, check=check, capture_output=True, text=True)


@contextlib.contextmanager
def docker_engine(
    options: Sequence[str] = (),
    *,
    own_network: bool = False,
    dockerd: Sequence[str | Path] = (),
    features: Mapping[str, bool] | None = None,
) -> Iterator[DockerEngine]:
    """Start a Docker engine.

    Args:
        options: are added to dockerd's command line.
        own_network: in a network namespace of its own, where it can make networks for containers.
        dockerd: the command that is dockerd; default: that of this machine.
        features: of its configuration file.
    """
    need_root()
    if not dockerd:
        dockerd = need("dockerd")
        need("runc", "containerd")
    with part_folder("dk") as folder:
        log = folder / "log"
        host = f"unix://{folder}/dk.sock"
        env = clean_environment(
            HOME=folder, DOCKER_HOST=host, DOCKER_CONFIG=folder / "config", DOCKER_BUILDKIT="0"
        )
        (folder / "config").mkdir()
        (folder / "daemon.json").write_text(json.dumps({"features": dict(features or {})}))
        own = ["--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "dk.pid"]
        command = [*dockerd, "--config-file", folder / "daemon.json", "--host", host, *own, *options]
        if own_network:
            command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
        else:
            command += ["--iptables=false", "--bridge=none"]
        process = start(command, log, env)
        client = None
        try:
            wait_for((folder / "dk.sock").exists, process, log, "dockerd")
            client = docker.DockerClient(base_url=host, timeout=300)

            def answers() -> bool:
                with contextlib.suppress(Exception):
                    return bool(client.ping())
                return False

            wait_for(answers, process, log, "dockerd")
            yield DockerEngine(host, folder, process.pid, client, env)
        finally:
            if client is not None:
                with contextlib.suppress(Exception):
                    for container in client.containers.list(all=True):
                        container.remove(force=True, v=True)
                client.close()
            stop(process)


@dataclass
class Registry:
    """A registry on this machine. ``root`` is its storage, ``ca`` the certificate to trust if it uses TLS."""

    host: str
    root: Path
    url: str
    config: Path
    log: Path
    ca: Path | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        assert self.process is not None, "the registry is stopped"
        return self.process.pid

    @property
    def port(self) -> int:
        return int(self.host.rpartition(":")[2])

    def blobs(self) -> dict[str, int]:
        """Digests and sizes of the blobs in its storage."""
        files = (self.root / "docker/registry/v2/blobs/sha256").glob("*/*/data")
        return {f"sha256:{f.parent.name}": f.stat().st_size for f in files}

    def stop(self) -> None:
        """Stops it; ``start`` starts it again on the same port with the same storage."""
        if self.process is not None:
            stop(self.process)
            self.process = None

    def start(self) -> None:
        seen = self.log.stat().st_size if self.log.exists() else 0
        process = start(
            ["docker-registry", "serve", self.config], self.log, clean_environment(HOME=self.root)
        )
        self.process = process

        def listening() -> str:
            with self.log.open("rb") as log:
                log.seek(seen)
                match = re.search(rb"listening on (127\.0\.0\.1:\d+)", log.read())
            return match[1].decode() if match else ""

        try:
            self.host = wait_for(listening, process, self.log, "docker-registry")
            self.url = f"{'https' if self.ca else 'http'}://{self.host}"
            wait_for(self._answers, process, self.log, "docker-registry")
        except BaseException:
            self.stop()
            raise

    def log_size(self) -> int:
        """The size of its log, with all requests of clients that have ended.

        docker-registry notes a request after it has sent the answer, and closes the connection after that.
        """
        end = time.monotonic() + READY_S
        while self._unfinished():
            assert time.monotonic() < end, "docker-registry does not close its connections"
            time.sleep(0.01)
        return self.log.stat().st_size

    def _unfinished(self) -> bool:
        """Whether a client has closed a connection that this registry still holds open."""
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        sockets = (line.split()[1:4] for line in lines)
        address = f"0100007F:{self.port:04X}"
        return any(local == address and state == _CLOSE_WAIT for local, _, state in sockets)

    def _answers(self) -> bool:
        connection: http.client.HTTPConnection
        if self.ca:
            context = ssl.create_default_context(cafile=str(self.ca))
            # like authorities of companies, that of the tests lacks a key usage: an error since Python 3.13
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            connection = http.client.HTTPSConnection(self.host, timeout=5, context=context)
        else:
            connection = http.client.HTTPConnection(self.host, timeout=5)
        try:
            connection.request("GET", "/v2/")
            return connection.getresponse().status in (200, 401)
        except OSError:
            return False
        finally:
            connection.close()


def start_registry(
    folder: Path,
    htpasswd: Mapping[str, str] | None = None,
    tls: bool = False,
    readonly: bool = False,
    root: Path | None = None,
) -> Registry:
    """Starts a registry with its files in ``folder``; ``root`` is the storage of another registry to use."""
    need("docker-registry")
    root = root or folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    # not one that the kernel chooses: a client may get that while the registry is stopped
    http_: dict[str, Any] = {"addr": f"127.0.0.1:{free_ports(1)[0]}", "secret": "of these tests"}
    storage = {"filesystem": {"rootdirectory": str(root)}, "delete": {"enabled": True}}
    config: dict[str, Any] = {
        "version": "0.1",
        "log": {"accesslog": {"disabled": False}},
        "storage": storage,
        "http": http_,
    }
    if readonly:
        storage["maintenance"] = {"readonly": {"enabled": True}}
    ca = None
    if tls:
        ca, certificate, key = make_certificates(folder / "tls")
        http_["tls"] = {"certificate": str(certificate), "key": str(key)}
    if htpasswd is not None:
        file = folder / "htpasswd"
        make_htpasswd(file, htpasswd)
        config["auth"] = {"htpasswd": {"realm": "builder-tests", "path": str(file)}}
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    registry = Registry("", root, "", folder / "config.yml", folder / "log", ca)
    registry.start()
    return registry


def make_htpasswd(file: Path, users: Mapping[str, str]) -> None:
    """Writes the users' passwords, hashed, as Apache does."""
    need("htpasswd")
    file.touch(mode=0o600)
    for user, password in users.items():
        subprocess.run(
            ["htpasswd", "-iB", str(file), user],
            input=f"{password}\n",
            text=True,
            check=True,
            capture_output=True,
        )


def make_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Makes a certificate authority, and a certificate and key for 127.0.0.1 and localhost, valid for two
    days.
    """
    need("openssl")
    folder.mkdir(parents=True)
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")

    def openssl(line: str) -> None:
        subprocess.run(["openssl", *shlex.split(line)], cwd=folder, check=True, capture_output=True)

    new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    openssl(f"req -x509 {new_key} -keyout ca.key -out ca.crt -days 2 -subj '/CN=builder tests CA'")
    openssl(f"req {new_key} -keyout server.key -out server.csr -subj '/CN=127.0.0.1'")
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial"
        " -out server.crt -days 2 -extfile ext"
    )
    return folder / "ca.crt", folder / "server.crt", folder / "server.key"


class RegistryFactory:
    """Makes registries that run until the test session ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[Registry] = []

    def __call__(
        self,
        htpasswd: Mapping[str, str] | None = None,
        tls: bool = False,
        readonly: bool = False,
        root: Path | None = None,
    ) -> Registry:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        registry = start_registry(folder, htpasswd, tls, readonly, root)
        self._made.append(registry)
        return registry

    def stop(self) -> None:
        for registry in self._made:
            registry.stop()


@contextlib.contextmanager
def registries() -> Iterator[RegistryFactory]:
    with part_folder("reg") as folder:
        factory = RegistryFactory(folder)
        try:
            yield factory
        finally:
            factory.stop()


CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
"""


@dataclass
class Podman:
    """podman with its own storage; buildah and skopeo use the same ``env``."""

    env: dict[str, str]
    folder: Path

    def run(self, *args: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs ``podman ARGS``; with ``check``, a failure fails the test with podman's output."""
        return run_program(["podman", *args], self.env, check=check)


def podman_environment(folder: Path, home: Path, driver: str = "overlay") -> dict[str, str]:
    """The environment of podman, buildah and skopeo with all files in ``folder``, which their user has
    made.
    """
    # podman 4.3 refuses a longer runroot only when it cleans up, and then waits 20 s for the container's
    # exit code
    assert len(f"{folder}/run/containers") <= 50, f"too long for podman: {folder}"
    (folder / "containers.conf").write_text(f'{CONTAINERS_CONF}tmp_dir = "{folder}/run/libpod"\n')
    storage = (
        f'[storage]\ndriver = "{driver}"\ngraphroot = "{folder}/storage"\nrunroot = "{folder}/run/storage"\n'
    )
    (folder / "storage.conf").write_text(storage + f'rootless_storage_path = "{folder}/storage"\n')
    (folder / "run").mkdir(mode=0o700, exist_ok=True)
    (folder / "auth.json").write_text("{}")
    (folder / "auth.json").chmod(0o600)
    return clean_environment(
        HOME=home,
        XDG_RUNTIME_DIR=folder / "run",
        CONTAINERS_CONF=folder / "containers.conf",
        CONTAINERS_STORAGE_CONF=folder / "storage.conf",
        REGISTRY_AUTH_FILE=folder / "auth.json",
    )


def skopeo(folder: Path, *args: str | Path, stdin: str | None = None) -> str:
    """Runs ``skopeo ARGS`` with its settings and credentials in ``folder``; returns what it prints."""
    command = [*need("skopeo"), "--insecure-policy", *args]
    env = clean_environment(HOME=folder, XDG_RUNTIME_DIR=folder)
    return run_program(command, env, stdin=stdin).stdout


@contextlib.contextmanager
def podman() -> Iterator[Podman]:
    need("podman", "runc", "newuidmap")
    with part_folder("pm") as folder:
        found = None
        why = ""
        for driver in ("overlay", "vfs"):  # a folder that is itself on an overlay cannot hold another one
            part = Podman(podman_environment(folder, folder, driver), folder)
            done = part.run("info", check=False)
            if done.returncode == 0:
                found = part
                break
            why = done.stderr.strip()
            shutil.rmtree(folder / "storage", ignore_errors=True)
        if found is None:
            part_missing(f"podman does not work here: {why}")
        try:
            yield found
        finally:
            found.run("rm", "--all", "--force", "--time", "1", check=False)


@dataclass
class Apptainer:
    """Apptainer 1.4 in the clone's ``.cache``; ``singularity`` is beside it."""

    path: Path
    env: dict[str, str]

    def run(self, *args: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs ``apptainer ARGS`` as the user who runs the tests."""
        return run_program([self.path, *args], self.env, check=check)


@contextlib.contextmanager
def apptainer() -> Iterator[Apptainer]:
    need("mksquashfs", "squashfuse", "fuse-overlayfs", "newuidmap", "dpkg", "apt-get")
    path = installed(install_apptainer, "apptainer")
    with part_folder("app") as folder:
        yield Apptainer(path, apptainer_environment(path, folder))


def apptainer_environment(path: Path, folder: Path) -> dict[str, str]:
    """The environment of Apptainer with its caches in ``folder``."""
    env = clean_environment(HOME=folder, APPTAINER_CACHEDIR=folder / "cache", APPTAINER_TMPDIR=folder)
    return {
        **env,
        "PATH": f"{path.parent}:{env['PATH']}",
        "APPTAINER_BINDPATH": "",
        "APPTAINER_NO_MOUNT": "hostfs,tmp",
    }


@dataclass
class OrdinaryUser:
    """A user without privileges. They own ``home`` and ``tmp``; ``env`` is the environment of their commands.

    When the tests run as root, each command gets its own mount namespace. In it, ``/etc/passwd``,
    ``/etc/group``, ``/etc/subuid`` and ``/etc/subgid`` list the user, ``/dev/fuse`` is open to them, and
    they can reach the clone, its Python and the folders in ``readable``, even if a parent folder is closed
    to them. The host does not change.
    """

    name: str
    uid: int
    home: Path
    tmp: Path
    env: dict[str, str]
    _etc: Path | None = None

    def own(self, folder: Path) -> None:
        """Gives a folder and everything below it to this user; it is theirs unless root runs the tests."""
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self.uid, self.uid, follow_symlinks=False)

    def podman_environment(self) -> dict[str, str]:
        """The environment that podman, buildah and skopeo need for this user: pass it to ``run`` as
        ``env``.
        """
        folder = self.home.parent / "pm"
        folder.mkdir(exist_ok=True)
        env = podman_environment(folder, self.home)
        self.own(folder)
        return env

    def command(self, command: Sequence[str | Path], readable: Sequence[Path] = ()) -> list[str]:
        """The command by which root lets this user run ``command``; it calls exec, so signals arrive."""
        words = [str(c) for c in command]
        if self._etc is None:
            return words
        for path in readable:
            if path.is_dir():  # pytest's own are closed
                path.chmod(path.stat().st_mode | 0o055)
        python = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1]}
        paths = sorted({p.absolute() for p in (CLONE, *python, *readable)})
        lines = [
            f"mount --bind {shlex.quote(str(f))} {shlex.quote(f'/etc/{f.name}')}"
            for f in sorted(self._etc.iterdir())
        ]
        private = self.home.parent / "private"
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(private))}")
        lines += [*_fuse(private), *_open_ways(paths, private)]
        user = [
            "setpriv",
            f"--reuid={self.uid}",
            f"--regid={self.uid}",
            "--clear-groups",
            "--inh-caps=-all",
            "--",
            *words,
        ]
        script = "\n".join(["set -e", *lines, f"exec {shlex.join(user)}"])
        return ["unshare", "--mount", "--propagation=private", "bash", "-c", script]

    def run(
        self,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        *,
        readable: Sequence[Path] = (),
        cwd: Path | None = None,
        check: bool = True,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as this user; ``env`` is added to theirs.

        With ``check``, a failure fails the test.
        """
        full = {**self.env, **(env or {})}
        where = ["env", f"--chdir={cwd or self.home}"]
        words = self.command([*where, *command], readable)
        return run_program(words, full, check=check, cwd="/", timeout=timeout)


def _fuse(folder: Path) -> list[str]:
    if not Path("/dev/fuse").exists():
        return []
    device = shlex.quote(str(folder / "fuse"))
    return [f"mknod -m 666 {device} c 10 229", f"mount --bind {device} /dev/fuse"]


def _open_ways(paths: Iterable[Path], stash: Path, below: Path = Path("/")) -> list[str]:
    """Mount commands that let an ordinary user reach ``paths``.

    Every folder under ``below`` that is closed to them is hidden by an open, empty one that holds nothing
    but the way to those paths.
    """
    closed: dict[Path, list[Path]] = {}
    for path in paths:
        parents = (p for p in reversed(path.parents) if below in p.parents)
        gate = next((p for p in parents if not p.stat().st_mode & 0o001), None)
        if gate is not None:
            closed.setdefault(gate, []).append(path)
    lines = []
    for gate, inside in closed.items():
        kept = [p for p in inside if not any(o in p.parents for o in inside)]
        places = [shlex.quote(str(stash / secrets.token_hex(6))) for _ in kept]
        for path, place in zip(kept, places, strict=True):
            lines += [_place(path, place), f"mount --rbind {shlex.quote(str(path))} {place}"]
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(gate))}")
        for path, place in zip(kept, places, strict=True):
            target = shlex.quote(str(path))
            lines += [_place(path, target), f"mount --rbind {place} {target}"]
            lines += _open_ways([p for p in inside if path in p.parents], stash, path)
    return lines


def _place(path: Path, target: str) -> str:
    """The command that makes ``target`` a mount point for ``path``."""
    return f"mkdir -p {target}" if path.is_dir() else f"mkdir -p $(dirname {target}); touch {target}"


@contextlib.contextmanager
def ordinary_user() -> Iterator[OrdinaryUser]:
    with part_folder("user") as folder:
        home, tmp = folder / "home", folder / "tmp"
        for made in (home, tmp):
            made.mkdir(mode=0o700)
        run = home / "run"
        run.mkdir(mode=0o700)
        env = clean_environment(HOME=home, TMPDIR=tmp, XDG_RUNTIME_DIR=run)
        if os.geteuid() != 0:
            me = pwd.getpwuid(os.getuid())
            yield OrdinaryUser(me.pw_name, me.pw_uid, home, tmp, {**env, "USER": me.pw_name})
            return
        need("setpriv", "unshare", "newuidmap")
        taken = {p.pw_uid for p in pwd.getpwall()}
        first = 20000 + os.getpid() % 20000  # not that of another run of these tests
        name, uid = "builder-tester", next(u for u in range(first, 60000) if u not in taken)
        for path in (home, tmp, run):
            os.chown(path, uid, uid)
        etc = folder / "etc"
        etc.mkdir()
        (folder / "private").mkdir()
        passwd, group = Path("/etc/passwd").read_text(), Path("/etc/group").read_text()
        (etc / "passwd").write_text(f"{passwd}{name}:x:{uid}:{uid}::{home}:/bin/sh\n")
        (etc / "group").write_text(f"{group}{name}:x:{uid}:\n")
        for file in ("subuid", "subgid"):
            if Path("/etc", file).exists():
                (etc / file).write_text(f"{name}:200000:65536\n")
        try:
            yield OrdinaryUser(name, uid, home, tmp, {**env, "USER": name, "LOGNAME": name}, etc)
        finally:
            _end_processes_of(uid)


def _end_processes_of(uid: int) -> None:
    """Ends the processes that a made-up user left running, such as podman's pause process."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == uid:
                os.kill(int(process.name), signal.SIGKILL)
