"""Shell texts: quoting, joining and expanding."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.core.errors import RunnerError
from builder.deliver.site.shell import (
    ShellText,
    command_line,
    expand,
    from_user,
    join,
    map_literal,
    quote,
)


def by_bash(line: str, shell: str = "bash", **env: str) -> list[str]:
    """Returns the words that a shell reads from a line."""
    done = subprocess.run(
        [shell, "-c", f"printf '%s\\0' {line}"],
        capture_output=True,
        env={"PATH": os.environ["PATH"], **env},
        check=True,
    )
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12), min_size=1, max_size=5
    )
)
def test_command_line(words: list[str]) -> None:
    """bash reads exactly the original words."""
    assert by_bash(command_line(words)) == words


@settings(max_examples=40, deadline=None)
@given(st.text("aB1 $`\\\"'!{}*~;&|\n", max_size=20), st.text("x y*$`\"\\'", max_size=8))
def test_quote_and_expand(literal: str, value: str) -> None:
    """Variables are replaced, and nothing else is."""
    word = join(literal, ShellText("${V}"), literal)
    assert by_bash(quote(word), V=value) == [literal + value + literal]
    assert expand(word, {"V": value}) == literal + value + literal


def test_name_ends_at_join() -> None:
    """Text after a variable does not become part of its name."""
    assert join(ShellText("$A"), "_x") == "${A}_x"
    assert join("a", ShellText("$A"), "", ShellText("b"), ShellText("$$A"), "c") == "a${A}b$$Ac"
    assert join(ShellText("$A"), "/x", ShellText("$B"), "ü") == "$A/x$Bü"
    assert by_bash(quote(join(ShellText("$A"), "ü")), A="1") == ["1ü"]


def test_escaped_dollar_signs() -> None:
    """In a shell text, two dollar signs are a literal one."""
    assert quote(ShellText("a$$b")) == '"a\\$b"'
    assert by_bash(quote(ShellText("$$V $V")), V="x") == ["$V x"]
    assert map_literal(ShellText("a$$b$Va"), str.upper) == "A$$B$Va"


def test_from_user() -> None:
    """Paths can contain variables; other uses of $ are literal."""
    assert isinstance(from_user("$SCRATCH/x"), ShellText)
    assert not isinstance(from_user("/x/$(id)"), ShellText)
    assert by_bash(quote(from_user("/x/$(id)"))) == ["/x/$(id)"]


def test_expand_unset_variable() -> None:
    with pytest.raises(RunnerError, match=r"\$SLURM_JOB_ID is not set") as caught:
        expand(ShellText("/tmp/$SLURM_JOB_ID"), {})
    assert "builder job TARGET --interactive" in caught.value.hint
