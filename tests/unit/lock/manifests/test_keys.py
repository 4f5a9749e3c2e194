"""Every key of another tool's file has a rule: builder reads it, it cannot matter, or it is an error."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.lock.manifests.reader import build_settings, check_keys, rules_of, settings_of_uv
from builder.lock.tomlfile import load_toml
from builder.lock.uv import uv_program

HERE = Path(__file__).parent
PUBLISHED = [
    (path.name.removesuffix("-keys.txt"), key)
    for path in sorted(HERE.glob("*-keys.txt"))
    for key in path.read_text().splitlines()
    if not key.startswith("#")
]
WORDS = re.compile(r"read|uv|build|build packages|same|refuse(: .+)?")


@pytest.mark.parametrize(("tool", "key"), PUBLISHED)
def test_published(tool: str, key: str) -> None:
    """The lists are those that the tools publish; NAME in a key stands for any name."""
    rule = rules_of(tool)["keys"]
    for word in key.split("."):
        if not isinstance(rule, dict):
            break
        rule = rule[word if word in rule else "*"]
    assert isinstance(rule, (dict, list)) or WORDS.fullmatch(rule)


def test_installed_uv(tmp_path: Path) -> None:
    """The settings of the uv beside builder: it names all of them in its error about another one."""
    (tmp_path / "uv.toml").write_text("nonsense = 1\n")
    (tmp_path / "r.in").touch()
    command = [uv_program(), "pip", "compile", "--offline", "--config-file", "uv.toml", "r.in"]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    names = re.findall(r"`([a-z-]+)`", done.stderr.partition("expected one of")[2])
    assert len(names) > 60
    assert set(names) <= set(rules_of("uv")["keys"])


@pytest.mark.parametrize(
    ("tool", "text", "message"),
    [
        ("uv", "torch-backend = 'cu126'", ":1: tool.uv.torch-backend"),
        ("uv", "new-key = 1", ":1: tool.uv.new-key"),
        ("uv", "[[index]]\nurl = 'u'\nformat = 'flat'", ":3: tool.uv.index.format"),
        ("uv", "[sources]\na = [{git = 'u', lfs = true}]", ":2: tool.uv.sources.a.lfs"),
        ("poetry", "[[source]]\nname = 'corp'", ":1: tool.poetry.source"),
        ("poetry", "[dependencies]\na = {source = 'corp'}", ":2: tool.poetry.dependencies.a.source"),
        ("pdm", "[[source]]\nurl = 'u'", ":1: tool.pdm.source"),
    ],
)
def test_refused(tmp_path: Path, tool: str, text: str, message: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    file = load_toml(tmp_path / "p.toml")
    with pytest.raises(ConfigError) as error:
        check_keys(file, file.data, tool)
    assert f"p.toml{message}: builder does not support this key" in error.value.message
    assert "lock: " in error.value.hint


def test_settings_of_uv() -> None:
    data = {"exclude-newer": "2026-01-01", "cache-dir": "/x", "no-build-isolation-package": ["Flash_Attn"]}
    settings = settings_of_uv(data)
    assert set(settings) == {"exclude-newer", "no-build-isolation-package"}
    assert build_settings(settings, "flash-attn") == ["no-build-isolation-package"]
    assert build_settings(settings, "torch") == []
    assert build_settings({"no-build-isolation": True}, "torch") == ["no-build-isolation"]
