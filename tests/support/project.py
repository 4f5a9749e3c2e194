"""A small project of one target that locks and builds within a second or two, without a mirror, a real
Python or an engine.

Its base is an OCI layout of one file, its conda packages (one poses as python, and compiles nothing) lie in a
channel made here, its wheel in a folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from builder.core.store.blobs import Store
from builder.formats.oci.layout import write_layout
from tests.support.channel import index_channel, make_package
from tests.support.image_kit import image
from tests.support.wheels import make_wheel

RECIPE = """\
description: a small one
group: [ml]
base: oci:base
environment: environments/tiny.yml
virtual_packages: {__glibc: "2.36"}
pip: {find_links: [wheels]}
layers: {own_layer_from: 1048576, groups: 3}
bytecode: none
registry: {repository: tests/tiny}
smoke: torch
"""
ENVIRONMENT = """\
name: tiny
channels:
  - {url}
  - nodefaults
dependencies:
  - python=3.11
  - greeter
  - bulky
  - pip:
      - pure
"""


def noise(seed: str, size: int) -> bytes:
    """Bytes that no codec makes smaller; the same for the same seed."""
    return random.Random(seed).randbytes(size)


def tiny_channel(folder: Path, *, bulk: int = 2 << 20) -> Path:
    """A channel with a python (a name and a file), ``greeter``, five small ones, and ``bulky``: ``bulk``
    bytes of noise.
    """
    make_package(
        folder, "python", "3.11.9", "0_cpython", files={"bin/python3.11": "#!/bin/sh\necho no python\n"}
    )
    make_package(
        folder,
        "pip",
        "24.0",
        "py_0",
        noarch="python",
        depends=["python >=3.8"],
        files={"site-packages/pip.py": ""},
    )
    make_package(
        folder,
        "greeter",
        "1.0",
        noarch="python",
        depends=["python", *(f"small{i}" for i in range(5))],
        entry_points=["greet = greeter:main"],
        files={"site-packages/greeter.py": "def main():\n    print('hello')\n"},
    )
    for i in range(5):
        make_package(folder, f"small{i}", "1.0", files={f"share/small{i}": noise(str(i), 20_000)})
    make_package(
        folder, "bulky", "1.0", files={f"lib/bulk{i}.bin": noise(f"b{i}", bulk // 4) for i in range(4)}
    )
    return index_channel(folder)


@dataclass(frozen=True)
class TinyProject:
    """A project folder with target ``tiny``, and a cache folder that does not exist yet."""

    root: Path
    cache: Path

    @property
    def recipe(self) -> Path:
        return self.root / "recipes" / "tiny.yaml"

    @property
    def environment(self) -> Path:
        return self.root / "environments" / "tiny.yml"

    @property
    def lock(self) -> Path:
        return self.root / "environments" / "tiny.tiny.lock.yml"

    def variables(self) -> dict[str, str]:
        """The environment of a command: this project's cache and home, and no configuration of this
        machine's pip or builder.
        """
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PIP_", "BUILDER_", "REGISTRY_", "UV_", "SOURCE_DATE"))
        }
        own = {
            "BUILDER_CACHE": self.cache,
            "HOME": self.root,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
        }
        return {**kept, **{k: str(v) for k, v in own.items()}}


def tiny_project(folder: Path, channel_url: str) -> TinyProject:
    """Makes the project in ``folder/project``."""
    root = folder / "project"
    for name in ("recipes", "environments", "wheels"):
        (root / name).mkdir(parents=True)
    made = TinyProject(root, folder / "cache")
    made.recipe.write_text(RECIPE)
    made.environment.write_text(ENVIRONMENT.replace("{url}", channel_url))
    make_wheel(root / "wheels", "pure", "1.0", files={"pure.py": "x = 1\n"})
    store = Store(folder / "base-store")
    write_layout(image(store), root / "base", "latest", store)
    return made


def whole(layout: Path, digest: str) -> None:
    """Fails unless a layout has the image whole: manifest, config and every layer, each what its digest
    says.
    """

    def blob(descriptor: Mapping[str, object]) -> bytes:
        name = str(descriptor["digest"]).removeprefix("sha256:")
        data = (layout / "blobs" / "sha256" / name).read_bytes()
        assert len(data) == descriptor["size"] and hashlib.sha256(data).hexdigest() == name, name
        return data

    entries = {e["digest"]: e for e in json.loads((layout / "index.json").read_bytes())["manifests"]}
    manifest = json.loads(blob(entries[digest]))
    for part in (manifest["config"], *manifest["layers"]):
        blob(part)


def edit(path: Path, **values: object) -> None:
    """Changes keys of a YAML mapping."""
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}, sort_keys=False))
