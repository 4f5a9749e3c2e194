"""Jobs in containers that srun starts, under a real Slurm: a SPANK plugin adds srun's options."""

from __future__ import annotations

import copy
import io
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from builder.build.bases.pack import pack_tar
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.formats.sif.plain import write_plain
from builder.lock.config.recipe import Recipe, load_recipe
from tests.support import image_kit
from tests.support.parts import need
from tests.support.rootfs import make_rootfs
from tests.support.slurm import Slurm
from tests.support.spank import container_plugin

RECIPE = {
    "base": "docker://debian:bookworm-slim",
    "environment": "environment.yml",
    "site": {
        "title": "Engine",
        "runtime": {"kind": "edf", "env": {"FROM_SITE": "$SLURM_JOB_NAME 5 $$", "MELLANOX_X": "site"}},
        "node": {"cores": 4, "tasks": 2},
        "local": "/mnt/data-$SLURM_JOB_ID",
        "slurm": {"account": "none", "time": "00:05:00", "queues": {"cpu": {}}},
    },
}
#: What each process prints, as one word per value.
SHOW = 'printf "%s|" "$0" "$RANK" "$WORLD_SIZE" "$FROM_IMAGE" "$FROM_SITE" "$MINE" "$TOKEN" "$PWD" '
SHOW += '"$(cat "$BUILDER_DATA/file")" "$(cat /etc/builder-test)"; echo end'
WORD = 'it\'s "$x" \\ `id`'
#: The messages of a Slurm without the plugin.
MISSING = {
    "edf": "this Slurm has no option --environment: the Container Engine is not installed",
    "pyxis": "this Slurm has no option --container-image: pyxis is not installed",
}


#: Of the image.
ENV = {"PATH": "/bin", "FROM_IMAGE": 'it\'s "$x"', "BOTH": "image", "MELLANOX_X": "image"}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A squashfs of a few programs of this host."""
    folder = tmp_path_factory.mktemp("image")
    tree = make_rootfs(folder / "tree", ("sh", "bash", "env", "cat", "ls", "mkdir", "id"))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(tree, "")
    settings = image_kit.settings(folder)
    store = Store(settings.cache)
    bottom = pack_tar([out.getvalue()], store, 2, "programs")
    made = image_kit.image(store, bottom, env=ENV, workdir="/work")
    write_plain(made, folder / "engine.sqsh", Workspace(settings, store))
    return folder / "engine.sqsh"


@pytest.fixture(params=MISSING)
def recipe(tmp_path: Path, request: pytest.FixtureRequest) -> Recipe:
    """A target of a site with the Container Engine, then one with pyxis."""
    values = copy.deepcopy(RECIPE)
    values["site"]["runtime"]["kind"] = request.param  # type: ignore[index]
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/engine.yaml").write_text(yaml.safe_dump(values))
    return load_recipe("engine", tmp_path)


#: pyxis cannot mount this folder.
AWKWARD = "my \"submit' $folder"


@pytest.fixture
def work(tmp_path: Path, recipe: Recipe) -> Path:
    """The folder to submit from, with an awkward name and a tar."""
    folder = tmp_path / (AWKWARD if recipe.site.runtime.kind == "edf" else "my submit' folder")
    folder.mkdir()
    (tmp_path / "file").write_text("data")
    with tarfile.open(folder / "set.tar", "w") as tar:
        tar.add(tmp_path / "file", "file")
    return folder


def run(
    slurm: Slurm, work: Path, recipe: Recipe, host: Mapping[str, str] | None = None, **request: object
) -> tuple[list[str], str]:
    """Submits a job with variables of the host and waits; returns its states and output."""
    (work / "job.sh").write_text(render(plan_job(recipe, JobRequest(**request))))  # type: ignore[arg-type]
    job = slurm.submit("job.sh", env=host, cwd=work)
    states = slurm.wait(job)
    return states, (work / f"engine-{job}.out").read_text()


def test_job(slurm: Slurm, recipe: Recipe, image: Path, work: Path) -> None:
    """Four processes on two nodes run in the image, each with its own values; file and data are removed."""
    (work / "secrets").write_text("TOKEN=a 'b' $c\n")
    with container_plugin(slurm.folder):
        states, output = run(
            slurm,
            work,
            recipe,
            command=("bash", "-c", SHOW, WORD),
            nodes=2,
            data="set.tar",
            image=str(image),
            env={"MINE": WORD},
            env_file="secrets",
        )
    assert states == ["COMPLETED"], output
    lines = sorted(line for line in output.splitlines() if line.endswith("|end"))
    ranks = [line.split("|") for line in lines]
    assert [(words[1], words[2]) for words in ranks] == [(str(rank), "4") for rank in range(4)]
    for words in ranks:
        assert words[0] == words[5] == WORD
        assert words[3] == 'it\'s "$x"'
        assert words[4] == "engine 5 $"
        assert words[6:10] == ["a 'b' $c", str(work), "data", "tiny"]
    assert not list(work.glob(".builder-*")), output
    assert not [path for node in ("node1", "node2") for path in slurm.disk(node).glob("*/data")]


@pytest.mark.parametrize("recipe", ["pyxis"], indirect=True)
@pytest.mark.parametrize(("env", "expected"), [({}, "image"), ({"BOTH": None}, "host"), ({"BOTH": "x"}, "x")])
def test_variable_of_image(
    slurm: Slurm, recipe: Recipe, image: Path, work: Path, env: dict[str, str | None], expected: str
) -> None:
    """A variable of the image wins over the host's, unless --env names it; the root is writable."""
    show = 'printf "%s " "$MELLANOX_X" "$BOTH" "$NEW"; echo >/file && echo end'
    with container_plugin(slurm.folder):
        host = {"BOTH": "host", "NEW": "new"}
        states, output = run(
            slurm, work, recipe, host, command=("bash", "-c", show), tasks=1, image=str(image), env=env
        )
    assert states == ["COMPLETED"] and f"site {expected} new end" in output


@pytest.mark.parametrize("recipe", ["pyxis"], indirect=True)
def test_missing_folder(slurm: Slurm, recipe: Recipe, image: Path, work: Path) -> None:
    """pyxis names a folder to mount that does not exist."""
    with container_plugin(slurm.folder):
        states, output = run(slurm, work, recipe, command=("true",), image=str(image), binds=("/none:/x",))
    assert states == ["FAILED"] and "source path does not exist: /none" in output


@pytest.mark.parametrize("recipe", ["pyxis"], indirect=True)
def test_folder_with_shell_code(slurm: Slurm, recipe: Recipe, image: Path, work: Path) -> None:
    """pyxis would read the folder's name as shell code: the script says so."""
    (folder := work.parent / AWKWARD).mkdir()
    with container_plugin(slurm.folder):
        states, output = run(slurm, folder, recipe, command=("true",), image=str(image))
    assert states == ["FAILED"] and "pyxis cannot mount" in output and AWKWARD in output


def test_without_plugin(slurm: Slurm, recipe: Recipe, image: Path, work: Path) -> None:
    """A Slurm without the plugin: the script says so."""
    states, output = run(slurm, work, recipe, command=("true",), image=str(image))
    assert states == ["FAILED"] and MISSING[recipe.site.runtime.kind] in output


def test_squashfs_tools(image: Path) -> None:
    """squashfs-tools read the squashfs; enroot tests an image with unsquashfs -s."""
    (unsquashfs,) = need("unsquashfs")
    shown = subprocess.run([unsquashfs, "-s", image], check=True, capture_output=True, text=True).stdout
    assert "Compression gzip" in shown
    listed = subprocess.run([unsquashfs, "-lls", image], check=True, capture_output=True, text=True).stdout
    assert "root/root" in listed and "squashfs-root/etc/rc.local" in listed
