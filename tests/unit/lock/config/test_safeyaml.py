"""The reader of YAML: what a hostile text can do."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from builder.lock.config import safeyaml
from builder.lock.config.safeyaml import compose, load

CLONE = Path(__file__).parents[4]
#: 9 levels of aliases in 491 bytes: 10^9 texts.
BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


def problem(text: str | bytes) -> str:
    """What is wrong with a text, from both functions if both see it."""
    with pytest.raises(yaml.YAMLError) as caught:
        load(text)
    return str(getattr(caught.value, "problem", None) or caught.value)


def test_aliases() -> None:
    """Aliases that multiply are refused, with the line; a few are allowed."""
    started = time.thread_time()  # a busy machine
    with pytest.raises(yaml.MarkedYAMLError) as caught:
        load(BOMB + "version: *a8\n")
    assert caught.value.problem == "aliases (*NAME) repeat more than 10000000 characters"
    assert caught.value.problem_mark is not None and caught.value.problem_mark.line == 4
    with pytest.raises(yaml.MarkedYAMLError):
        compose(BOMB)
    assert time.thread_time() - started < 1
    assert load("a: &x [1, 2]\nb: *x\nc: {<<: {d: *x}}\n") == {"a": [1, 2], "b": [1, 2], "c": {"d": [1, 2]}}


def test_long_text_by_aliases() -> None:
    """One long text many times is as large as many nodes."""
    text = "a: &a " + "x" * 100_000 + "\nb: [" + "*a, " * 99
    assert len(load(text + "]\n")["b"]) == 99
    assert "repeat more than" in problem(text + "*a]\n")


def test_alias_of_itself() -> None:
    assert problem("a: &a [1, [*a]]") == "the alias *a refers to itself"


@pytest.mark.parametrize(
    "text",
    ["[" * 400_000, "{a: " * 100_000, "- " * 200_000, "? " * 200_000, "&a [" * 100_000, "[{}, " * 100_000],
    ids=["lists", "mappings", "block", "keys", "anchors", "pairs"],
)
def test_deep(text: str) -> None:
    """Depth neither kills the process nor ends in RecursionError. (400 KB of [ killed it with SIGSEGV.)"""
    program = (
        "import sys, yaml\nfrom builder.lock.config.safeyaml import load, compose\ntext = sys.stdin.read()\n"
        "for read in (load, compose):\n"
        "    try: read(text)\n"
        "    except yaml.YAMLError as e: print(e.problem)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CLONE, input=text, capture_output=True, text=True
    )
    assert done.returncode == 0
    # the second text is that of the libyaml in PyYAML 6.0.4
    said = {"lists and mappings are more than 100 levels deep", "exceeded maximum nesting depth"}
    first, second = done.stdout.splitlines()
    assert first == second and first in said


def test_plain_is_never_deeper() -> None:
    """The deepest text without a count of events: a list at each column at which a mapping can start."""
    text = "a:\n- "
    for n in range(2, safeyaml._PLAIN_INDENT - 2, 2):
        text += f"a:\n{' ' * n}- "
    text += "[" * safeyaml._PLAIN_BRACKETS + "1" + "]" * safeyaml._PLAIN_BRACKETS
    assert safeyaml._is_plain(text.encode())
    deepest = depth = 0
    for event in yaml.parse(text):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        deepest = max(deepest, depth)
    assert 50 < deepest <= safeyaml.MAX_DEPTH
    assert not safeyaml._is_plain(b"a: &b 1") and not safeyaml._is_plain(b"[" * 21)
    assert not safeyaml._is_plain(b"- " * 20)


def test_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safeyaml, "MAX_BYTES", 10)
    assert problem(b"a: " + b"x" * 8) == "the file has more than 10 bytes"


@pytest.mark.parametrize(
    "text",
    [
        "a: 2024-02-31",
        "a: !!int x",
        "a: !!python/object:os.system x",
        "a: " + ":".join(["1"] * 400) + ".5",
        "a: *b",
        "a: \udc80",
        "--- 1\n--- 2",
        ("- " * 200_000).encode("utf-16"),
    ],
)
def test_values(text: str | bytes) -> None:
    """PyYAML ends in all kinds of exceptions where a value is not what its tag says."""
    assert problem(text)


def test_last_line() -> None:
    """An error at the end of a last line without a newline is on that line."""
    with pytest.raises(yaml.MarkedYAMLError) as caught:
        load("a: [")
    assert caught.value.problem_mark is not None and caught.value.problem_mark.line == 0
