"""``builder init``."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from builder.cli.start import new
from builder.lock.config.sites import site_files
from tests.support.cli import Cli
from tests.support.programs import run_program
from tests.support.project import TinyProject
from tests.support.terminal import in_terminal


@pytest.fixture
def bare(tiny: TinyProject, monkeypatch: pytest.MonkeyPatch) -> TinyProject:
    """The small project without its recipe: an environment file, a script, wheels and a base."""
    tiny.recipe.unlink()
    tiny.recipe.parent.rmdir()
    (tiny.root / "train.py").write_text("print(1)\n")
    text = tiny.environment.read_text().replace("      - pure", "      - --find-links wheels\n      - pure")
    tiny.environment.unlink()
    tiny.environment.parent.rmdir()
    (tiny.root / "environment.yml").write_text(text)
    monkeypatch.setattr(new, "usual_base", lambda settings: ("oci:base", ""))
    monkeypatch.setattr(new, "probe_indexes", lambda *given: {})
    return tiny


@pytest.mark.usefixtures("compiler")
def test_init(do: Cli, bare: TinyProject) -> None:
    """The recipe builds, and the next commands are printed."""
    made = do("init", "-y", "--json").json
    assert made["files"] == ["recipes/project.yaml", "recipes/.schema.json", ".gitignore"]
    assert made["next"] == ["builder build", "builder run", "builder publish --to HOST/REPOSITORY"]
    assert do("build", "--json").json["target"] == "project"


def test_editor(do: Cli, bare: TinyProject) -> None:
    """The recipe's first line leads an editor to a schema that a clone of the project has, too.

    The next ``builder init`` writes it again, because a newer builder has more keys.
    """
    assert do("init", "-y").code == 0
    run_program(["git", "init", "-q", str(bare.root)], os.environ)
    kept = run_program(["git", "ls-files", "--others", "--exclude-standard"], os.environ, cwd=bare.root)
    assert "recipes/.schema.json" in kept.stdout.splitlines()
    clone = bare.root.rename(bare.root.with_name("clone"))
    recipe = clone / "recipes" / "project.yaml"
    first, *_ = recipe.read_text().splitlines()
    named = re.fullmatch(r"# yaml-language-server: \$schema=(\./\S+)", first)
    assert named, first
    schema = recipe.parent / named[1]
    assert schema.read_text() == do("help", "schema", "recipe").out
    jsonschema.validate(yaml.safe_load(recipe.read_text()), json.loads(schema.read_text()))
    schema.write_text("{}")
    assert do("--project", clone, "init", "-y", "--name", "other").code == 0
    assert len(schema.read_text()) > 10_000


def test_second_init(do: Cli, bare: TinyProject) -> None:
    """It says what exists, and writes only a target of another name."""
    assert do("init", "-y").code == 0
    again = do("init", "-y")
    assert again.code == 0 and "target project exists" in again.out and "init --name NAME" in again.err
    other = do("init", "-y", "--name", "other", "--json").json
    assert other["next"][0] == "builder build other"


def test_second_site(do: Cli, bare: TinyProject) -> None:
    """A second machine of the project gets a target of its own, with the site's name; once."""
    assert do("init", "-y").code == 0
    assert do("init", "-y", "--site", "perlmutter").code == 0
    text = (bare.root / "recipes/perlmutter.yaml").read_text()
    assert "site: perlmutter" in text
    again = do("init", "-y", "--site", "perlmutter")
    assert again.code == 0 and "target perlmutter exists" in again.out
    assert (bare.root / "recipes/perlmutter.yaml").read_text() == text


def test_next_on_a_site(do: Cli, bare: TinyProject) -> None:
    """Jobs that run a file need it on the site."""
    made = do("init", "-y", "--site", "lumi-g", "--json")
    assert made.json["next"] == [
        "builder build",
        "builder publish --to HOST/REPOSITORY",
        "builder pull --account ACCOUNT --from HOST/REPOSITORY",
        "builder job --account ACCOUNT --submit -- python train.py",
    ]


def test_questions(do: Cli, bare: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal init asks for the name and the site; wrong answers are asked again."""
    answers = iter(["Fit", "perlmutter"])
    monkeypatch.setattr("builder.cli.init.sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.prompt", lambda text, **options: next(answers))
    result = do("init")
    assert "recipes/fit.yaml" in result.out and "site: perlmutter" in Path("recipes/fit.yaml").read_text()
    assert "builder job --account ACCOUNT --submit -- python train.py" in result.out


def test_names_of_sites(bare: TinyProject) -> None:
    """A terminal shows each name of a site whole, also one with hyphens at the end of a line."""
    shown = in_terminal(
        [sys.executable, "-m", "builder", "--offline", "init", "--name", "fit"],
        cwd=bare.root,
        env=bare.variables(),
        after=(("[none]:", "none\n"),),
    )
    sites = shown.text.partition("\nsite that runs")[0].splitlines()
    assert shown.code == 0 and max(map(len, sites)) <= 80
    assert set(site_files(bare.root)) <= set(" ".join(sites).replace(",", " ").split())


def test_several_files(do: Cli, bare: TinyProject) -> None:
    """The file that is taken is named, with those that are not."""
    (bare.root / "requirements.txt").write_text("pure\n")
    (bare.root / "pixi.toml").touch()
    result = do("init", "-y")
    assert "the packages are those of environment.yml (--from takes pixi.toml, requirements.txt" in result.err
    chosen = do("init", "-y", "--name", "b", "--from", "requirements.txt")
    assert chosen.code == 0 and "wrote recipes/b.yaml" in chosen.out


def test_nothing_to_read(do: Cli, bare: TinyProject) -> None:
    """Without a file that names packages nothing is written; the hint works when it is typed."""
    (bare.root / "environment.yml").rename(bare.root / "packages.yml")
    result = do("init", "-y")
    assert result.code == 2 and "no file in" in result.err and not (bare.root / "recipes").exists()
    (bare.root / "requirements.txt").write_text("--find-links wheels\npure\n")
    typed = result.err.partition("run: builder ")[2].splitlines()[0].split()
    assert do(*typed, "-y").code == 0 and (bare.root / "recipes" / "project.yaml").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["init", "--from", "nope.yml"], "nope.yml: no such file"),
        (["init", "--site", "nowhere"], "no site named 'nowhere'"),
        (["init", "--with", "dev"], "--with takes groups"),
    ],
)
def test_errors(do: Cli, bare: TinyProject, args: list[str], words: str) -> None:
    result = do(*args)
    assert result.code in (2, 3) and words in result.err and "hint:" in result.err
    assert not (bare.root / "recipes").exists()


def test_next_after_warnings(do: Cli, bare: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a build cannot succeed yet, init does not name it as the next command without a word."""
    silent = ["channel forge does not answer (x)"]
    monkeypatch.setattr(new, "probe_channels", lambda request: ([], silent))
    monkeypatch.setattr(new, "can_make_debian", lambda: False)
    made = do("init", "-y")
    assert "channel forge does not answer (x): builder lock needs it" in made.err
    assert "\nnext, when the warnings above are done:\n  builder build\n" in made.out
