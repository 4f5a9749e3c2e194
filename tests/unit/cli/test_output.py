"""What reaches the terminal."""

from __future__ import annotations

import json
import logging

import pytest

from builder.cli.logs import _Redacted
from builder.cli.output import Output
from builder.core.text import Table

HOSTILE = "\x1b]0;owned\x07\x1b[2Jgone\x9b1A\rover \u202egnp.\u2066 \x7f"
LOGGED = "\\x1b]0;owned\\x07\\x1b[2Jgone\\x9b1A\\x0dover \\u202egnp.\\u2066 \\x7f"


def test_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a registry, a lock or a package is called, the terminal obeys none of it."""
    output = Output()
    output.note(HOSTILE)
    output.warn(HOSTILE)
    output.error(f"two\nlines {HOSTILE}", HOSTILE)
    output.text(HOSTILE)
    output.table(Table(("a", HOSTILE), [("b", HOSTILE)], title=HOSTILE))
    out, err = capsys.readouterr()
    assert not set(out + err) & set("\x1b\x07\x9b\r\u202e\u2066\x7f")
    assert err.count(LOGGED) == 4 and "two\nlines \\x1b" in err
    assert out.count("\\x1b") >= 3


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).result({"name": HOSTILE})
    out = capsys.readouterr().out
    assert json.loads(out) == {"schema": "error/1", "name": HOSTILE} and out.isascii() and "\x1b" not in out


def test_log() -> None:
    """The log shows them too, as ``less -R`` and terminals obey them."""
    record = logging.LogRecord("builder", logging.INFO, "x", 1, "two\nlines %s", (HOSTILE,), None)
    assert _Redacted("%(message)s").format(record) == f"two\nlines {LOGGED}"


def test_table_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """It has no head: the title and the caption are all that is printed."""
    Output().table(Table(("", "name", "result"), title="smoke test: pass", caption="the end"))
    assert capsys.readouterr().out == "smoke test: pass\nthe end\n"
    Output().table(Table(("package", "version")))
    assert capsys.readouterr().out == ""
    Output().table(Table(("", "name"), [("", "")]))
    assert capsys.readouterr().out == "  name\n\n"
