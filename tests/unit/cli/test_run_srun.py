"""Commands for a site whose containers srun starts: with the Container Engine, and with pyxis."""

from __future__ import annotations

import json
import os
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.project import TinyProject, edit

SITE = {
    "title": "Engine",
    "images": "$SCRATCH/images",
    "runtime": {"kind": "edf", "binds": ["/store"]},
    "node": {"gpus": 4, "cores": 8},
    "slurm": {"account": "none", "salloc_on_node": False, "gpus": "--gpus-per-node={gpus}"},
}
#: Records its words, and the file that they name.
SRUN = """\
#!{python} -IS
import json, os, pathlib, sys
if sys.argv[1] == "--help":
    has_plugin = os.path.exists("{folder}/engine")
    sys.exit("  --environment=FILE --container-image=PATH" if has_plugin else "  --export=ALL")
files = [word.partition("=")[2] for word in sys.argv if word.startswith("--environment=")]
text = "".join(pathlib.Path(file).read_text() for file in files)
found = {{"words": sys.argv[1:], "edf": text, "env": dict(os.environ)}}
pathlib.Path("{folder}/record").write_text(json.dumps(found))
sys.exit(3)
"""


@pytest.fixture
def site(copy: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project for the site, and a folder with srun. It has the plugin if there is a file ``engine``."""
    edit(copy.recipe, site=SITE, cmd=["greet"])
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text(SRUN.format(python=sys.executable, folder=folder))
    (folder / "srun").chmod(stat.S_IRWXU)
    (folder / "engine").touch()
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    return folder


def edf(shell: str) -> dict[str, Any]:
    """The file that shell lines write."""
    return tomllib.loads(shell.partition("<<'EOF'\n")[2].partition("\nEOF\n")[0])


def test_run(do: Cli, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``run`` needs the plugin, an allocation and the image; the file is removed at the end."""
    (site / "engine").unlink()
    assert "this Slurm has no option --environment" in do("run", "tiny").err
    (site / "engine").touch()
    refused = do("run", "tiny")
    assert refused.code == 2 and "Engine runs containers with srun, and this shell has no all" in refused.err
    assert "builder job tiny --interactive" in refused.err
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    scratch = Path(os.environ["SCRATCH"])
    refused = do("run", "tiny")
    assert f"{scratch}/images/tiny.sqsh: no such image" in refused.err
    (scratch / "images").mkdir()
    (scratch / "images/tiny.sqsh").touch()
    assert do("run", "tiny").code == 3
    found = json.loads((site / "record").read_text())
    assert found["words"][-1] == "greet" and found["env"]["ENROOT_LOGIN_SHELL"] == "no"
    root = str(Path.cwd().resolve())
    assert tomllib.loads(found["edf"])["mounts"] == ["/store:/store", f"{root}:{root}"]
    assert not list(Path().glob(".builder-*"))


@pytest.fixture
def pyxis(site: Path, copy: TinyProject) -> None:
    """The project is for a site with pyxis."""
    edit(copy.recipe, site=SITE | {"runtime": {"kind": "pyxis", "binds": ["/store"]}})


def test_pyxis_run(do: Cli, site: Path, pyxis: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """``run`` with pyxis needs no file; all is on the command line."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    image = Path(os.environ["SCRATCH"], "images/tiny.sqsh")
    image.parent.mkdir()
    image.touch()
    assert do("run", "tiny", "--env", "MINE=$x", "--", "greet", "a b").code == 3
    found, root = json.loads((site / "record").read_text()), Path.cwd().resolve()
    assert found["words"][0] == f"--container-image={image}" and found["env"]["ENROOT_LOGIN_SHELL"] == "no"
    options = [f"--container-mounts=/store,{root}", f"--container-workdir={root}"]
    assert found["words"][-6:] == [*options, "env", "MINE=$x", "greet", "a b"]
    assert not list(Path().glob(".builder-*"))


def test_pyxis_print(do: Cli, site: Path, pyxis: None) -> None:
    """``--print`` prints one line; without the plugin, ``run`` and ``job --submit`` say so."""
    printed = do("run", "tiny", "--print", "--", "greet").out
    assert printed.startswith('ENROOT_LOGIN_SHELL=no srun "--container-image=$SCRATCH/images/tiny.sqsh" ')
    (site / "engine").unlink()
    for command in (("run", "tiny"), ("job", "tiny", "--submit", "--", "greet")):
        message = "this Slurm has no option --container-image: pyxis is not installed"
        assert message in do(*command).err


def test_pull(do: Cli, site: Path, copy: TinyProject) -> None:
    """A pulled image becomes a squashfs: where jobs look for it, or the file of ``--output``."""
    place = f"oci:{copy.root}/published"
    built = do("build", "tiny", "--json")
    digest = built.json["digest"]
    file = "$SCRATCH/images/tiny.sqsh"
    assert f'jobs run it as a squashfs: builder convert oci:{copy.root}/dist:tiny "{file}"' in built.err
    assert do("publish", "tiny", "--to", place, "--no-tags").code == 0
    pull = ("pull", "tiny", "--from", place, "--tag", digest, "--json")
    found = do(*pull).json
    expected = Path(os.environ["SCRATCH"], "images/tiny.sqsh")
    assert (found["digest"], found["place"]) == (digest, str(expected))
    found = do(*pull, "--output", copy.root / "mine.sqsh").json
    assert (copy.root / "mine.sqsh").read_bytes() == expected.read_bytes()
    assert do(*pull, "--output", copy.root / "layout").json["place"] == f"oci:{copy.root}/layout:tiny"
