"""builder's own files in an image: the entry point (run by real shells), the lock without secrets, the recipe's files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from builder.errors import ConfigError
from builder.image.files import entrypoint, system_entries, whiteout_entries
from builder.image.smoke_program import smoke_program
from builder.layers.compress import write_layer
from builder.layers.entry import Entry, Inline, LinkContext
from builder.store.blobs import Store
from builder.trees.rootfs import unpack
from tests.support.image_kit import EPOCH, image, layer, member, recipe

DASH = shutil.which("dash") or "/bin/sh"


def context(prefix: str = "/opt/conda") -> LinkContext:
    return LinkContext(prefix, "3.11", "lib/python3.11/site-packages")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    folder = tmp_path / "conda with blank"
    (folder / "bin").mkdir(parents=True)
    (folder / "etc/conda/activate.d").mkdir(parents=True)
    return folder


def script(tmp_path: Path, prefix: Path, scripts: dict[str, str] | None = None, **more) -> Path:
    """The entry point as a file, with activation scripts in the prefix."""
    paths = []
    for name, text in (scripts or {}).items():
        path = prefix / "etc/conda/activate.d" / name
        path.write_text(text)
        paths.append(str(path))
    text = entrypoint(recipe(tmp_path, **more), context(str(prefix)), paths)
    target = tmp_path / "entrypoint"
    target.write_text(
        text.replace("/opt/builder/entrypoint", str(target))
    )  # where it re-runs itself under bash
    target.chmod(0o755)
    return target


def run(shell: list[str], file: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    environ = {"PATH": "/usr/bin:/bin", **(env or {})}
    return subprocess.run(
        [*shell, str(file), *arguments], env=environ, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def no_bash(tmp_path: Path) -> str:
    """A PATH without bash."""
    folder = tmp_path / "no-bash"
    folder.mkdir()
    for tool in ("sh", "env", "printenv"):
        (folder / tool).symlink_to(DASH if tool == "sh" else shutil.which(tool) or "")
    return str(folder)


def test_sets_the_environment_up_and_execs_its_arguments(tmp_path: Path, prefix: Path) -> None:
    file = script(tmp_path, prefix)
    out = run(
        [DASH], file, "sh", "-c", 'echo "$CONDA_PREFIX|$PATH|$PYTHONNOUSERSITE|$1"', "x", "two words; $HOME"
    )
    assert out == f"{prefix}|{prefix}/bin:/usr/bin:/bin|1|two words; $HOME\n"


def test_the_host_s_conda_does_not_win(tmp_path: Path, prefix: Path) -> None:
    file = script(tmp_path, prefix)
    out = run(
        [DASH],
        file,
        "printenv",
        "CONDA_PREFIX",
        env={"CONDA_PREFIX": "/home/me/miniforge", "PATH": "/home/me/miniforge/bin:/usr/bin:/bin"},
    )
    assert out == f"{prefix}\n"


def test_running_it_twice_changes_nothing(tmp_path: Path, prefix: Path) -> None:
    file = script(tmp_path, prefix, {"count.sh": 'export COUNT="${COUNT}x"\n'})
    assert (
        run([DASH], file, str(file), "sh", "-c", 'echo "$COUNT $PATH"') == f"x {prefix}/bin:/usr/bin:/bin\n"
    )


def test_no_arguments_run_the_default_command(tmp_path: Path, prefix: Path) -> None:
    assert run([DASH], script(tmp_path, prefix, cmd=["printf", "%s\n", "it's $HOME"])) == "it's $HOME\n"


def test_exit_code_is_the_command_s(tmp_path: Path, prefix: Path) -> None:
    done = subprocess.run([DASH, str(script(tmp_path, prefix)), "sh", "-c", "exit 42"], check=False)
    assert done.returncode == 42


def test_bash_scripts_are_run_by_bash_where_there_is_one(tmp_path: Path, prefix: Path) -> None:
    scripts = {"a.sh": "arr=(one two)\nexport SECOND=${arr[1]}\n", "b.sh": "export PLAIN=1\nset -- lost\n"}
    file = script(tmp_path, prefix, scripts)
    assert run([DASH], file, "sh", "-c", 'echo "$SECOND $PLAIN"') == "two 1\n"


def test_plain_sh_leaves_out_what_it_cannot_parse(tmp_path: Path, prefix: Path, no_bash: str) -> None:
    scripts = {
        "a.sh": "arr=(one two)\nexport SECOND=${arr[1]}\n",
        "b.sh": "export PLAIN=1\n",
        "c.sh": "[[ -n x ]] && export NEVER=1\n",
    }
    file = script(tmp_path, prefix, scripts)
    out = run([DASH], file, "sh", "-c", 'echo "<$SECOND> $PLAIN"', env={"PATH": no_bash})
    assert out == "<> 1\n"


def test_a_script_that_is_gone_does_not_stop_the_command(tmp_path: Path, prefix: Path, no_bash: str) -> None:
    file = script(tmp_path, prefix, {"gone.sh": ""})
    (prefix / "etc/conda/activate.d/gone.sh").unlink()
    assert run([DASH], file, "printenv", "CONDA_DEFAULT_ENV") == "base\n"
    assert run([DASH], file, "printenv", "CONDA_DEFAULT_ENV", env={"PATH": no_bash}) == "base\n"


def test_the_recipe_s_variables_win_over_activation(tmp_path: Path, prefix: Path, no_bash: str) -> None:
    file = script(tmp_path, prefix, {"a.sh": "export MINE=script OTHER=script\n"}, env={"MINE": "recipe"})
    for path in ("/usr/bin:/bin", no_bash):
        assert (
            run([DASH], file, "sh", "-c", 'echo "$MINE $OTHER"', env={"MINE": "docker -e", "PATH": path})
            == "docker -e script\n"
        )


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize(
    "scripts", [(), ("/opt/conda/etc/conda/activate.d/a b.sh", "/opt/conda/etc/conda/activate.d/it's.sh")]
)
def test_shellcheck_finds_nothing(tmp_path: Path, scripts: tuple[str, ...]) -> None:
    text = entrypoint(recipe(env={"A_B": "1", "not-a-name": "2"}), context(), scripts)
    done = subprocess.run(
        ["shellcheck", "-s", "sh", "-e", "SC1090", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def by_path(entries: list[Entry]) -> dict[str, Entry]:
    return {e.path: e for e in entries}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "app/sub/__pycache__").mkdir(parents=True)
    (folder / "app/run.sh").write_text("#!/bin/sh\n")
    (folder / "app/run.sh").chmod(0o700)
    (folder / "app/sub/data.txt").write_text("data")
    (folder / "app/sub/data.txt").chmod(0o600)
    (folder / "app/sub/__pycache__/x.pyc").write_text("")
    (folder / "app/link").symlink_to("sub/data.txt")
    (folder / "train.py").write_text("print(1)\n")
    return folder


def entries(project: Path, *files: dict[str, str], lock: bytes = b"") -> dict[str, Entry]:
    return by_path(system_entries(recipe(project, files=list(files)), lock, context(), ()))


def test_own_files(project: Path) -> None:
    found = entries(project, lock=b"url: https://me:secret@host/t/tk-123/chan/linux-64/a.conda\n")
    assert set(found) == {
        "opt/builder",
        "opt/builder/conda-lock.yml",
        "opt/builder/entrypoint",
        "opt/builder/smoke.py",
    }
    lock = found["opt/builder/conda-lock.yml"].content
    assert isinstance(lock, Inline) and lock.data == b"url: https://host/t/***/chan/linux-64/a.conda\n"
    smoke = found["opt/builder/smoke.py"].content
    assert isinstance(smoke, Inline) and smoke.data == smoke_program()
    assert found["opt/builder/entrypoint"].mode == 0o755


def test_folders_and_files_with_fixed_modes(project: Path) -> None:
    found = entries(
        project,
        {"source": "app", "target": "/app"},
        {"source": "train.py", "target": "/app/"},
        {"source": "train.py", "target": "/x", "mode": "0700"},
    )
    modes = {p: oct(e.mode) for p, e in found.items() if not p.startswith("opt/builder")}
    assert modes == {
        "app": "0o755", "app/link": "0o777", "app/run.sh": "0o755", "app/sub": "0o755", "app/sub/data.txt": "0o644",
        "app/train.py": "0o644", "x": "0o700",
    }  # fmt: skip
    assert found["app/link"].target == "sub/data.txt"


def test_the_modes_of_special_folders_stay(project: Path) -> None:
    found = entries(
        project,
        {"source": "train.py", "target": "/tmp/a.py"},
        {"source": "train.py", "target": "/tmp/b.py"},
        {"source": "train.py", "target": "/root/a.py"},
    )
    assert (found["tmp"].mode, found["root"].mode) == (0o1777, 0o700)
    assert list(found).index("tmp") < list(found).index("tmp/a.py")


def test_a_later_file_takes_the_place_of_an_earlier_one(project: Path, tmp_path: Path) -> None:
    files = [{"source": "train.py", "target": "/a"}, {"source": "app/sub/data.txt", "target": "/a"}]
    store = Store(tmp_path / "cache")
    made = write_layer(
        store,
        system_entries(recipe(project, files=files), b"", context(), ()),
        compression="gzip",
        mtime=EPOCH,
    )
    unpack(image(store, made), tmp_path / "r", store)
    assert (tmp_path / "r/a").read_text() == "data"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"source": "gone.py", "target": "/x"}, r"files\[0\]: .*gone.py does not exist"),
        ({"source": "train.py", "target": "x"}, "not an absolute path"),
        ({"source": "train.py", "target": "/a/../../x"}, "not an absolute path"),
        ({"source": "app", "target": "/"}, "the image's root"),
        ({"source": "train.py", "target": "/lib/x.py"}, "/lib is a symlink"),
        ({"source": "train.py", "target": "/bin"}, "/bin is a symlink"),
        ({"source": "train.py", "target": "/var/run/x"}, "/var/run is a symlink"),
        ({"source": "train.py", "target": "/x", "mode": "rwx"}, "mode 'rwx' is not octal"),
        ({"source": "train.py", "target": "/.wh.etc"}, "deletes files"),
        ({"source": "fifo", "target": "/x"}, "neither file, folder nor symlink"),
    ],
)
def test_bad_files_are_named(project: Path, file: dict[str, str], message: str) -> None:
    os.mkfifo(project / "fifo")
    with pytest.raises(ConfigError, match=message) as caught:
        entries(project, file)
    assert "tiny.yaml" in caught.value.message and caught.value.hint


def test_libraries_beside_merged_folders_are_no_trouble(project: Path) -> None:
    assert "libexec/x" in entries(project, {"source": "train.py", "target": "/libexec/x"})


def test_whiteout_hides_the_conda_of_the_base(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    below = layer(
        store,
        member("opt/conda/bin/conda", b"old"),
        member("opt/conda/bin/python", b"old"),
        member("opt/tool", b"1"),
    )
    bottom = write_layer(store, whiteout_entries("/opt/conda"), compression="gzip", mtime=EPOCH)
    above = layer(store, member("opt/conda/bin/python", b"new"))
    unpack(image(store, below, bottom, above), tmp_path / "r", store)
    assert {str(p.relative_to(tmp_path / "r/opt")) for p in (tmp_path / "r/opt").rglob("*")} == {
        "conda",
        "conda/bin",
        "conda/bin/python",
        "tool",
    }
    assert (tmp_path / "r/opt/conda/bin/python").read_bytes() == b"new"


def test_whiteout_over_nothing_is_harmless(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    unpack(
        image(store, write_layer(store, whiteout_entries("/opt/conda"), compression="gzip", mtime=EPOCH)),
        tmp_path / "r",
        store,
    )
    assert [p.name for p in (tmp_path / "r/opt").iterdir()] == ["conda"] and not list(
        (tmp_path / "r/opt/conda").iterdir()
    )
