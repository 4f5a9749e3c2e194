"""``builder diff TARGET:OLD TARGET:NEW`` of images in a registry, which lists attached artifacts by a tag."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import parts
from tests.support.channel import index_channel, make_package
from tests.support.documents import checked
from tests.support.machine import Machine, RequestLog
from tests.support.project import TinyProject, edit, tiny_channel, tiny_project

pytestmark = pytest.mark.registry


def two_months(registry: parts.Registry, folder: Path, form: str) -> Machine:
    """Publishes a target in two months, with another small package; returns a machine with an empty cache."""
    channel = tiny_channel(folder / "channel", bulk=1 << 12)
    maker = Machine(tiny_project(folder, channel.as_uri()))
    place = {"host": registry.host, "repository": f"notes/{form}", "tags": ["%y.%m"]}
    edit(maker.project.recipe, format=form, registry=place)
    maker.publish("--tag", "26.10")
    make_package(channel, "small0", "1.1", files={"share/small0": b"new"})
    index_channel(channel)
    maker.run("lock", "tiny", "--update", "small0")
    maker.publish("--tag", "26.11")
    return Machine(TinyProject(maker.project.root, folder / "other"))


@pytest.mark.parametrize("form", ["oci", "sif"])
def test_two_months(registry: parts.Registry, tmp_path: Path, form: str) -> None:
    """Packages and layers of two months, without a download of layers; and a month that is not there."""
    user = two_months(registry, tmp_path, form)
    log = RequestLog(registry, registry.log_size())
    done = user.run("diff", "tiny:26.10", "tiny:26.11", "--json", check=False)
    found = checked(json.loads(done.stdout))
    assert done.returncode == 1 and "schema version 1" in done.stderr, "reports of an old builder"
    assert [(p["name"], p["old"], p["new"]) for p in found["packages"]] == [("small0", "1.0", "1.1")]
    layers = {layer["name"] for layer in found["layers"]}
    assert layers == {"tiny.sif"} if form == "sif" else "conda bulky" not in layers and len(layers) >= 3
    fetched = {line.rpartition("/")[2] for line in log.lines() if "/blobs/" in line}
    sent = sum(size for digest, size in registry.blobs().items() if digest in fetched)
    assert sent < 40_000 < found["images"]["new"]["size"], "manifests, configs, locks and reports"
    missing = user.run("diff", "tiny:26.09", "tiny:26.11", check=False)
    assert missing.returncode == 9 and f"there is no {registry.host}/notes/{form}:26.09" in missing.stderr
