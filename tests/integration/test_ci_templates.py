"""The templates in ``examples/ci``, executed on projects that ``builder init`` made.

The CI services are those of tests/support/ciservice.py; registry, builder and git are real.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uv

from tests.integration.conftest import CLONE
from tests.support import parts
from tests.support.ciservice import PASSWORD, USER, GitHub, GitLab, Service, git, publishes
from tests.support.programs import run_program
from tests.support.wheels import make_wheel

SERVICES: dict[str, type[Service]] = {"github": GitHub, "gitlab": GitLab}
#: A package that builds itself, without setuptools; its version is that of the last tag.
BACKEND = """
import os, re, zipfile
def build_wheel(out, config_settings=None, metadata_directory=None):
    version = "0"
    if os.path.exists(".git_archival.txt"):  # uv, which asks for metadata, makes no such file
        with open(".git_archival.txt") as file:
            version = re.search("v([0-9.]+)-", file.read())[1]
    name = f"mine-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(out, name), "w") as wheel:
        def add(path, text):
            wheel.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), text)
        add("mine.py", "import greeter\\n")
        info = f"mine-{version}.dist-info/"
        names = f"Name: mine\\nVersion: {version}\\nRequires-Dist: greeter\\n"
        add(info + "METADATA", f"Metadata-Version: 2.1\\n{names}")
        add(info + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\nRoot-Is-Purelib: true\\n")
        add(info + "RECORD", "")
    return name
build_editable = build_wheel
"""
PYPROJECT = """
[project]
name = "mine"
dynamic = ["version"]
requires-python = ">=3.11"
dependencies = ["greeter"]
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[tool.setuptools_scm]
"""
ENVIRONMENT = "channels: [conda-forge]\ndependencies:\n  - python=3.11\n  - pip: [greeter]\n"
CONDA_LOCK = f"""
version: 1
metadata:
  content_hash: {{linux-64: none}}
  channels: [{{url: conda-forge, used_env_vars: []}}]
  platforms: [linux-64]
  sources: [environment.yml]
package:
- {{name: zlib, version: "1.3", manager: conda, platform: linux-64, category: main, optional: false,
    dependencies: {{}}, url: "https://conda.example/c/linux-64/zlib-1.3-h_0.conda",
    hash: {{sha256: {"a" * 64}}}}}
"""
RECIPE = "base: debian:bookworm\nlock: conda-lock.yml\n"
BUILDER = (sys.executable, "-m", "builder")
SHIM = f'#!/bin/sh\nexec "{sys.executable}" -m builder "$@"\n'
#: Files of each project.
PROJECTS: dict[str, Mapping[str, str]] = {
    "environment.yml": {"environment.yml": ENVIRONMENT, "train.py": "import greeter\n"},
    "requirements.txt": {"requirements.txt": "greeter\n", "train.py": "import greeter\n"},
    "uv.lock": {"pyproject.toml": PYPROJECT, "backend.py": BACKEND},
}
#: Files that the first update of each project changes, and how.
CHANGED = {
    "environment.yml": {"M environment.mine.lock.yml"},
    "requirements.txt": {"M requirements.mine.lock.yml"},
    "uv.lock": {"A uv.mine.lock.yml", "A wheels/mine-1.2.0-py3-none-any.whl"},
}
#: A stand-in of ``builder lock --changes FILE`` that writes locks and replaces a wheel.
REPLACES = """\
#!/bin/sh
mkdir -p environments wheels/0123456789ab
touch environments/cpu.cpu.lock.yml wheels/new-1.0-py3-none-any.whl
mv wheels/old-1.0-py3-none-any.whl wheels/0123456789ab/
echo 'a package' > "$3"
"""


class Machine:
    """Commands of a user and of the services, with a package index of this machine."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.index = folder / "index"
        home = folder / "home"
        (home / ".cache").mkdir(parents=True)
        (home / ".cache/builder").symlink_to(cache)
        kept = {k: v for k, v in parts.clean_environment().items() if not k.startswith(("PIP_", "UV_"))}
        own = {
            "HOME": home,
            "PYTHONPATH": CLONE,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": self.index.as_uri(),
            "UV_FIND_LINKS": self.index / "greeter",
            "UV_NO_INDEX": "1",
            "BUILDER_MIRRORS": os.environ.get("BUILDER_MIRRORS", ""),
        }
        self.env = {**kept, **{name: str(value) for name, value in own.items()}}
        self.add("1.0")

    def add(self, version: str) -> None:
        """Add a version of package greeter to the index."""
        project = self.index / "greeter"
        make_wheel(project, "greeter", version, files={"greeter.py": f"VERSION = {version!r}\n"})
        links = (f'<a href="{path.name}">{path.name}</a>' for path in sorted(project.glob("*.whl")))
        (project / "index.html").write_text("\n".join(links))

    def type(self, folder: Path, *words: str | Path) -> None:
        """Run a command in a folder."""
        run_program(words, self.env, cwd=folder)


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Make a repository with files, and return its folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "--quiet", "--initial-branch=main")
    return folder


def push(clone: Path) -> Path:
    """Commit everything, with a tag one commit before the last one; return the bare repository."""
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message=one")
    git(clone, "tag", "v1.2.0")
    git(clone, "commit", "--quiet", "--allow-empty", "--message=two")
    origin = clone.parent / "origin.git"
    git(clone, "clone", "--quiet", "--bare", str(clone), str(origin))
    return origin


def merge(origin: Path) -> set[str]:
    """Merge the branch of an update if there is one; return the changed files, and how they changed."""
    branch = git(origin, "for-each-ref", "--format=%(refname)", "refs/heads/builder").strip()
    if not branch:
        return set()
    changes = git(origin, "diff", "--name-status", "--no-renames", "main", branch).splitlines()
    git(origin, "update-ref", "refs/heads/main", branch)
    return {change.replace("\t", " ") for change in changes}


@pytest.fixture(scope="module")
def registry(make_registry: parts.RegistryFactory) -> parts.Registry:
    """A registry that only the user of the services may use."""
    parts.need("jq", "git")
    return make_registry(htpasswd={USER: PASSWORD})


@pytest.mark.parametrize("name", PROJECTS)
@pytest.mark.parametrize("kind", SERVICES)
def test_month(tmp_path: Path, cache: Path, registry: parts.Registry, kind: str, name: str) -> None:
    """The update pushes locks and wheels, and nothing else; its merge publishes two tags."""
    machine = Machine(tmp_path / "machine", cache)
    clone = write(tmp_path / "mine", PROJECTS[name])
    if name == "uv.lock":
        machine.type(clone, uv.find_uv_bin(), "lock", "--quiet", "--no-python-downloads")
    machine.type(clone, *BUILDER, "init", "-y", "--base", "debian:bookworm")
    if name != "uv.lock":
        machine.type(clone, *BUILDER, "lock")
    machine.add("1.1")
    place = (push(clone), f"{kind.title()}/{name}", registry.host)
    service = SERVICES[kind](tmp_path / "ci", *place, machine.env, SHIM, cache)

    report = service.report(service.run("update"))
    assert "`greeter`" in report
    changes = merge(service.origin)
    assert changes == CHANGED[name]
    assert publishes(service.file, [change.split(" ", 1)[1] for change in changes])

    service.run("publish")
    repositories = registry.root / "docker/registry/v2/repositories"
    tags = repositories / service.name.lower() / "mine/_manifests/tags"
    month = f"{datetime.now(UTC):%y.%m}"
    assert {month, "latest"} <= {path.name for path in tags.iterdir()}


@pytest.mark.parametrize("kind", SERVICES)
def test_replaced_wheel(tmp_path: Path, kind: str) -> None:
    """A wheel that a lock no longer needs is removed; a second update in a month renews the text."""
    files = {"train.py": "", "wheels/old-1.0-py3-none-any.whl": "", "wheels/notes.txt": ""}
    origin = push(write(tmp_path / "mine", files))
    machine = Machine(tmp_path / "machine", tmp_path)
    service = SERVICES[kind](tmp_path / "ci", origin, "Owner/Mine", "localhost:1", machine.env, REPLACES)
    for _ in range(2):
        service.run("update")
        (service.folder / "open").touch()
    assert merge(origin) == {
        "A environments/cpu.cpu.lock.yml",
        "A wheels/0123456789ab/old-1.0-py3-none-any.whl",
        "A wheels/new-1.0-py3-none-any.whl",
        "D wheels/old-1.0-py3-none-any.whl",
    }
    if kind == "github":
        assert "pulls/ --field body=@" in service.calls.read_text().splitlines()[-1]


@pytest.mark.parametrize("kind", SERVICES)
def test_lock_of_conda_lock(tmp_path: Path, kind: str) -> None:
    """A lock that builder uses unchanged: the update pushes nothing, and a changed lock is published."""
    files = {"conda-lock.yml": CONDA_LOCK, "recipes/mine.yaml": RECIPE}
    machine = Machine(tmp_path / "machine", tmp_path)
    origin = push(write(tmp_path / "mine", files))
    service = SERVICES[kind](tmp_path / "ci", origin, "Owner/Mine", "localhost:1", machine.env, SHIM)
    service.run("update")
    assert not merge(origin) and not service.calls.exists()
    assert publishes(service.file, ["conda-lock.yml"])
