"""A fresh machine: Debian with Python and nothing of this machine's software, for commands of a new user.

Its root file system is Debian's minbase (dpkg, apt, coreutils and what they need) with ca-certificates, and
:data:`PACKAGES`. The user has subordinate ids, as useradd gives them, but neither docker, podman, mmdebstrap,
newuidmap nor git. The machine shares this one's network, kernel, and settings of apt and pip.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from builder.core.store.blobs import Store
from tests.support import parts

#: Debian's Python 3.11, and what ``python3 -m venv`` needs.
PACKAGES = ("python3", "python3-venv")
USER = "newcomer"
_UID = 1000
#: Settings of this machine's package index, network and certificates, which are mounted.
_SETTINGS = (
    "/etc/pip.conf",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/resolv.conf",
    "/etc/hosts",
)
_VARIABLES = (
    "PIP_",
    "SSL_",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)


@dataclass(frozen=True)
class FreshMachine:
    """The machine's root file system, and variables of the user's shell."""

    root: Path
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """The user's home folder, as this machine sees it."""
        return self.root / "home" / USER

    def show(self, script: str, *, folder: str = "", root: bool = False) -> int:
        """Run a shell script as the user; its output goes to this terminal. Return its exit code.

        Args:
            script: of the shell.
            folder: below the home of whoever runs it, in which it runs.
            root: root runs it, not the user.
        """
        home = "/root" if root else f"/home/{USER}"
        path = f"{home}/venv/bin:{'/usr/sbin:' if root else ''}/usr/bin:/bin"
        env = {"HOME": home, "USER": "root" if root else USER, "PATH": path, **self.env}
        user = "" if root else f"setpriv --reuid={_UID} --regid={_UID} --clear-groups --inh-caps=-all "
        return self._enter(f"cd {home}/{folder}", user, env, script, captured=False).returncode

    def install(self, *packages: str) -> None:
        """Installs Debian packages, as root of the machine, from this machine's mirror."""
        install = f"apt-get install --yes --no-install-recommends {shlex.join(packages)}"
        self.as_root(f"apt-get update && {install}")

    def as_root(self, script: str) -> None:
        """Run a shell script as root of the machine, which must succeed."""
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        done = self._enter("cd /", "", {"DEBIAN_FRONTEND": "noninteractive", "PATH": path}, script)
        assert done.returncode == 0, done.stdout + done.stderr

    def _enter(
        self,
        change: str,
        user: str,
        env: Mapping[str, str],
        script: str,
        *,
        captured: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a shell script in the machine, in mount and PID namespaces of its own."""
        words = [f"{name}={value}" for name, value in {**_variables(), "LANG": "C.UTF-8", **env}.items()]
        # A chroot cannot make user namespaces, so the root is changed with pivot_root.
        lines = [
            "set -e",
            f"cd {shlex.quote(str(self.root))}",
            "mount --bind . .",
            f"cd {shlex.quote(str(self.root))}",
            "mount --rbind /dev dev",
            "mount --rbind /sys sys",
            "mount -t proc proc proc",
            *_bind_settings(self.root),
            "mkdir -p .old && pivot_root . .old && umount -l /.old",
            change,
            f"exec {user}env -i {shlex.join(words)} sh -c {shlex.quote(script)}",
        ]
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private"]
        return subprocess.run(
            [*command, "bash", "-c", "\n".join(lines)],
            capture_output=captured,
            text=True,
            check=False,
        )


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}


def _bind_settings(root: Path) -> Iterator[str]:
    """Shell lines that show this machine's settings inside the fresh one."""
    folders = [path for path in os.environ.get("PIP_FIND_LINKS", "").split() if path.startswith("/")]
    for path in (*_SETTINGS, *folders):
        source = Path(path)
        if not source.exists():
            continue
        inside = root / path.lstrip("/")
        make = f"mkdir -p {shlex.quote(str(inside))}" if source.is_dir() else ""
        touch = f"mkdir -p {shlex.quote(str(inside.parent))} && touch {shlex.quote(str(inside))}"
        yield make or touch
        yield f"mount --bind -o ro {shlex.quote(str(source.resolve()))} {shlex.quote(str(inside))}"


@contextmanager
def fresh_machine(folder: Path, cache: Path, digest: str, **env: str) -> Iterator[FreshMachine]:
    """Makes the machine in ``folder``, from the base ``debian:bookworm`` of a cache."""
    parts.need_root()
    parts.need("unshare", "pivot_root", "setpriv")
    root = folder / "root"
    root.mkdir(mode=0o755, parents=True)
    machine = FreshMachine(root, env)
    try:
        store = Store(cache)
        layers = json.loads(store.path(digest).read_bytes())["layers"]
        for layer in layers:
            tar = store.path(layer["digest"])
            subprocess.run(["tar", "-xpf", tar, "-C", root, "--numeric-owner"], check=True)
        for name in ("dev", "proc", "sys", "tmp"):
            (root / name).mkdir(exist_ok=True)
        shutil.copytree("/etc/apt", root / "etc/apt", dirs_exist_ok=True)  # packages write there too
        (root / "tmp").chmod(0o1777)
        machine.install(*PACKAGES)
        machine.as_root(f"useradd --uid {_UID} --create-home --shell /bin/bash {USER}")
        yield machine
    finally:
        parts.remove_tree(root)


def give(machine: FreshMachine, source: Path, name: str) -> None:
    """Copies a file or folder into the user's home, as theirs."""
    target = machine.home / name
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    for path in (target, *target.rglob("*")):
        os.chown(path, _UID, _UID)


def serve_base(host: str, repository: str, tag: str, cache: Path, digest: str) -> None:
    """Puts an image of a cache into an empty registry on this machine."""
    store = Store(cache)
    manifest = store.path(digest).read_bytes()
    data = json.loads(manifest)
    with httpx2.Client(base_url=f"http://{host}", trust_env=False, timeout=60) as http:
        for blob in (data["config"], *data["layers"]):
            upload = http.post(f"/v2/{repository}/blobs/uploads/").raise_for_status()
            content = store.path(blob["digest"]).read_bytes()
            place = httpx2.URL(upload.headers["Location"]).copy_merge_params({"digest": blob["digest"]})
            http.put(place, content=content).raise_for_status()
        headers = {"Content-Type": data["mediaType"]}
        http.put(f"/v2/{repository}/manifests/{tag}", content=manifest, headers=headers).raise_for_status()
