"""What uv is given. uv is real, and a build backend leaves a mark if it runs."""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from builder.core.errors import BuilderError, ConfigError, FetchError, SolveError
from builder.core.model import LockedPackage, LockedSource
from builder.core.settings import Settings
from builder.core.store.files import sha256_file
from builder.lock.config.recipe import Recipe
from builder.lock.indexes import Indexes, check_kind, warn_of_kind
from builder.lock.inputs import Inputs
from builder.lock.pip import solve_pip
from builder.lock.request import BuiltWheel, SolveRequest
from builder.lock.solve import solve_pip_packages
from builder.lock.spec import Environment, SourceSpec, Spec
from tests.support.fileserver import Server
from tests.support.gitserver import Repo
from tests.support.reporters import Warnings
from tests.support.wheels import make_wheel

PYTHON = LockedPackage("python", "3.11.2", "conda", "linux-64", "https://h/python-3.11.2-0.conda", "0" * 64)
#: What follows a URL, behind a line break; FOLDER holds the build backend.
LINES = ("\n-e ${PWD}/evil\n", "\n-e FOLDER", "\u2028-e FOLDER")


@pytest.fixture(autouse=True)
def no_pip_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder whose build backend lies in it and needs no package; it writes ``mark``."""
    monkeypatch.setenv("PWD", str(tmp_path))
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\nraise SystemExit(1)\n")
    return str(folder)


@pytest.fixture
def git_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Returns what git was started with since the last call, by any program that looks for it."""
    log, programs = tmp_path / "git.log", tmp_path / "programs"
    log.touch()
    programs.mkdir()
    (programs / "git").write_text(f'#!/bin/sh\necho "$*" >>{log}\nexec {shutil.which("git")} "$@"\n')
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def calls() -> list[str]:
        found = log.read_text().splitlines()
        log.write_text("")
        return found

    return calls


def request(folder: Path, environment: str, *, offline: bool = False) -> SolveRequest:
    recipe = Recipe.model_validate(
        {"name": "t", "base": "debian:bookworm", "environment": environment, "root": folder}
    )
    variables = {"HOME": str(folder), "BUILDER_CACHE": str(folder / "cache")}
    settings = Settings.from_environment({**variables, **({"BUILDER_OFFLINE": "1"} if offline else {})})
    return SolveRequest(recipe, Inputs.read(recipe).environment, settings)


def solve(folder: Path, environment: str, *, offline: bool = False) -> list[LockedPackage]:
    return solve_pip(request(folder, environment, offline=offline), [PYTHON])


def environment_yml(folder: Path, option: str, url: str) -> str:
    data: dict[str, object] = {"channels": ["c"], "dependencies": ["python", {"pip": ["absent"]}]}
    if option == "pip-repositories":
        data[option] = [url]
    else:
        data["dependencies"] = ["python", {"pip": [f"{option} '{url}'", "absent"]}]
    (folder / "environment.yml").write_text(yaml.safe_dump(data))
    return "environment.yml"


def pyproject_toml(folder: Path, option: str, url: str) -> str:
    text = '[project]\nname = "p"\nversion = "1"\ndependencies = ["absent"]\n'
    if option == "index":
        text += f"[[tool.uv.index]]\nurl = {json.dumps(url)}\n"
    else:
        text += '[tool.uv.sources]\nabsent = {index = "i"}\n'
        text += f'[[tool.uv.index]]\nname = "i"\nexplicit = true\nurl = {json.dumps(url)}\n'
    (folder / "pyproject.toml").write_text(text)
    return "pyproject.toml"


def pixi_toml(folder: Path, option: str, url: str) -> str:
    text = '[workspace]\nchannels = ["c"]\nplatforms = ["linux-64"]\n[dependencies]\npython = "3.11.*"\n'
    if option == "index":
        text += f'[pypi-dependencies]\nabsent = {{version = "*", index = {json.dumps(url)}}}\n'
    else:
        text += '[pypi-dependencies]\nabsent = "*"\n'
        text += f"[pypi-options]\nextra-index-urls = [{json.dumps(url)}]\n"
    (folder / "pixi.toml").write_text(text)
    return "pixi.toml"


WRITERS = (
    *((environment_yml, f"--{name}") for name in ("extra-index-url", "index-url", "find-links")),
    (environment_yml, "pip-repositories"),
    *((pyproject_toml, option) for option in ("index", "source")),
    *((pixi_toml, option) for option in ("index", "extra-index-urls")),
)


@pytest.mark.parametrize("behind", LINES)
@pytest.mark.parametrize(("write", "option"), WRITERS)
def test_line_break_in_url(  # type: ignore[no-untyped-def]
    tmp_path: Path, evil: str, server: Server, write, option: str, behind: str
) -> None:
    """What is behind a line break in a URL runs nothing; the error names the file and the value."""
    for url in ("file:///absent", server.url):
        for offline in (False, True):
            name = write(tmp_path, option, url + behind.replace("FOLDER", evil))
            problem = None
            try:
                solve(tmp_path, name, offline=offline)
            except BuilderError as e:
                problem = e
            assert not (tmp_path / "mark").exists()
            assert isinstance(problem, ConfigError) and "without control characters" in problem.message
            assert name in problem.message and url in problem.message


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("behind", LINES)
def test_indexes_are_no_lines(
    tmp_path: Path, evil: str, monkeypatch: pytest.MonkeyPatch, behind: str, offline: bool
) -> None:
    """Where a line break comes from elsewhere, such as the value of a variable, it still is part of a URL."""
    monkeypatch.setenv("SNEAKY", behind.replace("FOLDER", evil))
    for option in ("--extra-index-url", "--index-url", "--find-links"):
        name = environment_yml(tmp_path, option, "file:///absent/$SNEAKY")
        with pytest.raises(BuilderError):
            solve(tmp_path, name, offline=offline)
        assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "text",
    [
        "-e FOLDER",
        "FOLDER",
        "-r FOLDER/x.txt",
        "absent\n-e FOLDER",
        "absent @ https://host.invalid/${HOME}/absent-1.0-py3-none-any.whl",
    ],
)
def test_only_requirements(tmp_path: Path, evil: str, text: str) -> None:
    """uv's files have requirements only, wherever they come from."""
    own = request(tmp_path, "absent.yml")
    hostile = Spec(text.replace("FOLDER", evil), "absent", "e.yml:3")
    environment = Environment(tmp_path / "e.yml", "", (), (), (Spec("absent", "absent", "e.yml:2"),))
    for asked in (replace(environment, pip=(hostile,)), replace(environment, constraints=(hostile,))):
        with pytest.raises(ConfigError, match=r"e\.yml: uv cannot take "):
            solve_pip(replace(own, environment=asked), [PYTHON])
        assert not (tmp_path / "mark").exists()


def test_configuration_of_uv(tmp_path: Path, evil: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv reads its settings from builder alone: not from the project, the user, or variables."""
    (tmp_path / "links").mkdir()
    make_wheel(tmp_path / "links", "absent", "1.0")
    settings = f'find-links = ["{(tmp_path / "links").as_uri()}"]\n'
    (tmp_path / "pyproject.toml").write_text(f"[tool.uv]\n{settings}")
    for place in (tmp_path, tmp_path / "config" / "uv"):
        place.mkdir(exist_ok=True, parents=True)
        (place / "uv.toml").write_text(settings)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    monkeypatch.chdir(tmp_path)
    name = environment_yml(tmp_path, "--find-links", "https://index.invalid/")
    with pytest.raises(BuilderError):
        solve(tmp_path, name, offline=True)
    name = environment_yml(tmp_path, "--find-links", "links")
    [package] = solve(tmp_path, name, offline=True)
    assert package.url == "builder://find-links/absent-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("build", "disabled", "wheel"),
    [
        ("0_cp313", 0, "ext-3.0-cp313-cp313"),
        ("0_cp313t", 0, "ext-2.0-cp313-cp313t"),
        ("0_cp313", 1, "ext-3.0-cp313-cp313"),
    ],
    ids=["with the GIL", "free-threaded", "builder's own is free-threaded"],
)
def test_free_threaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str, disabled: int, wheel: str
) -> None:
    """uv takes the newest version with a wheel for the ABI of the target's Python, not of builder's."""
    for version, abi in (("1.0", "cp313t"), ("2.0", "cp313t"), ("2.0", "cp313"), ("3.0", "cp313")):
        tag = f"cp313-{abi}-manylinux_2_28_x86_64"
        make_wheel(tmp_path / "links", "ext", version, tag=tag, purelib=False)
    data = {"channels": ["c"], "dependencies": ["python", {"pip": ["ext", "--find-links links"]}]}
    (tmp_path / "environment.yml").write_text(yaml.safe_dump(data))
    monkeypatch.setitem(sysconfig.get_config_vars(), "Py_GIL_DISABLED", disabled)
    python = replace(PYTHON, version="3.13.1", url=f"https://h/linux-64/python-3.13.1-{build}.conda")
    [package] = solve_pip(request(tmp_path, "environment.yml"), [python])
    assert package.filename == f"{wheel}-manylinux_2_28_x86_64.whl"


def for_gpu(made: SolveRequest, vendor: str) -> SolveRequest:
    """The request of a recipe for these GPUs that does without indexes that do not answer."""
    values = {**made.recipe.model_dump(), "gpu": {"vendor": vendor}, "pip": {"fallback": "pip"}}
    return replace(made, recipe=Recipe.model_validate(values))


@pytest.mark.parametrize(
    ("vendor", "index", "name", "refused"),
    [
        ("none", "cpu", "torch", True),
        ("amd", "rocm6.4", "torch", True),
        ("nvidia", "cpu", "torch", False),
        ("none", "cu129", "torch", False),
        ("none", "cpu", "nvidia-ml-py", False),
    ],
    ids=["cpu", "rocm", "recipe for CUDA", "index of CUDA", "no CUDA"],
)
def test_other_kind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vendor: str,
    index: str,
    name: str,
    refused: bool,
) -> None:
    """CUDA takes the place of a silent index only if the recipe or that index is for CUDA."""
    links = tmp_path / "links"
    make_wheel(links, "torch", "1.0", requires=("nvidia-cublas-cu12",))
    make_wheel(links, "nvidia_cublas_cu12", "1.0")
    make_wheel(links, "nvidia_ml_py", "1.0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    packages = [f"--extra-index-url http://127.0.0.1:9/whl/{index}", name]
    data = {"channels": ["c"], "dependencies": ["python", {"pip": packages}]}
    (tmp_path / "environment.yml").write_text(yaml.safe_dump(data))
    made = for_gpu(request(tmp_path, "environment.yml"), vendor)
    if refused:
        with pytest.raises(FetchError, match=r"/whl/.* does not answer.*\(nvidia-cublas-cu12 "):
            solve_pip(made, [PYTHON])
    else:
        assert name in [package.name for package in solve_pip(made, [PYTHON])]


def test_other_kind_named(tmp_path: Path) -> None:
    """The error (exit code 6) names the index without its password, the size and what to type."""
    (tmp_path / "environment.yml").write_text("channels: [c]\ndependencies: [python]\n")
    made = for_gpu(request(tmp_path, "environment.yml"), "none")
    sizes = {"torch": 900_000_000, "nvidia-cublas": 600_000_000}
    solved = [{"name": name, "wheels": [{"size": 1}, {"size": n}]} for name, n in sizes.items()]
    with pytest.raises(FetchError) as caught:
        check_kind(made, ["https://me:secret@h.example/whl/cpu"], solved)
    assert caught.value.exit_code == 6 and "secret" not in str(caught.value)
    assert "https://h.example/whl/cpu does not answer" in caught.value.message
    assert "(nvidia-cublas ...)" in caught.value.message
    for line in ("MIRRORS='https://h.example=URL", "PIP_FIND_LINKS=FOLDER", "{vendor: nvidia}"):
        assert line in caught.value.hint


@pytest.mark.parametrize(
    ("vendor", "names", "warning"),
    [
        ("none", ["torch", "nvidia-cublas-cu12"], "vendor: none}: write gpu: {vendor: nvidia} into"),
        ("amd", ["cuda-toolkit"], "for CUDA (cuda-toolkit ...), but the recipe has gpu: {vendor: amd}"),
        ("nvidia", ["torch", "nvidia-cublas-cu12"], ""),
        ("none", ["torch", "nvidia-ml-py"], ""),
    ],
)
def test_kind_is_named(tmp_path: Path, vendor: str, names: list[str], warning: str) -> None:
    """Every lock of a recipe for other GPUs is looked at, whichever indexes answered."""
    (tmp_path / "environment.yml").write_text("channels: [c]\ndependencies: [python]\n")
    made, reporter = for_gpu(request(tmp_path, "environment.yml"), vendor), Warnings()
    warn_of_kind(made.recipe, [replace(PYTHON, name=name) for name in names], reporter)
    assert bool(reporter.messages) == bool(warning) and warning in "".join(reporter.messages)


@pytest.mark.parametrize(
    ("vendor", "line"),
    [
        ("none", "{vendor: none} ({links} has torch 2.1+cpu: write torch==2.1)"),
        ("amd", "{vendor: amd} ({links} has torch 2.0+rocm6: write torch==2.0)"),
    ],
)
def test_build_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, line: str) -> None:
    """A folder has the build that fits, and uv took the newer one of an index: the line chooses it."""
    (tmp_path / "environment.yml").write_text("channels: [c]\ndependencies: [python]\n")
    (tmp_path / "links").mkdir()
    for version in ("2.0+rocm6", "2.1+cpu", "2.2+cu130", "2.3"):
        make_wheel(tmp_path / "links", "torch", version)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    made, reporter = for_gpu(request(tmp_path, "environment.yml"), vendor), Warnings()
    names = ["nvidia-cublas", "torch"]
    warn_of_kind(made.recipe, [replace(PYTHON, name=name) for name in names], reporter)
    (text,) = reporter.messages
    line = line.replace("{links}", str(tmp_path / "links"))
    assert line in text
    solved = [{"name": name, "wheels": []} for name in names]
    with pytest.raises(FetchError) as caught:
        check_kind(made, ["https://h.example/whl/cpu"], solved)
    assert line in caught.value.message
    monkeypatch.delenv("PIP_FIND_LINKS")
    reporter.messages.clear()
    warn_of_kind(made.recipe, [replace(PYTHON, name=name) for name in names], reporter)
    assert " has torch" not in reporter.messages[0]


class Built:
    """Plays the builder of wheels: makes one of the source's name."""

    def __init__(self, folder: Path, **requires: tuple[str, ...]) -> None:
        self.folder = folder
        self.requires = requires
        self.sources: list[str] = []

    def name_of(self, source: SourceSpec) -> None: ...

    def build(self, source: SourceSpec, packages: Sequence[LockedPackage]) -> BuiltWheel:
        self.sources.append(source.url)
        name = source.name or "own"
        path = make_wheel(self.folder, name, "2.0", requires=self.requires.get(name, ()))
        locked = LockedSource(source.kind, source.url, commit="1" * 40, tree="2" * 40)
        return BuiltWheel(path, path.name, name, "2.0", sha256_file(path), locked)


def test_repository_of_a_package(tmp_path: Path, git_calls: Callable[[], list[str]]) -> None:
    """uv runs no git for a package that requires a repository; the hint is the line that builder takes."""
    repo = Repo(tmp_path / ("long" * 20) / "repo")
    repo.commit(pyproject_toml="[project]\nname='tool'\nversion='2.0'\n")
    git_calls()
    links = tmp_path / "project" / "links"
    make_wheel(links, "app", "1.0", requires=(f"tool @ git+{repo.url}",))
    environment = tmp_path / "project" / "environment.yml"
    lines = "dependencies: [python, {pip: [-f links, app%s]}]\n"
    environment.write_text(lines % "")
    builder = Built(tmp_path / "built")
    with pytest.raises(SolveError, match=r"`tool @ git\S+`") as caught:
        solve_pip(request(tmp_path / "project", environment.name), [PYTHON], builder=builder)
    assert f"add '- tool @ git+{repo.url}' below '- pip:'" in caught.value.hint
    environment.write_text(lines % f", 'tool @ git+{repo.url}'")
    solved = solve_pip(request(tmp_path / "project", environment.name), [PYTHON], builder=builder)
    assert [package.name for package in solved] == ["app", "tool"] and builder.sources == [repo.url]
    assert solved[1].url == "builder://wheels/tool-2.0-py3-none-any.whl" and git_calls() == []


@pytest.mark.parametrize("marker", ["", " ; python_version >= '3'"])
def test_folder_of_a_package(tmp_path: Path, marker: str) -> None:
    """poetry writes ``lib = {path = "lib"}`` into the wheel as the folder during the build."""
    for folder in (tmp_path, tmp_path / "lib"):
        folder.mkdir(exist_ok=True)
        (folder / "pyproject.toml").write_text("[tool.poetry]\nname = 'x'\n[build-system]\nrequires = []\n")
    (tmp_path / "environment.yml").write_text("channels: [c]\ndependencies: [python, {pip: [.]}]\n")
    builder = Built(tmp_path / "built", own=(f"lib @ file:///build/source/lib{marker}",))
    solved = solve_pip(request(tmp_path, "environment.yml"), [PYTHON], builder=builder)
    assert [package.name for package in solved] == ["lib", "own"] and builder.sources == [".", "lib"]


def test_folder_named_twice(tmp_path: Path) -> None:
    """A member of a workspace that the root and another member need: one wheel, with all extras."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "pyproject.toml").write_text("[project]\nname = 'lib'\n")
    pip = "{pip: [-e ./lib, '-e ./lib[fast]', './lib[slow] ; python_version >= \"3\"']}"
    (tmp_path / "environment.yml").write_text(f"channels: [c]\ndependencies: [python, {pip}]\n")
    solved = solve_pip(request(tmp_path, "environment.yml"), [PYTHON], builder=Built(tmp_path / "built"))
    assert [package.name for package in solved] == ["own"]


def test_folder_outside(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[build-system]\nrequires = []\n")
    (tmp_path / "environment.yml").write_text("channels: [c]\ndependencies: [python, {pip: [.]}]\n")
    builder = Built(tmp_path / "built", own=("lib @ file:///build/source/../../etc",))
    with pytest.raises(SolveError, match="file:///etc"):
        solve_pip(request(tmp_path, "environment.yml"), [PYTHON], builder=builder)
    assert builder.sources == ["."]


def test_uv_toml(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of variables, in TOML that is what builder means, whatever characters they have."""
    import tomli

    monkeypatch.setenv("TOKEN", 'a"\n[pip]\n\\é\U0001f600')
    indexes = Indexes("https://u:p$w@h/$TOKEN/simple", ("https://u:p$w@h/$TOKEN/simple",), ("file:///a,b",))
    assert tomli.loads(indexes.uv_toml("e.yml", {"prerelease": "allow"})) == {
        "index-strategy": "unsafe-best-match",
        "prerelease": "allow",
        "index-url": 'https://u:p$w@h/a"\n[pip]\n\\é\U0001f600/simple',
        "extra-index-url": ['https://u:p$w@h/a"\n[pip]\n\\é\U0001f600/simple'],
        "find-links": ["file:///a,b"],
    }
    assert tomli.loads(Indexes(no_index=True).uv_toml("e.yml", {"index-strategy": "first-index"})) == {
        "index-strategy": "first-index",
        "no-index": True,
    }
    monkeypatch.delenv("TOKEN")
    with pytest.raises(ConfigError, match=r"^e\.yml: .*TOKEN is not set"):
        indexes.uv_toml("e.yml", {})


@pytest.mark.parametrize("name", ["requirements.txt", "only-pip.yml"])
def test_markers_that_leave_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of requirements of which none is for the target makes no image of Python alone."""
    make_wheel(tmp_path / "links", "a", "1.0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    (tmp_path / "requirements.txt").write_text("a ; sys_platform == 'win32'\nb ; python_version < '3'\n")
    text = "channels: [c]\ndependencies: [python, pip: [a ; sys_platform == 'win32']]\n"
    (tmp_path / "only-pip.yml").write_text(text)
    with pytest.raises(SolveError, match=r": a ; sys_platform .* all others are false"):
        solve_pip_packages(request(tmp_path, name), [PYTHON])
    (tmp_path / "s.txt").write_text("s @ git+https://h.example/s ; sys_platform == 'win32'\n")
    with pytest.raises(SolveError, match=r"s\.txt:1: s @ git.* all others are false"):
        solve_pip_packages(request(tmp_path, "s.txt"), [PYTHON])
    (tmp_path / name).write_text((tmp_path / name).read_text().replace("win32", "linux"))
    assert len(solve_pip_packages(request(tmp_path, name), [PYTHON])) == 1
    (tmp_path / "more.yml").write_text(text.replace("python,", "python, zlib,"))
    assert solve_pip_packages(request(tmp_path, "more.yml"), [PYTHON]) == []


def test_hash_of_a_constraint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for pip, a file has to have one of the hashes that its constraint names."""
    links = tmp_path / "links"
    digest = sha256_file(make_wheel(links, "a", "1.0"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    (tmp_path / "requirements.txt").write_text("-c limits.txt\na\n")
    (tmp_path / "limits.txt").write_text(f"a==1.0 --hash={digest}\n")
    assert [package.version for package in solve(tmp_path, "requirements.txt")] == ["1.0"]
    (tmp_path / "limits.txt").write_text(f"a==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(SolveError, match="limits.txt:1: no wheel of a has a hash"):
        solve(tmp_path, "requirements.txt")


def test_wheels_of_another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint names the newest Python for which there are some."""
    for tag in ("cp39-cp39", "cp310-cp310"):
        make_wheel(tmp_path / "links", "num", "1.21.6", tag=f"{tag}-manylinux_2_17_x86_64")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    (tmp_path / "requirements.txt").write_text("num==1.21.6\n")
    with pytest.raises(SolveError) as caught:
        solve(tmp_path, "requirements.txt")
    assert "num has wheels for another Python: name it: 3.10 in .python-version" in caught.value.hint
