"""``builder build``: outputs, packages that are not available, and machines without space."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import builder.cli
import builder.core.errors
import builder.core.store.files
from builder.build.image.files import smoke_program
from builder.core.store.blobs import Store
from builder.formats.oci.image import config_environment, plain_image
from builder.formats.oci.layout import read_layout, write_layout
from tests.support.channel import Server, index_channel, make_package
from tests.support.cli import Cli, tags
from tests.support.image_kit import base, image, layer, member
from tests.support.images import unpack
from tests.support.project import TinyProject, edit, whole


def test_links_into_other_layers(do: Cli, tiny: TinyProject, tmp_path: Path) -> None:
    """A package's symlink to what another one brings, and a file below another one's symlinked folder."""
    channel = tmp_path / "links"
    make_package(
        channel, "library", "1.0", files={"lib/real/data.txt": "data\n"}, symlinks={"lib/short": "real"}
    )
    make_package(
        channel, "linker", "1.0", files={"share/own": ""}, symlinks={"share/there": "../lib/real/data.txt"}
    )
    make_package(channel, "below", "1.0", files={"lib/short/more.txt": "more\n"}, depends=["library"])
    index_channel(channel)
    edit(tiny.environment, channels=[channel.as_uri()], dependencies=["library", "linker", "below"])
    edit(tiny.recipe, layers={"own_layer_from": 1})
    result = do("build", "tiny", "--json").json
    packages = [x["packages"] for x in result["layers"] if x["packages"]]
    assert sorted(packages) == [["below"], ["library"], ["linker"]]
    unpack(read_layout(tiny.root / "dist", "tiny"), tmp_path / "root", Store(tiny.cache))
    prefix = tmp_path / "root" / "opt" / "conda"
    assert (prefix / "share" / "there").is_symlink() and (prefix / "share" / "there").read_text() == "data\n"
    assert (prefix / "lib" / "short").is_symlink() and (
        prefix / "lib" / "real" / "more.txt"
    ).read_text() == "more\n"


@pytest.mark.parametrize(
    ("count", "format", "problem"),
    [
        (104, "oci", ""),
        (121, "oci", ""),  # above it: the prefix, packages of conda and of pip, builder's files
        (122, "oci", "needs 126 layers, 122 of them of its base oci:base; Docker takes at most 125"),
        (300, "oci", "needs 301 layers, 300 of them of its base oci:base"),
        (300, "sif", ""),
    ],
)
def test_base_of_many_layers(
    do: Cli, tiny: TinyProject, tmp_path: Path, count: int, format: str, problem: str
) -> None:
    """An OCI image takes as many layers as Docker mounts, where its base leaves no room for others."""
    store = Store(tmp_path / "base-store")
    bottom = [layer(store, member("etc/"), member(f"etc/{n}", b"")) for n in range(count)]
    config = base(*bottom).config
    shutil.rmtree(tiny.root / "base")
    write_layout(plain_image(bottom, config), tiny.root / "base", "latest", store)
    edit(tiny.recipe, format=format, layers={"own_layer_from": 1 << 20, "groups": 64})
    if problem:
        found = do("build", "tiny")
        assert found.code == 8 and problem in found.err
        assert "set 'format: sif', which has no layers; or flatten the base" in found.err
    else:
        layers = do("build", "tiny", "--json").json["layers"]
        assert count + 4 <= len(layers) and (format == "sif" or len(layers) <= 125)
        packages = [one for one in layers if one["packages"]]
        assert len(packages) > 4 or count == 121, "the layers that are left are used"


def test_variables_that_serve_the_base(do: Cli, tiny: TinyProject, tmp_path: Path) -> None:
    """What shadows packages in every runtime is left out with a note, unless the recipe sets it."""
    store = Store(tmp_path / "base-store")
    shutil.rmtree(tiny.root / "base")
    served = {"PYTHONPATH": "/opt/venv/lib", "PYTHONHOME": "/opt/venv", "PYTHONUNBUFFERED": "1"}
    write_layout(image(store, env=served), tiny.root / "base", "latest", store)
    note = "not in the image: PYTHONPATH, PYTHONHOME of the base, which would hide packages"
    assert f"{note}; 'env:' in {tiny.recipe} can set it" in do("build", "tiny").err
    env = config_environment(json.loads(read_layout(tiny.root / "dist", "tiny").config))
    assert not {"PYTHONPATH", "PYTHONHOME"} & env.keys() and env["PYTHONUNBUFFERED"] == "1"
    edit(tiny.recipe, env={"PYTHONPATH": "/opt/venv/lib", "PYTHONHOME": "/mine"})
    assert "not in the image" not in do("build", "tiny").err
    env = config_environment(json.loads(read_layout(tiny.root / "dist", "tiny").config))
    assert (env["PYTHONPATH"], env["PYTHONHOME"]) == ("/opt/venv/lib", "/mine")


def test_outputs(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    """Layouts are complete; an archive is written where the option names it."""
    shutil.rmtree(copy.root / "dist")
    result = do("build", "tiny", "--to", f"docker-archive:{tmp_path}/d.tar", "--json").json
    assert result["layout"] == str(copy.root / "dist") and result["tag"] == "tiny"
    whole(copy.root / "dist", result["digest"])
    assert (tmp_path / "d.tar").stat().st_size > result["size"]
    again = do(
        "build", "tiny", "--to", f"oci:{tmp_path}/layout", "--source", "https://host.example/x", "--json"
    ).json
    assert again["digest"] != result["digest"], "an annotation is part of the image"
    whole(tmp_path / "layout", again["digest"])


def test_offline(do: Cli, copy: TinyProject) -> None:
    assert do("--offline", "build", "tiny").code == 0, "everything is in the cache"
    shutil.rmtree(copy.cache)
    result = do("--offline", "build", "tiny")
    assert result.code == 6 and "could not be fetched" in result.err
    assert "offline" in result.err and "BUILDER_MIRRORS" in result.err
    copy.lock.unlink()
    result = do("--offline", "build", "tiny")
    assert result.code == 6 and "offline, and the channel is not in the cache" in result.err


def test_missing_package(
    do: Cli, copy: TinyProject, served: tuple[Path, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint is a mirror, and a mirror is used."""
    shutil.rmtree(copy.cache)
    away = tmp_path / "bulky-1.0-0.conda"
    (served[0] / "linux-64" / away.name).rename(away)
    try:
        result = do("build", "tiny")
        assert result.code == 6 and "bulky 1.0 could not be fetched" in result.err
        assert "HTTP 404" in result.err and "lock again, or set a mirror" in result.err
        (tmp_path / "mirror" / "linux-64").mkdir(parents=True)
        shutil.copy(away, tmp_path / "mirror" / "linux-64")
        monkeypatch.setenv("BUILDER_MIRRORS", f"{served[1].url}={tmp_path / 'mirror'}")
        assert do("build", "tiny").code == 0, "the mirror has it"
    finally:
        away.rename(served[0] / "linux-64" / away.name)


@pytest.mark.parametrize("fills", ["cache", "tmpdir"])
def test_too_little_space(
    do: Cli, copy: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fills: str
) -> None:
    """The check comes before anything is written."""
    for made in ("layers", "index"):
        shutil.rmtree(copy.cache / made)
    usage = shutil.disk_usage
    full = copy.cache if fills == "cache" else tmp_path / "elsewhere"
    full.mkdir(exist_ok=True)
    monkeypatch.setattr(
        builder.core.store.files.shutil,
        "disk_usage",
        lambda p: usage(p)._replace(free=1000) if Path(p).is_relative_to(full) else usage(p),
    )
    result = do("--tmpdir", tmp_path / "elsewhere", "build", "tiny")
    assert result.code == 13 and f"in {full}, 1.0 kB are free" in result.err and "cache prune" in result.err
    assert not list((tmp_path / "elsewhere").glob("*"))


def test_link_script(do: Cli, tiny: TinyProject, tmp_path: Path) -> None:
    """It is refused by name; the recipe can leave it out."""
    files = {"bin/.hooked-post-link.sh": "#!/bin/sh\nfalse\n", "share/x": "x"}
    make_package(tmp_path / "post", "hooked", "1.0", files=files)
    index_channel(tmp_path / "post")
    edit(tiny.environment, channels=[(tmp_path / "post").as_uri()], dependencies=["hooked"])
    result = do("build", "tiny")
    assert result.code == 7 and "conda: {post_link: {hooked: skip}}" in result.err
    assert "hooked-1.0-0.conda has a link script (/opt/conda/bin/.hooked-post-link.sh)" in result.err
    edit(tiny.recipe, conda={"post_link": {"hooked": "skip"}})
    result = do("build", "tiny", "--json")
    assert result.code == 0
    assert result.json["notes"] == ["hooked: its link script was not run, as the recipe says"]


def test_whole_project(do: Cli, copy: TinyProject) -> None:
    """With ``source: .`` an image contains neither its predecessor nor an ignored file: three builds are the
    same image, and each names the secret that is left out.
    """
    edit(copy.recipe, files=[{"source": ".", "target": "/app"}])
    (copy.root / "train.py").write_text("print(1)\n")
    (copy.root / ".env").write_text("TOKEN=1\n")
    (copy.root / "notes.txt").write_text("x")
    (copy.root / ".builderignore").write_text("notes.txt\n/wheels/\n")
    builds = [do("build", "tiny", "--json") for _ in range(3)]
    assert len({built.json["digest"] for built in builds}) == 1
    assert all("files: .env looks like a secret and is left out" in built.err for built in builds)
    files = builds[0].json["layers"][-1]
    assert files["unpacked"] < len(smoke_program()) + 100_000, "no layer of an image in it"
    (copy.root / ".builderignore").write_text("notes.txt\n/wheels/\n!/.env\n")
    last = do("build", "tiny", "--json")
    assert "secret" not in last.err and last.json["digest"] != builds[0].json["digest"]


def test_all_targets(do: Cli, three: TinyProject) -> None:
    """``--all`` builds all targets; a failure of one does not stop the others."""
    made = do("build", "--all", "--json")
    answers = {answer["target"]: answer for answer in made.json}
    assert list(answers) == ["broken", "tiny", "zwei"] and "error" in answers["broken"]
    assert made.code == 5
    assert set(tags(three.root / "dist")) == {"tiny", "zwei"}
    refused = do("build", "--all", "tiny")
    assert refused.code == 2 and "--all builds all targets, and tiny is named" in refused.err


def test_dry_run(do: Cli, copy: TinyProject) -> None:
    """It shows the packages that a build puts into layers, and writes nothing."""
    shutil.rmtree(copy.root / "dist")
    shown = do("build", "tiny", "--dry-run", "--json")
    assert shown.code == 0 and not (copy.root / "dist").exists()
    built = do("build", "tiny", "--json").json
    of_layers = sorted(name for layer in built["layers"] for name in layer["packages"])
    assert sorted(one["name"] for one in shown.json["packages"]) == of_layers
    assert shown.json["steps"] == [] and "10 packages, 0 steps" in do("build", "tiny", "--dry-run").out


def test_find_links_of_an_environment_file(
    do: Cli, tiny: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is relative to that file, from whatever folder the command runs in."""
    data = tiny.recipe.read_text().replace("pip: {find_links: [wheels]}\n", "")
    tiny.recipe.write_text(data)
    tiny.environment.write_text(
        tiny.environment.read_text().replace("      - pure", "      - --find-links ../wheels\n      - pure")
    )
    monkeypatch.chdir("/")
    result = do("--project", tiny.root, "build", "tiny", "--json")
    assert result.code == 0 and "builder://find-links/pure-1.0-py3-none-any.whl" in tiny.lock.read_text()
