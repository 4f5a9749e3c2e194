"""Images with the Pythons of Debian's newer releases: built, compiled reproducibly, run and smoke-tested.

Tried with Python 3.13.5 of trixie, and 3.14.8 and 3.15.2 of sid (2026-11-29). The program of the last one is
linked with libzstd and libgcc_s.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.integration.conftest import Builder
from tests.support.channel import index_channel, make_package
from tests.support.debian_channel.debs import with_rpath
from tests.support.debs import extract
from tests.support.image_kit import member, tar_bytes
from tests.support.parts import need

pytestmark = [pytest.mark.heavy, pytest.mark.network]
#: What an image needs beside a Python: the folders of a merged /usr, and a shell.
_SYSTEM = ("base-files", "dash")
_GNU = "usr/lib/x86_64-linux-gnu"
#: Python 3.15 has no ``__cached__`` of modules.
_RUN = """\
import os, six, sys
print(sys.version_info[:2], six.__version__, os.path.getsize(six.__spec__.cached) > 9000, six.__spec__.cached)
"""


def tree(suite: str, folder: Path, *packages: str) -> Path:
    """Unpack packages of a suite and all that they need; none of their scripts runs."""
    need("mmdebstrap")
    extract([*_SYSTEM, *packages], suite, folder)
    for name in ("bin", "sbin", "lib", "lib64"):
        if not (folder / name).exists():
            (folder / name).symlink_to(f"usr/{name}")
    (folder / "usr/bin/sh").exists() or (folder / "usr/bin/sh").symlink_to("dash")
    return folder


def archive(root: Path, file: Path) -> str:
    """Write a tree as ``docker save`` does; return its reference."""
    layer = file.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for path in sorted(root.iterdir()):
            if path.name not in ("dev", "proc", "sys"):
                tar.add(path, path.name)
    data = layer.read_bytes()
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}"]}
    env = {"Env": ["PATH=/usr/bin:/bin"]}
    config = {"architecture": "amd64", "os": "linux", "config": env, "rootfs": rootfs}
    listing = [{"Config": "config.json", "RepoTags": ["x/y:1"], "Layers": ["layer.tar"]}]
    files = {"config.json": config, "manifest.json": listing}
    members = [member(name, json.dumps(value).encode()) for name, value in files.items()]
    file.write_bytes(tar_bytes([*members, member("layer.tar", data)]))
    layer.unlink()
    return f"docker-archive:{file}"


def check(folder: Path, recipe: dict[str, object], environment: str, minor: int) -> None:
    """Build a target twice, each with a cache of its own; run the image, and test it."""
    digests = []
    for number in (1, 2):
        project = folder / f"project{number}"
        (project / "recipes").mkdir(parents=True)
        (project / "recipes/t.yaml").write_text(yaml.safe_dump({"version": 1, **recipe}))
        (project / Path(str(recipe["environment"])).name).write_text(environment)
        builder = Builder(project, folder / f"cache{number}")
        builder.run("lock", "t")
        built = builder.json("build", "t")
        digests.append(built["digest"])
        assert [one["name"] for one in built["missing_libraries"] if not one["optional"]] == []
    assert digests[0] == digests[1]
    shown = builder.run("run", "t", "--", "python", "-c", _RUN).stdout
    assert (
        shown.startswith(f"(3, {minor}) 1.17.0 True ") and f"/__pycache__/six.cpython-3{minor}.pyc" in shown
    )
    assert builder.json("smoke", "t", "--runner", "userns")["verdict"] in ("pass", "warn")


@pytest.mark.parametrize(("suite", "minor"), [("trixie", 13), ("sid", 14), ("sid", 15)])
def test_base(tmp_path: Path, suite: str, minor: int) -> None:
    """``python: base`` with the Python of a release."""
    root = tree(suite, tmp_path / "root", f"python3.{minor}")
    (root / "usr/bin/python3").unlink(missing_ok=True)
    (root / "usr/bin/python3").symlink_to(f"python3.{minor}")
    base = archive(root, tmp_path / "base.tar")
    recipe = {"base": base, "environment": "requirements.txt", "python": "base"}
    check(tmp_path, recipe, "six==1.17.0\n", minor)


def test_conda(tmp_path: Path) -> None:
    """A conda package of Python 3.14, whose libraries are those of packages and of the base."""
    python = tree("sid", tmp_path / "python", "python3.14")
    base = archive(tree("sid", tmp_path / "root", "libc6"), tmp_path / "base.tar")
    lib = python / "usr/lib/python3.14"
    files = {
        f"lib/python3.14/{path.relative_to(lib).as_posix()}": path.read_bytes()
        for path in lib.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    program = (python / "usr/bin/python3.14").read_bytes()
    files["bin/python3.14"] = with_rpath(program, "$ORIGIN/../lib", tmp_path)
    links = {"bin/python": "python3.14", "bin/python3": "python3.14"}
    links["lib/python3.14/dist-packages"] = "site-packages"
    channel = tmp_path / "channel"
    own = {path.name for path in (tmp_path / "root" / _GNU).glob("*.so*")}
    found = [path for path in sorted((python / _GNU).glob("lib*.so*")) if path.name not in own]
    libraries = {f"lib/{path.name}": path.read_bytes() for path in found if not path.is_symlink()}
    make_package(
        *(channel, "libraries", "1.0"),
        files=libraries,
        symlinks={f"lib/{path.name}": path.readlink().name for path in found if path.is_symlink()},
    )
    make_package(channel, "python", "3.14.8", "0_cp314", files, ["libraries"], symlinks=links)
    pip = {"site-packages/pip.py": ""}  # the solver's; uv installs
    make_package(channel, "pip", "26.3", "py_0", pip, ["python"], noarch="python")
    index_channel(channel)
    environment = {
        "channels": [f"file://{channel}", "nodefaults"],
        "dependencies": ["python=3.14", {"pip": ["six==1.17.0"]}],
    }
    recipe = {"base": base, "environment": "environment.yml"}
    check(tmp_path, recipe, yaml.safe_dump(environment), 14)
