"""What is left out of ``files:``, and which files are taken for secrets."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from builder.build.image.ignore import secret_note
from builder.build.image.recipe_files import recipe_entries
from builder.core.errors import ConfigError
from builder.formats.trees.ignore import IGNORE_FILE, GitIgnore, Ignore
from tests.support.image_kit import recipe

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n"


def write(root: Path, *names: str, text: str = "x") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def copied(root: Path, *sources: str) -> set[str]:
    """The files that are in the image, below the targets."""
    files = [{"source": source, "target": f"/app{i or ''}"} for i, source in enumerate(sources or ["."])]
    entries = recipe_entries(recipe(root, files=files))
    return {entry.path.partition("/")[2] for entry in entries if entry.kind != "dir"}


def note(root: Path, source: str = ".") -> str:
    """The note about secrets that are left out; empty if there are none."""
    target = recipe(root, files=[{"source": source, "target": "/app"}])
    secrets: list[Path] = []
    recipe_entries(target, secrets)
    return secret_note(target, secrets) if secrets else ""


def test_always(tmp_path: Path) -> None:
    """What tools and builder itself write is never swallowed with a whole folder."""
    write(tmp_path, "train.py", "src/dist/code.py", "src/reports/code.py", "src/data/x.csv")
    write(tmp_path, "dist/index.json", "reports/t/1.json", ".cache/a", ".venv/bin/python", ".git/HEAD")
    write(tmp_path, "src/__pycache__/a.pyc", ".builder/a", "src/.venv/b", ".DS_Store")
    write(tmp_path, "out/oci-layout", "out/blobs/x", "env/pyvenv.cfg", "env/lib/x", "c/CACHEDIR.TAG", "c/d/e")
    write(tmp_path, "builder-cache/blobs/sha256/abc", "builder-cache/logs/x", "recipes/.schema.json")
    assert copied(tmp_path) == {"train.py", "src/dist/code.py", "src/reports/code.py", "src/data/x.csv"}


def test_builderignore(tmp_path: Path) -> None:
    """Patterns have gitignore's meaning and are relative to the project."""
    write(tmp_path, "a.csv", "keep.csv", "app/b.csv", "app/data/c.txt", "data/d.txt", "app/.env", "x.py")
    (tmp_path / IGNORE_FILE).write_text("# data\n*.csv\n!keep.csv\n/data/\n\n.env\n")
    assert copied(tmp_path) == {"keep.csv", "app/data/c.txt", "x.py"}
    assert copied(tmp_path, "app") == {"data/c.txt"}
    assert note(tmp_path) == ""


def test_rule(tmp_path: Path) -> None:
    """A rule is shown with its line, also below empty lines."""
    (tmp_path / IGNORE_FILE).write_text("\n# data\n\n*.csv\n")
    rule = Ignore(tmp_path).rule_for(tmp_path / "a.csv", is_folder=False)
    assert rule == f"{tmp_path / IGNORE_FILE}:4: *.csv"


def test_odd_patterns(tmp_path: Path) -> None:
    """A range that ends before it begins names nothing in .gitignore, as for git; .builderignore is wrong."""
    write(tmp_path, ".gitignore", text="[b-a]\n*.csv\n")
    assert GitIgnore.of(tmp_path).leaves_out(tmp_path / "a.csv", is_folder=False)
    write(tmp_path, IGNORE_FILE, text="\n[b-a]\n")
    with pytest.raises(ConfigError, match=r":2: '\[b-a\]' is not a pattern"):
        Ignore(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("data[!0-9]raw", "data/raw"),
        ("data[!0-9]raw", "data-raw"),
        ("/d[^x]f", "d/f"),
        ("*[!]x]y", "q/y"),
        ("*[!x]*[!x]y", "qrsy"),
        ("/a/**/b[!x]c", "a/q/b/c"),
    ],
)
def test_negated_brackets(tmp_path: Path, pattern: str, path: str) -> None:
    """They are no slash, as git's own answer shows (findings/pathspec-negated-brackets.sh)."""
    write(tmp_path, path)
    write(tmp_path, ".gitignore", text=pattern)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    asked = subprocess.run(["git", "-C", tmp_path, "check-ignore", "--quiet", path])
    assert GitIgnore.of(tmp_path).leaves_out(tmp_path / path, is_folder=False) == (asked.returncode == 0)


def test_contradiction(tmp_path: Path) -> None:
    """A source that the patterns leave out is an error that names both lines."""
    write(tmp_path, "data/set/x.txt", "a.csv")
    (tmp_path / IGNORE_FILE).write_text("*.csv\n/data/\n")
    for source, rule in (("data", "2: /data/"), ("data/set", "2: /data/"), ("a.csv", r"1: \*.csv")):
        with pytest.raises(
            ConfigError, match=rf"files\[0\]: source '{source}' is left out by .*ignore:{rule}"
        ):
            copied(tmp_path, source)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"ok\n!\n", ":2: '!' is not a pattern"), (b"\xff\n", "not UTF-8"), (b"a\n" * (1 << 20), "more than")],
)
def test_invalid_patterns(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / IGNORE_FILE).write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        copied(tmp_path)


@pytest.mark.parametrize(
    "name",
    [".env", "app/.env.production", ".netrc", "keys/id_rsa", "registry.profile", ".aws/credentials", "k.p12"],
)
def test_secret(tmp_path: Path, name: str) -> None:
    """It is not in the image; the note names the file and the line that copies it; that line works."""
    write(tmp_path, name, "train.py")
    assert copied(tmp_path) == {"train.py"}
    found = note(tmp_path)
    assert f"files: {name} looks like a secret and is left out" in found and f"!/{name} into" in found
    (tmp_path / IGNORE_FILE).write_text(f"!/{name}\n")
    assert note(tmp_path) == "" and copied(tmp_path) == {"train.py", name}


def test_named_secret(tmp_path: Path) -> None:
    """A source that looks like a secret itself is an error with the line that allows it."""
    write(tmp_path, "conf/.env")
    with pytest.raises(ConfigError, match=r"files\[0\]: source 'conf/.env' looks like a secret") as caught:
        copied(tmp_path, "conf/.env")
    assert f"write the line !/conf/.env into {tmp_path / IGNORE_FILE}" in caught.value.hint
    (tmp_path / IGNORE_FILE).write_text("!/conf/.env\n")
    assert copied(tmp_path, "conf/.env") == {""}


def test_no_secret(tmp_path: Path) -> None:
    """Certificates and examples are none; a private key is one by its content."""
    write(tmp_path, ".env.example", "cacert.pem", "config.json", "environment.yml")
    assert note(tmp_path) == "" and note(tmp_path, "cacert.pem") == ""
    write(tmp_path, "host.key", text=KEY)
    assert "host.key looks like a secret" in note(tmp_path)
