"""Debian's wheel of setuptools, made to work with the distutils that it contains.

Debian's setuptools asks the command ``install`` for its option ``--install-layout``, which only Debian's own
distutils has. With the distutils inside the wheel, ``setup.py bdist_wheel`` ends with ``AttributeError:
install_layout``.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from tests.support.debian_channel.debs import unknown

_LAYOUT = "        self.set_undefined_options('install',('install_layout','install_layout'))\n"
_OPTION = (
    "        if sys.hexversion > 0x2060000:\n"
    "            self.set_undefined_options('install',('prefix_option','prefix_option'))\n"
)
#: Debian's changes, and what is there instead. A name without prefix_option would lack the Python version.
_CHANGES = {
    "setuptools/command/install_lib.py": {_LAYOUT: ""},
    "setuptools/command/install_egg_info.py": {
        _LAYOUT: "",
        _OPTION: "",
        "elif self.prefix_option or": "elif True or",
    },
}


def restore_setuptools(tree: Path) -> None:
    """Replaces the wheel in the unpacked Debian package.

    Its members are not compressed, because zlib's versions differ in what they write; the conda package is.

    Raises:
        FetchError: the wheel is not as expected.
    """
    for path in sorted(tree.rglob("setuptools-*.whl")):
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}
        record = next((name for name in members if name.endswith(".dist-info/RECORD")), "")
        for name, changes in _CHANGES.items():
            if name not in members or not record:
                raise unknown(path.name)
            before = members[name]
            members[name] = _changed(before.decode(), changes, path.name).encode()
            members[record] = members[record].replace(_row(name, before), _row(name, members[name]))
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, data in members.items():
                info = zipfile.ZipInfo(name, (2023, 6, 10, 0, 0, 0))
                info.external_attr = 0o644 << 16
                archive.writestr(info, data)


def _changed(text: str, changes: dict[str, str], wheel: str) -> str:
    for old, new in changes.items():
        if text.count(old) != 1:
            raise unknown(wheel)
        text = text.replace(old, new)
    return text


def _row(name: str, data: bytes) -> bytes:
    """A file's row in RECORD, without its end of line."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}".encode()
