"""One option has one value in all runtimes: what a program sees of variables, words and mounts.

Each cell of the table starts one container with all values: with ``builder run``, in a job of a real Slurm,
and as the smoke test starts it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.build.bases.pack import pack_tar
from builder.build.run.base import Mount, RunOptions
from builder.build.run.select import runners
from builder.core.errors import RunnerError
from builder.core.store.blobs import Store
from builder.core.text import CONTROL
from builder.core.workspace import Workspace
from builder.formats.oci.layout import write_layout
from builder.formats.sif.plain import write_plain
from tests.integration.conftest import CLONE
from tests.support import image_kit
from tests.support.machine import Machine
from tests.support.podman_hpc import podman_hpc
from tests.support.programs import run_program
from tests.support.project import edit, tiny_channel, tiny_project
from tests.support.rootfs import MIGRATED, make_rootfs
from tests.support.slurm import Slurm
from tests.support.spank import container_plugin

#: Values that a shell, a CSV reader, a template or a runtime could take for something else.
VALUES = (
    "two words",
    "postgres://user:pw@host/db?a=1&b=2",
    "a(b)c",
    "a;b|c<d>e",
    "it's",
    "$HOME",
    "$HOME ${PATH} $$ $",
    "$(id)",
    "`id`",
    '"quoted"',
    "'quoted'",
    'q" , r',
    '"a=b"c',
    "back\\slash \\\\ \\$ \\",
    "a\\nb\\tc \\u000A",
    "  blanks at both ends  ",
    "\ttab\t",
    "# no comment # x",
    "=a=b=",
    "a=b,c",
    ",a,,b,",
    "* ? [a-z] ~ ~root",
    "!! !x ^x^",
    "%s %d %% {a,b} {{x}}",
    "[[ -n x ]] && echo",
    "ü € \u2028 \x0b 😀",
    "",
    "x" * 20000,
    "-dash",
    "--",
    "--help",
    "--gpu",
    "a\rb",
)
#: Of ``--env`` and words only: a file has one line for each variable.
LINES = ("two\nlines\n", "\n")
#: A command that shows its words, what is mounted below /mnt, and the variables that it was started with.
SHOW = r"""
printf 'BEGIN\0'; for word; do printf '%s\0' "$word"; done; printf 'MOUNTS\0'
for file in /mnt/*/id /mnt/.[!.]*/id; do [ ! -e "$file" ] || { printf '%s\0' "$file"; cat "$file"; }; done
printf 'ENV\0'; cat /proc/$$/environ; printf 'END\0'
"""
#: Names that a runtime, or a shell on the way, could keep for itself.
NAMES = {
    "HOME": "/some where",
    "PATH": "/bin:/usr/bin:/odd $x",
    "TMPDIR": "/bin",
    "IFS": "x",
    "PS1": "> ",
    "GID": "7",
    "LANG": "xx",
    "PREPEND_PATH": "/p",
    "line": "l",
    "name": "n",
    "value": "v",
    "REPLY": "r",
    "OPTIND": "9",
    "http_proxy": "http://p",
}
KINDS = ("userns", "docker", "podman", "podman-hpc", "apptainer", "singularity", "pyxis", "edf")
#: Characters of folders that a runtime cannot mount: builder names them before anything starts.
NOT_MOUNTED = {"pyxis": set('"$`\\')}


@dataclass
class Seen:
    """What a command saw."""

    words: list[str]
    mounts: dict[str, str]
    env: dict[str, str]

    @classmethod
    def of(cls, output: bytes) -> Seen:
        parts = [part.decode() for part in output.partition(b"BEGIN\0")[2].split(b"\0")]
        mounts, env = parts.index("MOUNTS"), parts.index("ENV")
        end = parts.index("END", env)
        found = parts[mounts + 1 : env]
        variables = (word.partition("=") for word in parts[env + 1 : end])
        return cls(
            parts[:mounts],
            dict(zip(found[::2], found[1::2], strict=True)),
            {name: value for name, _, value in variables},
        )


@dataclass
class Place:
    """A runtime with an image."""

    kind: str
    image: str
    env: dict[str, str]
    machine: Machine

    def options(self) -> list[str]:
        return ["--image", self.image] if self.image else []


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the image. As a SIF, it has a variable of its own."""
    made = make_rootfs(tmp_path_factory.mktemp("tree") / "tree", (*MIGRATED, "bash", "env", "mkdir"))
    (made / ".singularity.d/env").mkdir(parents=True)
    (made / ".singularity.d/env/91-image.sh").write_text("export PASSED=image\n")
    return made


@pytest.fixture(scope="module")
def tar(tree: Path) -> Path:
    """The same without what a SIF has."""
    path = tree.parent / "tree.tar"
    with tarfile.open(path, "w") as out:
        out.add(tree, "", filter=lambda member: None if ".singularity.d" in member.name else member)
    return path


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_channel(tmp_path_factory.mktemp("channel"))


@pytest.fixture
def machine(channel: Path, tar: Path, tmp_path: Path) -> Machine:
    made = Machine(tiny_project(tmp_path, channel.as_uri()))
    store = Store(tmp_path / "base-store")
    write_layout(
        image_kit.image(store, pack_tar([tar.read_bytes()], store, 2, "tree")),
        made.project.root / "base",
        "latest",
        store,
    )
    return made


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, machine: Machine, tree: Path, tar: Path, tmp_path: Path) -> Place:
    """A project whose site has this runtime, and the runtime's image."""
    kind, options, runtime = request.param, [], {"kind": request.param}
    env, image = machine.project.variables(), ""
    if kind in ("docker", "podman", "podman-hpc"):
        part = request.getfixturevalue("docker_engine" if kind == "docker" else "podman")
        if kind == "podman-hpc":
            part = podman_hpc(tmp_path / "hpc", part)
        image, options = "localhost/values:1", ["--network=none"]
        run = part.docker if kind == "docker" else part.run
        run("import", tar, image)
        if kind == "podman-hpc":
            run("migrate", image)
        env |= {name: value for name, value in part.env.items() if name != "HOME"}
    elif kind in ("apptainer", "singularity"):
        part = request.getfixturevalue("apptainer")
        env |= {name: value for name, value in part.env.items() if name != "HOME"}
        image = str(tmp_path / "values.sif")
        run_program([part.path, "build", image, tree], env)
    elif kind in ("pyxis", "edf"):
        image = str(tmp_path / "values.sqsh")
        store = Store(tmp_path / "store")
        whole = image_kit.image(store, pack_tar([tar.read_bytes()], store, 2, "tree"), workdir="/")
        write_plain(whole, Path(image), Workspace(image_kit.settings(tmp_path), store))
    else:
        edit(machine.project.recipe, entrypoint=[])
        machine.run("build", "tiny")
    if options:
        runtime["options"] = options
    site = {
        "runtime": runtime,
        "node": {"cores": 4},
        "slurm": {"account": "none", "time": "00:05:00", "queues": {"cpu": {}}},
    }
    edit(machine.project.recipe, site=site, entrypoint=[])  # builder's own puts the environment into PATH
    return Place(kind, image, env, machine)


def mountable(kind: str) -> list[str]:
    """The values that can be names of folders, and that builder's option can say."""
    names = [value for value in VALUES if 0 < len(value.encode()) < 256 and not set(value) & set("/:,\n")]
    return [name for name in names if not set(name) & NOT_MOUNTED.get(kind, set())]


def asked(place: Place) -> tuple[list[str], Seen]:
    """The options and words of a command line, and what the command has to see."""
    root = place.machine.project.root
    options, env = place.options(), {}
    for number, value in enumerate((*VALUES, *LINES)):
        options += ["--env", f"E{number}={value}"]
        env[f"E{number}"] = value
    lines = ["# comment", "", "  F_BLANK=x"]
    env["F_BLANK"] = "x"
    for number, value in enumerate(VALUES):
        lines.append(f"F{number}={value}")
        env[f"F{number}"] = value
    (root / "my vars.env").write_bytes("\n".join([*lines, "F_CRLF=x y\r", "F_LAST=z"]).encode())
    env |= {"F_CRLF": "x y", "F_LAST": "z"}
    options += ["--env-file", "my vars.env", "--env", "PASSED"]
    env["PASSED"] = place.env["PASSED"] = "p \\$x `id` \"'\n"
    mounts = {}
    for number, name in enumerate(mountable(place.kind)):
        folder = root / "mounts" / name
        folder.mkdir(parents=True)
        (folder / "id").write_bytes(f"{number}\0".encode())
        escaped = name.replace("$", "$$")
        options += ["--bind", f"mounts/{escaped}:/mnt/{escaped}"]
        mounts[f"/mnt/{name}/id"] = str(number)
    words = [*VALUES, *LINES]
    return [*options, "--", "/bin/sh", "-c", SHOW, "sh", *words], Seen(words, mounts, env)


def ended(place: Place, slurm: Slurm) -> tuple[list[str], bytes]:
    """Submits the project's ``job.sh``; returns its states and output."""
    root = place.machine.project.root
    variables = {name: value for name, value in place.env.items() if value != os.environ.get(name)}
    with container_plugin(slurm.folder):
        name = ("--job-name=tiny", "--output=%x.out")
        states = slurm.wait(slurm.submit(*name, "job.sh", env=variables, cwd=root))
    return states, (root / "tiny.out").read_bytes()


def in_job(place: Place, slurm: Slurm) -> bytes:
    """Submits the project's ``job.sh``; returns its output."""
    states, output = ended(place, slurm)
    assert states == ["COMPLETED"], output[-3000:].decode(errors="replace")
    return output


def check(seen: Seen, expected: Seen) -> None:
    """Compares all values; the message names those that differ."""
    wrong = {
        name: (value, seen.env.get(name))
        for name, value in expected.env.items()
        if seen.env.get(name) != value
    }
    assert not wrong
    assert seen.words == expected.words
    assert seen.mounts == expected.mounts


def test_run(place: Place, slurm: Slurm) -> None:
    """``builder run``; the plugins of srun need an allocation, which is that of a job here."""
    options, expected = asked(place)
    root = place.machine.project.root
    command = [sys.executable, "-m", "builder", "--project", str(root), "run", "tiny", *options]
    env = {**place.env, "PYTHONPATH": str(CLONE)}
    if place.kind in ("pyxis", "edf"):
        (root / "job.sh").write_text(f"#!/bin/bash\n{shlex.join(command)}\n")
        output = in_job(place, slurm)
    else:
        done = subprocess.run(command, env=env, cwd=root, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:].decode(errors="replace")
        output = done.stdout
    check(Seen.of(output), expected)


def test_job(place: Place, slurm: Slurm) -> None:
    """The script of ``builder job``."""
    options, expected = asked(place)
    script = place.machine.project.root / "job.sh"
    place.machine.run("job", "tiny", "--output", script, *options, env=place.env)
    check(Seen.of(in_job(place, slurm)), expected)


def test_names(place: Place, slurm: Slurm) -> None:
    """Names that runtimes and shells use themselves, from a file and from the command line."""
    root = place.machine.project.root
    (root / "x.env").write_text("".join(f"{name}={value}\n" for name, value in NAMES.items()))
    literal = [word for name, value in NAMES.items() for word in ("--env", f"{name}={value}")]
    show = ["--", "/bin/sh", "-c", SHOW]
    for options in (["--env-file", "x.env"], literal):
        words = ["--output", str(root / "job.sh"), *place.options(), *options, *show]
        place.machine.run("job", "tiny", *words, env=place.env)
        seen = Seen.of(in_job(place, slurm)).env
        assert {name: seen.get(name) for name in NAMES} == NAMES


@pytest.mark.parametrize("place", ["userns", "docker", "podman", "podman-hpc", "apptainer"], indirect=True)
def test_smoke(place: Place, tar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the smoke test starts a container: also the variables of the recipe, which are the image's."""
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    of_image = {f"I{number}": value for number, value in enumerate(VALUES) if not CONTROL.search(value)}
    work = Workspace(image_kit.settings(tmp_path), Store(tmp_path / "cache"))
    bottom = pack_tar([tar.read_bytes()], work.store, 2, "tree")
    image = image_kit.image(work.store, bottom, env={**of_image, "HOME": "/home of image"})
    env = {f"E{number}": value for number, value in enumerate((*VALUES, *LINES))}
    (runner,) = [runner for runner in runners(work) if runner.name == place.kind]
    mounts = {}
    for number, name in enumerate(mountable(place.kind)):
        folder = tmp_path / "mounts" / name
        folder.mkdir(parents=True)
        (folder / "id").write_bytes(f"{number}\0".encode())
        mount = Mount(folder, f"/mnt/{name}")
        if place.kind.startswith("podman") and '"' in name:
            with pytest.raises(RunnerError, match="cannot be mounted"):
                runner.run(image, ["true"], RunOptions(mounts=[mount]))
            continue
        mounts[f"/mnt/{name}/id"] = (str(number), mount)
    given = [mount for _, mount in mounts.values()]
    options = RunOptions(env=env, mounts=given, entrypoint=(), keep_root=True)
    done = runner.run(image, ["/bin/sh", "-c", SHOW, "sh", *VALUES, *LINES], options)
    assert done.returncode == 0, done.stderr[-3000:]
    numbers = {path: number for path, (number, _) in mounts.items()}
    expected = Seen([*VALUES, *LINES], numbers, {**of_image, **env, "HOME": "/home of image"})
    check(Seen.of(done.stdout.encode()), expected)


@pytest.mark.parametrize("place", ["userns", "docker", "podman", "apptainer", "pyxis"], indirect=True)
def test_line_without_value(place: Place, slurm: Slurm) -> None:
    """A line that docker and podman take from the host, and a shell as a command, ends job and run."""
    root = place.machine.project.root
    (root / "x.env").write_text("A=1\nTOKEN\n")
    words = [*place.options(), "--env-file", "x.env", "--", "true"]
    place.machine.run("job", "tiny", "--output", str(root / "job.sh"), *words, env=place.env)
    states, output = ended(place, slurm)
    assert states == ["FAILED"] and b"x.env:2: not NAME=VALUE" in output
    done = place.machine.run(
        "run", "tiny", *place.options(), *("--env-file", root / "x.env", "--", "true"), check=False
    )
    assert done.returncode == 2 and "x.env:2: not NAME=VALUE" in done.stderr


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_file_wins(place: Place, slurm: Slurm) -> None:
    """Variables of the job that pass by themselves do not replace those of the file."""
    root = place.machine.project.root
    (root / "x.env").write_text("AWS_REGION=file\n MLFLOW_X=a b\n")
    place.env |= {"AWS_REGION": "host", "AWS_OTHER": "host", "MLFLOW_X": "host"}
    words = [*place.options(), "--env-file", "x.env", "--", "/bin/sh", "-c", SHOW]
    place.machine.run("job", "tiny", "--output", str(root / "job.sh"), *words, env=place.env)
    seen = Seen.of(in_job(place, slurm)).env
    assert [seen[name] for name in ("AWS_REGION", "AWS_OTHER", "MLFLOW_X")] == ["file", "host", "a b"]
