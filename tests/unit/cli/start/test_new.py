"""New projects: what is written, what is reported, and that nothing is overwritten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.cli.start import new
from builder.cli.start.found import candidate, candidates
from builder.cli.start.new import InitOptions, Written, new_project
from builder.core.errors import ConfigError, UsageError
from builder.core.settings import Settings
from builder.deliver.site.lockchecks import INFINIBAND_PACKAGES
from builder.lock.channels import SolverChannel
from builder.lock.config.recipe import load_recipe
from builder.lock.inputs import Inputs

FORGE = SolverChannel("conda-forge", "https://c/", "https://c/")
WRITTEN = ("recipes/mine.yaml", "recipes/.schema.json")
ENVIRONMENT = "channels: [conda-forge]\ndependencies:\n  - python=3.12\n  - numpy\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder; all channels and registries answer."""
    monkeypatch.setattr(new, "usual_base", lambda settings: ("docker://debian:bookworm-slim", ""))
    monkeypatch.setattr(new, "this_platform", lambda: "")
    monkeypatch.setattr(new, "can_make_debian", lambda: True)
    monkeypatch.setattr(new, "probe_channels", lambda request: ([FORGE], []))
    monkeypatch.setattr(new, "probe_indexes", lambda *given: {})
    made = tmp_path / "mine"
    made.mkdir()
    return made


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No channel and no index answers."""
    channels, indexes = ["channel conda-forge does not answer (x)"], {"https://i": "https://i is silent"}
    monkeypatch.setattr(new, "probe_channels", lambda request: ([], channels))
    monkeypatch.setattr(new, "probe_indexes", lambda *given: indexes)


def write(folder: Path, **options: Any) -> Written:
    settings = Settings.from_environment({"HOME": str(folder)})
    return new_project(folder, candidates(folder)[0], InitOptions(**options), settings)


def names(written: Written, folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in written.files]


def test_environment(folder: Path) -> None:
    """An environment file is used where it is; the project's script is what the image runs."""
    (folder / "environment.yml").write_text(ENVIRONMENT)
    (folder / "train.py").touch()
    written = write(folder)
    assert names(written, folder) == [*WRITTEN, ".gitignore"] and not written.notes
    recipe = load_recipe("mine", folder)
    assert recipe.environment == "environment.yml" and recipe.cmd == ("python", "train.py")
    assert recipe == written.draft.recipe(folder)
    assert (folder / "environment.yml").read_text() == ENVIRONMENT
    assert {path.name for path in (folder / "recipes").iterdir()} == {"mine.yaml", ".schema.json"}


def test_silent_channel(folder: Path, silent: None) -> None:
    """A warning names it, and how to name a copy; nothing takes its place."""
    (folder / "environment.yml").write_text(ENVIRONMENT)
    written = write(folder)
    recipe = load_recipe("mine", folder)
    assert recipe.pip.fallback == "pip" and not recipe.uses_base_python
    assert "channel conda-forge does not answer (x): builder lock needs it" in written.warnings[0]
    assert "BUILDER_MIRRORS" in written.warnings[0]


@pytest.mark.parametrize(
    "text", ["dependencies: [python=3.11]\n", "dependencies: [python, pip, {pip: [polars]}]\n"]
)
def test_base_python(folder: Path, silent: None, text: str) -> None:
    """A project of pip packages needs no channel: where none answers, Python is the base's."""
    (folder / "environment.yml").write_text(text)
    written = write(folder)
    recipe = load_recipe("mine", folder)
    assert (recipe.python, recipe.base, recipe.base_packages) == ("base", "debian:bookworm", ("python3",))
    assert "Python is that of the base debian:bookworm" in written.notes[1] and not written.warnings


def test_no_mmdebstrap(folder: Path, silent: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tool that makes such a base, the channel is needed."""
    monkeypatch.setattr(new, "can_make_debian", lambda: False)
    (folder / "requirements.txt").write_text("polars\n")
    written = write(folder)
    assert not load_recipe("mine", folder).uses_base_python and "builder lock needs it" in written.warnings[0]


def test_no_channels(folder: Path) -> None:
    """The recipe names a channel where the environment file names none."""
    (folder / "environment.yml").write_text("dependencies: [python=3.11]\n")
    written = write(folder)
    assert load_recipe("mine", folder).conda.channels == ("conda-forge",)
    assert written.notes == ["environment.yml names no channels: the recipe names conda-forge"]


def test_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It names the file that is read, the one that is ignored, and the base."""
    (folder / "pyproject.toml").write_text("[tool.ruff]\n")
    (folder / "requirements.txt").write_text("polars\n")
    with caplog.at_level("INFO", "builder.cli.start"):
        write(folder)
    assert [each.getMessage() for each in caplog.records if each.name.startswith("builder.cli.start")] == [
        f"{folder}/pyproject.toml is ignored: it names no packages",
        f"target mine: the packages are those of {folder}/requirements.txt",
        "no site and no --base: the base is docker://debian:bookworm-slim",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "polars\n"),
        ("pixi.toml", "[workspace]\nchannels = ['conda-forge']\n[dependencies]\nnumpy = '*'\n"),
    ],
)
def test_files_of_other_tools(folder: Path, name: str, text: str) -> None:
    """The recipe names the file itself, which builder lock reads."""
    (folder / name).write_text(text)
    written = write(folder)
    assert names(written, folder) == [*WRITTEN, ".gitignore"]
    assert load_recipe("mine", folder).environment == name
    with pytest.raises(UsageError, match="--with takes groups"):
        write(folder, name="b", groups=("dev",))


def test_pyproject(folder: Path) -> None:
    """The recipe names the file, and the groups."""
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "x"\ndependencies = ["polars"]\n[dependency-groups]\ndev = ["rich"]\n'
    )
    write(folder, groups=("dev",))
    recipe = load_recipe("mine", folder)
    assert (recipe.environment, recipe.groups) == ("pyproject.toml", ("main", "dev"))


def test_package(folder: Path) -> None:
    """A project that is a package is installed, not copied: its commands work in the image."""
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "x"\ndependencies = ["polars"]\n[build-system]\nrequires = []\n'
    )
    (folder / "src" / "x").mkdir(parents=True)
    (folder / "src" / "x" / "__init__.py").touch()
    write(folder)
    assert load_recipe("mine", folder).files == ()


PROJECT = '[project]\nname = "Fast_Sum"\nversion = "1"\n[build-system]\nrequires = [{requires}]\n'
SETUPTOOLS = '[tool.setuptools]\next-modules = [{name = "x._c", sources = ["c.c"]}]\n'
CC = ("gcc", "g++", "libc6-dev")


@pytest.mark.parametrize(
    ("requires", "more", "setup", "expected"),
    [
        ('"setuptools"', SETUPTOOLS, "", CC),
        ('"setuptools"', "", "setup(ext_modules=[Extension('x', ['x.c'])])", CC),
        ('"scikit-build-core", "pybind11"', "", "", CC),
        ('"maturin>=1"', "", "", ("cargo", "gcc", "libc6-dev")),
        ('"hatchling"', "[tool.ruff]\nselect = ['pybind11']\n", "", ()),
    ],
)
def test_compilers(
    folder: Path, silent: None, requires: str, more: str, setup: str, expected: tuple[str, ...]
) -> None:
    """A package that is compiled gets its compilers, and the headers of a Python that is Debian's."""
    (folder / "pyproject.toml").write_text(PROJECT.replace("{requires}", requires) + more)
    if setup:
        (folder / "setup.py").write_text(setup)
    write(folder)
    build = load_recipe("mine", folder).pip.build
    wanted = {"fast-sum": (*expected, "python3-dev")} if expected else {}
    assert {name: one.base_packages for name, one in build.items()} == wanted


def test_headers_of_conda(folder: Path) -> None:
    """conda's Python has its headers."""
    (folder / "pyproject.toml").write_text(PROJECT.replace("{requires}", '"setuptools"') + SETUPTOOLS)
    write(folder)
    assert load_recipe("mine", folder).pip.build["fast-sum"].base_packages == CC


def test_setup_py(folder: Path) -> None:
    """A project with setup.py alone is installed with its extras."""
    (folder / "setup.py").touch()
    written = write(folder, groups=("fast",))
    recipe = load_recipe("mine", folder)
    assert (recipe.environment, recipe.groups, recipe.files) == ("setup.py", ("main", "fast"), ())
    assert not written.warnings


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "# nothing\n"),
        ("pyproject.toml", "[project]\nname = 'x'\ndependencies = []\n"),
        ("pixi.toml", "[workspace]\nchannels = ['c']\n"),
    ],
)
def test_no_packages(folder: Path, name: str, text: str) -> None:
    """A file without packages makes no project, also when the user names it."""
    (folder / name).write_text(text)
    settings = Settings.from_environment({"HOME": str(folder)})
    with pytest.raises(UsageError, match=f"{name} names no packages") as error:
        new_project(folder, candidate(folder / name), InitOptions(), settings)
    assert "requirements.txt" in (error.value.hint or "") and not (folder / "recipes").exists()


@pytest.mark.parametrize(("name", "tool"), [("pixi.toml", ""), ("pyproject.toml", "tool.pixi.")])
def test_environments_of_pixi(folder: Path, name: str, tool: str) -> None:
    """The default environment has Python alone: the message names the other ones."""
    (folder / name).write_text(
        f"[project]\nname = 'x'\n[{tool}workspace]\nchannels = ['c']\n"
        f"[{tool}environments.gpu.dependencies]\nlib = '*'\n"
    )
    with pytest.raises(UsageError, match="names no packages but for gpu") as error:
        write(folder)
    assert f"environment: {name}, lock_environment: gpu" in (error.value.hint or "")


def test_virtual_packages(folder: Path) -> None:
    """Virtual packages of an environment file are those of the recipe; one without them is refused."""
    (folder / "pixi.toml").write_text(
        "[workspace]\nchannels = ['c']\nplatforms = [{platform = 'linux-64', cuda = '12.0'}]\n"
        "[dependencies]\nnumpy = '*'\n"
    )
    write(folder)
    recipe = load_recipe("mine", folder)
    assert recipe.virtual_packages == {"__cuda": "12.0"}
    bare = recipe.model_copy(update={"virtual_packages": {"__glibc": "2.31"}})
    with pytest.raises(ConfigError, match="virtual_packages: the recipe does not set __cuda") as error:
        Inputs.read(bare)
    assert _typed(error) == 'virtual_packages: {"__glibc": "2.31", "__cuda": "12.0"}'


def test_variables(folder: Path) -> None:
    """Variables of an environment file become those of the image; a recipe without them is refused."""
    (folder / "environment.yml").write_text(f"{ENVIRONMENT}variables:\n  A: '1:x'\n  B: b c\n")
    write(folder)
    recipe = load_recipe("mine", folder)
    assert recipe.env == {"A": "1:x", "B": "b c"}
    with pytest.raises(ConfigError, match="the recipe does not set A") as error:
        Inputs.read(recipe.model_copy(update={"env": {"B": "c"}}))
    (folder / "recipes/mine.yaml").write_text(
        f"base: scratch\nenvironment: environment.yml\n{_typed(error)}\n"
    )
    environment = Inputs.read(load_recipe("mine", folder)).environment
    assert environment.variables == {"A": "1:x", "B": "b c"}


def _typed(error: pytest.ExceptionInfo[ConfigError]) -> str:
    """Return the line that a hint names."""
    assert error.value.hint is not None
    return error.value.hint.partition(": ")[2]


def test_conda_lock(folder: Path) -> None:
    """A lock of conda-lock is named by the recipe."""
    (folder / "conda-lock.yml").write_text(
        "version: 1\nmetadata: {content_hash: {}, channels: [], platforms: [linux-64], sources: [e.yml]}\n"
        "package: []\n"
    )
    (folder / "e.yml").write_text(ENVIRONMENT)
    written = write(folder)
    recipe = load_recipe("mine", folder)
    assert (recipe.lock, recipe.environment) == ("conda-lock.yml", "e.yml")
    assert written.notes == ["conda-lock.yml is used as it is: builder lock is not needed"]


def test_lock_of_another_tool(folder: Path, silent: None) -> None:
    """The recipe names it, with the groups; no environment file is written."""
    (folder / "uv.lock").write_text('version = 1\nrequires-python = ">=3.10"\n[[package]]\nname = "a"\n')
    (folder / "pyproject.toml").write_text("[project]\nname = 'a'\n")
    written = write(folder, groups=("dev",))
    recipe = load_recipe("mine", folder)
    assert (recipe.lock, recipe.environment, recipe.groups) == ("uv.lock", "", ("main", "dev"))
    assert not (folder / "environment.yml").exists()
    assert "the packages are those of uv.lock, with its versions" in written.notes


def test_nothing_is_overwritten(folder: Path) -> None:
    (folder / "environment.yml").write_text(ENVIRONMENT)
    write(folder)
    with pytest.raises(UsageError, match=r"recipes/mine\.yaml exists already"):
        write(folder)
    write(folder, name="other")
    assert load_recipe("other", folder).environment == "environment.yml"


def test_outside(folder: Path) -> None:
    other = folder.parent / "environment.yml"
    other.write_text(ENVIRONMENT)
    settings = Settings.from_environment({"HOME": str(folder)})
    with pytest.raises(ConfigError, match="--from: .* is outside of the project"):
        new_project(folder, candidate(other), InitOptions(), settings)
    (folder / "environment.yml").write_text(ENVIRONMENT)
    with pytest.raises(ConfigError, match="no site named"):
        write(folder, site="nowhere")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "dist/\nreports/\n.env\n"),
        ("*.pyc", "*.pyc\ndist/\nreports/\n.env\n"),
        ("/dist\nreports\n.env\n", "/dist\nreports\n.env\n"),
    ],
)
def test_gitignore(folder: Path, before: str | None, after: str) -> None:
    """Only what is missing is added; locks are never ignored."""
    (folder / "environment.yml").write_text(ENVIRONMENT)
    path = folder / ".gitignore"
    if before is not None:
        path.write_text(before)
    written = write(folder)
    assert path.read_text() == after
    assert (path in written.files) == (before != after)


@pytest.mark.parametrize(
    ("site", "text", "adds"),
    [
        ("leonardo", "dependencies: [python, pip, {pip: [torch]}]\n", True),
        ("leonardo", ENVIRONMENT, False),
        ("alliance-nibi", "dependencies: [python, pip, {pip: [torch]}]\n", False),
    ],
)
def test_infiniband(folder: Path, site: str, text: str, adds: bool) -> None:
    """Where all packages are pip's, none brings libibverbs: on a network that needs it, the base gets it."""
    (folder / "environment.yml").write_text(text)
    written = write(folder, site=site)
    assert load_recipe("mine", folder).base_packages == (INFINIBAND_PACKAGES if adds else ())
    assert any("NCCL needs libibverbs" in note for note in written.notes) is adds
