"""The pip section: requirements files, constraints, options, sources, and what cannot be locked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pip._internal.req import req_file

from builder.core.datafiles import table
from builder.core.errors import ConfigError
from builder.lock import pipsection
from builder.lock.environment import read_environment
from builder.lock.pipsection import MAX_FILES, MAX_NESTED, PipSection
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
        (
            "-r https://h.example/x/r.txt",
            "has to be on this machine",
            "download the file beside the one that names it, commit it, and write -r r.txt",
        ),
        (
            "-r https://h.example/x/r.txt --no-deps",
            "--no-deps is not supported here",
            "remove --no-deps: builder always locks the dependencies of packages, too; download the file "
            "beside the one that names it, commit it, and write -r r.txt",
        ),
        ("-f dist wheels", "wheels is not supported here", "write one option with one value per line"),
        ("rich --config-settings a=b", "--config-settings: not supported here", "pip: {build: {NAME:"),
        ("-e", "-e names no folder or repository", "write -e FOLDER"),
        ("./dist/x-1.0-py3-none-any.whl", "is a wheel on this machine", "write x==1.0, and in a"),
        ("./dist/x-1.0-py3-none-any.whl", "is a wheel on this machine", "--find-links dist"),
        ("./x.whl", "is a wheel on this machine", "write x==VERSION, and in a line above it the folder: --"),
        (
            "six=1.16.0=py_0",
            "is not a pip requirement",
            "conda list --export wrote this; builder reads: conda",
        ),
        ("_libgcc_mutex=0.1=main", "is not a pip requirement", "conda list --explicit > explicit.txt"),
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


def test_sources(tmp_path: Path) -> None:
    """From the section and from requirements files; folders are relative to the environment file."""
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/r.txt").write_text("-e .[dev]   # mine\nt @ git+https://h.example/t@v1\n")
    found = read(tmp_path, "-r more/r.txt", "rich")
    own, tool = found.sources
    assert (own.kind, own.name, own.url, own.extras) == ("local", None, ".", ("dev",))
    assert own.editable and own.where == f"{tmp_path}/more/r.txt:1" and own.text == "-e .[dev]"
    assert (tool.kind, tool.name, tool.url, tool.revision) == ("git", "t", "https://h.example/t", "v1")
    assert [spec.name for spec in found.pip] == ["rich"]
    assert found.requested == {"python", "pip", "rich", "t"}


def test_path_in_a_requirements_file(tmp_path: Path) -> None:
    """It starts at the environment file, as for conda; if there is no project, at its own file."""
    for folder in ("", "libs/"):
        (tmp_path / folder / "pkg").mkdir(parents=True)
        (tmp_path / folder / "pkg/setup.py").write_text("")
    (tmp_path / "libs/own").mkdir()
    (tmp_path / "libs/own/setup.py").write_text("")
    (tmp_path / "libs/r.txt").write_text("./pkg\n-e ./own\n")
    assert [source.url for source in read(tmp_path, "-r libs/r.txt").sources] == ["pkg", "libs/own"]


def test_hashes(tmp_path: Path) -> None:
    """They are no part of the requirement's text."""
    one, two = "a" * 64, "b" * 96
    (tmp_path / "r.txt").write_text(
        f"rich==13 \\\n  --hash=sha256:{one} \\\n  --hash sha384:{two}\n--require-hashes\n"
        f"https://h.example/t-1.tar.gz --hash=sha256:{one}\n"
    )
    found = read(tmp_path, "-r r.txt")
    assert found.pip[0].text == "rich==13" and found.pip[0].hashes == (f"sha256:{one}", f"sha384:{two}")
    assert found.sources[0].sha256 == one and found.sources[0].name == "t"
    error = refusal(tmp_path, f"https://h.example/t-1.tar.gz --hash=sha256:{one} --hash=sha256:{'c' * 64}")
    assert "2 hashes with sha256 for one archive" in error.message


def test_constraints(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("# limits\nnumpy<2\n-r more.txt\n")
    (tmp_path / "more.txt").write_text("scipy==1.10 ; python_version < '3.12'\n")
    found = read(tmp_path, "-c c.txt", "numpy")
    assert [spec.text for spec in found.constraints] == ["numpy<2", "scipy==1.10 ; python_version < '3.12'"]
    assert [spec.name for spec in found.pip] == ["numpy"]
    for line in ("numpy[extra]<2", "git+https://h.example/a", "-e git+https://h.example/a"):
        (tmp_path / "c.txt").write_text(f"{line}\n")
        assert f"{tmp_path}/c.txt:1: " in refusal(tmp_path, "-c c.txt").message


def test_binary_options(tmp_path: Path) -> None:
    found = read(tmp_path, "--no-binary mpi4py,H5Py", "'--only-binary=:all:'", "--prefer-binary", "rich")
    assert found.no_binary == ("mpi4py", "h5py") and found.only_binary == (":all:",)
    assert read(tmp_path, "--no-binary a", "'--no-binary :none:'").no_binary == ()


#: A value of each option of pip that takes one.
VALUES = {"file": "r.txt", "constraints": "r.txt", "editable": "git+https://h.example/a", "links": "w"}


@pytest.mark.parametrize(
    "option",
    sorted(
        {
            name
            for make in (*req_file.SUPPORTED_OPTIONS, *req_file.SUPPORTED_OPTIONS_REQ)
            for name in (*make()._long_opts, *make()._short_opts)
        }
        - {"--hash", "--pypi-url"}  # test_hashes; an old name of --index-url
    ),
)
def test_options_of_pip(tmp_path: Path, option: str) -> None:
    """Each one that pip takes in a file is read, cannot change the result, or is an error with a way out."""
    (tmp_path / "r.txt").write_text("idna==3\n")
    rule = table(pipsection.__file__, "pipoptions.yaml")[option]
    line = f"{option} {VALUES.get(rule.get('read', ''), 'https://h.example/x')}"
    for is_lock in (False, True):
        section = PipSection(tmp_path / "requirements.txt", tmp_path, is_lock=is_lock)
        before = replace(section)
        if "read" in rule:
            section.read(line, "here")
            assert section != PipSection(section.path, section.root, is_lock=is_lock)
        elif rule.get("ignored") == "always" or (is_lock and "ignored" in rule):
            section.read(line, "here")
            assert section == before
        else:
            with pytest.raises(ConfigError) as caught:
                section.read(f"a==1 {line}" if option.startswith("--c") else line, "here")
            assert caught.value.message.startswith("here: ") and caught.value.hint == rule["hint"]


def test_quoted_marker(tmp_path: Path) -> None:
    """Quotation marks around the whole line are removed, and not the last one of a marker."""
    for line in ("-e git+https://h.example/a ; os_name == 'nt'", "'-e \"git+https://h.example/a\"'"):
        (source,) = read(tmp_path, line).sources
        assert source.url == "https://h.example/a" and source.marker in ("", "os_name == 'nt'")


def test_editable_with_a_name(tmp_path: Path) -> None:
    """As pip 26.3 reads it."""
    (source,) = read(tmp_path, "-e name[extra] @ git+https://h.example/a@v1 ; os_name == 'posix'").sources
    assert (source.name, source.extras, source.editable) == ("name", ("extra",), True)
    assert (source.revision, source.marker) == ("v1", 'os_name == "posix"')


@pytest.mark.parametrize("option", ["--index-url", "--extra-index-url"])
def test_index_is_a_folder(tmp_path: Path, option: str) -> None:
    error = refusal(tmp_path, f"{option} ./simple")
    assert "the index './simple' is no URL" in error.message and "file:///FOLDER" in error.hint


def test_fragment_is_no_selector(tmp_path: Path) -> None:
    (source,) = read(
        tmp_path, "git+https://h.example/r.git@v1#egg=name[extra]&subdirectory=py  # [linux]"
    ).sources
    assert (source.name, source.extras, source.subdirectory) == ("name", ("extra",), "py")


def test_utf_16(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_bytes("rich\r\nidna\r\n".encode("utf-16"))
    assert [spec.name for spec in read(tmp_path, "-r r.txt").pip] == ["rich", "idna"]
    for encoding in ("utf-32", "latin-1"):  # pip reads these, too
        (tmp_path / "r.txt").write_bytes("# coding: latin-1\nrich  # \xfc\n".encode(encoding))
        assert f"{tmp_path}/r.txt" in refusal(tmp_path, "-r r.txt").message
