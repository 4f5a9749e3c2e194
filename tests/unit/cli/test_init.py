"""``builder init``, and commands with ``--env``: projects that have no recipe yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.cli.context import Context
from builder.cli.output import Output
from builder.settings import Settings
from builder.start import new, quick
from builder.start.draft import NO_FILE
from tests.support.cli import Cli
from tests.support.project import TinyProject


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
    monkeypatch.setattr(quick, "usual_base", lambda settings: ("oci:base", ""))
    monkeypatch.setattr(new, "silent_indexes", lambda *given: "")
    return tiny


QUICK = ("--env", "environment.yml", "--add", "train.py")


@pytest.mark.usefixtures("compiler")
def test_env_and_init(do: Cli, bare: TinyProject) -> None:
    """--env builds without a recipe, and init turns it into one that builds the same image."""
    quick_build = do("build", *QUICK, "--json").json
    assert quick_build["target"] == "project" and not (bare.root / "recipes").exists()
    assert (bare.root / "environment.project.lock.yml").exists() and (bare.root / "dist").is_dir()
    assert do("lock", *QUICK, "--check", "--json").json[0]["fresh"]
    assert do("plan", *QUICK, "--json").json["target"] == "project"
    printed = do("run", *QUICK, "--env", "A=1", "--print", "ls").out
    assert printed == "builder run --env environment.yml --add train.py --env A=1 -- ls\n"

    made = do("init", "-y", *QUICK, "--json").json
    assert made["files"] == ["recipes/project.yaml", ".gitignore"]
    assert made["next"] == ["builder build", "builder run", "builder publish --to HOST/REPOSITORY"]
    assert do("build", "--json").json["digest"] == quick_build["digest"]


@pytest.mark.usefixtures("compiler")
def test_hints_without_recipe(do: Cli, bare: TinyProject) -> None:
    """A hint names the options of this command line, not a target that no other command would find."""
    assert do("build", *QUICK).code == 0
    edited = bare.root / "environment.yml"
    edited.write_text(edited.read_text().replace("dependencies:", "dependencies:\n  - extra"))
    stale = do("build", *QUICK, "--json")
    assert stale.json["hint"] == "builder lock --env environment.yml --add train.py"
    context = Context(Output(), Settings.from_environment({"HOME": str(bare.root)}), bare.root)
    context.options |= {"add": ("a b.py", "c.py"), "env": bare.root / "environment.yml", "site": "perlmutter"}
    (bare.root / "a b.py").touch()
    (bare.root / "c.py").touch()
    words = f"--env {bare.root}/environment.yml --site perlmutter --add 'a b.py' --add c.py"
    assert context.adapted("builder lock project") == "builder lock project", "no project was found yet"
    assert context.project.only is not None and "--env" in context.adapted("builder run project")
    assert context.adapted("x: builder lock project.") == f"x: builder lock {words}."
    assert context.adapted("builder lock projects") == "builder lock projects"
    assert context.adapted(f"write it into {NO_FILE}").endswith(f"a recipe (builder init {words} writes one)")


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
    assert "was switched off" not in made.err


def test_retired_site(do: Cli, bare: TinyProject) -> None:
    """It can be chosen, with a warning, and no job is proposed."""
    made = do("init", "-y", "--site", "archer2-gpu", "--env", "environment.yml", "--json")
    assert "its successors: isambard-ai" in made.err
    assert made.json["next"] == ["builder build", "builder publish --to HOST/REPOSITORY"]


def test_questions(do: Cli, bare: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal init asks for the name and the site; wrong answers are asked again."""
    answers = iter(["Fit", "perlmutter"])
    monkeypatch.setattr("builder.cli.init.sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.prompt", lambda text, **options: next(answers))
    result = do("init")
    assert "recipes/fit.yaml" in result.out and "site: perlmutter" in Path("recipes/fit.yaml").read_text()
    assert "builder job --account ACCOUNT --submit -- python train.py" in result.out


def test_several_files(do: Cli, bare: TinyProject) -> None:
    """The file that is taken is named, with those that are not."""
    (bare.root / "requirements.txt").write_text("pure\n")
    (bare.root / "pixi.toml").touch()
    result = do("init", "-y")
    assert "the packages are those of environment.yml (--from takes pixi.toml, requirements.txt" in result.err
    chosen = do("init", "-y", "--name", "b", "--from", "requirements.txt")
    assert chosen.code == 0 and "wrote recipes/b.yaml, b.yml" in chosen.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["init", "--from", "nope.yml"], "nope.yml: no such file"),
        (["init", "--from", "environment.yml", "--env", "environment.yml"], "--from and --env"),
        (["init", "--site", "nowhere"], "no site named 'nowhere'"),
        (["build", "--env", "nope.yml"], "--env"),
        (["build", "--site", "perlmutter"], "--site: only with --env FILE"),
        (["run", "--name", "x", "ls"], "--name: only with --env FILE.yml"),
        (["build", *QUICK, "--on", "slurm"], "--on slurm needs a recipe"),
        (["build", "other", *QUICK], "no target named 'other': the only one is project"),
        (["run", *QUICK, "--env", "b.yml", "ls"], "several environment files: environment.yml, b.yml"),
    ],
)
def test_errors(do: Cli, bare: TinyProject, args: list[str], words: str) -> None:
    result = do(*args)
    assert result.code in (2, 3) and words in result.err and "hint:" in result.err
    assert not (bare.root / "recipes").exists()


def test_next_after_warnings(do: Cli, bare: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a build cannot succeed yet, init does not name it as the next command without a word."""
    monkeypatch.setattr(new, "not_in_debian_channel", lambda environment: environment.conda[:1])
    monkeypatch.setattr(new, "silent_channels", lambda *given: "no channel answers")
    monkeypatch.setattr(new, "fits_debian_channel", lambda recipe: True)
    made = do("init", "-y")
    assert "the Debian channel has no" in made.err
    assert "\nnext, when the warnings above are done:\n  builder build\n" in made.out
