"""Mistakes in recipes: the message names the line and the key, the hint is the text to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.lock.config.recipe import load_recipe

START = "base: debian:bookworm\nenvironment: environment.yml\n"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("cmd: python train.py", "3: cmd: must be a list, and is text", "write cmd: [python, train.py]"),
        ("env: {A: 1}", "3: env.A: must be text, and is a number", 'put it into quotes: A: "1"'),
        (
            "virtual_packages: {__glibc: 2.30}",
            "3: virtual_packages.__glibc: must be text",
            'put it into quotes: __glibc: "2.30"',
        ),
        ("virtual_packages: {__cuda: any}", "'any' is not a version: write a number in quotes", "correct"),
        (
            "env: {PATH: '/app/bin:$PATH'}",
            "3: env: PATH: $PATH is not replaced by its value here: write the whole value",
            "correct env:",
        ),
        ("workdir:", "3: workdir: must be text, and is empty", "write a value after workdir:, or remove"),
        (
            "gpu: nvidia",
            "3: gpu: must be a mapping",
            "write gpu: and KEY: VALUE lines below it; keys: vendor, architectures",
        ),
        ("gpu: {vendor: CUDA}", "3: gpu.vendor: 'CUDA' is not one of nvidia, amd, none", "vendor: nvidia"),
        (
            "site: {mpi: {abi: cray}}",
            "'cray' is not one of \"\", mpich, openmpi",
            'write abi: "" or mpich or openmpi',
        ),
        (
            "layers: {groups: many}",
            "3: layers.groups: must be a number, and is many",
            "correct layers.groups",
        ),
        ("image: ubuntu", "3: image: unknown key", "write base: docker://HOST/REPOSITORY:TAG"),
        ("enviroment: x", "3: enviroment: unknown key; did you mean environment?", "write environment:"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str, hint: str) -> None:
    start = START.replace("environment: environment.yml\n", "") if text.startswith("environment") else START
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(start + text + "\n")
    with pytest.raises(ConfigError) as caught:
        load_recipe("mine", tmp_path)
    assert f"mine.yaml:{message}" in caught.value.message or message in caught.value.message
    assert hint in caught.value.hint and "Input should" not in str(caught.value)


def test_each_mistake_has_a_hint(tmp_path: Path) -> None:
    """The hints are those of all errors, in their order, each once."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text("base: 1\nenv: {A: 1, B: on}\n")
    with pytest.raises(ConfigError) as caught:
        load_recipe("mine", tmp_path)
    assert caught.value.message.count("\n") == 3
    assert caught.value.hint == (
        'put it into quotes: base: "1"; add the line environment: VALUE; '
        'put it into quotes: A: "1"; put it into quotes: B: "on"'
    )


def test_misspelt_key_that_is_required(tmp_path: Path) -> None:
    """The misspelt key is there: nothing asks for it a second time, and the first hint is the last."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text("bsae: oci:x\nenviroment: environment.yml\n")
    with pytest.raises(ConfigError) as caught:
        load_recipe("mine", tmp_path)
    path = tmp_path / "recipes" / "mine.yaml"
    assert caught.value.message.splitlines() == [
        f"{path}:1: bsae: unknown key; did you mean base?",
        f"{path}:2: enviroment: unknown key; did you mean environment?",
    ]
    assert caught.value.hint == "write base:; write environment:"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "empty"),
        ("hello\n", "text"),
        ("- a\n", "a list"),
        ("7\n", "a number"),
    ],
)
def test_no_mapping(tmp_path: Path, text: str, kind: str) -> None:
    """A file that is no mapping is described in words, not by a type of Python."""
    (tmp_path / "recipes").mkdir()
    path = tmp_path / "recipes" / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_recipe("mine", tmp_path)
    assert caught.value.message == f"{path}: is {kind}, not a mapping of keys"
