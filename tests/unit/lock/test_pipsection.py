"""The pip section: requirements files named by ``-r``, and what cannot be locked."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import ConfigError
from builder.lock.environment import read_environment
from builder.lock.pipsection import MAX_FILES, MAX_NESTED
from builder.lock.spec import Environment

START = "channels: [c]\ndependencies:\n  - python\n  - pip:\n"


def read(folder: Path, *lines: str) -> Environment:
    """The environment of a pip section with these lines; the first one is line 5 of the file."""
    path = folder / "environment.yml"
    path.write_text(START + "".join(f"    - {line}\n" for line in lines))
    return read_environment(path, "linux-64")


def refusal(folder: Path, *lines: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(folder, *lines)
    assert caught.value.hint
    return caught.value


def test_requirements_files(tmp_path: Path) -> None:
    """They are nested, relative to the file that names them, and their options count."""
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "\N{BYTE ORDER MARK}# mine\nnumpy>=1.26  # a comment\n\n-r more/gpu.txt\n"
        "scipy>=1, \\\n  <2\n--extra-index-url=https://a.example/simple\nx @ https://h.example/x-1-py3-none-any.whl#sha256=0\n"
    )
    (tmp_path / "more" / "gpu.txt").write_text("torch==2.4\n--find-links ../wheels\n-f https://b.example/w\n")
    found = read(tmp_path, "-r requirements.txt", "rich")
    assert [spec.text for spec in found.pip] == [
        "numpy>=1.26",
        "torch==2.4",
        "scipy>=1, <2",
        "x @ https://h.example/x-1-py3-none-any.whl#sha256=0",
        "rich",
    ]
    assert [spec.where for spec in found.pip[:3]] == [
        f"{tmp_path}/requirements.txt:2",
        f"{tmp_path}/more/gpu.txt:1",
        f"{tmp_path}/requirements.txt:5",
    ]
    assert found.extra_index_urls == ("https://a.example/simple",)
    assert found.find_links == ("wheels", "https://b.example/w")
    assert read(tmp_path, "-rmore/gpu.txt").pip[0].name == "torch"


def test_file_that_names_itself(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r b.txt\n")
    (tmp_path / "b.txt").write_text("rich\n-r ./a.txt\n")
    error = refusal(tmp_path, "-r a.txt")
    assert error.message == f"{tmp_path}/b.txt:2: -r ./a.txt: {tmp_path}/a.txt names itself"


def test_bounds(tmp_path: Path) -> None:
    """Neither many levels nor many files."""
    for number in range(MAX_NESTED + 1):
        (tmp_path / f"n{number}.txt").write_text(f"-r n{number + 1}.txt\n")
    assert (
        f"n{MAX_NESTED - 1}.txt:1: -r n{MAX_NESTED}.txt: more than" in refusal(tmp_path, "-r n0.txt").message
    )
    (tmp_path / "empty.txt").write_text("")
    assert "more than" in refusal(tmp_path, *["-r empty.txt"] * (MAX_FILES + 1)).message


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (
            "-r requirments.txt",
            "-r requirments.txt: {folder}/requirments.txt does not exist",
            "correct the name; it is relative to {folder}",
        ),
        ("-r https://h.example/r.txt", "has to be on this machine", "download it"),
        ("-r", "-r: not supported here", "write a value: -r VALUE"),
        (
            "-e .",
            "an editable package cannot be locked: -e .",
            "build its wheel: pip wheel --no-deps -w wheels .; then write '- --find-links wheels' and ",
        ),
        (
            "git+https://host.example/me/tool.git",
            "is not a pip requirement",
            "pip wheel --no-deps -w wheels git+https://host.example/me/tool.git; then",
        ),
        (
            "tool @ git+https://host.example/me/tool.git",
            "is not the URL of a wheel",
            "pip wheel --no-deps -w wheels git+https://host.example/me/tool.git; then write "
            "'- --find-links wheels' and '- tool' in the pip section",
        ),
        ("./tool", "'./tool' is not a pip requirement", "pip wheel --no-deps -w wheels ./tool; then"),
        ("numpy=1.26", "'numpy=1.26' is not a pip requirement", "two equals signs: numpy==1.26.*"),
        ("numpy = 1.26.4", "'numpy = 1.26.4' is not a pip requirement", "two equals signs: numpy==1.26.4"),
        ("pip install rich", "is not a pip requirement", "write the requirement alone: rich"),
        ("rich==13 --hash=sha256:aa", "--hash: not supported here", "uv export --no-hashes"),
        ("-c limits.txt", "-c: not supported here", "write the constraints as requirements"),
        ("--pre", "--pre: not supported here", "name the version that you want: NAME==2.0rc1"),
        ("--frobnicate", "--frobnicate: not supported here", "supported options, each with one value: -i,"),
    ],
)
def test_mistakes(tmp_path: Path, line: str, message: str, hint: str) -> None:
    """In the section and in a requirements file alike, each with its own file and line."""
    if not line.startswith("-r "):
        (tmp_path / "r.txt").write_text(f"\n{line}\n")
        error = refusal(tmp_path, "-r r.txt")
        assert error.message.startswith(f"{tmp_path}/r.txt:2: ") and message in error.message
    error = refusal(tmp_path, line)
    assert error.message.startswith(f"{tmp_path}/environment.yml:5: ")
    assert message.replace("{folder}", str(tmp_path)) in error.message
    assert hint.replace("{folder}", str(tmp_path)) in error.hint


def test_outside_of_the_project(tmp_path: Path) -> None:
    """No line of another file of the machine is read: messages show lines."""
    folder = tmp_path / "project/environments"
    folder.mkdir(parents=True)
    (tmp_path / "secret").write_text("PASSWORD=S3CR3T\n")
    (folder / "link.txt").symlink_to(tmp_path / "secret")
    (folder.parent / "requirements.txt").write_text("rich\n")
    for name in ("/proc/self/environ", "../../secret", str(tmp_path / "secret"), "link.txt"):
        error = refusal(folder, f"-r {name}")
        assert "is outside of the project" in error.message and "S3CR3T" not in str(error)
    path = folder / "environment.yml"
    path.write_text("channels: [c]\ndependencies:\n- pip:\n  - -r ../requirements.txt\n")
    assert [spec.name for spec in read_environment(path, "linux-64", folder.parent).pip] == ["rich"]
