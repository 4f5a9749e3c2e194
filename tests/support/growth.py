"""Measures whether the time of a reader grows faster than its input.

The measure is the ratio of two CPU times of the same minute, so it depends neither on the machine nor on what
else runs there: :func:`ratio`. :func:`patterns` finds the regular expressions of a package, and
:func:`hard_texts` makes texts that are hard for one.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

#: Most that the time may grow when the input doubles: 2 is linear, 4 is quadratic.
MOST = 2.6
#: CPU seconds of the smaller reading at least: less is the noise of the clock.
_LEAST = 0.02
#: Readings of which the fastest counts, and tries of which the best counts.
_READINGS, _TRIES = 3, 4
#: Doublings that all have to take too long, and CPU seconds of a reading after which no more are tried.
_DOUBLINGS, _ENOUGH = 3, 0.2
#: CPU seconds for 2,048 characters from which a regular expression is measured.
_SUSPECT = 0.002
#: How many alternatives, pieces and characters of a regular expression are tried.
_BRANCHES, _PIECES = 4, 24


def ratio(make: Callable[[int], Callable[[], object]], most: int = 1 << 20, first: int = 256) -> float:
    """Return how many times as long a reading takes if its input doubles; 1 if all are quick.

    The least of some doublings, one after the other: memory makes single steps. A text that no longer
    fits into a cache takes 4.3 times as long as its half, and half as long as its double.

    Args:
        make: returns the reading of an input of a size.
        most: the largest size of which the double is read, if that is quick.
        first: the smallest size.
    """
    size = first
    while (seconds := _seconds(make(size), 1)) < _LEAST:
        size *= 2
        if size * 2 > most:
            return 1.0
    found: list[float] = []
    for doubling in range(_DOUBLINGS):
        found.append(_of_a_doubling(make, size << doubling, seconds))
        seconds *= found[-1]
        if found[-1] <= MOST or seconds > _ENOUGH:
            break
    return min(found)


def _of_a_doubling(make: Callable[[int], Callable[[], object]], size: int, seconds: float) -> float:
    """Return the ratio for the double of a size, whose own reading took so many CPU seconds."""
    found = [_seconds(make(size * 2), 1) / seconds]
    while min(found) > MOST and len(found) < (_TRIES if min(found) < 2 * MOST else 2):
        small, large = make(size), make(size * 2)
        found.append(_seconds(large, _READINGS) / _seconds(small, _READINGS))
    return min(found)


def _seconds(read: Callable[[], object], readings: int) -> float:
    """Return the CPU seconds of the fastest of some readings."""
    gc.disable()
    try:
        found = []
        for _ in range(readings):
            start = time.process_time()
            read()
            found.append(time.process_time() - start)
    finally:
        gc.enable()
    return max(min(found), 1e-6)


#: Methods of patterns, and the position of ``flags`` among the arguments of the functions of :mod:`re`.
_FLAGS = {
    "match": 2,
    "search": 2,
    "fullmatch": 2,
    "finditer": 2,
    "findall": 2,
    "sub": 4,
    "subn": 4,
    "split": 3,
}


@dataclass(frozen=True)
class Pattern:
    """A regular expression in a module."""

    where: str
    """``builder/core/redact.py: EXPRESSION``."""
    regex: re.Pattern[Any] | None
    """None: it is made of local variables."""
    methods: frozenset[str]
    """How it is used: ``match``, ``fullmatch``, or ``finditer`` for all that search."""


@functools.cache
def patterns(package: Path) -> list[Pattern]:
    """Return the regular expressions of the modules of a package."""
    found = []
    trees = {path: ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}
    used: dict[str, set[str]] = {}
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and node.attr in _FLAGS:
            used.setdefault(ast.unparse(node.value).rpartition(".")[2], set()).add(node.attr)
    for path, tree in trees.items():
        assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        names = {id(node.value): ast.unparse(node.targets[0]) for node in assigned}
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            module, _, function = ast.unparse(call.func).rpartition(".")
            if module != "re" or function not in (*_FLAGS, "compile"):
                continue
            methods = {function} if function in _FLAGS else used.get(names.get(id(call), ""), set(_FLAGS))
            kinds = frozenset(m if m in ("match", "fullmatch") else "finditer" for m in methods)
            relative = path.relative_to(package.parent)
            where = f"{relative}: {ast.unparse(call.args[0])}"
            regex = _compiled(".".join(relative.with_suffix("").parts), call, function)
            found.append(Pattern(where, regex, kinds))
    return found


def _compiled(module: str, call: ast.Call, function: str) -> re.Pattern[Any] | None:
    place = _FLAGS.get(function, 1)
    flags = [*call.args[place : place + 1], *(k.value for k in call.keywords if k.arg == "flags")]
    variables = dict(vars(importlib.import_module(module)))
    try:
        return re.compile(*(eval(ast.unparse(node), variables) for node in (call.args[0], *flags)))  # noqa: S307
    except NameError:
        return None


@dataclass
class _Sample:
    """A text that a regular expression matches, nearly: one piece for each character class."""

    branch: int
    """Which alternative is taken."""
    pieces: list[str] = field(default_factory=list)
    alphabet: set[str] = field(default_factory=set)
    """Characters that the expression knows."""
    groups: dict[int | None, list[str]] = field(default_factory=dict)

    def add(self, tree: Any) -> None:
        """Add the pieces of a parsed expression."""
        for kind, value in tree:
            match kind:
                case sre.LITERAL | sre.NOT_LITERAL | sre.ANY | sre.IN:
                    characters = [chr(value)] if kind is sre.LITERAL else _characters(kind, value)
                    self.pieces += characters[:1]
                    self.alphabet.update(characters)
                case sre.BRANCH:
                    for one in value[1]:
                        self._aside(one)
                    self.add(value[1][self.branch % len(value[1])])
                case sre.SUBPATTERN:
                    start = len(self.pieces)
                    self.add(value[3])
                    self.groups[value[0]] = self.pieces[start:]
                case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
                    for _ in range(min(max(value[0], 1), value[1], 3)):
                        self.add(value[2])
                case sre.ATOMIC_GROUP:
                    self.add(value)
                case sre.ASSERT if value[0] < 0:
                    self.add(value[1])
                case sre.ASSERT | sre.ASSERT_NOT:
                    self._aside(value[1])
                case sre.GROUPREF:
                    self.pieces += self.groups.get(value, [])
                case sre.GROUPREF_EXISTS:
                    self.add(value[1])

    def _aside(self, tree: Any) -> None:
        other = _Sample(0)
        other.add(tree)
        self.alphabet |= other.alphabet


#: Classes, and a character of each.
_CLASSES = {
    sre.CATEGORY_DIGIT: (r"\d", "1"), sre.CATEGORY_NOT_DIGIT: (r"\D", "a"),
    sre.CATEGORY_WORD: (r"\w", "a"), sre.CATEGORY_NOT_WORD: (r"\W", "-"),
    sre.CATEGORY_SPACE: (r"\s", " "), sre.CATEGORY_NOT_SPACE: (r"\S", "a"),
}  # fmt: skip
#: What takes the place of a class that is named by what it is not.
_OTHERS = "a1 -/.,:;=\"'<>[](){}\\\n@#$%&*+_~|!?^`\tZ"


def _characters(kind: Any, value: Any) -> list[str]:
    """Return a character of a class, and those that it names."""
    if kind is not sre.IN:
        return [chr(98)] if (kind, value) == (sre.NOT_LITERAL, 97) else ["a"]
    named, classes = [], []
    for one, what in value:
        if one is sre.LITERAL:
            named.append(chr(what))
        elif one is sre.RANGE:
            named += map(chr, what)
        elif one is sre.CATEGORY:
            classes.append(_CLASSES[what][0])
            named.append(_CLASSES[what][1])
    if value[0][0] is not sre.NEGATE:
        return named
    ranges = [what for one, what in value if one is sre.RANGE]
    outside = [
        c
        for c in _OTHERS
        if c not in named
        and not any(first <= ord(c) <= last for first, last in ranges)
        and not any(re.match(one, c) for one in classes)
    ]
    return [*(outside[:1] or ["\xe9"]), *named]


def hard_texts(regex: re.Pattern[Any]) -> Iterator[Callable[[int], Any]]:
    """Yield what makes texts of a size that are hard for a regular expression; long pieces count as four.

    A text is a beginning that matches, a character or piece that is repeated, and an end that fails or none.
    """
    is_text = isinstance(regex.pattern, str)
    tree = parser.parse(regex.pattern if is_text else regex.pattern.decode("latin-1"), regex.flags)
    made = set()
    for branch in range(_BRANCHES):
        sample = _Sample(branch)
        sample.add(tree)
        pieces = sample.pieces[:_PIECES]
        heads = {"".join(pieces[:count]) for count in range(len(pieces) + 1)}
        made |= {(head, one) for head in heads for one in sorted(sample.alphabet)[:_PIECES]}
        ends = range(1, len(sample.pieces) + 1)
        made |= {("", "".join(sample.pieces[:end])) for end in ends} | {("", "".join(pieces) + "\n")}
    for (head, one), tail in itertools.product(sorted(made), ("", "\0")):

        def text(size: int, head: str = head, one: str = one, tail: str = tail) -> Any:
            found = head + one * (size // min(len(one), 4)) + tail
            return found if is_text else found.encode("latin-1", "replace")

        yield text


def slow_text(pattern: Pattern) -> str:
    """Return a text of which the time of a pattern grows faster than its size; empty if there is none."""
    assert pattern.regex is not None
    for method in sorted(pattern.methods):
        use = getattr(pattern.regex, method)

        def reading(text: Callable[[int], Any], size: int, use: Any = use) -> Callable[[], object]:
            made = text(size)
            return lambda: [*(use(made) if use.__name__ == "finditer" else [use(made)])]

        for text in hard_texts(pattern.regex):
            for size in (64, 512, 2048):
                if _seconds(reading(text, size), 1) > _SUSPECT:
                    if ratio(functools.partial(reading, text), 1 << 17, size) > MOST:
                        return f"{pattern.where}: {method} of {text(40)!r}"
                    break
    return ""
