"""A command whose script is missing, or whose script is no program."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import UsageError
from builder.deliver.launch.here import bind_folder
from builder.deliver.launch.scripts import check_script
from builder.deliver.site.containers import ContainerRequest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train.py", "src/eval.py", "run.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "run.sh").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "script", "hint"),
    [
        ("python trian.py", "trian.py", "did you mean train.py?"),
        ("python3.12 -u -X dev -Werror trian.py --lr 1", "trian.py", "did you mean train.py?"),
        ("/opt/env/bin/python eval.py", "eval.py", "did you mean src/eval.py"),
        (
            "torchrun --standalone --nproc_per_node 2 trian.py --cfg train.py",
            "trian.py",
            "did you mean train.py?",
        ),
        ("torchrun --standalone trian.py --cfg train.py", "trian.py", "did you mean train.py?"),
        ("bash jobs/start.sh", "jobs/start.sh", "it has: run.sh"),
    ],
)
def test_missing(folder: Path, command: str, script: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_script(command.split(), folder)
    assert caught.value.message == f"{folder} has no {script}" and hint in caught.value.hint


@pytest.mark.parametrize(
    "command",
    [
        "",
        "python",
        "python train.py",
        "python ./src/../train.py",
        "python -m trian.py",
        "python -um trian.py",
        "python -c trian.py",
        "bash -lc trian.sh",
        "python tool new.py",
        "python /app/trian.py",
        "python ~/trian.py",
        "python $HOME/trian.py",
        "python src/$NAME.py",
        "python trian.pyz",
        "touch trian.py",
        "pytest tests/trian.py",
        "./run.sh",
        "rst2html.py page.rst",
        "/app/train.py",
        "torchrun train.py --config trian.py",
    ],
)
def test_no_false_alarm(folder: Path, command: str) -> None:
    """Modules, absolute paths, variables, options, arguments of the script and other programs."""
    check_script(command.split(), folder)


@pytest.mark.parametrize(
    "command", [["bash", "-c", "cd src && python trian.py"], ["python", "a b.py", "c.py"]]
)
def test_words_with_spaces(folder: Path, command: list[str]) -> None:
    check_script(command, folder)


def test_other_folders(folder: Path) -> None:
    """A job may start in the project folder, too."""
    check_script(["python", "eval.py"], folder, folder / "src")


def test_many_options(folder: Path) -> None:
    """The time does not grow with the number of ways to read them."""
    check_script(["python", *["--option", "value"] * 3000, "-", "x"], folder)


@pytest.mark.parametrize(
    ("name", "line"), [("train.py", "python train.py"), ("./train.py", "python ./train.py")]
)
def test_no_program(folder: Path, name: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_script([name, "--lr", "a b"], folder)
    assert caught.value.hint == f"write {line} --lr 'a b'"


def test_where_the_command_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder; --workdir and a mount in the project may have other files."""
    request = ContainerRequest("", ("python", "eval.py"))
    with pytest.raises(UsageError):
        bind_folder(request, folder)
    bind_folder(ContainerRequest("", request.command, workdir="/app"), folder)
    bind_folder(ContainerRequest("", request.command, binds=(f"/data:{folder}/data",)), folder)
    monkeypatch.chdir(folder / "src")
    assert bind_folder(request, folder).workdir == f"{folder}/src"
