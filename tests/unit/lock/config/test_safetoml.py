"""The reader of TOML: what a hostile text can do, and that real texts are read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tomli

from builder.lock.tomlfile import MAX_TABLES, loads
from tests.support.programs import run_program

CLONE = Path(__file__).parents[4]
PARTS = 60_000
#: Statements of 60,000 tables each.
BOMBS = {
    "key": "a." * PARTS + "a = 1",
    "table": f"[{'a.' * PARTS}a]",
    "array": f"[[{'a.' * PARTS}a]]",
    "inline": f"x = {{{'a.' * PARTS}a = 1}}",
    "blanks": "a . " * PARTS + "a = 1",
    "tabs": "a\t.\t" * PARTS + "a = 1",
    "quoted": '"a.b".' * PARTS + "a = 1",
    "literal": "'a.b'." * PARTS + "a = 1",
    "empty": "''." * PARTS + "a = 1",
    "numbers": "1." * PARTS + "2 = 1",
}
#: What comes before a bomb, so that it looks like a part of a string or comment.
DISGUISES = (
    *(
        'x = """"""\n',
        'x = """a""""\n',
        'x = """a"""""\n',
        'x = """\\""""\n',
        'x = """"a"""\n',
        'x = """""a"""\n',
    ),
    *("x = ''''''\n", "x = '''a''''\n", "x = '''a'''''\n", "x = '''\\'''\n", "x = ''''a'''\n"),
    *('x = "\\""\n', "x = '\\'\n", 'x = "\'"\n', "x = '\"'\n", 'x = "\\\\"\n', 'x = 1 # "\n', "# '''\n"),
    *('x = ["""\n""", \'#\']\r\n', '"x\'" = 1\n', "'x\"' = '''\n'''\n", 'x = "\\u0022" #"""\n'),
)


def problem(text: str) -> str:
    with pytest.raises(ValueError) as caught:
        loads(text)
    return str(caught.value)


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=list(BOMBS))
def test_long_key(bomb: str) -> None:
    assert problem(bomb) == "a key has more than 100 parts"


@pytest.mark.parametrize("disguise", DISGUISES)
def test_disguised(disguise: str) -> None:
    """Strings and comments end where they end for tomli."""
    assert tomli.loads(disguise) is not None
    assert problem(disguise + BOMBS["key"]) == "a key has more than 100 parts"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("".join(f"[a{number}]\n" for number in range(MAX_TABLES + 1)), "more than 200000 tables"),
        ("".join(f"a{number}.b.c=1\n" for number in range(MAX_TABLES // 2 + 1)), "more than 200000 tables"),
        ("a = " + "[" * 100_000, "levels deep"),
        ("a = " + "[" * 150 + "]" * 150, "levels deep"),
        ("a = " + "{a=" * 150 + "1" + "}" * 150, "levels deep"),
        ("a." * 90 + "a = {" + "a." * 90 + "a = 1}", "levels deep"),
        ("a = 1" + "0" * 10_000, "4300 digits"),
        ("a = ", "Invalid value"),
        ("a = '''" + "a.'" * 100_000, "Expected"),
    ],
    ids=["headers", "keys", "open", "lists", "inline", "both", "number", "nothing", "unclosed"],
)
def test_bounds(text: str, words: str) -> None:
    assert words in problem(text)


def test_real_texts() -> None:
    """Dots in names, strings, numbers and comments are no parts of a key."""
    dots = "a." * 1000
    text = (
        f'"{dots}" = "{dots}" # {dots}\n"a.b"."c.d" = 1.5\n'
        f'x = [{"1.5, " * 1000}]\ny = \'\'\'\n{dots}"\'\'\'\nz = """{dots}\\\n {dots}"""\n'
        f"t = {{\n  a.b = 2026-11-24T10:00:00.5Z,\n}}\n[tool.'{dots}'.\"{dots}\"]\nlong-name_1.b = '{dots}'\n"
    )
    found = loads(text)
    assert found == tomli.loads(text)
    assert found[dots] == dots and found["a.b"] == {"c.d": 1.5} and len(found["x"]) == 1000
    key = ".".join("a" * 99)
    assert loads(f"{key} = 1") == tomli.loads(f"{key} = 1")


@pytest.mark.parametrize(
    "program",
    [
        "from builder.cli.start.found import candidates; candidates(Path())",
        "from builder.lock.manifests import read_manifest; read_manifest(Path('pyproject.toml'), 'linux-64')",
        "from builder.lock.formats.common import read_toml; read_toml(Path('pyproject.toml'))",
        "from builder.build.wheels.backend import read_backend; read_backend(Path(), 'x')",
        "from builder.build.wheels.backend import project_name as n; sys.exit(5 if n(Path()) is None else 1)",
    ],
    ids=["init", "environment", "lock", "source", "name"],
)
def test_readers(tmp_path: Path, program: str) -> None:
    """Each reader of a stranger's TOML refuses a bomb of 120 kB within 1 GiB of address space."""
    for name in ("pyproject.toml", "pixi.toml"):
        (tmp_path / name).write_text(BOMBS["key"])
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom builder.core.errors import BuilderError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        f"try:\n    {program}\nexcept BuilderError as e:\n    print(e.message)\n    sys.exit(5)\n"
    )
    env = {"PYTHONPATH": str(CLONE), "HOME": str(tmp_path)}
    done = run_program([sys.executable, "-c", code], env, check=False, cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    assert "project_name" in program or "a key has more than 100 parts" in done.stdout
