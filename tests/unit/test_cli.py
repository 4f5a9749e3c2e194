"""The command line: exit codes, what goes to stdout and what to stderr, and messages that name the thing and its hint."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import builder.errors
from builder.cli import MODULES, cli, run
from builder.cli.groups import command as publish_command
from builder.publishing.publish import SmokeRecord
from tests.support.channel import Server, index_channel, make_package, serve
from tests.support.project import TinyProject, edit, tiny_channel, tiny_project, whole

CLONE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Said:
    """What a command ended with and wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Said]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Server]]:
    """The channel's folder and where it is served."""
    folder = tiny_channel(tmp_path_factory.mktemp("channel"))
    with serve(folder) as server:
        yield folder, server


@pytest.fixture
def tiny(tmp_path: Path, served: tuple[Path, Server], monkeypatch: pytest.MonkeyPatch) -> TinyProject:
    project = tiny_project(tmp_path, served[1].url)
    adopt(project, monkeypatch)
    return project


def adopt(project: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's environment becomes the project's."""
    for name in os.environ.keys() - project.variables().keys():
        monkeypatch.delenv(name)
    for name, value in project.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project.root)


@pytest.fixture
def do(capsys: pytest.CaptureFixture[str]) -> Cli:
    """``do("build", "tiny")`` runs a command in this process."""

    def do(*args: str | Path) -> Said:
        code = run(cli, [str(a) for a in args])
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return do


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, served: tuple[Path, Server]) -> TinyProject:
    """The project, locked and built; tests take a :func:`copy`."""
    project = tiny_project(tmp_path_factory.mktemp("built"), served[1].url)
    command = [sys.executable, "-m", "builder", "--project", str(project.root), "build", "tiny"]
    subprocess.run(
        command, env={**project.variables(), "PYTHONPATH": str(CLONE)}, check=True, capture_output=True
    )
    return project


@pytest.fixture
def copy(built: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyProject:
    """A locked and built project of the test's own."""
    project = TinyProject(tmp_path / "project", tmp_path / "cache")
    shutil.copytree(built.root, project.root, symlinks=True)
    shutil.copytree(built.cache, project.cache)
    adopt(project, monkeypatch)
    return project


# the command line itself ----------------------------------------------------------------------------------------------


def commands(
    group: click.Group, ctx: click.Context, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(ctx):
        found = group.get_command(ctx, name)
        assert found is not None, name
        if isinstance(found, click.Group):
            yield from commands(found, ctx, (*path, name))
        else:
            yield (*path, name), found


ALL = list(commands(cli, click.Context(cli)))


@pytest.mark.parametrize("path", [" ".join(p) for p, _ in ALL])
def test_every_command_explains_itself_and_speaks_json(path: str) -> None:
    found = dict(ALL)[tuple(path.split())]
    assert found.help and found.help.split("\n\n")[0].rstrip().endswith((".", ")"))
    options = {o for p in found.params for o in p.opts}
    assert "--json" in options or path == "completion", "a script is text, whatever is asked for"
    for p in found.params:
        assert not isinstance(p, click.Option) or p.help or p.name == "as_json", f"{p.name} explains nothing"


def test_no_module_takes_the_place_of_a_function() -> None:
    """Importing ``builder.cli.x`` makes ``x`` a name of the package: ALL above has imported every one."""
    import builder.cli

    assert builder.cli.run is run and builder.cli.cli is cli


def test_help_lists_every_command_and_the_docs_do(do: Cli) -> None:
    said = do("--help")
    listed = re.findall(r"^  (\w[\w-]*) ", said.out.split("Commands:")[1].split("Exit codes")[0], re.M)
    assert said.code == 0 and listed == list(MODULES)
    docs = (CLONE / "docs" / "cli.md").read_text()
    assert [c for c in MODULES if f"`builder {c}" not in docs] == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["biuld"], "No such command 'biuld'"),
        (["build", "--no-such-option"], "No such option"),
        (["--jobs", "0", "targets"], "--jobs"),
        (["build"], "no target given"),
        (["publish"], "no target and no --group given"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
    ],
)
def test_wrong_command_lines(do: Cli, tiny: TinyProject, args: list[str], words: str) -> None:
    said = do(*args)
    assert said.code == 2 and words in said.err and not said.out


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("BUILDER_JOBS", "many", "BUILDER_JOBS='many' must be a whole number"),
        ("SOURCE_DATE_EPOCH", "-1", "SOURCE_DATE_EPOCH='-1'"),
        ("BUILDER_MIRRORS", "https://a", "BUILDER_MIRRORS: 'https://a' is not FROM=TO"),
    ],
)
def test_wrong_variables(
    do: Cli, tiny: TinyProject, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    said = do("targets")
    assert said.code == 2 and words in said.err and "hint:" in said.err


def test_no_project(do: Cli, tiny: TinyProject) -> None:
    said = do(
        "--project", "/dev", "targets"
    )  # nothing that this test makes: the temporary folder may lie in the clone
    assert (
        said.code == 3
        and "no recipes/ folder in /dev or a parent folder" in said.err
        and "--project DIR" in said.err
    )
    (tiny.root / "deep" / "down").mkdir(parents=True)
    assert do("--project", tiny.root / "deep" / "down", "targets", "--json").json[0]["name"] == "tiny"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(do: Cli, tiny: TinyProject, shell: str) -> None:
    said = do("completion", shell)
    assert said.code == 0 and "_BUILDER_COMPLETE" in said.out
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=said.out, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("builder bu", {"build"}),
        ("builder build t", {"tiny", "tinier"}),
        ("builder targets show tini", {"tinier"}),
    ],
)
def test_what_bash_completes(tiny: TinyProject, words: str, offered: set[str]) -> None:
    (tiny.root / "recipes" / "tinier.yaml").write_text("extends: tiny\n")
    env = {
        "_BUILDER_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "builder"],
        env={**tiny.variables(), **env, "PYTHONPATH": str(CLONE)},
        cwd=tiny.root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == offered


def test_quiet_and_json_leave_stdout_alone(do: Cli, copy: TinyProject) -> None:
    assert do("-q", "build", "tiny").err == ""
    before, after = do("--json", "build", "tiny"), do("build", "tiny", "--json")
    assert before.json["digest"] == after.json["digest"] and set(before.json["seconds"]) == set(
        after.json["seconds"]
    )
    failed = do("build", "nothing", "--json")
    assert failed.out == "" and failed.code == 3


def test_output_that_cannot_be_written(tiny: TinyProject) -> None:
    with Path("/dev/full").open("w") as full:
        for command in (["targets"], ["targets", "--json"]):
            done = subprocess.run(
                [sys.executable, "-m", "builder", *command],
                env={**tiny.variables(), "PYTHONPATH": str(CLONE)},
                cwd=tiny.root,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert done.returncode == 13 and done.stderr.startswith("error: No space left on device"), (
                done.stderr
            )
            assert "Traceback" not in done.stderr


def test_a_file_that_may_not_be_read(do: Cli, tiny: TinyProject) -> None:
    (tiny.root / "recipes" / "folder.yaml").mkdir()
    said = do("targets", "show", "folder")
    assert said.code == 3 and f"{tiny.root / 'recipes' / 'folder.yaml'}: cannot be read" in said.err


# recipes and environments ---------------------------------------------------------------------------------------------


def test_an_unknown_target_gets_the_nearest_names(do: Cli, tiny: TinyProject) -> None:
    said = do("build", "tinny")
    assert said.code == 3 and "no target named 'tinny'" in said.err and "did you mean tiny?" in said.err
    said = do("targets", "show", "quite-another")
    assert said.code == 3 and "known targets: tiny" in said.err


def test_an_unknown_group_names_those_there_are(do: Cli, tiny: TinyProject) -> None:
    said = do("publish", "--group", "gui", "--to", "oci:there")
    assert said.code == 3
    assert (
        "no recipe declares the group 'gui'" in said.err
        and "groups: ml; a recipe joins with 'group: [gui]'" in said.err
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("base: ]", ":2: not valid YAML"),
        ("bsae: debian:bookworm", ":2: bsae: unknown key; did you mean base?"),
        ("gpu: {vendor: intel}", ":2: gpu.vendor:"),
        ("base: oci:other", ":4: key 'base' appears twice (first on line 2)"),
    ],
)
def test_a_wrong_recipe_is_named_by_file_line_and_key(
    do: Cli, tiny: TinyProject, line: str, words: str
) -> None:
    first, rest = tiny.recipe.read_text().split("\n", 1)
    tiny.recipe.write_text(f"{first}\n{line}\n{rest}")
    for command in (["build", "tiny"], ["targets"], ["targets", "show", "tiny"], ["lock", "--check"]):
        said = do(*command)
        assert said.code == 3 and f"{tiny.recipe}{words}" in said.err and "hint:" in said.err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  - greeter", "  - greeter [", ":7: 'greeter [' is not a conda spec"),
        ("name: tiny", "name: ]", ":1: not valid YAML"),
        ("      - pure", "      - -e .", ":10: an editable package cannot be locked"),
    ],
)
def test_a_wrong_environment_is_named_by_file_and_line(
    do: Cli, tiny: TinyProject, old: str, new: str, words: str
) -> None:
    tiny.environment.write_text(tiny.environment.read_text().replace(old, new))
    said = do("lock", "tiny")
    assert said.code == 3 and f"{tiny.environment}{words}" in said.err and "hint:" in said.err


def test_a_recipe_as_yaml_is_the_recipe(do: Cli, tiny: TinyProject) -> None:
    shown = do("targets", "show", "tiny")
    resolved = do("targets", "show", "tiny", "--json").json
    (tiny.root / "recipes" / "again.yaml").write_text(shown.out)
    again = do("targets", "show", "again", "--json").json
    assert again == resolved and resolved["name"] == "tiny" and resolved["conda"]["prefix"] == "/opt/conda"


# several targets ------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(copy: TinyProject) -> TinyProject:
    """Beside ``tiny`` a target ``broken`` that nothing satisfies, before it by name, and ``zwei``, which is ``tiny`` again."""
    recipes, environments = copy.recipe.parent, copy.environment.parent
    shutil.copy(copy.environment, environments / "broken.yml")
    edit(environments / "broken.yml", dependencies=["greeter>=2"])
    for name, environment in (("broken", "broken"), ("zwei", "tiny")):
        shutil.copy(copy.recipe, recipes / f"{name}.yaml")
        edit(
            recipes / f"{name}.yaml",
            environment=f"environments/{environment}.yml",
            registry={"repository": name},
            group=["ml"],
        )
    return copy


@pytest.mark.parametrize("command", ["lock", "build"])
def test_what_fails_for_one_target_does_not_stop_the_others(
    do: Cli, three: TinyProject, command: str
) -> None:
    names = [] if command == "lock" else ["broken", "tiny", "zwei"]
    said = do(command, *names, "--json")
    assert said.code == 5
    assert (
        "error: broken: " in said.err
        and "greeter >=2" in said.err
        and "1 of 3 targets failed: broken" in said.err
    )
    by_name = {r["target"]: r for r in said.json}
    assert (
        "greeter >=2" in by_name["broken"]["error"]
        and by_name["tiny"]["digest"]
        and by_name["zwei"]["digest"]
    )
    assert (three.lock.parent / "tiny.zwei.lock.yml").exists()
    alone = do(command, "broken")
    assert alone.code == 5 and "targets failed" not in alone.err


def test_what_fails_for_one_target_does_not_keep_the_group_from_being_published(
    do: Cli, three: TinyProject, tmp_path: Path
) -> None:
    for name in ("tiny", "zwei"):
        passed(three, do("build", name, "--json").json["digest"])
    for command in (
        lambda *o: do("publish", "--group", "ml", *o).code,
        lambda *o: ask(three, ["--ml", "-y", *o]).exit_code,
    ):
        # nobody answers at the address: what counts is that all were tried, and each for its own reason
        assert command("--registry", "127.0.0.1:9") == 5
    said = do("publish", "--group", "ml", "--registry", "127.0.0.1:9")
    assert said.err.count("127.0.0.1:9") >= 2 and "3 of 3 targets failed: broken, tiny, zwei" in said.err


def test_two_targets_are_never_published_as_one_tag(do: Cli, three: TinyProject, tmp_path: Path) -> None:
    to = ["--to", f"oci:{tmp_path / 'there'}", "--tag", "26.11"]
    said = do("publish", "tiny", "zwei", *to)
    assert (
        said.code == 2
        and f"tiny and zwei would both be published as oci:{tmp_path / 'there'}:26.11" in said.err
    )
    assert "--registry" in said.err
    assert "would both be" in do("publish", "--group", "ml", *to).err
    with pytest.raises(builder.errors.UsageError, match="would both be"):
        ask(three, ["--ml", "-y", *to])
    edit(three.recipe.with_name("zwei.yaml"), registry={"repository": "tests/tiny"})
    said = do("publish", "tiny", "zwei", "--registry", "127.0.0.1:9")
    assert said.code == 2 and "published as 127.0.0.1:9/tests/tiny:" in said.err
    edit(three.recipe.with_name("zwei.yaml"), registry={"repository": "tests/tiny", "tags": ["zwei"]})
    assert do("publish", "tiny", "zwei", "--registry", "127.0.0.1:9").code != 2
    assert not (tmp_path / "there").exists()


# locks ----------------------------------------------------------------------------------------------------------------


def test_lock_and_check(do: Cli, tiny: TinyProject) -> None:
    missing = do("lock", "--check", "--json")
    assert missing.code == 4 and missing.json[0]["reasons"] == [f"{tiny.lock} does not exist"]
    made = do("lock", "--json")
    assert (
        made.code == 0
        and made.json[0]["packages"] == {"conda": 9, "pip": 1}
        and made.json[0]["base"].startswith("sha256:")
    )
    before = tiny.lock.read_bytes()
    checked = do("lock", "tiny", "--check")
    assert checked.code == 0 and "tiny: fresh" in checked.out
    tiny.environment.write_text(tiny.environment.read_text().replace("  - greeter\n", "  - small1\n"))
    stale = do("lock", "tiny", "--check", "--json")
    (reason,) = stale.json[0]["reasons"]
    assert stale.code == 4 and not stale.json[0]["fresh"]
    assert reason.startswith("conda specs changed: now with small1, without greeter")
    assert tiny.lock.read_bytes() == before, "--check writes nothing"


def test_a_stale_lock_is_refused_with_the_reason(do: Cli, copy: TinyProject) -> None:
    edit(copy.recipe, virtual_packages={"__glibc": "2.28"})
    for command in (
        ["build", "tiny"],
        ["plan", "tiny"],
        ["smoke", "tiny"],
        ["publish", "tiny", "--to", "oci:there"],
    ):
        said = do(*command)
        assert said.code == 4 and f"{copy.lock} is stale: virtual packages changed" in said.err, command
        assert "hint: builder lock tiny" in said.err
    assert not (copy.root / "there").exists()


def test_nothing_satisfies(do: Cli, tiny: TinyProject) -> None:
    edit(tiny.environment, dependencies=["python=3.11", "greeter>=2"])
    said = do("build", "tiny")
    assert (
        said.code == 5
        and f"{tiny.environment}: no set of packages satisfies the environment" in said.err
        and "greeter >=2" in said.err
    )
    assert not tiny.lock.exists()


def test_a_gpu_that_no_recipe_declares(do: Cli, tiny: TinyProject, tmp_path: Path) -> None:
    make_package(tmp_path / "gpu", "fast", "1.0", depends=["__cuda >=12"])
    index_channel(tmp_path / "gpu")
    edit(tiny.environment, channels=[(tmp_path / "gpu").as_uri()], dependencies=["fast"])
    said = do("lock", "tiny")
    assert (
        said.code == 5
        and "__cuda" in said.err
        and f'add to {tiny.recipe}: virtual_packages: {{__cuda: "12.4"}}' in said.err
    )
    edit(tiny.recipe, virtual_packages={"__cuda": "12.4"})
    assert do("lock", "tiny").code == 0, "declared it is there, on a builder without any GPU"


def test_a_lock_of_others(do: Cli, copy: TinyProject) -> None:
    foreign = copy.root / "theirs.yml"
    copy.lock.rename(foreign)
    edit(copy.recipe, lock="theirs.yml")
    assert do("lock", "tiny", "--check").code == 0
    refused = do("lock", "tiny")
    assert refused.code == 4 and "which another tool made" in refused.err
    assert do("lock").code == 0, "all targets: those that are locked here"
    assert do("build", "tiny").code == 0
    edit(copy.recipe, lock="nowhere.yml")
    gone = do("build", "tiny")
    assert gone.code == 4 and "nowhere.yml does not exist" in gone.err


def test_update_wants_a_package_of_the_lock(do: Cli, copy: TinyProject) -> None:
    said = do("lock", "tiny", "--update", "greter")
    assert (
        said.code == 2 and "the lock has no such package" in said.err and "did you mean greeter?" in said.err
    )
    copy.lock.unlink()
    assert "no lock file to update" in do("lock", "tiny", "--update", "greeter").err


def test_a_base_that_moved_is_pinned_anew_on_request(do: Cli, copy: TinyProject) -> None:
    from builder.oci.layout import write_layout
    from builder.store.blobs import Store
    from tests.support.image_kit import image, layer, member

    before = do("build", "tiny", "--json").json
    store = Store(copy.root / "s")
    write_layout(image(store, layer(store, member("etc/new", b"new\n"))), copy.root / "base", "latest", store)
    refused = do("build", "tiny")
    assert (
        refused.code == 8
        and before["base"]["digest"][:19] in refused.err
        and "builder lock --update-base" in refused.err
    )
    packages = do("lock", "tiny", "--update-base", "--json").json[0]
    assert packages["base"] != before["base"]["digest"]
    assert do("build", "tiny", "--json").json["base"]["digest"] == packages["base"]


# plan, build ----------------------------------------------------------------------------------------------------------


def test_plan_says_what_the_build_makes(do: Cli, copy: TinyProject) -> None:
    plan = do("plan", "tiny", "--json").json
    built = do("build", "tiny", "--json").json
    of_packages = [x["title"] for x in built["layers"] if x["packages"]]
    assert [x["title"] for x in plan["layers"]] == of_packages
    assert (
        plan["packages"] == 10
        and plan["unknown_sizes"] == 0
        and not any(x["estimated"] for x in plan["layers"])
    )
    assert next(x for x in plan["layers"] if x["title"] == "conda bulky 1.0")["archive_bytes"] > 2 << 20


def test_plan_says_which_sizes_nobody_knows(do: Cli, copy: TinyProject) -> None:
    said = do("--cache", copy.root / "empty", "--offline", "plan", "tiny")
    assert said.code == 0 and "10 packages in" in said.out and "unknown" in said.out
    assert "9 archives have an unknown size" in said.err, "the wheel lies in its folder"


def test_plan_estimates_packages_that_will_be_split() -> None:
    from builder.layers.plan import likely_parts

    gb = 10**9
    assert likely_parts({"torch": gb, "cudnn": 400 * 10**6, "numpy": 20 * 10**6, "unknown": None}) == {
        "torch": 4,
        "cudnn": 2,
    }


SYNAPSE = CLONE.parent / "shared/data/synapse-ml"
#: What such packages weigh, in MB; all others of the lock count as half a megabyte.
LARGE = {
    "libtorch": 530,
    "libcublas": 240,
    "libcudnn": 390,
    "libcufft": 153,
    "libcusolver": 97,
    "libcusparse": 117,
    "libmagma": 310,
    "mkl": 125,
    "nccl": 160,
    "pytorch": 35,
    "libarrow": 9,
}


@pytest.mark.skipif(
    not SYNAPSE.exists(), reason="the Synapse data (../shared/data/synapse-ml) is not on this machine"
)
def test_the_synapse_lock_is_planned_completely(
    do: Cli, tiny: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from builder.lock.file import read_lock

    plan = ["--project", CLONE, "plan", "perlmutter", "--lock", SYNAPSE / "environment-lock.yml", "--json"]
    packages = read_lock(SYNAPSE / "environment-lock.yml").for_platform("linux-64")
    blind = do("--offline", *plan).json
    assert (
        blind["packages"]
        == blind["unknown_sizes"]
        == 302
        == len({n for x in blind["layers"] for n in x["packages"]})
    )
    for p in (
        packages
    ):  # files without content, of the size that the packages have, where a mirror would have them
        path = tmp_path / "mirror" / p.subdir / p.filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, int(LARGE.get(p.name, 0.5) * 1_000_000))
    monkeypatch.setenv("BUILDER_MIRRORS", f"https://conda.anaconda.org/conda-forge={tmp_path / 'mirror'}")
    said = do("--offline", *plan).json
    assert said["unknown_sizes"] == 0
    of_their_own = [x["packages"][0] for x in said["layers"] if len(x["packages"]) == 1]
    assert sorted(set(of_their_own)) == sorted(LARGE)
    assert of_their_own.count("libtorch") == of_their_own.count("libcudnn") == 2, (
        "over 1 GiB unpacked, most likely"
    )
    groups = [x for x in said["layers"] if len(x["packages"]) > 1]
    assert len(groups) == 12 and sum(len(x["packages"]) for x in groups) == 302 - len(LARGE)
    total = sum(x["archive_bytes"] for x in said["layers"])
    assert total == pytest.approx(sum(LARGE.values()) * 1e6 + (302 - len(LARGE)) * 5e5, abs=20)


def test_a_link_into_another_layer_leads_there(do: Cli, tiny: TinyProject, tmp_path: Path) -> None:
    """A package's symlink to what another one brings, and a file below another one's symlinked folder."""
    from builder.oci.layout import read_layout
    from builder.store.blobs import Store
    from builder.trees.rootfs import unpack

    channel = tmp_path / "links"
    make_package(
        channel, "library", "1.0", files={"lib/real/data.txt": "data\n"}, symlinks={"lib/short": "real"}
    )
    make_package(
        channel, "linker", "1.0", files={"share/own": ""}, symlinks={"share/there": "../lib/real/data.txt"}
    )
    make_package(channel, "below", "1.0", files={"lib/short/more.txt": "more\n"}, depends=["library"])
    index_channel(channel)
    edit(tiny.environment, channels=[channel.as_uri()], dependencies=["library", "linker", "below"])
    edit(tiny.recipe, layers={"own_layer_from": 1})
    said = do("build", "tiny", "--json").json
    assert [x["packages"] for x in said["layers"] if x["packages"]] == [["below"], ["library"], ["linker"]]
    unpack(read_layout(tiny.root / "dist", "tiny"), tmp_path / "root", Store(tiny.cache))
    prefix = tmp_path / "root" / "opt" / "conda"
    assert (prefix / "share" / "there").is_symlink() and (prefix / "share" / "there").read_text() == "data\n"
    assert (prefix / "lib" / "short").is_symlink() and (
        prefix / "lib" / "real" / "more.txt"
    ).read_text() == "more\n"


def test_build_writes_whole_images_and_the_outputs_asked_for(
    do: Cli, copy: TinyProject, tmp_path: Path
) -> None:
    shutil.rmtree(copy.root / "dist")
    said = do(
        "build", "tiny", "--oci-archive", tmp_path / "o.tar", "--docker-archive", tmp_path / "d.tar", "--json"
    ).json
    assert said["layout"] == str(copy.root / "dist") and said["tag"] == "tiny"
    whole(copy.root / "dist", said["digest"])
    assert (tmp_path / "o.tar").stat().st_size > said["size"] and (tmp_path / "d.tar").stat().st_size > said[
        "size"
    ]
    again = do(
        "build", "tiny", "--layout", tmp_path / "layout", "--source", "https://host.example/x", "--json"
    ).json
    assert again["digest"] != said["digest"], "an annotation is part of the image"
    whole(tmp_path / "layout", again["digest"])


def test_several_targets_at_once(do: Cli, copy: TinyProject) -> None:
    (copy.root / "recipes" / "other.yaml").write_text(
        "extends: tiny\nlock: environments/tiny.tiny.lock.yml\nworkdir: /tmp\n"
    )
    said = do("build", "tiny", "other", "--json").json
    assert [x["target"] for x in said] == ["tiny", "other"] and said[0]["digest"] != said[1]["digest"]
    refused = do("build", "tiny", "other", "--lock", copy.lock)
    assert refused.code == 2 and "accept only one target" in refused.err


def test_find_links_of_an_environment_file_serve_the_build_too(
    do: Cli, tiny: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative to that file, from whatever folder the command runs in."""
    data = tiny.recipe.read_text().replace("pip: {find_links: [wheels]}\n", "")
    tiny.recipe.write_text(data)
    tiny.environment.write_text(
        tiny.environment.read_text().replace("      - pure", "      - --find-links ../wheels\n      - pure")
    )
    monkeypatch.chdir("/")
    said = do("--project", tiny.root, "build", "tiny", "--json")
    assert said.code == 0 and "builder://find-links/pure-1.0-py3-none-any.whl" in tiny.lock.read_text()


# packages that cannot be had ------------------------------------------------------------------------------------------


def test_offline_without_packages(do: Cli, copy: TinyProject) -> None:
    assert do("--offline", "build", "tiny").code == 0, "everything is in the cache"
    shutil.rmtree(copy.cache)
    said = do("--offline", "build", "tiny")
    assert (
        said.code == 6
        and "could not be fetched" in said.err
        and "offline" in said.err
        and "BUILDER_MIRRORS" in said.err
    )
    copy.lock.unlink()
    said = do("--offline", "build", "tiny")
    assert said.code == 6 and "offline, and nothing of it is cached" in said.err


def test_a_package_that_is_gone(
    do: Cli, copy: TinyProject, served: tuple[Path, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(copy.cache)
    away = tmp_path / "bulky-1.0-0.conda"
    (served[0] / "linux-64" / away.name).rename(away)
    try:
        said = do("build", "tiny")
        assert said.code == 6 and "bulky 1.0 could not be fetched" in said.err and "HTTP 404" in said.err
        assert "lock again, or set a mirror" in said.err
        (tmp_path / "mirror" / "linux-64").mkdir(parents=True)
        shutil.copy(away, tmp_path / "mirror" / "linux-64")
        monkeypatch.setenv("BUILDER_MIRRORS", f"{served[1].url}={tmp_path / 'mirror'}")
        assert do("build", "tiny").code == 0, "the mirror has it"
    finally:
        away.rename(served[0] / "linux-64" / away.name)


def test_a_package_that_is_another_is_named_deleted_asked_for_again_and_refused(
    do: Cli, copy: TinyProject, served: tuple[Path, Server]
) -> None:
    shutil.rmtree(copy.cache)
    there = served[0] / "linux-64" / "small3-1.0-0.conda"
    good = there.read_bytes()
    there.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    served[1].requests.clear()
    try:
        said = do("build", "tiny")
    finally:
        there.write_bytes(good)
    assert said.code == 6 and said.err.count("small3-1.0-0.conda") >= 2
    assert (
        "returned sha256:" in said.err
        and "twice" in said.err
        and "lock again, or use another mirror" in said.err
    )
    assert served[1].requests.count(f"/linux-64/{there.name}") == 2
    stored = [p.read_bytes() for p in (copy.cache / "blobs" / "sha256").iterdir() if p.suffix != ".seen"]
    assert not any(b[:-1] == good[:-1] for b in stored), "neither as what it should be nor as what it is"
    assert not (copy.cache / "partial" / f"sha256-{hashlib.sha256(good).hexdigest()}").exists()
    assert do("build", "tiny").code == 0


@pytest.mark.parametrize("fills", ["cache", "tmpdir"])
def test_too_little_room_is_said_before_anything_is_written(
    do: Cli, copy: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fills: str
) -> None:
    import builder.store.files

    for made in ("layers", "index"):
        shutil.rmtree(copy.cache / made)
    usage = shutil.disk_usage
    full = copy.cache if fills == "cache" else tmp_path / "elsewhere"
    full.mkdir(exist_ok=True)
    monkeypatch.setattr(
        builder.store.files.shutil,
        "disk_usage",
        lambda p: usage(p)._replace(free=1000) if Path(p).is_relative_to(full) else usage(p),
    )
    said = do("--tmpdir", tmp_path / "elsewhere", "build", "tiny")
    assert said.code == 13 and f"in {full}, 1.0 kB are free" in said.err and "--tmpdir" in said.err
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_cache_that_cannot_be_written(do: Cli, tiny: TinyProject, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = do("--cache", tmp_path / "file" / "cache", "build", "tiny")
    assert said.code == 13 and str(tmp_path / "file") in said.err and "BUILDER_CACHE" in said.err


def test_a_link_script_is_refused_by_name(do: Cli, tiny: TinyProject, tmp_path: Path) -> None:
    make_package(
        tmp_path / "post",
        "hooked",
        "1.0",
        files={"bin/.hooked-post-link.sh": "#!/bin/sh\nfalse\n", "share/x": "x"},
    )
    index_channel(tmp_path / "post")
    edit(tiny.environment, channels=[(tmp_path / "post").as_uri()], dependencies=["hooked"])
    said = do("build", "tiny")
    assert (
        said.code == 7
        and "hooked-1.0-0.conda has a link script (/opt/conda/bin/.hooked-post-link.sh)" in said.err
    )
    assert "conda: {post_link: {hooked: skip}}" in said.err
    edit(tiny.recipe, conda={"post_link": {"hooked": "skip"}})
    said = do("build", "tiny", "--json")
    assert said.code == 0 and said.json["notes"] == [
        "hooked: its link script was left out, as the recipe says"
    ]


# publishing -----------------------------------------------------------------------------------------------------------


def passed(project: TinyProject, digest: str) -> None:
    """As if the smoke test had passed on this machine: the small image holds no Python."""
    SmokeRecord(project.cache).keep(digest, "pass", "userns")


def test_dry_run_sends_nothing(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    there = tmp_path / "there"
    said = do("publish", "tiny", "--to", f"oci:{there}", "--dry-run", "--tag", "26.11", "--json")
    assert (
        said.code == 0
        and said.json["dry_run"]
        and said.json["tags"] == ["26.11", "latest"]
        and said.json["push"] is None
    )
    assert not there.exists()
    assert "tiny would be" in do("publish", "tiny", "--to", f"oci:{there}", "--dry-run").out


def test_a_dated_tag_moves_only_with_force(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    to = ["--to", f"oci:{tmp_path / 'there'}", "--tag", "26.11"]
    first = do("build", "tiny", "--json").json["digest"]
    passed(copy, first)
    assert do("publish", "tiny", *to, "--json").json["tags"] == ["26.11", "latest"]
    assert do("publish", "tiny", *to).code == 0, "the same image again is no move"
    edit(copy.recipe, labels={"changed": "yes"})
    second = do("build", "tiny", "--json").json["digest"]
    passed(copy, second)
    refused = do("publish", "tiny", *to)
    assert refused.code == 12 and ":26.11 exists and is" in refused.err and "--force" in refused.err
    assert set(tags(tmp_path / "there").values()) == {first}, "latest stays too"
    assert do("publish", "tiny", *to, "--force").code == 0
    assert tags(tmp_path / "there") == {"26.11": second, "latest": second}
    whole(tmp_path / "there", second)


def tags(layout: Path) -> dict[str, str]:
    from builder.oci.layout import list_tags

    return list_tags(layout)


def test_no_tag_moves_when_the_test_cannot_pass(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    said = do("publish", "tiny", "--to", f"oci:{tmp_path / 'there'}", "--runner", "userns")
    assert said.code in (10, 11), "no Python in the image, or no user namespaces on this host"
    assert not (tmp_path / "there").exists()
    if said.code == 11:
        assert "no tag was moved" in said.err and "--no-tags" in said.err


def test_nowhere_to_publish(do: Cli, copy: TinyProject) -> None:
    said = do("publish", "tiny")
    assert (
        said.code == 2
        and f"{copy.recipe}: registry.host is not set" in said.err
        and "--to oci:DIR" in said.err
    )


def test_a_registry_that_nobody_answers_for(do: Cli, copy: TinyProject) -> None:
    passed(copy, do("build", "tiny", "--json").json["digest"])
    said = do("publish", "tiny", "--registry", "127.0.0.1:9")
    assert said.code == 9 and "127.0.0.1:9" in said.err and "hint:" in said.err


# publish.py -----------------------------------------------------------------------------------------------------------


def ask(project: TinyProject, args: list[str], answers: str = "") -> Any:
    return CliRunner().invoke(publish_command(project.root), args, input=answers, catch_exceptions=False)


def test_the_script_asks_before_each_step_and_no_is_no(copy: TinyProject, tmp_path: Path) -> None:
    to = ["--ml", "--to", f"oci:{tmp_path / 'there'}", "--tag", "26.11"]
    said = ask(copy, to, "n\nn\n")
    assert (
        "Prune what the cache has not used for 30 days? [y/N]" in said.output
        and "Build tiny? [Y/n]" in said.output
    )
    assert "publish it to" not in said.output
    said = ask(copy, to, "n\ny\nn\n")
    assert f"publish it to oci:{tmp_path / 'there'} as 26.11, latest? [Y/n]" in said.output
    assert "is built, not published" in said.output and not (tmp_path / "there").exists()


def test_the_script_ends_when_nobody_answers(
    copy: TinyProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run(publish_command(copy.root), ["--ml", "--to", f"oci:{tmp_path / 'there'}"]) == 130
    assert not (tmp_path / "there").exists()


def test_the_script_goes_through_with_yes(copy: TinyProject, do: Cli, tmp_path: Path) -> None:
    passed(copy, do("build", "tiny", "--json").json["digest"])
    said = ask(copy, ["--ml", "-y", "--to", f"oci:{tmp_path / 'there'}", "--tag", "26.11"])
    assert said.exit_code == 0 and "?" not in said.output, "nobody is asked"
    assert set(tags(tmp_path / "there")) == {"26.11", "latest"}
    dry = ask(copy, ["--ml", "--dry-run", "--to", f"oci:{tmp_path / 'other'}"])
    assert dry.exit_code == 0 and "would be" in dry.output and not (tmp_path / "other").exists()


def test_the_script_prunes_when_told_so(copy: TinyProject, tmp_path: Path) -> None:
    old = copy.cache / "blobs" / "sha256" / ("0" * 64)
    old.write_bytes(b"long unused")
    os.utime(old, (0, 0))
    said = ask(copy, ["--ml", "--to", f"oci:{tmp_path / 'there'}"], "y\nn\n")
    assert "freed" in said.output and not old.exists()


def test_the_script_knows_the_groups_that_recipes_declare(copy: TinyProject) -> None:
    script = [sys.executable, str(CLONE / "publish.py")]
    none = subprocess.run(
        script, capture_output=True, text=True, env={**copy.variables(), "PYTHONPATH": str(CLONE)}
    )
    assert (
        none.returncode == 2
        and "name a group:" in none.stderr
        and "--gui" in none.stderr
        and "--ml" in none.stderr
    )
    gui = subprocess.run([*script, "--gui", "-y"], capture_output=True, text=True, env=copy.variables())
    assert gui.returncode == 3 and "no recipe declares the group 'gui'" in gui.stderr
    edit(copy.recipe, group=["own-one"])
    said = ask(copy, ["--help"])
    assert "--own-one" in said.output and "--ml" in said.output


# around it ------------------------------------------------------------------------------------------------------------


def test_doctor(do: Cli, tiny: TinyProject, tmp_path: Path) -> None:
    said = do("doctor", "--json")
    found = {f["what"]: f for f in said.json}
    assert {
        "builder",
        "lock: py-rattler",
        "lock: uv",
        "cache",
        "temporary files",
        "push: credentials",
    } <= found.keys()
    assert {"run: docker", "run: podman", "run: apptainer", "run: userns"} <= found.keys()
    assert any(w.startswith("GPU") for w in found) and found["lock: uv"]["status"] == "ok"
    assert all(f["status"] in ("ok", "missing", "bad") and f["found"] for f in found.values())
    assert said.code == (1 if any(f["status"] == "bad" for f in found.values()) else 0)
    (tmp_path / "file").write_text("")
    bad = do("--cache", tmp_path / "file" / "cache", "doctor")
    assert bad.code == 1 and "Not a directory" in bad.out and "BUILDER_CACHE" in bad.out


def test_doctor_names_credentials_without_showing_them(
    do: Cli, tiny: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_USER", "robot$one")
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter2")
    said = do("doctor")
    assert "REGISTRY_USER and REGISTRY_PASSWORD" in said.out and "hunter2" not in said.out + said.err


def test_cache_info_and_prune(do: Cli, copy: TinyProject) -> None:
    info = do("cache", "info", "--json").json
    assert (
        info["cache"] == str(copy.cache)
        and info["bytes"] == sum(p["bytes"] for p in info["folders"].values()) > 2 << 20
    )
    assert do("cache", "prune", "--json").json == {"freed": 0}, "everything was used today"
    digest = do("build", "tiny", "--json").json["digest"]
    assert do("cache", "prune", "--all", "--json").json["freed"] > 2 << 20
    assert do("cache", "info", "--json").json["bytes"] < 1000
    assert do("build", "tiny", "--json").json["digest"] == digest, (
        "removing the cache costs time, never a result"
    )


def test_prune_takes_blobs_of_dist_that_no_tag_needs(
    do: Cli, copy: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = do("build", "tiny", "--json").json
    edit(copy.recipe, labels={"changed": "yes"})
    second = do("build", "tiny", "--json").json
    gone = copy.root / "dist" / "blobs" / "sha256" / first["digest"].removeprefix("sha256:")
    assert gone.exists() and do("cache", "prune", "--json").json["freed"] > 0
    assert not gone.exists()
    whole(copy.root / "dist", second["digest"])
    monkeypatch.chdir("/")
    assert do("cache", "prune").code == 0, "outside of any project"


def test_prune_by_age(do: Cli, copy: TinyProject) -> None:
    """Old and unused goes; what is old and was used lately stays; uv's cache goes as a whole, unless uv holds it."""
    import fcntl

    digest = do("build", "tiny", "--json").json["digest"]
    uv = copy.cache / "uv"
    assert (uv / "CACHEDIR.TAG").exists()
    for path in copy.cache.rglob("*"):
        os.utime(path, (0, 0), follow_symlinks=False)
    do("build", "tiny")
    used = {p.name for p in (copy.cache / "blobs" / "sha256").glob("*.seen") if p.stat().st_mtime > 10}
    with (uv / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert do("cache", "prune", "--older-than", "1").code == 0
        assert (uv / "CACHEDIR.TAG").exists()
    assert used and used == {p.name for p in (copy.cache / "blobs" / "sha256").glob("*.seen")}
    records = {p.name for p in (copy.cache / "layers").iterdir()}
    assert do("cache", "prune", "--older-than", "1").code == 0
    assert [p for p in uv.iterdir() if p.is_dir()] == []
    assert len(records) > 5 and {p.name for p in (copy.cache / "layers").iterdir()} == records, (
        "their blobs are there"
    )
    assert do("build", "tiny", "--json").json["digest"] == digest
    copy.lock.unlink()
    assert do("build", "tiny", "--json").json["digest"] == digest, "uv and rattler begin anew"
    for path in (copy.cache / "blobs" / "sha256").iterdir():
        os.utime(path, (0, 0))
    assert do("cache", "prune").code == 0 and list((copy.cache / "layers").iterdir()) == []
