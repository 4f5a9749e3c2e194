"""A base that is a SIF of a site, built elsewhere: BUILDER_MIRRORS names a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.core.workspace import Workspace
from builder.formats.sif.write import write_sif
from builder.lock.file import read_lock
from tests.support.image_kit import image
from tests.support.machine import Machine
from tests.support.project import edit, tiny_channel, tiny_project

BASE_SIF = "/appl/local/containers/sif-images/lumi-rocm-rocm-5.6.1.sif"


def test_sif_base(tmp_path: Path) -> None:
    """As on LUMI. The lock names the site's file; the cache alone is enough for a second build."""
    project = tiny_project(tmp_path, tiny_channel(tmp_path / "channel").as_uri())
    edit(project.recipe, base=f"sif:{BASE_SIF}", format="sif")
    machine = Machine(project)
    missing = machine.run("lock", "tiny", check=False)
    assert missing.returncode == 8 and f"{BASE_SIF} does not exist" in missing.stderr

    copy = tmp_path / "appl" / "containers/sif-images/lumi-rocm-rocm-5.6.1.sif"
    copy.parent.mkdir(parents=True)
    store = Store(tmp_path / "store")
    settings = Settings.from_environment({"HOME": str(tmp_path)}, cache=store.root)
    sif = write_sif(image(store), copy, Workspace(settings, store))
    env = {"BUILDER_MIRRORS": f"/appl/local={tmp_path}/appl"}
    built = machine.json("build", "tiny", env=env)
    base = read_lock(project.lock).base
    assert base is not None and (base.reference, base.digest) == (f"sif:{BASE_SIF}", sif.digest)
    assert sha256_file(project.root / "dist/tiny.sif") == built["digest"]
    shutil.rmtree(project.cache)
    assert machine.json("build", "tiny", env={**env, "BUILDER_OFFLINE": "1"})["digest"] == built["digest"]
