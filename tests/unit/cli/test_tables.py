"""Tables in a terminal of 80 columns, with the data of this project: nothing is wider, and no word is cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from builder.cli import cli, doctor, output, run
from builder.cli.doctor import Finding
from builder.cli.output import Output, _Console
from builder.config.recipe import recipe_files
from builder.smoke.compare import compare
from builder.smoke.run import SmokeReport
from builder.smoke.table import render, render_comparison
from tests.support.project import TinyProject
from tests.support.reports import MI250X, STRANGE, a100, cpu, months, report

ROOT = Path(__file__).parents[3]
LONG = "sha256:" + "0" * 64

Shown = Callable[..., list[str]]


@pytest.fixture(params=[80, 60, 100])
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    console = partial(_Console, force_terminal=True, color_system=None, width=width)
    monkeypatch.setattr(output, "_Console", console)


@pytest.fixture
def shown(terminal: None, width: int, capsys: pytest.CaptureFixture[str]) -> Iterator[Shown]:
    """Runs a command, or prints a table; returns the lines, none of which is too wide."""

    def show(*what: str | Table, code: int = 0) -> list[str]:
        capsys.readouterr()
        if isinstance(what[0], Table):
            for table in what:
                Output().table(table)
        else:
            assert run(cli, list(map(str, what))) == code
        lines = capsys.readouterr().out.splitlines()
        for line in lines:
            assert line == line.rstrip()
            words = line.split()
            assert len(line) <= width or max(map(len, words)) > width - 24, line
        return lines

    yield show


def test_targets(shown: Shown) -> None:
    """The names of all targets can be copied. The base is a line of ``targets show NAME``."""
    lines = shown("--project", str(ROOT), "targets")
    words = set(" ".join(lines).split())
    assert len(lines) < 4 * len(recipe_files(ROOT))
    for name in recipe_files(ROOT):
        assert name in words
        assert sum(line.startswith(f"{name} ") for line in lines) == 1


def test_doctor(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long findings and hints are wrapped beside their names."""
    problem = "no engine answers at unix:///run/user/1000/docker.sock: permission denied (wrong group?)"
    findings = [
        Finding("builder", "ok", "0.1.0 on Python 3.11.2, x86_64, glibc 2.36"),
        Finding("run: docker", "missing", problem, "apt-get install docker.io, and join the group docker"),
        Finding("cache", "bad", "/home/someone/with/a/long/name/.cache/builder: 3 GB free", "prune " * 20),
    ]
    monkeypatch.setattr(doctor, "examine", lambda *_: findings)
    lines = shown("doctor", code=1)
    text = " ".join(" ".join(lines).split())
    assert problem in text and "hint: apt-get install docker.io, and join the group docker" in text


def test_smoke(shown: Shown) -> None:
    """A verdict with long advice, and a comparison."""
    advice = "another program uses this machine: the figures are too low; run again when it is idle " * 2
    made = report([], devices=[MI250X, STRANGE])
    made["probes"].append(
        {"id": "network.interfaces.of.slingshot", "status": "warn", "seen": LONG, "advice": advice}
    )
    for one in (made, a100(), cpu()):
        table = render(SmokeReport("warn", one, "userns", LONG, 12.5))
        text = " ".join(" ".join(shown(table)).split())
        assert all(entry["id"] in text for entry in one["probes"] if entry["status"] != "skip")
        assert "A warning does not stop publishing." in text
    old, new = months({}, {"matmul.bf16": 0.8})
    comparison = render_comparison(compare([new], [old]), "registry.example.org/group/a-long-name:26.10")
    text = " ".join(" ".join(shown(comparison)).split())
    assert "1 slower" in text and "nvidia-cublas-cu12" in text


def test_plan_and_cache(shown: Shown, copy: TinyProject) -> None:
    lines = shown("plan", "tiny")
    assert lines[0].startswith("layer") and lines[-1].endswith("layers")
    assert any(line.startswith("folder") for line in shown("cache", "info"))


def test_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """A log has no blanks at the ends of lines, and texts stay on one line."""
    table = Table("", "name", "result", box=None, title="all [red]is[/red] well", caption="the end")
    table.add_row("pass", "a", "short")
    table.add_row("warn", "b", "long " * 60 + "end")
    Output().table(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "all is well",
        "      name  result",
        "pass  a     short",
        "warn  b     " + "long " * 60 + "end",
        "the end",
    ]


def test_layouts(terminal: None, width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A row that fits has one line; then the last text is wrapped; then texts are below."""

    def lines(*rows: tuple[str, ...]) -> list[str]:
        table = Table("name", "kind", "text", box=None)
        for row in rows:
            table.add_row(*row)
        Output().table(table)
        return capsys.readouterr().out.splitlines()

    assert lines(("a", "b", "c")) == ["name  kind  text", "a     b     c"]
    wrapped = lines(("a", "b", "word " * 40))
    assert len(wrapped) > 2 and all(line.startswith(" " * 12 + "word") for line in wrapped[2:])
    name = "n" * (width - 20)
    below = lines((name, "kind", "word " * 40), (name, "", ""))
    assert below[0].split() == ["name", "kind"] and below[1].split() == [name, "kind"]
    assert below[2].startswith("    text: word") and below[-1] == name


def test_foreign_text(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Wide and foreign characters count as the terminal shows them; control characters are escaped."""
    table = Table("name", "text", box=None)
    table.add_row("\u6f22\u5b57", Text("a \x1b[2J " * 40))
    table.add_row("[bold]x[/bold]", "")
    Output().table(table)
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out and "\\x1b[2J" in out
    assert re.search(r"^\u6f22\u5b57  a ", out, re.MULTILINE) and re.search(r"^x$", out, re.MULTILINE)


def test_empty(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(Table("name", "text", box=None))
    Output(as_json=True).table(Table("name"))
    assert capsys.readouterr().out == "name  text\n"
