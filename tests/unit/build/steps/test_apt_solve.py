"""OS packages that the base's apt finds: the base, the network, the output and the errors of apt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from builder.build.run.base import RunOptions
from builder.build.run.process import Completed
from builder.build.steps import apt_base, apt_solve
from builder.build.steps.apt_base import AptBase, AptNetwork, prepare_network, read_apt_base
from builder.build.steps.apt_solve import read_uris, solve_os_packages
from builder.core.errors import (
    BuilderError,
    FetchError,
    ImageError,
    LockError,
    RunnerError,
    SolveError,
)
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.lock.config.recipe import Recipe
from tests.support import image_kit

PROBE = """
@@ apt

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


class FakeRunner:
    """A runner whose container prints given texts, one for each run."""

    def __init__(self, *results: Completed | RunnerError) -> None:
        self.results = list(results)
        self.runs: list[tuple[Sequence[str], RunOptions]] = []

    def run(self, image: object, command: Sequence[str], options: RunOptions) -> Completed:
        self.runs.append((command, options))
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
    runner = FakeRunner(*results)
    monkeypatch.setattr(apt_solve, "find_runner", lambda *_, **__: runner)
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
        return solve_os_packages(recipe, base_image, Workspace(settings, store)), runner
    except BuilderError as e:
        return e, runner


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
            Completed(62, "", "E: Unable to locate package helo\n"),
            SolveError,
            "12 (bookworm) finds no solution:\n    E: Unable to locate package helo",
            "look the names up",
        ),
        (
            Completed(62, " a : Conflicts: b\n", "E: Unable to correct problems\n"),
            SolveError,
            "a : Conflicts: b",
            "--update-base",
        ),
        (
            Completed(61, "", "E: Failed to fetch http://u:secret@h.example/dists  404\n"),
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
        ("_amd64.deb 53084", "_amd64;sh.deb 53084"),
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
    return read_apt_base(image_kit.base(), FakeRunner(Completed(0, PROBE, "")), "")


def test_network_of_mirrors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BUILDER_MIRRORS replaces an archive; a folder is mounted; the lock has the public address."""
    archive = "http://deb.debian.org/debian"
    monkeypatch.setattr(apt_base, "host_mirrors", lambda: ((archive, "http://own"),))
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
    """Sources of the base lead to no folder of this machine."""
    mirror, secret, folder = tmp_path / "mirror", tmp_path / "secret", tmp_path / "mounted"
    for path in (mirror, secret, folder):
        path.mkdir()
    monkeypatch.setattr(
        apt_base, "host_mirrors", lambda: (("http://archive.example/debian", f"file://{mirror}"),)
    )
    rest = {"Types": "deb", "Suites": "bookworm"}
    uris = (f"file://{secret}", "http://archive.example/debian/../secret")
    sources = tuple({**rest, "URIs": uri} for uri in uris)
    found = AptBase("oci:x", "debian", "bookworm", "Debian", sources)
    network = prepare_network(folder, found, image_kit.settings(tmp_path), "")
    assert [mount.source for mount in network.mounts] == [folder]


def test_line_without_sha256(tmp_path: Path) -> None:
    """An archive that has MD5 alone is refused."""
    network = AptNetwork((), image_kit.settings(tmp_path), ())
    with pytest.raises(LockError, match="without SHA-256"):
        read_uris("'http://x/a_1_all.deb' a_1_all.deb 5 MD5Sum:00\n", network)
