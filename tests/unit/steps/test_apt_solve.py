"""OS packages that the base's apt finds: the base, the network, the output and the errors of apt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from builder.bases import debian_mirror
from builder.config.recipe import Recipe
from builder.errors import (
    BuilderError,
    ConfigError,
    FetchError,
    ImageError,
    LockError,
    RunnerError,
    SolveError,
)
from builder.model import Image, SifImage
from builder.run.base import DEFAULT_OPTIONS, Runner, RunOptions
from builder.run.process import Completed
from builder.steps import apt_network, apt_solve
from builder.steps.apt_base import AptBase, read_apt_base
from builder.steps.apt_network import AptNetwork, prepare_network
from builder.steps.apt_solve import read_uris, solve_os_packages
from builder.store.blobs import Store
from tests.support import image_kit

PROBE = """
@@ apt
amd64

@@ /etc/os-release
PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
ID=debian
VERSION_CODENAME=bookworm

@@ /etc/apt/sources.list.d/debian.sources
Types: deb
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/no-such-key.gpg
"""
URIS = (
    "'http://deb.debian.org/debian/pool/main/h/hello/hello_2.10-3%2bb1_amd64.deb' hello_2.10-3+b1_amd64.deb "
    f"53084 SHA256:{'ab' * 32}\n"
    "'http://u:p@mirror.example/x/pool/libx11-6_2%3a1.8_amd64.deb' libx11-6_2%3a1.8_amd64.deb "
    f"10 SHA256:{'cd' * 32}\n"
)


class FakeRunner(Runner):
    """A runner whose container prints given texts, one for each run."""

    name = "fake"

    def __init__(self, folder: Path, *results: Completed | RunnerError) -> None:
        self.results = list(results)
        self.runs: list[tuple[list[str], RunOptions]] = []
        settings = image_kit.settings(folder)
        super().__init__(settings, Store(settings.cache))

    def available(self) -> str | None:
        return None

    def run(
        self, image: Image | SifImage, command: Sequence[str], options: RunOptions = DEFAULT_OPTIONS
    ) -> Completed:
        self.runs.append((list(command), options))
        result = self.results.pop(0)
        if isinstance(result, RunnerError):
            raise result
        return result


def solve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *results: Completed | RunnerError
) -> tuple[object, FakeRunner]:
    """The packages or the error of a recipe with ``base_packages: [hello]``."""
    settings = image_kit.settings(tmp_path)
    store = Store(settings.cache)
    runner = FakeRunner(tmp_path, *results)
    monkeypatch.setattr(apt_solve, "apt_runner", lambda *_: runner)
    base_image = image_kit.base()
    source = tmp_path / "mine.yaml"
    source.write_text("base: oci:base\nbase_packages: [hello]\n")
    recipe = Recipe(
        name="mine",
        base="oci:base",
        base_packages=("hello",),
        environment="e.yml",
        source=source,
        root=tmp_path,
    )
    try:
        return solve_os_packages(recipe, base_image, settings, store), runner
    except BuilderError as e:
        return e, runner


def failed(code: int, stdout: str = "", stderr: str = "") -> Completed:
    return Completed(code, stdout, stderr)


def test_solved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apt's lines become packages; the container has the network, and the packages are its arguments."""
    packages, runner = solve(tmp_path, monkeypatch, Completed(0, PROBE, ""), Completed(0, URIS, ""))
    assert isinstance(packages, tuple)
    assert [(p.name, p.version, p.size) for p in packages] == [
        ("hello", "2.10-3+b1", 53_084),
        ("libx11-6", "2:1.8", 10),
    ]
    assert packages[1].url == "http://mirror.example/x/pool/libx11-6_2%3a1.8_amd64.deb"
    assert runner.runs[0][1].network == "none"
    command, options = runner.runs[1]
    assert command[-1] == "hello" and options.network == "host"


@pytest.mark.parametrize(
    ("result", "kind", "message", "hint"),
    [
        (
            failed(62, "@@ names\nhello\nffmpeg\n", "E: Unable to locate package helo\n"),
            ConfigError,
            "2: base_packages: Debian GNU/Linux 12 (bookworm) has no package helo",
            "did you mean hello instead of helo?",
        ),
        (
            failed(62, " a : Conflicts: b\n@@ names\n", "E: Unable to correct problems\n"),
            SolveError,
            "a : Conflicts: b",
            "--update-base",
        ),
        (
            failed(61, "", "E: Failed to fetch http://u:secret@h.example/dists  404\n"),
            FetchError,
            "apt-get update fails",
            "BUILDER_MIRRORS",
        ),
        (Completed(124, "", "", timed_out=True), FetchError, "took more than", "again"),
    ],
)
def test_errors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    result: Completed,
    kind: type[BuilderError],
    message: str,
    hint: str,
) -> None:
    """Each failure of apt names the recipe's line, what is wrong, and what to type."""
    error, _ = solve(tmp_path, monkeypatch, Completed(0, PROBE, ""), result)
    assert isinstance(error, kind)
    assert message in error.message and hint in error.hint
    assert "mine.yaml:2" in error.message and "secret" not in error.message


@pytest.mark.parametrize(
    "probe",
    [
        Completed(0, '\n@@ /etc/os-release\nID=alpine\nPRETTY_NAME="Alpine Linux v3.20"\n', ""),
        RunnerError(
            "the user-namespace runner could not start: cannot run /bin/sh in the image: No such file"
        ),
        Completed(127, "", ""),
    ],
)
def test_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: Completed | RunnerError) -> None:
    """A base without apt, or without a shell, leads to steps."""
    error, _ = solve(tmp_path, monkeypatch, probe)
    assert isinstance(error, ImageError)
    assert "has no apt" in error.message and "steps:" in error.hint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("' hello_", "' ../../../hello_"),
        ("' hello_", "' -o_"),
        ("_amd64.deb 53084", "_amd64;sh.deb 53084"),
        (" 53084 ", f" {'9' * 5000} "),
        (" 53084 ", f" {'9' * 40} "),
        ("'http://deb", "'copy:/deb"),
    ],
)
def test_line_of_a_hostile_apt(tmp_path: Path, old: str, new: str) -> None:
    """What the base's apt prints becomes file names, addresses and commands."""
    network = AptNetwork((), image_kit.settings(tmp_path), ())
    with pytest.raises(LockError, match="apt names a package that is none"):
        read_uris(URIS.replace(old, new), network)


def base(tmp_path: Path) -> AptBase:
    return read_apt_base(image_kit.base(), FakeRunner(tmp_path, Completed(0, PROBE, "")), "")


def test_network_of_mirrors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BUILDER_MIRRORS replaces an archive; a folder is mounted; the lock has the public address."""
    monkeypatch.setattr(
        apt_network, "host_mirrors", lambda: (("http://deb.debian.org/debian", "http://own"),)
    )
    folder, mirror = tmp_path / "mounted", tmp_path / "mirror"
    folder.mkdir()
    mirror.mkdir()
    pairs = (("http://deb.debian.org/debian", str(mirror)),)
    network = prepare_network(folder, base(tmp_path), image_kit.settings(tmp_path, mirrors=pairs), "")
    text = (folder / "sources.d/base.sources").read_text()
    assert f"URIs: file://{mirror}" in text and "no-such-key" in text
    assert str(mirror) in [mount.target for mount in network.mounts]
    assert network.public(f"file://{mirror}/pool/a.deb") == "http://deb.debian.org/debian/pool/a.deb"
    assert network.public("http://own/pool/a.deb") == "http://deb.debian.org/debian/pool/a.deb"


def test_network_of_a_hostile_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources of the base lead to no file of this machine: no folder, no key, no password of another host."""
    mirror, secret, etc = tmp_path / "mirror", tmp_path / "secret", tmp_path / "auth.conf"
    mirror.mkdir()
    secret.mkdir()
    (secret / "key").write_text("private")
    etc.write_text("machine own login u password p#1\nmachine other.example/x login u password hidden\n")
    monkeypatch.setattr(debian_mirror, "_CREDENTIALS", (etc, tmp_path / "auth.conf.d"))
    monkeypatch.setattr(
        apt_network, "host_mirrors", lambda: (("http://archive.example/debian", f"file://{mirror}"),)
    )
    rest = {"Types": "deb", "Suites": "bookworm", "Signed-By": f"{secret}/key"}
    uris = (f"file://{secret}", "http://archive.example/debian/../secret", "http://own.example/x")
    sources = tuple({**rest, "URIs": uri} for uri in uris)
    found = AptBase("oci:x", "debian", "bookworm", "Debian", "amd64", sources)
    folder = tmp_path / "mounted"
    folder.mkdir()
    pairs = (("http://own.example", "http://own:8080/y"),)
    network = prepare_network(folder, found, image_kit.settings(tmp_path, mirrors=pairs), "")
    assert [mount.source for mount in network.mounts] == [folder]
    texts = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    assert not any("private" in text or "hidden" in text for text in texts)
    assert "machine own login u password p#1\n" in texts


def test_line_without_sha256(tmp_path: Path) -> None:
    """An archive that has MD5 alone is refused."""
    network = AptNetwork((), image_kit.settings(tmp_path), ())
    with pytest.raises(LockError, match="without SHA-256"):
        read_uris("'http://x/a_1_all.deb' a_1_all.deb 5 MD5Sum:00\n", network)
