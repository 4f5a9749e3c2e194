"""The site part of a recipe: what is refused and how the message reads; shell texts and their quoting."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.config.recipe import load_recipe, recipe_files
from builder.config.fields import seconds
from builder.config.site import Check, Fabric, Node, Queue, Ray, Runtime, Site, Slurm
from builder.errors import ConfigError, RunnerError
from builder.site.images import site_sif
from builder.site.shell import ShellText, command_line, expand, from_user, join, map_literal, quote

ROOT = Path(__file__).parents[3]
HEAD = "base: oci:b\nenvironment: e.yml\nsite:\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "recipes").mkdir()
    return tmp_path


def refusal(root: Path, site: str) -> ConfigError:
    (root / "recipes" / "one.yaml").write_text(HEAD + site)
    with pytest.raises(ConfigError) as caught:
        load_recipe("one", root)
    assert caught.value.hint == "correct the recipe; docs/recipes.md lists every key"
    return caught.value


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ("  runtme: {}", "one.yaml:4: site.runtme: unknown key; did you mean runtime?"),
        ("  runtime:\n    kind: dockr", "one.yaml:5: site.runtime.kind: Input should be 'docker', 'podman'"),
        (
            "  runtime: {binds: [scratch]}",
            "one.yaml:4: site.runtime.binds.0: 'scratch': write SOURCE, SOURCE:TARGET",
        ),
        ("  runtime: {binds: ['/a,/b']}", "'/a,/b': write SOURCE"),
        ("  runtime: {binds: ['/a:/b:rx']}", "'rx' is neither ro nor rw"),
        ("  runtime: {env: {A-B: x}}", "'A-B' cannot be the name of a variable"),
        (
            "  runtime: {env: {A: $(id)}}",
            "one.yaml:4: site.runtime.env.A: '$(id)': write a variable as $NAME",
        ),
        ("  runtime: {shm_size: much}", "'much' is not a size"),
        (
            "  runtime: {kind: apptainer, shm_size: 1g}\n  launcher: torchrun",
            "apptainer has neither shm_size nor groups",
        ),
        (
            "  runtime: {kind: docker, clean_env: true}\n  launcher: torchrun",
            "clean_env is for singularity and apptainer",
        ),
        ("  images: /work/{project}/x", "'/work/{project}/x': {project} is not {account}"),
        ("  slurm: {queues: {gpuu: {}}}", "site.slurm.queues.gpuu: unknown key; known here: 'gpu', 'node'"),
        (
            "  slurm: {queues: {gpu: {partion: x}}}",
            "site.slurm.queues.gpu.partion: unknown key; did you mean partition?",
        ),
        (
            "  slurm:\n    queues:\n      gpu:\n        time: 5x",
            "one.yaml:7: site.slurm.queues.gpu.time: '5x' is not a time",
        ),
        ("  slurm: {time: '0'}", "'0' is no time at all"),
        ("  slurm: {gpus: 'gpu:{gpus}'}", "write options as --name=value"),
        ("  slurm: {gpus: '--gres=gpu:{n}'}", "{n} is not one of {gpus}, {total}, {nodes}"),
        ("  node: {gpus: 4, cores: 16, cpus_per_gpu: 5}", "4 GPUs with 5 cores each are more than 16 cores"),
        ("  node: {gpus: 4, cores: 16, cpu_bind: 'map_cpu:0,4,8'}", "cpu_bind holds 3 values for 4 GPUs"),
        ("  node: {cores: 2, tasks: 4}", "4 tasks are more than 2 cores"),
        ("  launcher: mpi", "launcher mpi needs 'mpi:'"),
        ("  launcher: ray", "launcher ray needs 'ray:'"),
        ("  runtime: {kind: docker}", "launcher srun needs 'slurm:'; without it write 'launcher: torchrun'"),
        ("  fabric: {check: {env: {}}}", "site.fabric.check.line: this key is needed"),
    ],
)
def test_a_wrong_site_is_named_with_file_line_and_cure(project: Path, site: str, said: str) -> None:
    assert said in refusal(project, site).message


def test_an_error_in_what_a_recipe_extends_names_that_file(project: Path) -> None:
    (project / "recipes" / "_base.yaml").write_text(HEAD + "  node:\n    gpus: -1\n")
    (project / "recipes" / "two.yaml").write_text("extends: _base\nsite: {title: x}\n")
    with pytest.raises(ConfigError) as caught:
        load_recipe("two", project)
    assert "_base.yaml:5: site.node.gpus: Input should be greater than or equal to 0" in caught.value.message


def test_where_the_sites_jobs_look_is_known_on_its_machines_only(project: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    text = (
        f"{HEAD}  runtime: {{kind: apptainer}}\n  launcher: torchrun\n  images: $SCRATCH/{{account}}/images\n"
    )
    (project / "recipes" / "one.yaml").write_text(text)
    recipe = load_recipe("one", project)

    def found(account: str = "def-x", **environ: str) -> Path | None:
        return site_sif(recipe, account, environ)

    file = scratch / "def-x" / "images" / "one.sif"
    assert found() is None and found(SCRATCH=str(scratch)) is None and found(SCRATCH="") is None
    file.parent.parent.mkdir(parents=True)
    assert found(SCRATCH=str(scratch)) == file, "the folder of images can be made there"
    file.parent.mkdir()
    assert found(SCRATCH=str(scratch)) == file
    assert (
        found("", SCRATCH=str(scratch)) is None
        and found("", SCRATCH=str(scratch), SLURM_JOB_ACCOUNT="def-x") == file
    )
    assert found(SCRATCH="scratch") is None, "not from whichever folder one is in"
    text = text.replace("$SCRATCH/{account}/images", "$SCRATCH/images")
    (project / "recipes" / "one.yaml").write_text(text)
    assert site_sif(load_recipe("one", project), "", {"SCRATCH": ""}) is None, "nothing is made at the root"
    (project / "recipes" / "one.yaml").write_text(HEAD + "  runtime: {kind: docker}\n  launcher: torchrun\n")
    assert site_sif(load_recipe("one", project), "", {}) is None


def test_files_with_an_underscore_are_no_targets_but_may_be_extended(project: Path) -> None:
    (project / "recipes" / "_base.yaml").write_text(HEAD + "  title: T\n")
    (project / "recipes" / "two.yaml").write_text("extends: _base\n")
    assert list(recipe_files(project)) == ["two"]
    assert load_recipe("two", project).site.title == "T"
    with pytest.raises(ConfigError, match="no target named '_base'"):
        load_recipe("_base", project)


def test_a_date_needs_no_quotes(project: Path) -> None:
    (project / "recipes" / "one.yaml").write_text(HEAD + "  title: x\nconda: {exclude_newer: 2026-11-01}\n")
    assert load_recipe("one", project).conda.exclude_newer == "2026-11-01"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 5400),
        ("5:30", 330),
        ("1:00:00", 3600),
        ("0-03:00", 10800),
        ("2-0", 172800),
        ("1-00:00:01", 86401),
    ],
)
def test_times_are_read_as_slurm_reads_them(text: str, expected: int) -> None:
    assert seconds(text) == expected


def test_docs_list_every_key_of_a_site() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text()
    for model in (Site, Runtime, Node, Queue, Slurm, Fabric, Check, Ray):
        for key in model.model_fields:
            assert f"`{key}`" in text, f"{model.__name__}.{key}"


# shell texts ----------------------------------------------------------------------------------------------------------


def by_bash(line: str, **env: str) -> list[str]:
    """The words that bash makes of a line."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"],
        capture_output=True,
        env={"PATH": os.environ["PATH"], **env},
        check=True,
    )
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12), min_size=1, max_size=5
    )
)
def test_words_reach_a_command_as_they_are(words: list[str]) -> None:
    assert by_bash(command_line(words)) == words


@settings(max_examples=40, deadline=None)
@given(st.text("aB1 $`\\\"'!{}*~;&|\n", max_size=20), st.text("x y*$`\"\\'", max_size=8))
def test_variables_are_filled_in_and_nothing_else_is(literal: str, value: str) -> None:
    word = join(literal, ShellText("${V}"), literal)
    assert by_bash(quote(word), V=value) == [literal + value + literal]
    assert expand(word, {"V": value}) == literal + value + literal


def test_a_dollar_stands_twice_in_a_shell_text() -> None:
    assert quote(ShellText("a$$b")) == '"a\\$b"'
    assert by_bash(quote(ShellText("$$V $V")), V="x") == ["$V x"]
    assert map_literal(ShellText("a$$b$Va"), str.upper) == "A$$B$Va"


def test_paths_of_people_may_name_variables() -> None:
    assert isinstance(from_user("$SCRATCH/x"), ShellText)
    assert not isinstance(from_user("/x/$(id)"), ShellText)
    assert by_bash(quote(from_user("/x/$(id)"))) == ["/x/$(id)"]


def test_a_variable_that_is_not_set_is_an_error_with_its_name() -> None:
    with pytest.raises(RunnerError, match=r"\$SLURM_JOB_ID is not set") as caught:
        expand(ShellText("/tmp/$SLURM_JOB_ID"), {})
    assert "builder job TARGET --interactive" in caught.value.hint
