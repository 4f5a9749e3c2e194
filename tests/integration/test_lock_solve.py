"""Real solves: py-rattler against channels served on loopback, uv against an index and folders made here."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import yaml

from builder.build.fetch.packages import fetch_packages
from builder.core.errors import ConfigError, FetchError, SolveError, UsageError
from builder.core.model import LockedBase
from builder.core.progress import QUIET, Reporter
from builder.core.settings import Settings
from builder.core.stages import LockOptions
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.core.workspace import Workspace
from builder.lock.config.recipe import Recipe
from builder.lock.file import write_lock
from builder.lock.inputs import Inputs, stale_reasons
from builder.lock.request import LockRequest
from builder.lock.solve import lock_target
from tests.support.channel import TIMESTAMP, index_channel, make_package, serve, simple_index
from tests.support.wheels import make_wheel

BASE = LockedBase("debian:bookworm", "sha256:" + "0" * 64)
DAY_MS = 24 * 3600 * 1000  # TIMESTAMP is 2024-05-01


class Listener(Reporter):
    def __init__(self):
        self.warnings: list[str] = []
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def settings(tmp_path):
    return Settings.from_environment({"HOME": str(tmp_path), "BUILDER_CACHE": str(tmp_path / "cache")})


@pytest.fixture(autouse=True)
def no_pip_configuration(request, monkeypatch):
    """The wheels of these tests come from their own folders; pip's configuration on this machine has no
    influence.
    """
    if not request.node.get_closest_marker("network"):
        pip(monkeypatch, no_index=True)


def pip(monkeypatch, *, index_url="", extra_index_urls=(), find_links=(), no_index=False) -> None:
    """Configures pip, through its variables."""
    values = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index_url,
        "PIP_EXTRA_INDEX_URL": " ".join(extra_index_urls),
        "PIP_FIND_LINKS": " ".join(find_links),
        "PIP_NO_INDEX": "1" if no_index else "",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def channel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("channel")
    make_package(folder, "python", "3.11.9", "0_cpython", depends=["libz >=1", "__glibc >=2.17"])
    make_package(folder, "python", "3.12.4", "0_cpython", depends=["libz >=1", "__glibc >=2.39"])
    make_package(folder, "pip", "24.0", "py_0", noarch="python", depends=["python >=3.8"])
    make_package(folder, "libz", "1.0")
    make_package(folder, "libz", "1.1", timestamp=TIMESTAMP + 10 * DAY_MS)
    make_package(folder, "app", "1.0", depends=["libz >=1,<2"])
    make_package(
        folder, "app", "2.0", depends=["libz >=1.1", "helper >=2"], timestamp=TIMESTAMP + 10 * DAY_MS
    )
    make_package(folder, "helper", "1.0")
    make_package(folder, "helper", "2.0", timestamp=TIMESTAMP + 10 * DAY_MS)
    make_package(folder, "bystander", "1.0")
    make_package(folder, "bystander", "2.0", timestamp=TIMESTAMP + 10 * DAY_MS)
    make_package(folder, "gpu", "1.0", "cuda_0", depends=["__cuda >=12"])
    make_package(folder, "newgpu", "1.0", depends=["__cuda >=13"])
    make_package(
        folder, "numpy", "1.26.4", "py311_0", depends=["python >=3.11,<3.12", "python_abi 3.11.* *_cp311"]
    )
    make_package(folder, "python_abi", "3.11", "5_cp311", depends=["python 3.11.*"])
    make_package(folder, "pytorch", "2.5.1", "cpu_0", depends=["python"])
    make_package(folder, "clash", "1.0", depends=["libz <1.1"])
    make_package(folder, "clash2", "1.0", depends=["libz >=1.1"])
    with serve(index_channel(folder)) as server:
        yield server


@pytest.fixture
def target(tmp_path, channel):
    def make(dependencies: str, *, channels: tuple[str, ...] | None = None, **values) -> Recipe:
        text = (
            yaml.safe_dump({"channels": list(channels or (channel.url,))}) + "dependencies:\n" + dependencies
        )
        (tmp_path / "environment.yml").write_text(text)
        base = {"name": "t", "base": "debian:bookworm", "environment": "environment.yml"}
        place = {"root": tmp_path, "source": tmp_path / "t.yaml"}
        return Recipe.model_validate(
            {**base, **place, "virtual_packages": {"__glibc": "2.31", "__linux": "5.14"}, **values}
        )

    return make


def lock(recipe: Recipe, settings: Settings, previous=None, reporter=QUIET, **options):
    asked = LockOptions(**options)
    return lock_target(LockRequest(Inputs.read(recipe), settings, BASE, previous, asked, reporter=reporter))


def versions(lock_) -> dict[str, str]:
    return {p.name: p.version for p in lock_.packages}


# conda


def test_target_decides(target, settings, channel, tmp_path):
    """python 3.12 needs a glibc that the target does not have, whatever this machine's is."""
    recipe = target("- python\n- numpy\n")
    made = write_lock(lock(recipe, settings), tmp_path / "environment.t.lock.yml")
    assert versions(made) == {"python": "3.11.9", "libz": "1.1", "numpy": "1.26.4", "python_abi": "3.11"}
    numpy = next(p for p in made.packages if p.name == "numpy")
    assert numpy.url == f"{channel.url}/linux-64/numpy-1.26.4-py311_0.conda" and numpy.build == "py311_0"
    raw = urllib.request.urlopen(numpy.url).read()
    assert hashlib.sha256(raw).hexdigest() == numpy.sha256 and hashlib.md5(raw).hexdigest() == numpy.md5
    assert numpy.dependencies == {"python": ">=3.11,<3.12", "python_abi": "3.11.* *_cp311"}
    assert made.channels == (channel.url,) and made.base == BASE and made.platforms == ("linux-64",)
    assert stale_reasons(Inputs.read(recipe), made) == []


def test_same_sources_same_bytes(target, settings, tmp_path):
    recipe = target("- python\n- app\n")
    one = write_lock(lock(recipe, settings), tmp_path / "a.t.lock.yml")
    other = replace(settings, cache=tmp_path / "other")
    assert write_lock(lock(recipe, other), tmp_path / "b.t.lock.yml").digest == one.digest


def test_conda_lock_reads_it(target, settings, tmp_path, channel):
    """conda-lock reads and renders a lock that builder solved."""
    from conda_lock.lockfile import parse_conda_lock_file

    path = tmp_path / "environment.t.lock.yml"
    made = write_lock(lock(target("- numpy\n- app\n"), settings), path)
    parsed = parse_conda_lock_file(path)
    assert {(p.name, p.version, p.url) for p in parsed.package} == {
        (p.name, p.version, p.url) for p in made.packages
    }
    names = [p.name for p in parsed.package]
    assert names.index("libz") < names.index("python") < names.index("numpy")
    render = [sys.executable, "-m", "conda_lock", "render", "-k", "explicit", "-p", "linux-64", str(path)]
    subprocess.run(render, cwd=tmp_path, check=True, capture_output=True)
    lines = (tmp_path / "conda-linux-64.lock").read_text().splitlines()
    assert {line for line in lines if line.startswith("http")} == {f"{p.url}#{p.md5}" for p in made.packages}


def test_exclude_newer(target, settings, tmp_path):
    recipe = target("- app\n- bystander\n")
    assert versions(lock(recipe, settings)) == {
        "app": "2.0",
        "libz": "1.1",
        "helper": "2.0",
        "bystander": "2.0",
    }
    old = {"app": "1.0", "libz": "1.0", "bystander": "1.0"}
    assert versions(lock(recipe, settings, exclude_newer="2024-05-02")) == old
    dated = target("- app\n- bystander\n", conda={"exclude_newer": "2024-05-02"})
    assert versions(lock(dated, settings)) == old
    assert (
        versions(lock(dated, settings, exclude_newer="2024-06-01"))["app"] == "2.0"
    )  # the command line wins
    with pytest.raises(ConfigError, match="--exclude-newer: exclude-newer 'soon' is not a date"):
        lock(recipe, settings, exclude_newer="soon")


@pytest.mark.parametrize(
    ("workspace", "tables", "expected"),
    [
        ("", "", {"app": "1.0", "libz": "1.1"}),
        ("", "[constraints]\nlibz = '<1.1'\nhelper = '<2'\n", {"app": "1.0", "libz": "1.0"}),
        ("exclude-newer = '2024-05-02'\n", "", {"app": "1.0", "libz": "1.0"}),
    ],
    ids=["neither", "constraints", "exclude-newer"],
)
def test_settings_of_the_file(target, settings, tmp_path, channel, workspace, tables, expected):
    """Constraints of pixi limit packages that others need, and its date hides later ones."""
    (tmp_path / "pixi.toml").write_text(
        f"[workspace]\nchannels = ['{channel.url}']\nplatforms = ['linux-64']\n{workspace}"
        f"[dependencies]\napp = '1.0'\n{tables}"
    )
    made = lock(target("- libz\n", environment="pixi.toml"), settings)
    found = versions(made)
    assert {name: found.get(name) for name in ("app", "libz", "helper")} == {**expected, "helper": None}
    assert ("limits" in made.record.inputs) == bool(tables)
    assert made.record.solved_before == ("2024-05-03T00:00:00Z" if workspace else "")


def test_update(target, settings):
    """An update changes the named package and only what has to change with it."""
    recipe = target("- app\n- bystander\n- libz\n- helper\n")
    before = lock(recipe, settings, exclude_newer="2024-05-02")
    assert versions(before) == {"app": "1.0", "libz": "1.0", "bystander": "1.0", "helper": "1.0"}
    after = lock(recipe, settings, previous=before, update=["app"])
    assert versions(after) == {"app": "2.0", "libz": "1.1", "helper": "2.0", "bystander": "1.0"}
    after = lock(recipe, settings, previous=before, update=["Helper"])
    assert versions(after) == {"app": "1.0", "libz": "1.0", "helper": "2.0", "bystander": "1.0"}
    with pytest.raises(UsageError, match="did you mean bystander"):
        lock(recipe, settings, previous=before, update=["bystandr"])


def test_strict_channel_priority(target, settings, channel, tmp_path):
    """The first channel that has a package is the only one for it, even where the second has a newer
    version.
    """
    first = tmp_path / "first"
    make_package(first, "libz", "0.5")
    index_channel(first)
    with serve(first) as server:
        recipe = target("- libz\n- bystander\n", channels=(server.url, channel.url))
        assert versions(lock(recipe, settings)) == {"libz": "0.5", "bystander": "2.0"}
        with pytest.raises(SolveError, match="libz"):
            lock(target("- libz>=1\n", channels=(server.url, channel.url)), settings)


@pytest.mark.parametrize(
    ("channels", "spec"),
    [
        (["conda-forge"], "conda-forge::libz"),
        (["conda-forge"], "https://conda.anaconda.org/conda-forge::libz"),
        (["empty"], "conda-forge::libz"),
        (["defaults"], "pkgs/main::libz"),
    ],
)
def test_channel_of_spec(target, settings, channel, tmp_path, channels, spec):
    """``channel::package`` is found in a mirror, and the lock has the public URL."""
    index_channel(tmp_path / "empty")
    mirrors = (
        ("https://conda.anaconda.org/conda-forge", channel.url),
        ("https://host.example/mirror/conda-forge", channel.url),
        ("https://conda.anaconda.org/empty", (tmp_path / "empty").as_uri()),
        ("https://repo.anaconda.com/pkgs/main", channel.url),
        ("https://repo.anaconda.com/pkgs/r", (tmp_path / "empty").as_uri()),
    )
    made = lock(target(f"- '{spec}'\n", channels=channels), replace(settings, mirrors=mirrors))
    assert made.packages[0].url.startswith("https://") and made.packages[0].version == "1.1"
    assert made.packages[0].url.endswith(
        ("conda-forge/linux-64/libz-1.1-0.conda", "main/linux-64/libz-1.1-0.conda")
    )


def test_channel_of_spec_without_mirror(target, settings, channel, tmp_path):
    """A package comes from the channel that its spec names, and from no other."""
    make_package(tmp_path / "first", "libz", "9.0")
    index_channel(tmp_path / "first")
    first = (tmp_path / "first").as_uri()
    made = lock(target(f"- '{channel.url}::libz'\n", channels=(first, channel.url)), settings)
    assert versions(made) == {"libz": "1.1"}
    with pytest.raises(SolveError, match="bystander"):
        lock(target(f"- '{first}::bystander'\n", channels=(first, channel.url)), settings)


def test_variables_in_channel(target, settings, tmp_path, monkeypatch):
    """As in conda-lock, the lock names the variable and the server sees its value."""
    make_package(tmp_path / "pages" / "t" / "s3cret" / "mine", "python", "3.11.9")
    index_channel(tmp_path / "pages" / "t" / "s3cret" / "mine")
    monkeypatch.setenv("MINE_TOKEN", "s3cret")
    with serve(tmp_path / "pages") as server:
        recipe = target("- python\n", channels=(f"{server.url}/t/$MINE_TOKEN/mine",))
        made = write_lock(lock(recipe, settings), tmp_path / "environment.t.lock.yml")
        text = (tmp_path / "environment.t.lock.yml").read_text()
        assert made.packages[0].url == f"{server.url}/t/$MINE_TOKEN/mine/linux-64/python-3.11.9-0.conda"
        assert "s3cret" not in text and yaml.safe_load(text)["metadata"]["channels"][0]["used_env_vars"] == [
            "MINE_TOKEN"
        ]
        fetched = fetch_packages(
            made.packages,
            Workspace(settings, Store(settings.cache)),
            variables=Inputs.read(recipe).url_variables,
        )
        assert sha256_file(fetched[0].path) == f"sha256:{made.packages[0].sha256}"
        with pytest.raises(SolveError) as caught:
            lock(target("- python >=4\n", channels=(f"{server.url}/t/$MINE_TOKEN/mine",)), settings)
        assert "s3cret" not in str(caught.value)
    monkeypatch.delenv("MINE_TOKEN")
    with pytest.raises(
        ConfigError, match=r"\$MINE_TOKEN/mine: the environment variable MINE_TOKEN is not set"
    ):
        lock(recipe, settings)
    with pytest.raises(FetchError) as gone:
        fetch_packages(
            made.packages, Workspace(replace(settings, cache=tmp_path / "other"), Store(tmp_path / "other"))
        )
    assert "MINE_TOKEN" in gone.value.hint


def raw_channel(folder: Path, needs: dict[str, list[str]], **info: object) -> None:
    """Writes the index of a channel with noarch packages, for which there are no files."""
    for subdir in ("noarch", "linux-64"):
        (folder / subdir).mkdir(parents=True)
        records = {
            f"{name}-1.0-0.conda": {
                "name": name,
                "version": "1.0",
                "build": "0",
                "build_number": 0,
                "depends": depends,
                "subdir": subdir,
                "noarch": "generic",
                "sha256": "0" * 64,
            }
            for name, depends in (needs.items() if subdir == "noarch" else ())
        }
        data = {"info": {"subdir": subdir, **info}, "packages": {}, "packages.conda": records}
        version = 2 if "base_url" in info else 1
        (folder / subdir / "repodata.json").write_text(json.dumps({**data, "repodata_version": version}))


@pytest.mark.parametrize(
    ("base_url", "channel", "mirror", "url"),
    [
        ("../../pool/", "{server}/$MINE_TOKEN/b", "", "{server}/$MINE_TOKEN/pool/bar-1.0-0.conda"),
        (
            "../../pool/",
            "https://c.example/s3cret/b",
            "https://c.example",
            "https://c.example/s3cret/pool/bar-1.0-0.conda",
        ),
        (
            "../../pool/",
            "https://c.example/$MINE_TOKEN/b",
            "https://c.example",
            "https://c.example/$MINE_TOKEN/pool/bar-1.0-0.conda",
        ),
        ("https://o.example/s3cret/", "{server}/$MINE_TOKEN/b", "", ""),
        ("file:///srv/pool/", "{server}/s3cret/b", "", ""),
    ],
)
def test_files_outside_of_a_channel(target, settings, tmp_path, monkeypatch, base_url, channel, mirror, url):
    """The index of a channel may name another place (CEP 15): it is mapped as the channel is, or refused."""
    raw_channel(tmp_path / "pages/s3cret/b", {"bar": []}, base_url=base_url)
    monkeypatch.setenv("MINE_TOKEN", "s3cret")
    with serve(tmp_path / "pages") as server:
        settings = replace(settings, mirrors=((mirror, server.url),) if mirror else ())
        recipe = target("- bar\n", channels=(channel.format(server=server.url),))
        if url:
            assert lock(recipe, settings).packages[0].url == url.format(server=server.url)
            return
        with pytest.raises(SolveError, match=r"^bar 1\.0: no lock can have its URL \(on ") as caught:
            lock(recipe, settings)
    assert "s3cret" not in str(caught.value)


def test_channels_that_an_index_names(target, settings, tmp_path):
    """They are not read (CEP 42; rattler would), unless the user names them, too."""
    raw_channel(tmp_path / "r", {"bar": ["baz"]}, channel_relations={"overrides": "../c"})
    raw_channel(tmp_path / "c", {"baz": []})
    with serve(tmp_path) as server:
        with pytest.raises(SolveError, match="baz"):
            lock(target("- bar\n", channels=(f"{server.url}/r",)), settings)
        made = lock(target("- bar\n", channels=(f"{server.url}/r", f"{server.url}/c")), settings)
    assert set(versions(made)) == {"bar", "baz"}
    assert made.channels == (f"{server.url}/r", f"{server.url}/c")


def test_subdir_of_spec(target, settings, tmp_path):
    """``channel/subdir::package`` is a package of that subdir, or an error: rattler 0.28 ignores it."""
    make_package(tmp_path / "c", "lib", "2.3.1", "py_0")
    make_package(tmp_path / "c", "lib", "2.4", "py_0", noarch="generic")
    channel = index_channel(tmp_path / "c").as_uri()
    made = lock(target(f"- {channel}/linux-64::lib==2.3.1=py_0\n", channels=(channel,)), settings)
    assert versions(made) == {"lib": "2.3.1"} and made.channels == (channel,)
    assert versions(lock(target("- lib[subdir=noarch]\n", channels=(channel,)), settings)) == {"lib": "2.4"}
    for spec, chosen in (("linux-64::lib", "noarch"), ("osx-64::lib=2.3.1", "linux-64")):
        with pytest.raises(SolveError, match=f"yml:4: .*{spec}: found in {chosen} only"):
            lock(target(f"- {channel}/{spec}\n", channels=(channel,)), settings)


@pytest.mark.parametrize(("condition", "installed"), [("<1", set()), (">=1", {"libz"})])
def test_condition_of_spec(target, settings, channel, condition, installed):
    """A package whose condition is false is not installed."""
    spec = f"- 'libz[when=\"bystander {condition}\"]'\n- bystander\n"
    recipe = target(spec, channels=(channel.url,))
    assert set(versions(lock(recipe, settings))) == {"bystander"} | installed


def test_no_probes(target, settings, tmp_path, monkeypatch):
    """Nothing is read that rattler and uv do not read: neither by HEAD, nor the first page of an index."""
    make_package(tmp_path / "c", "python", "3.11.9")
    make_package(tmp_path / "c", "pip", "24.0")
    index_channel(tmp_path / "c")
    simple_index(tmp_path / "simple", make_wheel(tmp_path / "w", "alpha", "1.0"))

    def late(*args, **options):
        raise httpx2.ReadTimeout("late")

    monkeypatch.setattr(httpx2.Client, "head", late)
    with serve(tmp_path) as server:
        index = f"- python\n- pip:\n  - --index-url {server.url}/simple\n  - alpha\n"
        for values in ({}, {"pip": {"fallback": "pip"}}):
            made = lock(target(index, channels=(f"{server.url}/c",), **values), settings)
            assert made.packages[-1].url == f"{server.url}/simple/alpha-1.0-py3-none-any.whl"
    assert "/simple/" not in server.requests


def test_index_without_first_page(target, settings, tmp_path, monkeypatch):
    """Where its page of all packages is an error, uv decides; with a fallback the index is left out."""
    simple_index(tmp_path / "simple", make_wheel(tmp_path / "w", "alpha", "1.0"))
    monkeypatch.setattr(httpx2.Client, "head", lambda *args, **options: httpx2.Response(504))
    with serve(tmp_path) as server:
        index = f"- python\n- pip:\n  - --index-url {server.url}/simple\n  - alpha\n"
        assert versions(lock(target(index), settings))["alpha"] == "1.0"
        with pytest.raises(SolveError, match="alpha"):
            lock(target(index, pip={"fallback": "pip"}), settings)


def test_unsatisfiable(target, settings):
    """The error contains the solver's reason."""
    with pytest.raises(SolveError) as caught:
        lock(target("- clash\n- clash2\n"), settings)
    text = str(caught.value)
    assert "clash" in text and "libz" in text and "environment.yml" in text and caught.value.hint
    with pytest.raises(SolveError, match="no-such-package"):
        lock(target("- no-such-package\n"), settings)


def test_silent_channel(target, settings, channel, tmp_path):
    dead = "http://user:secret@127.0.0.1:9/gone"
    with pytest.raises(FetchError) as caught:
        lock(target("- libz\n", channels=(dead,)), settings)
    assert "channel http://127.0.0.1:9/gone does not answer" in str(caught.value) and "secret" not in str(
        caught.value
    )
    assert "BUILDER_MIRRORS" in caught.value.hint
    with pytest.raises(FetchError, match="does not answer .*404"):
        lock(target("- libz\n", channels=(channel.url + "/nothing-here",)), settings)
    with pytest.raises(FetchError, match=r"failed to open file .*repodata\.json"):
        lock(target("- libz\n", channels=((tmp_path / "nowhere").as_uri(),)), settings)


def test_offline(target, settings, channel):
    """Offline, what an earlier run downloaded is used."""
    recipe = target("- libz\n")
    offline = replace(settings, offline=True)
    with pytest.raises(FetchError, match="offline, and the channel is not in the cache"):
        lock(recipe, offline)
    online = lock(recipe, settings)
    asked = len(channel.requests)
    assert lock(recipe, offline) == online
    assert len(channel.requests) == asked


# pip


def test_pip_on_top_of_conda(target, settings, tmp_path):
    """conda provides numpy and pytorch (PyPI's torch): pip installs neither these nor what they need."""
    wheels = tmp_path / "wheels"
    needs = ("numpy>=1.20", "torch", "small; python_version >= '3.8'", "winonly; sys_platform == 'win32'")
    make_wheel(wheels, "model", "1.0", requires=needs)
    make_wheel(wheels, "numpy", "1.26.4", tag="cp311-cp311-manylinux_2_17_x86_64")
    make_wheel(wheels, "numpy", "2.9", tag="cp311-cp311-manylinux_2_17_x86_64")
    make_wheel(
        wheels, "torch", "2.5.1", requires=("nvidia-everything",), tag="cp311-cp311-manylinux_2_17_x86_64"
    )
    make_wheel(wheels, "small", "0.3")
    made = lock(target("- numpy\n- pytorch\n- pip:\n  - --find-links wheels\n  - model\n"), settings)
    pip_part = {p.name: p for p in made.packages if p.manager == "pip"}
    assert {n: p.version for n, p in pip_part.items()} == {"model": "1.0", "small": "0.3"}
    assert pip_part["model"].url == "builder://find-links/model-1.0-py3-none-any.whl"
    assert (
        pip_part["model"].sha256
        == hashlib.sha256((wheels / "model-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    )
    assert {p.name: p.version for p in made.packages if p.manager == "conda"}["numpy"] == "1.26.4"


def test_pip_conflict(target, settings, tmp_path):
    """A conflict of a pip package with a conda package is explained."""
    make_wheel(tmp_path / "wheels", "model", "1.0", requires=("numpy>=2",))
    make_wheel(tmp_path / "wheels", "numpy", "2.9")
    with pytest.raises(SolveError) as caught:
        lock(target("- numpy\n- pip:\n  - --find-links wheels\n  - model\n"), settings)
    assert "numpy>=2" in caught.value.message and "conda provides numpy 1.26.4" in caught.value.hint
    assert str(settings.cache) not in str(caught.value)


def test_best_wheel(target, settings, tmp_path):
    """The best wheel for the target's glibc and Python is locked."""
    for tag in (
        "cp311-cp311-manylinux_2_17_x86_64",
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp311-cp311-manylinux_2_35_x86_64",
        "cp312-cp312-manylinux_2_17_x86_64",
        "cp311-cp311-macosx_11_0_arm64",
        "py3-none-any",
    ):
        make_wheel(tmp_path / "wheels", "native", "1.0", tag=tag)
    make_wheel(tmp_path / "wheels", "native", "2.0", tag="cp311-cp311-manylinux_2_35_x86_64")
    made = lock(target("- python\n- pip:\n  - --find-links wheels\n  - native\n"), settings)
    assert made.packages[-1].filename == "native-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    recipe = target(
        "- python=3.11\n- pip:\n  - --find-links wheels\n  - native\n", virtual_packages={"__glibc": "2.36"}
    )
    newer = lock(recipe, settings)
    assert newer.packages[-1].version == "2.0"


def test_all_indexes(target, settings, tmp_path, monkeypatch):
    """All indexes count, as in pip: of two versions the newer one is locked, wherever it is."""
    pages = tmp_path / "pages"
    one = simple_index(
        pages / "one", make_wheel(tmp_path / "w", "alpha", "1.0"), make_wheel(tmp_path / "w", "beta", "1.0")
    )
    simple_index(pages / "two", make_wheel(tmp_path / "w", "alpha", "2.0", requires=("gamma",)))
    simple_index(pages / "three", make_wheel(tmp_path / "w", "gamma", "1.0"))
    assert one.exists()
    with serve(pages) as server:
        pip(monkeypatch, index_url=f"{server.url}/one", extra_index_urls=(f"{server.url}/three",))
        recipe = target(f"- python\n- pip:\n  - --extra-index-url {server.url}/two\n  - alpha\n  - beta\n")
        made = lock(recipe, settings)
        assert {p.name: p.url for p in made.packages if p.manager == "pip"} == {
            "alpha": f"{server.url}/two/alpha-2.0-py3-none-any.whl",
            "beta": f"{server.url}/one/beta-1.0-py3-none-any.whl",
            "gamma": f"{server.url}/three/gamma-1.0-py3-none-any.whl",
        }
        assert all(p.sha256 for p in made.packages)
        own = target("- python\n- pip:\n  - beta\n", pip={"index_url": f"{server.url}/one"})
        pip(monkeypatch, no_index=True)
        assert versions(lock(own, settings))["beta"] == "1.0"


def test_silent_index(target, settings, tmp_path, monkeypatch):
    """Without fallback an error that names it; with fallback a warning, and pip's configuration is used."""
    make_wheel(tmp_path / "wheels", "alpha", "1.0")
    pip(monkeypatch, find_links=(str(tmp_path / "wheels"),), no_index=True)
    dependencies = (
        "- python\n- pip:\n  - --extra-index-url http://user:secret@127.0.0.1:9/simple\n  - alpha\n"
    )
    with pytest.raises(FetchError) as caught:
        lock(target(dependencies), settings)
    assert "package index http://127.0.0.1:9/simple does not answer" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "fallback: pip" in caught.value.hint
    listener = Listener()
    made = lock(target(dependencies, pip={"fallback": "pip"}), settings, reporter=listener)
    assert versions(made)["alpha"] == "1.0"
    assert any("does not answer" in note for note in listener.notes)
    assert "secret" not in "".join(listener.notes) and not listener.warnings


def test_passwords(target, settings, tmp_path, monkeypatch):
    """Passwords reach the index, and neither arguments nor the lock."""
    simple_index(tmp_path / "pages", make_wheel(tmp_path / "w", "alpha", "1.0"))
    seen: list[list[str]] = []
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda command, **more: (seen.append(command), run(command, **more))[1]
    )
    with serve(tmp_path / "pages") as server:
        url = server.url.replace("://", "://user:hunter2@")
        recipe = target(f"- python\n- pip:\n  - --extra-index-url {url}\n  - alpha\n")
        made = write_lock(lock(recipe, settings), tmp_path / "l.yml")
    assert made.packages[-1].url == f"{server.url}/alpha-1.0-py3-none-any.whl"
    assert seen and not any("hunter2" in word for command in seen for word in command)
    assert "hunter2" not in (tmp_path / "l.yml").read_text()


def test_pip_update(target, settings, tmp_path):
    wheels = tmp_path / "wheels"
    for name in ("alpha", "beta"):
        make_wheel(wheels, name, "1.0")
    recipe = target("- python\n- app\n- pip:\n  - --find-links wheels\n  - alpha\n  - beta\n")
    before = lock(recipe, settings, exclude_newer="2024-05-02")
    make_wheel(wheels, "alpha", "2.0", requires=("delta",))
    make_wheel(wheels, "beta", "2.0")
    make_wheel(wheels, "delta", "1.0")
    after = lock(recipe, settings, previous=before, update=["alpha"], exclude_newer="2024-05-02")
    assert versions(after) == {**versions(before), "alpha": "2.0", "delta": "1.0"}
    assert versions(after)["app"] == "1.0"  # the conda packages stay
    fresh = lock(recipe, settings)
    assert versions(fresh)["beta"] == "2.0" and versions(fresh)["app"] == "2.0"


def test_extras(target, settings, tmp_path):
    """An extra of a package that conda provides is a warning."""
    (tmp_path / "wheels").mkdir()
    listener = Listener()
    lock(target("- numpy\n- pip:\n  - --find-links wheels\n  - numpy[fast]\n"), settings, reporter=listener)
    (warning,) = listener.warnings
    assert "environment.yml:7: conda provides numpy, so its extra fast has no effect" in warning
