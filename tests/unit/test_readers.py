"""Each reader of files that others wrote: a pipe, a folder, too many bytes, and no text."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.core.errors import BuilderError
from builder.deliver.publishing.keys import PublicKey, SigningKey
from builder.deliver.site.arguments import read_env_file
from builder.deliver.smoke.reports import read_report
from builder.formats.oci.layout import read_index
from builder.formats.registry.credentials import find_credentials
from builder.formats.trees.ignore import IGNORE_FILE, Ignore
from builder.lock.config.yamlfile import load_yaml
from builder.lock.environment import read_any_environment
from builder.lock.file import read_lock
from builder.lock.formats.common import read_toml
from builder.lock.tomlfile import load_toml

MIB = 1 << 20


def _environment(path: Path) -> object:
    return read_any_environment(path, "linux-64", path.parent)


def _layout(path: Path) -> object:
    (path.parent / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return read_index(path.parent)


def _auth(path: Path) -> object:
    with pytest.MonkeyPatch.context() as context:
        context.setenv("REGISTRY_AUTH_FILE", str(path))
        return find_credentials("host.example")


#: By the name of a file: its reader, and the bytes that it may have.
READERS: dict[str, tuple[Callable[[Path], object], int]] = {
    "recipe.yaml": (load_yaml, MIB),
    "environment.yml": (_environment, MIB),
    "requirements.txt": (_environment, MIB),
    "pyproject.toml": (load_toml, MIB),
    "x.lock.yml": (read_lock, 16 * MIB),
    "uv.lock": (read_toml, 16 * MIB),
    IGNORE_FILE: (lambda path: Ignore(path.parent), MIB),
    "index.json": (_layout, 8 * MIB),
    "auth.json": (_auth, MIB),
    "key.pub": (PublicKey.load, 64 << 10),
    "x.key": (lambda path: SigningKey.load(path, pytest.fail), 64 << 10),
    "x.env": (read_env_file, MIB),
    "report.json": (read_report, 64 * MIB),
}
#: What is in the place of the file, which may have so many bytes.
OTHERS: dict[str, Callable[[Path, int], object]] = {
    "pipe": lambda path, most: os.mkfifo(path, 0o600),
    "folder": lambda path, most: path.mkdir(),
    "device": lambda path, most: path.symlink_to("/dev/zero"),
    "too large": lambda path, most: path.write_bytes(b"#" * (most + 1)),
    "not UTF-8": lambda path, most: path.write_bytes(b"\x80\xfe"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("other", OTHERS)
def test_other_files(tmp_path: Path, name: str, other: str) -> None:
    """An error names the file; nothing waits."""
    read, most = READERS[name]
    OTHERS[other](tmp_path / name, most)
    with pytest.raises(BuilderError) as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
