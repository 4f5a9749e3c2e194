"""Each reader of files that others wrote: a pipe, a folder, too many bytes, and no text."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.core.errors import BuilderError
from builder.deliver.publishing.keys import PublicKey, SigningKey
from builder.deliver.site.arguments import read_env_file
from builder.deliver.smoke import reports
from builder.deliver.smoke.reports import read_report
from builder.formats.oci.documents import MAX_DOCUMENT
from builder.formats.oci.layout import read_index
from builder.formats.registry import credentials
from builder.formats.registry.credentials import find_credentials
from builder.formats.trees.ignore import IGNORE_FILE, Ignore
from builder.lock.config import safeyaml, yamlfile
from builder.lock.environment import read_any_environment, read_environment
from builder.lock.file import read_lock
from builder.lock.formats import common
from builder.lock.tomlfile import load_toml

MIB = 1 << 20


def _layout(path: Path) -> object:
    (path.parent / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return read_index(path.parent)


def _auth(path: Path) -> object:
    with pytest.MonkeyPatch.context() as context:
        context.setenv("REGISTRY_AUTH_FILE", str(path))
        return find_credentials("host.example")


#: By the name of a file: its reader, and the bytes that it may have.
READERS: dict[str, tuple[Callable[[Path], object], int]] = {
    "recipe.yaml": (yamlfile.load_yaml, yamlfile.MAX_BYTES),
    "environment.yml": (lambda path: read_environment(path, "linux-64"), yamlfile.MAX_BYTES),
    "pyproject.toml": (load_toml, yamlfile.MAX_BYTES),
    "x.lock.yml": (read_lock, safeyaml.MAX_BYTES),
    "uv.lock": (common.read_toml, safeyaml.MAX_BYTES),
    "requirements.txt": (
        lambda path: read_any_environment(path, "linux-64", path.parent),
        yamlfile.MAX_BYTES,
    ),
    IGNORE_FILE: (lambda path: Ignore(path.parent), MIB),
    "index.json": (_layout, MAX_DOCUMENT),
    "auth.json": (_auth, credentials._MAX_BYTES),
    "key.pub": (PublicKey.load, 64 << 10),
    "x.key": (lambda path: SigningKey.load(path, pytest.fail), 64 << 10),
    "x.env": (read_env_file, MIB),
    "report.json": (read_report, reports._MOST),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "too large", "not UTF-8"])
def test_other_files(tmp_path: Path, name: str, kind: str) -> None:
    """An error names the file; nothing waits."""
    path = tmp_path / name
    read, most = READERS[name]
    match kind:
        case "pipe":
            os.mkfifo(path, 0o600)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "too large":
            path.write_bytes(b"#" * (most + 1))
        case "not UTF-8":
            path.write_bytes(b"\xff\xfe")
    if path.is_file():
        path.chmod(0o600)
    with pytest.raises(BuilderError) as caught:
        read(path)
    assert name in str(caught.value) or str(tmp_path) in str(caught.value)
