"""The runners' own logic, without an engine."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import builder.run.select as run_module
from builder.errors import RunnerError, UsageError
from builder.run import docker as docker_module
from builder.run.base import ImageConfig, Mount, check_mounts, gpu_devices
from builder.run.docker import DockerRunner, _engine
from builder.run.podman import PodmanRunner, _variables
from builder.run.process import TIMED_OUT, execute, reason
from builder.run.select import NAMES, find_runner, runners
from builder.run.userns import parse_ldconfig
from builder.store.blobs import Store
from tests.support.image_kit import image, settings


class Fake:
    def __init__(self, name: str, why: str | None) -> None:
        self.name, self.why = name, why

    def available(self) -> str | None:
        return self.why


def test_the_first_that_works_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = [
        Fake("docker", "no engine"),
        Fake("podman", None),
        Fake("apptainer", None),
        Fake("userns", None),
    ]
    monkeypatch.setattr(run_module, "runners", lambda *a: fakes)
    args = settings(tmp_path), Store(tmp_path)
    assert find_runner(*args).name == "podman"
    assert find_runner(*args, "userns").name == "userns"
    assert find_runner(*args, without=["podman"]).name == "apptainer"
    with pytest.raises(RunnerError, match="docker: no engine"):
        find_runner(*args, "docker")
    with pytest.raises(UsageError, match="'dokcer'"):
        find_runner(*args, "dokcer")


def test_when_nothing_works_every_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        run_module,
        "runners",
        lambda *a: [Fake("docker", "no engine"), Fake("userns", "no user namespaces")],
    )
    with pytest.raises(RunnerError) as e:
        find_runner(settings(tmp_path), Store(tmp_path))
    assert "docker: no engine" in e.value.message and "userns: no user namespaces" in e.value.message
    assert e.value.exit_code == 10


def test_the_runners_have_the_names_that_are_offered(tmp_path: Path) -> None:
    assert tuple(r.name for r in runners(settings(tmp_path), Store(tmp_path))) == NAMES


def test_asking_what_works_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for runner in runners(settings(tmp_path / "x"), Store(tmp_path / "x")):
        if runner.name != "podman":  # podman makes its storage, whatever it is asked
            runner.available()
    assert not (tmp_path / "x").exists() and not (tmp_path / "home").exists()


# an image's config ----------------------------------------------------------------------------------------------------


def test_command_lines_are_made_as_docker_makes_them(tmp_path: Path) -> None:
    made = image(Store(tmp_path), cmd=["python"], env={"A": "b=c"}, workdir="/work")
    config = ImageConfig.of(made)
    assert config.env["A"] == "b=c" and config.workdir == "/work"
    assert config.arguments([], None) == ["/opt/builder/entrypoint", "python"]
    assert config.arguments(["ls", "-l"], None) == ["/opt/builder/entrypoint", "ls", "-l"]
    assert config.arguments(["-c", "x"], ["sh"]) == ["sh", "-c", "x"]
    assert config.arguments([], ["sh"]) == ["sh"]  # another entry point drops the image's command
    assert config.arguments(["ls"], []) == ["ls"]
    with pytest.raises(RunnerError, match="neither entry point nor command"):
        config.arguments([], [])
    bare = ImageConfig.of(image(Store(tmp_path), entrypoint=[], cmd=[]))
    with pytest.raises(RunnerError, match="neither"):
        bare.arguments([], None)


@pytest.mark.parametrize(
    ("target", "said"),
    [("data", "not an absolute path"), ("/", "not an absolute path"), ("/a/../..", "not an absolute path")],
)
def test_a_mount_without_a_place_is_refused(target: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match=said):
        check_mounts([Mount(tmp_path, target)])


def test_a_mount_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="does not exist"):
        check_mounts([Mount(tmp_path / "gone", "/data")])
    (tmp_path / "a:b").mkdir()
    check_mounts([Mount(tmp_path / "a:b", "/data")])
    with pytest.raises(RunnerError, match="':' in the path"):
        check_mounts([Mount(tmp_path / "a:b", "/data")], unfit=":,")


# GPUs -----------------------------------------------------------------------------------------------------------------


def test_the_devices_of_each_vendor(tmp_path: Path) -> None:
    for name in (
        "nvidia0",
        "nvidia12",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
        "nvme0",
        "kfd",
        "sda",
        "kmsg",
    ):
        (tmp_path / name).touch()
    for name in ("dri", "nvidia-caps"):
        (tmp_path / name).mkdir()
    assert [p.name for p in gpu_devices("amd", tmp_path)] == ["dri", "kfd"]
    names = [
        "nvidia-caps",
        "nvidia-modeset",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia0",
        "nvidia12",
        "nvidiactl",
    ]
    assert [p.name for p in gpu_devices("nvidia", tmp_path)] == names
    assert gpu_devices("none", tmp_path) == []
    (tmp_path / "kfd").unlink()
    assert gpu_devices("amd", tmp_path) == []  # a graphics card for a screen


def test_the_drivers_libraries_are_found_by_the_loaders_list() -> None:
    text = """412 libs found in cache `/etc/ld.so.cache'
\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64) => /opt/other/libcuda.so.1
\tlibcuda.so (libc6,AArch64) => /usr/lib/aarch64-linux-gnu/libcuda.so
\tlibcudart.so.12 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcudart.so.12
\tlibcublas.so.12 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcublas.so.12
"""
    assert parse_ldconfig(text) == {
        "libnvidia-ml.so.1": Path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"),
        "libcuda.so.1": Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
        "libcuda.so": Path("/usr/lib/aarch64-linux-gnu/libcuda.so"),
    }
    assert parse_ldconfig("") == {}


class Engine:
    """A docker client that knows its runtimes."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def info(self) -> dict[str, Any]:
        return {"Runtimes": dict.fromkeys(self.names)}


def test_docker_is_asked_for_gpus_only_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Path] = []
    monkeypatch.setattr(docker_module, "gpu_devices", lambda vendor: found)
    assert (
        docker_module._gpu_options("nvidia", Engine("runc"))
        == {}
        == docker_module._gpu_options("amd", Engine("runc"))
    )
    (request,) = docker_module._gpu_options("nvidia", Engine("runc", "nvidia"))[
        "device_requests"
    ]  # a remote engine, perhaps
    assert request["Count"] == -1 and request["Capabilities"] == [["gpu"]]
    (tmp_path / "kfd").touch()
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri" / "renderD128").touch()
    os.chown(tmp_path / "kfd", -1, os.getgid())
    found[:] = [tmp_path / "dri", tmp_path / "kfd"]
    options = docker_module._gpu_options("amd", Engine("runc"))
    assert options["devices"] == [f"{p}:{p}:rwm" for p in found]
    assert options["group_add"] == [str(g) for g in {os.getgid()} - {0}]


# processes ------------------------------------------------------------------------------------------------------------


def test_output_and_exit_codes() -> None:
    done = execute(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.returncode, done.stdout, done.stderr, done.timed_out) == (7, "out\n", "err\n", False)
    assert execute(["sh", "-c", "kill -KILL $$"]).returncode == 137
    assert execute(["sh", "-c", "printf '\\377'"]).stdout == "\ufffd"
    with pytest.raises(RunnerError, match="cannot run /no/such/program"):
        execute(["/no/such/program"])


@pytest.mark.parametrize(
    "script", ["sleep {n} & sleep {n} & wait", "trap '' TERM; sleep {n}", "setsid sleep {n}"]
)
def test_what_takes_too_long_is_ended_with_what_it_started(script: str) -> None:
    n = f"1234.{os.getpid()}{time.monotonic_ns() % 10**9}"
    started = time.monotonic()
    done = execute(["sh", "-c", f"echo begun; {script.format(n=n)}"], timeout_s=0.5)
    assert done.timed_out and done.returncode == TIMED_OUT and done.stdout == "begun\n"
    assert time.monotonic() - started < 30
    if "setsid" not in script:  # that one got away from the group on purpose: it must not hold us up
        assert not processes(n)
    for pid in processes(n):
        os.kill(pid, signal.SIGKILL)


def processes(word: str) -> list[int]:
    """The processes with this word on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if word.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_ctrl_c_ends_what_was_started() -> None:
    n = f"1234.{os.getpid()}{time.monotonic_ns() % 10**9}"
    code = f"from builder.run.process import execute; execute(['sleep', '{n}'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    end = time.monotonic() + 30
    while not processes(n) and time.monotonic() < end:
        time.sleep(0.05)
    assert processes(n)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert not processes(n) and process.returncode not in (0, None)


def test_reasons_are_one_line_and_addresses_have_no_password() -> None:
    assert reason("\n  first thing \nsecond") == "first thing" and reason("") == "no reason given"


# docker's configuration -----------------------------------------------------------------------------------------------


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_docker_contexts_count(docker_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from docker.context import ContextAPI

    assert _engine() == {}
    ContextAPI.create_context("mine", host=f"unix://{tmp_path}/mine.sock")
    assert _engine() == {}
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    assert _engine()["base_url"].endswith(f"{tmp_path}/mine.sock")
    assert f"{tmp_path}/mine.sock" in str(DockerRunner(settings(tmp_path), Store(tmp_path)).available())
    monkeypatch.delenv("DOCKER_CONTEXT")
    (docker_config / "config.json").write_text(json.dumps({"currentContext": "mine"}))
    assert _engine()["base_url"].endswith("mine.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/other.sock")  # wins, as on the command line
    assert _engine() == {}
    assert "other.sock" in str(DockerRunner(settings(tmp_path), Store(tmp_path)).available())


def test_a_docker_context_that_does_not_exist(
    docker_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    assert "gone" in str(DockerRunner(settings(tmp_path), Store(tmp_path)).available())


def test_the_password_of_an_engine_is_not_shown(
    docker_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://me:s3cret@127.0.0.1:9")
    said = DockerRunner(settings(tmp_path), Store(tmp_path)).available()
    assert said and "s3cret" not in said


# podman's command line ------------------------------------------------------------------------------------------------


def test_variables_go_by_a_private_file(tmp_path: Path) -> None:
    with _variables({"TOKEN": "s3cret, $x 'y'", "KEY": "-----BEGIN\nline", "EMPTY": ""}, tmp_path) as (
        options,
        environ,
    ):
        file = Path(options[1])
        assert options == ["--env-file", str(file), "--env", "KEY"]
        assert file.read_text() == "TOKEN=s3cret, $x 'y'\nEMPTY=\n"
        assert (
            stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        )
        assert (
            environ is not None
            and environ["KEY"] == "-----BEGIN\nline"
            and environ["PATH"] == os.environ["PATH"]
        )
    assert not list(tmp_path.iterdir())
    with _variables({}, tmp_path) as (options, environ):
        assert options == [] and environ is None
    with pytest.raises(RunnerError, match="'A B'"), _variables({"A B": "1"}, tmp_path):
        pass


def test_a_podman_that_does_not_work_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    podman = PodmanRunner(settings(tmp_path), Store(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert podman.available() == "not installed"
    (tmp_path / "podman").write_text("#!/bin/sh\necho 'Error: no cgroups' >&2\nexit 125\n")
    (tmp_path / "podman").chmod(0o755)
    assert podman.available() == "does not work: Error: no cgroups"
