"""Requirements files: what an environment file can have, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import ConfigError
from builder.start.environment import environment_text
from builder.start.requirements import read_requirements


def test_read(tmp_path: Path) -> None:
    """Comments, continuations, hashes, markers and options are read as pip reads them."""
    path = tmp_path / "requirements.txt"
    path.write_text(
        "\N{BYTE ORDER MARK}# packages\n"
        "polars >=1  # fast\n"
        "rich==13.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n"
        'colorama ; sys_platform == "win32"\n'
        "--extra-index-url=https://example.org/simple\n-i https://example.org/main\n-f wheels\n"
        "big @ https://example.org/big-1.0-py3-none-any.whl#sha256=00\n"
    )
    found = read_requirements(path)
    assert found.pip == [
        "polars >=1",
        "rich==13.0",
        'colorama ; sys_platform == "win32"',
        "big @ https://example.org/big-1.0-py3-none-any.whl#sha256=00",
    ]
    assert found.options == [
        "--extra-index-url https://example.org/simple",
        "--index-url https://example.org/main",
        "--find-links wheels",
    ]
    assert not found.left_out and found.is_file


def test_comment_ends_with_backslash(tmp_path: Path) -> None:
    """A comment is not continued: init reads the line below, as builder lock and pip do."""
    path = tmp_path / "requirements.txt"
    path.write_text("# was: rich \\\npolars\n-e 'not closed\n")
    found = read_requirements(path)
    assert found.pip == ["polars"]
    assert found.left_out[0][0] == "-e 'not closed" and "it names no folder" in found.left_out[0][1]


def test_left_out(tmp_path: Path) -> None:
    """What cannot be locked is reported, never dropped."""
    path = tmp_path / "requirements.txt"
    lines = ["-e .", "./local", "x @ file:///x", "git+ftp://example.org/x", "--pre"]
    path.write_text("\n".join(["numpy", *lines]))
    found = read_requirements(path)
    assert found.pip == ["numpy"] and [line for line, _ in found.left_out] == lines
    assert found.left_out[0][1].startswith(". has neither pyproject.toml nor setup.py")


def test_sources(tmp_path: Path) -> None:
    """Repositories, archives and folders of the project; the environment file is in the project folder."""
    for name in ("setup.py", "libs/one/pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    path = tmp_path / "libs/dev.txt"
    git = "git+https://example.org/x.git@v1"
    path.write_text(f"-e ..[dev]\n./one\n{git}\n-c limits.txt\n--no-binary x\n--prefer-binary\n")
    found = read_requirements(path, tmp_path)
    assert found.pip == ["-e .[dev]", "./libs/one", git] and found.is_file and not found.left_out
    assert found.options == ["--constraint libs/limits.txt", "--no-binary x"]


def test_included_files(tmp_path: Path) -> None:
    """``-r`` is read from the folder of the file that has it; a circle is an error."""
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text("a\n-r more/b.txt\n")
    (tmp_path / "more" / "b.txt").write_text("-rc.txt\n--find-links wheels\n")
    (tmp_path / "more" / "c.txt").write_text("c\n")
    found = read_requirements(tmp_path / "requirements.txt")
    assert found.pip == ["a", "c"] and found.is_file
    assert found.options == ["--find-links more/wheels"]
    (tmp_path / "more" / "c.txt").write_text("-r b.txt\n")
    with pytest.raises(ConfigError, match="include each other"):
        read_requirements(tmp_path / "requirements.txt")
    (tmp_path / "more" / "c.txt").unlink()
    with pytest.raises(ConfigError, match=r"c\.txt: no such requirements file"):
        read_requirements(tmp_path / "requirements.txt")


def test_file_in_a_subfolder(tmp_path: Path) -> None:
    """The environment file is in the project folder: it names the file, and its folders, from there."""
    path = tmp_path / "requirements" / "dev.txt"
    path.parent.mkdir()
    path.write_text("rich\n-f wheels\n-f $HOME/w\n")
    found = read_requirements(path, tmp_path)
    assert found.is_file and found.options == [
        "--find-links requirements/wheels",
        "--find-links $HOME/w",
    ]
    assert "- -r requirements/dev.txt\n" in environment_text(found, "3.12", tmp_path)
    outside = read_requirements(path, tmp_path / "project")
    assert not outside.is_file, "the project cannot name a file outside of it"


def test_hostile_includes(tmp_path: Path) -> None:
    """Files outside of the project are not read, and not more than a hundred files."""
    (tmp_path / "project/more").mkdir(parents=True)
    (tmp_path / "secret").write_text("S3CR3T=1\n")
    path = tmp_path / "project/more/dev.txt"
    (path.parent.parent / "base.txt").write_text("rich\n")
    path.write_text("-r ../base.txt\n")
    assert read_requirements(path, path.parent.parent).pip == ["rich"]
    for name in ("../../secret", "/proc/self/environ"):
        path.write_text(f"-r {name}\n")
        with pytest.raises(ConfigError, match="outside of the project"):
            read_requirements(path, path.parent.parent)
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"-r {number + 1}.txt\n" * 10)
    (tmp_path / "4.txt").write_text("a\n")
    with pytest.raises(ConfigError, match="more than 100 requirements files"):
        read_requirements(tmp_path / "0.txt")
