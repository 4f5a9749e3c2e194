"""The only reader of YAML: bounded in size, depth and in what aliases multiply.

PyYAML bounds nothing. An alias stands for a whole node again, so ten lines can stand for terabytes
of text::

    a: &a [x, x, x, x, x, x, x, x]
    b: &b [*a, *a, *a, *a, *a, *a, *a, *a]       64 texts
    c: &c [*b, *b, *b, *b, *b, *b, *b, *b]       512 texts, and so on

And libyaml builds nodes recursively in C: with 200,000 brackets it runs out of stack and kills the
process. So each text is checked before it is parsed into nodes. :func:`_is_plain` finds out fast
that a text can have neither; that is the case of almost all lock files. Of all others the events
are counted, which libyaml makes one by one without recursion.
"""

from __future__ import annotations

from typing import Any

import yaml

#: Bytes of a YAML text. A lock of 1,000 packages has 0.4 MB.
MAX_BYTES = 16 << 20
#: Levels of lists and mappings. Locks and recipes have at most 8.
MAX_DEPTH = 100
#: What aliases may add: characters of text, and NODE_SIZE for each node.
MAX_ALIASED = 10_000_000
NODE_SIZE = 100
#: Characters of a number. Python's own conversion is quadratic, and refuses more than 4300 digits.
MAX_NUMBER = 1000

#: A text is plain if it has at most this many brackets, and no longer run of characters that indent. Each
#: column starts at most two levels of a block (a list may start at the column of its key), so the depth is
#: at most 2 * 40 + 20: MAX_DEPTH.
_PLAIN_BRACKETS = 20
_PLAIN_INDENT = 40
_INDENT_TO_BLANK = bytes.maketrans(b"-?:\t", b"    ")

#: In C where PyYAML has it: seven times as fast.
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """A safe loader whose numbers are bounded."""

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        if isinstance(node.value, str) and len(node.value) > MAX_NUMBER:
            count = f"{len(node.value)} characters, at most {MAX_NUMBER} are allowed"
            raise _error(f"a number has {count}", node)
        kind = node.tag.rpartition(":")[2]
        return self.construct_yaml_int(node) if kind == "int" else self.construct_yaml_float(node)


for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_number)


def load(raw: bytes | str) -> Any:
    """Return the value of a YAML document; None for an empty one.

    Raises:
        yaml.YAMLError: it is no YAML, or exceeds a bound. ``problem`` and, where known,
            ``problem_mark`` say what and where.
    """
    return _construct(raw, lambda loader: loader.get_single_data())


def compose(raw: bytes | str) -> yaml.Node | None:
    """Return the nodes of a YAML document, which know their lines. Raises as :func:`load`."""
    node: yaml.Node | None = _construct(raw, lambda loader: loader.get_single_node())
    return node


def _construct(raw: bytes | str, construct: Any) -> Any:
    data = raw if isinstance(raw, bytes) else raw.encode(errors="surrogatepass")
    try:
        _check(data)
        loader = _Loader(data)
        try:
            return construct(loader)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as e:
        mark, last = e.problem_mark, data.count(b"\n")
        # libyaml counts the end of a last line without \n
        if mark is not None and mark.line > last:
            e.problem_mark = yaml.Mark(mark.name, mark.index, last, 0, None, 0)
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as e:
        # PyYAML converts scalars without checks: 2024-02-31, !!int x, !!bool x, !!timestamp x
        raise _error(f"a value is not what its form or tag says: {e}") from None


def _check(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise _error(f"the file has more than {MAX_BYTES} bytes")
    if b"\0" in data or data.startswith((b"\xff\xfe", b"\xfe\xff")):  # libyaml reads UTF-16 too
        raise _error("not UTF-8 text")
    if not _is_plain(data):
        _count(data)


def _is_plain(data: bytes) -> bool:
    """Return whether a text has no anchor and is not deep, by a search for fixed bytes."""
    opened = data.count(b"[") + data.count(b"{") - data.count(b"[]") - data.count(b"{}")
    if b"&" in data or opened > _PLAIN_BRACKETS:
        return False
    return b" " * _PLAIN_INDENT not in data.translate(_INDENT_TO_BLANK)


def _count(data: bytes) -> None:
    """Check depth and aliases by the events of a text, without making nodes.

    ``starts`` holds the open lists and mappings: their anchor, and the size of everything before
    them. So the size of a node is known at its end, and an alias adds the size of its anchor once
    more.
    """
    sizes: dict[str | None, int] = {}
    starts: list[tuple[str | None, int]] = []
    size = aliased = 0
    for event in yaml.parse(data, Loader=_BASE):
        if isinstance(event, yaml.CollectionStartEvent):
            starts.append((event.anchor, size))
            size += NODE_SIZE
            if len(starts) > MAX_DEPTH:
                raise _error(f"lists and mappings are more than {MAX_DEPTH} levels deep", event)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = starts.pop()
            sizes[anchor] = size - before
        elif isinstance(event, yaml.ScalarEvent):
            size += NODE_SIZE + len(event.value)
            sizes[event.anchor] = NODE_SIZE + len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in dict(starts):
                raise _error(f"the alias *{event.anchor} refers to itself", event)
            repeated = sizes.get(event.anchor, 0)
            size += repeated
            aliased += repeated
            if aliased > MAX_ALIASED:
                raise _error(f"aliases (*NAME) repeat more than {MAX_ALIASED} characters", event)


def _error(problem: str, at: Any = None) -> yaml.MarkedYAMLError:
    """Return an error as PyYAML's own, with the line of an event or node."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=getattr(at, "start_mark", None))
