"""pip's configuration as builder reads it, against pip itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.formats.net import pipconfig
from builder.formats.net.pipconfig import PipConfiguration, pip_configuration


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of its own, without this machine's own files."""
    monkeypatch.setattr(pipconfig, "_SYSTEM", tmp_path / "etc/pip.conf")
    monkeypatch.setattr(pipconfig.sys, "prefix", str(tmp_path / "venv"))
    (tmp_path / "venv").mkdir()
    return tmp_path


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding)
    return path


def read(home: Path, **variables: str) -> PipConfiguration:
    return pip_configuration({"HOME": str(home), "XDG_CONFIG_DIRS": str(home / "xdg"), **variables})


def test_pipe(home):
    """Nothing waits for a pipe: it counts as missing, as a file that cannot be read."""
    (home / ".pip").mkdir()
    os.mkfifo(home / ".pip/pip.conf")
    assert read(home) == PipConfiguration()


DAMAGED = ("index-url = x\n", "[global\n", "[global]\nindex-url\n", "[global]\n# \xe9\n")


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_named(home, text):
    """Also one that is not UTF-8."""
    path = write(home / ".pip/pip.conf", text, "latin-1")
    with pytest.raises(ConfigError, match=str(path)):
        read(home)


#: Prints what pip reads with each of several sets of variables.
READ_BY_PIP = """\
import json, os, sys
from pip._internal.commands.install import InstallCommand
found = []
for variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    options, _ = InstallCommand("install", "").parse_args([])
    found.append([options.index_url, options.extra_index_urls, options.find_links, options.no_index])
    for name in variables:
        del os.environ[name]
print(json.dumps(found))
"""


def test_pip_itself_reads_the_same(tmp_path):
    """Each value, from the file that wins."""
    user = "[global]\nindex-url = https://a/simple\nfind-links = /x\n\t/y\n[install]\nextra-index-url = https://b/\n"
    write(tmp_path / ".config/pip/pip.conf", user)
    own = write(tmp_path / "own.conf", "[global]\nindex-url = https://c/simple\n[install]\nfind_links = /z\n")
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    cases = [
        {},
        {"PIP_CONFIG_FILE": str(own)},
        {"PIP_NO_INDEX": "1"},
        {"PIP_CONFIG_FILE": os.devnull},
    ]
    command = [sys.executable, "-c", READ_BY_PIP, json.dumps(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if "No module named pip" in done.stderr:
        pytest.skip("no pip beside this Python")
    for variables, values in zip(cases, json.loads(done.stdout), strict=True):
        index, extra, links, no_index = values
        ours = pip_configuration({**environment, **variables})
        assert [list(ours.extra_index_urls), list(ours.find_links), ours.no_index] == [
            extra,
            links,
            no_index,
        ], variables
        assert ours.index_url == index or ours.index_url is None  # pip's own default then
